//! The flight recorder: the latest steps of a node's engine, readable even after the node died.

use super::{Board, Home};
use crate::clock::now_ns;
use crate::layout::{RECORD_BYTES, RECORDER_OFFSET, RECORDS as LAYOUT_RECORDS};
use doorbell_fabric::sync::{AtomicU64, Ordering};
use doorbell_fabric::{Incarnation, NodeId, Priority};
use std::cell::Cell;
use strum::{FromRepr, IntoStaticStr, VariantArray};

/// The number of records kept.
pub const RECORDS: usize = LAYOUT_RECORDS;

/// Words of a record. The last one checks the others.
pub(super) const WORDS: usize = RECORD_BYTES / 8;
/// Means no peer.
const NO_PEER: u64 = 0xffff;
/// Means no priority.
const NO_PRIORITY: u64 = 0xff;

/// The kind of an event. A number is never used again for another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromRepr, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
#[repr(u8)]
pub enum RecordKind {
    /// A request to send went out.
    Rts = 1,
    /// A chunk went out as memory-FIFO packets.
    MemoryFifo = 2,
    /// A remote get was sent. It carries a descriptor back to the origin, which injects it.
    RemoteGet = 3,
    /// A chunk was put into the target's buffer.
    DirectPut = 4,
    /// A chunk was pulled out of the origin's buffer.
    Pull = 5,
    /// A transfer is complete.
    Completed = 7,
    /// A peer died.
    PeerDied = 9,
    /// A DMA counter reached zero: `transfer` is its index, `offset` its generation, `bytes` its initial value.
    CounterZero = 10,
    /// A loan was sent.
    LoanSent = 11,
    /// A loan came back to its owner, or its reader gave it back.
    LoanReturned = 13,
    /// A node joined. Without a peer, it was this node.
    Joined = 14,
    /// A node left. Without a peer, it was this node.
    Left = 15,
    /// A peer broke the rules of the shared memory.
    Damaged = 16,
    /// A mark that a tool or a test sets to find it again.
    Mark = 21,
    /// A use of a DMA counter began: `transfer` is its index, `bytes` its initial value. Left out if that is below 64 KiB.
    CounterSet = 22,
    /// A DMA counter was lowered: `transfer` is its index, `offset` the value that is left, `bytes` by how much. Left out unless the value
    /// passed a multiple of 64 KiB.
    CounterLowered = 23,
    /// A direct put of an injection FIFO was executed. For this kind and the next two, `transfer` is the number of the FIFO and the
    /// position there ([`Record::place`]), `offset` the time in nanoseconds since its FIFO's turn began, and `bytes` its length. Those
    /// below 4 KiB are left out.
    DmaPut = 24,
    /// A memory-FIFO packet of an injection FIFO was sent.
    DmaPacket = 25,
    /// A remote get of an injection FIFO was sent. `bytes` is the length of its put.
    DmaRemoteGet = 26,
}

impl RecordKind {
    /// Its name in output, such as `memory-fifo`.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

/// One event. Fields that do not apply keep the values of [`Record::new`].
///
/// ```
/// use doorbell_fabric::{NodeId, Priority};
/// use doorbell_shm::board::{Record, RecordKind};
/// let record = Record::new(RecordKind::DirectPut).peer(NodeId(3)).priority(Priority::High).transfer(17).at(65_536).bytes(65_536);
/// assert_eq!(record.peer, Some(NodeId(3)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The kind of the event.
    pub kind: RecordKind,
    /// The other node.
    pub peer: Option<NodeId>,
    /// The incarnation of that node; 0 if unknown.
    pub incarnation: Incarnation,
    /// The priority.
    pub priority: Option<Priority>,
    /// The id of the transfer, or of another numbered object.
    pub transfer: u64,
    /// The offset in it, in bytes.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The indices of the send counter and of the receive counter of a descriptor.
    pub counters: [Option<u16>; 2],
}

