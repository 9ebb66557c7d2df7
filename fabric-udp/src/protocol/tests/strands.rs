//! Several sessions between two nodes, one for each link.

use super::paths::{cut, keyed, lan, link, linked};
use super::*;
use crate::protocol::handshake::{self, COOKIE, Exchange, Hello, Params};
use crate::protocol::random::Random;
use crate::protocol::sim::{Dice, Rules};
use crate::protocol::*;
use doorbell_fabric::{Incarnation, PacketHead, PacketKind, Priority, Push};

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

/// A stream on each of this many sessions.
fn talker(strands: u8, packets: u64) -> Talker {
    Talker::with((0..strands).map(|strand| Stream::new(Priority::Normal, packets, (8, 1000)).by(strand)).collect())
}

fn further(network: &mut Net, from: usize, strand: u8) -> Option<SessionId> {
    let (now, first) = (network.now(), network.nodes[from].driver.session.unwrap());
    let asked = network.endpoint(from).connect_further(now, first, strand, 0);
    network.wake(from);
    asked
}

/// Two nodes with this many links and as many sessions.
fn stranded(seed: u64, links: u8, cables: &[Rules], change: impl Fn(&mut Config), talkers: [Talker; 2]) -> Net {
    let mut network = linked(seed, [links; 2], cables, change, talkers);
    assert!(network.run(at(90 * MS), |n| n.nodes.iter().all(|node| node.driver.is_connected())), "seed {seed}");
    for strand in 1..links {
        assert!(further(&mut network, 0, strand).is_some());
    }
    assert!(further(&mut network, 0, links).is_none(), "no more than links");
    let all = |n: &Net| n.nodes.iter().all(|node| node.driver.strands.len() == usize::from(links) - 1);
    assert!(network.run(at(SECOND), all), "seed {seed}: {:?}", network.nodes[0].driver.events);
    network
}

fn path_by(network: &mut Net, node: usize, strand: u8) -> Path {
    let driver = &network.nodes[node].driver;
    let session = if strand == 0 { driver.session } else { driver.strands.get(&strand).copied() };
    network.endpoint(node).path(session.expect("a session")).unwrap()
}

fn stats_by(network: &mut Net, node: usize, strand: u8) -> SessionStats {
    let driver = &network.nodes[node].driver;
    let session = if strand == 0 { driver.session } else { driver.strands.get(&strand).copied() };
    network.endpoint(node).session_stats(session.expect("a session")).unwrap()
}

fn all_arrived(strands: u8, packets: u64) -> impl Fn(&Net) -> bool {
    move |n: &Net| {
        n.nodes.iter().enumerate().all(|(index, node)| {
            let from = 1 - index as u16;
            node.driver.count_from(from) == packets && (1..strands).all(|strand| node.driver.count_by(from, strand) == packets)
        })
    }
}

fn no_ends(network: &Net) -> bool {
    network.nodes.iter().all(|node| node.driver.closed().is_none() && node.driver.damaged.is_empty())
}

#[test]
fn each_begins_on_a_link_of_its_own_and_carries_packets_in_an_order_of_its_own() {
    for links in 2..=4 {
        let cables = vec![lan(); links.into()];
        let mut network = stranded(links.into(), links, &cables, keyed(links.into()), [talker(links, 300), talker(links, 300)]);
        for strand in 0..links {
            let path = path_by(&mut network, 0, strand);
            assert_eq!(path, Path { link: LinkId(strand), peer: link(1, strand) });
            assert_eq!(path_by(&mut network, 1, strand), Path { link: LinkId(strand), peer: link(0, strand) });
        }
        assert!(network.run(at(20 * SECOND), all_arrived(links, 300)), "{links} links");
        assert!(no_ends(&network));
        let first = network.nodes[0].driver.session.unwrap();
        let figures = network.endpoint(0).outstanding(first, Priority::Normal).unwrap();
        let until = network.now() + SECOND;
        network.run(until, |_| false);
        let idle = network.endpoint(0).outstanding(first, Priority::Normal).unwrap();
        assert_eq!((idle.packets, idle.bytes, idle.link), (0, 0, LinkId(0)), "{figures:?}");
        assert!(idle.room >= 1 << 20 && idle.round_trip >= 200_000 && figures.bytes <= figures.room);
    }
}

