//! The packets about devices between nodes that share no memory. A tag holds the kind of a packet and the number of the
//! sender's stream.

use doorbell_engine::message::words;

pub use words::{read, words};

/// The kinds of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

const KINDS: [Kind; 9] =
    [Kind::Open, Kind::Opened, Kind::Refused, Kind::First, Kind::Next, Kind::Ack, Kind::Ask, Kind::Close, Kind::Gone];

/// The asked node is not attached to a device of this name, or another node of its machine serves it.
pub const NOT_HERE: u64 = 0;
/// All lanes of the device are taken.
pub const NO_LANE: u64 = 1;
/// The length of a header packet's words, in bytes.
pub const HEADER: usize = 24;

pub fn tag(kind: Kind, stream: u32) -> u64 {
    words::tag(kind as u8, stream)
}

/// The kind and the number in a tag; `None` if the tag is not valid.
pub fn parse(tag: u64) -> Option<(Kind, u32)> {
    words::parse(&KINDS, tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_numbers() {
        for kind in KINDS {
            assert_eq!(parse(tag(kind, 7)), Some((kind, 7)));
        }
    }
}
