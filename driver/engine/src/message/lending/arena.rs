//! The allocator for arenas: blocks of fixed sizes. Its records are in private memory.
//!
//! A block is cut from an arena once and keeps its size. A free block is in the free list of its size. When memory is short, an
//! arena without a block in use is cut anew.

use doorbell_shm::layout::PAGE;

/// The smallest block: a cache line.
const LEAST: usize = 64;
/// Sizes up to this are powers of two; above it, four sizes to each doubling.
const LARGE: usize = 32 << 10;
const SMALL_CLASSES: usize = (LARGE / LEAST).trailing_zeros() as usize + 1;
/// The largest block is a terabyte.
const LARGEST: u32 = 40;
const CLASSES: usize = SMALL_CLASSES + 4 * (LARGEST - LARGE.trailing_zeros()) as usize;
/// The most blocks that are cut at a time, and the bytes beyond which fewer are cut.
const BATCH: usize = 16;
const BATCH_BYTES: usize = 128 << 10;
/// If fewer blocks of a size were taken since readers were last checked, more blocks are cut instead: a check costs the
/// transfer of a cache line.
const HUNGRY: u32 = 8;
/// This many blocks of a size are enough for an exchange in turns. With fewer, readers are checked while a thread waits.
const ENOUGH: usize = 8;

/// The class of blocks for `bytes` bytes; `None` if no block is so large.
#[inline(always)]
pub(crate) fn class_of(bytes: usize) -> Option<usize> {
    if bytes <= LEAST {
        return Some(0);
    }
    if bytes <= LARGE {
        return Some((bytes.next_power_of_two() / LEAST).trailing_zeros() as usize);
    }
    let octave = (bytes - 1).ilog2();
    if octave >= LARGEST {
        return None;
    }
    let step = (bytes - 1 - (1 << octave)) >> (octave - 2);
    Some(SMALL_CLASSES + 4 * (octave - LARGE.ilog2()) as usize + step)
}

/// The size of the blocks of a class in bytes.
pub(crate) fn class_bytes(class: usize) -> usize {
    match class.checked_sub(SMALL_CLASSES) {
        None => LEAST << class,
        Some(large) => {
            let octave = LARGE.ilog2() as usize + large / 4;
            (1 << octave) + ((large % 4 + 1) << (octave - 2))
        }
    }
}

/// The alignment of the blocks of a class.
fn align_of_class(class: usize) -> usize {
    class_bytes(class).min(PAGE)
}

/// Names a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockId {
    pub arena: u32,
    index: u32,
}

impl BlockId {
    /// No block.
    pub const NONE: Self = Self { arena: u32::MAX, index: u32::MAX };
}

struct Block {
    offset: usize,
    class: u8,
    /// The number of the owner's handles and the readers. 0: in a free list.
    holds: u32,
}

struct Arena {
    bytes: usize,
    cut: usize,
    /// The number of blocks in use.
    held: usize,
    blocks: Vec<Block>,
}

#[derive(Default)]
struct Class {
    /// It has capacity for all blocks of the class, so that it never grows when one comes back.
    free: Vec<BlockId>,
    blocks: usize,
    /// The blocks taken since readers were last checked.
    taken: u32,
}

/// All blocks of all arenas.
pub(crate) struct Arenas {
    arenas: Vec<Arena>,
    classes: Vec<Class>,
}

impl Arenas {
    pub fn new() -> Self {
        Self { arenas: Vec::new(), classes: (0..CLASSES).map(|_| Class::default()).collect() }
    }

    /// Adds an arena.
    pub fn add(&mut self, bytes: usize) {
        self.arenas.push(Arena { bytes, cut: 0, held: 0, blocks: Vec::new() });
    }

    /// The number of arenas.
    pub fn count(&self) -> usize {
        self.arenas.len()
    }

    /// The size of all arenas in bytes.
    pub fn bytes(&self) -> usize {
        self.arenas.iter().map(|arena| arena.bytes).sum()
    }