#[test]
fn idle_ones_cost_next_to_nothing() {
    let sent = |strands: bool| {
        let mut network = linked(1, [2, 2], &[lan(), lan()], |_| {}, [Talker::default(), Talker::default()]);
        network.run(at(90 * MS), |_| false);
        if strands {
            further(&mut network, 0, 1);
        }
        network.run(at(5 * SECOND), |_| false);
        assert_eq!(network.nodes[1].driver.strands.len(), usize::from(strands));
        let before = network.stats.sent;
        network.run(at(65 * SECOND), |_| false);
        assert!(no_ends(&network));
        network.stats.sent - before
    };
    let (without, with) = (sent(false), sent(true));
    println!("{without} datagrams in a minute, {with} with a second session");
    // Each end challenges the other paths every sixteen seconds, whether they answer or not.
    assert!(with - without <= 60 / 16 * 3 * 2 * 4, "{without} datagrams in a minute, {with} with a second session");
}

#[test]
fn loss_on_one_link_slows_what_goes_by_that_one_alone() {
    let bad = Rules { loss: 0.3, ..lan() };
    let mut network = stranded(3, 2, &[lan(), bad], keyed(1), [talker(2, 2000), Talker::default()]);
    let from = network.now();
    assert!(network.run(at(60 * SECOND), |n| n.nodes[1].driver.count_from(0) == 2000));
    let took = network.now() - from;
    let behind = network.nodes[1].driver.count_by(0, 1);
    assert!(behind < 2000, "the session without losses is not held up: {behind}");
    assert!(network.run(at(120 * SECOND), |n| n.nodes[1].driver.count_by(0, 1) == 2000));
    assert!(network.now() - from > 2 * took && no_ends(&network));
}

#[test]
fn a_cable_that_is_pulled_under_one_loses_nothing() {
    for seed in 0..40 {
        let mut dice = Dice::new(seed);
        let slow = Rules { bandwidth: Some(3_000_000), ..lan() };
        let cables = [slow.clone(), cut(&slow, 150 * MS + dice.below(200 * MS), u64::MAX)];
        let packets = 3000;
        let mut network = stranded(seed, 2, &cables, keyed(seed), [talker(2, packets), talker(2, packets * (seed % 2))]);
        let done = |network: &mut Net| {
            network.run(at(60 * SECOND), |n| {
                let counts = [n.nodes[1].driver.count_from(0), n.nodes[1].driver.count_by(0, 1)];
                let back = [n.nodes[0].driver.count_from(1), n.nodes[0].driver.count_by(1, 1)];
                counts == [packets; 2] && back == [packets * (seed % 2); 2]
            })
        };
        assert!(done(&mut network), "seed {seed}");
        assert!(no_ends(&network), "seed {seed}");
        assert_eq!(path_by(&mut network, 0, 1).link, LinkId(0), "seed {seed}");
        assert_eq!(path_by(&mut network, 0, 0).link, LinkId(0), "seed {seed}");
        assert!(stats_by(&mut network, 0, 1).path_changes > 0 && stats_by(&mut network, 0, 0).path_changes == 0);
    }
}

#[test]
fn one_whose_cable_is_put_back_returns_to_it() {
    for seed in 0..20 {
        let cables = [lan(), cut(&lan(), 400 * MS, 3 * SECOND)];
        let mut network = stranded(seed, 2, &cables, keyed(seed), [talker(2, 100), talker(2, 100)]);
        let mut packets = 100;
        let mut links = Vec::new();
        while network.now() < at(40 * SECOND) {
            let until = network.now() + 50 * MS;
            network.run(until, |_| false);
            packets += 10;
            for node in [0, 1] {
                network.nodes[node].driver.streams.iter_mut().for_each(|stream| stream.packets = packets);
                network.wake(node);
            }
            let used = [0, 1].map(|node| path_by(&mut network, node, 1).link.0);
            if links.last() != Some(&used) {
                links.push(used);
            }
        }
        let until = network.now() + SECOND;
        assert!(network.run(until, all_arrived(2, packets)), "seed {seed}");
        assert!(no_ends(&network), "seed {seed}");
        assert!(links.contains(&[0, 0]) && links.last() == Some(&[1, 1]), "seed {seed}: {links:?}");
        assert!(links.len() <= 5, "seed {seed}: to and fro: {links:?}");
        assert_eq!(stats_by(&mut network, 0, 0).path_changes, 0);
    }
}

