//! Keys by name. Keys are made and destroyed under the domain's lock; they are found and used without one.

use super::seat::Seat;
use super::waits::Waits;
use super::word::{LockWords, OwnerId, Seen};
use crate::layout::{PAGE, extend_hash};
use doorbell_fabric::{Incarnation, NodeId};
use std::fmt;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Keys of a domain at a time.
pub const KEYS_MAX: usize = 512;
/// Bytes of a key's name.
pub const NAME_BYTES: usize = 40;
const NODES: usize = crate::domain::MAX_NODES;
const READY: u64 = 1;
const GENERATIONS: u64 = u64::MAX >> 1;

/// Where those who wait are entered, and where the seat is.
const WAITS_OFFSET: usize = (KEYS_MAX * size_of::<Slot>()).next_multiple_of(PAGE);
const SEAT_OFFSET: usize = WAITS_OFFSET + size_of::<Waits>();

/// The bytes of the whole registry, in whole pages.
pub(crate) const TABLE_BYTES: usize = WAITS_OFFSET + size_of::<Waits>() + size_of::<Seat>();

/// Two builds with the same number agree on every byte of it.
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

/// A place for a key. All zero is free.
#[repr(C, align(128))]
pub(crate) struct Slot {
    pub words: LockWords,
    /// Generation 63 | ready 1. Written last, and cleared first. A generation never comes back.
    state: AtomicU64,
    /// The owner that died last, if the key is damaged.
    dead: AtomicU64,
    creator: AtomicU64,
    name_len: AtomicU64,
    name: [AtomicU64; NAME_BYTES / 8],
    resource: [AtomicU64; 4],
    /// The nodes that have opened it, a bit for each.
    users: [AtomicU64; NODES / 64],
}

/// What a key guards: for people and programs to know; nothing is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Resource {
    /// Whatever those who use the key agreed on.
    Unnamed,
    /// Memory by its addresses, wherever these mean something.
    Memory {
        /// The first.
        start: u64,
        /// The first behind it.
        end: u64,
    },
    /// Bytes of a region.
    Region {
        /// The node that owns it.
        node: NodeId,
        /// Which life of that node.
        life: Incarnation,
        /// The region's number there.
        number: u64,
        /// How many bytes it has.
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

    /// As four words.
    pub const fn to_words(self) -> [u64; 4] {
        match self {
            Resource::Unnamed => [0; 4],
            Resource::Memory { start, end } => [1, start, end, 0],
            Resource::Region { node, life, number, bytes } => [2, (life.0 as u64) << 32 | node.0 as u64, number, bytes],
            Resource::Device(number) => [3, number, 0, 0],
            Resource::Id(number) => [4, number, 0, 0],
        }
    }

    /// From four words; what nobody writes is [`Resource::Unnamed`].
    pub const fn from_words(words: [u64; 4]) -> Self {
        let [kind, a, b, c] = words;
        match kind {
            1 => Resource::Memory { start: a, end: b },
            2 => Resource::Region { node: NodeId(a as u16), life: Incarnation((a >> 32) as u32), number: b, bytes: c },
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

/// Why a key can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// There is one of this name.
    #[error("a key '{name}' exists already; find it by its name, or destroy it first")]
    Exists {
        /// The name.
        name: String,
    },
    /// No room for another.
    #[error(
        "the registry is full: it has {KEYS_MAX} keys; destroy those that nobody uses any more (`doorbell ls --locks` shows them)"
    )]
    Full,
    /// Not a name.
    #[error("'{name}' is no name of a key: 1 to 40 bytes without control characters are")]
    Name {
        /// What was given.
        name: String,
    },
}

/// A key by its place. Means something in its domain only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyRef {
    /// Which slot.
    pub slot: u16,
    /// Which use of the slot.
    pub generation: u64,
}

/// What the registry says of a key, copied and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFacts {
    /// Its place.
    pub key: KeyRef,
    /// Its name.
    pub name: String,
    /// What it guards.
    pub resource: Resource,
    /// The node that made it, and its life.
    pub creator: (NodeId, Incarnation),
    /// Its value.
    pub seen: Seen,
    /// The owner that died and left it damaged, if one did.
    pub dead: Option<OwnerId>,
    /// The nodes that have opened it and not released it.
    pub users: Vec<NodeId>,
    /// Who waits for it, as far as is known.
    pub waiting: Vec<OwnerId>,
}

