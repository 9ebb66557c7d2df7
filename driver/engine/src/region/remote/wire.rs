//! The packets of puts, gets and updates between two engines. The contents are checked before they are used.

use doorbell_fabric::{Incarnation, Payload};

/// A packet's tag: a step in the upper byte, the status in the next, and the number of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// The kind of the packet.
    pub step: Step,
    /// The number that the origin gave the operation, less than [`IDS`].
    pub id: u64,
}

/// How many different numbers the operations of one node have.
pub const IDS: u64 = 1 << 48;

/// One step of a put, get or update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Requests a put: a [`Request`], and perhaps the first of its bytes.
    Put,
    /// Requests a get: a [`Request`].
    Get,
    /// Requests a put whose bytes the target fetches: a [`Request`], and the place of the bytes.
    Pull,
    /// The next bytes of a put.
    More,
    /// The next bytes of a get.
    Got,
    /// The status of an operation that ended, other than by the last bytes of a get.
    Done(Status),
    /// Requests an update: a [`Request`], and an encoded update.
    Update,
    /// The update took place: the old value, of [`OLD_BYTES`].
    Old,
}

/// The length of an old value in bytes; the value comes first.
pub const OLD_BYTES: usize = 16;

/// How a put, get or update ended at its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All bytes are in place.
    Fine,
    /// The region no longer exists.
    Stale,
    /// The key has another secret.
    Forged,
    /// The request reaches beyond the region.
    OutOfRange,
    /// The region was truncated.
    Cut,
    /// The bytes can't be fetched from their place.
    Unreadable,
    /// No cell of this type begins there.
    Unaligned,
    /// The target has no such operator for this type.
    Unknown,
}

const STATUSES: [Status; 8] = [
    Status::Fine,
    Status::Stale,
    Status::Forged,
    Status::OutOfRange,
    Status::Cut,
    Status::Unreadable,
    Status::Unaligned,
    Status::Unknown,
];

impl Word {
    /// Encodes it as a tag.
    pub fn tag(self) -> u64 {
        let (step, status) = match self.step {
            Step::Put => (1, 0),
            Step::Get => (2, 0),
            Step::More => (3, 0),
            Step::Got => (4, 0),
            Step::Done(status) => (5, status as u64),
            Step::Pull => (6, 0),
            Step::Update => (7, 0),
            Step::Old => (8, 0),
        };
        step << 56 | status << 48 | self.id
    }

    /// Decodes a tag. `None` if it is malformed.
    pub fn from_tag(tag: u64) -> Option<Self> {
        let status = (tag >> 48) as u8;
        let step = match tag >> 56 {
            5 => Step::Done(*STATUSES.get(usize::from(status))?),
            _ if status != 0 => return None,
            1 => Step::Put,
            2 => Step::Get,
            3 => Step::More,
            4 => Step::Got,
            6 => Step::Pull,
            7 => Step::Update,
            8 => Step::Old,
            _ => return None,
        };
        Some(Self { step, id: tag % IDS })
    }
}

/// A request: the part of a key that its owner checks, and a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The incarnation that the key belongs to.
    pub incarnation: Incarnation,
    /// The number of the region.
    pub number: u32,
    /// The offset from the start of the region, in bytes.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The secret of the key.
    pub secret: u64,
}

impl Request {
    /// The encoded length in bytes.
    pub const BYTES: usize = 32;

    /// Encodes it.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let words = [u64::from(self.number) | u64::from(self.incarnation.0) << 32, self.offset, self.bytes, self.secret];
        let mut bytes = [0; Self::BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes it from the beginning of a payload, and returns the rest of the payload.
    pub fn decode(payload: Payload<'_>) -> Option<(Self, Payload<'_>)> {
        let word = |index: usize| payload.u64_at(index * 8).map(u64::from_le);
        let name = word(0)?;
        let request = Self {
            incarnation: Incarnation((name >> 32) as u32),
            number: name as u32,
            offset: word(1)?,
            bytes: word(2)?,
            secret: word(3)?,
        };
        Some((request, payload.slice(Self::BYTES, payload.len() - Self::BYTES)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Put),
            Just(Step::Get),
            Just(Step::More),
            Just(Step::Got),
            Just(Step::Pull),
            Just(Step::Update),
            Just(Step::Old),
            (0..STATUSES.len()).prop_map(|index| Step::Done(STATUSES[index])),
        ]
    }

    #[test]
    fn a_status_has_the_place_of_its_number() {
        assert!(STATUSES.iter().enumerate().all(|(index, status)| *status as usize == index));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..Default::default() })]

        #[test]
        fn what_is_said_survives_the_way(
            step in step(), id in 0..IDS, number: u32, incarnation: u32, offset: u64, bytes: u64, secret: u64, rest: Vec<u8>,
        ) {
            let word = Word { step, id };
            prop_assert_eq!(Word::from_tag(word.tag()), Some(word));
            let request = Request { incarnation: Incarnation(incarnation), number, offset, bytes, secret };
            let mut payload = request.encode().to_vec();
            payload.extend(&rest);
            let (decoded, behind) = Request::decode(Payload::private(&payload)).unwrap();
            prop_assert_eq!((decoded, behind.to_vec()), (request, rest));
        }

        #[test]
        fn a_tag_is_a_word_or_none(tag: u64, low in 0..1_u64 << 20) {
            for tag in [tag, (low << 44) | (tag % IDS)] {
                if let Some(word) = Word::from_tag(tag) {
                    prop_assert_eq!(word.tag(), tag);
                }
            }
        }

        #[test]
        fn short_bytes_are_no_request(bytes in proptest::collection::vec(any::<u8>(), 0..Request::BYTES)) {
            prop_assert!(Request::decode(Payload::private(&bytes)).is_none());
        }
    }
}