#[test]
fn both_ask_at_once_and_get_one_of_each_number() {
    for seed in 0..100 {
        let mut dice = Dice::new(seed);
        let rules = Rules { loss: [0.0, 0.2][(seed % 2) as usize], reorder: 0.3, reorder_by: 300_000, ..Rules::clean(200_000) };
        let cables = vec![rules; 3];
        let mut network = linked(seed, [3, 3], &cables, keyed(seed), [talker(3, 20), talker(3, 20)]);
        assert!(network.run(at(3 * SECOND), |n| n.nodes.iter().all(|node| node.driver.is_connected())));
        for strand in [1, 2] {
            further(&mut network, 0, strand);
            let until = network.now() + dice.below(MS);
            network.run(until, |_| false);
            if network.nodes[1].driver.is_connected() {
                further(&mut network, 1, strand);
            }
        }
        // A session that was reported and then given up has lost its pushed packets, and that is reported.
        assert!(network.run(at(30 * SECOND), |n| n.nodes.iter().all(|node| node.driver.strands.len() == 2)), "seed {seed}");
        let until = network.now() + 8 * SECOND;
        network.run(until, |_| false);
        for node in 0..2 {
            assert_eq!(network.nodes[node].driver.strands.len(), 2, "seed {seed}");
            assert_eq!(network.endpoint(node).occupied(), 3, "seed {seed}");
            assert!(network.nodes[node].driver.damaged.is_empty());
        }
    }
}

#[test]
fn all_end_with_the_first_which_is_told_last() {
    for way in 0..3 {
        let mut network = stranded(5, 3, &vec![lan(); 3], keyed(1), [talker(3, 200), Talker::default()]);
        network.nodes[1].driver.refuse = true;
        let pushed = |n: &Net| n.nodes[0].driver.streams.iter().all(|stream| stream.pushed == 200);
        assert!(network.run(at(20 * SECOND), pushed));
        let (now, first) = (network.now(), network.nodes[0].driver.session.unwrap());
        network.run(now + SECOND, |_| false);
        let now = network.now();
        match way {
            0 => network.endpoint(0).close(now, first, 5),
            1 => network.endpoint(0).give_up(now, first, 5),
            _ => network.nodes[0].endpoint = None,
        }
        network.wake(0);
        network.run(now + 3 * SECOND, |_| false);
        assert!(network.nodes[1].driver.closed().is_none(), "what arrived waits");
        (network.nodes[1].driver.refuse, network.nodes[1].driver.deliver) = (false, true);
        for _ in 0..40 {
            network.wake(1);
            let until = network.now() + MS;
            network.run(until, |_| false);
        }
        let driver = &network.nodes[1].driver;
        assert_eq!([driver.count_from(0), driver.count_by(0, 1), driver.count_by(0, 2)], [200; 3], "way {way}");
        let ends: Vec<_> = driver
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Closed { reason, .. } => Some(*reason),
                _ => None,
            })
            .collect();
        let expected = match way {
            0 => [CloseReason::ByPeer(5), CloseReason::ByPeer(5), CloseReason::ByPeer(5)],
            1 => [CloseReason::NoFirst, CloseReason::NoFirst, CloseReason::ByPeer(5)],
            _ => [CloseReason::NoFirst, CloseReason::NoFirst, CloseReason::Silent],
        };
        assert_eq!(ends, expected, "way {way}");
        assert!(driver.session.is_none() && driver.strands.is_empty());
        assert_eq!(network.endpoint(1).occupied(), 0);
        if way < 2 {
            assert_eq!(network.endpoint(0).occupied(), 0);
        }
    }
}

