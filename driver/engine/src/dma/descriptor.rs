//! Descriptors: what the DMA engine is to move, in one or two slots of 64 bytes.

use super::wire::Status;
use crate::board::CounterKey;
use crate::error::{Error, KeyFault, Result};
use crate::memory::key::{Access, Key, Place, Plain, ReadWrite, read_secret};
use crate::message::service::PeerId;
pub use crate::transfer::slot::Kind;
use crate::transfer::slot::{LEN_BITS, LEN_MASK};
use doorbell_fabric::{Incarnation, NodeId};
use doorbell_shm::board::{DescriptorWords, Fifo, SealedWords};
use std::fmt;

/// The name of a FIFO of a node for other nodes. Plain data: it may travel in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FifoKey {
    /// The node.
    pub node: NodeId,
    /// The incarnation of that node.
    pub incarnation: Incarnation,
    /// The number of the FIFO.
    pub number: u16,
}

impl FifoKey {
    /// The length of a key in a message.
    pub const BYTES: usize = 8;

    /// Encodes the key, in the same way on all machines.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let word = u64::from(self.node.0) | u64::from(self.number) << 16 | u64::from(self.incarnation.0) << 32;
        word.to_le_bytes()
    }

    /// Decodes a key. Whether there is such a FIFO is checked when the key is used.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let word = u64::from_le_bytes(bytes);
        Self { node: NodeId(word as u16), number: (word >> 16) as u16, incarnation: Incarnation((word >> 32) as u32) }
    }

    pub(super) fn peer(self) -> PeerId {
        (self.node, self.incarnation).into()
    }
}

const OFFSET_BITS: u32 = 48;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

/// What the DMA engine is to move, and which counters it lowers meanwhile. Plain data; it may be injected any number of times.
/// The engine checks it when it executes it.
///
/// See [`dma`](crate::dma) for an example.
#[derive(Clone, Copy, PartialEq, Eq)]
#[must_use = "a descriptor does nothing until it is injected"]
pub struct Descriptor {
    slots: [SealedWords; 2],
    /// The node whose program may inject it, as [`home_of`]; [`ANYWHERE`] for a remote get, which alone has two slots.
    pub(super) home: u64,
    /// The owner of its source.
    pub(super) owner: PeerId,
    /// The secret of the source's key, as far as reading needs it.
    source_secret: u64,
    /// The secret of the send counter's key.
    send_secret: u64,
}

fn too_long(operation: &'static str, place: &Place) -> Error {
    Error::Key { operation, node: Some(place.node), why: KeyFault::OutOfRange }
}

impl Descriptor {
    /// The length of a descriptor in a message.
    pub const BYTES: usize = 96;

    /// A **direct put**: the engine of the source's owner copies the elements of `source` to `target`, which may be in any
    /// node. The two keys name as many elements, or `target` names more.
    ///
    /// # Errors
    /// [`Error::Key`] if `target` names fewer elements than `source`, or a source of 16 TiB or more.
    pub fn put<T: Plain, A: Access>(source: Key<T, A>, target: Key<T, ReadWrite>) -> Result<Self> {
        let to = target.place;
        if source.place.bytes > to.bytes {
            return Err(too_long("put", &to));
        }
        let put = Self::of(Kind::DirectPut, (to.node, to.incarnation).into(), source)?;
        Ok(put.edit(|[put, _]| (put[4], put[5], put[6]) = (u64::from(to.number), to.offset, to.secret)))
    }

    /// A **memory-FIFO packet**: the engine sends the elements of `source` to a [reception FIFO](super::ReceptionFifo), in
    /// several packets if they are many. The program there finds `tag` beside them.
    ///
    /// # Errors
    /// [`Error::Key`] for a source of 16 TiB or more.
    pub fn packet<T: Plain, A: Access>(source: Key<T, A>, to: FifoKey, tag: u64) -> Result<Self> {
        let packet = Self::of(Kind::Packet, to.peer(), source)?;
        Ok(packet.edit(|[packet, _]| {
            packet[2] |= u64::from(to.number) << OFFSET_BITS;
            packet[5] = tag;
        }))
    }

