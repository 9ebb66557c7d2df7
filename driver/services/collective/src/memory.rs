//! The memory that members of a team share who are on one box: channels, each with its words and a slot for each member.

use doorbell_engine::memory::copy;
use doorbell_fabric::sync::{AtomicU64, Ordering};
use doorbell_shm::channel::{Channel, Ends, Post};
use doorbell_shm::far_copy::far_copy;
use doorbell_shm::region::{OwnRegion, PeerRegion};
use std::sync::Arc;

/// How it is divided. All members know the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub members: usize,
    pub channels: usize,
    /// Bytes of the slot of one member in one channel: a multiple of 128.
    pub slot: usize,
}

impl Layout {
    /// Who gave the team up: whether anybody did, and a word for each member.
    fn farewells(&self) -> usize {
        ((1 + self.members) * size_of::<u64>()).next_multiple_of(size_of::<Post>())
    }

    fn words(&self) -> usize {
        self.members * (size_of::<Post>() + size_of::<Ends>())
    }

    fn channel(&self) -> usize {
        self.words() + self.members * self.slot
    }

    /// Of all channels.
    pub fn bytes(&self) -> usize {
        self.farewells() + self.channels * self.channel()
    }
}

/// How a member goes.
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

/// As one member has it mapped.
pub(super) struct Memory {
    base: *mut u8,
    layout: Layout,
    me: usize,
    keep: Keep,
}

// SAFETY: what it points to is mapped as long as `keep`, shared with other processes anyway, and accessed by atomics and by copies that allow other writers.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// A region of this node's own that has so many bytes, all zero.
    pub fn own(region: OwnRegion, layout: Layout, me: usize) -> Self {
        assert!(region.len() >= layout.bytes() && me < layout.members, "the region was made for this layout");
        Self { base: region.ptr(), layout, me, keep: Keep::Own(region) }
    }

    /// A region of the node that made it for the team; `None` if it is too short.
    pub fn peer(region: Arc<PeerRegion>, layout: Layout, me: usize) -> Option<Self> {
        let fits = region.len() >= layout.bytes() && me < layout.members && region.is_writable();
        fits.then(|| Self { base: region.ptr(), layout, me, keep: Keep::Peer(region) })
    }

    /// Whether it was truncated, and a page that was gone was touched.
    pub fn is_cut(&self) -> bool {
        matches!(&self.keep, Keep::Peer(region) if region.is_cut())
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    fn farewells(&self) -> &[AtomicU64] {
        // SAFETY: they are the first bytes of what is mapped (own, peer), aligned as a page, and any bytes are some.
        unsafe { std::slice::from_raw_parts(self.base.cast(), 1 + self.layout.members) }
    }

    /// Says that this member does nothing for the team any more. What it posted before stays.
    pub fn give_up(&self, farewell: Farewell) {
        self.note(self.me, farewell);
    }

    /// The same of any member.
    pub fn note(&self, member: usize, farewell: Farewell) {
        let farewells = self.farewells();
        // Release, both: who sees it sees what was posted before. A team may be dropped after its node has left.
        farewells[1 + member].fetch_max(farewell as u64, Ordering::AcqRel);
        farewells[0].store(1, Ordering::Release);
    }

    /// Whether any member gave up. A line that nobody writes as long as all go on.
    #[inline]
    pub fn has_anybody_given_up(&self) -> bool {
        self.farewells()[0].load(Ordering::Acquire) != 0
    }

    /// Whether a member gave up.
    pub fn has_given_up(&self, member: usize) -> bool {
        self.farewells()[1 + member].load(Ordering::Acquire) != 0
    }

    /// Whether it did as its node left.
    pub fn has_left(&self, member: usize) -> bool {
        self.farewells()[1 + member].load(Ordering::Acquire) == Farewell::Left as u64
    }

    /// One channel.
    #[inline]
    pub fn view(&self, channel: usize) -> View<'_> {
        let Layout { members, slot, .. } = self.layout;
        assert!(channel < self.layout.channels, "there is such a channel");
        // SAFETY: the layout's bytes are mapped (own, peer), and aligned as they begin at a page; all words are atomics, and any bytes are some.
        let (posts, ends, slots) = unsafe {
            let base = self.base.add(self.layout.farewells() + channel * self.layout.channel());
            let ends = base.add(members * size_of::<Post>());
            let posts = std::slice::from_raw_parts(base.cast::<Post>(), members);
            (posts, std::slice::from_raw_parts(ends.cast::<Ends>(), members), base.add(self.layout.words()))
        };
        View { words: Channel::new(self.me, posts, ends), slots, slot, me: self.me, members }
    }
}

/// One channel, as one member has it.
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
    /// Copies into the own slot.
    pub fn put(&self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= self.slot, "it fits the slot");
        // SAFETY: within the own slot, which is mapped as long as the view, and no part of what the caller has.
        unsafe {
            let (src, dst, len) = (from.as_ptr(), self.slots.add(self.me * self.slot + at), from.len());
            if cfg!(miri) { copy::inward(src, dst, len) } else { far_copy(src, dst, len) }
        }
    }

    /// Copies out of a member's slot.
    pub fn get(&self, member: usize, at: usize, into: &mut [u8]) {
        assert!(member < self.members && at + into.len() <= self.slot, "it lies within the slot");
        // SAFETY: within that slot, which is mapped as long as the view, and no part of what the caller has.
        unsafe {
            let (src, dst, len) = (self.slots.add(member * self.slot + at), into.as_mut_ptr(), into.len());
            if cfg!(miri) { copy::out(src, dst, len) } else { far_copy(src, dst, len) }
        }
    }
}

/// Memory of the caller, which is what a collective reads, and what it writes. The two may be the same.
#[derive(Clone, Copy)]
pub(super) struct Span {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: whoever made it keeps the bytes in place, and lets nobody else touch them, until what it was made for is over or was dropped (Span::new).
unsafe impl Send for Span {}

impl Span {
    pub const NONE: Self = Self { ptr: std::ptr::null_mut(), len: 0 };

    /// # Safety
    /// There are `len` initialised bytes at `ptr`, writable if [`write`](Self::write) is called, until the program that has it is over or was dropped; nobody
    /// else writes them, nor reads them if they are written.
    pub unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// A part of it, to be read.
    pub fn read(&self, at: usize, len: usize) -> &[u8] {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "it lies within the caller's memory");
        if len == 0 {
            return &[];
        }
        // SAFETY: within the bytes, which are initialised and there (Span::new). Programs use what they get here before they ask for more.
        unsafe { std::slice::from_raw_parts(self.ptr.add(at), len) }
    }

    /// A part of it, to be written.
    #[expect(
        clippy::mut_from_ref,
        reason = "the memory is the caller's, and two spans may be of the same; programs use one part at a time"
    )]
    pub fn write(&self, at: usize, len: usize) -> &mut [u8] {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "it lies within the caller's memory");
        if len == 0 {
            return &mut [];
        }
        // SAFETY: as in `read`, and writable.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(at), len) }
    }

    /// Copies a part of it to a part of another one, which may be of the same memory.
    pub fn copy_to(&self, at: usize, other: &Span, into: usize, len: usize) {
        let fits = |span: &Span, at: usize| at.checked_add(len).is_some_and(|end| end <= span.len);
        assert!(fits(self, at) && fits(other, into), "it lies within the caller's memory");
        if len > 0 {
            // SAFETY: within the bytes of both, which are there, and writable where they are written (Span::new).
            unsafe { std::ptr::copy(self.ptr.add(at), other.ptr.add(into), len) };
        }
    }
}