#[test]
fn a_new_life_has_none_of_the_former_ones() {
    let mut network = stranded(6, 2, &[lan(), lan()], keyed(1), [talker(2, 50), Talker::default()]);
    assert!(network.run(at(5 * SECOND), |n| n.nodes[1].driver.count_by(0, 1) == 50));
    let mut second = config(0);
    second.links = vec![LinkConfig::interface(1500); 2];
    second.addresses = vec![link(0, 0), link(0, 1)];
    second.incarnation = Incarnation(777);
    network.nodes[0].endpoint = Some(Endpoint::new(second, seed_of(77, 0)).unwrap());
    network.nodes[0].driver = talker(2, 50);
    connect(&mut network, 0, 1);
    let now = network.now();
    assert!(network.run(now + SECOND, |n| n.nodes.iter().all(|node| node.driver.session.is_some())));
    network.run(now + SECOND, |_| false);
    assert!(network.nodes[1].driver.strands.is_empty(), "{:?}", network.nodes[1].driver.events);
    further(&mut network, 0, 1);
    assert!(network.run(now + 3 * SECOND, |n| n.nodes[1].driver.count_by(0, 1) == 100));
    assert_eq!(network.endpoint(1).occupied(), 2);
}

#[test]
fn one_that_is_broken_ends_alone() {
    let mut network = stranded(7, 2, &[lan(), lan()], keyed(1), [talker(2, 500), talker(1, 500)]);
    let now = network.now();
    let session = network.nodes[0].driver.strands[&1];
    let nonsense = network.endpoint(0).forge(now, session, None, &[0x7F]);
    network.inject_to(link(0, 1), link(1, 1), nonsense);
    assert!(network.run(at(20 * SECOND), |n| n.nodes[1].driver.count_from(0) == 500 && n.nodes[0].driver.count_from(1) == 500));
    assert!(network.nodes.iter().all(|node| node.driver.is_connected() && node.driver.strands.is_empty()));
    assert!(network.endpoint(0).peer(session).is_none());
    // The session is opened again.
    further(&mut network, 0, 1);
    assert!(network.run(at(30 * SECOND), |n| n.nodes.iter().all(|node| node.driver.strands.len() == 1)));
}

#[test]
fn one_that_is_vouched_for_ends_if_the_first_is_heard_and_it_is_not() {
    let mut network = stranded(8, 2, &[lan(), lan()], keyed(1), [Talker::default(), Talker::default()]);
    for session in [network.nodes[0].driver.session.unwrap(), network.nodes[0].driver.strands[&1]] {
        network.endpoint(0).vouch(session);
    }
    network.run(at(3 * SECOND), |_| false);
    // The other end is gone, and its notice was lost.
    let (now, there) = (network.now(), network.nodes[1].driver.strands[&1]);
    network.endpoint(1).give_up(now, there, 3);
    let mut buf = vec![0; 1 << 16];
    while network.endpoint(1).poll_transmit(now, &mut buf, &mut ()).is_some() {}
    network.run(now + 5 * SECOND, |_| false);
    assert_eq!(network.nodes[0].driver.strands.len(), 1, "an unused session is not checked");
    network.nodes[0].driver =
        Talker { session: network.nodes[0].driver.session, strands: network.nodes[0].driver.strands.clone(), ..talker(2, 10) };
    network.wake(0);
    let now = network.now();
    assert!(network.run(now + 10 * SECOND, |n| n.nodes[0].driver.strands.is_empty()));
    assert!(network.nodes[0].driver.is_connected() && network.nodes[1].driver.count_from(0) == 10);
    assert_eq!(network.nodes[0].driver.closed(), Some(CloseReason::Silent));
}

/// An Open, which no honest node may send, for a session with this strand from a node with this incarnation.
fn open(network: &mut Net, from: Path, life: u32, strand: u8, random: &mut Random) -> Vec<u8> {
    let now = network.now();
    let config = Config { incarnation: Incarnation(life), ..config(0) };
    let endpoint = network.endpoint(1);
    let hello = Hello::new(endpoint.secret(), config.versions, random.u64() as u32, random.u64());
    let cookie: [u8; COOKIE] = endpoint.cookie(now, from.peer, &hello);
    let params = Params::new(&config, &config.links[0], strand, random);
    let (_, message) = Exchange::begin(endpoint.secret(), &hello, &params, random).unwrap();
    handshake::write_open(endpoint.secret(), &hello, &cookie, &message)
}

