//! The notices between the two engines of a transfer, as words in packets. Contents are checked before they are used.

use super::CopySide;
use crate::counter::CounterKey;
use crate::mode::{Links, NETWORK_LINKS};
use doorbell_fabric::{Incarnation, NodeId, Payload};
use doorbell_shm::meeting::{CHUNKS_MAX, Ends, MEETINGS};

/// The smallest chunk of a message, in bytes.
pub const CHUNK_LEAST: u64 = 16 << 10;
/// The largest chunk, in bytes.
pub const CHUNK_MOST: u64 = 128 << 10;

/// The id of a transfer between two nodes: a slot of their rendezvous blocks, and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferId {
    /// The slot.
    pub slot: u16,
    /// The number of the use.
    pub generation: u16,
}

impl TransferId {
    /// Encodes it as the tag of a memory-FIFO packet.
    pub fn word(self) -> u64 {
        u64::from(self.slot) | u64::from(self.generation) << 16
    }

    /// Decodes such a tag; `None` if there is no such slot.
    pub fn from_word(word: u64) -> Option<Self> {
        let ticket = Self { slot: word as u16, generation: (word >> 16) as u16 };
        (word >> 32 == 0 && usize::from(ticket.slot) < MEETINGS).then_some(ticket)
    }
}

/// The place of one end's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The other end can't reach them.
    Nowhere,
    /// In private memory, at this address of the process.
    Private(u64),
    /// In a region of the node.
    Region {
        /// The number of the region.
        number: u32,
        /// The offset from its start in bytes.
        offset: u64,
    },
    /// In a buffer that a session of the target knows by this name.
    Session(u64),
}

impl Place {
    /// Encodes it as two words.
    pub fn words(self) -> [u64; 2] {
        match self {
            Place::Nowhere => [0, 0],
            Place::Private(address) => [1, address],
            Place::Region { number, offset } => [2 | u64::from(number) << 32, offset],
            Place::Session(name) => [3, name],
        }
    }

    /// Decodes two words; `None` if they are malformed.
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

/// Which copies one end asks for. Without, the target decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asks {
    /// The origin is to put.
    pub put: bool,
    /// The target is to pull.
    pub pull: bool,
    /// The origin was asked for this by name, and leaves the target time for it.
    pub patient: bool,
}

impl Asks {
    /// What a setting asks for.
    pub fn of(copy: CopySide) -> Self {
        let put = matches!(copy, CopySide::Origin | CopySide::Both);
        Self { put, pull: matches!(copy, CopySide::Target | CopySide::Both), patient: false }
    }

    /// What the one or the other asks for.
    pub fn or(self, other: Self) -> Self {
        Self { put: self.put | other.put, pull: self.pull | other.pull, patient: self.patient | other.patient }
    }

    /// Whether it asks for anything.
    pub fn any(self) -> bool {
        self.put || self.pull
    }
}

/// The direct-put descriptor that an RTS carries to the target. Only the storage location is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectPut {
    /// The id of the transfer.
    pub ticket: TransferId,
    /// The size of the chunks, and the end at which the memory FIFO begins.
    pub ends: Ends,
    /// The place of the message.
    pub source: Place,
    /// The link of the network that carries it, if the nodes share no memory. Each then has a rendezvous block of its own, and
    /// notices keep them in step.
    pub apart: Option<u8>,
    /// Further links of that network that could put parts of it.
    pub beside: Links,
    /// What the origin asks for, if the nodes share memory.
    pub asks: Asks,
}

/// In the first word of a direct-put descriptor: a network carries it; its link; its further links.
const APART: u64 = 1 << 32;
const LINK_SHIFT: u32 = 33;
const LINK_MASK: u64 = 0x3 << LINK_SHIFT;
const BESIDE_SHIFT: u32 = 35;
const BESIDE_MASK: u64 = 0xf << BESIDE_SHIFT;
/// The same without a network: the origin asks to put, asks the target to pull, and leaves it time.
const ASKS_PUT: u64 = 1 << 39;
const ASKS_PULL: u64 = 1 << 40;
const PATIENT: u64 = 1 << 41;
const ASKS_MASK: u64 = ASKS_PUT | ASKS_PULL | PATIENT;
const _: () = assert!(NETWORK_LINKS == 4);

