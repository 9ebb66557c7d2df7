//! Lanes: order, refusals, credits, giving up.

use super::*;
use crate::protocol::sim::Rules;
use crate::protocol::*;
use doorbell_fabric::{PacketHead, PacketKind, Priority, Push};

fn rough(seed: u64) -> Rules {
    let loss = [0.0, 0.01, 0.1, 0.3][(seed % 4) as usize];
    Rules {
        loss,
        duplicate: 0.05,
        reorder: 0.1,
        reorder_by: 2 * MS,
        corrupt: 0.02,
        ..Rules::clean([20_000, 200_000, 3 * MS][(seed % 3) as usize])
    }
}

fn patient(config: &mut Config) {
    config.dead_after = std::time::Duration::from_secs(20);
    config.connect_for = std::time::Duration::from_secs(30);
}

/// Each seed: three lanes in both directions, with refusals, stops and transfers, over a bad network.
#[test]
fn everything_arrives_once_and_in_order_whatever_the_network_does() {
    let seeds = std::env::var("DOORBELL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200);
    let first = std::env::var("DOORBELL_FIRST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for seed in first..first + seeds {
        let talker = || {
            let streams = Priority::ALL.map(|priority| Stream::new(priority, 30, (0, 3000))).to_vec();
            Talker { refuse_some: seed % 5 * 10, stop_some: seed % 7 * 5, ..Talker::with(streams) }
        };
        let keyed = seed % 2 == 1;
        let change = |config: &mut Config| {
            patient(config);
            config.lane_window = 8192 << (seed % 6);
            config.key = keyed.then_some(DomainKey([3; 32]));
            config.rekey_after_packets = 20;
            // As on a network, and as on loopback, where not every datagram has an acknowledgement.
            config.ack_every = [2, 8][(seed / 2 % 2) as usize];
        };
        let mut network = pair(seed, rough(seed), change, [talker(), talker()]);
        let up = network.run(Time::from_nanos(30 * SECOND), |n| n.nodes.iter().all(|node| node.driver.is_connected()));
        assert!(up, "seed {seed}: no session: {:?}", network.nodes[0].driver.events);
        transfer(&mut network, 0, 1, 40_000, 40_000, Priority::Low);
        transfer(&mut network, 1, 0, 20_000, 20_000, Priority::High);
        let done = network.run(Time::from_nanos(600 * SECOND), |n| {
            n.nodes.iter().enumerate().all(|(index, node)| {
                node.driver.count_from(1 - index as u16) == 90
                    && node.driver.incoming.values().all(|incoming| incoming.complete == 1)
                    && node.driver.outgoing.is_empty()
            })
        });
        assert!(done, "seed {seed}: {:?} {:?}", network.nodes[0].driver.received, network.nodes[1].driver.received);
        for node in &network.nodes {
            assert!(node.driver.damaged.is_empty() && node.driver.closed().is_none(), "seed {seed}");
            assert!(node.driver.incoming.values().all(|incoming| incoming.placed == incoming.bytes.len() as u64));
        }
    }
}

/// Updates of cells need this of a lane: each request and each answer is taken once, although the target refuses some at first.
/// `DOORBELL_REMOTE_UPDATES` sets how many there are.
#[test]
fn requests_and_answers_are_taken_once_where_a_third_is_lost() {
    let many = std::env::var("DOORBELL_REMOTE_UPDATES").ok().and_then(|many| many.parse().ok()).unwrap_or(20_000);
    let talker = |len| {
        let streams = vec![Stream::new(Priority::High, many, (len, len))];
        Talker { refuse_some: 20, ..Talker::with(streams) }
    };
    let rules = Rules { loss: 0.3, duplicate: 0.1, reorder: 0.2, reorder_by: MS, ..Rules::clean(50_000) };
    let mut network = pair(11, rules, patient, [talker(80), talker(16)]);
    let done = network.run(Time::from_nanos(100_000 * SECOND), |n| {
        n.nodes.iter().enumerate().all(|(index, node)| node.driver.count_from(1 - index as u16) >= many)
    });
    let counts = [0, 1].map(|index| network.nodes[index].driver.count_from(1 - index as u16));
    assert!(done && counts == [many; 2], "{counts:?} {:?}", network.stats);
    assert!(network.stats.duplicated > 0 && network.nodes.iter().all(|node| node.driver.damaged.is_empty()));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || {
        let talker = || Talker::with(vec![Stream::new(Priority::Normal, 100, (0, 2000))]);
        let mut network = pair(9, rough(2), patient, [talker(), talker()]);
        network.record = Some(Vec::new());
        network.run(Time::from_nanos(3 * SECOND), |_| false);
        (network.stats, network.record)
    };
    assert_eq!(run(), run());
}

#[test]
fn who_is_refused_is_told_and_goes_on_when_asked() {
    let mut network = pair(
        1,
        Rules::clean(50_000),
        |_| {},
        [Talker::with(vec![Stream::new(Priority::Normal, 5000, (500, 900))]), Talker::with(vec![])],
    );
    network.nodes[1].driver.refuse = true;
    network.run(Time::from_nanos(SECOND), |_| false);
    let session = network.nodes[0].driver.session.unwrap();
    assert!(network.endpoint(0).refused(session, Priority::Normal));
    assert!(!network.endpoint(0).refused(session, Priority::High));
    assert!(network.nodes[0].driver.full > 0, "credits ran out");
    assert_eq!(network.nodes[1].driver.count_from(0), 0);
    // Other lanes go on.
    network.nodes[0].driver.streams.push(Stream::new(Priority::High, 10, (8, 8)));
    network.nodes[1].driver.refuse = false;
    network.nodes[1].driver.deliver = false;
    network.wake(0);
    assert!(network.run(Time::from_nanos(2 * SECOND), |n| n.nodes[1].driver.count_from(0) == 10));
    network.nodes[1].driver.deliver = true;
    network.wake(1);
    assert!(network.run(Time::from_nanos(5 * SECOND), |n| n.nodes[1].driver.count_from(0) == 5010));
    assert!(!network.endpoint(0).refused(session, Priority::Normal));
    assert!(network.nodes[1].driver.closed().is_none());
}

#[test]
fn a_packet_that_gives_up_always_finds_room() {
    let mut network = pair(1, Rules::clean(50_000), |c| c.lane_window = 8192, [Talker::default(), Talker::default()]);
    network.nodes[1].driver.refuse = true;
    network.run(Time::from_nanos(SECOND), |n| n.nodes[0].driver.is_connected());
    let (now, session) = (network.now(), network.nodes[0].driver.session.unwrap());
    let mut push = |kind, bytes: &[u8]| {
        let head = PacketHead { kind, tag: 0, sequence: 0, total: 10_000 };
        network.endpoint(0).push(now, session, Priority::Normal, &head, bytes)
    };
    assert_eq!(push(PacketKind::First, &[0; 700]), Push::Done);
    // Empty packets leave the least room in the end.
    while push(PacketKind::Next, &[]) == Push::Done {}
    assert_eq!(push(PacketKind::GivenUp, &[]), Push::Done);
    assert_eq!(push(PacketKind::GivenUp, &[]), Push::Full);
}

#[test]
fn what_a_driver_calls_broken_ends_the_session_at_both_ends() {
    let mut network =
        pair(1, Rules::clean(50_000), |_| {}, [Talker::with(vec![Stream::new(Priority::Low, 100, (8, 8))]), Talker::default()]);
    network.nodes[1].driver.break_at = Some(40);
    assert!(network.run(Time::from_nanos(SECOND), |n| n.nodes.iter().all(|node| node.driver.closed().is_some())));
    assert_eq!(network.nodes[1].driver.closed(), Some(CloseReason::Damaged("as the test wants it")));
    assert!(matches!(network.nodes[0].driver.closed(), Some(CloseReason::Damaged(_))));
    assert_eq!(
        (network.nodes[1].driver.count_from(0), &network.nodes[1].driver.damaged[..]),
        (40, &["as the test wants it"][..])
    );
}

#[test]
fn the_urgent_goes_first_and_the_others_get_their_share() {
    // A slow path with three lanes that always have something to send.
    let slow = Rules { bandwidth: Some(1_000_000), queue: 20_000, ..Rules::clean(MS) };
    let streams = Priority::ALL.map(|priority| Stream::new(priority, 100_000, (1000, 1000))).to_vec();
    let mut network = pair(1, slow, patient, [Talker::with(streams), Talker::default()]);
    network.run(Time::from_nanos(20 * SECOND), |_| false);
    let counts = network.nodes[1].driver.received.values().next().copied().unwrap();
    let all: u64 = counts.iter().sum();
    assert!(counts[0] > all * 3 / 4, "{counts:?}");
    assert!(counts[1] * 20 > all && counts[2] * 20 > all, "{counts:?}");
}

#[test]
fn packets_are_cut_when_the_path_gets_narrow() {
    // Datagrams of 8 KiB are known to get through; then the path changes.
    let change = |config: &mut Config| {
        patient(config);
        config.links = vec![LinkConfig { mtu: 8_900, start: 8_900, search: true }];
    };
    let mut network = pair(
        1,
        Rules::clean(MS),
        change,
        [Talker::with(vec![Stream::new(Priority::Normal, 400, (100, 8000))]), Talker::default()],
    );
    network.run(Time::from_nanos(5 * MS), |n| n.nodes[1].driver.count_from(0) > 20);
    let narrow = Rules { mtu: 1_400, ..Rules::clean(MS) };
    network.lay(narrow, &[(0, 1)]);
    assert!(network.run(Time::from_nanos(60 * SECOND), |n| n.nodes[1].driver.count_from(0) == 400));
    let session = network.nodes[0].driver.session.unwrap();
    assert!(network.endpoint(0).session_stats(session).unwrap().mtu <= 1_400);
}

#[test]
fn larger_datagrams_are_found() {
    for (mtu, found) in [(65_507, 65_507), (9_000, 8_972), (1_472, 1_472), (1_300, 1_200)] {
        let change = |config: &mut Config| config.links = vec![LinkConfig::UNKNOWN];
        let mut network = pair(1, Rules { mtu, ..Rules::clean(MS) }, change, [Talker::default(), Talker::default()]);
        network.run(Time::from_nanos(20 * SECOND), |_| false);
        let session = network.nodes[0].driver.session.unwrap();
        assert_eq!(network.endpoint(0).session_stats(session).unwrap().mtu, found);
    }
}

#[test]
fn where_there_is_room_a_packet_is_taken() {
    let slow = Rules { bandwidth: Some(1_000_000), ..Rules::clean(MS) };
    let mut network = pair(1, slow, |config| config.lane_buffer = 8 << 10, [Talker::default(), Talker::default()]);
    assert!(network.run(Time::from_nanos(SECOND), |n| n.nodes[0].driver.is_connected()));
    let session = network.nodes[0].driver.session.unwrap();
    let (mut number, mut found_full) = (0, 0);
    for _ in 0..500 {
        let now = network.now();
        network.run(now + MS, |_| false);
        loop {
            let room = network.endpoint(0).has_room(session, Priority::Normal, 1000, 1000);
            let now = network.now();
            let mut payload = [0; 1000];
            fill(number, 0, &mut payload);
            let head = PacketHead { kind: PacketKind::Whole, tag: number, sequence: number as u32, total: 1000 };
            let pushed = network.endpoint(0).push(now, session, Priority::Normal, &head, &payload);
            network.wake(0);
            assert!(pushed == Push::Done || !room, "packet {number}");
            if pushed != Push::Done {
                found_full += 1;
                break;
            }
            number += 1;
        }
    }
    assert!(found_full > 20);
}
