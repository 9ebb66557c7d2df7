//! Through a lane or by the kernel: which is faster for a message in private memory.
//!
//! Through a lane, both processors copy every byte at the same time. Their loops keep many cache lines in flight, and one reads
//! what the other has just written, so it is still in a cache. The lane is therefore faster for messages that fit its ring, and
//! for a stream of messages of any length. By the kernel, every byte is copied once, by both processors if the target lets the
//! origin put, and the kernel adds a toll. The toll depends on the system and is [measured]. Regions need no choice, because
//! they have no toll.
//!
//! [measured]: doorbell_shm::cma::toll

/// Picoseconds a byte that a lane takes between processors that share a cache. Where a lane takes longer, so does the kernel.
const LANE: u64 = 60;
/// A shorter message has passed the lane before the two ends have agreed and the kernel has copied it.
pub(crate) const KERNEL_LEAST: usize = 1 << 20;
/// After several messages at once, this many take the lane even if they come alone: alternating is slower than either way.
const STREAM: u32 = 64;
/// One of this many messages that would take the lane goes by the kernel, since the target may permit a put by now.
const ASK_AGAIN: u32 = 64;

/// The knowledge about the ways to one target.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// For its latest request, the target did not let the origin put.
    pub refused: bool,
    /// The messages since the kernel was last chosen.
    lane: u32,
    /// The messages for which a stream is expected to continue.
    stream: u32,
}

impl Way {
    /// Whether the kernel is the faster way for the next message, of `len` bytes. `alone`: no other message is on its way to
    /// the same target. `toll`: picoseconds a byte.
    pub fn is_kernel(&mut self, toll: u64, len: usize, alone: bool) -> bool {
        if !alone {
            self.stream = STREAM;
            return false;
        }
        if len < KERNEL_LEAST || self.stream > 0 {
            self.stream = self.stream.saturating_sub(1);
            return false;
        }
        // If both sides copy halves: (lane + toll) / 2 against lane. If one side copies all: lane + toll, but the other
        // processor is free meanwhile.
        let most = if self.refused { LANE / 2 } else { LANE };
        self.lane = self.lane.saturating_add(1);
        let is_kernel = toll <= most || (self.refused && toll <= LANE && self.lane >= ASK_AGAIN);
        if is_kernel {
            self.lane = 0;
        }
        is_kernel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cheap_kernel_is_chosen_and_a_dear_one_is_not() {
        let mut way = Way::default();
        assert!(
            [30, 60].into_iter().all(|toll| way.is_kernel(toll, KERNEL_LEAST, true)) && !way.is_kernel(61, KERNEL_LEAST, true)
        );
    }

    #[test]
    fn what_is_short_or_one_of_several_goes_through_the_lane() {
        let mut way = Way::default();
        assert!(!way.is_kernel(0, KERNEL_LEAST - 1, true) && !way.is_kernel(0, 1 << 30, false));
        assert_eq!((0..100).filter(|_| way.is_kernel(0, 1 << 30, true)).count() as u32, 100 - STREAM);
    }

    #[test]
    fn a_target_that_does_the_work_alone_is_asked_again_now_and_then() {
        let mut way = Way { refused: true, ..Way::default() };
        assert!(way.is_kernel(30, KERNEL_LEAST, true));
        let kernel = (0..10 * ASK_AGAIN).filter(|_| way.is_kernel(50, KERNEL_LEAST, true)).count();
        assert_eq!(kernel, 10);
        assert!((0..10 * ASK_AGAIN).all(|_| !way.is_kernel(120, KERNEL_LEAST, true)));
    }
}