#[test]
fn numbers_out_of_range_and_requests_without_a_first_session_cost_nothing() {
    let mut network = stranded(9, 2, &[lan(), lan()], |_| {}, [Talker::default(), Talker::default()]);
    let mut random = Random::new([9; 32]);
    let from = Path { link: LinkId(0), peer: link(0, 0) };
    let before = (network.endpoint(1).places(), network.endpoint(1).occupied());
    let mut buf = vec![0; 1 << 16];
    for number in 0..20_000u32 {
        // With a strand that does not exist, with an incarnation that has no session, and with one that has.
        let (life, strand) =
            [(100, 4 + (number % 252) as u8), (5000 + number, 1 + (number % 3) as u8), (100, 1)][number as usize % 3];
        let mut bytes = open(&mut network, from, life, strand, &mut random);
        let now = network.now();
        let endpoint = network.nodes[1].endpoint.as_mut().unwrap();
        let junk = endpoint.stats().junk;
        endpoint.handle_datagram(now, from, &mut bytes, &mut Talker::default(), false);
        assert_eq!(endpoint.stats().junk - junk, u64::from(strand > 3));
        assert_eq!((endpoint.places(), endpoint.occupied()), before);
        while endpoint.poll_transmit(now, &mut buf, &mut ()).is_some() {}
    }
    // A possible session is offered, and beside it at most as many as strangers get.
    let change = |config: &mut Config| config.offers_max = 8;
    let mut network = linked(9, [3, 3], &[lan(), lan(), lan()], change, [Talker::default(), Talker::default()]);
    assert!(network.run(at(SECOND), |n| n.nodes.iter().all(|node| node.driver.is_connected())));
    for _ in 0..2000 {
        let mut bytes = open(&mut network, from, 100, 2, &mut random);
        let now = network.now();
        let endpoint = network.nodes[1].endpoint.as_mut().unwrap();
        endpoint.handle_datagram(now, from, &mut bytes, &mut Talker::default(), false);
        assert!(endpoint.occupied() <= 9);
        while endpoint.poll_transmit(now, &mut buf, &mut ()).is_some() {}
    }
    network.wake(1);
    network.run(at(5 * SECOND), |_| false);
    assert_eq!(network.endpoint(1).occupied(), 1);
    assert!(no_ends(&network) && network.nodes[1].driver.strands.is_empty());
}

#[test]
fn a_link_without_room_holds_up_no_other() {
    let mut network = stranded(11, 2, &[lan(), lan()], keyed(1), [Talker::default(), Talker::default()]);
    network.run(at(3 * SECOND), |_| false);
    let now = network.now();
    let sessions = [network.nodes[0].driver.strands[&1], network.nodes[0].driver.session.unwrap()];
    let endpoint = network.endpoint(0);
    let head = PacketHead { kind: PacketKind::Whole, tag: 0, sequence: 0, total: 100 };
    for session in sessions {
        assert_eq!(endpoint.push(now, session, Priority::Normal, &head, &[7; 100]), Push::Done);
    }
    // The node also requests a session by it.
    let stranger = Path { link: LinkId(1), peer: link(9, 1) };
    endpoint.connect(now, Target { path: stranger, node: None });
    let mut buf = vec![0; 1 << 16];
    let mut sent = |endpoint: &mut Endpoint, full| {
        let next = || endpoint.poll_pieces(now, &mut buf, full, &mut ()).map(|transmit| transmit.path);
        std::iter::from_fn(next).collect::<Vec<_>>()
    };
    assert_eq!(sent(endpoint, 0b11), []);
    let ways = [0, 1].map(|n| Path { link: LinkId(n), peer: link(1, n) });
    assert_eq!(sent(endpoint, 0b10), [ways[0]]);
    assert_eq!(sent(endpoint, 0), [stranger, ways[1]]);
}
