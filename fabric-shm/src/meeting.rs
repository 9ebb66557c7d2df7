//! The rendezvous block of a transfer: a shared word that assigns the chunks of one message to its two ends.
//!
//! A message is cut into chunks. Both processes claim chunks from the two ends of the message, by compare-and-swap on one shared
//! word, until the ends meet. Each chunk is claimed once, by one process. The origin's memory FIFO claims from the *first* end;
//! direct puts, of the origin and of the target, claim from the *last* end. The transfer decides which end of the buffer is the
//! first: see [`Ends`].
//!
//! The word also has the state of the transfer. It ends *finished* by the target, which has the whole message, or *closed* by the
//! side that gave up. Before that, the target may *revoke* the permission to put: then the origin claims no more chunks for puts,
//! and the message goes on by other ways. Slots are reused; the generation in the word tells one use from the next.
//!
//! ```text
//! claims | generation 14 | state 2 | from the last end 24 | from the first end 24 |
//! ```
//!
//! A revocation and a claim change the same word. So the target sees each chunk that the origin claimed for a put before, and
//! waits until the origin has recorded as many chunks that it no longer touches.
//!
//! The other process may write anything here. Each side checks claims against the number of chunks, and counts privately what it
//! moved.

#[cfg(not(loom))]
use crate::domain::{Membership, PeerInbox};
#[cfg(not(loom))]
use crate::error::ShmError;
#[cfg(not(loom))]
use crate::layout::MEETINGS_OFFSET;
#[cfg(not(loom))]
use crate::returns::PairWords;
#[cfg(not(loom))]
use doorbell_fabric::NodeId;
use doorbell_fabric::sync::{AtomicU64, Ordering, planted_bug};

/// The most chunks that a message can be cut into.
pub const CHUNKS_MAX: u64 = (1 << 24) - 1;
/// The number of generations before they start again. Never zero, so that a blank slot belongs to no transfer.
const GENERATIONS: u64 = 1 << 14;
const COUNT_MASK: u64 = (1 << 24) - 1;
const LAST_SHIFT: u32 = 24;
const STATE_MASK: u64 = 3 << 48;
const CLOSED: u64 = 1 << 48;
const FINISHED: u64 = 2 << 48;
/// Under way, but the origin must not put.
const REVOKED: u64 = 3 << 48;
const GENERATION_SHIFT: u32 = 50;
/// Bits for the number of pulled bytes. The greatest numbers encode why the target gave up: no message is that long.
const PULLED_MASK: u64 = (1 << GENERATION_SHIFT) - 1;

/// A rendezvous slot for one transfer, in shared memory. All zero means free.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct RendezvousBlock {
    claims: AtomicU64,
    /// The origin's progress in puts: bytes 40 | chunks 24. The origin writes it.
    put: AtomicU64,
    _apart: [u64; 6],
    /// The number of bytes that the target has copied itself: generation 14 | bytes 50. The target writes it.
    pulled: AtomicU64,
}

/// The number of rendezvous slots of one block.
pub const MEETINGS: usize = crate::layout::MEETINGS_BYTES / 128;

#[cfg(not(loom))]
const _: () = assert!(size_of::<RendezvousBlock>() == 128);

/// The end from which a chunk is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end from which the memory FIFO begins.
    First,
    /// The other end, from which direct puts begin.
    Last,
}

/// The result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The caller moves these chunks.
    Chunks(Run),
    /// The ends have met: all chunks are claimed.
    Met,
    /// The transfer has ended: it was closed or finished, or another transfer uses the slot.
    Over,
    /// The target has revoked the permission to put.
    Revoked,
    /// The word holds a value that no correct process writes.
    Damaged,
}

/// A run of neighbouring chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first chunk, counted from the first end.
    pub first: u64,
    /// The number of chunks, at least one.
    pub count: u64,
}

/// Why a target gave up a message although it had claimed a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The target cannot read the origin's bytes.
    Unreadable,
    /// The target cannot write its own buffer.
    Unwritable,
}

