//! The effects of time on a session.

use super::{Closing, Session, resend};
use crate::protocol::CloseReason;
use crate::protocol::time::Time;

/// How often the other end is told that a session ends.
const GOODBYES: u32 = 4;
/// Where a peer may be silent forever: the number of unanswered pings in a row after which older datagrams are no longer waited
/// for, and the number of datagrams to retire each time, which is more than a ping adds.
const RETIRE_AFTER: u32 = 8;
const RETIRED: usize = 4;
/// The dead-peer times after which a peer counts as dead that is heard but acknowledges nothing under way. A peer that follows
/// the rules acknowledges at once. If it hears nothing any more, it ends the session after one dead-peer time.
const DEAF_AFTER: u64 = 4;

impl Session {
    /// The time of the next call of [`on_timeout`](Self::on_timeout).
    #[inline]
    pub fn deadline(&self) -> Time {
        if self.over.is_some() {
            return Time::NEVER;
        }
        if !self.confirmed {
            return self.last_heard + self.spans.dead;
        }
        let mut deadline = self.received.deadline().min(self.flight.loss_at).min(self.flight.question_at());
        deadline = deadline.min(self.close_by).min(self.spares_at());
        if self.flight.waiting == 0 {
            deadline = deadline.min(self.last_heard + self.quiet_after);
        } else {
            deadline = deadline.min(self.dead_at());
        }
        if self.flight.bytes < self.congestion.window() {
            deadline = deadline.min(self.mtu.deadline()).min(self.paced_until);
        }
        deadline.min(self.idle_at())
    }

    /// A peer that says nothing until this time is dead. It has three quarters of the time after the first ping. A peer that
    /// talks and acknowledges nothing is dead too; otherwise its unacknowledged data would be kept forever.
    fn dead_at(&self) -> Time {
        let asked = self.flight.waiting_since + (self.spans.dead - self.spans.keep_alive);
        let silent = asked.max(self.last_heard + self.spans.dead);
        let deaf = self.flight.waiting_since.max(self.acked_at) + DEAF_AFTER * self.spans.dead;
        match self.doubted {
            _ if !self.vouched => silent.min(deaf),
            Some(end) => silent.max(end),
            None => Time::NEVER,
        }
    }

    /// A session that is not used until this time is closed.
    fn idle_at(&self) -> Time {
        match self.spans.idle {
            Some(idle) if self.cargo.closing == Closing::No && !self.vouched => self.last_used + idle,
            _ => Time::NEVER,
        }
    }

    /// This node itself was stopped until now, so the peer gets some more time.
    pub fn forgive(&mut self, now: Time) {
        let lately = Time::from_nanos(now.nanos().saturating_sub(self.spans.dead / 2));
        self.last_heard = self.last_heard.max(lately);
        self.acked_at = self.acked_at.max(lately);
    }

    /// Whether nothing was heard for half the time after which the peer is pinged, and no ping is under way.
    pub fn is_quiet(&self, now: Time) -> bool {
        // A further session is pinged only while it is used.
        let is_asked = self.confirmed && self.over.is_none() && self.strand == 0;
        is_asked && self.flight.waiting == 0 && self.last_heard + self.spans.keep_alive / 2 <= now
    }

    /// Whether this is a vouched-for further session whose pings have long been unanswered.
    pub fn is_unanswered(&self) -> bool {
        self.strand > 0 && self.vouched && self.over.is_none() && self.flight.questions > RETIRE_AFTER
    }

    /// Does everything that is due. Returns whether to ping the peer.
    pub fn on_timeout(&mut self, now: Time) -> bool {
        if self.over.is_some() {
            return false;
        }
        if !self.confirmed {
            if self.last_heard + self.spans.dead <= now {
                self.end(CloseReason::Silent);
            }
            return false;
        }
        if self.flight.waiting > 0 && self.dead_at() <= now {
            let closing = self.cargo.closing != Closing::No;
            self.end(if closing { CloseReason::Local } else { CloseReason::Silent });
            return false;
        }
        if self.close_by <= now {
            self.end(CloseReason::Local);
            return false;
        }
        if self.paced_until <= now {
            // The next attempt to send will show whether there is still something to send.
            self.paced_until = Time::NEVER;
        }
        if self.flight.loss_at <= now {
            self.find_lost(now);
        }
        if self.spares_at() <= now {
            self.attend_spares(now);
        }
        if self.flight.question_at() <= now {
            self.ask(now);
        }
        let asks = self.flight.waiting == 0 && self.last_heard + self.quiet_after <= now;
        self.ping |= asks;
        if self.idle_at() <= now {
            self.end(CloseReason::Idle);
        }
        asks
    }

    /// Nothing came back for a long time: sends the oldest datagrams again. The answer will tell about the others.
    fn ask(&mut self, now: Time) {
        self.stats.probe_timeouts += 1;
        self.flight.asked(now);
        let Session { flight, cargo, stats, mtu, .. } = self;
        if self.vouched && flight.questions > RETIRE_AFTER {
            flight.retire(now, RETIRED, resend(cargo, mtu, stats));
        } else {
            flight.oldest(2, resend(cargo, mtu, stats));
        }
        self.questions = 2;
        if matches!(self.cargo.closing, Closing::Telling { .. }) && self.flight.questions > GOODBYES {
            // The other end knows, and its answer was lost; or it will find out.
            self.end(CloseReason::Local);
        }
        // A path that lost its large datagrams still answers a small one.
        self.ping_alone = self.flight.questions >= 2;
        self.suspect(now);
    }
}
