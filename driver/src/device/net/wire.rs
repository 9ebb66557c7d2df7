//! What is said about devices between nodes that share no memory. A tag is the kind of a packet and the number of the sender's stream.

use doorbell_fabric::Payload;

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
    (kind as u64) << 56 | stream as u64
}

/// The kind and the stream of a packet; `None` if it has none of ours.
pub fn parse(tag: u64) -> Option<(Kind, u32)> {
    let kind = *KINDS.get(((tag >> 56) as usize).checked_sub(1)?)?;
    (tag >> 32 & 0xff_ffff == 0).then_some((kind, tag as u32))
}

/// Some words as bytes.
pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The first `N` words of a payload, if it has so many.
pub fn read<const N: usize>(payload: &Payload<'_>) -> Option<[u64; N]> {
    let mut found = [0; N];
    for (at, word) in found.iter_mut().enumerate() {
        *word = u64::from_le(payload.u64_at(8 * at)?);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_as_they_are_written() {
        for kind in KINDS {
            assert_eq!(parse(tag(kind, u32::MAX)), Some((kind, u32::MAX)));
        }
        for odd in [0, 10 << 56, 1 << 56 | 1 << 40, u64::MAX] {
            assert_eq!(parse(odd), None);
        }
        let bytes = words(&[1, u64::MAX]);
        assert_eq!(read::<2>(&Payload::private(&bytes)), Some([1, u64::MAX]));
        assert_eq!(read::<3>(&Payload::private(&bytes)), None);
    }
}
