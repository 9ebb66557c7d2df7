//! How fast a waiter looks for an answer.
//!
//! A look at a line that another processor is about to write can make the writer fetch the line again. Whether that happens depends on the
//! distance of the processors, and on a few nanoseconds in either program. So a waiter tries several paces now and then, and keeps to the one
//! by which its conversation goes fastest. Both ends of a conversation compare at the same time, and mostly try the same pace together, as
//! they will use it.

use doorbell_fabric::hint::{self, HAS_TICKS};

/// The pace of the answers in one lane.
#[derive(Debug)]
pub(super) struct Paces {
    /// The steps between two looks ([`between_looks`](doorbell_fabric::sync::between_looks)), or 0: a pause
    /// ([`spin_hint`](doorbell_fabric::sync::spin_hint)).
    steps: u32,
    /// The number of answers until the last one of this batch, or of the time between two comparisons.
    left: u32,
    /// The messages that the thread had sent when it counted the last answer.
    sent: u32,
    /// The batches of this comparison that have begun.
    begun: u32,
    /// When the present batch began, in ticks.
    began: u64,
    /// The shortest batch at each pace, in ticks.
    shortest: [u64; Self::PACES],
}

impl Default for Paces {
    fn default() -> Self {
        Self { steps: HAS_TICKS.into(), left: 0, sent: 0, begun: 0, began: 0, shortest: [0; Self::PACES] }
    }
}

impl Paces {
    /// A pause, and one to three steps.
    const PACES: usize = 4;
    /// The answers of a batch.
    const BATCH: u32 = 16;
    /// The batches of a comparison, at all paces in turn. The shortest one counts, because any other may have been interrupted.
    const BATCHES: u32 = 5 * Self::PACES as u32;
    /// The answers between two comparisons. One answer of 20 is part of a comparison.
    const REST: u32 = 19 * Self::BATCH * Self::BATCHES;

    /// The steps between two looks of the next wait, or 0: a pause.
    #[inline(always)]
    pub fn steps(&self) -> &u32 {
        &self.steps
    }

    /// The looks without a pause that take about as long as so many with one.
    #[inline(always)]
    pub fn looks(&self, rounds: u32) -> u32 {
        // A single look is not to wait.
        if rounds > 1 { rounds.saturating_mul(4 / self.steps.max(1)) } else { rounds }
    }

    /// Counts an answer that was waited for. The thread has sent so many messages. Nothing happens if it has sent none since the last answer:
    /// then it has seen the same packet again.
    #[inline(always)]
    pub fn count(&mut self, sent: u32) {
        if !HAS_TICKS || std::mem::replace(&mut self.sent, sent) == sent {
            return;
        }
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => self.end_batch(hint::ticks()),
        }
    }

    /// Ends a batch, or the time between two comparisons, and begins what follows.
    #[cold]
    #[inline(never)]
    fn end_batch(&mut self, now: u64) {
        if self.begun == 0 {
            self.shortest = [u64::MAX; Self::PACES];
        } else if let Some(took @ 1..) = now.checked_sub(self.began) {
            // Without a length, the thread has come to a processor whose clock is behind.
            let shortest = &mut self.shortest[self.steps as usize];
            *shortest = took.min(*shortest);
        }
        (self.left, self.began) = (Self::BATCH - 1, now);
        if self.begun < Self::BATCHES {
            self.steps = self.begun % Self::PACES as u32;
            self.begun += 1;
            return;
        }
        let fastest = (0..).zip(&self.shortest).min_by_key(|(_, shortest)| **shortest);
        self.steps = fastest.map_or(0, |(steps, _)| steps);
        (self.begun, self.left) = (0, Self::REST);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{callers::Blank, hot::Hot, hot::Lane};
    use super::*;
    use crate::lane::Producer;
    use doorbell_fabric::{NodeId, PacketHead, PacketKind, Priority, Push};
    use std::sync::Arc;

    fn push(producer: &mut Producer<crate::lane::RawMemory>, sequence: u32) {
        let head = PacketHead { kind: PacketKind::Whole, tag: 7, sequence, total: 8 };
        // SAFETY: eight bytes. The first attempt counts the message of this thread.
        let done = unsafe {
            producer.push_whole(7, sequence, [1; 8].as_ptr(), 8) || producer.push(&head, [1; 8].as_ptr(), 8) == Push::Done
        };
        assert!(done);
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn a_lane_counts_each_answer_once_and_nothing_else() {
        let (here, there) = (Arc::new(Blank::default()), Arc::new(Blank::default()));
        let claim = |page: &Blank| Producer::claim(page.memory(), 1).unwrap();
        let (mut questions, mut answers) = (claim(&there), claim(&here));
        // By another thread, whose messages do not count here.
        let mut answer = |sequence| std::thread::scope(|scope| scope.spawn(|| push(&mut answers, sequence)).join().unwrap());
        let mut lane = Lane::new(here.consumer(), NodeId(1), Priority::Normal, Arc::default());
        // Looks twice, and then takes the packet. Returns the state of the count.
        let mut receive = || {
            let mut hot = Hot { lane: &mut lane, index: 0 };
            let seen = [hot.watch(2), hot.watch(2)].map(|first| hot.examine(first.unwrap()).unwrap());
            lane.take(&seen[1]);
            (lane.paces.begun, lane.paces.left)
        };
        answer(0);
        assert_eq!(receive(), (0, 0), "nobody asked");
        push(&mut questions, 0);
        answer(1);
        assert_eq!(receive(), (1, Paces::BATCH - 1));
        answer(2);
        assert_eq!(receive(), (1, Paces::BATCH - 1), "nobody asked");
        push(&mut questions, 1);
        answer(3);
        assert_eq!(receive(), (1, Paces::BATCH - 2));
    }

    #[test]
    fn the_fastest_pace_is_found_and_found_again() {
        let (mut paces, mut now) = (Paces::default(), 1000);
        for (times, fastest) in [([100, 120, 99, 130], 2), ([90, 100, 120, 110], 0), ([90, 120, 100, 80], 3), ([7; 4], 0)] {
            paces.end_batch(now);
            for batch in 0..Paces::BATCHES {
                // The first batches are interrupted.
                let interrupted = if batch < 6 { 1 << 40 } else { 0 };
                now += interrupted + times[*paces.steps() as usize];
                paces.end_batch(now);
            }
            assert_eq!((*paces.steps(), paces.begun, paces.left), (fastest, 0, Paces::REST), "{times:?}");
        }
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn all_paces_are_tried_now_and_then() {
        let (mut paces, mut answers) = (Paces::default(), [0; Paces::PACES]);
        for sent in 1..=2 * (Paces::REST + Paces::BATCH * Paces::BATCHES) {
            answers[*paces.steps() as usize] += 1;
            paces.count(sent);
            // The same answer.
            paces.count(sent);
        }
        let tried = Paces::BATCH * Paces::BATCHES / Paces::PACES as u32;
        assert!(answers.iter().all(|answers| *answers >= tried), "{answers:?}");
    }

    #[test]
    fn a_clock_that_goes_back_measures_nothing() {
        let mut paces = Paces::default();
        for batch in 0..=Paces::BATCHES {
            paces.end_batch(u64::from(1000 - batch));
        }
        assert_eq!((*paces.steps(), paces.shortest), (0, [u64::MAX; Paces::PACES]));
    }
}
