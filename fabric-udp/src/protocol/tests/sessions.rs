//! How sessions begin and end, and which requests are refused.

use super::*;
use crate::protocol::sim::{Dice, Rules};
use crate::protocol::*;
use doorbell_fabric::{Incarnation, NodeId, Priority};

fn refused(change_second: impl Fn(&mut Config)) -> (CloseReason, Option<Rejection>) {
    let mut network = Net::new(5, Rules::clean(MS));
    for index in 0..2 {
        let mut config = config(index);
        if index == 1 {
            change_second(&mut config);
        }
        network.add(Endpoint::new(config, seed_of(5, index.into())).unwrap(), Talker::default());
    }
    connect(&mut network, 0, 1);
    assert!(network.run(Time::from_nanos(20 * SECOND), |n| n.nodes[0].driver.closed().is_some()));
    let told = network.nodes[1].driver.events.iter().find_map(|event| match event {
        Event::Refused { why, .. } => Some(*why),
        _ => None,
    });
    (network.nodes[0].driver.closed().unwrap(), told)
}

#[test]
fn who_does_not_belong_is_told_why() {
    let rejected = |why| (CloseReason::Rejected(why), Some(why));
    let key = |byte| Some(DomainKey([byte; 32]));
    assert_eq!(refused(|config| config.domain = "another".into()), rejected(Rejection::OtherDomain));
    assert_eq!(refused(|config| config.versions = (2, 3)), rejected(Rejection::Version { lowest: 2, highest: 3 }));
    assert_eq!(refused(|config| config.key = key(1)), rejected(Rejection::NeedsKey));
    assert_eq!(refused(|config| config.node = NodeId(0)), rejected(Rejection::SameNode));
    let (reason, told) = refused(|config| (config.key, config.explain) = (key(1), false));
    assert_eq!((reason, told), (CloseReason::NoAnswer, Some(Rejection::NeedsKey)));
    for (first, second, why) in [(1, 0, Rejection::HasNoKey), (1, 2, Rejection::WrongKey)] {
        let mut network = Net::new(5, Rules::clean(MS));
        for (index, byte) in [first, second].into_iter().enumerate() {
            let config = Config { key: (byte > 0).then_some(DomainKey([byte; 32])), ..config(index as u16) };
            network.add(Endpoint::new(config, seed_of(5, index as u64)).unwrap(), Talker::default());
        }
        connect(&mut network, 0, 1);
        assert!(network.run(Time::from_nanos(SECOND), |n| n.nodes[0].driver.closed().is_some()));
        assert_eq!(network.nodes[0].driver.closed(), Some(CloseReason::Rejected(why)));
    }
}

#[test]
fn nobody_there_is_told_after_the_time() {
    let mut network = pair(1, Rules { loss: 1.0, ..Rules::clean(MS) }, |_| {}, [Talker::default(), Talker::default()]);
    assert!(network.run(Time::from_nanos(6 * SECOND), |n| n.nodes[0].driver.closed().is_some()));
    assert_eq!(network.nodes[0].driver.closed(), Some(CloseReason::NoAnswer));
}

#[test]
fn both_ask_at_once_and_get_one_session() {
    for seed in 0..200 {
        let mut dice = Dice::new(seed);
        let rules = Rules { loss: [0.0, 0.2][(seed % 2) as usize], reorder: 0.3, reorder_by: 300_000, ..Rules::clean(200_000) };
        let talker = || Talker::with(vec![Stream::new(Priority::Normal, 20, (8, 8))]);
        let keyed = |config: &mut Config| {
            config.key = (seed % 4 < 2).then_some(DomainKey([9; 32]));
            config.dead_after = std::time::Duration::from_secs(5);
        };
        let mut network = pair(seed, rules, keyed, [talker(), talker()]);
        network.run(Time::from_nanos(1 + dice.below(1_500_000)), |_| false);
        connect(&mut network, 1, 0);
        network.run(Time::from_nanos(8 * SECOND), |_| false);
        for (index, node) in network.nodes.iter().enumerate() {
            let connected = node.driver.events.iter().filter(|event| matches!(event, Event::Connected { .. })).count();
            assert_eq!(connected, 1, "seed {seed}, node {index}: {:?}", node.driver.events);
            assert_eq!(node.driver.count_from(1 - index as u16), 20, "seed {seed}: {:?}", node.driver.events);
        }
    }
}

