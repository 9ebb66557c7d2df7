//! The owner's side: the arenas, the holders of blocks, and how blocks come back.

use super::arena::{Arenas, BlockId, class_bytes, class_of};
use super::lease::Lease;
use crate::Result;
use crate::error::Error;
use crate::memory::table::RegionTable;
use crate::message::outbound::OutState;
use crate::sync::baton::{Baton, BatonGuard, Token};
use doorbell_fabric::sync::{AtomicBool, AtomicU64, Ordering};
use doorbell_fabric::{Incarnation, NodeId, Push};
use doorbell_shm::domain::Membership;
use doorbell_shm::region::OwnRegion;
use doorbell_shm::returns::{RETURNS, Returns};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// The size of the first arena, unless a loan needs more.
const FIRST: usize = 1 << 20;
/// A new arena has room for this many blocks of the size for which it is made.
const SOME: usize = 4;
/// The most bytes of an arena that is made although readers could be checked for returned blocks.
const COMFORT: usize = 32 << 20;
/// For loans from this length on, returned blocks are collected as soon as another loan was sent.
const WARM_BYTES: usize = 256 << 10;
/// For loans from this length on, the blocks of the latest loans are collected before another is granted, too. A conversation then uses one
/// block on each side and not two, because four would not fit into the cache that the processors share.
const REUSE_BYTES: usize = 2 << 20;
/// How many loans of each reader are the latest. A reader may hold a thousand for long.
const LATEST: usize = 4;
/// The most arenas of a node.
pub(crate) const ARENAS_MAX: usize = 256;

/// All loans of a node. Part of its `Shared`; thread-safe. Lock order: a thread that holds a send queue may enter the records,
/// but not the other way round.
pub(crate) struct Lender {
    books: Baton<Books>,
    /// Held while an arena is made, so that two threads do not make two.
    growing: Mutex<()>,
    /// There was no room for an arena. No further one is tried if readers can be checked instead.
    cramped: AtomicBool,
    limit: usize,
    /// The bytes of loans sent so far. The thread that holds the records writes it with plain stores.
    lent: AtomicU64,
    membership: Arc<Membership>,
    regions: Arc<RegionTable>,
}

struct Books {
    arenas: Arenas,
    /// One for each arena. They stay until the node is gone: readers may have mapped them, and handles point into them.
    memory: Vec<OwnRegion>,
    readers: Vec<Option<Box<Reader>>>,
}

/// The loans of one reader.
struct Reader {
    incarnation: Incarnation,
    returns: Returns,
    slots: Vec<Slot>,
    /// The free slots, and the slots in use: neither list ever grows.
    free: Vec<u16>,
    out: Vec<u16>,
}

#[derive(Clone, Copy)]
struct Slot {
    /// Continues across incarnations of the reader, because the words in shared memory stay.
    generation: u32,
    block: BlockId,
}

/// A granted block and its address.
type Grant = (BlockId, NonNull<u8>);

/// A loan that is to be sent.
#[derive(Clone, Copy)]
pub(crate) struct Parcel {
    pub tag: u64,
    pub block: BlockId,
    pub len: usize,
    /// Whether the handle keeps holding the block.
    pub keep: bool,
}

/// How much memory a node lends now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoanStats {
    /// The bytes of shared memory taken for loans.
    pub reserved: usize,
    /// Of these, the bytes of blocks in use by a handle of this node or by a reader.
    pub held: usize,
    /// The number of blocks in use.
    pub blocks: usize,
    /// The number of pending loans: each reader of a block counts.
    pub out: usize,
}

impl Lender {
    pub fn new(membership: Arc<Membership>, regions: Arc<RegionTable>, limit: usize) -> Self {
        let readers = (0..membership.max_nodes()).map(|_| None).collect();
        let books = Books { arenas: Arenas::new(), memory: Vec::new(), readers };
        let (books, growing, lent) = (Baton::new(books), Mutex::default(), AtomicU64::new(0));
        Self { books, growing, cramped: AtomicBool::new(false), limit, lent, membership, regions }
    }