/// Whether the word is that of a transfer that has ended.
fn is_ended(word: u64) -> bool {
    matches!(word & STATE_MASK, CLOSED | FINISHED)
}

impl Refusal {
    const ALL: [(Self, u64); 2] = [(Self::Unreadable, PULLED_MASK), (Self::Unwritable, PULLED_MASK - 1)];
}

/// The shared progress of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Chunks claimed from the first end.
    pub first: u64,
    /// Chunks claimed from the last end.
    pub last: u64,
    /// The target has the whole message.
    pub finished: bool,
    /// One side gave up.
    pub closed: bool,
}

impl RendezvousBlock {
    /// The next generation of a slot. For the origin, which owns the slots.
    pub fn next_generation(generation: u64) -> u64 {
        if generation + 1 >= GENERATIONS { 1 } else { generation + 1 }
    }

    /// The generation of the latest use; zero if there was none. For an origin that does not know it.
    pub fn generation(&self) -> u64 {
        self.claims.load(Ordering::Relaxed) >> GENERATION_SHIFT
    }

    /// Whether the latest use has ended for both sides, or there was none.
    pub fn is_over(&self) -> bool {
        let word = self.claims.load(Ordering::Acquire);
        word == 0 || is_ended(word)
    }

    /// Begins a transfer. For the origin. The transfer's first packet publishes it.
    pub fn open(&self, generation: u64) {
        self.put.store(0, Ordering::Relaxed);
        self.pulled.store(0, Ordering::Relaxed);
        self.claims.store(generation << GENERATION_SHIFT, Ordering::Release);
        fault_point!("meeting.opened");
    }

    /// The progress; `None` if another transfer uses the slot.
    pub fn progress(&self, generation: u64) -> Option<Progress> {
        let word = self.claims.load(Ordering::Acquire);
        (word >> GENERATION_SHIFT == generation).then_some(Progress {
            first: word & COUNT_MASK,
            last: word >> LAST_SHIFT & COUNT_MASK,
            finished: word & STATE_MASK == FINISHED,
            closed: word & STATE_MASK == CLOSED,
        })
    }

    /// Claims the next chunks from one end, out of `chunks` in all: at least one if any is left, and `most` at most.
    pub fn claim(&self, generation: u64, chunks: u64, end: End, most: u64) -> Claim {
        self.claim_as(false, generation, chunks, end, most)
    }

    /// Origin: claims the next chunks from the last end, to put them into the memory of the target, which may have forbidden it.
    pub fn claim_put(&self, generation: u64, chunks: u64, most: u64) -> Claim {
        let claim = self.claim_as(true, generation, chunks, End::Last, most);
        if matches!(claim, Claim::Chunks(_)) {
            fault_point!("meeting.putting");
        }
        claim
    }

