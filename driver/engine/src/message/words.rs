//! The packets of devices and streams between nodes: the tag has the kind and the number of an end, and the payload consists of
//! words.

use doorbell_fabric::Payload;

/// The tag of a packet of this kind for the end with this number.
pub fn tag(kind: u8, number: u32) -> u64 {
    u64::from(kind) << 56 | u64::from(number)
}

/// The packet's kind, numbered from 1 within `kinds`, and the number of its end. `None` if it has none of these kinds.
pub fn parse<K: Copy>(kinds: &[K], tag: u64) -> Option<(K, u32)> {
    let kind = *kinds.get(((tag >> 56) as usize).checked_sub(1)?)?;
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

    #[test]
    fn tags_are_read_as_they_are_written() {
        let kinds = ['a', 'b', 'c'];
        for (at, kind) in kinds.into_iter().enumerate() {
            assert_eq!(parse(&kinds, tag(at as u8 + 1, u32::MAX)), Some((kind, u32::MAX)));
        }
        for odd in [0, 4 << 56, 1 << 56 | 1 << 40, u64::MAX] {
            assert_eq!(parse(&kinds, odd), None);
        }
        let bytes = words(&[1, u64::MAX]);
        assert_eq!(read::<2>(&Payload::private(&bytes)), Some([1, u64::MAX]));
        assert_eq!(read::<3>(&Payload::private(&bytes)), None);
    }
}
