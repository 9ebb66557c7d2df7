//! How a long message moves from both of its ends, as the flight recorders of its two nodes tell it.

use crate::demo::trace::{FIRST, chunk};
use crate::environment::space;
use crate::exit::Explain;
use crate::experiment::Setting;
use crate::experiment::place::pin;
use crate::guard::Guard;
use doorbell::mode::{Fabric, ModeRequest, Protocol};
use doorbell::{Error, Match, Node, NodeId};
use doorbell_shm::board::{RecordKind, Recorded};
use doorbell_shm::domain::list_domains;

/// The length of the message: the memory FIFO gets a share of it, which it does not of a shorter one.
pub const BYTES: usize = 16 << 20;
/// The messages before it find the memory of both nodes mapped, and their threads awake.
const WARMUP: usize = 3;
const TAG: u64 = 1;

/// The progress of one message: for each chunk the nanoseconds since the message began, and the place up to which its end has come.
#[derive(Debug, Default)]
pub struct Ends {
    /// From its beginning.
    pub first: Vec<(f64, f64)>,
    /// From its end.
    pub last: Vec<(f64, f64)>,
    /// Why there is nothing to see.
    pub trouble: Option<String>,
}

/// Sends a message from one node of this process to another, in the domain of this setting, and reads how it moved.
pub fn look(setting: &Setting) -> Ends {
    let moved = Guard::start(&setting.domain).and_then(|guard| {
        let moved = send(setting).or_failed("cannot show how a long message moves", "see `doorbell info`");
        // Both nodes have left.
        drop(guard);
        moved
    });
    moved.unwrap_or_else(|failure| Ends { trouble: Some(failure.plain()), ..Ends::default() })
}

fn send(setting: &Setting) -> Result<Ends, Error> {
    let [a, b] = [setting.builder("origin")?.join()?, setting.builder("target")?.join()?];
    let (origin, target) = (a.id(), b.id());
    // The node of one that fails leaves, which ends the other's wait.
    let (poured, taken) = std::thread::scope(|scope| {
        let start = |place, act: Box<dyn FnOnce() -> Result<Node, Error> + Send>| {
            scope.spawn(move || {
                // Without its processor the chart is less steady, and no less true.
                let _ = pin(setting.processor(place));
                act()
            })
        };
        let both = [start(0, Box::new(move || pour(a, target))), start(1, Box::new(move || take(b, origin)))];
        let [poured, taken] = both.map(|thread| thread.join().unwrap_or(Err(Error::Cancelled)));
        (poured, taken)
    });
    // Until their records are read, neither node leaves. The sender knows best why both failed.
    let _nodes = (poured?, taken?);
    let domain = list_domains(&space())?.into_iter().find(|domain| domain.name == setting.domain);
    let nodes = domain.map_or_else(Vec::new, |domain| domain.nodes);
    let records = |id: NodeId| -> Vec<Recorded> {
        let boards = nodes.iter().filter(|node| node.id == id).filter_map(|node| node.board.as_ref());
        boards.flat_map(|board| board.board().records()).collect()
    };
    Ok(ends(&records(origin), &records(target)))
}

/// Sends the messages from a region. Returns the node.
fn pour(node: Node, target: NodeId) -> Result<Node, Error> {
    let region = node.region::<u8>(BYTES)?;
    // SAFETY: no thread writes to the region, and no other node has a key.
    let message = unsafe { region.as_slice() };
    for _ in 0..=WARMUP {
        node.send_as(target, TAG, message, ModeRequest::fabric(Fabric::Shm).protocol(Protocol::Both))?;
    }
    Ok(node)
}

/// Receives the messages into a region. Returns the node.
fn take(node: Node, origin: NodeId) -> Result<Node, Error> {
    let region = node.region::<u8>(BYTES)?;
    // SAFETY: no other code has this slice, and the sender writes only into the buffer of a receive.
    let into = unsafe { region.as_mut_slice() };
    for _ in 0..=WARMUP {
        node.recv(Match::from(origin), into)?;
    }
    Ok(node)
}

/// The progress of the last message that the origin sent.
fn ends(origin: &[Recorded], target: &[Recorded]) -> Ends {
    let Some(last) = origin.iter().filter(|found| found.record.kind == RecordKind::Rts).max_by_key(|found| found.time_ns) else {
        return Ends::default();
    };
    let mut chunks: Vec<&Recorded> =
        origin.iter().chain(target).filter(|found| found.record.transfer == last.record.transfer).collect();
    chunks.sort_by_key(|found| found.time_ns);
    // The target may be faster than the origin's record of the RTS.
    let begin = chunks.first().map_or(0, |first| first.time_ns);
    let mut ends = Ends { first: vec![(0.0, 0.0)], last: vec![(0.0, BYTES as f64)], trouble: None };
    for Recorded { time_ns, record, .. } in chunks {
        let at = (time_ns - begin) as f64;
        match chunk(record) {
            Some((_, FIRST)) => ends.first.push((at, record.offset.saturating_add(record.bytes) as f64)),
            Some(_) => ends.last.push((at, record.offset as f64)),
            None => {}
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell::Priority;
    use doorbell_shm::board::Record;

    #[test]
    fn the_ends_of_the_last_message_are_told_apart() {
        let recorded = |time_ns, kind, transfer, offset| Recorded {
            number: time_ns,
            time_ns,
            thread: 1,
            record: Record::new(kind).peer(NodeId(1)).priority(Priority::Low).transfer(transfer).at(offset).bytes(100),
        };
        let origin = [
            recorded(10, RecordKind::Rts, 7, 0),
            recorded(20, RecordKind::MemoryFifo, 7, 0),
            recorded(1000, RecordKind::Rts, 8, 0),
            recorded(1010, RecordKind::MemoryFifo, 8, 0),
            recorded(1030, RecordKind::DirectPut, 8, 800),
            recorded(1040, RecordKind::MemoryFifo, 9, 0),
        ];
        let target = [recorded(30, RecordKind::Pull, 7, 900), recorded(1020, RecordKind::Pull, 8, 900)];
        let Ends { first, last, .. } = ends(&origin, &target);
        assert_eq!(first, [(0.0, 0.0), (10.0, 100.0)]);
        assert_eq!(last, [(0.0, BYTES as f64), (20.0, 900.0), (30.0, 800.0)]);
        assert!(ends(&[], &target).first.is_empty());
    }
}
