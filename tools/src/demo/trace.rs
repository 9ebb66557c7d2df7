//! A timeline of the demo in the Chrome trace event format, made from the flight recorders of its nodes.

mod lanes;

use crate::environment::space;
use crate::exit::{Explain, Failure};
use crate::nodes::priority;
use crate::paths::Output;
use doorbell::{Incarnation, NodeId};
use doorbell_shm::board::{FifoFacts, Record, RecordKind, Recorded};
use doorbell_shm::domain::list_domains;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The records of the nodes, and the file for them.
pub struct Trace {
    output: Output,
    lives: BTreeMap<(NodeId, Incarnation), Life>,
}

/// One incarnation of a node.
#[derive(Default)]
struct Life {
    role: &'static str,
    process: u32,
    /// Names of threads, by their numbers.
    threads: BTreeMap<u32, String>,
    /// By their numbers, so that a record that is read twice counts once.
    records: BTreeMap<u64, Recorded>,
    /// The injection FIFOs that it had, by their numbers.
    fifos: BTreeMap<u16, FifoFacts>,
}

/// A chunk counts as under way for at most this many times as long as others of its kind. The rest was a pause before it.
const LONGEST: f64 = 4.0;

impl Trace {
    /// Checks that the file can be written, before the demo begins.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let hint = "name a regular file, or a new one in a directory of yours";
        let output = Output::at(path).or_usage(format_args!("--trace: cannot write {}", path.display()), hint)?;
        Ok(Self { output, lives: BTreeMap::new() })
    }

    /// Reads the flight recorders of a domain. They hold only the last records, so the demo calls this now and then.
    pub fn gather(&mut self, domain: &str) {
        // A failed read may work the next time, and a timeline with gaps is better than none.
        let domains = list_domains(&space()).unwrap_or_default();
        for node in domains.into_iter().filter(|found| found.name == domain).flat_map(|found| found.nodes) {
            let Some(board) = &node.board else { continue };
            let life = self.lives.entry((node.id, board.incarnation())).or_default();
            if let Some(member) = node.member.filter(|member| member.incarnation == board.incarnation()) {
                (life.role, life.process) = (member.role.word(), member.pid);
            }
            life.fifos.extend(board.board().fifos().into_iter().map(|fifo| (fifo.number as u16, fifo.facts)));
            for recorded in board.board().records() {
                let process = life.process;
                life.threads.entry(recorded.thread).or_insert_with(|| thread_name(process, recorded.thread));
                life.records.insert(recorded.number, recorded);
            }
        }
    }

    /// Writes all records. Returns the number of events.
    pub fn write(self, domain: &str) -> Result<usize, Failure> {
        let mut events = Vec::new();
        let start = self.lives.values().flat_map(|life| life.records.values()).map(|recorded| recorded.time_ns).min();
        let process = |node: NodeId| self.lives.iter().find(|((id, _), _)| *id == node).map(|(_, life)| life.process);
        for ((node, incarnation), life) in &self.lives {
            events.extend(life.names(*node, *incarnation));
            events.extend(life.events(*node, start.unwrap_or_default(), process));
            events.extend(life.lanes(start.unwrap_or_default()));
        }
        let count = events.len();
        let whole = json!({ "traceEvents": events, "displayTimeUnit": "ns", "otherData": { "domain": domain } });
        let written = self.output.write(whole.to_string().as_bytes()).map(|()| count);
        written.or_failed(format_args!("--trace: cannot write {}", self.output.path().display()), "see whether there is room")
    }
}

/// The name of a thread of a living process.
fn thread_name(process: u32, thread: u32) -> String {
    if thread == process {
        return "application".into();
    }
    let name = fs::read_to_string(format!("/proc/{process}/task/{thread}/comm")).unwrap_or_default();
    if name.is_empty() { format!("thread {thread}") } else { name.trim_end().into() }
}

