//! Injection FIFOs: rings of descriptors on a node's board.
//!
//! The descriptors lie on the board, where the engine reads them, and tools do while the node lives and after its death. Each
//! carries a **seal**: a hash of its words and its place with a private key of the process. The engine executes no descriptor whose seal is
//! wrong, and keeps all positions in private memory. So a process that overwrites a board spoils descriptors. The hash
//! keeps out stray words and guesses; it is no cryptography. A process that may write the board, which no peer may, and has read
//! the same descriptor at two places, can seal that descriptor for a third place, where it displaces a real one.
//!
//! A FIFO has one producer at a time and one consumer, the engine. Positions count slots and never wrap. The first word of a
//! descriptor is written last and has the number of the **lap** through the ring, so that the engine finds a new descriptor in
//! the cache line that holds it.

use super::{Board, Home, Slots};
use crate::layout::{BOARD_BYTES, FIFO_BYTES, FIFO_HEAD_BYTES, FIFO_SLOTS as SLOTS, random};
use crossbeam_utils::CachePadded;
use doorbell_fabric::Priority;
use doorbell_fabric::sync::{AtomicU64, Ordering};
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use strum::FromRepr;

/// The number of slots of an injection FIFO.
pub const FIFO_SLOTS: usize = SLOTS;
/// The number of words of a descriptor.
pub const DESCRIPTOR_WORDS: usize = 8;
/// The longest name of a FIFO in bytes.
pub const FIFO_NAME_BYTES: usize = 16;

/// A descriptor as words.
pub type DescriptorWords = [u64; DESCRIPTOR_WORDS];

/// A descriptor with the hash of its words that its seal needs, so that injecting it takes no hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedWords {
    words: DescriptorWords,
    /// The first word as it is in the first lap.
    first: u64,
    /// The word that gets the seal, with the hash in the bits of the seal.
    sealed: u64,
}

impl SealedWords {
    /// Whether words leave the bits of lap and seal free.
    pub fn are_free(words: &DescriptorWords) -> bool {
        words[0] & LAP_MASK == 0 && words[SEALED] & SEAL_MASK == 0
    }

    /// Hashes the words of a descriptor, which [leave](Self::are_free) those bits free.
    pub fn new(words: DescriptorWords) -> Self {
        debug_assert!(Self::are_free(&words));
        let mixed = |at: usize| words[at].wrapping_add(KEY[at]);
        let hash = (0..4).fold(0_u64, |sum, pair| sum.wrapping_add(mixed(2 * pair).wrapping_mul(mixed(2 * pair + 1))));
        Self { words, first: words[0] | lap(0), sealed: words[SEALED] | hash & SEAL_MASK }
    }

    /// The words.
    pub fn words(&self) -> &DescriptorWords {
        &self.words
    }
}

/// The key of all seals of this process.
static KEY: LazyLock<DescriptorWords> = LazyLock::new(|| std::array::from_fn(|_| random() | 1));

/// Who injects descriptors into a FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRepr)]
#[repr(u8)]
pub enum Injector {
    /// The engine, for messages that are moved from both ends.
    Engine = 1,
    /// The program.
    Program = 2,
    /// Other nodes, by remote gets.
    Peers = 3,
}

/// What a FIFO is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FifoFacts {
    /// A name for people.
    pub name: String,
    /// Who injects.
    pub injector: Injector,
    /// The priority of its descriptors.
    pub priority: Priority,
}

// The words of a FIFO's head. The producer writes the first cache line, and the engine the second.
const FACTS: usize = 0;
const NAME: usize = 8;
const INJECTED: usize = 24;
const EXECUTED: usize = 64;
const OVER: usize = 72;
const FAULTS: usize = 80;
const BYTES: usize = 88;
const _: () = assert!(BYTES + 8 <= FIFO_HEAD_BYTES && NAME + FIFO_NAME_BYTES == INJECTED);

fn offset(number: usize) -> usize {
    BOARD_BYTES + number * FIFO_BYTES
}

fn slot_offset(number: usize, position: u64) -> usize {
    offset(number) + FIFO_HEAD_BYTES + (position as usize % SLOTS) * DESCRIPTOR_WORDS * 8
}