    /// The number of blocks in use, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        let blocks = self.arenas.iter().flat_map(|arena| &arena.blocks).filter(|block| block.holds > 0);
        blocks.fold((0, 0), |(count, bytes), block| (count + 1, bytes + class_bytes(block.class.into())))
    }

    /// Takes a free block of a class, with one holder.
    #[inline(always)]
    pub fn pop(&mut self, class: usize) -> Option<BlockId> {
        let of = self.classes.get_mut(class)?;
        let id = of.free.pop()?;
        of.taken = of.taken.saturating_add(1);
        let arena = &mut self.arenas[id.arena as usize];
        arena.held += 1;
        arena.blocks[id.index as usize].holds = 1;
        Some(id)
    }

    /// Cuts up a free block of the next larger class that has one. False if there is none. The block is whole again when its
    /// arena is cut anew.
    pub fn split(&mut self, class: usize) -> bool {
        let Some(id) = (class + 1..CLASSES).find_map(|larger| self.classes[larger].free.pop()) else { return false };
        let block = &mut self.arenas[id.arena as usize].blocks[id.index as usize];
        let old = usize::from(block.class);
        self.classes[old].blocks -= 1;
        block.class = class as u8;
        self.classes[class].blocks += 1;
        let (end, mut at) = (block.offset + class_bytes(old), block.offset + class_bytes(class));
        self.give(class, id);
        // Some blocks of the wanted size, and from the rest the largest that fit.
        for _ in 1..BATCH {
            if end - at >= class_bytes(class) {
                at = self.piece(id.arena, at, class);
            }
        }
        while end - at >= LEAST {
            let fits = |class: &usize| class_bytes(*class) <= end - at && at.is_multiple_of(align_of_class(*class));
            let Some(largest) = (0..=old).rev().find(fits) else { break };
            at = self.piece(id.arena, at, largest);
        }
        true
    }

    /// Makes a free block at an unused place. Returns where it ends.
    fn piece(&mut self, arena: u32, offset: usize, class: usize) -> usize {
        let blocks = &mut self.arenas[arena as usize].blocks;
        let id = BlockId { arena, index: blocks.len() as u32 };
        blocks.push(Block { offset, class: class as u8, holds: 0 });
        self.classes[class].blocks += 1;
        self.give(class, id);
        offset + class_bytes(class)
    }

    fn give(&mut self, class: usize, id: BlockId) {
        let of = &mut self.classes[class];
        of.free.reserve(of.blocks - of.free.len());
        of.free.push(id);
    }

    /// Whether blocks of a class are taken so fast that it is better to have more of them.
    pub fn is_hungry(&self, class: usize) -> bool {
        self.classes[class].taken < HUNGRY
    }

    /// Whether that is so when there are few and no room to cut more.
    pub fn is_short(&self, class: usize) -> bool {
        self.is_hungry(class) && self.classes[class].blocks < ENOUGH
    }

    /// Notes that readers were checked for returned blocks.
    pub fn asked(&mut self, class: usize) {
        self.classes[class].taken = 0;
    }

    /// Cuts new blocks of a class from an arena that has room. False if none has.
    pub fn cut(&mut self, class: usize) -> bool {
        let bytes = class_bytes(class);
        let align = align_of_class(class);
        let Some((number, arena)) = self
            .arenas
            .iter_mut()
            .enumerate()
            .find(|(_, arena)| arena.bytes.saturating_sub(arena.cut.next_multiple_of(align)) >= bytes)
        else {
            return false;
        };
        let first = arena.cut.next_multiple_of(align);
        let count = (arena.bytes - first) / bytes;
        let count = count.min(BATCH).min((BATCH_BYTES / bytes).max(1));
        let of = &mut self.classes[class];
        of.blocks += count;
        of.free.reserve(of.blocks - of.free.len());
        // The lowest comes first.
        for at in (0..count).rev() {
            let id = BlockId { arena: number as u32, index: arena.blocks.len() as u32 };
            arena.blocks.push(Block { offset: first + at * bytes, class: class as u8, holds: 0 });
            of.free.push(id);
        }
        arena.cut = first + count * bytes;
        true
    }

    /// Cuts anew all arenas without a block in use. False if none of them had been cut.
    pub fn renew(&mut self) -> bool {
        let mut renewed = false;
        for (number, arena) in self.arenas.iter_mut().enumerate() {
            if arena.held > 0 || arena.cut == 0 {
                continue;
            }
            for block in arena.blocks.drain(..) {
                self.classes[usize::from(block.class)].blocks -= 1;
            }
            arena.cut = 0;
            renewed = true;
            for class in &mut self.classes {
                class.free.retain(|id| id.arena as usize != number);
            }
        }
        renewed
    }

    #[inline(always)]
    fn block(&self, id: BlockId) -> &Block {
        &self.arenas[id.arena as usize].blocks[id.index as usize]
    }

    /// Whether no further block like this one is free.
    #[inline(always)]
    pub fn is_used_up(&self, id: BlockId) -> bool {
        self.classes[usize::from(self.block(id).class)].free.is_empty()
    }

    /// The size of a block in bytes.
    pub fn len(&self, id: BlockId) -> usize {
        class_bytes(self.block(id).class.into())
    }

    /// The offset of a block in its arena.
    #[inline(always)]
    pub fn offset(&self, id: BlockId) -> usize {
        self.block(id).offset
    }

    /// Adds a holder to a block in use.
    #[inline(always)]
    pub fn hold(&mut self, id: BlockId) {
        let block = &mut self.arenas[id.arena as usize].blocks[id.index as usize];
        debug_assert!(block.holds > 0, "a free block can't get a holder");
        block.holds += 1;
    }

    /// Removes a holder. The block is free when it has none.
    #[inline(always)]
    pub fn release(&mut self, id: BlockId) {
        let arena = &mut self.arenas[id.arena as usize];
        let block = &mut arena.blocks[id.index as usize];
        debug_assert!(block.holds > 0, "a block was released once too often");
        block.holds -= 1;
        if block.holds == 0 {
            arena.held -= 1;
            self.classes[usize::from(block.class)].free.push(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_hold_what_is_asked_for_and_little_more() {
        let mut last = 0;
        for class in 0..CLASSES {
            let bytes = class_bytes(class);
            assert!(bytes > last && class_of(bytes) == Some(class) && class_of(last + 1) == Some(class), "{class}: {bytes}");
            assert!(bytes <= PAGE || bytes.is_multiple_of(PAGE), "{bytes}");
            assert!(bytes > LARGE || bytes.is_power_of_two(), "{bytes}");
            last = bytes;
        }
        assert_eq!((last, class_of(last + 1), class_of(usize::MAX), class_of(0)), (1 << LARGEST, None, None, Some(0)));
    }

    proptest! {
        #[test]
        // Files and many cases: not for Miri.
        #[cfg_attr(miri, ignore)]
        fn blocks_lie_apart_and_come_back(steps in proptest::collection::vec((any::<bool>(), 1_usize..100_000), 1..200)) {
            let mut arenas = Arenas::new();
            arenas.add(256 << 10);
            arenas.add(1 << 20);
            let mut held: Vec<(BlockId, usize)> = Vec::new();
            for (take, number) in steps {
                if take || held.is_empty() {
                    let class = class_of(number).unwrap();
                    let mut got = arenas.pop(class);
                    if got.is_none() && (arenas.cut(class) || (arenas.renew() && arenas.cut(class))) {
                        got = arenas.pop(class);
                    }
                    if got.is_none() && arenas.split(class) {
                        got = arenas.pop(class);
                    }
                    let Some(id) = got else { continue };
                    let start = arenas.offset(id);
                    prop_assert!(start.is_multiple_of(number.next_power_of_two().clamp(64, PAGE)));
                    prop_assert!(start + number <= arenas.arenas[id.arena as usize].bytes);
                    for (other, len) in &held {
                        let at = arenas.offset(*other);
                        prop_assert!(other.arena != id.arena || start + number <= at || at + len <= start);
                    }
                    held.push((id, number));
                } else {
                    let (id, _) = held.swap_remove(number % held.len());
                    arenas.hold(id);
                    arenas.release(id);
                    arenas.release(id);
                }
                prop_assert_eq!(arenas.held().0, held.len());
            }
            held.into_iter().for_each(|(id, _)| arenas.release(id));
            prop_assert_eq!(arenas.held(), (0, 0));
            arenas.renew();
            prop_assert!(arenas.cut(class_of(1 << 20).unwrap()));
        }
    }
}