impl Life {
    /// The names of its row and of its tracks.
    fn names(&self, node: NodeId, incarnation: Incarnation) -> Vec<Value> {
        let named = |what: &str, thread: u32, args: Value| json!({ "name": what, "ph": "M", "ts": 0, "pid": self.process, "tid": thread, "args": args });
        let row = format!("node {node}, incarnation {incarnation} ({})", self.role);
        let mut names = vec![
            named("process_name", self.process, json!({ "name": row })),
            named("process_sort_index", self.process, json!({ "sort_index": node.0 })),
        ];
        names.extend(self.threads.iter().map(|(thread, name)| named("thread_name", *thread, json!({ "name": name }))));
        names
    }

    /// The records of messages and of the node: chunks as slices, and all others as moments. The progress of the ends of a message is in the row of its origin, even if
    /// another node moved the chunk.
    fn events(&self, node: NodeId, start: u64, process: impl Fn(NodeId) -> Option<u32>) -> Vec<Value> {
        let spans = self.spans();
        let mut events = Vec::new();
        for recorded in self.records.values().filter(|recorded| !lanes::is_of_lane(&recorded.record)) {
            let Recorded { number, time_ns, thread, record } = *recorded;
            let at = |ns: u64| ns.saturating_sub(start) as f64 / 1e3;
            let args = args(node, &record);
            let Some((name, end)) = chunk(&record) else {
                events.push(json!({
                    "name": record.kind.word(), "cat": "engine", "ph": "i", "s": "t", "ts": at(time_ns), "pid": self.process,
                    "tid": thread, "args": args,
                }));
                continue;
            };
            let span = spans.get(&number).copied().unwrap_or_default();
            let begin = at(time_ns.saturating_sub(span));
            let row = record.peer.filter(|_| record.kind == RecordKind::Pull).and_then(&process).unwrap_or(self.process);
            let track = format!("ends of {}", args["transfer"].as_str().unwrap_or_default());
            events.push(json!({
                "name": name, "cat": "chunk", "ph": "X", "ts": begin, "dur": at(time_ns) - begin, "pid": self.process,
                "tid": thread, "args": args,
            }));
            let reached = if end == FIRST { record.offset.saturating_add(record.bytes) } else { record.offset };
            events.push(json!({
                "name": track, "cat": "chunk", "ph": "C", "ts": at(time_ns), "pid": row, "args": { end: reached },
            }));
        }
        events
    }

    /// How long each chunk was under way, by the numbers of the records. A record is made when its chunk is complete. The chunk began after the
    /// record before it of the same thread, or later if that was long ago.
    fn spans(&self) -> BTreeMap<u64, u64> {
        let mut before: BTreeMap<u32, u64> = BTreeMap::new();
        let mut gaps: Vec<(u64, RecordKind, u64, Option<u64>)> = Vec::new();
        for (number, recorded) in &self.records {
            let gap = before.insert(recorded.thread, recorded.time_ns).map(|then| recorded.time_ns.saturating_sub(then));
            if chunk(&recorded.record).is_some() {
                gaps.push((*number, recorded.record.kind, recorded.record.bytes.max(1), gap));
            }
        }
        let mut usual: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (_, kind, bytes, gap) in &gaps {
            usual.entry(kind.word()).or_default().extend(gap.map(|gap| gap as f64 / *bytes as f64));
        }
        usual.values_mut().for_each(|all| all.sort_by(f64::total_cmp));
        let span = |(number, kind, bytes, gap): (u64, RecordKind, u64, Option<u64>)| {
            let median = usual.get(kind.word()).and_then(|all| all.get(all.len() / 2)).copied().unwrap_or_default();
            let longest = (median * LONGEST * bytes as f64) as u64;
            (number, gap.map_or((median * bytes as f64) as u64, |gap| gap.min(longest)).max(1))
        };
        gaps.into_iter().map(span).collect()
    }
}

/// The beginning of a message, as an end of it.
pub const FIRST: &str = "first end";
const LAST: &str = "last end";

/// The name of a chunk, and the end of its message from which it comes.
pub fn chunk(record: &Record) -> Option<(&'static str, &'static str)> {
    match record.kind {
        // Without a transfer these are messages that waited for room.
        RecordKind::MemoryFifo if record.transfer != 0 => Some(("memory FIFO", FIRST)),
        // Without a priority it is a part of a program's put.
        RecordKind::DirectPut if record.priority.is_some() => Some(("direct put", LAST)),
        RecordKind::Pull => Some(("pull", LAST)),
        _ => None,
    }
}

