//! Through a lane or by the kernel: which way is faster for a message in private memory.
//!
//! Through a lane both processors copy every byte, at the same time. By the kernel every byte is copied once, by both processors if
//! the target lets the origin put, and the kernel takes a toll. What the toll is depends on the system and is [measured]; what a
//! lane costs depends on how far apart the processors are. Regions have no such choice: there the toll is nil.
//!
//! [measured]: doorbell_shm::cma::toll

use doorbell_shm::copies::Distance;

/// Picoseconds a byte that a lane takes between processors that share a cache, and between others.
const LANE: [u64; 2] = [60, 200];
/// Of so many messages that would go through the lane, one goes by the kernel, as the target may let the origin put by now.
const ASK_AGAIN: u32 = 64;

/// What is known of the ways to one target.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// The target last asked for a message without letting the origin put.
    pub refused: bool,
    /// How far away it was when last measured.
    pub distance: Distance,
    /// Messages since the kernel was last chosen.
    lane: u32,
}

impl Way {
    /// Whether the kernel is the faster way for the next message. `toll` in picoseconds a byte.
    pub fn is_kernel(&mut self, toll: u64) -> bool {
        let lane = LANE[usize::from(self.distance == Distance::Far)];
        // Two that copy halves: (lane + toll) / 2 against lane. One that copies all: lane + toll, but the other is free meanwhile.
        let most = if self.refused { lane / 2 } else { lane };
        self.lane = self.lane.saturating_add(1);
        let is_kernel = toll <= most || (self.refused && toll <= lane && self.lane >= ASK_AGAIN);
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
    fn a_cheap_kernel_is_chosen_and_a_dear_one_only_from_afar() {
        let (mut near, mut far) = (Way::default(), Way { distance: Distance::Far, ..Way::default() });
        assert!(near.is_kernel(30) && far.is_kernel(30));
        assert!(!near.is_kernel(120) && far.is_kernel(120));
    }

    #[test]
    fn a_target_that_does_the_work_alone_is_asked_again_now_and_then() {
        let mut near = Way { refused: true, ..Way::default() };
        let mut far = Way { distance: Distance::Far, ..near };
        assert!(near.is_kernel(30));
        let kernel = (0..10 * ASK_AGAIN).filter(|_| far.is_kernel(120)).count();
        assert_eq!(kernel, 10);
        assert!((0..10 * ASK_AGAIN).all(|_| !near.is_kernel(120)));
    }
}
