//! How a team ends: a member is gone, breaks off, or gives an operation up.

use super::core::{Core, Way};
use super::error::TeamError;
use super::exchange::Exchange;
use super::memory::{Farewell, Memory};
use super::state::{Body, Place, State, Task, Turn, tell};
use doorbell_engine::error::Error;
use doorbell_engine::message::service::{Gone, PeerId};
use std::sync::atomic::Ordering;

const LEFT: u64 = 1 << 32;
const DAMAGED: u64 = 1 << 33;
const OUT_OF_STEP: u64 = u64::MAX;

impl Core {
    /// A node is gone.
    pub(crate) fn gone(&self, peer: PeerId, why: Gone) {
        let Some(rank) = self.rank_of(peer) else { return };
        if let (Gone::Left, Way::Shared(memory)) = (why, &self.way) {
            // Its posts count: only a member that waits for more is told.
            return memory.note(rank, Farewell::Left);
        }
        let flag = match why {
            Gone::Died => 0,
            Gone::Left => LEFT,
            Gone::Damaged => DAMAGED,
        };
        let _ = self.broken.compare_exchange(0, (rank as u64 + 1) | flag, Ordering::AcqRel, Ordering::Relaxed);
        if why == Gone::Damaged {
            // The others may see nothing wrong with it, and would wait for this member.
            self.break_off();
            if let Way::Apart(apart) = &self.way {
                apart.tell_end();
            }
        }
    }

    /// This member does nothing for the team any more. The others are told.
    pub(crate) fn break_off(&self) {
        self.end_with(Farewell::GaveUp);
    }

    /// This member does nothing for the team any more, because its node leaves. The others are told.
    pub(crate) fn leave(&self) {
        self.end_with(Farewell::Left);
    }

    fn end_with(&self, farewell: Farewell) {
        // In a forked child the team is the parent's, and its memory is not there.
        if doorbell_shm::space::forked() {
            return;
        }
        let _ = self.broken.compare_exchange(0, OUT_OF_STEP, Ordering::AcqRel, Ordering::Relaxed);
        if let Way::Shared(memory) = &self.way {
            memory.note(self.me, farewell);
            self.ring();
        }
    }

    /// Whether the team may have ended: three loads, of words that nobody writes as long as all is well.
    #[inline]
    pub(super) fn may_be_over(&self, memory: &Memory) -> bool {
        self.broken.load(Ordering::Relaxed) != 0 || memory.has_anybody_given_up() || memory.is_cut()
    }

    /// Why nothing can be done with the team any more.
    #[cold]
    pub(super) fn end(&self) -> Option<Error> {
        match self.broken.load(Ordering::Acquire) {
            0 if self.memory().is_some_and(Memory::is_cut) => Some(Error::Damaged { node: self.members[0].node }),
            0 => None,
            OUT_OF_STEP => Some(Error::cannot("go on with a team", TeamError::OutOfStep)),
            word => {
                let why = match word {
                    word if word & LEFT != 0 => Gone::Left,
                    word if word & DAMAGED != 0 => Gone::Damaged,
                    _ => Gone::Died,
                };
                Some(why.error(self.members[(word as u32 - 1) as usize]))
            }
        }
    }

    /// This member waits for a member that gave up.
    pub(super) fn desertion(&self, state: &State) -> Option<Error> {
        let memory = self.memory().filter(|memory| memory.has_anybody_given_up())?;
        let awaited = |turn: &Turn| {
            let (Place { channel, before, .. }, view) = (turn.place, memory.view(turn.place.channel));
            match &turn.task {
                _ if !turn.acquired => self.quitter(memory, |other| !view.words.has_left(other, before)),
                Some(_) if turn.left => self.lingerer(memory, turn.place),
                Some(Task { body: Body::Exchange(exchange), over: true, .. }) => {
                    self.quitter(memory, |other| !view.words.has_taken(other, exchange.end_ticket()))
                }
                Some(Task { body: Body::Exchange(exchange), .. }) => self.deserter(memory, exchange, channel),
                _ => None,
            }
        };
        state.turns.iter().find_map(awaited)
    }

    /// Another member gave up, and this is so of it.
    fn quitter(&self, memory: &Memory, is_so: impl Fn(usize) -> bool) -> Option<Error> {
        let mut others = self.others().map(|(rank, _)| rank);
        others.find(|other| memory.has_given_up(*other) && is_so(*other)).map(|member| self.gave_up(member))
    }

    /// A member gave up and has not left the channel.
    pub(super) fn lingerer(&self, memory: &Memory, Place { channel, before, .. }: Place) -> Option<Error> {
        let words = memory.view(channel).words;
        self.quitter(memory, |other| !words.has_left(other, before + 1))
    }

    /// A member gave up before it posted what an exchange waits for.
    pub(super) fn deserter(&self, memory: &Memory, exchange: &Exchange, channel: usize) -> Option<Error> {
        let view = memory.view(channel);
        let member = exchange.awaited(&view).filter(|member| memory.has_given_up(*member))?;
        // Asked again: the post may have come right before its member gave up.
        (exchange.awaited(&view) == Some(member)).then(|| self.gave_up(member))
    }

    fn gave_up(&self, member: usize) -> Error {
        let PeerId { node, incarnation } = self.members[member];
        if self.memory().is_some_and(|memory| memory.has_left(member)) {
            return Error::PeerLeft { node, incarnation };
        }
        Error::cannot("go on with a team", TeamError::GaveUp { node })
    }

    /// Ends all operations that are under way.
    pub(super) fn fail(&self, state: &mut State, error: Error) {
        if let Way::Apart(apart) = &self.way {
            apart.give_up();
        }
        self.break_off();
        let mut error = Some(error);
        for turn in std::mem::take(&mut state.turns) {
            for task in turn.task.into_iter().chain(turn.more) {
                let why = error.take().or_else(|| self.end()).unwrap_or(Error::Cancelled);
                tell(Some(task), &mut state.ended, Err(why));
            }
        }
    }
}
