//! How a long message moves from both of its ends, as the flight recorders of its two nodes tell it.

use crate::demo::trace::{FIRST, chunk};
use crate::environment::space;
use crate::experiment::Setting;
use crate::experiment::place::pin;
use crate::guard::Guard;
use doorbell::mode::{Fabric, ModeRequest, Protocol};
use doorbell::{Error, Match, Node, NodeId};
use doorbell_shm::board::Recorded;
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

/// No chart, and why. The reason names no path, because people send the page to each other.
fn nothing() -> Ends {
    let trouble = "two nodes of one process could not exchange a long message, so there is no chart of it".to_owned();
    Ends { trouble: Some(trouble), ..Ends::default() }
}

/// Sends a message from one node of this process to another, in the domain of this setting, and reads how it moved.
pub fn look(setting: &Setting) -> Ends {
    let Ok(guard) = Guard::start(&setting.domain) else { return nothing() };
    let moved = send(setting).inspect_err(|error| tracing::debug!(%error, "a long message could not be sent"));
    // Both nodes have left.
    drop(guard);
    moved.unwrap_or_else(|_| nothing())
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
    Ok(ends(&records(origin), &records(target)).unwrap_or_else(nothing))
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

/// The progress of the message that moved last, as far as the flight recorders still have it.
fn ends(origin: &[Recorded], target: &[Recorded]) -> Option<Ends> {
    let all = || origin.iter().chain(target).filter_map(|found| Some((found, chunk(&found.record)?.1)));
    let (last, _) = all().max_by_key(|(found, _)| found.time_ns)?;
    let mut chunks: Vec<_> = all().filter(|(found, _)| found.record.transfer == last.record.transfer).collect();
    chunks.sort_by_key(|(found, _)| found.time_ns);
    let begin = chunks.first()?.0.time_ns;
    let mut ends = Ends { first: vec![(0.0, 0.0)], last: vec![(0.0, BYTES as f64)], trouble: None };
    for (Recorded { time_ns, record, .. }, end) in chunks {
        let at = (time_ns - begin) as f64;
        match end {
            FIRST => ends.first.push((at, record.offset.saturating_add(record.bytes) as f64)),
            _ => ends.last.push((at, record.offset as f64)),
        }
    }
    Some(ends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell::Priority;
    use doorbell_shm::board::{Record, RecordKind};

    #[test]
    fn the_ends_of_the_message_that_moved_last_are_told_apart() {
        let recorded = |time_ns, kind, transfer, offset| Recorded {
            number: time_ns,
            time_ns,
            thread: 1,
            record: Record::new(kind).peer(NodeId(1)).priority(Priority::Low).transfer(transfer).at(offset).bytes(100),
        };
        let origin = [
            recorded(10, RecordKind::Rts, 7, 0),
            recorded(20, RecordKind::MemoryFifo, 7, 0),
            recorded(1005, RecordKind::Rts, 8, 0),
            recorded(1010, RecordKind::MemoryFifo, 8, 0),
            recorded(1030, RecordKind::DirectPut, 8, 800),
            recorded(1040, RecordKind::Completed, 9, 0),
        ];
        let target = [recorded(30, RecordKind::Pull, 7, 900), recorded(1000, RecordKind::Pull, 8, 900)];
        let Ends { first, last, .. } = ends(&origin, &target).unwrap();
        assert_eq!(first, [(0.0, 0.0), (10.0, 100.0)]);
        assert_eq!(last, [(0.0, BYTES as f64), (0.0, 900.0), (30.0, 800.0)]);
        assert!(ends(&[], &target).is_some() && ends(&[], &[]).is_none());
    }
}
