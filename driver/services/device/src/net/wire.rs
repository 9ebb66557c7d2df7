//! What is said about devices between nodes that share no memory. A tag is the kind of a packet and the number of the sender's stream.

use doorbell_engine::message::words;

pub use words::{read, words};

/// The kinds of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Sender to all: who feeds the device of this name? It is to be me that is fed.
    Open = 1,
    /// Answer: this node does. `[published, granted, message_max, device]`.
    Opened = 2,
    /// Answer: not this node. `[reason, lanes]`
    Refused = 3,
    /// The header packet of a message: `[sequence, thread and length, tag]`, and the first bytes.
    First = 4,
    /// A data packet: more bytes.
    Next = 5,
    /// Feeder to sender: `[published, granted]`.
    Ack = 6,
    /// Sender to feeder: an answer is wanted as soon as there is news.
    Ask = 7,
    /// Sender to feeder: that was all.
    Close = 8,
    /// Feeder to sender: this node feeds it no longer.
    Gone = 9,
}

const KINDS: [Kind; 9] =
    [Kind::Open, Kind::Opened, Kind::Refused, Kind::First, Kind::Next, Kind::Ack, Kind::Ask, Kind::Close, Kind::Gone];

/// Nobody of the asked node is attached to a device of this name, or another node of its machine feeds it.
pub const NOT_HERE: u64 = 0;
/// All lanes of the device are taken.
pub const NO_LANE: u64 = 1;
/// Bytes of a header packet's words.
pub const HEADER: usize = 24;

pub fn tag(kind: Kind, stream: u32) -> u64 {
    words::tag(kind as u8, stream)
}

/// The kind and the number of a packet; `None` if it has none of ours.
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