#[test]
fn an_orderly_end_comes_after_everything_that_was_sent() {
    let talker = Talker::with(vec![Stream::new(Priority::Normal, 500, (0, 2000))]);
    let mut network = pair(
        1,
        Rules { loss: 0.05, ..Rules::clean(MS) },
        |c| c.dead_after = std::time::Duration::from_secs(9),
        [talker, Talker::with(vec![])],
    );
    network.nodes[1].driver.refuse_some = 30;
    network.run(Time::from_nanos(9 * SECOND), |n| n.nodes[0].driver.streams[0].pushed == 500);
    let (now, session) = (network.now(), network.nodes[0].driver.session.unwrap());
    network.endpoint(0).close(now, session, 17);
    network.wake(0);
    let ended = network.run(now + 9 * SECOND, |n| n.nodes.iter().all(|node| node.driver.closed().is_some()));
    assert!(ended, "{:?} {:?}", network.nodes[0].driver.events, network.nodes[1].driver.events);
    assert_eq!(network.nodes[0].driver.closed(), Some(CloseReason::Local));
    assert_eq!(network.nodes[1].driver.closed(), Some(CloseReason::ByPeer(17)));
    assert_eq!(network.nodes[1].driver.count_from(0), 500);
}

#[test]
fn a_new_life_takes_the_place_of_the_old_one() {
    let talker = || Talker::with(vec![Stream::new(Priority::Normal, 50, (8, 800))]);
    let keyed = |config: &mut Config| config.key = Some(DomainKey([4; 32]));
    let mut network = pair(1, Rules::clean(MS), keyed, [talker(), talker()]);
    network.record = Some(Vec::new());
    assert!(network.run(Time::from_nanos(SECOND), |n| n.nodes[1].driver.count_from(0) == 50));
    // Node 0 is killed and comes back at once under the same id and address.
    let mut second = config(0);
    keyed(&mut second);
    second.incarnation = Incarnation(777);
    network.nodes[0].endpoint = Some(Endpoint::new(second, seed_of(77, 0)).unwrap());
    network.nodes[0].driver = talker();
    connect(&mut network, 0, 1);
    let now = network.now();
    assert!(network.run(now + SECOND, |n| n.nodes[1].driver.count_from(0) == 100 && n.nodes[0].driver.count_from(1) == 50));
    let driver = &network.nodes[1].driver;
    assert_eq!(driver.closed(), Some(CloseReason::Replaced));
    assert_eq!(driver.received.keys().map(|(_, life)| life.0).collect::<Vec<_>>(), [100, 777]);
    // The former incarnation tries again, and everything it ever sent is repeated: nothing changes.
    let ends = |events: &[Event]| events.iter().filter(|event| !matches!(event, Event::Refused { .. })).count();
    let before = (driver.received.clone(), ends(&driver.events));
    for (from, to, bytes) in network.record.take().unwrap() {
        if to == Net::address(1) {
            network.inject(from, 1, bytes);
        }
    }
    let now = network.now();
    network.run(now + 3 * SECOND, |_| false);
    let driver = &network.nodes[1].driver;
    assert_eq!((driver.received.clone(), ends(&driver.events)), before);
    assert!(driver.is_connected());
}

#[test]
fn a_former_life_is_turned_away() {
    let mut network = pair(1, Rules::clean(MS), |_| {}, [Talker::default(), Talker::default()]);
    network.run(Time::from_nanos(SECOND), |n| n.nodes[0].driver.is_connected());
    let second = Config { incarnation: Incarnation(777), ..config(0) };
    network.add(Endpoint::new(second, seed_of(8, 8)).unwrap(), Talker::default());
    connect(&mut network, 2, 1);
    let now = network.now();
    network.run(now + SECOND, |n| n.nodes[2].driver.is_connected());
    connect(&mut network, 0, 1);
    let now = network.now();
    network.run(now + SECOND, |_| false);
    let events = &network.nodes[0].driver.events;
    assert!(events.iter().any(|e| matches!(e, Event::Closed { reason: CloseReason::Replaced, .. })), "{events:?}");
    assert!(
        events.iter().any(|e| matches!(e, Event::Closed { reason: CloseReason::Rejected(Rejection::Stale), .. })),
        "{events:?}"
    );
}

