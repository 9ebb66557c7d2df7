//! The flight recorder: the latest steps of a node's engine, readable even after the node died.

use super::{Board, Home};
use crate::clock::now_ns;
use crate::layout::{RECORD_BYTES, RECORDER_OFFSET, RECORDS as LAYOUT_RECORDS};
use doorbell_fabric::sync::{AtomicU64, Ordering};
use doorbell_fabric::{Incarnation, NodeId, Priority};
use std::cell::Cell;

/// The number of records kept.
pub const RECORDS: usize = LAYOUT_RECORDS;

/// Words of a record. The last one checks the others.
pub(super) const WORDS: usize = RECORD_BYTES / 8;
/// Means no peer.
const NO_PEER: u64 = 0xffff;
/// Means no priority.
const NO_PRIORITY: u64 = 0xff;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident $number:literal $word:literal;)+) => {
        /// The kind of an event. A number is never used again for another kind.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum RecordKind { $($(#[doc = $doc])+ $name = $number,)+ }

        impl RecordKind {
            /// All kinds.
            pub const ALL: &[RecordKind] = &[$(RecordKind::$name,)+];

            /// Its name in output, such as `memory-fifo`.
            pub const fn word(self) -> &'static str {
                match self { $(RecordKind::$name => $word,)+ }
            }
        }
    };
}

kinds! {
    /// A request to send went out.
    Rts 1 "rts";
    /// A chunk went out as memory-FIFO packets.
    MemoryFifo 2 "memory-fifo";
    /// A remote get was sent. It carries a descriptor back to the origin, which injects it.
    RemoteGet 3 "remote-get";
    /// A chunk was put into the target's buffer.
    DirectPut 4 "direct-put";
    /// A chunk was pulled out of the origin's buffer.
    Pull 5 "pull";
    /// A transfer is complete.
    Completed 7 "completed";
    /// A peer died.
    PeerDied 9 "peer-died";
    /// A DMA counter reached zero: `transfer` is its index, `offset` its generation, `bytes` its initial value.
    CounterZero 10 "counter-zero";
    /// A loan was sent.
    LoanSent 11 "loan-sent";
    /// A loan came back to its owner, or its reader gave it back.
    LoanReturned 13 "loan-returned";
    /// A node joined. Without a peer, it was this node.
    Joined 14 "joined";
    /// A node left. Without a peer, it was this node.
    Left 15 "left";
    /// A peer broke the rules of the shared memory.
    Damaged 16 "damaged";
    /// A mark that a tool or a test sets to find it again.
    Mark 21 "mark";
}

impl RecordKind {
    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| *kind as u8 == number)
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
}

impl Record {
    /// An event of this kind without further data.
    #[inline]
    pub const fn new(kind: RecordKind) -> Self {
        Self { kind, peer: None, incarnation: Incarnation(0), priority: None, transfer: 0, offset: 0, bytes: 0 }
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
pub struct Recorder {
    home: Home,
    next: AtomicU64,
}

impl Recorder {
    /// Starts on a board that has no records yet.
    pub fn new(home: Home) -> Self {
        Self { home, next: AtomicU64::new(0) }
    }

    /// Writes a record over the oldest one. Costs one clock reading (20 ns) and some plain stores. Only a thread's first call
    /// makes a system call.
    pub fn record(&self, record: &Record) {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let peer = record.peer.map_or(NO_PEER, |peer| u64::from(peer.0));
        let priority = record.priority.map_or(NO_PRIORITY, |priority| priority as u64);
        let words = [
            number,
            now_ns(),
            u64::from(thread()) | (record.kind as u64) << 32 | priority << 40 | peer << 48,
            u64::from(record.incarnation.0),
            record.transfer,
            record.offset,
            record.bytes,
        ];
        let board = self.home.board();
        let base = place(number);
        for (index, word) in words.iter().enumerate().skip(1) {
            board.word(base + index * 8).store(*word, Ordering::Relaxed);
        }
        board.word(base + (WORDS - 1) * 8).store(check(&words), Ordering::Relaxed);
        // Release: a reader of this number in mapped memory sees the rest of the record.
        board.word(base).store(number, Ordering::Release);
    }
}

fn place(number: u64) -> usize {
    RECORDER_OFFSET + ((number - 1) % RECORDS as u64) as usize * RECORD_BYTES
}

/// A check word that matches these seven words and hardly any others, so that a reader detects a record with parts of two events.
pub(super) fn check(words: &[u64; WORDS - 1]) -> u64 {
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
            // SAFETY: the call takes no argument and touches no memory.
            thread.set(unsafe { libc::gettid() } as u32);
        }
        thread.get()
    })
}

impl Board<'_> {
    /// The records on a board, oldest first. Skips a record that is being written or that no owner would write.
    pub fn records(self) -> Vec<Recorded> {
        let slots = (0..RECORDS).map(|slot| RECORDER_OFFSET + slot * RECORD_BYTES);
        let mut records: Vec<Recorded> = slots.filter_map(|base| self.recorded(base)).collect();
        records.sort_unstable_by_key(|recorded| recorded.number);
        records
    }

    fn recorded(self, base: usize) -> Option<Recorded> {
        // Acquire: pairs with the release in `record`. The check word finds parts of another event that slip through.
        let number = self.word(base).load(Ordering::Acquire);
        let mut words = [number; WORDS - 1];
        for (index, word) in words.iter_mut().enumerate().skip(1) {
            *word = self.word(base + index * 8).load(Ordering::Relaxed);
        }
        let checked = self.word(base + (WORDS - 1) * 8).load(Ordering::Relaxed);
        if number == 0 || place(number) != base || check(&words) != checked {
            return None;
        }
        let [_, time_ns, what, incarnation, transfer, offset, bytes] = words;
        let kind = RecordKind::from_number((what >> 32) as u8)?;
        let priority = Priority::ALL.into_iter().find(|priority| *priority as u64 == what >> 40 & 0xff);
        let peer = (what >> 48 != NO_PEER).then_some(NodeId((what >> 48) as u16));
        let record = Record { kind, peer, incarnation: Incarnation(incarnation as u32), priority, transfer, offset, bytes };
        Some(Recorded { number, time_ns, thread: what as u32, record })
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
            let word = room.home.board().word(place(2) + index * 8);
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
        for kind in RecordKind::ALL {
            assert_eq!(RecordKind::from_number(*kind as u8), Some(*kind));
            assert_eq!(RecordKind::ALL.iter().filter(|other| other.word() == kind.word()).count(), 1);
        }
        assert_eq!(RecordKind::from_number(0), None);
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
