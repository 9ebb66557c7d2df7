//! How those wait who found a key locked.
//!
//! Whoever gives a key up and takes it again at once may do so while others wait: handing it on each time would cost two journeys of its line
//! and of what it guards, and a switch of processes where processors are few. So who waits takes a key that lies idle, and else waits
//! for its turn: when it has waited for [`TURN`], and there was no other turn for as long, whoever of the waiters came first is *next*, and nobody else
//! takes the key. So a key that many want goes round in turns of some length. A waiter who is next and does not look, because it died or was
//! stopped, is passed over.

use super::waits::{Entered, Waits};
use super::word::{LockWords, OwnerId, Seen, Taken};
use crate::clock::now_ns;
use doorbell_fabric::sync::spin_hint;
use std::time::Duration;

/// How long others may go on taking a key for which somebody waits.
pub const TURN: Duration = Duration::from_millis(1);
/// After this time without a look whoever is next is passed over.
const STALE: Duration = Duration::from_millis(10);
/// So long whoever came first has time to wake when its turn has come, before another goes first.
const GRACE: Duration = Duration::from_millis(2);
/// How long one sleeps that waits for this.
const AGAIN: Duration = Duration::from_micros(250);
/// How often a waiter pauses between two looks, at first and at most: a tenth of a microsecond, and one or two. Each look takes the key's line from
/// its owner.
const PAUSES: (u32, u32) = (4, 64);
/// A key that was not taken for so many pauses lies idle.
const IDLE: u32 = 48;

/// One who waits for a key. Dropping it leaves the line.
pub struct Waiter<'a> {
    words: &'a LockWords,
    waits: &'a Waits,
    slot: usize,
    me: OwnerId,
    /// Its place among all who wait, once it has waited for long.
    entered: Option<Entered<'a>>,
    /// When it came, and which one it is: the smallest is first.
    ticket: u64,
    began: u64,
    pauses: u32,
    /// It was woken, and somebody else was faster.
    in_vain: bool,
    taken: bool,
}

/// What a waiter saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The key is its own now.
    Taken(Taken),
    /// It is not.
    Not(Seen),
}

impl<'a> Waiter<'a> {
    /// Comes to the end of the line.
    pub(crate) fn new(words: &'a LockWords, waits: &'a Waits, slot: usize, me: OwnerId) -> Self {
        let began = now_ns();
        // Eight microseconds a step: 44 bits last four years. Which waiter: enough to tell them apart, almost always.
        let which = (me.bits() >> 42 ^ me.bits()) & 0xf_ffff;
        let ticket = (began >> 13 << 20 | which).max(1);
        let (entered, pauses) = (None, PAUSES.0);
        Self { words, waits, slot, me, entered, ticket, began, pauses, in_vain: false, taken: false }
    }

    /// Takes the key if it may, after a pause.
    pub fn look(&mut self) -> Look {
        pause(self.pauses);
        self.pauses = (2 * self.pauses).min(PAUSES.1);
        let now = now_ns();
        if let Some(gone) = pass_over(self.words, now, self.ticket) {
            self.waits.forget_ticket(gone);
        }
        if self.is_next() {
            // It looks, and is not passed over.
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

    /// Is next, unless somebody came earlier: that one is woken to say so itself, as nobody uses the key while one is next who does not run.
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

    /// Says who waits: circles are found among those who say so, and the first of them is known. Again and again, as a place may be had later.
    pub fn enter(&mut self) -> Option<&Entered<'a>> {
        if self.entered.is_none() {
            self.entered = self.waits.enter(self.me, self.slot, self.ticket);
        }
        self.entered.as_ref()
    }

    fn is_next(&self) -> bool {
        self.words.turn().is_some_and(|(turn, _)| turn == self.ticket)
    }

    /// When the first of those who wait may say that it is next.
    fn due(&self, now: u64) -> u64 {
        let turn = TURN.as_nanos() as u64;
        // What is said to have been later than now was forged.
        let served = Some(self.words.turn_served()).filter(|served| *served <= now + turn);
        self.began.max(served.unwrap_or(0)) + turn
    }

    /// Takes the key of a dead owner, as it was seen; see [`LockWords::take_from_dead`].
    pub fn take_from_dead(&mut self, seen: Seen) -> bool {
        let taken = self.words.take_from_dead(seen, self.me);
        if taken {
            self.taken = true;
            self.words.end_turn(self.ticket, None);
        }
        taken
    }

    /// Sleeps until the key may have become free or it may be next, for `timeout` at most. May return early.
    ///
    /// Who gives the key up wakes it once. If it was taken again by then it sleeps until it may be next, and costs the owner nothing.
    pub fn sleep(&mut self, timeout: Duration) {
        let is_next = self.is_next();
        self.pauses = PAUSES.0;
        if self.in_vain && !is_next {
            // Not armed: only who finds that it is its turn wakes it.
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
            // It may have been this one that was woken to take it.
            if self.words.get().is_free() {
                self.words.pass_on();
            }
        }
    }
}

fn pause(times: u32) {
    (0..times).for_each(|_| spin_hint());
}

/// Takes the turn from one who does not look any more; says from whom.
fn pass_over(words: &LockWords, now: u64, mine: u64) -> Option<u64> {
    let (turn, seen) = words.turn()?;
    let is_stale = turn != mine && now.abs_diff(seen) > STALE.as_nanos() as u64 && words.get().is_free();
    (is_stale && words.end_turn(turn, None)).then_some(turn)
}

/// Takes a key that nobody has, as [`LockWords::try_take`] without a ticket; passes over one who is next and does not look.
pub fn try_take(words: &LockWords, me: OwnerId) -> Result<Taken, Seen> {
    words.try_take(me, 0).or_else(|seen| {
        if !seen.is_free() {
            return Err(seen);
        }
        pass_over(words, now_ns(), 0);
        words.try_take(me, 0)
    })
}
