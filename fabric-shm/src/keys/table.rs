//! Locks by name. They are created and destroyed under the domain's lock file, and found and used without it.

use super::seat::Seat;
use super::waits::Waits;
use super::word::{LockWords, OwnerId, Seen};
use crate::layout::{PAGE, extend_hash};
use doorbell_fabric::{Incarnation, NodeId};
use std::fmt;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The most locks of a domain at a time.
pub const KEYS_MAX: usize = 512;
/// The longest name of a lock, in bytes.
pub const NAME_BYTES: usize = 40;
const NODES: usize = crate::domain::MAX_NODES;
const READY: u64 = 1;
const GENERATIONS: u64 = u64::MAX >> 1;

/// The offsets of the waiters and of the seat.
const WAITS_OFFSET: usize = (KEYS_MAX * size_of::<Slot>()).next_multiple_of(PAGE);
const SEAT_OFFSET: usize = WAITS_OFFSET + size_of::<Waits>();

/// The length of the whole registry, in whole pages.
pub(crate) const TABLE_BYTES: usize = WAITS_OFFSET + size_of::<Waits>() + size_of::<Seat>();

/// Two builds with the same hash agree on every byte of the registry.
pub(crate) const KEYS_HASH: u64 = extend_hash(
    TABLE_BYTES as u64,
    &[
        KEYS_MAX as u64,
        size_of::<LockWords>() as u64,
        offset_of!(Slot, state) as u64,
        offset_of!(Slot, dead) as u64,
        offset_of!(Slot, name) as u64,
        offset_of!(Slot, resource) as u64,
        offset_of!(Slot, users) as u64,
        size_of::<Slot>() as u64,
        super::waits::WAITS_MAX as u64,
        WAITS_OFFSET as u64,
        SEAT_OFFSET as u64,
    ],
);

/// A slot for a lock. All zero is free.
#[repr(C, align(128))]
pub(crate) struct Slot {
    pub words: LockWords,
    /// Generation 63 | ready 1. Written last, and cleared first. A generation never comes back.
    state: AtomicU64,
    /// The owner that died last, if the lock is damaged.
    dead: AtomicU64,
    creator: AtomicU64,
    name_len: AtomicU64,
    name: [AtomicU64; NAME_BYTES / 8],
    resource: [AtomicU64; 4],
    /// The nodes that have opened the lock, one bit each.
    users: [AtomicU64; NODES / 64],
}

/// What a lock guards. Informs people and programs; nothing is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Resource {
    /// Anything that the users of the lock have agreed on.
    Unnamed,
    /// Memory by its addresses, wherever these are valid.
    Memory {
        /// The first address.
        start: u64,
        /// The first address behind it.
        end: u64,
    },
    /// The bytes of a region.
    Region {
        /// The node that owns it.
        node: NodeId,
        /// The incarnation of that node.
        incarnation: Incarnation,
        /// The number of the region on that node.
        number: u64,
        /// The length of the region, in bytes.
        bytes: u64,
    },
    /// A device, by a number that the program knows.
    Device(u64),
    /// Anything else that has a number.
    Id(u64),
}

impl Resource {
    /// The memory from one address to another.
    pub const fn memory(range: Range<u64>) -> Self {
        Resource::Memory { start: range.start, end: range.end }
    }

    /// Encodes the resource in four words.
    pub const fn to_words(self) -> [u64; 4] {
        match self {
            Resource::Unnamed => [0; 4],
            Resource::Memory { start, end } => [1, start, end, 0],
            Resource::Region { node, incarnation, number, bytes } => {
                [2, (incarnation.0 as u64) << 32 | node.0 as u64, number, bytes]
            }
            Resource::Device(number) => [3, number, 0, 0],
            Resource::Id(number) => [4, number, 0, 0],
        }
    }

    /// Decodes four words; invalid ones are [`Resource::Unnamed`].
    pub const fn from_words(words: [u64; 4]) -> Self {
        let [kind, a, b, c] = words;
        match kind {
            1 => Resource::Memory { start: a, end: b },
            2 => Resource::Region { node: NodeId(a as u16), incarnation: Incarnation((a >> 32) as u32), number: b, bytes: c },
            3 => Resource::Device(a),
            4 => Resource::Id(a),
            _ => Resource::Unnamed,
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Unnamed => f.pad("-"),
            Resource::Memory { start, end } => f.pad(&format!("memory {start:#x}..{end:#x}")),
            Resource::Region { node, number, bytes, .. } => f.pad(&format!("region {number} of node {node}, {bytes} bytes")),
            Resource::Device(number) => f.pad(&format!("device {number}")),
            Resource::Id(number) => f.pad(&format!("id {number}")),
        }
    }
}