/// An injection FIFO of this node. Its producer and the engine share it.
#[derive(Debug)]
pub struct Fifo {
    home: Home,
    number: usize,
    facts: FifoFacts,
    /// The next free slot, and the head as the producer last saw it. The producer writes both.
    tail: CachePadded<[AtomicU64; 2]>,
    executed: CachePadded<Executed>,
    slots: Slots,
    /// What each position adds to the seal of a descriptor: random, so that no place has the seals of another.
    place: u64,
}

/// What the engine writes of a FIFO.
#[derive(Debug, Default)]
struct Executed {
    /// The oldest slot that is not over.
    head: AtomicU64,
    /// Bits of the slots that are over before older ones. Only the engine uses it and the two below.
    over: AtomicU64,
    faults: AtomicU64,
    bytes: AtomicU64,
}

/// What the engine finds in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// No descriptor was injected there yet.
    Nothing,
    /// A descriptor.
    Descriptor(DescriptorWords),
    /// A descriptor whose words another process has overwritten.
    Overwritten,
}

// A descriptor leaves these bits free: those of the lap in its first word, and those of the seal in its fifth.
const LAP_MASK: u64 = 0xff << 8;
const LAP_SHIFT: u32 = 3;
const _: () = assert!((SLOTS as u64) << LAP_SHIFT == 1 << 9);
const SEALED: usize = 4;
const SEAL_MASK: u64 = 0xffff_ffff << 32;

/// The number of a lap through the ring, never zero.
#[inline(always)]
fn lap(position: u64) -> u64 {
    position << LAP_SHIFT & LAP_MASK | 1 << 8
}

