//! What the two engines of a transfer say to each other, as words in packets. Nothing here is believed before it was checked.

use crate::counter::CounterKey;
use crate::mode::LINKS_MAX;
use doorbell_fabric::{Incarnation, NodeId, Payload};
use doorbell_shm::meeting::{CHUNKS_MAX, Ends, MEETINGS};

/// The smallest chunk a message is cut into, in bytes.
pub const CHUNK_LEAST: u64 = 16 << 10;
/// The largest.
pub const CHUNK_MOST: u64 = 128 << 10;

/// Which transfer between two nodes is meant: a slot of their meetings, and which use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The slot.
    pub slot: u16,
    /// Which use.
    pub generation: u16,
}

impl Ticket {
    /// As the tag of a memory-FIFO packet.
    pub fn word(self) -> u64 {
        u64::from(self.slot) | u64::from(self.generation) << 16
    }

    /// From such a word; `None` if no slot is called so.
    pub fn from_word(word: u64) -> Option<Self> {
        let ticket = Self { slot: word as u16, generation: (word >> 16) as u16 };
        (word >> 32 == 0 && usize::from(ticket.slot) < MEETINGS).then_some(ticket)
    }
}

/// Where the bytes of one end lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where the other end can't reach them.
    Nowhere,
    /// In private memory, at an address of that process.
    Private(u64),
    /// In a region of that node.
    Region {
        /// Which region.
        number: u32,
        /// Bytes from its start.
        offset: u64,
    },
    /// Where a session stores what it calls so, which was asked for there.
    Session(u64),
}

impl Place {
    /// As two words.
    pub fn words(self) -> [u64; 2] {
        match self {
            Place::Nowhere => [0, 0],
            Place::Private(address) => [1, address],
            Place::Region { number, offset } => [2 | u64::from(number) << 32, offset],
            Place::Session(name) => [3, name],
        }
    }

    /// From two words; `None` if no place of ours is like this.
    pub fn from_words(words: [u64; 2]) -> Option<Self> {
        match words[0] as u32 {
            0 => Some(Place::Nowhere),
            1 => Some(Place::Private(words[1])),
            2 => Some(Place::Region { number: (words[0] >> 32) as u32, offset: words[1] }),
            3 => Some(Place::Session(words[1])),
            _ => None,
        }
    }
}

/// The direct-put descriptor, as an RTS carries it to the target: all but the storage location is inscribed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectPut {
    /// Which transfer.
    pub ticket: Ticket,
    /// How the message is cut, and from which end the memory FIFO begins.
    pub ends: Ends,
    /// Where the message lies.
    pub source: Place,
    /// It goes by this link of a network: each has a meeting of its own, and they tell each other what happens to it.
    pub apart: Option<u8>,
}

/// Of the first word of a direct-put descriptor: whether it goes by a network, and by which link.
const APART: u64 = 1 << 32;
const LINK_SHIFT: u32 = 33;
const LINK_MASK: u64 = 0x3 << LINK_SHIFT;
const _: () = assert!(LINKS_MAX - 1 == (LINK_MASK >> LINK_SHIFT) as usize + 1);

impl DirectPut {
    const WORDS: usize = 4;
    /// Bytes on the wire.
    pub const BYTES: usize = Self::WORDS * 8;

    /// As bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let [kind, value] = self.source.words();
        let cut = self.ends.chunk | (self.ends.from_high as u64) << 63;
        let apart = self.apart.map_or(0, |link| APART | u64::from(link) << LINK_SHIFT);
        bytes([self.ticket.word() | apart, cut, kind, value])
    }

    /// From a packet's payload, for a message of `len` bytes.
    pub fn decode(payload: Payload<'_>, len: u64) -> Option<Self> {
        let [ticket, cut, kind, value] = words(payload)?;
        let ends = Ends { len, chunk: cut & !(1 << 63), from_high: cut >> 63 != 0 };
        let is_cut = (CHUNK_LEAST..=CHUNK_MOST).contains(&ends.chunk) && len > 0 && ends.chunks() <= CHUNKS_MAX;
        let apart = (ticket & APART != 0).then_some(((ticket & LINK_MASK) >> LINK_SHIFT) as u8);
        let flags = if apart.is_some() { APART | LINK_MASK } else { 0 };
        let (ticket, source) = (Ticket::from_word(ticket & !flags)?, Place::from_words([kind, value])?);
        is_cut.then_some(Self { ticket, ends, source, apart })
    }
}

/// The acknowledgement of an RTS: the remote get that injects the direct-put descriptor, with its storage location inscribed,
/// into the origin's high-priority injection FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteGet {
    /// Which transfer.
    pub ticket: Ticket,
    /// Where the message is to be stored. `Nowhere` if the origin can't or may not put.
    pub target: Place,
    /// Whether the target copies, too.
    pub pulls: bool,
}

/// Control packets are told apart by the upper half of their first word.
const REMOTE_GET: u64 = 1 << 32;
const PULLS: u64 = 1 << 40;

impl RemoteGet {
    /// Bytes on the wire: they fit into a cell.
    pub const BYTES: usize = 24;

    /// As bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let [kind, value] = self.target.words();
        let pulls = if self.pulls { PULLS } else { 0 };
        bytes([self.ticket.word() | REMOTE_GET | pulls, kind, value])
    }

    /// From a control packet's payload.
    pub fn decode(payload: Payload<'_>) -> Option<Self> {
        let [head, kind, value] = words(payload)?;
        if head & !PULLS & !0xffff_ffff != REMOTE_GET {
            return None;
        }
        let ticket = Ticket::from_word(head & 0xffff_ffff)?;
        Some(Self { ticket, target: Place::from_words([kind, value])?, pulls: head & PULLS != 0 })
    }
}

