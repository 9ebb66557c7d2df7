//! Peers for which another party vouches, and packets that come before their turn.

use super::*;
use crate::protocol::sim::{Dice, Rules};
use crate::protocol::*;
use doorbell_fabric::Priority;

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

fn session(network: &Net, node: usize) -> SessionId {
    network.nodes[node].driver.session.expect("a session")
}

fn vouch(network: &mut Net, node: usize) {
    let session = session(network, node);
    network.endpoint(node).vouch(session);
}

fn lan() -> Rules {
    Rules { bandwidth: Some(2_000_000), queue: 64 << 10, ..Rules::clean(MS) }
}

#[test]
fn a_session_that_is_vouched_for_survives_a_minute_of_silence_and_goes_on() {
    for seed in 0..8 {
        let mut dice = Dice::new(seed);
        let from = SECOND / 10 + dice.below(SECOND / 2);
        let rules = Rules { holes: vec![(at(from), at(from + 60 * SECOND))], ..lan() };
        let change = |config: &mut Config| config.key = seed.is_multiple_of(2).then_some(DomainKey([4; 32]));
        let talker = |packets| Talker::with(vec![Stream::new(Priority::Normal, packets, (8, 1000))]);
        // One or both have something under way.
        let counts = [3000, (seed % 3) * 1000];
        let mut network = pair(seed, rules, change, counts.map(talker));
        assert!(network.run(at(SECOND), |n| n.nodes.iter().all(|node| node.driver.is_connected())));
        vouch(&mut network, 0);
        vouch(&mut network, 1);
        network.run(at(from + 20 * SECOND), |_| false);
        let before = network.stats.sent;
        let under_way = |network: &mut Net| {
            [0, 1].map(|node| {
                let session = session(network, node);
                network.endpoint(node).session_stats(session).unwrap().under_way
            })
        };
        let least = under_way(&mut network);
        network.run(at(from + 59 * SECOND), |_| false);
        let sent = network.stats.sent - before;
        assert!((39 * 4..2 * 39 * 4 * 6).contains(&sent), "{sent} datagrams in 39 silent seconds, seed {seed}");
        // The records of unanswered datagrams stay bounded.
        let most = under_way(&mut network);
        assert!(most[0] <= least[0] + 10_000 && most[1] <= least[1] + 10_000, "{least:?} {most:?}, seed {seed}");
        let all = |n: &Net| n.nodes[1].driver.count_from(0) == counts[0] && n.nodes[0].driver.count_from(1) == counts[1];
        assert!(network.run(at(from + 70 * SECOND), all), "seed {seed}: {:?}", network.nodes[1].driver.received);
        assert!(network.nodes.iter().all(|node| node.driver.closed().is_none() && node.driver.damaged.is_empty()));
    }
}

#[test]
fn a_vouched_session_of_which_its_peer_knows_nothing_ends_when_the_peer_asks_for_another() {
    let change = |config: &mut Config| config.idle_after = Some(std::time::Duration::from_secs(3600));
    let mut network = pair(1, Rules::clean(MS), change, [Talker::default(), Talker::default()]);
    assert!(network.run(at(SECOND), |n| n.nodes.iter().all(|node| node.driver.is_connected())));
    vouch(&mut network, 1);
    // Node 0 is cut off, and takes node 1 for dead.
    let now = network.now();
    network.lay(Rules { holes: vec![(now, now + 5 * SECOND)], ..Rules::clean(MS) }, &[(0, 1), (1, 0)]);
    network.run(now + 6 * SECOND, |_| false);
    assert_eq!(network.nodes[0].driver.closed(), Some(CloseReason::Silent));
    assert!(network.nodes[1].driver.closed().is_none());
    let mut asked = 0;
    while !network.nodes[0].driver.is_connected() {
        assert!(asked < 60, "{:?}", network.nodes[0].driver.events);
        asked += 1;
        network.nodes[0].driver.session = None;
        connect(&mut network, 0, 1);
        let now = network.now();
        network.run(now + SECOND, |n| n.nodes.iter().all(|node| node.driver.is_connected()));
    }
    assert_eq!(network.nodes[1].driver.closed(), Some(CloseReason::Silent));
    assert!(network.nodes[1].driver.is_connected());
}

