//! The tracks of a node's injection FIFOs, and the values of its DMA counters.

use super::Life;
use crate::nodes::priority;
use crate::text::bytes;
use doorbell_engine::transfer::slot::Kind;
use doorbell_shm::board::{FifoFacts, Injector, Record, RecordKind, Recorded};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The number of the first FIFO's track: above those of all threads.
const TRACKS: u32 = 1 << 24;

/// A descriptor that was executed.
struct Executed {
    fifo: u16,
    kind: Kind,
    began: u64,
    ended: u64,
    /// The record of its end.
    record: Record,
    /// The bytes that it moved, or had moved.
    bytes: u64,
    thread: u32,
}

/// Whether a record is shown here alone.
pub(super) fn is_of_lane(record: &Record) -> bool {
    let is_part = record.kind == RecordKind::DirectPut && record.priority.is_none();
    is_part || descriptor(record).is_some() || matches!(record.kind, RecordKind::CounterSet | RecordKind::CounterLowered)
}

/// The kind of a program's descriptor that was executed.
fn descriptor(record: &Record) -> Option<Kind> {
    match record.kind {
        RecordKind::DmaPut => Some(Kind::DirectPut),
        RecordKind::DmaPacket => Some(Kind::Packet),
        RecordKind::DmaRemoteGet => Some(Kind::RemoteGet),
        _ => None,
    }
}

/// The value of a counter after a record, and the counter's index.
fn counted(record: &Record) -> Option<(u64, u64)> {
    let value = match record.kind {
        RecordKind::CounterSet => record.bytes,
        RecordKind::CounterLowered => record.offset,
        RecordKind::CounterZero => 0,
        _ => return None,
    };
    Some((record.transfer, value))
}

impl Life {
    /// The descriptors of all FIFOs as slices, each FIFO with a track, and the values of counters.
    pub(super) fn lanes(&self, start: u64) -> Vec<Value> {
        let at = |ns: u64| ns.saturating_sub(start) as f64 / 1e3;
        let mut events = Vec::new();
        let mut executed = self.descriptors();
        executed.extend(self.messages());
        executed.sort_by_key(|executed| (executed.fifo, executed.ended, executed.began));
        let mut free: BTreeMap<u16, u64> = BTreeMap::new();
        for Executed { fifo, kind, began, ended, record, bytes: moved, thread } in executed {
            let track = TRACKS + u32::from(fifo);
            let facts = self.fifos.get(&fifo);
            if !free.contains_key(&fifo) {
                let args = json!({ "name": track_name(fifo, facts) });
                events
                    .push(json!({ "name": "thread_name", "ph": "M", "ts": 0, "pid": self.process, "tid": track, "args": args }));
            }
            // Slices of a track may not overlap, and the descriptors for several nodes may.
            let begin = began.max(free.get(&fifo).copied().unwrap_or_default());
            let end = ended.max(begin + 1);
            free.insert(fifo, end);
            let mut args = json!({
                "fifo": facts.map_or("", |facts| facts.name.as_str()),
                "number": fifo,
                "bytes": moved,
                "peer": record.peer.map(|peer| peer.0),
                "took_us": ended.saturating_sub(began) as f64 / 1e3,
                "thread": self.threads.get(&thread),
            });
            if let Some(found) = facts.map(|facts| facts.priority).or(record.priority) {
                args["priority"] = json!(priority(found));
            }
            if descriptor(&record).is_some() {
                args["position"] = json!(record.place().1);
            }
            for (name, index) in ["send_counter", "receive_counter"].into_iter().zip(record.counters) {
                index.into_iter().for_each(|index| args[name] = json!(index));
            }
            events.push(json!({
                "name": format!("{} {}", <&str>::from(kind), bytes(moved)), "cat": "descriptor", "ph": "X", "ts": at(begin),
                "dur": at(end) - at(begin), "pid": self.process, "tid": track, "args": args,
            }));
        }
        for Recorded { time_ns, record, .. } in self.records.values() {
            let Some((index, value)) = counted(record) else { continue };
            events.push(json!({
                "name": format!("counter {index}"), "cat": "counter", "ph": "C", "ts": at(*time_ns), "pid": self.process,
                "args": { "bytes left": value },
            }));
        }
        events
    }

    /// The descriptors of programs and of other nodes.
    fn descriptors(&self) -> Vec<Executed> {
        let executed = |recorded: &Recorded| {
            let Recorded { time_ns: ended, thread, record, .. } = *recorded;
            let (fifo, _) = record.place();
            let began = ended.saturating_sub(record.offset);
            Some(Executed { fifo, kind: descriptor(&record)?, began, ended, record, bytes: record.bytes, thread })
        };
        self.records.values().filter_map(executed).collect()
    }