/// The bits of a transfer id that hold the position in an injection FIFO. Those above hold the number of the FIFO.
const POSITION_BITS: u32 = 40;

impl Record {
    /// An event of this kind without further data.
    #[inline]
    pub const fn new(kind: RecordKind) -> Self {
        let counters = [None; 2];
        Self { kind, peer: None, incarnation: Incarnation(0), priority: None, transfer: 0, offset: 0, bytes: 0, counters }
    }

    /// Sets the other node.
    #[inline]
    pub const fn peer(self, peer: NodeId) -> Self {
        Self { peer: Some(peer), ..self }
    }

    /// Sets the incarnation of the other node.
    #[inline]
    pub const fn incarnation(self, incarnation: Incarnation) -> Self {
        Self { incarnation, ..self }
    }

    /// Sets the priority.
    #[inline]
    pub const fn priority(self, priority: Priority) -> Self {
        Self { priority: Some(priority), ..self }
    }

    /// Sets the transfer id.
    #[inline]
    pub const fn transfer(self, transfer: u64) -> Self {
        Self { transfer, ..self }
    }

    /// Sets the offset in bytes.
    #[inline]
    pub const fn at(self, offset: u64) -> Self {
        Self { offset, ..self }
    }

    /// Sets the number of bytes.
    #[inline]
    pub const fn bytes(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    /// Sets the place of a descriptor as the transfer id: the number of its injection FIFO, and its position there.
    #[inline]
    pub const fn placed(self, fifo: u16, position: u64) -> Self {
        Self { transfer: (fifo as u64) << POSITION_BITS | position & ((1 << POSITION_BITS) - 1), ..self }
    }

    /// The number of a descriptor's injection FIFO, and the low bits of its position there.
    #[inline]
    pub const fn place(&self) -> (u16, u64) {
        ((self.transfer >> POSITION_BITS) as u16, self.transfer & ((1 << POSITION_BITS) - 1))
    }

    /// Sets the counters of a descriptor.
    #[inline]
    pub const fn counters(self, counters: [Option<u16>; 2]) -> Self {
        Self { counters, ..self }
    }
}

/// A record as read from a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its number: the first record of a node has 1.
    pub number: u64,
    /// When it was written, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The kernel's id of the thread that wrote it.
    pub thread: u32,
    /// The event.
    pub record: Record,
}

/// The owner's handle on the recorder. Any thread of the owner may record at any time. A private counter hands out the slots. A
/// thread that is overtaken in the middle of a record spoils only that record, and readers notice.
///
/// ```no_run
/// # fn of(membership: &std::sync::Arc<doorbell_shm::domain::Membership>) {
/// use doorbell_shm::board::{Home, Record, RecordKind, Recorder};
/// let recorder = Recorder::new(Home::new(membership));
/// recorder.record(&Record::new(RecordKind::Mark));
/// # }
/// ```
#[derive(Debug)]
pub struct Recorder(Records);

type Records = Ring<RECORDER_OFFSET, RECORDS>;

impl Recorder {
    /// Starts on a board that has no records yet.
    pub fn new(home: Home) -> Self {
        Self(Ring::new(home))
    }

    /// Writes a record over the oldest one. Costs one clock reading (20 ns) and some plain stores. Only a thread's first call
    /// makes a system call.
    pub fn record(&self, record: &Record) {
        let peer = record.peer.map_or(NO_PEER, |peer| u64::from(peer.0));
        let priority = record.priority.map_or(NO_PRIORITY, |priority| priority as u64);
        let what = u64::from(thread()) | (record.kind as u64) << 32 | priority << 40 | peer << 48;
        // No counter has the last number.
        let [send, receive] = record.counters.map(|counter| counter.map_or(0, |index| u64::from(index.wrapping_add(1))));
        let with = u64::from(record.incarnation.0) | send << 32 | receive << 48;
        self.0.write([what, with, record.transfer, record.offset, record.bytes]);
    }
}

