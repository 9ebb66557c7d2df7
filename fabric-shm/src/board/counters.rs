//! DMA counters: the number of bytes still to move, and a status bit for zero.
//!
//! The authoritative count is private memory of the owner; the board only displays it. **Setting** a counter to a number of bytes
//! begins a *use*, which has its own generation. The code that moves bytes **lowers** the counter. The call that brings it to
//! zero learns so, once. It also sets the counter's bit in the status register, which stays set until the owner clears it or sets
//! the counter again. A call that arrives late for an earlier use changes nothing.
//!
//! Each use also has a random **secret**, by which other nodes name it. Neither the board nor the flight recorder ever shows the
//! secret; the generation may be shown.

use super::Home;
use crate::layout::{COUNTER_STATUS_OFFSET, COUNTERS as LAYOUT_COUNTERS, COUNTERS_OFFSET, COUNTERS_USED_OFFSET, random};
use crossbeam_utils::CachePadded;
use doorbell_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of DMA counters of a node.
pub const COUNTERS: usize = LAYOUT_COUNTERS;

/// Bits of a counter's word that hold its value. The other bits hold the low bits of its generation.
const VALUE_BITS: u32 = 44;
const VALUE_MASK: u64 = (1 << VALUE_BITS) - 1;
/// Low bits of a generation. A counter's word holds them, and so does the secret of each use.
const GENERATION_MASK: u32 = (1 << (64 - VALUE_BITS)) - 1;

/// The largest number of bytes that a counter can count: 16 TiB less one.
pub const COUNTER_BYTES_MAX: u64 = VALUE_MASK;

/// The counter status register: bit `index % 64` of word `index / 64` is set once that counter has reached zero.
pub type Status = [u64; COUNTERS / 64];

/// How a caller that lowers a counter names its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// By its generation.
    Of(u32),
    /// By the last bits of its secret, which are those of its generation. For the owner's own use of a key: it checks less.
    EndsIn(u32),
}

/// The result of lowering a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Lowered {
    /// This many bytes are left.
    Left(u64),
    /// This call brought the counter to zero, which happens once for each use. It asked for `excess` bytes more than were left.
    Zero {
        /// Surplus bytes.
        excess: u64,
    },
    /// The counter was at zero already; nothing changed.
    Already,
    /// This use of the counter has ended, or there is no such counter; nothing changed.
    Stale,
}

impl Lowered {
    /// Whether this call brought the counter to zero.
    pub fn reached_zero(self) -> bool {
        matches!(self, Lowered::Zero { .. })
    }
}

/// The state of a counter, read while its use can neither begin nor end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The generation of the use.
    pub generation: u32,
    /// The secret by which other nodes name the use.
    pub secret: u64,
    /// The number of bytes that the use began with.
    pub size: u64,
    /// Whether it has reached zero and a caller has been told.
    pub zero: bool,
    /// Whether it was set since it was taken.
    pub set: bool,
}

/// The DMA counters of a node. Thread-safe. `T` is the owner's data for each counter, such as the callback for zero.
///
/// Lowering is one compare-and-swap and one store to the board. Beginning or ending a use takes the counter's own short lock.
pub struct Counters<T> {
    home: Home,
    /// Each in cache lines of its own: one thread waits for a counter while another lowers its neighbour.
    slots: Box<[CachePadded<Slot<T>>]>,
    status: [AtomicU64; COUNTERS / 64],
    used: Mutex<Status>,
}

#[derive(Debug)]
struct Slot<T> {
    /// Generation and value.
    word: AtomicU64,
    /// The whole generation.
    generation: AtomicU32,
    life: Mutex<Life<T>>,
}

#[derive(Debug, Default)]
struct Life<T> {
    size: u64,
    /// Random, new for each use.
    secret: u64,
    /// The use has not reached zero yet.
    counting: bool,
    /// The counter was set since it was taken.
    set: bool,
    kept: T,
}

/// A secret that tells the low bits of its generation.
fn secret(generation: u32) -> u64 {
    random() & !u64::from(GENERATION_MASK) | u64::from(generation & GENERATION_MASK)
}

fn pack(generation: u32, value: u64) -> u64 {
    u64::from(generation) << VALUE_BITS | value
}

