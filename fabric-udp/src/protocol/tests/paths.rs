//! Several links and several paths: which path is used, and what happens when it is cut.

use super::*;
use crate::protocol::sim::{Dice, Rules};
use crate::protocol::*;
use doorbell_fabric::{Incarnation, NodeId, Priority};
use std::net::SocketAddr;
use std::time::Duration;

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

pub(super) fn link(node: usize, link: u8) -> SocketAddr {
    if link == 0 { Net::address(node) } else { Net::further(node, link) }
}

/// Two nodes with this many links each. `cables[n]` connects link `n` of one node to link `n` of the other; there are no other
/// connections.
pub(super) fn linked(seed: u64, links: [u8; 2], cables: &[Rules], change: impl Fn(&mut Config), talkers: [Talker; 2]) -> Net {
    let mut network = Net::new(seed, Rules { loss: 1.0, ..Rules::clean(MS) });
    for (index, talker) in talkers.into_iter().enumerate() {
        let mut config = config(index as u16);
        config.links = vec![LinkConfig::interface(1500); links[index].into()];
        config.addresses = (0..links[index]).map(|n| link(index, n)).collect();
        change(&mut config);
        network.add_linked(Endpoint::new(config, seed_of(seed, index as u64)).unwrap(), talker, links[index]);
    }
    for (n, rules) in cables.iter().enumerate() {
        let ends = [0, 1].map(|node| link(node, (n as u8).min(links[node] - 1)));
        network.lay_cable(rules.clone(), ends[0], ends[1], true);
    }
    connect(&mut network, 0, 1);
    network
}

fn talker(packets: u64, size: usize) -> Talker {
    Talker::with(vec![Stream::new(Priority::Normal, packets, (8, size))])
}

pub(super) fn keyed(seed: u64) -> impl Fn(&mut Config) {
    move |config| config.key = seed.is_multiple_of(2).then_some(DomainKey([4; 32]))
}

fn stats(network: &mut Net, node: usize) -> SessionStats {
    let session = network.nodes[node].driver.session.expect("a session");
    network.endpoint(node).session_stats(session).unwrap()
}

fn path(network: &mut Net, node: usize) -> Path {
    let session = network.nodes[node].driver.session.expect("a session");
    network.endpoint(node).path(session).unwrap()
}

pub(super) fn lan() -> Rules {
    Rules { bandwidth: Some(10_000_000), queue: 128 << 10, ..Rules::clean(100_000) }
}

pub(super) fn cut(rules: &Rules, from: u64, to: u64) -> Rules {
    Rules { holes: vec![(at(from), at(to))], ..rules.clone() }
}

#[test]
fn ends_learn_of_all_paths_and_idle_ones_are_asked_seldom() {
    for links in [[1, 1], [2, 1], [1, 2], [2, 2], [3, 3], [6, 6]] {
        // All links are in one network.
        let mut network = linked(1, links, &[], keyed(1), [Talker::default(), Talker::default()]);
        for one in 0..links[0] {
            for other in 0..links[1] {
                network.lay_cable(lan(), link(0, one), link(1, other), true);
            }
        }
        let paths = u64::from(links[0] * links[1]).min(4);
        let all = |n: &Net| {
            n.nodes.iter().all(|node| {
                let (endpoint, session) = (node.endpoint.as_ref().unwrap(), node.driver.session);
                session.is_some_and(|session| endpoint.session_stats(session).unwrap().paths == paths)
            })
        };
        assert!(network.run(at(SECOND), all), "{links:?}");
        let before = network.stats.sent;
        network.run(at(21 * SECOND), |_| false);
        let sent = network.stats.sent - before;
        // Both ends challenge each path every four seconds: a Challenge, its Response, and acknowledgements of both.
        assert!(sent < 400 + 2 * 5 * 4 * (paths - 1), "{sent} datagrams in twenty idle seconds, {links:?}");
        assert!(all(&network), "{links:?}");
        assert_eq!((stats(&mut network, 0).path_changes, stats(&mut network, 1).path_changes), (0, 0));
    }
}