impl DirectPut {
    const WORDS: usize = 4;
    /// The encoded length in bytes.
    pub const BYTES: usize = Self::WORDS * 8;

    /// Encodes it.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let [kind, value] = self.source.words();
        let cut = self.ends.chunk | (self.ends.from_high as u64) << 63;
        let beside = u64::from(self.beside.bits()) << BESIDE_SHIFT;
        let asked = [(self.asks.put, ASKS_PUT), (self.asks.pull, ASKS_PULL), (self.asks.patient, PATIENT)];
        let asks = asked.into_iter().filter(|(asks, _)| *asks).fold(0, |bits, (_, bit)| bits | bit);
        let flags = self.apart.map_or(asks, |link| APART | u64::from(link) << LINK_SHIFT | beside);
        bytes([self.ticket.word() | flags, cut, kind, value])
    }

    /// Decodes a packet's payload, for a message of `len` bytes.
    pub fn decode(payload: Payload<'_>, len: u64) -> Option<Self> {
        let [ticket, cut, kind, value] = words(payload)?;
        let ends = Ends { len, chunk: cut & !(1 << 63), from_high: cut >> 63 != 0 };
        let is_cut = (CHUNK_LEAST..=CHUNK_MOST).contains(&ends.chunk) && len > 0 && ends.chunks() <= CHUNKS_MAX;
        let apart = (ticket & APART != 0).then_some(((ticket & LINK_MASK) >> LINK_SHIFT) as u8);
        let flags = if apart.is_some() { APART | LINK_MASK | BESIDE_MASK } else { ASKS_MASK };
        let asks = |flag: u64| ticket & flags & flag != 0;
        let asks = Asks { put: asks(ASKS_PUT), pull: asks(ASKS_PULL), patient: asks(PATIENT) };
        let beside = Links::of_bits(((ticket & flags & BESIDE_MASK) >> BESIDE_SHIFT) as u8);
        let (ticket, source) = (TransferId::from_word(ticket & !flags)?, Place::from_words([kind, value])?);
        let is_beside = apart.is_none_or(|link| !beside.has(link));
        (is_cut && is_beside).then_some(Self { ticket, ends, source, apart, beside, asks })
    }
}

/// The acknowledgement of an RTS. The remote get brings the direct-put descriptor back to the origin, with the storage location
/// filled in. It travels on the lane of high priority. At the origin the direct put enters the engine's injection FIFO of
/// high priority, whatever the priority of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteGet {
    /// The id of the transfer.
    pub ticket: TransferId,
    /// The destination of the message. `Nowhere` if the origin can't or must not put.
    pub target: Place,
    /// Whether the target copies, too.
    pub pulls: bool,
    /// The names of the message in the sessions of the further links, where they have one.
    pub beside: Names,
}

/// The names of one message in the sessions of a network's links.
pub type Names = [Option<u64>; NETWORK_LINKS];

/// The upper half of the first word distinguishes control packets.
const REMOTE_GET: u64 = 1 << 32;
const PULLS: u64 = 1 << 40;
const NAMES_SHIFT: u32 = 41;
const NAMES_MASK: u64 = 0xf << NAMES_SHIFT;
/// The length of a notice. Only a lowered counter and a remote get with several names are longer.
pub const WORD_BYTES: usize = 24;