    fn claim_as(&self, puts: bool, generation: u64, chunks: u64, end: End, most: u64) -> Claim {
        let mut word = self.claims.load(Ordering::Relaxed);
        loop {
            let (first, last) = (word & COUNT_MASK, word >> LAST_SHIFT & COUNT_MASK);
            if word >> GENERATION_SHIFT != generation || is_ended(word) {
                return Claim::Over;
            }
            if puts && word & STATE_MASK == REVOKED && !planted_bug("revoke") {
                return Claim::Revoked;
            }
            if first + last > chunks {
                return Claim::Damaged;
            }
            if first + last == chunks {
                return Claim::Met;
            }
            let count = (chunks - first - last).min(most.max(1));
            let (run, next) = match end {
                End::First => (Run { first, count }, word + count),
                End::Last => (Run { first: chunks - last - count, count }, word + (count << LAST_SHIFT)),
            };
            // CLAIM: of two sides that saw the same word, one wins. A load and a store would give the chunks to both.
            if planted_bug("claim") {
                self.claims.store(next, Ordering::Release);
                return Claim::Chunks(run);
            }
            match self.claims.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    fault_point!("meeting.claimed");
                    return Claim::Chunks(run);
                }
                Err(now) => word = now,
            }
        }
    }

    /// Records that the target has the whole message. Returns false if the transfer was closed before; then the target must not
    /// keep the message.
    pub fn finish(&self, generation: u64) -> bool {
        self.end(generation, FINISHED)
    }

    /// Gives up. Returns false if it is too late: the target has the whole message, or another transfer uses the slot.
    pub fn close(&self, generation: u64) -> bool {
        self.end(generation, CLOSED)
    }

    /// Target: revokes the permission to put. False if the transfer has ended, or another transfer uses the slot.
    pub fn revoke(&self, generation: u64) -> bool {
        let revoked = match self.try_set(generation, REVOKED) {
            Ok(_) => true,
            Err(word) => word >> GENERATION_SHIFT == generation && word & STATE_MASK == REVOKED,
        };
        fault_point!("meeting.revoked");
        revoked
    }

    /// Target: whether the origin no longer touches memory of the target, after a revocation or the end of the transfer. `own`:
    /// how many chunks the target has claimed from the last end.
    pub fn has_let_go(&self, generation: u64, own: u64) -> bool {
        let word = self.claims.load(Ordering::Acquire);
        if word >> GENERATION_SHIFT != generation {
            // An origin begins another transfer when it has done with this one. Zero is not of an origin: the memory was cut.
            return word != 0;
        }
        self.put().chunks >= (word >> LAST_SHIFT & COUNT_MASK).saturating_sub(own)
    }

    /// Target: gives up because it cannot copy bytes that it has claimed. Returns false if the transfer had ended before; then
    /// the copy may have failed because the origin took its buffer back.
    pub fn refuse(&self, generation: u64, why: Refusal) -> bool {
        let pulled = self.pulled(generation);
        let said = Refusal::ALL.into_iter().find(|(refusal, _)| *refusal == why);
        self.set_pulled(generation, said.map_or(PULLED_MASK, |(_, said)| said));
        let closed = self.try_set(generation, CLOSED).is_ok();
        if closed {
            fault_point!("meeting.closed");
        } else {
            self.set_pulled(generation, pulled);
        }
        closed
    }

    /// Why the target gave up, if it said so.
    pub fn refusal(&self, generation: u64) -> Option<Refusal> {
        let pulled = self.pulled(generation);
        Refusal::ALL.into_iter().find_map(|(refusal, said)| (said == pulled).then_some(refusal))
    }

    fn end(&self, generation: u64, how: u64) -> bool {
        match self.try_set(generation, how) {
            Ok(_) if how == FINISHED => {
                fault_point!("meeting.finished");
                true
            }
            Ok(_) => {
                fault_point!("meeting.closed");
                true
            }
            Err(word) => word >> GENERATION_SHIFT == generation && word & STATE_MASK == how,
        }
    }

    /// Sets the state of the transfer. Returns the previous word, as an error if the transfer had ended before.
    fn try_set(&self, generation: u64, state: u64) -> Result<u64, u64> {
        self.claims.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            (word >> GENERATION_SHIFT == generation && !is_ended(word)).then_some(word & !STATE_MASK | state)
        })
    }

    /// Origin: records its total progress in puts: the bytes put, and the chunks that it no longer touches, put or not. Release:
    /// the bytes are in place before.
    pub fn set_put(&self, put: Moved) {
        fault_point!("meeting.put");
        self.put.store(put.bytes << 24 | put.chunks & COUNT_MASK, Ordering::Release);
    }

    /// The progress that the origin has recorded.
    pub fn put(&self) -> Moved {
        let word = self.put.load(Ordering::Acquire);
        Moved { bytes: word >> 24, chunks: word & COUNT_MASK }
    }

    /// Target: records the number of bytes that it has copied itself. A late record of an earlier use has no effect on later
    /// ones.
    pub fn set_pulled(&self, generation: u64, bytes: u64) {
        fault_point!("meeting.pulled");
        self.pulled.store(generation << GENERATION_SHIFT | bytes & PULLED_MASK, Ordering::Release);
    }

    /// The number of bytes that the target says it has copied.
    pub fn pulled(&self, generation: u64) -> u64 {
        let word = self.pulled.load(Ordering::Acquire);
        if word >> GENERATION_SHIFT == generation { word & PULLED_MASK } else { 0 }
    }
}