    /// A **remote get**: injects `put` into an injection FIFO of another node, whose engine executes it there. No thread of that
    /// node's program takes part. The source of `put` lies in that node, and its target in any node.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `put` is no direct put, or its source is not in the node of `fifo`.
    pub fn remote_get(fifo: FifoKey, put: Descriptor) -> Result<Self> {
        if put.is_two() || put.kind() != Some(Kind::DirectPut) || put.owner != fifo.peer() {
            let what =
                format!("a remote get to node {} needs a direct put whose source is in that node; this is a {put:?}", fifo.node);
            return Err(Error::Invalid { what });
        }
        let mut head = [0; 8];
        head[0] = Kind::RemoteGet as u64 | u64::from(fifo.node.0) << 16;
        head[1] = u64::from(fifo.incarnation.0);
        head[2] = u64::from(fifo.number) << OFFSET_BITS;
        head[5] = put.source_secret;
        head[6] = put.send_secret;
        Ok(Self { home: ANYWHERE, ..put }.edit(|slots| {
            let mut body = slots[0];
            body[0] = body[0] & !0xff | Kind::Body as u64;
            *slots = [head, body];
        }))
    }

    /// The same descriptor, lowering this counter as bytes leave the source. The counter belongs to the node whose engine
    /// executes the descriptor: this node, or for a remote get the node of its FIFO. It counts for the present use of the
    /// counter; a later [`init`](crate::Counter::init) needs a new descriptor.
    pub fn send_counter(self, counter: CounterKey) -> Self {
        let two = self.is_two();
        Self { send_secret: counter.secret, ..self }.edit(|slots| {
            let put = &mut slots[usize::from(two)];
            put[0] = put[0] & !(0xffff << 32) | (u64::from(counter.index) + 1) << 32;
            put[3] = put[3] & LEN_MASK | counter.secret << LEN_BITS;
            if two {
                slots[0][6] = counter.secret;
            }
        })
    }

    /// The same descriptor, lowering this counter as bytes arrive. The counter belongs to the node of the target.
    pub fn receive_counter(self, counter: CounterKey) -> Self {
        let two = self.is_two();
        self.edit(|slots| {
            let put = &mut slots[usize::from(two)];
            put[0] = put[0] & !(0xffff << 48) | (u64::from(counter.index) + 1) << 48;
            put[7] = counter.secret;
        })
    }

    /// The same direct put to another target: a node that received it in a [request to send](Self::to_bytes) writes the storage
    /// location into it.
    ///
    /// # Errors
    /// [`Error::Key`] if `target` has too few bytes; [`Error::Invalid`] if this is no direct put.
    pub fn into_target<T: Plain>(self, target: Key<T, ReadWrite>) -> Result<Self> {
        let to = target.place;
        if self.is_two() || self.kind() != Some(Kind::DirectPut) {
            return Err(Error::Invalid { what: format!("only a direct put has a storage location; this is a {self:?}") });
        }
        if self.len() > to.bytes {
            return Err(too_long("put", &to));
        }
        Ok(self.edit(|[put, _]| {
            put[0] = put[0] & !(0xffff << 16) | u64::from(to.node.0) << 16;
            put[1] = put[1] & !0xffff_ffff | u64::from(to.incarnation.0);
            (put[4], put[5], put[6]) = (u64::from(to.number), to.offset, to.secret);
        }))
    }

    /// The number of bytes that it moves.
    pub fn len(&self) -> u64 {
        self.slots[usize::from(self.is_two())].words()[3] & LEN_MASK
    }