impl RemoteGet {
    /// The most bytes when encoded.
    pub const BYTES: usize = WORD_BYTES + 8 * NETWORK_LINKS;

    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let [kind, value] = self.target.words();
        let names: Links = (0..).zip(&self.beside).filter(|(_, name)| name.is_some()).map(|(link, _)| link).collect();
        let flags = if self.pulls { PULLS } else { 0 } | u64::from(names.bits()) << NAMES_SHIFT;
        let words = [self.ticket.word() | REMOTE_GET | flags, kind, value].into_iter().chain(self.beside.into_iter().flatten());
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// Decodes a control packet's payload.
    pub fn decode(payload: Payload<'_>) -> Option<Self> {
        let word = |at: usize| payload.u64_at(8 * at).map(u64::from_le);
        let head = word(0)?;
        if head & !(PULLS | NAMES_MASK) & !0xffff_ffff != REMOTE_GET {
            return None;
        }
        let (ticket, target) = (TransferId::from_word(head & 0xffff_ffff)?, Place::from_words([word(1)?, word(2)?])?);
        let links = Links::of_bits(((head & NAMES_MASK) >> NAMES_SHIFT) as u8);
        let mut beside = Names::default();
        for (at, link) in (3..).zip(links.iter()) {
            beside[usize::from(link)] = Some(word(at)?);
        }
        let is_named = links.is_empty() || matches!(target, Place::Session(_));
        let is_it = is_named && payload.len() == WORD_BYTES + 8 * links.len();
        is_it.then_some(Self { ticket, target, pulls: head & PULLS != 0, beside })
    }
}

/// Tells a node to lower one of its counters by the bytes that were moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lower {
    /// The key of a use of a counter.
    pub key: CounterKey,
    /// The number of bytes.
    pub bytes: u64,
}

const LOWER: u64 = 2 << 32;

impl Lower {
    const WORDS: usize = 4;
    /// The encoded length in bytes: one word more than other notices, for the secret.
    pub const BYTES: usize = Self::WORDS * 8;

    /// Encodes it.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let CounterKey { node, incarnation, index, secret } = self.key;
        bytes([LOWER | u64::from(node.0) | u64::from(index) << 16, incarnation.0.into(), self.bytes, secret])
    }

    fn decode(payload: Payload<'_>) -> Option<Self> {
        let [head, incarnation, bytes, secret] = words::<{ Self::WORDS }>(payload)?;
        let incarnation = Incarnation(u32::try_from(incarnation).ok().filter(|_| head >> 32 == LOWER >> 32)?);
        let key = CounterKey { node: NodeId(head as u16), index: (head >> 16) as u16, incarnation, secret };
        Some(Self { key, bytes })
    }
}

/// How a transfer between nodes that share no memory ended, as told to the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// From the target: it has the whole message.
    Finished,
    /// From the target: it does not want the rest.
    Refused,
    /// From the origin: the message must not be delivered.
    GivenUp,
}

impl Over {
    const WORDS: [(Over, u64); 3] = [(Over::Finished, 3 << 32), (Over::Refused, 4 << 32), (Over::GivenUp, 5 << 32)];

    /// Encodes it.
    pub fn encode(self, ticket: TransferId) -> [u8; WORD_BYTES] {
        let word = Self::WORDS.iter().find(|(over, _)| *over == self).map_or(0, |(_, word)| *word);
        bytes([ticket.word() | word, 0, 0])
    }

    fn decode(head: u64) -> Option<(Self, TransferId)> {
        let (over, _) = Self::WORDS.into_iter().find(|(_, word)| word >> 32 == head >> 32)?;
        Some((over, TransferId::from_word(head & 0xffff_ffff)?))
    }
}

/// A notice from one engine to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The acknowledgement of an RTS.
    RemoteGet(RemoteGet),
    /// A counter is to be lowered.
    Lower(Lower),
    /// A transfer is over.
    Over(Over, TransferId),
}

