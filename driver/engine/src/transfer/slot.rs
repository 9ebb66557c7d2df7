//! The kinds of descriptors in injection FIFOs, and the words of those that the engine injects for messages.

use crate::message::service::PeerId;
use doorbell_fabric::NodeId;
use doorbell_shm::board::DescriptorWords;
use strum::FromRepr;

/// The kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRepr, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
#[repr(u8)]
pub enum Kind {
    /// A message of the engine that begins with a request to send, and its memory FIFO.
    Rts = 1,
    /// A packet for a reception FIFO.
    Packet = 2,
    /// A put.
    DirectPut = 3,
    /// A put that another node's engine is to execute. The put is in the next slot.
    RemoteGet = 4,
    /// The direct put of a message of the engine.
    Rendezvous = 5,
    /// The put of the remote get in the slot before.
    Body = 6,
}

/// A descriptor as a tool shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Its kind.
    pub kind: Kind,
    /// The node that gets the bytes, or that executes a remote get.
    pub to: NodeId,
    /// The number of bytes that it moves; 0 for a remote get, whose put is in the next slot.
    pub len: u64,
}

impl Shown {
    /// Reads the words of a slot on a board, which another process may have overwritten. `None` if they are no descriptor.
    pub fn of(words: &DescriptorWords) -> Option<Self> {
        let kind = Kind::from_repr(words[0] as u8)?;
        Some(Self { kind, to: NodeId((words[0] >> 16) as u16), len: words[3] & LEN_MASK })
    }
}

/// Bits of a word that hold a length. The others hold the low bits of a counter's generation.
pub const LEN_BITS: u32 = 44;
/// The bits of a length.
pub const LEN_MASK: u64 = (1 << LEN_BITS) - 1;

/// The slot of a message that the engine moves from both ends.
pub(crate) fn message_words(kind: Kind, to: PeerId, transfer: u64, len: u64) -> DescriptorWords {
    let mut words = [0; 8];
    words[0] = kind as u64 | u64::from(to.node.0) << 16;
    words[1] = u64::from(to.incarnation.0);
    words[3] = len;
    words[5] = transfer;
    words
}
