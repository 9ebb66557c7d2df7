//! The packets of devices and streams between nodes: the tag has the kind and the number of an end, and the payload consists of
//! words.

use doorbell_fabric::Payload;
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// A kind of packets: an enum whose values are bytes.
pub trait Kind: TryFromBytes + IntoBytes + Immutable + KnownLayout {}

impl<K: TryFromBytes + IntoBytes + Immutable + KnownLayout> Kind for K {}

/// The tag of a packet of this kind for the end with this number.
pub fn tag(kind: impl Kind, number: u32) -> u64 {
    let kind = kind.as_bytes().iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
    kind << 56 | u64::from(number)
}

/// The packet's kind and the number of its end. `None` if no packet has such a tag.
pub fn parse<K: Kind>(tag: u64) -> Option<(K, u32)> {
    let kind = K::try_read_from_bytes(&[(tag >> 56) as u8]).ok()?;
    (tag >> 32 & 0xff_ffff == 0).then_some((kind, tag as u32))
}

/// Encodes words as bytes.
pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The first `N` words of a payload, if it has that many.
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

    #[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(u8)]
    enum Letter {
        A = 1,
        B = 2,
        C = 3,
    }

    #[test]
    fn tags_are_read_as_they_are_written() {
        for kind in [Letter::A, Letter::B, Letter::C] {
            assert_eq!(tag(kind, 7), (kind as u64) << 56 | 7);
            assert_eq!(parse(tag(kind, u32::MAX)), Some((kind, u32::MAX)));
        }
        for odd in [0, 4 << 56, 1 << 56 | 1 << 40, u64::MAX] {
            assert_eq!(parse::<Letter>(odd), None);
        }
        let bytes = words(&[1, u64::MAX]);
        assert_eq!(read::<2>(&Payload::private(&bytes)), Some([1, u64::MAX]));
        assert_eq!(read::<3>(&Payload::private(&bytes)), None);
    }
}