impl<T: Default> Counters<T> {
    /// Counters that are all free and at zero.
    pub fn new(home: Home) -> Self {
        let slot = |_| {
            let life = Mutex::new(Life { secret: secret(0), ..Life::default() });
            CachePadded::new(Slot { word: AtomicU64::new(0), generation: AtomicU32::new(0), life })
        };
        let slots = (0..COUNTERS).map(slot).collect();
        Self { home, slots, status: [const { AtomicU64::new(0) }; COUNTERS / 64], used: Mutex::default() }
    }

    /// Takes the lowest free counter, or `None` if all are in use. The counter is at zero and its status bit is clear.
    pub fn take(&self) -> Option<usize> {
        let mut used = lock(&self.used);
        let word = used.iter().position(|word| *word != u64::MAX)?;
        let bit = used[word].trailing_ones() as usize;
        used[word] |= 1 << bit;
        self.home.board().word(COUNTERS_USED_OFFSET + word * 8).store(used[word], Ordering::Relaxed);
        Some(word * 64 + bit)
    }

    /// Gives a counter back: ends its use, clears its bit, and returns the owner's data.
    pub fn give_back(&self, index: usize) -> T {
        let Some(slot) = self.slots.get(index) else { return T::default() };
        let kept = {
            let mut life = lock(&slot.life);
            life.secret = secret(slot.generation.load(Ordering::Relaxed).wrapping_add(1));
            self.begin(index, slot, &mut life, 0);
            life.set = false;
            self.mark(index, false);
            std::mem::take(&mut life.kept)
        };
        let mut used = lock(&self.used);
        used[index / 64] &= !(1 << (index % 64));
        self.home.board().word(COUNTERS_USED_OFFSET + index / 64 * 8).store(used[index / 64], Ordering::Relaxed);
        kept
    }

