//! The packets of the DMA engine between two nodes.

use crate::error::{Error, KeyFault};
use crate::message::service::PeerId;
use crate::message::words::read;
use doorbell_fabric::Payload;
use strum::FromRepr;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRepr)]
#[repr(u8)]
pub enum Step {
    /// A packet for a reception FIFO.
    Packet = 1,
    /// A part of a direct put, for a node that shares no memory.
    Put = 2,
    /// A put for an injection FIFO.
    RemoteGet = 3,
    /// A reply: bytes of a put are in place, or a descriptor failed.
    Reply = 4,
    /// Bytes were moved for a counter.
    Lower = 5,
}

/// The name of a descriptor in its node: a FIFO, and a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The number of the FIFO.
    pub fifo: u16,
    /// The position, without its upper bits.
    pub position: u64,
}

const POSITION_MASK: u64 = (1 << 40) - 1;

impl Name {
    /// The name of a position.
    pub fn new(fifo: usize, position: u64) -> Self {
        Self { fifo: fifo as u16, position: position & POSITION_MASK }
    }
}

/// The tag of a packet about a descriptor.
pub fn tag(step: Step, name: Name) -> u64 {
    (step as u64) << 56 | u64::from(name.fifo) << 40 | name.position
}

/// Decodes a tag.
pub fn parse(tag: u64) -> Option<(Step, Name)> {
    let step = Step::from_repr((tag >> 56) as u8)?;
    Some((step, Name { fifo: (tag >> 40) as u16, position: tag & POSITION_MASK }))
}

/// How a descriptor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRepr)]
#[repr(u8)]
pub enum Status {
    /// The bytes are in place.
    Fine = 0,
    /// A region was withdrawn or never existed.
    Stale = 1,
    /// A key's secret is wrong.
    Forged = 2,
    /// A place reaches beyond its region.
    OutOfRange = 3,
    /// A region was truncated.
    Cut = 4,
    /// The target has no such FIFO.
    NoFifo = 5,
    /// The descriptor is none.
    Malformed = 6,
    /// Another process overwrote the descriptor.
    Overwritten = 7,
    /// The node that was to execute a remote get could not reach its target.
    Unreachable = 8,
}

impl Status {
    /// The error of a descriptor that concerns this node.
    pub fn error(self, operation: &'static str, peer: PeerId, fifo: u16) -> Error {
        let node = peer.node;
        let key = |why| Error::Key { operation, node: Some(node), why };
        let what = match self {
            Status::Stale => return key(KeyFault::Stale),
            Status::Forged => return key(KeyFault::Forged),
            Status::OutOfRange => return key(KeyFault::OutOfRange),
            Status::Cut => return Error::Damaged { node },
            Status::NoFifo => {
                format!(
                    "a {operation} names FIFO {fifo} of node {node}, which has none of that number for it; ask that node for its key"
                )
            }
            Status::Overwritten => {
                "another process overwrote a descriptor on this node's board; it was not executed; inject it again".to_owned()
            }
            Status::Unreachable => format!("node {node} could not reach the target of a put that it was to execute"),
            Status::Fine | Status::Malformed => "a slot of an injection FIFO holds no descriptor".to_owned(),
        };
        Error::Invalid { what }
    }
}

/// Appends words to a packet.
pub fn put(room: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| room.extend_from_slice(&word.to_le_bytes()));
}

/// The first `N` words of a payload, and the bytes behind them. `None` if it is too short.
pub fn split<const N: usize>(payload: Payload<'_>) -> Option<([u64; N], Payload<'_>)> {
    let words = read::<N>(&payload)?;
    Some((words, payload.slice(8 * N, payload.len() - 8 * N)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_as_they_are_written() {
        for step in [Step::Packet, Step::Put, Step::RemoteGet, Step::Reply, Step::Lower] {
            let name = Name::new(77, u64::MAX - 3);
            assert_eq!(parse(tag(step, name)), Some((step, name)));
        }
        assert_eq!((parse(0), parse(6 << 56)), (None, None));
    }
}