/// Why a lock can't be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// A lock of this name exists.
    #[error("a lock '{name}' exists already; find it by its name, or destroy it first")]
    Exists {
        /// The name.
        name: String,
    },
    /// The registry is full.
    #[error(
        "the lock registry is full: it has {KEYS_MAX} locks; destroy those that are no longer used (`doorbell ls --locks` shows them)"
    )]
    Full,
    /// The name is not valid.
    #[error("'{name}' is not a valid name of a lock: a name has 1 to 40 bytes without control characters")]
    Name {
        /// The given name.
        name: String,
    },
}

/// A lock by its place. Valid in its own domain only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyRef {
    /// The slot.
    pub slot: u16,
    /// Which use of the slot.
    pub generation: u64,
}

/// What the registry records of a lock, copied and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockFacts {
    /// The place of the lock.
    pub key: KeyRef,
    /// The name of the lock.
    pub name: String,
    /// What the lock guards.
    pub resource: Resource,
    /// The node that created it, and its incarnation.
    pub creator: (NodeId, Incarnation),
    /// The value of the lock.
    pub seen: Seen,
    /// The owner that died and left the resource damaged, if any.
    pub dead: Option<OwnerId>,
    /// The nodes that have opened the lock and not released it.
    pub users: Vec<NodeId>,
    /// The waiters for the lock, as far as they are entered.
    pub waiting: Vec<OwnerId>,
}

/// All locks of a domain.
pub(crate) struct KeyTable<'a> {
    slots: &'a [Slot],
    waits: &'a Waits,
    seat: &'a Seat,
}

/// Whether a lock may have this name.
fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
}

impl<'a> KeyTable<'a> {
    /// The table that begins at `ptr`.
    ///
    /// # Safety
    /// `ptr` is page-aligned, and readable and writable for [`TABLE_BYTES`] and for `'a`.
    pub unsafe fn at(ptr: *mut u8) -> Self {
        // SAFETY: aligned and long enough (caller); all fields are atomics, so other writers are allowed.
        let slots = unsafe { std::slice::from_raw_parts(ptr.cast::<Slot>(), KEYS_MAX) };
        // SAFETY: the same; both begin with a page.
        let (waits, seat) = unsafe { (&*ptr.add(WAITS_OFFSET).cast::<Waits>(), &*ptr.add(SEAT_OFFSET).cast::<Seat>()) };
        Self { slots, waits, seat }
    }

    /// The slot with this number.
    #[inline(always)]
    pub fn slot(&self, slot: u16) -> Option<&'a Slot> {
        self.slots.get(slot as usize)
    }

    /// The waiters.
    pub fn waits(&self) -> &'a Waits {
        self.waits
    }

    /// The place of the registry.
    pub fn seat(&self) -> &'a Seat {
        self.seat
    }

    /// The value of a lock, by its slot.
    pub fn seen(&self, slot: usize) -> Option<Seen> {
        self.slots.get(slot).map(|slot| slot.words.get())
    }

    /// Finds the lock of this name.
    pub fn find(&self, name: &str) -> Option<KeyRef> {
        (0..KEYS_MAX as u16).find_map(|slot| {
            let at = &self.slots[slot as usize];
            let (generation, found) = at.name()?;
            (found == name).then_some(KeyRef { slot, generation })
        })
    }

    /// Creates a lock. Call it under the domain's lock file.
    pub fn init(&self, name: &str, resource: Resource, creator: (NodeId, Incarnation)) -> Result<KeyRef, ResourceError> {
        let name_of = || name.to_owned();
        if !is_name(name) {
            return Err(ResourceError::Name { name: name_of() });
        }
        if self.find(name).is_some() {
            return Err(ResourceError::Exists { name: name_of() });
        }
        let free =
            self.slots.iter().position(|slot| slot.state.load(Ordering::Relaxed) & READY == 0).ok_or(ResourceError::Full)?;
        let slot = &self.slots[free];
        let generation = slot.write(name, resource, creator);
        Ok(KeyRef { slot: free as u16, generation })
    }

    /// The recorded state of a lock; `None` if the slot holds none or is changing.
    pub fn facts(&self, slot: u16) -> Option<LockFacts> {
        let at = self.slot(slot)?;
        let (generation, name) = at.name()?;
        let creator = at.creator.load(Ordering::Relaxed);
        let resource = Resource::from_words(std::array::from_fn(|word| at.resource[word].load(Ordering::Relaxed)));
        let seen = at.words.get();
        let facts = LockFacts {
            key: KeyRef { slot, generation },
            name,
            resource,
            creator: (NodeId(creator as u16), Incarnation((creator >> 32) as u32)),
            seen,
            dead: seen.is_damaged().then(|| at.dead()).flatten(),
            users: at.users().collect(),
            waiting: self.waits.of_key(slot as usize).collect(),
        };
        at.is_current(generation).then_some(facts)
    }

    /// All locks.
    pub fn all(&self) -> Vec<LockFacts> {
        (0..KEYS_MAX as u16).filter_map(|slot| self.facts(slot)).collect()
    }

    /// Removes a node from the users of all locks. For a new incarnation, which does not inherit what the former one opened.
    pub fn forget_user(&self, node: NodeId) {
        self.slots.iter().for_each(|slot| slot.set_user(node, false));
    }
}

