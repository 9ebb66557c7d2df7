//! The packets between nodes about streams. A tag holds the kind of a packet and a number: the receiver's number of its end of
//! the stream, except in `Open`.

pub use doorbell_engine::kit::words::{parse, read, tag, words};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// The kinds of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(u8)]
pub enum Kind {
    /// A connecting node asks for a stream to the service of this name. The tag holds the sender's number. Payload: `[region,
    /// offset, ring]`, name; without shared memory `[0, 0, window]`, name.
    Open = 1,
    /// The stream was queued for acceptance. `[number of the listener's end]`
    Accepted = 2,
    /// The stream was refused. `[reason]`
    Refused = 3,
    /// The shared memory has changed, and the receiver waits for that.
    Wake = 4,
    /// Bytes of the stream, without shared memory.
    Data = 5,
    /// Allows the receiver to send this many more bytes. `[bytes]`
    Credit = 6,
    /// No more bytes will follow.
    Fin = 7,
    /// The sender has dropped its end, and reads no more bytes.
    Reset = 8,
    /// As `Reset`, but the stream was aborted: more bytes were to follow.
    Cut = 9,
    /// The sender reads no more bytes, without shared memory. It may still write.
    Deaf = 10,
}

/// No listener offers the service on this node.
pub const NOT_HERE: u64 = 0;
/// The backlog is full.
pub const BUSY: u64 = 1;
/// The offered memory can't be used.
pub const NO_MEMORY: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_numbers() {
        for number in 0..=255_u64 {
            let parsed = parse::<Kind>(number << 56 | 7);
            assert_eq!(parsed.is_some(), (1..=Kind::Deaf as u64).contains(&number));
            assert!(parsed.is_none_or(|(kind, of)| (kind as u64, of) == (number, 7) && tag(kind, of) == number << 56 | 7));
        }
    }
}
