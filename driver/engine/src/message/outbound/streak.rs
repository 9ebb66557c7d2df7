//! Long messages that go through the lane without a plan each.
//!
//! A plan takes the engine, and an `Op` with it, whose locked instructions wait until all bytes of the message have left the processor. But
//! the answer rarely changes. So a plan that chose the lane holds for the next messages of about this length, too.

use super::{Far, OutState, Sent};
use crate::error::Error;
use crate::links::AnyLink;

/// The messages for which the last plan holds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Streak {
    left: u32,
    /// Those that were sent.
    sent: u32,
    /// The binary logarithm of their length.
    class: u32,
}

impl OutState {
    /// Records that so many messages of about `len` bytes in private memory may follow through the lane.
    pub fn set_streak(&mut self, len: usize, messages: u32) {
        self.streak = Streak { left: messages, sent: 0, class: len.ilog2() };
    }

    /// Ends the streak. Returns about how long its messages were, and how many were sent, if any.
    pub fn take_streak(&mut self) -> Option<(usize, u32)> {
        let Streak { sent, class, .. } = std::mem::take(&mut self.streak);
        (sent > 0).then_some((1 << class, sent))
    }

    /// Sends a message of several packets if the last plan holds for it, and all of it has room. False: it takes the longer way. The caller
    /// knows that the queue is not [held](Self::is_held).
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn send_of_streak(&mut self, tag: u64, bytes: &[u8]) -> Result<bool, Error> {
        let Streak { left, class, .. } = self.streak;
        if left == 0 || bytes.is_empty() || bytes.len().ilog2() != class {
            return Ok(false);
        }
        let Some(link @ AnyLink::Shm(_)) = &mut self.link else { return Ok(false) };
        let packet = link.piece_bytes(bytes.len());
        if !link.has_room(bytes.len(), packet) {
            return Ok(false);
        }
        // SAFETY: a slice.
        match unsafe { self.send_some(tag, bytes.as_ptr(), bytes.len(), Far::default()) } {
            Sent::Whole => {
                (self.streak.left, self.streak.sent) = (left - 1, self.streak.sent + 1);
                Ok(true)
            }
            Sent::Partly(far) => {
                // There was room, so this is an injected fault.
                if far.started {
                    self.give_up(far.by);
                }
                Ok(false)
            }
            Sent::Down => Err(Error::Damaged { node: self.target }),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::message::matching::Match;
    use doorbell_fabric::Priority;
    use doorbell_shm::space::Space;
    use std::time::{Duration, Instant};

    #[test]
    #[cfg_attr(miri, ignore = "too slow")]
    fn messages_of_a_streak_need_no_plan_and_arrive_in_order() {
        let space = Space::heap();
        let join = |id| crate::Node::builder("streak").id(id).space(space.clone()).join().unwrap();
        let (a, b) = (join(0), join(1));
        let mut buf = vec![0; 64 << 10];
        // Lets the lane grow.
        for number in 0..100 {
            a.send(b.id(), number, &[1; 4000]).unwrap();
            b.recv(Match::any(), &mut buf).unwrap();
        }
        let me = a.shared().check().unwrap();
        let (outbound, _) = a.shared().way(me, b.id(), Priority::Normal).unwrap();
        let messages: Vec<_> = (0..2_u8).map(|number| vec![number; 40_000 + usize::from(number)]).collect();
        outbound.state.enter(me).unwrap().set_streak(40_000, 2);
        let send = |len| outbound.state.enter(me).unwrap().send_of_streak(7, &vec![9; len]).unwrap();
        assert!(!send(30_000) && !send(70_000) && !send(0), "another class");
        for (number, message) in (200..).zip(&messages) {
            a.send_until(b.id(), number, message, Instant::now() + Duration::from_secs(10)).unwrap();
        }
        assert!(!send(40_000), "none is left");
        // A plan would have ended the streak.
        let ended = outbound.state.enter(me).unwrap().take_streak();
        assert_eq!(ended, Some((32 << 10, 2)));
        for (number, message) in (200..).zip(&messages) {
            let envelope = b.recv(Match::any(), &mut buf).unwrap();
            assert!((envelope.tag, &buf[..envelope.len]) == (number, message));
        }
        let mut state = outbound.state.enter(me).unwrap();
        assert!(state.take_streak().is_none());
        // Without room, nothing of the message goes.
        state.set_streak(1 << 20, 1);
        assert!(!state.send_of_streak(7, &vec![9; 1 << 20]).unwrap() && state.take_streak().is_none());
        drop(state);
        a.leave().unwrap();
        b.leave().unwrap();
    }
}
