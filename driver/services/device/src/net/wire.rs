//! The packets about devices between nodes that share no memory. A tag holds the kind of a packet and the number of the
//! sender's stream.

pub use doorbell_engine::kit::words::{parse, read, tag, words};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// The kinds of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(u8)]
pub enum Kind {
    /// Sender to all nodes: asks which of them serves the device of this name, and for a stream to it.
    Open = 1,
    /// The answer of the serving node. `[published, granted, message_max, device]`
    Opened = 2,
    /// The answer of a node that does not serve it. `[reason, lanes]`
    Refused = 3,
    /// The header packet of a message: `[sequence, thread and length, tag]`, and the first bytes.
    First = 4,
    /// A data packet: more bytes of the message.
    Next = 5,
    /// Serving node to sender: `[published, granted]`.
    Ack = 6,
    /// Sender to serving node: asks for an `Ack` as soon as its numbers change.
    Ask = 7,
    /// Sender to serving node: the stream ends.
    Close = 8,
    /// Serving node to sender: this node does not serve it any more.
    Gone = 9,
}

/// The asked node is not attached to a device of this name, or another node of its machine serves it.
pub const NOT_HERE: u64 = 0;
/// All lanes of the device are taken.
pub const NO_LANE: u64 = 1;
/// The length of a header packet's words, in bytes.
pub const HEADER: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_numbers() {
        for number in 0..=255_u64 {
            let parsed = parse::<Kind>(number << 56 | 7);
            assert_eq!(parsed.is_some(), (1..=Kind::Gone as u64).contains(&number));
            assert!(parsed.is_none_or(|(kind, of)| (kind as u64, of) == (number, 7) && tag(kind, of) == number << 56 | 7));
        }
    }
}