/// The owner's handle on `LEN` numbered records, which begin at the offset `AT` of a board. The newest one replaces the oldest.
#[derive(Debug)]
pub(super) struct Ring<const AT: usize, const LEN: usize> {
    home: Home,
    next: AtomicU64,
}

impl<const AT: usize, const LEN: usize> Ring<AT, LEN> {
    pub fn new(home: Home) -> Self {
        Self { home, next: AtomicU64::new(0) }
    }

    /// Writes a record with the present time.
    pub fn write(&self, [a, b, c, d, e]: [u64; WORDS - 3]) {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.home.board().write_checked(Self::place(number), &[number, now_ns(), a, b, c, d, e]);
    }

    pub fn place(number: u64) -> usize {
        AT + (number.wrapping_sub(1) % LEN as u64) as usize * RECORD_BYTES
    }

    /// The records on a board, oldest first. `of` makes one from its number, its time and its words. Skips a record that is
    /// being written or that no owner would write.
    pub fn read<T>(board: Board<'_>, of: impl Fn(u64, u64, [u64; WORDS - 3]) -> Option<T>) -> Vec<T> {
        let record = |base: usize| {
            let [number, time_ns, a, b, c, d, e] = board.read_checked(base)?;
            let is_here = number != 0 && Self::place(number) == base;
            Some((number, of(number, time_ns, [a, b, c, d, e]).filter(|_| is_here)?))
        };
        let mut found: Vec<_> = (0..LEN).filter_map(|slot| record(AT + slot * RECORD_BYTES)).collect();
        found.sort_unstable_by_key(|(number, _)| *number);
        found.into_iter().map(|(_, record)| record).collect()
    }
}