impl Fifo {
    /// Opens a FIFO on a board that has room for it. `None`: it has not. No other value with this number may exist.
    pub fn open(home: Home, number: usize, facts: FifoFacts) -> Option<Arc<Self>> {
        if number >= home.fifos() {
            return None;
        }
        let board = home.board();
        (offset(number)..offset(number) + FIFO_BYTES).step_by(8).for_each(|word| board.word(word).store(0, Ordering::Relaxed));
        let mut name = [0; FIFO_NAME_BYTES];
        let len = facts.name.len().min(FIFO_NAME_BYTES);
        name[..len].copy_from_slice(&facts.name.as_bytes()[..len]);
        for (at, word) in name.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(std::array::from_fn(|byte| word[byte]));
            board.word(offset(number) + NAME + at * 8).store(word, Ordering::Relaxed);
        }
        let word = u64::from(facts.injector as u8) | (facts.priority.index() as u64) << 8;
        // Release: a reader that sees an open FIFO sees its name.
        board.word(offset(number) + FACTS).store(word, Ordering::Release);
        let (slots, place) = (home.slots(slot_offset(number, 0)), random() & SEAL_MASK | 1 << 32);
        let (tail, executed) = (CachePadded::default(), CachePadded::default());
        Some(Arc::new(Self { home, number, facts, tail, executed, slots, place }))
    }

    /// Its number among the FIFOs of the node.
    pub fn number(&self) -> usize {
        self.number
    }

    /// What it is for.
    pub fn facts(&self) -> &FifoFacts {
        &self.facts
    }

    /// The word with the seal for a position. The position changes the bits of the seal alone.
    #[inline(always)]
    fn seal(&self, position: u64, sealed: u64) -> u64 {
        sealed.wrapping_add(self.place.wrapping_mul(position + 1))
    }

    #[inline(always)]
    fn slot(&self, position: u64) -> &[AtomicU64; DESCRIPTOR_WORDS] {
        &self.slots.get()[position as usize % SLOTS]
    }

    /// For the producer: injects descriptors, all or none. False if they find no room.
    #[inline(always)]
    pub fn push(&self, descriptors: &[SealedWords]) -> bool {
        let [tail, seen] = &*self.tail;
        let position = tail.load(Ordering::Relaxed);
        let end = position + descriptors.len() as u64;
        if end - seen.load(Ordering::Relaxed) > SLOTS as u64 && !self.look_for_room(end) {
            return false;
        }
        // The first descriptor last: the engine finds all of them.
        for (ahead, descriptor) in descriptors.iter().enumerate().rev() {
            self.write(self.slots, position + ahead as u64, descriptor);
        }
        self.show_injected(self.slots, end);
        true
    }

    /// As [`push`](Self::push) of one descriptor, except that it does not ask the engine for room.
    #[inline(always)]
    pub fn push_if_room_is_known(&self, descriptor: &SealedWords) -> bool {
        let [tail, seen] = &*self.tail;
        let position = tail.load(Ordering::Relaxed);
        if position - seen.load(Ordering::Relaxed) >= SLOTS as u64 {
            return false;
        }
        let slots = self.slots;
        self.write(slots, position, descriptor);
        self.show_injected(slots, position + 1);
        true
    }

    #[inline(always)]
    fn write(&self, slots: Slots, position: u64, SealedWords { words, first, sealed }: &SealedWords) {
        let slot = &slots.get()[position as usize % SLOTS];
        for word in (1..DESCRIPTOR_WORDS).filter(|word| *word != SEALED) {
            slot[word].store(words[word], Ordering::Relaxed);
        }
        slot[SEALED].store(self.seal(position, *sealed), Ordering::Relaxed);
        fault_point!("fifo.written");
        // Release: the engine that sees the lap sees the other words.
        slot[0].store(first | position << LAP_SHIFT & LAP_MASK, Ordering::Release);
    }

    #[inline(always)]
    fn show_injected(&self, slots: Slots, end: u64) {
        slots.head()[INJECTED / 8].store(end, Ordering::Relaxed);
        // Release: the engine that sees the position sees the descriptors.
        self.tail[0].store(end, Ordering::Release);
        fault_point!("fifo.injected");
    }

    #[cold]
    fn look_for_room(&self, end: u64) -> bool {
        // Acquire: the engine has read the slots that it gave back.
        let head = self.executed.head.load(Ordering::Acquire);
        self.tail[1].store(head, Ordering::Relaxed);
        end - head <= SLOTS as u64
    }

    /// For the producer: injects one descriptor and returns its position. `None` if it finds no room.
    pub fn inject(&self, descriptor: DescriptorWords) -> Option<u64> {
        let position = self.next_position();
        self.push(&[SealedWords::new(descriptor)]).then_some(position)
    }

    /// The slots with descriptors that are not over, and perhaps some that are. Acquire: pairs with `push`.
    #[inline]
    pub fn pending(&self) -> Range<u64> {
        self.executed.head.load(Ordering::Relaxed)..self.tail[0].load(Ordering::Acquire)
    }

    /// For the engine: the oldest slot that is not over.
    #[inline]
    pub fn oldest(&self) -> u64 {
        self.executed.head.load(Ordering::Relaxed)
    }

    /// The number of slots in use.
    #[inline]
    pub fn depth(&self) -> usize {
        // The engine may have executed a descriptor whose producer has not moved the tail yet.
        let head = self.executed.head.load(Ordering::Acquire);
        self.tail[0].load(Ordering::Acquire).saturating_sub(head).min(SLOTS as u64) as usize
    }

    /// The position of the next descriptor.
    #[inline]
    pub fn next_position(&self) -> u64 {
        self.tail[0].load(Ordering::Relaxed)
    }

    /// For the engine: whether there may be a descriptor in a slot. While the producer does nothing, the two lines that this reads stay
    /// in the engine's cache.
    #[inline]
    pub fn has(&self, position: u64) -> bool {
        self.shows(position) || position < self.tail[0].load(Ordering::Relaxed)
    }

    /// For the engine: whether a slot looks as if it had a descriptor. Reads its cache line alone.
    #[inline]
    pub fn shows(&self, position: u64) -> bool {
        self.slot(position)[0].load(Ordering::Relaxed) & LAP_MASK == lap(position)
    }

    /// For the engine: what is in a slot that is not over.
    pub fn read(&self, position: u64) -> Next {
        if let Some(words) = self.unseal(position) {
            return Next::Descriptor(words);
        }
        // Acquire: pairs with `push`. Behind the tail all words are written.
        if position >= self.tail[0].load(Ordering::Acquire) {
            return Next::Nothing;
        }
        self.unseal(position).map_or(Next::Overwritten, Next::Descriptor)
    }

    fn unseal(&self, position: u64) -> Option<DescriptorWords> {
        let slot = self.slot(position);
        // Acquire: pairs with `push`.
        let first = slot[0].load(Ordering::Acquire);
        if first & LAP_MASK != lap(position) {
            return None;
        }
        let mut words: DescriptorWords = std::array::from_fn(|word| slot[word].load(Ordering::Relaxed));
        let found = words[SEALED];
        (words[0], words[SEALED]) = (first & !LAP_MASK, found & !SEAL_MASK);
        (found == self.seal(position, SealedWords::new(words).sealed)).then_some(words)
    }

    /// For the engine: `count` slots from `position` on are over, after `bytes` bytes were moved for them. `faulty` if the
    /// descriptor failed.
    pub fn end(&self, position: u64, count: usize, bytes: u64, faulty: bool) {
        fault_point!("fifo.executed");
        let Executed { head: oldest, over: bits, faults: failed, bytes: moved } = &*self.executed;
        let mut head = oldest.load(Ordering::Relaxed);
        let mut over = bits.load(Ordering::Relaxed);
        for position in position..position + count as u64 {
            over |= 1 << (position as usize % SLOTS);
        }
        // A bit is cleared when the head passes it, so this ends.
        while over >> (head as usize % SLOTS) & 1 != 0 {
            over &= !(1 << (head as usize % SLOTS));
            head += 1;
        }
        let faults = failed.load(Ordering::Relaxed) + u64::from(faulty);
        let bytes = moved.load(Ordering::Relaxed) + bytes;
        let (board, at) = (self.home.board(), offset(self.number));
        for (word, own, value) in [(OVER, bits, over), (FAULTS, failed, faults), (BYTES, moved, bytes)] {
            own.store(value, Ordering::Relaxed);
            board.word(at + word).store(value, Ordering::Relaxed);
        }
        board.word(at + EXECUTED).store(head, Ordering::Relaxed);
        // Release: the producer overwrites slots only after they were read.
        oldest.store(head, Ordering::Release);
    }

    /// Closes it: it is not shown any more, and its number may be used again.
    pub fn close(&self) {
        self.home.board().word(offset(self.number) + FACTS).store(0, Ordering::Relaxed);
    }
}