/// All keys of a domain.
pub(crate) struct KeyTable<'a> {
    slots: &'a [Slot],
    waits: &'a Waits,
    seat: &'a Seat,
}

/// Whether a key may be called so.
fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
}

impl<'a> KeyTable<'a> {
    /// The table that begins here.
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

    /// The slot of a key.
    #[inline(always)]
    pub fn slot(&self, slot: u16) -> Option<&'a Slot> {
        self.slots.get(slot as usize)
    }

    /// Who waits for what.
    pub fn waits(&self) -> &'a Waits {
        self.waits
    }

    /// Where the registry is.
    pub fn seat(&self) -> &'a Seat {
        self.seat
    }

    /// The value of a key, by its place.
    pub fn seen(&self, slot: usize) -> Option<Seen> {
        self.slots.get(slot).map(|slot| slot.words.get())
    }

    /// The key of this name.
    pub fn find(&self, name: &str) -> Option<KeyRef> {
        (0..KEYS_MAX as u16).find_map(|slot| {
            let at = &self.slots[slot as usize];
            let (generation, found) = at.name()?;
            (found == name).then_some(KeyRef { slot, generation })
        })
    }

    /// Makes a key. Under the domain's lock.
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

    /// What is known of a key.
    pub fn facts(&self, slot: u16) -> Option<KeyFacts> {
        let at = self.slot(slot)?;
        let (generation, name) = at.name()?;
        let creator = at.creator.load(Ordering::Relaxed);
        let resource = Resource::from_words(std::array::from_fn(|word| at.resource[word].load(Ordering::Relaxed)));
        let seen = at.words.get();
        let facts = KeyFacts {
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

    /// All keys there are.
    pub fn all(&self) -> Vec<KeyFacts> {
        (0..KEYS_MAX as u16).filter_map(|slot| self.facts(slot)).collect()
    }

    /// A node begins a new life: what its former one had opened is not its own.
    pub fn forget_user(&self, node: NodeId) {
        self.slots.iter().for_each(|slot| slot.set_user(node, false));
    }
}

impl Slot {
    /// Whether this use of the slot goes on.
    #[inline(always)]
    pub fn is_current(&self, generation: u64) -> bool {
        self.state.load(Ordering::Acquire) == generation << 1 | READY
    }

    fn write(&self, name: &str, resource: Resource, creator: (NodeId, Incarnation)) -> u64 {
        // One that nobody uses: that of the former key, or of one whose maker died here.
        let generation = ((self.state.load(Ordering::Relaxed) >> 1) + 1) & GENERATIONS;
        self.state.store(generation << 1, Ordering::Relaxed);
        // Pairs with the fence in `name`: who saw any of the new words sees the state cleared.
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

    /// Ends this use of the slot. Under the domain's lock. The words stay barred, so that who comes late takes nothing.
    pub fn destroy(&self, generation: u64) {
        self.words.bar();
        self.state.store(generation << 1, Ordering::Release);
        self.words.wake_all();
    }

    /// A checked copy of its name, and of which use of the slot that is.
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

    /// Says who died. For whoever took the key from it.
    pub fn set_dead(&self, dead: OwnerId) {
        self.dead.store(dead.bits(), Ordering::Relaxed);
    }

    /// Says that a node uses the key, or does not any more.
    pub fn set_user(&self, node: NodeId, uses: bool) {
        let Some(word) = self.users.get(node.index() / 64) else { return };
        let bit = 1 << (node.index() % 64);
        if uses {
            word.fetch_or(bit, Ordering::Relaxed);
        } else if word.load(Ordering::Relaxed) & bit != 0 {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// The nodes that use the key.
    pub fn users(&self) -> impl Iterator<Item = NodeId> {
        let words = self.users.iter().enumerate();
        words.flat_map(|(at, word)| {
            let bits = word.load(Ordering::Relaxed);
            (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| NodeId((at * 64 + bit) as u16))
        })
    }
}
