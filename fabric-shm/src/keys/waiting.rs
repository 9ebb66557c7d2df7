//! How a waiter waits for a held lock.
//!
//! An owner may unlock and lock again at once while others wait. Handing the lock on each time would move its cache line and
//! the data it guards twice, and cost a switch of processes on a machine with few processors. So a waiter takes a lock that is
//! idle, and otherwise waits for its turn. When a waiter has waited for [`TURN`], and no other waiter had a turn for as long,
//! the first waiter is *next*, and no other thread takes the lock. So a lock that many threads want goes round in turns of some
//! length. If the next waiter does not look at the lock, because it died or was stopped, it is passed over.

use super::waits::{Entered, Waits};
use super::word::{LockWords, OwnerId, Seen, Taken};
use crate::clock::now_ns;
use doorbell_fabric::sync::spin_hint;
use std::time::Duration;

/// How long other threads may take a lock while a waiter waits for it.
pub const TURN: Duration = Duration::from_millis(1);
/// After this time without a look, the next waiter is passed over.
const STALE: Duration = Duration::from_millis(10);
/// How long the first waiter may take to wake up when its turn has come, before another goes first.
const GRACE: Duration = Duration::from_millis(2);
/// How long a waiter sleeps that waits for that.
const AGAIN: Duration = Duration::from_micros(250);
/// How many pauses a waiter makes between two looks, at first and at most: about a tenth of a microsecond, and one or two. Each
/// look takes the lock's cache line from the owner.
const PAUSES: (u32, u32) = (4, 64);
/// A lock that was not taken for this many pauses is idle.
const IDLE: u32 = 48;

/// A waiter for a lock. Dropping it leaves the queue.
pub struct Waiter<'a> {
    words: &'a LockWords,
    waits: &'a Waits,
    slot: usize,
    me: OwnerId,
    /// Its entry among all waiters, once it has waited for a while.
    entered: Option<Entered<'a>>,
    /// When it came, and a number to tell waiters apart: the smallest ticket is first.
    ticket: u64,
    began: u64,
    pauses: u32,
    /// It was woken, but another thread got the lock first.
    in_vain: bool,
    taken: bool,
}

/// What a waiter saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The waiter owns the lock now.
    Taken(Taken),
    /// The waiter does not own it.
    Not(Seen),
}

impl<'a> Waiter<'a> {
    /// Joins the end of the queue.
    pub(crate) fn new(words: &'a LockWords, waits: &'a Waits, slot: usize, me: OwnerId) -> Self {
        let began = now_ns();
        // Eight microseconds a step: 44 bits last four years. The other bits tell waiters apart, almost always.
        let which = (me.bits() >> 42 ^ me.bits()) & 0xf_ffff;
        let ticket = (began >> 13 << 20 | which).max(1);
        let (entered, pauses) = (None, PAUSES.0);
        Self { words, waits, slot, me, entered, ticket, began, pauses, in_vain: false, taken: false }
    }

    /// Takes the lock if that is allowed, after a pause.
    pub fn look(&mut self) -> Look {
        pause(self.pauses);
        self.pauses = (2 * self.pauses).min(PAUSES.1);
        let now = now_ns();
        if let Some(gone) = pass_over(self.words, now, self.ticket) {
            self.waits.forget_ticket(gone);
        }
        if self.is_next() {
            // A look, so that it is not passed over.
            self.words.claim_turn(self.ticket, now);
        } else if now >= self.due(now) {
            self.begin_turn(now);
        }
        let is_next = self.is_next();
        let seen = self.words.get();
        if !seen.is_free() {
            return Look::Not(seen);
        }
        if !is_next {
            let uses = self.words.uses();
            pause(IDLE);
            if self.words.uses() != uses || !self.words.get().is_free() {
                return Look::Not(self.words.get());
            }
        }
        match self.words.try_take(self.me, self.ticket) {
            Ok(taken) => {
                self.taken = true;
                self.words.end_turn(self.ticket, Some(now));
                Look::Taken(taken)
            }
            Err(seen) => Look::Not(seen),
        }
    }