#[test]
fn a_path_that_is_cut_is_left_and_nothing_is_lost_doubled_or_reordered() {
    for seed in 0..60 {
        let mut dice = Dice::new(seed);
        let dead_after = SECOND;
        let change = |config: &mut Config| {
            keyed(seed)(config);
            config.dead_after = Duration::from_nanos(dead_after);
        };
        // One or both ends send, and the cut may be in one direction only.
        let when = 100 * MS + dice.below(300 * MS);
        let packets = [8000, if seed % 3 == 0 { 8000 } else { 0 }];
        let mut network = linked(seed, [2, 2], &[lan(), lan()], change, packets.map(|packets| talker(packets, 1300)));
        let sides: &[_] = [&[(0, 1), (1, 0)][..], &[(0, 1)], &[(1, 0)]][dice.below(3) as usize];
        for (from, to) in sides {
            network.lay_cable(cut(&lan(), when, u64::MAX), link(*from, 0), link(*to, 0), false);
        }
        assert!(network.run(at(when), |_| false) || network.now() == at(when));
        let so_far = network.nodes[1].driver.count_from(0);
        assert!(so_far > 100 && so_far < 8000, "seed {seed}: cut in mid-stream, after {so_far}");
        // Data flows again well before the peer would count as dead.
        let goes_on = |n: &Net| n.nodes[1].driver.count_from(0) > so_far + 400;
        assert!(network.run(at(when + dead_after / 2), goes_on), "seed {seed}: {:?}", network.nodes[0].driver.events);
        let done = |n: &Net| (0..2).all(|node| n.nodes[1 - node].driver.count_from(node as u16) == packets[node]);
        assert!(network.run(at(30 * SECOND), done), "seed {seed}: {:?}", network.nodes[0].driver.events);
        for node in 0..2 {
            assert!(network.nodes[node].driver.closed().is_none());
        }
        assert_eq!(path(&mut network, 0), Path { link: LinkId(1), peer: link(1, 1) }, "seed {seed}");
    }
}

#[test]
fn transfers_go_on_by_another_path() {
    for seed in 0..20 {
        let mut network =
            linked(seed, [2, 2], &[cut(&lan(), 150 * MS, u64::MAX), lan()], keyed(seed), [talker(0, 8), talker(0, 8)]);
        assert!(network.run(at(SECOND), |n| n.nodes.iter().all(|node| node.driver.is_connected())));
        let total = 3_000_000;
        transfer(&mut network, 0, 1, total, total, Priority::Normal);
        let done =
            |n: &Net| n.nodes[1].driver.incoming.values().all(|incoming| (incoming.placed, incoming.complete) == (total, 1));
        assert!(network.run(at(10 * SECOND), |n| done(n) && n.nodes[0].driver.sent.len() == 1), "seed {seed}");
        assert!(stats(&mut network, 0).path_changes >= 1);
    }
}

#[test]
fn paths_that_come_and_go_in_turn_carry_everything() {
    for seed in 0..40 {
        let mut dice = Dice::new(seed);
        let (mut holes, mut now, mut which) = ([Vec::new(), Vec::new()], 50 * MS, 0);
        while now < 60 * SECOND {
            let span = 200 * MS + dice.below(400 * MS);
            holes[which].push((at(now), at(now + span)));
            // Sometimes both paths exist for a while.
            now += span + if dice.chance(0.5) { dice.below(200 * MS) } else { 0 };
            which = 1 - which;
        }
        let cables = holes.map(|holes| Rules { holes, loss: if seed % 2 == 0 { 0.01 } else { 0.0 }, ..lan() });
        let change = |config: &mut Config| {
            keyed(seed)(config);
            config.dead_after = Duration::from_secs(3);
        };
        let packets = [6000, if seed % 3 == 0 { 3000 } else { 0 }];
        let mut network = linked(seed, [2, 2], &cables, change, packets.map(|packets| talker(packets, 1300)));
        let done = |n: &Net| (0..2).all(|node| n.nodes[1 - node].driver.count_from(node as u16) == packets[node]);
        let events = |n: &Net| n.nodes[0].driver.events.clone();
        assert!(network.run(at(60 * SECOND), done), "seed {seed}: {:?}", events(&network));
        assert!(network.nodes.iter().all(|node| node.driver.closed().is_none()), "seed {seed}: {:?}", events(&network));
    }
}

