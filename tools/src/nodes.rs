//! Nodes as other processes see them, as text for people and as fields for programs.

use crate::text::bytes;
use doorbell::{Metrics, Priority};
use doorbell_engine::transfer::slot::{Kind, Shown};
use doorbell_shm::board::{BoardCopy, FifoShown, Injector, Latencies, Record, Recorded};
use doorbell_shm::clock::now_ns;
use doorbell_shm::domain::NodeStatus;
use serde_json::{Map, Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Whether a node lives, and whether its process was stopped.
pub fn state(node: &NodeStatus) -> &'static str {
    if !node.alive {
        return "dead";
    }
    let Some(member) = &node.member else { return "alive" };
    // The number of its process is valid here only in the same namespace of processes.
    let alike = fs::metadata("/proc/self/ns/pid").is_ok_and(|found| found.ino() == member.pid_namespace);
    if alike && is_stopped(member.pid) { "stopped" } else { "alive" }
}

fn is_stopped(pid: u32) -> bool {
    // The state follows the name, which is in parentheses and may hold anything.
    let found = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    found.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// All metrics by name.
pub fn metrics(metrics: &Metrics) -> Value {
    metrics.iter().map(|(metric, value)| (metric.word().to_owned(), json!(value))).collect::<Map<_, _>>().into()
}

/// Sampled latencies.
pub fn latencies(latencies: &Latencies) -> Value {
    let quantile = |share| latencies.quantile(share);
    json!({ "samples": latencies.count(), "p50_ns": quantile(0.5), "p90_ns": quantile(0.9), "p99_ns": quantile(0.99) })
}

/// The DMA counters in use.
pub fn counters(board: &BoardCopy) -> Value {
    let counter = |counter: doorbell_shm::board::CounterShown| json!({ "counter": counter.index, "value": counter.value, "size": counter.size, "zero": counter.zero });
    board.board().counters().into_iter().map(counter).collect()
}

/// The open injection FIFOs.
pub fn fifos(board: &BoardCopy) -> Value {
    let fifo = |fifo: FifoShown| {
        let pending = fifo.pending.iter().map(|(position, words)| {
            let shown = Shown::of(words);
            json!({
                "position": position,
                "kind": shown.map(|shown| <&str>::from(shown.kind)),
                "to": shown.map(|shown| shown.to.0),
                "bytes": shown.map(|shown| shown.len),
            })
        });
        json!({
            "fifo": fifo.number,
            "name": fifo.facts.name,
            "injector": injector(&fifo),
            "priority": priority(fifo.facts.priority),
            "injected": fifo.injected,
            "executed": fifo.executed,
            "faults": fifo.faults,
            "bytes": fifo.bytes,
            "pending": pending.collect::<Vec<_>>(),
        })
    };
    board.board().fifos().into_iter().map(fifo).collect()
}

/// Who injects into a FIFO.
pub fn injector(fifo: &FifoShown) -> &'static str {
    match fifo.facts.injector {
        Injector::Engine => "engine",
        Injector::Program => "program",
        Injector::Peers => "peers",
    }
}

/// The oldest descriptor of a FIFO in words; a dash if there is none.
pub fn next_descriptor(fifo: &FifoShown) -> String {
    let Some((_, words)) = fifo.pending.first() else { return "-".into() };
    match Shown::of(words) {
        Some(Shown { kind: Kind::RemoteGet, to, .. }) => format!("remote-get by node {to}"),
        Some(Shown { kind, to, len }) => format!("{} of {} to node {to}", <&str>::from(kind), bytes(len)),
        None => "no descriptor: its words were overwritten".into(),
    }
}

/// The fields that identify a node.
pub fn identity(node: &NodeStatus) -> Value {
    let member = node.member.as_ref();
    let incarnation = member.map(|member| member.incarnation).or(node.board.as_ref().map(BoardCopy::incarnation));
    json!({
        "node": node.id.0,
        "state": state(node),
        "role": member.map(|member| member.role.word()),
        "pid": member.map(|member| member.pid),
        "incarnation": incarnation.map(|incarnation| incarnation.0),
        "label": member.map(|member| member.label.clone()),
    })
}

/// The fields of a record.
pub fn record(recorded: &Recorded) -> Value {
    let Recorded { number, time_ns, thread, record } = *recorded;
    json!({
        "number": number,
        "time_ns": time_ns,
        "age_ns": now_ns().saturating_sub(time_ns),
        "thread": thread,
        "kind": record.kind.word(),
        "peer": record.peer.map(|peer| peer.0),
        "incarnation": Some(record.incarnation.0).filter(|incarnation| *incarnation != 0),
        "priority": record.priority.map(priority),
        "transfer": record.transfer,
        "offset": record.offset,
        "bytes": record.bytes,
    })
}

/// The columns of records.
pub const RECORD_COLUMNS: [&str; 9] =
    [">NUMBER", ">SECONDS AGO", ">THREAD", "WHAT", ">PEER", "PRIORITY", ">TRANSFER", ">OFFSET", ">BYTES"];

/// The cells of a record.
pub fn record_cells(recorded: &Recorded) -> [String; 9] {
    let Recorded { number, time_ns, thread, record } = *recorded;
    let Record { kind, peer, transfer, offset, bytes, .. } = record;
    let known = |value: u64| if value == 0 { "-".to_owned() } else { value.to_string() };
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    [
        number.to_string(),
        now_ns().checked_sub(time_ns).map_or("-".into(), |ago| format!("{:.6}", ago as f64 / 1e9)),
        thread.to_string(),
        kind.word().to_owned(),
        or_none(peer.map(|peer| peer.to_string())),
        or_none(record.priority.map(|found| priority(found).to_owned())),
        known(transfer),
        known(offset),
        known(bytes),
    ]
}

/// The word for a priority.
pub fn priority(priority: Priority) -> &'static str {
    match priority {
        Priority::High => "high",
        Priority::Normal => "normal",
        Priority::Low => "low",
    }
}

/// Nanoseconds in a unit that suits the number.
pub fn nanoseconds(ns: Option<u64>) -> String {
    match ns {
        None => "-".into(),
        Some(ns) if ns < 1000 => format!("{ns} ns"),
        Some(ns) if ns < 1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        Some(ns) if ns < 1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        Some(ns) => format!("{:.1} s", ns as f64 / 1e9),
    }
}

/// A number in three or four places.
pub fn short(value: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(unit, _)| value >= *unit) {
        Some((unit, name)) => format!("{:.*}{name}", usize::from(value / unit < 99.95), value / unit),
        None if value == 0.0 => "0".into(),
        None => format!("{value:.*}", usize::from(value < 9.95)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_their_columns() {
        for (value, text) in [(0.0, "0"), (0.25, "0.2"), (12.0, "12"), (999.0, "999"), (1234.0, "1.2k"), (5.31e7, "53.1M")] {
            assert_eq!(short(value), text);
        }
        for (ns, text) in [(None, "-"), (Some(151), "151 ns"), (Some(17_000), "17.0 µs"), (Some(2_500_000_000), "2.5 s")] {
            assert_eq!(nanoseconds(ns), text);
        }
    }

    #[test]
    fn this_process_is_not_stopped() {
        assert!(!is_stopped(std::process::id()) && !is_stopped(0));
    }
}