    /// The number of counters in use.
    pub fn used(&self) -> usize {
        lock(&self.used).iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Begins a use with this many bytes and returns its generation. Returns `None` if the counter cannot count them or does not
    /// exist. Clears the status bit; with zero bytes the counter is at zero at once. `begun` runs before any thread can lower the
    /// counter.
    pub fn set(&self, index: usize, bytes: u64, begun: impl FnOnce(&mut T, Standing)) -> Option<u32> {
        let slot = self.slots.get(index).filter(|_| bytes <= COUNTER_BYTES_MAX)?;
        let mut life = lock(&slot.life);
        self.mark(index, bytes == 0);
        let generation = slot.generation.load(Ordering::Relaxed).wrapping_add(1);
        life.secret = secret(generation);
        let standing = Standing { generation, secret: life.secret, size: bytes, zero: bytes == 0, set: true };
        begun(&mut life.kept, standing);
        self.begin(index, slot, &mut life, bytes);
        Some(generation)
    }

    fn begin(&self, index: usize, slot: &Slot<T>, life: &mut Life<T>, bytes: u64) {
        let generation = slot.generation.load(Ordering::Relaxed).wrapping_add(1);
        (life.size, life.counting, life.set) = (bytes, bytes > 0, true);
        slot.generation.store(generation, Ordering::Relaxed);
        // Release: a thread that lowers this use sees everything written before it began. The whole word changes at once, so a
        // late call for the former use finds another generation.
        slot.word.swap(pack(generation, bytes), Ordering::AcqRel);
        self.home.board().word(size_word(index)).store(bytes, Ordering::Relaxed);
        self.show_value(index, slot);
    }

    /// Subtracts moved bytes from a use of a counter, down to zero at most. All arguments may come from outside.
    ///
    /// The call that brings it to zero sets the status bit and runs `zero` with the owner's data, unless another use has begun by
    /// then. Acquire and release: a thread that sees zero also sees everything that the lowering threads did before.
    pub fn lower(&self, index: usize, which: Use, bytes: u64, zero: impl FnOnce(&mut T, Standing)) -> Lowered {
        let Some(slot) = self.slots.get(index) else { return Lowered::Stale };
        let (mut word, low) = match which {
            Use::Of(generation) => (slot.word.load(Ordering::Acquire), generation),
            // A guess that is often right. A thread that waits for zero keeps reading the word, so a load before the
            // compare-and-swap would fetch the cache line twice.
            Use::EndsIn(low) => (pack(low, bytes.clamp(1, VALUE_MASK)), low),
        };
        let is_current = || {
            let generation = slot.generation.load(Ordering::Relaxed);
            match which {
                Use::Of(of) => generation == of,
                Use::EndsIn(low) => (generation ^ low) & GENERATION_MASK == 0,
            }
        };
        let is_whole = matches!(which, Use::Of(_));
        let left = loop {
            let value = word & VALUE_MASK;
            if word != pack(low, value) || is_whole && !is_current() {
                return Lowered::Stale;
            }
            if value == 0 {
                return Lowered::Already;
            }
            let left = value.saturating_sub(bytes);
            match slot.word.compare_exchange(word, pack(low, left), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if left == 0 => {
                    fault_point!("counter.lowered");
                    break bytes - value;
                }
                Ok(_) => {
                    self.show_value(index, slot);
                    return Lowered::Left(left);
                }
                Err(now) => word = now,
            }
        };
        let mut life = lock(&slot.life);
        // Otherwise the owner has seen zero and begun another use already.
        if is_current() {
            self.show_value(index, slot);
            life.counting = false;
            self.mark(index, true);
            let generation = slot.generation.load(Ordering::Relaxed);
            let standing = Standing { generation, secret: life.secret, size: life.size, zero: true, set: true };
            zero(&mut life.kept, standing);
        }
        Lowered::Zero { excess: left }
    }

    /// Adds bytes again that were counted too early. A use that has reached zero, or has ended, stays as it is.
    pub fn give_back_bytes(&self, index: usize, generation: u32, bytes: u64) {
        let Some(slot) = self.slots.get(index) else { return };
        let add = |word: u64| {
            let value = word & VALUE_MASK;
            let is_its = word == pack(generation, value) && slot.generation.load(Ordering::Relaxed) == generation;
            (is_its && value > 0).then(|| pack(generation, (value + bytes).min(VALUE_MASK)))
        };
        if slot.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok() {
            self.show_value(index, slot);
        }
    }

    /// Runs `look` on a counter and the owner's data while its use can neither begin nor end. `None` if there is no such counter.
    pub fn with<R>(&self, index: usize, look: impl FnOnce(&mut T, Standing) -> R) -> Option<R> {
        let slot = self.slots.get(index)?;
        let mut life = lock(&slot.life);
        let generation = slot.generation.load(Ordering::Relaxed);
        let standing = Standing { generation, secret: life.secret, size: life.size, zero: !life.counting, set: life.set };
        Some(look(&mut life.kept, standing))
    }

    /// The generation of the current use if its secret is `secret`. Both arguments may come from outside.
    pub fn named(&self, index: usize, secret: u64) -> Option<u32> {
        // If another use begins meanwhile, the returned generation makes `lower` reject the call.
        self.with(index, |_, standing| (standing.secret == secret).then_some(standing.generation)).flatten()
    }

    /// Bytes still to move. Acquire: a thread that reads zero sees everything that the lowering threads did before.
    pub fn value(&self, index: usize) -> u64 {
        self.slots.get(index).map_or(0, |slot| slot.word.load(Ordering::Acquire) & VALUE_MASK)
    }

    /// The counter status register.
    pub fn status(&self) -> Status {
        std::array::from_fn(|word| self.status[word].load(Ordering::Acquire))
    }

    /// Clears the bits of the status register that are set in `mask`.
    pub fn clear(&self, mask: &Status) {
        for (word, mask) in mask.iter().enumerate() {
            self.status[word].fetch_and(!mask, Ordering::AcqRel);
            self.show_status(word);
        }
    }

    /// Writes all counters to the board.
    pub fn show(&self) {
        let used = *lock(&self.used);
        for (index, slot) in self.slots.iter().enumerate().filter(|(index, _)| used[index / 64] >> (index % 64) & 1 != 0) {
            self.show_value(index, slot);
        }
        (0..self.status.len()).for_each(|word| self.show_status(word));
    }

    fn mark(&self, index: usize, set: bool) {
        let (word, bit) = (index / 64, 1 << (index % 64));
        if set {
            self.status[word].fetch_or(bit, Ordering::AcqRel);
        } else {
            self.status[word].fetch_and(!bit, Ordering::AcqRel);
        }
        self.show_status(word);
    }

    fn show_status(&self, word: usize) {
        show_latest(self.home.board().word(COUNTER_STATUS_OFFSET + word * 8), || self.status[word].load(Ordering::Relaxed));
    }

    fn show_value(&self, index: usize, slot: &Slot<T>) {
        let value = || slot.word.load(Ordering::Relaxed) & VALUE_MASK;
        show_latest(self.home.board().word(COUNTERS_OFFSET + index * 16), value);
    }
}

fn size_word(index: usize) -> usize {
    COUNTERS_OFFSET + index * 16 + 8
}

/// If several threads show one value, the last one to store checks again, so the shown value becomes the actual one.
fn show_latest(shown: &AtomicU64, value: impl Fn() -> u64) {
    loop {
        let now = value();
        shown.store(now, Ordering::Relaxed);
        if value() == now {
            return;
        }
    }
}

/// A closure that panicked may have left the owner's data as it is. The data is still a valid value, so poisoning is ignored.
fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> fmt::Debug for Counters<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters").field("status", &self.status).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::testing::HeapBoard;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicUsize;