/// The amount that was moved by one method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes, below 2⁴⁰.
    pub bytes: u64,
    /// Chunks.
    pub chunks: u64,
}

impl Moved {
    /// Adds this many bytes and chunks.
    pub fn add(&mut self, bytes: u64, chunks: u64) {
        self.bytes += bytes;
        self.chunks += chunks;
    }
}

/// The rendezvous slots of one pair of nodes in one direction, mapped as long as this lives.
#[cfg(not(loom))]
#[derive(Clone, Debug)]
pub struct Meetings(PairWords<RendezvousBlock>);

#[cfg(not(loom))]
impl Meetings {
    /// The slots for transfers from this node to a peer.
    ///
    /// # Errors
    /// There is no room for them, or the peer is gone.
    pub fn with_target(inbox: &PeerInbox) -> Result<Self, ShmError> {
        PairWords::new(inbox.pair()?, MEETINGS_OFFSET).map(Self)
    }

    /// The slots for transfers to this node from `source`, a node of the domain.
    ///
    /// # Errors
    /// There is no room for them, or this node has left.
    pub fn with_origin(membership: &Membership, source: NodeId) -> Result<Self, ShmError> {
        PairWords::new(&membership.pair_from(source)?, MEETINGS_OFFSET).map(Self)
    }

    /// One slot; `None` if the index is too high.
    pub fn get(&self, slot: usize) -> Option<&RendezvousBlock> {
        self.0.get(slot)
    }
}

/// The division of a message into chunks, and their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The length of the message.
    pub len: u64,
    /// The length of a chunk; the one at the buffer's high end may be shorter.
    pub chunk: u64,
    /// Whether the first end is the high end of the buffer.
    pub from_high: bool,
}

impl Ends {
    /// The number of chunks.
    pub fn chunks(&self) -> u64 {
        self.len.div_ceil(self.chunk)
    }