/// A check word that matches these seven words and hardly any others, so that a reader detects a record with parts of two events.
fn check(words: &[u64; WORDS - 1]) -> u64 {
    words.iter().enumerate().fold(!0, |sum: u64, (index, word)| {
        sum.wrapping_add((word ^ (index as u64 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15 + 2 * (index as u64) * 0x0101_0101))
    })
}

/// The kernel's id of this thread.
pub fn thread() -> u32 {
    if cfg!(miri) {
        return 1;
    }
    thread_local!(static THREAD: Cell<u32> = const { Cell::new(0) });
    THREAD.with(|thread| {
        if thread.get() == 0 {
            thread.set(rustix::thread::gettid().as_raw_nonzero().get() as u32);
        }
        thread.get()
    })
}

impl Board<'_> {
    /// Writes a row or record, and its check word.
    pub(super) fn write_checked(self, base: usize, words: &[u64; WORDS - 1]) {
        for (index, word) in words.iter().chain([&check(words)]).enumerate().skip(1) {
            self.word(base + index * 8).store(*word, Ordering::Relaxed);
        }
        // Release: a reader of this word in mapped memory sees the others.
        self.word(base).store(words[0], Ordering::Release);
    }

    /// The words of a row or record, if the check word confirms that they were written together.
    pub(super) fn read_checked(self, base: usize) -> Option<[u64; WORDS - 1]> {
        // Acquire: pairs with the release in `write_checked`. The check word finds parts of other words that slip through.
        let first = self.word(base).load(Ordering::Acquire);
        let word = |index: usize| self.word(base + index * 8).load(Ordering::Relaxed);
        let words = std::array::from_fn(|index| if index == 0 { first } else { word(index) });
        (word(WORDS - 1) == check(&words)).then_some(words)
    }

    /// The records on a board, oldest first. Skips a record that is being written or that no owner would write.
    pub fn records(self) -> Vec<Recorded> {
        Records::read(self, |number, time_ns, [what, with, transfer, offset, bytes]| {
            let kind = RecordKind::from_repr((what >> 32) as u8)?;
            let priority = Priority::ALL.into_iter().find(|priority| *priority as u64 == what >> 40 & 0xff);
            let peer = (what >> 48 != NO_PEER).then_some(NodeId((what >> 48) as u16));
            let counters = [32, 48].map(|shift| ((with >> shift) as u16).checked_sub(1));
            let incarnation = Incarnation(with as u32);
            let record = Record { kind, peer, incarnation, priority, transfer, offset, bytes, counters };
            Some(Recorded { number, time_ns, thread: what as u32, record })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::testing::HeapBoard;

    #[test]
    fn what_was_recorded_is_read_in_order() {
        let room = HeapBoard::new();
        let recorder = Recorder::new(room.home.clone());
        let full = Record {
            kind: RecordKind::Pull,
            peer: Some(NodeId(1023)),
            incarnation: Incarnation(u32::MAX),
            priority: Some(Priority::Low),
            transfer: u64::MAX,
            offset: 1 << 40,
            bytes: 77,
            counters: [Some(0), Some(255)],
        };
        recorder.record(&full);
        recorder.record(&Record::new(RecordKind::Mark));
        let found = room.home.board().records();
        assert_eq!(found.iter().map(|recorded| recorded.record).collect::<Vec<_>>(), [full, Record::new(RecordKind::Mark)]);
        assert_eq!((found[0].number, found[1].number, found[0].thread), (1, 2, thread()));
        assert!(found[0].time_ns <= found[1].time_ns);
    }

    #[test]
    #[cfg_attr(miri, ignore = "too slow")]
    fn the_oldest_give_way() {
        let room = HeapBoard::new();
        let recorder = Recorder::new(room.home.clone());
        let count = RECORDS as u64 * 2 + 7;
        (0..count).for_each(|at| recorder.record(&Record::new(RecordKind::Mark).transfer(at)));
        let found = room.home.board().records();
        assert_eq!(found.len(), RECORDS);
        let expected: Vec<u64> = (count - RECORDS as u64..count).collect();
        assert_eq!(found.iter().map(|recorded| recorded.record.transfer).collect::<Vec<_>>(), expected);
    }

    #[test]
    #[cfg_attr(miri, ignore = "too slow")]
    fn what_is_half_written_or_forged_is_left_out() {
        let room = HeapBoard::new();
        let recorder = Recorder::new(room.home.clone());
        (0..3).for_each(|at| recorder.record(&Record::new(RecordKind::Mark).transfer(at)));
        // Replace each word in turn with one of another event.
        for index in 0..WORDS {
            let word = room.home.board().word(Records::place(2) + index * 8);
            let kept = word.load(Ordering::Relaxed);
            word.store(kept ^ 1, Ordering::Relaxed);
            let found: Vec<u64> = room.home.board().records().iter().map(|recorded| recorded.number).collect();
            assert_eq!(found, [1, 3], "word {index}");
            word.store(kept, Ordering::Relaxed);
        }
        assert_eq!(room.home.board().records().len(), 3);
    }

    #[test]
    fn kinds_have_names_and_numbers_of_their_own() {
        for kind in RecordKind::VARIANTS {
            assert_eq!(RecordKind::from_repr(*kind as u8), Some(*kind));
            assert_eq!(RecordKind::VARIANTS.iter().filter(|other| other.word() == kind.word()).count(), 1);
        }
        assert_eq!(RecordKind::from_repr(0), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "too slow")]
    fn readers_never_see_mixed_records() {
        let room = HeapBoard::new();
        let recorder = Recorder::new(room.home.clone());
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 1..3_u64 {
                let (recorder, stop) = (&recorder, &stop);
                scope.spawn(move || {
                    let mut at = 0;
                    while !stop.load(Ordering::Relaxed) {
                        at += 1;
                        recorder.record(&Record::new(RecordKind::Mark).transfer(at).at(at * writer).bytes(at * 3 + writer));
                    }
                });
            }
            let mut seen = 0;
            while seen < 20_000 {
                for Recorded { record: Record { transfer, offset, bytes, .. }, .. } in room.home.board().records() {
                    let writer = bytes - transfer * 3;
                    assert_eq!(offset, transfer * writer);
                    seen += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