    fn set(counters: &Counters<()>, index: usize, bytes: u64) -> u32 {
        counters.set(index, bytes, |_, _| {}).unwrap()
    }

    fn lower(counters: &Counters<()>, index: usize, generation: u32, bytes: u64) -> Lowered {
        counters.lower(index, Use::Of(generation), bytes, |_, _| {})
    }

    #[test]
    fn a_counter_goes_down_to_zero_once() {
        let room = HeapBoard::new();
        let counters = Counters::<()>::new(room.home.clone());
        let index = counters.take().unwrap();
        let generation = set(&counters, index, 100);
        assert_eq!(lower(&counters, index, generation, 60), Lowered::Left(40));
        assert_eq!((counters.value(index), counters.status()), (40, [0; 4]));
        assert_eq!(lower(&counters, index, generation, 50), Lowered::Zero { excess: 10 });
        assert_eq!((counters.value(index), counters.status()), (0, [1, 0, 0, 0]));
        assert_eq!(lower(&counters, index, generation, 1), Lowered::Already);
        counters.clear(&[1, 0, 0, 0]);
        assert_eq!(counters.status(), [0; 4]);
        assert_eq!(lower(&counters, COUNTERS, generation, 1), Lowered::Stale);
        assert_eq!(counters.set(index, COUNTER_BYTES_MAX + 1, |_, _| {}), None);
        assert_eq!(counters.set(COUNTERS, 1, |_, _| {}), None);
        let most = set(&counters, index, COUNTER_BYTES_MAX);
        assert_eq!(lower(&counters, index, most, u64::MAX), Lowered::Zero { excess: u64::MAX - COUNTER_BYTES_MAX });
    }

    #[test]
    fn bytes_that_were_counted_too_early_are_given_back_to_their_use_alone() {
        let room = HeapBoard::new();
        let counters = Counters::<()>::new(room.home.clone());
        let index = counters.take().unwrap();
        let first = set(&counters, index, 10);
        assert_eq!(lower(&counters, index, first, 4), Lowered::Left(6));
        counters.give_back_bytes(index, first, 3);
        assert_eq!(counters.value(index), 9);
        assert_eq!(lower(&counters, index, first, 9), Lowered::Zero { excess: 0 });
        counters.give_back_bytes(index, first, 3);
        assert_eq!((counters.value(index), counters.status()), (0, [1, 0, 0, 0]));
        let second = set(&counters, index, 10);
        counters.give_back_bytes(index, first, 3);
        assert_eq!((counters.value(index), second == first), (10, false));
    }

    #[test]
    fn what_comes_late_changes_nothing() {
        let room = HeapBoard::new();
        let counters = Counters::<()>::new(room.home.clone());
        let index = counters.take().unwrap();
        let first = set(&counters, index, 10);
        let second = set(&counters, index, 10);
        assert_eq!(lower(&counters, index, first, 10), Lowered::Stale);
        // A generation with the same low bits, but of another use.
        assert_eq!(lower(&counters, index, second.wrapping_add(1 << 20), 10), Lowered::Stale);
        // By the low bits: the first use ends differently, and the guess at the value may be wrong.
        let by_end = |low, bytes| counters.lower(index, Use::EndsIn(low), bytes, |(), _| {});
        assert_eq!(by_end(first, 10), Lowered::Stale);
        assert_eq!(by_end(second, 1), Lowered::Left(9));
        assert_eq!(by_end(second | 1 << 20, 0), Lowered::Left(9));
        assert_eq!(by_end(second, 0), Lowered::Left(9));
        set(&counters, index, 10);
        let second = second + 1;
        assert_eq!(lower(&counters, index, second, 4), Lowered::Left(6));
        counters.give_back(index);
        assert_eq!(lower(&counters, index, second, 6), Lowered::Stale);
        assert_eq!((counters.value(index), counters.status(), counters.used()), (0, [0; 4], 0));
    }