#[test]
fn a_session_that_is_given_up_hands_over_what_arrived_and_tells_the_other_end() {
    let talker = Talker::with(vec![Stream::new(Priority::Normal, 50, (8, 800))]);
    let mut network = pair(1, Rules::clean(MS), |_| {}, [talker, Talker::default()]);
    network.nodes[1].driver.refuse = true;
    network.run(at(SECOND), |n| n.nodes[1].driver.is_connected() && n.nodes[0].driver.streams[0].pushed == 50);
    let (now, ended) = (network.now() + 20 * MS, session(&network, 1));
    network.run(now, |_| false);
    network.endpoint(1).give_up(now, ended, 7);
    network.wake(1);
    network.run(now + SECOND, |_| false);
    assert_eq!(network.nodes[0].driver.closed(), Some(CloseReason::ByPeer(7)));
    assert!(network.nodes[1].driver.closed().is_none(), "its end is told last");
    (network.nodes[1].driver.refuse, network.nodes[1].driver.deliver) = (false, true);
    network.wake(1);
    network.run(now + 2 * SECOND, |_| false);
    network.wake(1);
    network.run(now + 3 * SECOND, |n| n.nodes[1].driver.closed().is_some());
    assert_eq!(network.nodes[1].driver.closed(), Some(CloseReason::GivenUp(7)));
    assert_eq!(network.nodes[1].driver.count_from(0), 50);
}

#[test]
fn what_is_put_off_keeps_its_order_and_its_sender_is_told_nothing() {
    let streams = vec![Stream::new(Priority::Normal, 200, (8, 800)), Stream::new(Priority::High, 20, (8, 8))];
    let mut network = pair(1, Rules::clean(MS), |_| {}, [Talker::with(streams), Talker::with(Vec::new())]);
    network.nodes[1].driver.later = Some(Priority::Normal);
    assert!(network.run(at(SECOND), |n| n.nodes[1].driver.count_from(0) == 20));
    network.run(at(2 * SECOND), |_| false);
    let here = session(&network, 0);
    assert!(!network.endpoint(0).refused(here, Priority::Normal));
    let there = session(&network, 1);
    assert_eq!(network.endpoint(1).session_stats(there).unwrap().refused, 0);
    assert!(!network.endpoint(1).refusing() && !network.endpoint(1).has_ready());
    network.endpoint(1).try_again();
    assert!(network.endpoint(1).has_ready() && !network.endpoint(1).refusing());
    // When it is asked again, the driver has not changed its mind; later it has.
    network.wake(1);
    network.run(at(3 * SECOND), |_| false);
    assert!(!network.endpoint(1).has_ready());
    network.nodes[1].driver.later = None;
    network.wake(1);
    assert!(network.run(at(4 * SECOND), |n| n.nodes[1].driver.count_from(0) == 220));
    // A packet that was first refused and then put off is not refused any more.
    network.nodes[0].driver.streams = vec![Stream::new(Priority::Low, 20, (8, 8))];
    network.nodes[1].driver.refuse = true;
    network.wake(0);
    network.run(at(5 * SECOND), |_| false);
    assert!(network.endpoint(0).refused(here, Priority::Low));
    (network.nodes[1].driver.refuse, network.nodes[1].driver.later) = (false, Some(Priority::Low));
    network.wake(1);
    network.run(at(6 * SECOND), |_| false);
    assert!(!network.endpoint(0).refused(here, Priority::Low) && !network.endpoint(1).refusing());
    network.nodes[1].driver.later = None;
    network.wake(1);
    assert!(network.run(at(7 * SECOND), |n| n.nodes[1].driver.count_from(0) == 240));
}
