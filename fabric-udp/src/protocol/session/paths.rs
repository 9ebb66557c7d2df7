//! The other ways to a peer that has several addresses, or is reached by several links.
//!
//! Everything goes by the path in use. The others are asked now and then whether they lead to the peer (Challenge, Response). When the
//! path in use gives no answer, all others are asked, and the session goes on by the best of those that answer: so a peer that stands still is not
//! taken for a path that is cut. A session whose peer has one address, reached by one link, has none of this.

use super::Session;
use crate::protocol::congestion::Controller;
use crate::protocol::frame::{self, CHALLENGE_LEN};
use crate::protocol::header::HEADER;
use crate::protocol::loss::{Carried, RoundTrip};
use crate::protocol::mtu::PathMtu;
use crate::protocol::pacing::Pacer;
use crate::protocol::time::{Nanos, Time};
use crate::protocol::wire::Writer;
use crate::protocol::{Event, Path};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Questions in a row without an answer after which the other paths are asked, and after which one of them is taken.
const SUSPECT_AFTER: u32 = 2;
const SILENT_AFTER: u32 = 3;
/// Challenges in a row without an answer after which a path leads nowhere.
const UNANSWERED_MAX: u32 = 3;
/// How often a path that answers is asked while it is not in use, in times of the dead-peer time; and how seldom one that does not, at most.
const REST: u64 = 4;
const REST_MOST: u64 = 16;

/// A path that is not in use.
pub(crate) struct Spare {
    pub path: Path,
    /// It was shown to lead to the peer and back, and answered since.
    valid: bool,
    /// What its next Response must say.
    word: u64,
    /// Since when an answer to that is waited for, and how often it was asked.
    asked: Option<Time>,
    tries: u32,
    unanswered: u32,
    answered: Time,
    next: Time,
    /// To be sent there.
    challenge: bool,
    response: Option<u64>,
    round_trip: RoundTrip,
    congestion: Box<dyn Controller>,
    mtu: PathMtu,
}

impl Spare {
    /// A path of which nothing is known yet.
    pub fn new(now: Time, path: Path, guess: Nanos, congestion: Box<dyn Controller>, mtu: PathMtu) -> Self {
        Self {
            path,
            valid: false,
            word: 0,
            asked: None,
            tries: 0,
            unanswered: 0,
            answered: Time::ZERO,
            next: now,
            challenge: false,
            response: None,
            round_trip: RoundTrip::new(guess),
            congestion,
            mtu,
        }
    }

    /// Asks it, if it is not being asked.
    fn ask(&mut self, now: Time, pause: Nanos) {
        if self.asked.is_none_or(|at| now - at >= self.round_trip.patience(0)) {
            self.challenge = true;
            self.next = now + pause;
        }
    }
}

impl Session {
    /// Paths that are known to lead to the peer, the one in use included.
    pub fn paths(&self) -> usize {
        1 + self.spares.iter().filter(|spare| spare.valid).count()
    }

    fn spare(&mut self, path: Path) -> Option<&mut Spare> {
        self.spares.iter_mut().find(|spare| spare.path == path)
    }

    /// Whether a datagram by this path, which is not the one in use, says that the peer is heard where it may be.
    pub(super) fn is_proven(&self, path: Path) -> bool {
        self.spares.iter().find(|spare| spare.path == path).is_none_or(|spare| spare.valid)
    }

    /// Whether one of several paths to the peer is this one.
    pub(super) fn knows(&self, path: Path) -> bool {
        self.spares.iter().any(|spare| spare.path == path)
    }

    /// Somebody asks whether this path, which is not the one in use, leads here: the answer goes back by it.
    pub(super) fn challenged(&mut self, from: Path, word: u64) {
        match self.spare(from) {
            Some(spare) => spare.response = Some(word),
            None => self.response_to = Some((from, word)),
        }
        self.spares_due = true;
    }

    fn note_spares(&mut self) {
        self.spares_due =
            self.response_to.is_some() || self.spares.iter().any(|spare| spare.challenge || spare.response.is_some());
        self.spares_at = self.spares.iter().map(|spare| spare.next).min().unwrap_or(Time::NEVER);
    }

    /// Asks those whose time has come.
    pub(super) fn attend_spares(&mut self, now: Time) {
        let Self { spares, spans, .. } = self;
        for spare in spares.iter_mut().filter(|spare| spare.next <= now) {
            if spare.asked.is_some() {
                spare.unanswered = spare.unanswered.saturating_add(1);
                if spare.unanswered >= UNANSWERED_MAX {
                    // By now no answer to the former questions is under way.
                    (spare.valid, spare.asked) = (false, None);
                }
            }
            let pause = spans.keep_alive << spare.unanswered.min(32);
            spare.challenge = true;
            spare.next = now + pause.max(spare.round_trip.patience(0)).min(REST_MOST * spans.dead);
        }
        self.note_spares();
    }

    /// The path in use has not answered for some time.
    pub(super) fn suspect(&mut self, now: Time) {
        if self.spares.is_empty() {
            return;
        }
        if self.flight.questions < SUSPECT_AFTER && now - self.silent_since() < self.spans.dead / 4 {
            self.suspected = None;
            return;
        }
        self.suspected.get_or_insert(now);
        for spare in &mut self.spares {
            spare.ask(now, self.spans.keep_alive);
        }
        self.note_spares();
        self.fail_over(now);
    }

    /// Whether a path leads to the peer, as far as is known.
    pub fn is_valid(&self, path: Path) -> bool {
        self.path == path || self.spares.iter().any(|spare| spare.path == path && spare.valid)
    }