#[test]
fn the_other_path_may_have_another_mtu_and_delay_and_lose() {
    let others = [
        Rules { mtu: 1300, ..lan() },
        Rules { delay: 80 * MS, bandwidth: Some(2_000_000), ..lan() },
        Rules { loss: 0.2, lost_in_a_row: 5, ..lan() },
        Rules { mtu: 1200, delay: 20 * MS, loss: 0.02, duplicate: 0.1, reorder: 0.1, reorder_by: 5 * MS, corrupt: 0.02, ..lan() },
    ];
    for (seed, other) in (0..40).map(|seed| (seed, &others[seed as usize % others.len()])) {
        for swapped in [false, true] {
            // From the good path to the bad one, and back.
            let mut cables = [lan(), other.clone()];
            if swapped {
                cables.reverse();
            }
            let change = |config: &mut Config| {
                keyed(seed / 4)(config);
                config.dead_after = Duration::from_secs(3);
                config.connect_for = Duration::from_secs(20);
            };
            let mut network = linked(seed, [2, 2], &cables, change, [talker(5000, 1400), talker(50, 1400)]);
            assert!(network.run(at(20 * SECOND), |n| n.nodes.iter().all(|node| node.driver.is_connected())), "seed {seed}");
            let when = network.now().nanos() + 200 * MS;
            network.lay_cable(cut(&cables[0], when, u64::MAX), link(0, 0), link(1, 0), true);
            let done = |n: &Net| n.nodes[1].driver.count_from(0) == 5000 && n.nodes[0].driver.count_from(1) == 50;
            assert!(network.run(at(100 * SECOND), done), "seed {seed}: {:?}", network.nodes[0].driver.events);
            assert!(network.nodes.iter().all(|node| node.driver.closed().is_none()), "seed {seed}");
        }
    }
}

#[test]
fn probes_of_a_fast_path_do_not_make_a_slow_one_look_lossy() {
    let slow = Rules { delay: 50 * MS, bandwidth: Some(2_000_000), queue: 1 << 20, ..Rules::clean(0) };
    let quick = |config: &mut Config| config.dead_after = Duration::from_millis(400);
    let mut network = linked(1, [2, 2], &[slow, lan()], quick, [talker(20_000, 1000), Talker::default()]);
    // The queue holds everything that the window allows until then.
    assert!(network.run(at(5 * SECOND), |n| n.nodes[1].driver.count_from(0) > 3000));
    let stats = stats(&mut network, 0);
    assert_eq!((stats.paths, stats.path_changes, stats.spurious), (2, 0, 0), "{stats:?}");
}

#[test]
fn a_peer_that_stands_still_is_not_taken_for_a_path_that_is_cut() {
    for seed in 0..20 {
        let mut network = linked(seed, [2, 2], &[lan(), lan()], keyed(seed), [talker(20_000, 1000), Talker::default()]);
        network.run(at(200 * MS), |_| false);
        // Datagrams to it wait, and it sends nothing.
        for round in 0..3 {
            let endpoint = network.nodes[1].endpoint.take();
            let now = network.now();
            network.run(now + (100 + 50 * round) * MS, |_| false);
            network.nodes[1].endpoint = endpoint;
            network.wake(1);
            let now = network.now();
            network.run(now + 300 * MS, |_| false);
        }
        assert!(network.nodes[0].driver.closed().is_none(), "seed {seed}");
        assert!(stats(&mut network, 0).path_changes <= 3, "seed {seed}");
    }
}

