//! Transfers: each byte arrives once, each end is reported once, and either end can cancel.

use super::*;
use crate::protocol::sim::Rules;
use crate::protocol::*;
use doorbell_fabric::Priority;

fn up(seed: u64, rules: Rules) -> Net {
    let mut network = pair(seed, rules, |_| {}, [Talker::default(), Talker::default()]);
    assert!(network.run(Time::from_nanos(SECOND), |n| n.nodes.iter().all(|node| node.driver.is_connected())));
    network
}

#[test]
fn many_transfers_arrive_whole() {
    let mut network = up(1, Rules { loss: 0.02, reorder: 0.05, reorder_by: MS, ..Rules::clean(100_000) });
    for index in 0..40u64 {
        let (from, to) = if index % 3 == 0 { (1, 0) } else { (0, 1) };
        transfer(&mut network, from, to, index * 7919, index * 7919, Priority::ALL[(index % 3) as usize]);
    }
    assert!(network.run(Time::from_nanos(60 * SECOND), |n| {
        n.nodes
            .iter()
            .all(|node| node.driver.outgoing.is_empty() && node.driver.incoming.values().all(|incoming| incoming.complete == 1))
    }));
    let sent: usize = network.nodes.iter().map(|node| node.driver.sent.len()).sum();
    assert_eq!(sent, 40);
}

#[test]
fn a_slow_receiver_is_not_overrun() {
    let mut network = up(1, Rules::clean(100_000));
    let id = transfer(&mut network, 0, 1, 500_000, 10_000, Priority::Normal);
    let placed = |n: &Net| n.nodes[1].driver.incoming[&id.0].placed;
    network.run(Time::from_nanos(2 * SECOND), |_| false);
    assert_eq!(placed(&network), 10_000);
    let session = network.nodes[1].driver.session.unwrap();
    for limit in [200_000, 150_000, 500_000] {
        let now = network.now();
        network.endpoint(1).grant(now, session, id, limit);
        network.wake(1);
        network.run(now + SECOND, |_| false);
        assert_eq!(placed(&network), limit.max(200_000));
    }
    assert_eq!((network.nodes[1].driver.incoming[&id.0].complete, network.nodes[0].driver.sent.len()), (1, 1));
}

#[test]
fn either_end_cancels_and_the_other_is_told_once() {
    for (by_receiver, loss) in [(false, 0.0), (true, 0.0), (false, 0.2), (true, 0.2)] {
        let mut network = up(3, Rules { loss, bandwidth: Some(10_000_000), ..Rules::clean(MS) });
        let id = transfer(&mut network, 0, 1, 1_000_000, 1_000_000, Priority::Normal);
        network.run(Time::from_nanos(10 * SECOND), |n| n.nodes[1].driver.incoming[&id.0].placed > 100_000);
        let now = network.now();
        let sessions = [0, 1].map(|index| network.nodes[index].driver.session.unwrap());
        let running = if by_receiver {
            network.nodes[1].driver.incoming.get_mut(&id.0).unwrap().cancelled = 1;
            network.endpoint(1).cancel_incoming(now, sessions[1], id)
        } else {
            network.nodes[0].driver.outgoing.remove(&id.0);
            network.endpoint(0).cancel_outgoing(now, sessions[0], id)
        };
        assert!(running);
        network.wake(0);
        network.wake(1);
        network.run(now + 5 * SECOND, |_| false);
        assert_eq!(network.nodes[1].driver.incoming[&id.0].cancelled, 1);
        assert_eq!(network.nodes[0].driver.cancelled_out.len(), usize::from(by_receiver));
        assert!(!network.endpoint(0).cancel_outgoing(now + 5 * SECOND, sessions[0], id));
        assert!(network.nodes.iter().all(|node| node.driver.closed().is_none()));
        let again = network.endpoint(0).begin_transfer(now + 5 * SECOND, sessions[0], id, 5, Priority::Low);
        assert_eq!(again, Err(TransferError::Used));
    }
}

#[test]
fn a_source_that_fails_cancels() {
    let mut network = up(3, Rules::clean(MS));
    network.nodes[0].driver.unreadable = true;
    let id = transfer(&mut network, 0, 1, 1_000_000, 1_000_000, Priority::Normal);
    network.run(Time::from_nanos(3 * SECOND), |_| false);
    assert_eq!(
        (network.nodes[0].driver.cancelled_out.as_slice(), network.nodes[1].driver.incoming[&id.0].cancelled),
        (&[id.0][..], 1)
    );
}

#[test]
fn a_transfer_given_up_before_it_began_is_over_when_it_begins() {
    let mut network = up(3, Rules::clean(MS));
    let (now, sessions) = (network.now(), [0, 1].map(|index| network.nodes[index].driver.session.unwrap()));
    let id = network.endpoint(1).expect(now, sessions[1], 5000, 5000).unwrap();
    assert!(network.endpoint(1).cancel_incoming(now, sessions[1], id));
    network.wake(1);
    network.run(now + SECOND / 2, |_| false);
    network.nodes[0].driver.outgoing.insert(id.0, 5000);
    network.endpoint(0).begin_transfer(now, sessions[0], id, 5000, Priority::Normal).unwrap();
    network.wake(0);
    network.run(now + SECOND, |_| false);
    assert_eq!(network.nodes[0].driver.cancelled_out, [id.0]);
    assert!(network.endpoint(0).is_flushed(sessions[0]));
}

#[test]
fn short_transfers_end_one_after_another() {
    let change = |config: &mut Config| {
        config.links = vec![LinkConfig::LOOPBACK];
        config.initial_window = 4 << 20;
    };
    let mut network = pair(6, Rules::clean(20_000), change, [Talker::default(), Talker::default()]);
    assert!(network.run(Time::from_nanos(SECOND), |n| n.nodes.iter().all(|node| node.driver.is_connected())));
    let until = Time::from_nanos(5 * SECOND);
    let ids: Vec<_> = (0..3).map(|_| transfer(&mut network, 0, 1, 1 << 20, 1 << 20, Priority::Normal)).collect();
    let placed = |n: &Net, id: &TransferId| n.nodes[1].driver.incoming[&id.0].placed;
    let is_whole = |n: &Net, id: &TransferId| n.nodes[1].driver.incoming[&id.0].complete == 1;
    assert!(network.run(until, |n| is_whole(n, &ids[0])));
    assert!(placed(&network, &ids[2]) < 1 << 17, "{:?}", ids.iter().map(|id| placed(&network, id)).collect::<Vec<_>>());
    // A longer one gives way after its turn.
    let long = transfer(&mut network, 0, 1, 16 << 20, 16 << 20, Priority::Normal);
    let short = transfer(&mut network, 0, 1, 1 << 20, 1 << 20, Priority::Normal);
    assert!(network.run(until, |n| is_whole(n, &short)));
    assert!(placed(&network, &long) < 4 << 20);
}