    #[inline(always)]
    fn enter(&self, me: Token) -> Result<BatonGuard<'_, Books>> {
        // No code of the program runs in here, so no thread enters twice.
        match self.books.enter(me) {
            Some(books) => Ok(books),
            None => Err(Error::Reentrant { operation: "loan" }),
        }
    }

    /// Bytes of loans sent so far.
    pub fn lent(&self) -> u64 {
        self.lent.load(Ordering::Relaxed)
    }

    /// A block for `bytes` bytes.
    #[inline(always)]
    pub(crate) fn grant(&self, me: Token, bytes: usize) -> Result<Grant> {
        if let Some(class) = class_of(bytes) {
            let mut books = self.enter(me)?;
            if bytes >= REUSE_BYTES {
                books.collect_latest();
            }
            if let Some(block) = books.arenas.pop(class) {
                return Ok(books.grant(block));
            }
        }
        self.grant_slow(me, bytes)
    }

    /// No block of the size is free: checks readers, cuts more blocks, and finally makes an arena.
    #[cold]
    fn grant_slow(&self, me: Token, bytes: usize) -> Result<Grant> {
        let none = || Error::LoansOut { bytes, limit: self.limit };
        let class = class_of(bytes).filter(|_| bytes <= self.limit).ok_or_else(none)?;
        let (least, some) = (class_bytes(class), class_bytes(class).saturating_mul(SOME));
        let comfort = |room: usize| some <= room.min(COMFORT) && !self.cramped.load(Ordering::Relaxed);
        let grant = {
            let mut books = self.enter(me)?;
            let asks = !comfort(self.room(&books));
            books.find(class, asks)
        };
        if let Some(grant) = grant {
            return Ok(grant);
        }
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let (room, reserved) = {
            let mut books = self.enter(me)?;
            let room = self.room(&books);
            if let Some(grant) = books.find(class, !comfort(room)) {
                // Another thread has just made an arena.
                return Ok(grant);
            }
            (room, books.arenas.bytes())
        };
        if least > room {
            return self.enter(me)?.find_in_larger(class).ok_or_else(none);
        }
        // Each arena is as large as all earlier ones together, so that there are few.
        let wish = FIRST.max(reserved).max(some).min(room);
        let number = || self.regions.next_number();
        let region = self.membership.create_region(number(), wish);
        if region.is_err() {
            self.cramped.store(true, Ordering::Relaxed);
        }
        // If there is no room for this size, there may be for a smaller one.
        let region = if wish > least { region.or_else(|_| self.membership.create_region(number(), least)) } else { region };
        let mut books = self.enter(me)?;
        match region {
            Ok(region) => {
                books.arenas.add(region.len());
                books.memory.push(region);
            }
            // The arena may have been optional.
            Err(error) => return books.find(class, true).ok_or_else(|| error.into()),
        }
        books.find(class, true).ok_or_else(none)
    }

    /// The bytes that further arenas may take.
    fn room(&self, books: &Books) -> usize {
        if books.arenas.count() < ARENAS_MAX { self.limit.saturating_sub(books.arenas.bytes()) } else { 0 }
    }

    /// Adds a holder to the block.
    pub(crate) fn hold(&self, me: Token, block: BlockId) -> Result<()> {
        self.enter(me)?.arenas.hold(block);
        Ok(())
    }

    /// Removes a holder of the block.
    #[inline(always)]
    pub(crate) fn release(&self, me: Token, block: BlockId) {
        if let Ok(mut books) = self.enter(me) {
            books.arenas.release(block);
        }
    }

    /// Puts a loan's packet into a lane. If that succeeds, the reader holds the block: in addition to the caller if `keep` is
    /// set, else in its place. `Full` also if the reader has as many loans as it can have. `None`: there is no memory for the words
    /// by which it would give them back.
    #[inline(always)]
    pub(crate) fn offer(&self, me: Token, state: &mut OutState, node: NodeId, parcel: &Parcel) -> Result<Option<Push>> {
        let Parcel { tag, block, len, keep } = *parcel;
        let mut books = self.enter(me)?;
        let (slot, generation) = match books.reserve(&self.membership, node, state.incarnation, block) {
            Some(Some(reserved)) => reserved,
            Some(None) => return Ok(Some(Push::Full)),
            None => return Ok(None),
        };
        let (region, offset) = books.place(block);
        let lease = Lease { arena: region.number(), slot, generation, offset: offset as u64, len: len as u64 };
        let push = state.push_loan(tag, &lease.encode(), len);
        if push != Push::Done {
            books.cancel(node, slot);
            return Ok(Some(push));
        }
        if keep {
            books.arenas.hold(block);
        }
        self.lent.store(self.lent.load(Ordering::Relaxed).wrapping_add(len as u64), Ordering::Relaxed);
        // Collect now, while the message travels, and not when the next loan is written. A large block that just came back is
        // still in the caches, and is used next.
        if len >= WARM_BYTES || books.arenas.is_used_up(block) {
            books.collect();
        }
        Ok(Some(push))
    }

    /// An incarnation of a reader is gone and holds nothing any more. Returns how many loans it had, and the bytes of their
    /// blocks.
    pub fn drop_holds(&self, node: NodeId, incarnation: Incarnation) -> (usize, u64) {
        if let Ok(mut books) = self.enter(Token::current()) {
            let Books { arenas, readers, .. } = &mut *books;
            if let Some(Some(reader)) = readers.get_mut(node.index())
                && reader.incarnation == incarnation
            {
                reader.collect(arenas);
                return reader.drop_all(arenas);
            }
        }
        (0, 0)
    }

    /// How much is lent, after collecting returned loans.
    pub fn stats(&self, me: Token) -> Result<LoanStats> {
        let mut books = self.enter(me)?;
        books.collect();
        let (blocks, held) = books.arenas.held();
        let out = books.readers.iter().flatten().map(|reader| reader.out.len()).sum();
        Ok(LoanStats { reserved: books.arenas.bytes(), held, blocks, out })
    }
}