#[test]
fn a_session_dies_when_all_its_paths_are_silent_and_no_later() {
    for links in [[1, 1], [2, 2], [3, 3]] {
        let when = 500 * MS;
        let cables = vec![cut(&lan(), when, u64::MAX); links[0].into()];
        let mut network = linked(1, links, &cables, keyed(1), [talker(100_000, 1000), Talker::default()]);
        assert!(network.run(at(10 * SECOND), |n| n.nodes[0].driver.closed().is_some()));
        assert_eq!(network.nodes[0].driver.closed(), Some(CloseReason::Silent));
        let took = network.now() - at(when);
        assert!((740 * MS..=1100 * MS).contains(&took), "{took} {links:?}");
    }
}

#[test]
fn an_idle_session_changes_its_path_too() {
    for seed in 0..10 {
        let mut network =
            linked(seed, [2, 2], &[cut(&lan(), 700 * MS, u64::MAX), lan()], keyed(seed), [Talker::default(), Talker::default()]);
        network.run(at(10 * SECOND), |_| false);
        for node in 0..2 {
            assert!(network.nodes[node].driver.closed().is_none());
            assert_eq!(path(&mut network, node), Path { link: LinkId(1), peer: link(1 - node, 1) });
        }
    }
}

#[test]
fn one_link_reaches_both_of_a_peer_and_goes_on_by_the_other() {
    for links in [[1, 2], [2, 1]] {
        let cables = [cut(&lan(), 300 * MS, u64::MAX), lan()];
        let mut network = linked(3, links, &cables, keyed(3), [talker(8000, 1300), talker(10, 8)]);
        let done = |n: &Net| n.nodes[1].driver.count_from(0) == 8000 && n.nodes[0].driver.count_from(1) == 10;
        assert!(network.run(at(20 * SECOND), done), "{links:?}");
        assert!(stats(&mut network, 0).path_changes >= 1);
    }
}

#[test]
fn a_socket_that_is_bound_to_no_address_goes_on_by_another_too() {
    for seed in 0..40 {
        let mut dice = Dice::new(seed);
        let change = |config: &mut Config| {
            config.key = Some(DomainKey([4; 32]));
            if config.node == NodeId(0) {
                config.links.truncate(1);
                config.addresses = vec!["0.0.0.0:4000".parse().unwrap()];
            }
        };
        let packets = [[8000, 0], [0, 8000], [8000, 8000]][seed as usize % 3];
        let mut network = linked(seed, [2, 2], &[lan(), lan()], change, packets.map(|packets| talker(packets, 1300)));
        network.nodes[0].one_link = true;
        let when = 100 * MS + dice.below(300 * MS);
        network.lay_cable(cut(&lan(), when, u64::MAX), link(0, 0), link(1, 0), true);
        let done = |n: &Net| (0..2).all(|node| n.nodes[1 - node].driver.count_from(node as u16) == packets[node]);
        assert!(network.run(at(30 * SECOND), done), "seed {seed}: {:?}", network.nodes[1].driver.events);
        assert_eq!(path(&mut network, 1), Path { link: LinkId(1), peer: link(0, 1) });
    }
}

