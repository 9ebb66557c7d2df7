//! An honest pair talks while a third node, which has the key and follows no rules, talks to both.

use super::*;
use crate::protocol::loss::RECORDS_MAX;
use crate::protocol::sim::{Dice, Rules};
use crate::protocol::time::nanos;
use crate::protocol::*;
use doorbell_fabric::{Incarnation, NodeId, Priority};

/// The two honest nodes, and the hostile one.
const PAIR: [usize; 2] = [0, 1];
const FOE: usize = 2;
/// Frames for the datagrams of the hostile node.
const PING: &[u8] = &[0x01];
const CHALLENGE: &[u8] = &[0x04, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
/// Longer than any step of these tests takes in virtual time.
const LONGEST: u64 = 60 * SECOND;

/// A hostile node that has a session with each node of an honest pair. From then on, datagrams to it are swallowed, and so are
/// those of its own endpoint: it sends only what the test makes up.
struct Siege {
    network: Net,
    /// The hostile node's session with each honest node.
    theirs: [SessionId; 2],
    /// Each honest node's session with the hostile node.
    ours: [SessionId; 2],
    sent: u64,
}

impl Siege {
    fn new(seed: u64, key: Option<u8>) -> Self {
        let mut network = Net::new(seed, Rules::clean(MS));
        for index in 0..3u16 {
            let config = Config { key: key.map(|byte| DomainKey([byte; 32])), ..config(index) };
            let endpoint = Endpoint::new(config, seed_of(seed, index.into())).unwrap();
            network.add(endpoint, Talker { foe: Some(FOE as u16), deliver: true, ..Talker::default() });
        }
        connect(&mut network, FOE, PAIR[0]);
        connect(&mut network, FOE, PAIR[1]);
        let met = |network: &Net, index: usize| network.nodes[index].endpoint.as_ref().unwrap().session_with(NodeId(FOE as u16));
        assert!(network.run(Time::from_nanos(SECOND), |network| PAIR.iter().all(|index| met(network, *index).is_some())));
        let ours = PAIR.map(|index| met(&network, index).unwrap());
        let theirs = PAIR.map(|index| network.endpoint(FOE).session_with(NodeId(index as u16)).unwrap());
        Self { network, theirs, ours, sent: 0 }
    }

    /// From now on the hostile node hears nothing, and sends nothing by itself.
    fn deafen(&mut self) {
        let deaf = Rules { holes: vec![(self.network.now(), Time::NEVER)], ..Rules::clean(MS) };
        // It forges datagrams of these sessions, so they never end at its side.
        for session in self.theirs {
            self.network.endpoint(FOE).vouch(session);
        }
        self.network
            .lay(deaf, &PAIR.map(|index| (index, FOE)).into_iter().chain(PAIR.map(|index| (FOE, index))).collect::<Vec<_>>());
    }

    /// Sends one of the pair a datagram of the hostile node, with a number that was never used.
    fn say(&mut self, to: usize, body: &[u8]) {
        self.sent += 1;
        let (now, session) = (self.network.now(), self.theirs[to]);
        let datagram = self.network.endpoint(FOE).forge(now, session, Some(1_000_000 + 2 * self.sent), body);
        self.network.inject(Net::address(FOE), PAIR[to], datagram);
    }

    /// How many records the honest nodes keep of datagrams to the hostile one.
    fn records(&mut self) -> usize {
        let ours = self.ours;
        let of = |(index, session): (usize, SessionId)| {
            self.network.endpoint(index).records(session).map_or(0, |all| all.0.max(all.1))
        };
        PAIR.into_iter().zip(ours).map(of).max().unwrap()
    }

    fn reasons(&self, index: usize, session: SessionId) -> Vec<CloseReason> {
        let of = |event: &Event| matches!(event, Event::Closed { session: of, .. } if *of == session);
        let events = self.network.nodes[index].driver.events.iter().filter(|event| of(event));
        events.filter_map(|event| if let Event::Closed { reason, .. } = event { Some(*reason) } else { None }).collect()
    }
}

/// How many datagrams a flood has. `DOORBELL_PINGS` sets another number, such as a million.
fn pings() -> u64 {
    std::env::var("DOORBELL_PINGS").ok().and_then(|number| number.parse().ok()).unwrap_or(100_000)
}

/// The hostile node sends valid frames as fast as it can and acknowledges nothing. `vouched`: another fabric says that it lives.
fn talks_and_acknowledges_nothing(body: &[u8], vouched: bool) {
    let mut siege = Siege::new(1, Some(1));
    siege.deafen();
    // Data that the hostile node would have to acknowledge.
    for (index, session) in PAIR.into_iter().zip(siege.ours) {
        siege.network.nodes[index].driver.to_foe = 1;
        siege.network.wake(index);
        if vouched {
            siege.network.endpoint(index).vouch(session);
        }
    }
    let began = siege.network.now();
    let dead = nanos(Config::new("", NodeId(0), Incarnation(1)).dead_after);
    let (mut most, mut joined) = (0, false);
    for tick in 0..pings() / 20 {
        for _ in 0..20 {
            siege.say(0, body);
        }
        let now = siege.network.now();
        siege.network.run(now + MS, |_| false);
        most = most.max(siege.records());
        // The second honest node joins and talks meanwhile.
        if tick == 200 {
            siege.network.nodes[0].driver.streams.push(Stream::new(Priority::Normal, 200, (0, 3000)));
            siege.network.nodes[1].driver.streams.push(Stream::new(Priority::Normal, 200, (0, 3000)));
            connect(&mut siege.network, 1, 0);
            joined = true;
        }
        let closed = siege.network.endpoint(0).session_with(NodeId(FOE as u16)).is_none();
        assert!(
            closed || vouched || siege.network.now() - began <= 6 * dead,
            "the session still exists after {} ms",
            (siege.network.now() - began) / MS
        );
    }
    assert!(joined && siege.network.nodes[1].driver.count_from(0) == 200, "the honest pair talks");
    assert_eq!(siege.network.nodes[0].driver.count_from(1), 200);
    assert!(PAIR.iter().all(|index| siege.network.nodes[*index].driver.damaged.is_empty()));
    let window = siege.network.endpoint(0).session_stats(siege.ours[0]).map_or(0, |stats| stats.window);
    let allowed = RECORDS_MAX + window as usize / 1_200 + 64;
    assert!(most <= allowed, "{most} records are kept, {allowed} may be");
    if !vouched {
        assert_eq!(siege.reasons(0, siege.ours[0]), [CloseReason::Silent]);
    }
}

#[test]
fn a_peer_that_talks_and_acknowledges_nothing_is_dropped_and_costs_bounded_memory() {
    talks_and_acknowledges_nothing(PING, false);
}

#[test]
fn a_peer_that_asks_for_answers_and_acknowledges_none_costs_bounded_memory() {
    talks_and_acknowledges_nothing(CHALLENGE, false);
}

#[test]
fn a_peer_that_another_fabric_vouches_for_costs_bounded_memory() {
    talks_and_acknowledges_nothing(PING, true);
}

/// The hostile node sends frames of its own invention, and comes back after each end of a session.
#[test]
fn an_honest_pair_loses_nothing_to_a_hostile_peer() {
    let number = |name, default| std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default);
    let first: u64 = number("DOORBELL_SEED", 1);
    let mut broken = 0;
    for seed in first..first + number("DOORBELL_PROGRAMS", 40) {
        println!("to see this again: DOORBELL_SEED={seed} DOORBELL_PROGRAMS=1");
        let mut dice = Dice::new(seed);
        let mut siege = Siege::new(seed, (seed % 2 == 0).then_some(1));
        let streams = || Priority::ALL.map(|priority| Stream::new(priority, 150, (0, 4000))).to_vec();
        PAIR.iter().for_each(|index| siege.network.nodes[*index].driver.streams = streams());
        connect(&mut siege.network, 1, 0);
        let until = siege.network.now() + SECOND;
        assert!(siege.network.run(until, |network| network.nodes[0].driver.session.is_some()));
        let transfers = [(0, 1), (1, 0)].map(|(from, to)| {
            let priority = *[Priority::High, Priority::Normal, Priority::Low].get(dice.below(3) as usize).unwrap();
            (to, transfer(&mut siege.network, from, to, 300_000, 300_000, priority))
        });
        for _ in 0..60 {
            for to in PAIR {
                // The hostile node may cause the end of its own session, and then comes back.
                let Some(session) = siege.network.endpoint(FOE).session_with(NodeId(to as u16)) else {
                    connect(&mut siege.network, FOE, to);
                    continue;
                };
                let body = invented(&mut dice);
                let now = siege.network.now();
                let datagram = siege.network.endpoint(FOE).forge(now, session, None, &body);
                siege.network.inject(Net::address(FOE), PAIR[to], datagram);
            }
            let now = siege.network.now();
            siege.network.run(now + dice.below(3 * MS), |_| false);
        }
        let is_done = |network: &Net| {
            let whole = |(to, id): &(usize, TransferId)| network.nodes[*to].driver.incoming[&id.0].complete == 1;
            PAIR.iter().all(|index| network.nodes[*index].driver.count_from(1 - *index as u16) == 450)
                && transfers.iter().all(whole)
        };
        let until = siege.network.now() + LONGEST;
        assert!(siege.network.run(until, is_done), "what the pair sends arrives");
        for index in PAIR {
            let driver = &siege.network.nodes[index].driver;
            assert!(driver.damaged.is_empty() && driver.session.is_some(), "the pair's session: {:?}", driver.damaged);
            broken += driver.damaged_by_foe;
            assert!(siege.network.endpoint(index).occupied() <= 8);
        }
        assert!(transfers.iter().all(|(to, id)| siege.network.nodes[*to].driver.incoming[&id.0].placed == 300_000));
    }
    assert!(broken > 0, "no rule was ever broken");
}

/// Frames that no endpoint would send.
fn invented(dice: &mut Dice) -> Vec<u8> {
    const KINDS: [u8; 18] =
        [0x01, 0x02, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x18, 0x19, 0x1a];
    let mut body = Vec::new();
    for _ in 0..dice.below(4) + 1 {
        body.push(KINDS[dice.below(KINDS.len() as u64) as usize]);
        body.extend((0..dice.below(40)).map(|_| if dice.chance(0.8) { dice.below(3) as u8 } else { dice.number() as u8 }));
    }
    body
}