impl Control {
    /// Decodes a control packet's payload.
    pub fn decode(payload: Payload<'_>) -> Option<Self> {
        if let Some(get) = RemoteGet::decode(payload) {
            return Some(Control::RemoteGet(get));
        }
        if let Some(lower) = Lower::decode(payload) {
            return Some(Control::Lower(lower));
        }
        let [head, _, _] = words(payload)?;
        Over::decode(head).map(|(over, ticket)| Control::Over(over, ticket))
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

    fn ticket() -> impl Strategy<Value = TransferId> {
        (0..MEETINGS as u16, any::<u16>()).prop_map(|(slot, generation)| TransferId { slot, generation })
    }

    proptest! {
        #[test]
        // Files and many cases: not for Miri.
        #[cfg_attr(miri, ignore)]
        fn descriptors_survive_the_way(
            ticket in ticket(), place in place(), len in 1_u64..1 << 39, chunk in 1_u64..=CHUNK_MOST / CHUNK_LEAST,
            from_high: bool, pulls: bool, apart in proptest::option::of(0..4_u8), beside: u8, names: Names, asked: [bool; 3],
        ) {
            let ends = Ends { len, chunk: chunk * CHUNK_LEAST, from_high };
            let beside = apart.map_or(Links::NONE, |link| Links::of_bits(beside).without(link));
            let asks = if apart.is_none() { Asks { put: asked[0], pull: asked[1], patient: asked[2] } } else { Asks::default() };
            let put = DirectPut { ticket, ends, source: place, apart, beside, asks };
            let decoded = DirectPut::decode(Payload::private(&put.encode()), len);
            prop_assert_eq!(decoded, (ends.chunks() <= CHUNKS_MAX).then_some(put));
            let beside = if matches!(place, Place::Session(_)) { names } else { Names::default() };
            let get = RemoteGet { ticket, target: place, pulls, beside };
            prop_assert_eq!(Control::decode(Payload::private(&get.encode())), Some(Control::RemoteGet(get)));
            let key = CounterKey { node: NodeId(ticket.slot), incarnation: Incarnation(7), index: 5, secret: u64::MAX - len };
            let lower = Lower { key, bytes: len };
            prop_assert_eq!(Control::decode(Payload::private(&lower.encode())), Some(Control::Lower(lower)));
            for over in [Over::Finished, Over::Refused, Over::GivenUp] {
                prop_assert_eq!(Control::decode(Payload::private(&over.encode(ticket))), Some(Control::Over(over, ticket)));
            }
        }

        #[test]
        // Files and many cases: not for Miri.
        #[cfg_attr(miri, ignore)]
        fn what_no_node_says_of_links_is_no_descriptor(ticket in ticket(), link in 0..4_u8, names: Names, bits: u8, cut in 1..8_usize) {
            let ends = Ends { len: 1 << 20, chunk: CHUNK_LEAST, from_high: false };
            let put = DirectPut { ticket, ends, source: Place::Nowhere, apart: Some(link), beside: Links::of_bits(bits), asks: Asks::default() };
            let decoded = DirectPut::decode(Payload::private(&put.encode()), ends.len);
            prop_assert_eq!(decoded, (!put.beside.has(link)).then_some(put));
            let near = DirectPut { apart: None, ..put };
            prop_assert_eq!(DirectPut::decode(Payload::private(&near.encode()), ends.len), Some(DirectPut { beside: Links::NONE, ..near }));
            let mut get = RemoteGet { ticket, target: Place::Session(7), pulls: false, beside: names };
            let bytes = get.encode();
            prop_assert_eq!(Control::decode(Payload::private(&bytes)), Some(Control::RemoteGet(get)));
            // One name too few, one too many, or a part of one.
            prop_assert_eq!(Control::decode(Payload::private(&bytes[..bytes.len() - cut])), None);
            prop_assert_eq!(Control::decode(Payload::private(&[&bytes[..], &[0; 8]].concat())), None);
            get.target = Place::Nowhere;
            let has_names = names.iter().any(Option::is_some);
            prop_assert_eq!(Control::decode(Payload::private(&get.encode())).is_none(), has_names);
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