    /// Becomes next, unless a waiter came earlier. That waiter is woken to claim the turn itself, since the lock stays unused
    /// while the next waiter does not run.
    fn begin_turn(&self, now: u64) {
        if let Some(first) = self.waits.first(self.slot).filter(|first| *first < self.ticket) {
            if now.saturating_sub(self.due(now)) < GRACE.as_nanos() as u64 {
                self.words.wake_ticket(first);
                return;
            }
            // It is dead, or was stopped.
            self.waits.forget_ticket(first);
        }
        self.words.claim_turn(self.ticket, now);
    }

    /// Enters this waiter, so that deadlocks can be found and the first waiter is known. Call it repeatedly, since a place may
    /// become free later.
    pub fn enter(&mut self) -> Option<&Entered<'a>> {
        if self.entered.is_none() {
            self.entered = self.waits.enter(self.me, self.slot, self.ticket);
        }
        self.entered.as_ref()
    }

    fn is_next(&self) -> bool {
        self.words.turn().is_some_and(|(turn, _)| turn == self.ticket)
    }

    /// When the first waiter may become next.
    fn due(&self, now: u64) -> u64 {
        let turn = TURN.as_nanos() as u64;
        // A time that lies in the future is forged.
        let served = Some(self.words.turn_served()).filter(|served| *served <= now + turn);
        self.began.max(served.unwrap_or(0)) + turn
    }

    /// Takes the lock of a dead owner, as it was seen; see [`LockWords::take_from_dead`].
    pub fn take_from_dead(&mut self, seen: Seen) -> bool {
        let taken = self.words.take_from_dead(seen, self.me);
        if taken {
            self.taken = true;
            self.words.end_turn(self.ticket, None);
        }
        taken
    }

    /// Sleeps until the lock may have become free or this waiter may be next, for `timeout` at most. May return early.
    ///
    /// The thread that unlocks wakes it once. If another thread took the lock in between, it sleeps until it may be next, and
    /// costs the owner nothing.
    pub fn sleep(&mut self, timeout: Duration) {
        let is_next = self.is_next();
        self.pauses = PAUSES.0;
        if self.in_vain && !is_next {
            // Not armed: only a waiter that sees that it is this one's turn wakes it.
            let now = now_ns();
            let until = Duration::from_nanos(self.due(now).saturating_sub(now));
            self.words.sleep(self.words.heard(), self.ticket, timeout.min(until.max(AGAIN)));
            return;
        }
        let timeout = if is_next { timeout.min(STALE / 2) } else { timeout };
        let heard = self.words.arm();
        if !self.words.get().is_free() {
            self.words.sleep(heard, self.ticket, timeout);
            self.in_vain = true;
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if !self.taken {
            self.words.end_turn(self.ticket, None);
            // This waiter may have been the one that was woken to take the lock.
            if self.words.get().is_free() {
                self.words.pass_on();
            }
        }
    }
}

fn pause(times: u32) {
    (0..times).for_each(|_| spin_hint());
}

/// Ends the turn of a waiter that does not look any more, and returns its ticket.
fn pass_over(words: &LockWords, now: u64, mine: u64) -> Option<u64> {
    let (turn, seen) = words.turn()?;
    let is_stale = turn != mine && now.abs_diff(seen) > STALE.as_nanos() as u64 && words.get().is_free();
    (is_stale && words.end_turn(turn, None)).then_some(turn)
}

/// Takes a free lock, as [`LockWords::try_take`] without a ticket. Passes over a next waiter that does not look.
pub fn try_take(words: &LockWords, me: OwnerId) -> Result<Taken, Seen> {
    words.try_take(me, 0).or_else(|seen| {
        if !seen.is_free() {
            return Err(seen);
        }
        pass_over(words, now_ns(), 0);
        words.try_take(me, 0)
    })
}
