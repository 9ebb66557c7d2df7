//! The performance of the protocol under known conditions, kept as a table.

use super::*;
use crate::protocol::sim::Rules;
use crate::protocol::*;
use doorbell_fabric::Priority;
use std::fmt::Write;
use std::time::Duration;

const TABLE: &str = include_str!("conditions.txt");

fn row(table: &mut String, name: &str, packets: u64, there: Rules, back: Rules) {
    let change = |config: &mut Config| {
        config.dead_after = Duration::from_secs(20);
        config.connect_for = Duration::from_secs(60);
    };
    let talkers = [Talker::with(vec![Stream::new(Priority::Normal, packets, (1000, 1000))]), Talker::with(vec![])];
    let mut network = pair(11, there.clone(), change, talkers);
    network.lay(there, &[(0, 1)]);
    network.lay(back, &[(1, 0)]);
    assert!(network.run(Time::from_nanos(60 * SECOND), |n| n.nodes[0].driver.is_connected()), "{name}");
    let start = network.now();
    let bytes = packets * 1000;
    transfer_when_up(&mut network, bytes);
    let done = |n: &Net| {
        n.nodes[1].driver.count_from(0) == packets && n.nodes[1].driver.incoming.values().all(|incoming| incoming.complete == 1)
    };
    assert!(network.run(Time::from_nanos(4000 * SECOND), done), "{name}: {:?}", network.nodes[1].driver.received);
    let took = network.now() - start;
    let session = network.nodes[0].driver.session.unwrap();
    let stats = network.endpoint(0).session_stats(session).unwrap();
    let again = stats.bytes_again as f64 / (2 * bytes) as f64 * 100.0;
    let rate = (2 * bytes) as f64 / (took as f64 / 1e9) / 1e6;
    writeln!(
        table,
        "{name:28} {rate:>9.3} {again:>8.1} {:>7} {:>8} {:>7} {:>9}",
        stats.lost, stats.spurious, stats.probe_timeouts, stats.datagrams_out
    )
    .unwrap();
}

/// Half of all bytes go as a transfer.
fn transfer_when_up(network: &mut Net, bytes: u64) {
    let up = Time::from_nanos(100 * SECOND);
    assert!(network.run(up, |n| n.nodes.iter().all(|node| node.driver.is_connected())));
    transfer(network, 0, 1, bytes, bytes, Priority::Normal);
}

/// Measures the goodput and the repeated bytes under each of these conditions. `DOORBELL_BLESS=1` writes the results to
/// `conditions.txt`.
#[test]
fn the_table_of_conditions_is_as_it_was() {
    let mut table = String::new();
    writeln!(
        table,
        "{:28} {:>9} {:>8} {:>7} {:>8} {:>7} {:>9}",
        "", "MB/s", "again %", "lost", "spurious", "probes", "datagrams"
    )
    .unwrap();
    let lan = Rules { bandwidth: Some(125_000_000), queue: 256 << 10, ..Rules::clean(100_000) };
    for loss in [0.0, 0.001, 0.01, 0.05, 0.1, 0.3] {
        let lossy = Rules { loss, ..lan.clone() };
        row(&mut table, &format!("loss {:.1} %", loss * 100.0), 2000, lossy.clone(), lossy);
    }
    for share in [0.01, 0.1, 0.5] {
        let rules = Rules { reorder: share, reorder_by: MS, ..lan.clone() };
        row(&mut table, &format!("reordered {:.0} %", share * 100.0), 2000, rules.clone(), rules);
    }
    let rules = Rules { duplicate: 0.2, ..lan.clone() };
    row(&mut table, "duplicated 20 %", 2000, rules.clone(), rules);
    let rules = Rules { corrupt: 0.05, ..lan.clone() };
    row(&mut table, "corrupted 5 %", 2000, rules.clone(), rules);
    for delay in [50_000, MS, 10 * MS, 100 * MS] {
        let rules = Rules { delay, ..lan.clone() };
        row(&mut table, &format!("delay {} ms", delay as f64 / MS as f64), 5000, rules.clone(), rules);
    }
    let slow = Rules { bandwidth: Some(1_000_000), queue: 32 << 10, ..Rules::clean(20 * MS) };
    row(&mut table, "asymmetric: slow there", 1000, slow.clone(), lan.clone());
    row(&mut table, "asymmetric: slow back", 2000, lan.clone(), slow);
    let bad = Rules { loss: 0.3, ..lan.clone() };
    row(&mut table, "asymmetric: loss 30 % back", 2000, lan.clone(), bad);
    let hole = Rules { holes: vec![(Time::from_nanos(20 * MS), Time::from_nanos(2020 * MS))], ..lan };
    row(&mut table, "nothing passes for 2 s", 5000, hole.clone(), hole);
    if std::env::var_os("DOORBELL_BLESS").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/protocol/tests/conditions.txt"), &table).unwrap();
    } else {
        assert_eq!(table, TABLE, "DOORBELL_BLESS=1 writes the new table");
    }
}

#[test]
fn two_flows_share_a_bottleneck() {
    for round_trip in [2 * MS, 20 * MS] {
        let narrow = Rules { bandwidth: Some(12_500_000), queue: 128 << 10, ..Rules::clean(round_trip / 2) };
        let flow = || Talker::with(vec![Stream::new(Priority::Normal, u64::MAX, (1000, 1000))]);
        let mut network = Net::new(3, narrow.clone());
        for (index, talker) in [flow(), flow(), Talker::default(), Talker::default()].into_iter().enumerate() {
            network.add(Endpoint::new(config(index as u16), seed_of(3, index as u64)).unwrap(), talker);
        }
        network.lay(narrow, &[(0, 2), (1, 3)]);
        connect(&mut network, 0, 2);
        // The second one comes later, and has to get its share.
        network.run(Time::from_nanos(SECOND), |_| false);
        connect(&mut network, 1, 3);
        network.run(Time::from_nanos(5 * SECOND), |_| false);
        let counts = |n: &Net| [n.nodes[2].driver.count_from(0) as f64, n.nodes[3].driver.count_from(1) as f64];
        let before = counts(&network);
        network.run(Time::from_nanos(35 * SECOND), |_| false);
        let after = counts(&network);
        let rates = [after[0] - before[0], after[1] - before[1]];
        let jain = (rates[0] + rates[1]).powi(2) / (2.0 * (rates[0].powi(2) + rates[1].powi(2)));
        assert!(jain >= 0.9, "{jain}: {rates:?}");
        let used = (rates[0] + rates[1]) * 1000.0 / 30.0 / 12_500_000.0;
        assert!(used > 0.8, "{used}");
    }
}