fn args(node: NodeId, record: &Record) -> Value {
    let mut args = json!({ "offset": record.offset, "bytes": record.bytes });
    if let Some(peer) = record.peer {
        args["peer"] = json!(peer.0);
        // The same words at both ends: the target makes pulls, and the origin all other chunks.
        let (origin, target) = if record.kind == RecordKind::Pull { (peer, node) } else { (node, peer) };
        match chunk(record) {
            Some((_, end)) => {
                args["transfer"] = json!(format!("{origin}->{target} {}", record.transfer));
                args["end"] = json!(end);
            }
            None => args["transfer"] = json!(record.transfer),
        }
    } else if record.kind == RecordKind::CounterZero {
        args = json!({ "counter": record.transfer, "generation": record.offset, "bytes": record.bytes });
    }
    if let Some(found) = record.priority {
        args["priority"] = json!(priority(found));
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell::Priority;

    fn recorded(number: u64, time_ns: u64, kind: RecordKind, offset: u64) -> Recorded {
        let record = Record::new(kind).peer(NodeId(1)).priority(Priority::Low).transfer(65_536).at(offset).bytes(100);
        Recorded { number, time_ns, thread: 7, record }
    }

    #[test]
    fn chunks_begin_where_the_one_before_ended_and_never_span_a_pause() {
        let mut life = Life { process: 7, role: "host", ..Life::default() };
        let records = [
            recorded(1, 1_000, RecordKind::Rts, 0),
            recorded(2, 2_000, RecordKind::MemoryFifo, 0),
            recorded(3, 3_000, RecordKind::MemoryFifo, 100),
            recorded(4, 3_800, RecordKind::DirectPut, 900),
            recorded(5, 90_000, RecordKind::MemoryFifo, 200),
        ];
        life.records = records.into_iter().map(|recorded| (recorded.number, recorded)).collect();
        assert_eq!(life.spans(), BTreeMap::from([(2, 1_000), (3, 1_000), (4, 800), (5, 4_000)]));

        let events = life.events(NodeId(0), 1_000, |_| None);
        let slices: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!((slices.len(), &slices[0]["ts"], &slices[0]["dur"]), (4, &json!(0.0), &json!(1.0)));
        assert_eq!((&slices[2]["name"], &slices[2]["args"]["end"]), (&json!("direct put"), &json!("last end")));
        assert_eq!(slices[2]["args"]["transfer"], "0->1 65536");
        let ends: Vec<_> = events.iter().filter(|event| event["ph"] == "C").map(|event| &event["args"]).collect();
        assert_eq!(ends[1..3], [&json!({ FIRST: 200 }), &json!({ LAST: 900 })]);
    }

    #[test]
    fn a_pull_moves_the_end_in_the_row_of_the_origin() {
        let mut life = Life { process: 8, role: "accelerator", ..Life::default() };
        life.records.insert(1, recorded(1, 1_000, RecordKind::Pull, 300));
        let events = life.events(NodeId(0), 0, |node| (node == NodeId(1)).then_some(7));
        assert_eq!((&events[0]["ph"], &events[0]["pid"], &events[0]["name"]), (&json!("X"), &json!(8), &json!("pull")));
        assert_eq!((&events[1]["ph"], &events[1]["pid"]), (&json!("C"), &json!(7)));
        assert_eq!((&events[1]["name"], &events[1]["args"]), (&json!("ends of 1->0 65536"), &json!({ LAST: 300 })));
    }

    #[test]
    fn both_ends_name_a_transfer_alike() {
        let pull = Record::new(RecordKind::Pull).peer(NodeId(0)).transfer(3);
        let put = Record::new(RecordKind::DirectPut).peer(NodeId(1)).priority(Priority::Low).transfer(3);
        assert_eq!(args(NodeId(1), &pull)["transfer"], args(NodeId(0), &put)["transfer"]);
    }
}