    /// The offset and the total length of a run of chunks.
    pub fn place(&self, run: Run) -> (u64, u64) {
        let index = if self.from_high { self.chunks() - run.first - run.count } else { run.first };
        let offset = index * self.chunk;
        (offset, (self.chunk * run.count).min(self.len - offset))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        // The test needs files and many cases, so it is not for Miri.
        #[cfg_attr(miri, ignore)]
        fn chunks_cover_a_message_once(len in 1_u64..5_000_000, chunk in 1_u64..200_000, from_high: bool, turns: Vec<(bool, u8)>) {
            prop_assume!(len.div_ceil(chunk) < 5000);
            let ends = Ends { len, chunk, from_high };
            let meeting = RendezvousBlock::default();
            meeting.open(3);
            let mut covered = vec![false; ends.chunks() as usize];
            let mut turns = turns.into_iter().cycle();
            let mut bytes = 0;
            loop {
                let (first, most) = turns.next().unwrap_or((true, 1));
                match meeting.claim(3, ends.chunks(), if first { End::First } else { End::Last }, u64::from(most)) {
                    Claim::Chunks(run) => {
                        let (offset, length) = ends.place(run);
                        prop_assert_eq!(offset % ends.chunk, 0);
                        prop_assert!(length > 0 && offset + length <= len && (1..=u64::from(most.max(1))).contains(&run.count));
                        for covered in &mut covered[(offset / ends.chunk) as usize..][..run.count as usize] {
                            prop_assert!(!std::mem::replace(covered, true));
                        }
                        bytes += length;
                    }
                    Claim::Met => break,
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            prop_assert_eq!(bytes, len);
        }
    }

    #[test]
    fn what_a_target_says_late_counts_for_no_later_use() {
        let meeting = RendezvousBlock::default();
        meeting.open(1);
        meeting.set_pulled(1, 100);
        assert_eq!((meeting.pulled(1), meeting.pulled(2)), (100, 0));
        assert!(meeting.close(1) && meeting.refusal(1).is_none());
        assert!(!meeting.refuse(1, Refusal::Unwritable) && meeting.refusal(1).is_none());
        meeting.open(2);
        meeting.set_pulled(1, 200);
        assert_eq!((meeting.pulled(2), meeting.refuse(1, Refusal::Unreadable), meeting.refusal(2)), (0, false, None));
        for (generation, why) in [(2, Refusal::Unreadable), (3, Refusal::Unwritable)] {
            meeting.open(generation);
            assert!(meeting.refuse(generation, why) && !meeting.finish(generation));
            assert_eq!(meeting.refusal(generation), Some(why));
        }
        meeting.open(4);
        assert!(meeting.finish(4) && !meeting.refuse(4, Refusal::Unwritable) && meeting.refusal(4).is_none());
    }

    #[test]
    fn what_is_revoked_is_put_no_more_and_goes_on_by_other_ways() {
        let meeting = RendezvousBlock::default();
        assert!(!meeting.revoke(1) && !meeting.has_let_go(1, 0));
        meeting.open(1);
        assert_eq!(meeting.claim_put(1, 9, 2), Claim::Chunks(Run { first: 7, count: 2 }));
        assert_eq!(meeting.claim(1, 9, End::Last, 1), Claim::Chunks(Run { first: 6, count: 1 }));
        assert!(meeting.revoke(1) && meeting.revoke(1) && !meeting.revoke(2));
        assert!(!meeting.has_let_go(1, 1));
        meeting.set_put(Moved { bytes: 0, chunks: 2 });
        assert!(meeting.has_let_go(1, 1) && !meeting.is_over());
        assert_eq!(meeting.claim_put(1, 9, 1), Claim::Revoked);
        assert_eq!(meeting.claim(1, 9, End::Last, 1), Claim::Chunks(Run { first: 5, count: 1 }));
        assert_eq!(meeting.claim(1, 9, End::First, 1), Claim::Chunks(Run { first: 0, count: 1 }));
        assert!(meeting.has_let_go(1, 2) && meeting.finish(1) && !meeting.revoke(1) && !meeting.close(1));
        assert_eq!((meeting.progress(1).unwrap().finished, meeting.claim_put(1, 9, 1)), (true, Claim::Over));
        // The next use begins without it, and tells that this one is over.
        meeting.open(2);
        assert!(meeting.has_let_go(1, 0));
        assert_eq!(meeting.claim_put(2, 9, 1), Claim::Chunks(Run { first: 8, count: 1 }));
        assert!(meeting.close(2) && !meeting.has_let_go(2, 0));
    }

    #[test]
    fn what_is_over_is_claimed_no_more() {
        let meeting = RendezvousBlock::default();
        assert_eq!(meeting.claim(1, 4, End::First, 1), Claim::Over);
        meeting.open(1);
        assert_eq!(meeting.claim(1, 4, End::First, 1), Claim::Chunks(Run { first: 0, count: 1 }));
        assert_eq!(meeting.claim(1, 4, End::Last, 1), Claim::Chunks(Run { first: 3, count: 1 }));
        assert_eq!(meeting.claim(1, 1, End::Last, 1), Claim::Damaged);
        assert_eq!(meeting.claim(1, 9, End::Last, 3), Claim::Chunks(Run { first: 5, count: 3 }));
        assert_eq!(meeting.claim(1, 9, End::First, u64::MAX), Claim::Chunks(Run { first: 1, count: 4 }));
        assert_eq!(meeting.claim(1, 9, End::First, 1), Claim::Met);
        assert!(meeting.close(1) && meeting.close(1) && !meeting.finish(1));
        assert_eq!(meeting.claim(1, 4, End::Last, 1), Claim::Over);
        meeting.open(2);
        assert!(!meeting.close(1) && !meeting.finish(1));
        assert_eq!(meeting.claim(1, 4, End::Last, 1), Claim::Over);
        assert!(meeting.finish(2) && !meeting.close(2));
        assert_eq!(meeting.progress(1), None);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use doorbell_fabric::sync::AtomicU64;
    use std::sync::Arc;

    const CHUNKS: u64 = 3;

    /// Origin and target claim at once, from both ends; a third thread may close. No thread gets a chunk that another has.
    fn meet(closing: bool, most: u64) {
        loom::model(move || {
            let meeting = Arc::new(RendezvousBlock::default());
            meeting.open(1);
            let counts: Arc<Vec<AtomicU64>> = Arc::new((0..CHUNKS).map(|_| AtomicU64::new(0)).collect());
            let work = |end: End| {
                let (meeting, counts) = (meeting.clone(), counts.clone());
                move || {
                    while let Claim::Chunks(run) = meeting.claim(1, CHUNKS, end, most) {
                        for count in &counts[run.first as usize..][..run.count as usize] {
                            assert_eq!(count.fetch_add(1, Ordering::Relaxed), 0, "a chunk was claimed twice");
                        }
                    }
                }
            };
            let closer = closing.then(|| {
                let meeting = meeting.clone();
                loom::thread::spawn(move || meeting.close(1))
            });
            let origin = loom::thread::spawn(work(End::First));
            work(End::Last)();
            origin.join().unwrap();
            match closer {
                Some(closer) => assert!(closer.join().unwrap()),
                None => assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1)),
            }
        });
    }

    #[test]
    fn the_ends_meet_once() {
        meet(false, 1);
        meet(false, 2);
    }

    #[test]
    fn whoever_closes_ends_it_for_both() {
        meet(true, 1);
    }

    /// The origin puts chunks. The target revokes, and takes its memory back when the origin has let go of it: from then on,
    /// nothing is written there. The target claims chunks meanwhile.
    #[test]
    fn what_the_target_has_taken_back_is_not_written() {
        loom::model(|| {
            let meeting = Arc::new(RendezvousBlock::default());
            meeting.open(1);
            // Each chunk is a word: 1 when the origin has put it.
            let memory: Arc<Vec<AtomicU64>> = Arc::new((0..CHUNKS).map(|_| AtomicU64::new(0)).collect());
            let origin = {
                let (meeting, memory) = (meeting.clone(), memory.clone());
                loom::thread::spawn(move || {
                    let mut put = Moved::default();
                    while let Claim::Chunks(run) = meeting.claim_put(1, CHUNKS, 1) {
                        if planted_bug("let_go") {
                            put.add(1, 1);
                            meeting.set_put(put);
                            memory[run.first as usize].store(1, Ordering::Relaxed);
                        } else {
                            memory[run.first as usize].store(1, Ordering::Relaxed);
                            put.add(1, 1);
                            meeting.set_put(put);
                        }
                    }
                })
            };
            let own = u64::from(matches!(meeting.claim(1, CHUNKS, End::Last, 1), Claim::Chunks(_)));
            assert!(meeting.revoke(1));
            // Once, since a loop would have no end in a model.
            let has_let_go = meeting.has_let_go(1, own);
            if has_let_go {
                memory.iter().for_each(|word| word.store(2, Ordering::Relaxed));
            }
            origin.join().unwrap();
            assert!(meeting.has_let_go(1, own), "the origin never confirms");
            if has_let_go {
                let all: Vec<u64> = memory.iter().map(|word| word.load(Ordering::Relaxed)).collect();
                assert_eq!(all, [2; CHUNKS as usize], "written after it was taken back");
            }
        });
    }

    /// Closing and finishing exclude each other.
    #[test]
    fn a_transfer_ends_in_one_way() {
        loom::model(|| {
            let meeting = Arc::new(RendezvousBlock::default());
            meeting.open(1);
            let other = meeting.clone();
            let closer = loom::thread::spawn(move || other.close(1));
            let finished = meeting.finish(1);
            assert!(finished != closer.join().unwrap());
        });
    }
}
