//! The memory that the members of a team share: channels, each with its words and a slot for each member.

use doorbell_engine::memory::copy;
use doorbell_fabric::sync::{AtomicU64, Ordering};
use doorbell_shm::channel::{Channel, Ends, Post};
use doorbell_shm::choice::Choice;
use doorbell_shm::region::{OwnRegion, PeerRegion};
use std::sync::Arc;

/// How the memory is divided, alike at all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub members: usize,
    pub channels: usize,
    /// Bytes of the slot of one member in one channel: a multiple of 128.
    pub slot: usize,
}

impl Layout {
    /// Bytes of the farewells: one word that says whether any member gave the team up, and a word for each member.
    fn farewells(&self) -> usize {
        ((1 + self.members) * size_of::<u64>()).next_multiple_of(size_of::<Post>())
    }

    fn words(&self) -> usize {
        self.members * (size_of::<Post>() + size_of::<Ends>())
    }

    fn channel(&self) -> usize {
        self.words() + self.members * self.slot
    }

    /// Bytes of the whole memory.
    pub fn bytes(&self) -> usize {
        self.farewells() + self.channels * self.channel()
    }
}

/// How a member ends its part in the team.
#[derive(Clone, Copy, Debug)]
pub(super) enum Farewell {
    /// It has dropped the team, or given an operation up.
    GaveUp = 1,
    /// Its node has left.
    Left = 2,
}

enum Keep {
    Own(#[expect(dead_code, reason = "keeps it mapped and offered")] OwnRegion),
    Peer(Arc<PeerRegion>),
}

/// The memory, as one member has it mapped.
pub(super) struct Memory {
    base: *mut u8,
    layout: Layout,
    me: usize,
    keep: Keep,
}

// SAFETY: the memory is mapped as long as `keep` lives, and is accessed only by atomics and by copies that allow other writers.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// A region of this node, long enough for this layout, and all zero.
    pub fn own(region: OwnRegion, layout: Layout, me: usize) -> Self {
        assert!(region.len() >= layout.bytes() && me < layout.members, "the region was made for this layout");
        Self { base: region.ptr(), layout, me, keep: Keep::Own(region) }
    }

    /// A region of the node that made it for the team. `None` if it is too short, or cannot be written.
    pub fn peer(region: Arc<PeerRegion>, layout: Layout, me: usize) -> Option<Self> {
        let fits = region.len() >= layout.bytes() && me < layout.members && region.is_writable();
        fits.then(|| Self { base: region.ptr(), layout, me, keep: Keep::Peer(region) })
    }

    /// Whether the region was truncated, and a missing page was touched.
    pub fn is_cut(&self) -> bool {
        matches!(&self.keep, Keep::Peer(region) if region.is_cut())
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    fn farewells(&self) -> &[AtomicU64] {
        // SAFETY: they are the first bytes of the mapping (own, peer), aligned as a page, and any bytes are valid words.
        unsafe { std::slice::from_raw_parts(self.base.cast(), 1 + self.layout.members) }
    }

    /// Says that a member does nothing for the team any more. Its earlier posts stay valid.
    pub fn note(&self, member: usize, farewell: Farewell) {
        let farewells = self.farewells();
        // Release, both: a member that sees the farewell also sees the earlier posts. The greater farewell stays, as a team may be dropped after its node has left.
        farewells[1 + member].fetch_max(farewell as u64, Ordering::AcqRel);
        farewells[0].store(1, Ordering::Release);
    }

    /// Whether any member gave up. As long as all go on, no member writes this cache line.
    #[inline]
    pub fn has_anybody_given_up(&self) -> bool {
        self.farewells()[0].load(Ordering::Acquire) != 0
    }

    /// Whether a member gave up.
    pub fn has_given_up(&self, member: usize) -> bool {
        self.farewells()[1 + member].load(Ordering::Acquire) != 0
    }

    /// Whether a member gave up because its node left.
    pub fn has_left(&self, member: usize) -> bool {
        self.farewells()[1 + member].load(Ordering::Acquire) == Farewell::Left as u64
    }

    /// One channel.
    #[inline]
    pub fn view(&self, channel: usize) -> View<'_> {
        let Layout { members, slot, .. } = self.layout;
        assert!(channel < self.layout.channels, "there is such a channel");
        // SAFETY: the layout's bytes are mapped (own, peer), and aligned as they begin at a page. All words are atomics, for which any bytes are valid.
        let (posts, ends, slots) = unsafe {
            let base = self.base.add(self.layout.farewells() + channel * self.layout.channel());
            let ends = base.add(members * size_of::<Post>());
            let posts = std::slice::from_raw_parts(base.cast::<Post>(), members);
            (posts, std::slice::from_raw_parts(ends.cast::<Ends>(), members), base.add(self.layout.words()))
        };
        View { words: Channel::new(self.me, posts, ends), slots, slot, me: self.me, members }
    }
}

/// One channel, from the viewpoint of one member.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub words: Channel<'a>,
    slots: *mut u8,
    /// Bytes of a slot.
    pub slot: usize,
    pub me: usize,
    pub members: usize,
}

impl View<'_> {
    /// Copies into the own slot. `ways` chooses how, if the bytes are many.
    pub fn put(&self, at: usize, from: &[u8], ways: &mut Choice) {
        assert!(at + from.len() <= self.slot, "it fits the slot");
        // SAFETY: within the own slot, which is mapped as long as the view lives, and apart from the caller's bytes.
        unsafe {
            let (src, dst, len) = (from.as_ptr(), self.slots.add(self.me * self.slot + at), from.len());
            copy::inward_by(ways, src, dst, len);
        }
    }

    /// Copies out of a member's slot. `ways` chooses how, if the bytes are many.
    pub fn get(&self, member: usize, at: usize, into: &mut [u8], ways: &mut Choice) {
        assert!(member < self.members && at + into.len() <= self.slot, "it lies within the slot");
        // SAFETY: within that slot, which is mapped as long as the view lives, and apart from the caller's bytes.
        unsafe {
            let (src, dst, len) = (self.slots.add(member * self.slot + at), into.as_mut_ptr(), into.len());
            copy::out_by(ways, src, dst, len);
        }
    }
}