#[test]
fn a_session_outlives_a_hole_shorter_than_its_patience_and_no_longer_one() {
    for (dead_after, survives) in [(4, true), (1, false)] {
        let hole = (Time::from_nanos(SECOND), Time::from_nanos(3 * SECOND));
        let rules = Rules { holes: vec![hole], bandwidth: Some(2_000_000), ..Rules::clean(MS) };
        let talker = Talker::with(vec![Stream::new(Priority::Normal, 4000, (1000, 1000))]);
        let change = |config: &mut Config| config.dead_after = std::time::Duration::from_secs(dead_after);
        let mut network = pair(1, rules, change, [talker, Talker::default()]);
        let done = network.run(Time::from_nanos(12 * SECOND), |n| n.nodes[1].driver.count_from(0) == 4000);
        assert_eq!(done, survives);
        assert_eq!(network.nodes[0].driver.closed(), (!survives).then_some(CloseReason::Silent));
    }
}

#[test]
fn a_peer_that_moves_is_followed_with_a_key_and_not_without() {
    for keyed in [true, false] {
        let talker = Talker::with(vec![Stream::new(Priority::Normal, 2000, (8, 800))]);
        let change = |config: &mut Config| config.key = keyed.then_some(DomainKey([4; 32]));
        let slow = Rules { bandwidth: Some(100_000), queue: 20_000, ..Rules::clean(MS) };
        let mut network = pair(1, slow, change, [talker, Talker::default()]);
        network.run(Time::from_nanos(SECOND), |n| n.nodes[1].driver.count_from(0) > 40);
        network.nodes[0].address = "10.9.9.9:999".parse().unwrap();
        let arrived = network.run(Time::from_nanos(20 * SECOND), |n| n.nodes[1].driver.count_from(0) == 2000);
        assert_eq!(arrived, keyed);
        if !keyed {
            assert_eq!(network.nodes[1].driver.closed(), Some(CloseReason::Silent));
            assert!(network.endpoint(1).stats().misplaced > 0);
        }
    }
}

#[test]
fn who_still_had_something_to_send_is_told_that_the_other_end_closed() {
    let talker = Talker::with(vec![Stream::new(Priority::Normal, 500, (1000, 1000))]);
    let slow = Rules { bandwidth: Some(1_000_000), ..Rules::clean(MS) };
    let mut network = pair(1, slow, |_| {}, [talker, Talker::default()]);
    network.run(Time::from_nanos(SECOND), |n| n.nodes[1].driver.count_from(0) > 20);
    for node in [0, 1] {
        let (now, session) = (network.now(), network.nodes[node].driver.session.unwrap());
        network.endpoint(node).close(now, session, 17 + node as u8);
        network.wake(node);
    }
    let now = network.now();
    network.run(now + 2 * SECOND, |n| n.nodes.iter().all(|node| node.driver.closed().is_some()));
    assert!(network.nodes[1].driver.count_from(0) < 500);
    assert_eq!(network.nodes[0].driver.closed(), Some(CloseReason::ByPeer(18)));
}

#[test]
fn a_session_that_closes_is_not_always_due() {
    let change = |config: &mut Config| {
        config.idle_after = Some(std::time::Duration::from_millis(100));
        config.dead_after = std::time::Duration::from_secs(4);
    };
    let talker = Talker::with(vec![Stream::new(Priority::Normal, 1, (8, 8))]);
    let mut network = pair(1, Rules::clean(MS), change, [talker, Talker::default()]);
    network.run(Time::from_nanos(SECOND), |n| n.nodes[0].driver.is_connected() && n.nodes[0].driver.streams[0].pushed == 1);
    let (session, mut now) = (network.nodes[0].driver.session.unwrap(), network.now());
    let endpoint = network.nodes[0].endpoint.as_mut().unwrap();
    endpoint.close(now, session, 1);
    let mut buf = vec![0; 1 << 16];
    for _ in 0..20 {
        now = now + 150 * MS;
        endpoint.handle_timeout(now);
        while endpoint.poll_transmit(now, &mut buf, &mut ()).is_some() {}
        assert!(endpoint.poll_timeout().is_some_and(|due| due > now));
    }
}