impl Books {
    #[inline(always)]
    fn grant(&self, block: BlockId) -> Grant {
        let (region, offset) = self.place(block);
        // SAFETY: a block lies within its arena, and no mapping begins at zero.
        (block, unsafe { NonNull::new_unchecked(region.ptr()).add(offset) })
    }

    /// The region of a block, and the offset in it.
    #[inline(always)]
    fn place(&self, block: BlockId) -> (&OwnRegion, usize) {
        (&self.memory[block.arena as usize], self.arenas.offset(block))
    }

    /// Finds a block of this size in the existing arenas. If blocks are few, readers are checked only with `asks`.
    fn find(&mut self, class: usize, asks: bool) -> Option<Grant> {
        let hungry = self.arenas.is_hungry(class) && self.arenas.cut(class);
        if !hungry {
            if !asks && self.arenas.is_short(class) {
                return None;
            }
            self.collect();
            self.arenas.asked(class);
        }
        let mut block = self.arenas.pop(class);
        if block.is_none() && (self.arenas.cut(class) || (self.arenas.renew() && self.arenas.cut(class))) {
            block = self.arenas.pop(class);
        }
        block.map(|block| self.grant(block))
    }

    fn find_in_larger(&mut self, class: usize) -> Option<Grant> {
        let block = if self.arenas.split(class) { self.arenas.pop(class) } else { None };
        block.map(|block| self.grant(block))
    }

    /// Collects the blocks that readers have returned.
    fn collect(&mut self) {
        for reader in self.readers.iter_mut().flatten() {
            reader.collect(&mut self.arenas);
        }
    }

    /// Collects those of the latest loans that readers have returned.
    fn collect_latest(&mut self) {
        for reader in self.readers.iter_mut().flatten() {
            reader.collect_latest(&mut self.arenas);
        }
    }

    /// Reserves a slot for a block at a reader. `Some(None)` if all are in use, and `None` if the reader cannot have any.
    #[inline(always)]
    fn reserve(
        &mut self,
        membership: &Arc<Membership>,
        node: NodeId,
        incarnation: Incarnation,
        block: BlockId,
    ) -> Option<Option<(u16, u32)>> {
        let place = self.readers.get_mut(node.index())?;
        let reader = match place {
            Some(reader) => reader,
            None => place.insert(Box::new(Reader::new(membership, node, incarnation)?)),
        };
        if reader.incarnation != incarnation {
            reader.drop_all(&mut self.arenas);
            reader.incarnation = incarnation;
        }
        if reader.free.is_empty() {
            reader.collect(&mut self.arenas);
        }
        let Some(number) = reader.free.pop() else { return Some(None) };
        reader.out.push(number);
        let slot = &mut reader.slots[usize::from(number)];
        // Never zero, so that a zeroed word returns nothing.
        *slot = Slot { generation: slot.generation.wrapping_add(1).max(1), block };
        Some(Some((number, slot.generation)))
    }

    /// Frees the slot that was reserved last.
    #[cold]
    fn cancel(&mut self, node: NodeId, slot: u16) {
        if let Some(Some(reader)) = self.readers.get_mut(node.index())
            && reader.out.pop_if(|last| *last == slot).is_some()
        {
            reader.free.push(slot);
        }
    }
}

impl Reader {
    #[cold]
    fn new(membership: &Membership, node: NodeId, incarnation: Incarnation) -> Option<Self> {
        let returns = Returns::of_reader(membership, node);
        let returns = returns.inspect_err(|error| tracing::debug!(node = node.0, %error, "cannot lend to a node")).ok()?;
        let slots = vec![Slot { generation: 0, block: BlockId::NONE }; RETURNS];
        // The lowest slot comes first, so that few cache lines are in use.
        let free = (0..RETURNS as u16).rev().collect();
        Some(Self { incarnation, returns, slots, free, out: Vec::with_capacity(RETURNS) })
    }

    fn collect(&mut self, arenas: &mut Arenas) {
        self.collect_from(0, arenas);
    }

    fn collect_latest(&mut self, arenas: &mut Arenas) {
        self.collect_from(self.out.len().saturating_sub(LATEST), arenas);
    }

    /// Collects returned loans, except the first `kept` ones.
    fn collect_from(&mut self, kept: usize, arenas: &mut Arenas) {
        let Self { returns, slots, free, out, .. } = self;
        let mut at = 0;
        out.retain(|number| {
            at += 1;
            if at <= kept {
                return true;
            }
            let Slot { generation, block } = slots[usize::from(*number)];
            let back = returns.is_back(*number, generation);
            if back {
                arenas.release(block);
                free.push(*number);
            }
            !back
        });
    }

    fn drop_all(&mut self, arenas: &mut Arenas) -> (usize, u64) {
        let (mut count, mut bytes) = (0, 0);
        for number in self.out.drain(..) {
            let block = self.slots[usize::from(number)].block;
            (count, bytes) = (count + 1, bytes + arenas.len(block) as u64);
            arenas.release(block);
            self.free.push(number);
        }
        (count, bytes)
    }
}