/// Says to a node that so many bytes of what one of its counters counts were moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lower {
    /// Which use of which counter.
    pub key: CounterKey,
    /// How many bytes.
    pub bytes: u64,
}

const LOWER: u64 = 2 << 32;

impl Lower {
    /// As bytes.
    pub fn encode(&self) -> [u8; RemoteGet::BYTES] {
        let CounterKey { node, incarnation, index, generation } = self.key;
        let name = u64::from(incarnation.0) | u64::from(generation) << 32;
        bytes([LOWER | u64::from(node.0) | u64::from(index) << 16, name, self.bytes])
    }
}

/// How a transfer between nodes that share no memory ended, as its other end is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// By the target: it has it all.
    Finished,
    /// By the target: it wants no more of it.
    Refused,
    /// By the origin: the message is not to be delivered.
    GivenUp,
}

impl Over {
    const WORDS: [(Over, u64); 3] = [(Over::Finished, 3 << 32), (Over::Refused, 4 << 32), (Over::GivenUp, 5 << 32)];

    /// As bytes.
    pub fn encode(self, ticket: Ticket) -> [u8; RemoteGet::BYTES] {
        let word = Self::WORDS.iter().find(|(over, _)| *over == self).map_or(0, |(_, word)| *word);
        bytes([ticket.word() | word, 0, 0])
    }

    fn decode(head: u64) -> Option<(Self, Ticket)> {
        let (over, _) = Self::WORDS.into_iter().find(|(_, word)| word >> 32 == head >> 32)?;
        Some((over, Ticket::from_word(head & 0xffff_ffff)?))
    }
}

/// A word of one engine to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The acknowledgement of an RTS.
    RemoteGet(RemoteGet),
    /// A counter is to be lowered.
    Lower(Lower),
    /// A transfer is over.
    Over(Over, Ticket),
}

impl Control {
    /// From a control packet's payload.
    pub fn decode(payload: Payload<'_>) -> Option<Self> {
        let [head, name, bytes] = words(payload)?;
        if let Some((over, ticket)) = Over::decode(head) {
            return Some(Control::Over(over, ticket));
        }
        if head >> 32 != LOWER >> 32 {
            return RemoteGet::decode(payload).map(Control::RemoteGet);
        }
        let key = CounterKey {
            node: NodeId(head as u16),
            index: (head >> 16) as u16,
            incarnation: Incarnation(name as u32),
            generation: (name >> 32) as u32,
        };
        Some(Control::Lower(Lower { key, bytes }))
    }
}

fn bytes<const WORDS: usize, const BYTES: usize>(words: [u64; WORDS]) -> [u8; BYTES] {
    const { assert!(WORDS * 8 == BYTES) };
    let mut bytes = [0; BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn words<const WORDS: usize>(payload: Payload<'_>) -> Option<[u64; WORDS]> {
    let mut words = [0; WORDS];
    for (index, word) in words.iter_mut().enumerate() {
        *word = u64::from_le(payload.u64_at(index * 8)?);
    }
    (payload.len() == WORDS * 8).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place() -> impl Strategy<Value = Place> {
        prop_oneof![
            Just(Place::Nowhere),
            any::<u64>().prop_map(Place::Private),
            any::<(u32, u64)>().prop_map(|(number, offset)| Place::Region { number, offset }),
            any::<u64>().prop_map(Place::Session),
        ]
    }

    fn ticket() -> impl Strategy<Value = Ticket> {
        (0..MEETINGS as u16, any::<u16>()).prop_map(|(slot, generation)| Ticket { slot, generation })
    }

    proptest! {
        #[test]
        // Files and many cases: not for Miri.
        #[cfg_attr(miri, ignore)]
        fn descriptors_survive_the_way(
            ticket in ticket(), place in place(), len in 1_u64..1 << 39, chunk in 1_u64..=CHUNK_MOST / CHUNK_LEAST,
            from_high: bool, pulls: bool, apart in proptest::option::of(0..4_u8),
        ) {
            let ends = Ends { len, chunk: chunk * CHUNK_LEAST, from_high };
            let put = DirectPut { ticket, ends, source: place, apart };
            let decoded = DirectPut::decode(Payload::private(&put.encode()), len);
            prop_assert_eq!(decoded, (ends.chunks() <= CHUNKS_MAX).then_some(put));
            let get = RemoteGet { ticket, target: place, pulls };
            prop_assert_eq!(Control::decode(Payload::private(&get.encode())), Some(Control::RemoteGet(get)));
            let key = CounterKey { node: NodeId(ticket.slot), incarnation: Incarnation(7), index: 5, generation: len as u32 };
            let lower = Lower { key, bytes: len };
            prop_assert_eq!(Control::decode(Payload::private(&lower.encode())), Some(Control::Lower(lower)));
            for over in [Over::Finished, Over::Refused, Over::GivenUp] {
                prop_assert_eq!(Control::decode(Payload::private(&over.encode(ticket))), Some(Control::Over(over, ticket)));
            }
        }

        #[test]
        // Files and many cases: not for Miri.
        #[cfg_attr(miri, ignore)]
        fn any_bytes_are_looked_at_without_harm(bytes: Vec<u8>, len: u64) {
            if let Some(put) = DirectPut::decode(Payload::private(&bytes), len) {
                prop_assert!(usize::from(put.ticket.slot) < MEETINGS && put.ends.chunks() <= CHUNKS_MAX);
            }
            let _ = Control::decode(Payload::private(&bytes));
        }
    }
}