/// An injection FIFO as its owner shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FifoShown {
    /// Its number.
    pub number: usize,
    /// What it is for.
    pub facts: FifoFacts,
    /// The number of slots that were ever injected.
    pub injected: u64,
    /// The position of the oldest descriptor that is not over.
    pub executed: u64,
    /// The number of descriptors that failed.
    pub faults: u64,
    /// The number of bytes that its descriptors have moved.
    pub bytes: u64,
    /// The descriptors that are not over, with their positions. A descriptor that was being overwritten may be torn.
    pub pending: Vec<(u64, DescriptorWords)>,
}

impl Board<'_> {
    /// The open injection FIFOs.
    pub fn fifos(self) -> Vec<FifoShown> {
        (0..self.fifo_count()).filter_map(|number| self.fifo(number)).collect()
    }

    fn fifo(self, number: usize) -> Option<FifoShown> {
        let at = offset(number);
        let facts = self.word(at + FACTS).load(Ordering::Acquire);
        let injector = Injector::from_repr(facts as u8)?;
        let priority = *Priority::ALL.get((facts >> 8 & 0xff) as usize)?;
        let name: Vec<u8> =
            self.read_words::<{ FIFO_NAME_BYTES / 8 }>(at + NAME).into_iter().flat_map(u64::to_le_bytes).collect();
        let name = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
        let [injected] = self.read_words(at + INJECTED);
        let [executed, over, faults, bytes] = self.read_words(at + EXECUTED);
        // The words may be of different moments, or forged.
        let depth = injected.saturating_sub(executed).min(SLOTS as u64);
        let pending = (injected - depth..injected).filter(|position| over >> (*position as usize % SLOTS) & 1 == 0);
        let words = |position| {
            let mut words: DescriptorWords = self.read_words(slot_offset(number, position));
            (words[0], words[SEALED]) = (words[0] & !LAP_MASK, words[SEALED] & !SEAL_MASK);
            words
        };
        let pending = pending.map(|position| (position, words(position))).collect();
        Some(FifoShown { number, facts: FifoFacts { name, injector, priority }, injected, executed, faults, bytes, pending })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::testing::HeapBoard;
    use proptest::prelude::*;

    fn facts() -> FifoFacts {
        FifoFacts { name: "halo".into(), injector: Injector::Program, priority: Priority::Low }
    }

    /// Some words that leave the bits of lap and seal free.
    fn words(seed: u64) -> DescriptorWords {
        std::array::from_fn(|at| if at == 0 { seed % 200 } else { seed * 100 + at as u64 })
    }

    fn sealed(seed: u64) -> SealedWords {
        SealedWords::new(words(seed))
    }

    #[test]
    fn what_is_injected_is_read_and_shown() {
        let room = HeapBoard::new();
        let fifo = Fifo::open(room.home.clone(), 3, facts()).unwrap();
        assert!((0..SLOTS as u64).all(|at| fifo.push(&[sealed(at)])));
        assert!(!fifo.push(&[sealed(99)]));
        assert_eq!((fifo.pending(), fifo.depth()), (0..SLOTS as u64, SLOTS));
        assert!((0..SLOTS as u64).all(|at| fifo.read(at) == Next::Descriptor(words(at))));
        // Over in another order.
        fifo.end(1, 2, 10, false);
        assert!(!fifo.push(&[sealed(99)]));
        let [shown] = &room.home.board().fifos()[..] else { panic!() };
        assert_eq!((shown.number, &shown.facts, shown.injected, shown.executed), (3, &facts(), SLOTS as u64, 0));
        assert_eq!((shown.pending[0], shown.pending[1]), ((0, words(0)), (3, words(3))));
        fifo.end(0, 1, 5, true);
        assert_eq!(fifo.pending(), 3..SLOTS as u64);
        assert!(!fifo.push(&[64, 65, 66, 67].map(sealed)));
        assert!(fifo.push(&[64, 65, 66].map(sealed)) && fifo.depth() == SLOTS);
        let [shown] = &room.home.board().fifos()[..] else { panic!() };
        assert_eq!((shown.faults, shown.bytes, shown.pending.len()), (1, 15, SLOTS));
        fifo.close();
        assert!(room.home.board().fifos().is_empty());
        assert!(Fifo::open(room.home.clone(), room.home.fifos(), facts()).is_none());
    }

    #[test]
    fn a_descriptor_that_was_overwritten_is_not_executed() {
        let room = HeapBoard::new();
        let fifo = Fifo::open(room.home.clone(), 0, facts()).unwrap();
        assert!(fifo.push(&[1, 2].map(sealed)));
        room.home.board().word(slot_offset(0, 0) + 24).store(7, Ordering::Relaxed);
        assert_eq!((fifo.read(0), fifo.read(1)), (Next::Overwritten, Next::Descriptor(words(2))));
        // What lies in a slot that was not injected is nothing, even a copy of a descriptor.
        for word in 0..8 {
            let copy = room.home.board().word(slot_offset(0, 1) + word * 8).load(Ordering::Relaxed);
            room.home.board().word(slot_offset(0, 2) + word * 8).store(copy, Ordering::Relaxed);
        }
        assert_eq!((fifo.read(2), fifo.read(3)), (Next::Nothing, Next::Nothing));
        // A descriptor that was erased is not forgotten.
        room.home.board().word(slot_offset(0, 0)).store(0, Ordering::Relaxed);
        assert!(fifo.has(0) && fifo.read(0) == Next::Overwritten);
        // Forged positions neither hide nor invent descriptors.
        for word in [INJECTED, EXECUTED, OVER] {
            room.home.board().word(offset(0) + word).store(u64::MAX, Ordering::Relaxed);
        }
        assert_eq!((fifo.pending(), fifo.depth()), (0..2, 2));
        assert_eq!(room.home.board().fifos().len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 128 }, failure_persistence: None, ..Default::default() })]

        #[test]
        fn each_descriptor_is_read_once_however_they_end(order in proptest::collection::vec((1_usize..5, any::<u64>()), 1..if cfg!(miri) { 8 } else { 120 })) {
            let room = HeapBoard::new();
            let fifo = Fifo::open(room.home.clone(), 1, facts()).unwrap();
            let (mut pushed, mut live) = (0_u64, Vec::new());
            for (count, pick) in order {
                let new: Vec<_> = (pushed..pushed + count as u64).map(sealed).collect();
                let fits = fifo.depth() + count <= SLOTS;
                prop_assert_eq!(fifo.push(&new), fits);
                if fits {
                    live.extend(pushed..pushed + count as u64);
                    pushed += count as u64;
                } else {
                    let at = live.remove((pick % live.len() as u64) as usize);
                    prop_assert_eq!(fifo.read(at), Next::Descriptor(words(at)));
                    fifo.end(at, 1, 1, false);
                }
                prop_assert_eq!(fifo.pending(), live.first().copied().unwrap_or(pushed)..pushed);
                let shown: Vec<_> = room.home.board().fifos()[0].pending.iter().map(|(position, _)| *position).collect();
                prop_assert_eq!(&shown, &live);
            }
        }
    }
}