#[test]
fn a_peer_that_moves_is_asked_again_if_the_question_was_lost() {
    let talker = Talker::with(vec![Stream::new(Priority::Normal, 2000, (8, 800))]);
    let slow = Rules { bandwidth: Some(100_000), queue: 20_000, ..Rules::clean(MS) };
    let change = |config: &mut Config| {
        config.key = Some(DomainKey([4; 32]));
        config.dead_after = std::time::Duration::from_secs(4);
    };
    let mut network = pair(1, slow.clone(), change, [talker, Talker::default()]);
    network.run(Time::from_nanos(SECOND), |n| n.nodes[1].driver.count_from(0) > 40);
    network.nodes[0].address = "10.9.9.9:999".parse().unwrap();
    let hole = (network.now(), network.now() + SECOND);
    network.lay(Rules { holes: vec![hole], ..slow }, &[(1, 0)]);
    assert!(network.run(Time::from_nanos(20 * SECOND), |n| n.nodes[1].driver.count_from(0) == 2000));
}

#[test]
fn keys_change_no_further_than_the_other_end_follows() {
    let hole = (Time::from_nanos(100 * MS), Time::from_nanos(1000 * MS));
    let rules = Rules { holes: vec![hole], bandwidth: Some(2_000_000), ..Rules::clean(MS) };
    let change = |config: &mut Config| {
        config.key = Some(DomainKey([4; 32]));
        config.rekey_after_packets = 16;
        config.dead_after = std::time::Duration::from_secs(4);
    };
    let talker = Talker::with(vec![Stream::new(Priority::Normal, 2000, (1000, 1000))]);
    let mut network = pair(1, rules, change, [talker, Talker::default()]);
    assert!(network.run(Time::from_nanos(20 * SECOND), |n| n.nodes[1].driver.count_from(0) == 2000));
}

#[test]
fn an_answer_of_a_former_life_that_comes_late_is_void() {
    let mut network = pair(1, Rules::clean(MS), |_| {}, [Talker::default(), Talker::default()]);
    // The Accept of the first incarnation has long been under way.
    network.run(Time::from_nanos(2 * MS + MS / 2), |_| false);
    network.lay(Rules::clean(300 * MS), &[(1, 0)]);
    network.run(Time::from_nanos(4 * MS), |_| false);
    network.lay(Rules::clean(MS), &[(1, 0)]);
    let second = Config { incarnation: Incarnation(777), ..config(1) };
    network.nodes[1].endpoint = Some(Endpoint::new(second, seed_of(77, 1)).unwrap());
    connect(&mut network, 1, 0);
    network.run(Time::from_nanos(2 * SECOND), |_| false);
    let stands = network.nodes[0].driver.session.and_then(|session| network.nodes[0].endpoint.as_ref().unwrap().peer(session));
    assert_eq!(stands.map(|peer| peer.incarnation), Some(Incarnation(777)), "{:?}", network.nodes[0].driver.events);
    assert!(network.nodes[1].driver.is_connected());
}

#[test]
fn a_life_whose_sessions_had_ended_is_turned_away_once_there_is_a_new_one() {
    let mut network = pair(1, Rules::clean(MS), |_| {}, [Talker::default(), Talker::default()]);
    assert!(network.run(Time::from_nanos(SECOND), |n| n.nodes.iter().all(|node| node.driver.is_connected())));
    let (now, session) = (network.now(), network.nodes[0].driver.session.unwrap());
    network.endpoint(0).close(now, session, 1);
    network.wake(0);
    assert!(network.run(now + SECOND, |n| n.nodes.iter().all(|node| !node.driver.is_connected())));
    let second = Config { incarnation: Incarnation(777), ..config(0) };
    network.add(Endpoint::new(second, seed_of(8, 8)).unwrap(), Talker::default());
    connect(&mut network, 2, 1);
    assert!(network.run(now + 2 * SECOND, |n| n.nodes[2].driver.is_connected()));
    connect(&mut network, 0, 1);
    network.run(now + 3 * SECOND, |_| false);
    let turned_away = |event: &Event| matches!(event, Event::Closed { reason: CloseReason::Rejected(Rejection::Stale), .. });
    assert!(network.nodes[0].driver.events.iter().any(turned_away), "{:?}", network.nodes[0].driver.events);
}
