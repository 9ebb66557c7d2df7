//! What two engines say to each other about a put, get or update. Nothing here is believed before it was checked.

use doorbell_fabric::{Incarnation, Payload};

/// What a packet says, as its tag: a step in the upper byte, how it ended in the next, and which put, get or update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// What it is.
    pub step: Step,
    /// The number that its origin gave it, less than [`IDS`].
    pub id: u64,
}

/// As many puts, gets and updates of one node have numbers of their own.
pub const IDS: u64 = 1 << 48;

/// One step of a put, get or update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Asks for a put: a [`Request`], and perhaps the first of its bytes.
    Put,
    /// Asks for a get: a [`Request`].
    Get,
    /// Asks for a put whose bytes the target fetches by itself: a [`Request`], and where they lie.
    Pull,
    /// The next bytes of the put that was asked for last.
    More,
    /// The next bytes of a get.
    Got,
    /// How it ended, other than by the last bytes of a get.
    Done(Status),
    /// Asks for an update: a [`Request`], and an `AtomicRequest`.
    Update,
    /// The update took place: the old value, of [`OLD_BYTES`].
    Old,
}

/// Bytes of an old value, those of its type first.
pub const OLD_BYTES: usize = 16;

/// How a put, get or update ended at its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All bytes are in their place.
    Fine,
    /// There is no such region any more.
    Stale,
    /// The key has another secret.
    Forged,
    /// It reaches beyond the region.
    OutOfRange,
    /// The region was truncated.
    Cut,
    /// The bytes can't be fetched from where they lie.
    Unreadable,
    /// No cell of this type begins there.
    Unaligned,
    /// The target has no such operator of such a type.
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
    /// As a tag.
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

    /// From a tag; `None` if none of ours is like this.
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

/// What is asked for: the part of a key that its owner has to check, and how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The life that the key is of.
    pub incarnation: Incarnation,
    /// Which region.
    pub number: u32,
    /// From the start of the region.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// As the key has it.
    pub secret: u64,
}

impl Request {
    /// Bytes on the wire.
    pub const BYTES: usize = 32;

    /// As bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let words = [u64::from(self.number) | u64::from(self.incarnation.0) << 32, self.offset, self.bytes, self.secret];
        let mut bytes = [0; Self::BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// From the begin of a payload, with what follows.
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
            step in step(), id in 0..IDS, number: u32, life: u32, offset: u64, bytes: u64, secret: u64, rest: Vec<u8>,
        ) {
            let word = Word { step, id };
            prop_assert_eq!(Word::from_tag(word.tag()), Some(word));
            let request = Request { incarnation: Incarnation(life), number, offset, bytes, secret };
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