impl Slot {
    /// Whether this use of the slot still lasts.
    #[inline(always)]
    pub fn is_current(&self, generation: u64) -> bool {
        self.state.load(Ordering::Acquire) == generation << 1 | READY
    }

    fn write(&self, name: &str, resource: Resource, creator: (NodeId, Incarnation)) -> u64 {
        // A generation that is not in use: neither the former lock's, nor that of a lock whose creator died here.
        let generation = ((self.state.load(Ordering::Relaxed) >> 1) + 1) & GENERATIONS;
        self.state.store(generation << 1, Ordering::Relaxed);
        // Pairs with the fence in `name`: a reader that saw any of the new words sees the state cleared.
        fence(Ordering::Release);
        let mut bytes = [0; NAME_BYTES];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        for (word, bytes) in self.name.iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        self.name_len.store(name.len() as u64, Ordering::Relaxed);
        for (word, value) in self.resource.iter().zip(resource.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.creator.store((creator.1.0 as u64) << 32 | creator.0.0 as u64, Ordering::Relaxed);
        self.dead.store(0, Ordering::Relaxed);
        self.users.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.words.clear();
        fault_point!("key.made");
        self.state.store(generation << 1 | READY, Ordering::Release);
        generation
    }

    /// Ends this use of the slot. Call it under the domain's lock file. The words stay frozen, so that a late thread can't take
    /// the lock.
    pub fn destroy(&self, generation: u64) {
        self.words.freeze();
        self.state.store(generation << 1, Ordering::Release);
        self.words.wake_all();
    }

    /// A checked copy of the name, and the generation of the slot.
    fn name(&self) -> Option<(u64, String)> {
        let state = self.state.load(Ordering::Acquire);
        if state & READY == 0 {
            return None;
        }
        let mut bytes = [0; NAME_BYTES];
        for (word, bytes) in self.name.iter().zip(bytes.as_chunks_mut::<8>().0) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        let len = usize::try_from(self.name_len.load(Ordering::Relaxed)).unwrap_or(usize::MAX).min(NAME_BYTES);
        fence(Ordering::Acquire);
        if self.state.load(Ordering::Relaxed) != state {
            return None;
        }
        let name = std::str::from_utf8(&bytes[..len]).ok()?;
        is_name(name).then(|| (state >> 1, name.to_owned()))
    }

    /// The owner that died last.
    pub fn dead(&self) -> Option<OwnerId> {
        OwnerId::from_bits(self.dead.load(Ordering::Relaxed))
    }

    /// Records the dead owner. For the owner that took the lock from it.
    pub fn set_dead(&self, dead: OwnerId) {
        self.dead.store(dead.bits(), Ordering::Relaxed);
    }

    /// Records whether a node uses the lock.
    pub fn set_user(&self, node: NodeId, uses: bool) {
        let Some(word) = self.users.get(node.index() / 64) else { return };
        let bit = 1 << (node.index() % 64);
        if uses {
            word.fetch_or(bit, Ordering::Relaxed);
        } else if word.load(Ordering::Relaxed) & bit != 0 {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// The nodes that use the lock.
    pub fn users(&self) -> impl Iterator<Item = NodeId> {
        let words = self.users.iter().enumerate();
        words.flat_map(|(at, word)| {
            let bits = word.load(Ordering::Relaxed);
            (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| NodeId((at * 64 + bit) as u16))
        })
    }
}