    /// Whether it moves nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Encodes a descriptor for a message. A **request to send** is a packet or message with a direct put: its receiver
    /// [writes the storage location](Self::into_target) into it, and returns it by a [remote get](Self::remote_get).
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut put = *self.slots[usize::from(self.is_two())].words();
        if self.is_two() {
            put[0] = put[0] & !0xff | Kind::DirectPut as u64;
        }
        let owner = u64::from(self.owner.node.0) | u64::from(self.owner.incarnation.0) << 32;
        let words = put.into_iter().chain([owner, self.source_secret, self.send_secret, MAGIC]);
        let mut bytes = [0; Self::BYTES];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// Decodes a direct put from a message. `None` if the bytes are none. Its keys are checked when it is injected, or by the
    /// node of a remote get.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * at + byte]));
        let owner = PeerId { node: NodeId(word(8) as u16), incarnation: Incarnation((word(8) >> 32) as u32) };
        let words: DescriptorWords = std::array::from_fn(word);
        let is_put = Kind::from_repr(words[0] as u8) == Some(Kind::DirectPut) && SealedWords::are_free(&words);
        // The engine trusts the descriptors of its own program; this one's keys are checked when it is injected.
        let put = || Self { home: UNCHECKED, ..Self::new(words, owner, word(9), word(10)) };
        (word(11) == MAGIC && is_put).then(put)
    }

    fn of<T: Plain, A: Access>(kind: Kind, to: PeerId, source: Key<T, A>) -> Result<Self> {
        let from = source.place;
        if from.bytes > LEN_MASK || from.offset > OFFSET_MASK {
            return Err(too_long(kind.into(), &from));
        }
        let mut words = [0; 8];
        words[0] = kind as u64 | u64::from(to.node.0) << 16;
        words[1] = u64::from(to.incarnation.0) | u64::from(from.number) << 32;
        words[2] = from.offset;
        words[3] = from.bytes;
        let source_secret = if A::WRITABLE { read_secret(from.secret) } else { from.secret };
        Ok(Self::new(words, (from.node, from.incarnation).into(), source_secret, 0))
    }

    fn new(words: DescriptorWords, owner: PeerId, source_secret: u64, send_secret: u64) -> Self {
        let slots = [words, [0; 8]].map(SealedWords::new);
        Self { slots, home: home_of(owner), owner, source_secret, send_secret }
    }

    fn edit(self, change: impl FnOnce(&mut [DescriptorWords; 2])) -> Self {
        let mut slots = self.slots.map(|slot| *slot.words());
        change(&mut slots);
        Self { slots: slots.map(SealedWords::new), ..self }
    }

    fn is_two(&self) -> bool {
        self.home == ANYWHERE
    }

    fn kind(&self) -> Option<Kind> {
        Kind::from_repr(self.slots[0].words()[0] as u8)
    }

    /// The number of its source's region, the offset and the length there, and the secret that its sender knew.
    pub(super) fn source(&self) -> (u32, u64, u64, u64) {
        let words = self.slots[0].words();
        ((words[1] >> 32) as u32, words[2] & OFFSET_MASK, words[3] & LEN_MASK, self.source_secret)
    }

    /// The index of its send counter and the secret that its sender knew.
    pub(super) fn counted(&self) -> Option<(u16, u64)> {
        Some((((self.slots[0].words()[0] >> 32) as u16).checked_sub(1)?, self.send_secret))
    }

    /// Injects it into a FIFO. False if that is full.
    #[inline(always)]
    pub(super) fn push_to(&self, fifo: &Fifo) -> bool {
        if self.is_two() { fifo.push(&self.slots) } else { fifo.push(std::slice::from_ref(&self.slots[0])) }
    }

    /// The slot of a descriptor that has one.
    #[inline(always)]
    pub(super) fn first(&self) -> &SealedWords {
        &self.slots[0]
    }
}

/// It came in a message: its keys must be checked. No node has this home.
pub(super) const UNCHECKED: u64 = u64::MAX - 2;

/// Any node may inject it. No node has this home.
pub(super) const ANYWHERE: u64 = u64::MAX;

/// A node as one word.
pub(super) fn home_of(node: PeerId) -> u64 {
    u64::from(node.node.0) << 32 | u64::from(node.incarnation.0)
}

const MAGIC: u64 = u64::from_le_bytes(*b"dmaput01");

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind: &str = self.kind().map_or("descriptor of unknown kind", Into::into);
        write!(f, "{kind} of {} bytes of node {}", self.len(), self.owner.node)
    }
}

/// A checked copy of a slot in private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub kind: Kind,
    /// The node that gets the bytes, or that executes a remote get.
    pub to: PeerId,
    /// The number of the source's region and the offset in it.
    pub source: (u32, u64),
    pub len: u64,
    /// The index of the send counter, and the low bits of its generation.
    pub send: Option<(u16, u32)>,
    /// The index of the receive counter and its secret.
    pub receive: Option<(u16, u64)>,
    /// The number of a reception FIFO, or of another node's injection FIFO.
    pub fifo: u16,
    /// The number of the target's region, the offset in it, and the secret of its key. The offset is the tag of a packet.
    pub target: (u32, u64, u64),
}

impl Task {
    /// Decodes a slot.
    pub fn decode(words: &DescriptorWords) -> Result<Self, Status> {
        let kind = Kind::from_repr(words[0] as u8).ok_or(Status::Malformed)?;
        let counter = |shift: u32| ((words[0] >> shift) as u16).checked_sub(1);
        Ok(Self {
            kind,
            to: PeerId { node: NodeId((words[0] >> 16) as u16), incarnation: Incarnation(words[1] as u32) },
            source: ((words[1] >> 32) as u32, words[2] & OFFSET_MASK),
            len: words[3] & LEN_MASK,
            send: counter(32).map(|index| (index, (words[3] >> LEN_BITS) as u32)),
            receive: counter(48).map(|index| (index, words[7])),
            fifo: (words[2] >> OFFSET_BITS) as u16,
            target: (words[4] as u32, words[5], words[6]),
        })
    }

    /// The key of its receive counter.
    pub fn receive_key(&self) -> Option<CounterKey> {
        let (index, secret) = self.receive?;
        Some(CounterKey { node: self.to.node, incarnation: self.to.incarnation, index, secret })
    }
}
