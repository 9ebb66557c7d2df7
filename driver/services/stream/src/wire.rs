//! What is said about streams between nodes. A tag is the kind of a packet and a number: that of whoever it goes to, by its own books.

use doorbell_engine::message::words;

pub use words::{read, words};

/// The kinds of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// StreamBuilder to listener: a stream to the service of this name? The tag has the connector's number. `[region, offset, ring]`, name; without
    /// common memory `[0, 0, window]`.
    Open = 1,
    /// Answer: it is there. `[number of the listener's end]`
    Accepted = 2,
    /// Answer: it is not. `[reason]`
    Refused = 3,
    /// Something changed in the common memory for which the other side waits.
    Wake = 4,
    /// Bytes, where there is no common memory.
    Data = 5,
    /// So many more bytes may be sent. `[bytes]`
    Credit = 6,
    /// No more bytes come.
    Fin = 7,
    /// This end is gone, and reads nothing any more.
    Reset = 8,
    /// The same, and there were to be more bytes.
    Cut = 9,
    /// This end reads nothing any more, where there is no common memory; it may still write.
    Deaf = 10,
}

const KINDS: [Kind; 10] = [
    Kind::Open,
    Kind::Accepted,
    Kind::Refused,
    Kind::Wake,
    Kind::Data,
    Kind::Credit,
    Kind::Fin,
    Kind::Reset,
    Kind::Cut,
    Kind::Deaf,
];

/// Nobody listens for this service here.
pub const NOT_HERE: u64 = 0;
/// As many connectors wait as may.
pub const BUSY: u64 = 1;
/// What was offered as common memory can't be used.
pub const NO_MEMORY: u64 = 2;

pub fn tag(kind: Kind, number: u32) -> u64 {
    words::tag(kind as u8, number)
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