    pub fn silent_since(&self) -> Time {
        self.heard_here.max(self.flight.waiting_since)
    }

    /// Leaves the path in use, if it is silent and another is not.
    fn fail_over(&mut self, now: Time) {
        let Some(since) = self.suspected.filter(|_| self.flight.questions > 0) else { return };
        if self.flight.questions < SILENT_AFTER && now - self.silent_since() < self.spans.dead / 2 {
            return;
        }
        let answered = self.spares.iter().enumerate().filter(|(_, spare)| spare.valid && spare.answered >= since);
        let Some((best, _)) = answered.min_by_key(|(_, spare)| spare.round_trip.smoothed) else { return };
        // What is left by need has to earn its window again.
        self.congestion.on_persistent_congestion();
        self.change_path(now, best);
    }

    /// A Response came by another path than the one in use.
    pub(super) fn on_spare_answer(&mut self, now: Time, from: Path, word: u64) {
        // A further session fails over as well if its spares are asked only then.
        let rest = if self.strand == 0 { REST } else { REST_MOST } * self.spans.dead;
        let Some(spare) = self.spare(from).filter(|spare| spare.word == word) else { return };
        let Some(asked) = spare.asked.take() else { return };
        if spare.tries == 1 {
            spare.round_trip.sample(now - asked, 0);
        }
        (spare.valid, spare.unanswered, spare.tries, spare.challenge) = (true, 0, 0, false);
        spare.answered = now;
        spare.next = now + rest;
        self.last_heard = now;
        self.note_spares();
        self.fail_over(now);
        if self.home == Some(from)
            && self.suspected.is_none()
            && let Some(at) = self.spares.iter().position(|spare| spare.path == from)
        {
            self.change_path(now, at);
        }
    }

    /// The newest datagram, which has something to say, came by this path and not by the one in use.
    pub(super) fn beckoned(&mut self, now: Time, from: Path) {
        // Who has something under way that was answered so far finds out by itself: so no two follow each other about.
        let is_free = self.flight.waiting == 0 || self.flight.questions > 0;
        let Some(at) = self.spares.iter().position(|spare| spare.path == from) else { return };
        if !self.spares[at].valid {
            self.spares[at].ask(now, self.spans.keep_alive);
            self.note_spares();
        } else if is_free {
            self.change_path(now, at);
        }
    }

    /// Goes on by another path. What was under way is sent again there.
    fn change_path(&mut self, now: Time, at: usize) {
        let Self { spares, flight, cargo, mtu, congestion, path, stats, .. } = self;
        let spare = &mut spares[at];
        let round_trip = std::mem::replace(&mut spare.round_trip, flight.round_trip);
        flight.leave(round_trip, |carried| match carried {
            Carried::Probe { .. } => mtu.forget_probe(),
            carried => stats.bytes_again += cargo.again(carried),
        });
        std::mem::swap(&mut spare.path, path);
        std::mem::swap(&mut spare.mtu, mtu);
        std::mem::swap(&mut spare.congestion, congestion);
        (spare.asked, spare.tries, spare.unanswered, spare.challenge, spare.response) = (None, 0, 0, false, None);
        spare.next = now + self.spans.keep_alive;
        self.window = self.congestion.window();
        self.pacer = Pacer::new(now);
        (self.limited_until, self.paced_until) = (0, Time::NEVER);
        (self.questions, self.ping_alone, self.suspected) = (0, false, None);
        (self.last_heard, self.heard_here) = (now, now);
        // The peer learns from it where this end is now.
        self.ping = true;
        self.movement = None;
        self.stats.path_changes += 1;
        self.changed_path = true;
        self.note_spares();
    }

    /// Tells of a new path.
    pub fn tell_path(&mut self, events: &mut VecDeque<Event>) {
        if std::mem::take(&mut self.changed_path) {
            events.push_back(Event::Moved { session: self.id, path: self.path });
        }
    }

    /// Where the peer is: the address in use, and those of the other paths.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let mut addresses = vec![self.path.peer];
        for spare in &self.spares {
            if !addresses.contains(&spare.path.peer) {
                addresses.push(spare.path.peer);
            }
        }
        addresses
    }

    /// A Challenge or a Response to another path than the one in use: its bytes, and where it goes.
    pub(super) fn write_to_spare(&mut self, now: Time, buf: &mut [u8]) -> Option<(usize, Path)> {
        let len = HEADER + CHALLENGE_LEN + self.cipher.tag();
        let number = self.flight.next_number();
        let mut writer = Writer::new(&mut buf[..len]);
        writer.space(HEADER);
        let answer = self.spares.iter_mut().find_map(|spare| Some((spare.path, spare.response.take()?)));
        let to = if let Some((to, word)) = answer.or_else(|| self.response_to.take()) {
            frame::write_response(&mut writer, word);
            to
        } else {
            let spare = self.spares.iter_mut().find(|spare| spare.challenge)?;
            spare.challenge = false;
            if spare.asked.is_none() {
                (spare.asked, spare.tries) = (Some(now), 0);
                spare.word = self.words.u64();
            }
            spare.tries = spare.tries.saturating_add(1);
            frame::write_challenge(&mut writer, spare.word);
            spare.path
        };
        self.cipher.seal(&mut buf[..len], self.remote, number, 0);
        self.flight.on_sent_apart(now, len);
        self.stats.datagrams_out += 1;
        self.stats.bytes_out += len as u64;
        self.note_spares();
        Some((len, to))
    }
}