/// A datagram from a stranger, even a genuine one sent from the stranger's own address, moves no session, and is answered with
/// at most three times its bytes.
#[test]
fn a_third_address_moves_no_session() {
    for seed in 0..10 {
        let mut network = linked(seed, [2, 2], &[lan(), lan()], keyed(seed), [talker(3000, 1300), talker(300, 100)]);
        network.record = Some(Vec::new());
        network.run(at(300 * MS), |_| false);
        let stranger: SocketAddr = "172.16.0.9:4000".parse().unwrap();
        let session = network.nodes[0].driver.session.unwrap();
        let mut given = 0;
        for number in 0..200_u64 {
            // New datagrams that no node has seen, and old ones; some of them as if they came from the peer's other path.
            let now = network.now();
            let sent = network.record.as_ref().unwrap();
            let old = sent.iter().rev().nth((number as usize * 7) % 100).filter(|(_, to, _)| *to == Net::address(1)).cloned();
            let fresh = (number % 5 == 0).then(|| network.endpoint(0).forge(now, session, None, &[1]));
            for bytes in [old.map(|(_, _, bytes)| bytes), fresh].into_iter().flatten() {
                given += bytes.len() as u64;
                network.inject_to(stranger, link(1, (number % 2) as u8), bytes.clone());
            }
            let now = network.now();
            network.run(now + MS, |_| false);
            assert_eq!(path(&mut network, 1), Path { link: LinkId(0), peer: link(0, 0) });
        }
        let got = network.astray.get(&stranger).copied().unwrap_or(0);
        assert!(got <= 3 * given, "{got} bytes for {given}");
        let done = |n: &Net| n.nodes[1].driver.count_from(0) == 3000 && n.nodes[0].driver.count_from(1) == 300;
        assert!(network.run(at(20 * SECOND), done));
        assert_eq!(stats(&mut network, 1).path_changes, 0);
    }
}

/// A peer may claim any address as its own. An address that never answers is challenged less and less often, with small
/// datagrams.
#[test]
fn an_address_that_never_answers_is_asked_little_and_gets_no_data() {
    let victim: SocketAddr = "172.16.0.9:4000".parse().unwrap();
    let lies = |config: &mut Config| {
        if config.node == NodeId(0) {
            config.addresses[1] = victim;
        }
    };
    // The path in use is cut as well, so that the session would take any other.
    let cables = [cut(&lan(), 20 * SECOND, 21 * SECOND)];
    let change = |config: &mut Config| {
        lies(config);
        config.dead_after = Duration::from_secs(3);
    };
    let mut network = linked(1, [2, 2], &cables, change, [talker(0, 8), talker(100_000, 1300)]);
    network.run(at(40 * SECOND), |_| false);
    assert!(network.nodes[1].driver.closed().is_none());
    let got = network.astray.get(&victim).copied().unwrap_or(0);
    assert!((1..2000).contains(&got), "{got} bytes in forty seconds");
    // Datagrams from there are ignored, since a host there heard nothing of the session.
    let before = network.endpoint(1).stats();
    network.inject(victim, 1, vec![0xD8; 100]);
    let now = network.now();
    network.run(now + SECOND / 10, |_| false);
    let after = network.endpoint(1).stats();
    assert_eq!(after.stray - before.stray + after.corrupted - before.corrupted, 1);
}

/// A peer of a former release tells no addresses, and hears by one path only.
#[test]
fn who_knows_of_no_paths_is_met_by_one() {
    use crate::protocol::handshake::Params;
    let mut random = crate::protocol::random::Random::new([1; 32]);
    let config = Config { links: vec![LinkConfig::UNKNOWN; 2], ..config(0) };
    let addresses = vec![link(0, 0), "[fd00::7]:9".parse().unwrap()];
    let config = Config { addresses, incarnation: Incarnation(5), greeting: vec![7; 512], ..config };
    let params = Params::new(&config, &config.links[0], 0, &mut random);
    let bytes = params.write();
    assert_eq!(Params::read(&bytes), Some(params.clone()));
    let mut former = params.clone();
    former.addresses = None;
    assert_eq!(Params::read(&former.write()), Some(former.clone()));
    assert_eq!(bytes[..former.write().len()], former.write()[..], "a former release reads the part it knows");
    let mut wrong = bytes.clone();
    wrong[38 + 512] = 5;
    assert_eq!(Params::read(&wrong), None, "more addresses than any end has");
    assert_eq!(Params::read(&bytes[..bytes.len() - 1]), None, "less than was announced");
}