    #[test]
    fn each_use_has_a_secret_of_its_own() {
        let room = HeapBoard::new();
        let counters = Counters::<()>::new(room.home.clone());
        let index = counters.take().unwrap();
        let look = || counters.with(index, |(), standing| (standing.secret, standing.generation)).unwrap();
        let mut secrets = vec![look().0];
        for _ in 0..20 {
            let generation = set(&counters, index, 10);
            let (secret, now) = look();
            assert_eq!((now, counters.named(index, secret)), (generation, Some(generation)));
            assert!(
                secrets.iter().all(|former| counters.named(index, *former).is_none()),
                "the secret of a former use names nothing"
            );
            secrets.push(secret);
        }
        counters.give_back(index);
        assert!(
            secrets.iter().all(|former| counters.named(index, *former).is_none()),
            "the secret of an ended use names nothing"
        );
        assert_eq!(counters.named(COUNTERS, 0), None);
    }

    #[test]
    fn nothing_to_move_is_zero_at_once() {
        let room = HeapBoard::new();
        let counters = Counters::<()>::new(room.home.clone());
        let index = counters.take().unwrap();
        let mut zero = false;
        counters.set(index, 0, |(), standing| zero = standing.zero).unwrap();
        assert!(zero);
        assert_eq!(counters.status(), [1, 0, 0, 0]);
        set(&counters, index, 1);
        assert_eq!(counters.status(), [0; 4]);
    }

    #[test]
    fn there_are_so_many_and_no_more() {
        let room = HeapBoard::new();
        let counters = Counters::<()>::new(room.home.clone());
        let taken: Vec<usize> = std::iter::from_fn(|| counters.take()).collect();
        assert_eq!(taken, (0..COUNTERS).collect::<Vec<_>>());
        counters.give_back(77);
        assert_eq!((counters.take(), counters.take()), (Some(77), None));
        assert_eq!(counters.used(), COUNTERS);
    }

    #[test]
    fn a_forged_display_completes_nothing() {
        let room = HeapBoard::new();
        let counters = Counters::<()>::new(room.home.clone());
        let index = counters.take().unwrap();
        let generation = set(&counters, index, 100);
        room.home.board().word(COUNTERS_OFFSET).store(0, Ordering::Relaxed);
        room.home.board().word(COUNTER_STATUS_OFFSET).store(u64::MAX, Ordering::Relaxed);
        assert_eq!((counters.value(index), counters.status()), (100, [0; 4]));
        assert_eq!(lower(&counters, index, generation, 99), Lowered::Left(1));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 64 }, failure_persistence: None, ..Default::default() })]

        #[test]
        fn zero_is_told_once_however_many_lower(
            shares in proptest::collection::vec(proptest::collection::vec(1_u64..5000, 1..40), 2..5),
            excess in 0_u64..3,
        ) {
            let room = HeapBoard::new();
            let counters = Counters::<u32>::new(room.home.clone());
            let size: u64 = shares.iter().flatten().sum::<u64>() - excess.min(shares.iter().flatten().sum::<u64>() - 1);
            let index = counters.take().unwrap();
            let generation = counters.set(index, size, |_, _| {}).unwrap();
            let zeros = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for share in &shares {
                    let (counters, zeros) = (&counters, &zeros);
                    scope.spawn(move || {
                        for bytes in share {
                            if counters.lower(index, Use::Of(generation), *bytes, |told, _| *told += 1).reached_zero() {
                                zeros.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    });
                }
            });
            prop_assert_eq!(zeros.into_inner(), 1);
            prop_assert_eq!(counters.with(index, |told, standing| (*told, standing.zero)), Some((1, true)));
            prop_assert_eq!(counters.value(index), 0);
            // The shown value became the actual one.
            prop_assert_eq!(room.home.board().word(COUNTERS_OFFSET).load(Ordering::Relaxed), 0);
            prop_assert_eq!(room.home.board().word(COUNTER_STATUS_OFFSET).load(Ordering::Relaxed), 1);
        }
    }
}