    /// The descriptors of messages that were moved from both ends: a request to send until the message is complete, and its direct put.
    fn messages(&self) -> Vec<Executed> {
        let spans = self.spans();
        let mut found: BTreeMap<_, (u64, Option<Executed>, Option<Executed>)> = BTreeMap::new();
        for Recorded { number, time_ns: ended, thread, record } in self.records.values().copied() {
            let (Some(peer), Some(priority)) = (record.peer, record.priority) else { continue };
            let is_put = record.kind == RecordKind::DirectPut;
            let is_its = is_put || matches!(record.kind, RecordKind::Rts | RecordKind::MemoryFifo | RecordKind::Completed);
            if !is_its || record.transfer == 0 {
                continue;
            }
            let began = ended.saturating_sub(spans.get(&number).copied().unwrap_or_default());
            let (first, message, put) = found.entry((peer, record.transfer)).or_insert((began, None, None));
            // The put came with a remote get, which is urgent.
            let priority = if is_put { doorbell::Priority::High } else { priority };
            let is_its = |facts: &FifoFacts| facts.injector == Injector::Engine && facts.priority == priority;
            let Some(fifo) = self.fifos.iter().find(|(_, facts)| is_its(facts)).map(|(fifo, _)| *fifo) else { continue };
            if is_put {
                let kind = Kind::Rendezvous;
                let put = put.get_or_insert(Executed { fifo, kind, began, ended, record, bytes: 0, thread });
                (put.ended, put.bytes) = (ended, put.bytes.saturating_add(record.bytes));
            } else if record.kind == RecordKind::Completed {
                let (kind, bytes) = (Kind::Rts, record.bytes);
                *message = Some(Executed { fifo, kind, began: *first, ended, record, bytes, thread });
            }
        }
        found.into_values().flat_map(|(_, message, put)| message.into_iter().chain(put)).collect()
    }
}

fn track_name(fifo: u16, facts: Option<&FifoFacts>) -> String {
    match facts {
        Some(facts) => format!("FIFO {fifo} '{}' ({})", facts.name, priority(facts.priority)),
        None => format!("FIFO {fifo}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell::{NodeId, Priority};

    fn life(records: &[(u64, Record)]) -> Life {
        let mut life = Life { process: 7, role: "host", ..Life::default() };
        let facts = |name: &str, injector| FifoFacts { name: name.into(), injector, priority: Priority::High };
        life.fifos = [(1, facts("messages", Injector::Engine)), (4, facts("walk", Injector::Program))].into();
        life.threads.insert(7, "application".into());
        for (number, (time_ns, record)) in (1..).zip(records.iter().copied()) {
            life.records.insert(number, Recorded { number, time_ns, thread: 7, record });
        }
        life
    }

    fn put(position: u64, took: u64) -> Record {
        Record::new(RecordKind::DmaPut).peer(NodeId(2)).placed(4, position).at(took).bytes(8192).counters([None, Some(3)])
    }

    #[test]
    fn each_fifo_has_a_track_and_its_slices_never_overlap() {
        let part = Record::new(RecordKind::DirectPut).peer(NodeId(2)).placed(4, 1).bytes(4096);
        let get =
            Record::new(RecordKind::DmaRemoteGet).peer(NodeId(1)).placed(4, 2).at(900).bytes(5 << 20).counters([Some(0), None]);
        let events = life(&[(5_000, put(0, 3_000)), (5_500, part), (6_000, put(1, 3_500)), (6_000, get)]).lanes(1_000);
        let [name, first, second, third] = &events[..] else { panic!("{events:?}") };
        assert_eq!((&name["args"]["name"], &name["tid"]), (&json!("FIFO 4 'walk' (high)"), &first["tid"]));
        assert_eq!((&first["name"], &first["ts"], &first["dur"]), (&json!("direct-put 8 KiB"), &json!(1.0), &json!(3.0)));
        assert_eq!(
            first["args"],
            json!({ "fifo": "walk", "number": 4, "bytes": 8192, "peer": 2, "took_us": 3.0, "thread": "application",
                    "priority": "high", "position": 0, "receive_counter": 3 })
        );
        assert_eq!((&second["ts"], &second["dur"], &second["args"]["took_us"]), (&json!(4.0), &json!(1.0), &json!(3.5)));
        assert_eq!((&third["name"], &third["args"]["send_counter"]), (&json!("remote-get 5 MiB"), &json!(0)));
        assert!(third["ts"].as_f64() >= Some(5.0) && third["dur"].as_f64() > Some(0.0), "{third}");
    }

    #[test]
    fn a_message_has_two_descriptors() {
        let of = |kind, bytes| Record::new(kind).peer(NodeId(1)).priority(Priority::High).transfer(9).bytes(bytes);
        let records = [
            (1_000, of(RecordKind::Rts, 300)),
            (2_000, of(RecordKind::MemoryFifo, 100)),
            (3_000, of(RecordKind::DirectPut, 100)),
            (4_000, of(RecordKind::DirectPut, 100)),
            (4_500, of(RecordKind::Completed, 300)),
        ];
        let found = life(&records).messages();
        let found: Vec<_> = found.iter().map(|found| (found.kind, found.fifo, found.began, found.ended, found.bytes)).collect();
        assert_eq!(found, [(Kind::Rts, 1, 1_000, 4_500, 300), (Kind::Rendezvous, 1, 2_000, 4_000, 200)]);
    }

    #[test]
    fn a_counter_has_a_value_after_each_record() {
        let of = |kind| Record::new(kind).transfer(3);
        let records = [
            (1_000, of(RecordKind::CounterSet).bytes(900)),
            (2_000, of(RecordKind::CounterLowered).at(400).bytes(500)),
            (3_000, of(RecordKind::CounterZero).at(17).bytes(900)),
        ];
        let events = life(&records).lanes(0);
        assert!(events.iter().all(|event| event["ph"] == "C" && event["name"] == "counter 3" && event["pid"] == 7));
        let values: Vec<_> = events.iter().map(|event| event["args"]["bytes left"].as_u64().unwrap()).collect();
        assert_eq!(values, [900, 400, 0]);
    }
}
