//! The other paths to a peer that has several addresses, or is reached by several links.
//!
//! All traffic uses one path. Now and then a Challenge tests whether each other path leads to the peer, which answers with a
//! Response. When the path in use does not answer, all others are challenged, and the session moves to the best one that answers.
//! So a stopped peer is not mistaken for a cut path. A session whose peer has one address, reached by one link, has no other
//! paths.

use super::{Session, resend};
use crate::protocol::config::Config;
use crate::protocol::congestion::Cubic;
use crate::protocol::frame::Short;
use crate::protocol::handshake::{self, Params};
use crate::protocol::loss::RoundTrip;
use crate::protocol::mtu::PathMtu;
use crate::protocol::pacing::Pacer;
use crate::protocol::time::{Nanos, Time};
use crate::protocol::{Event, Path};
use std::net::SocketAddr;

/// The most paths of a session.
const PATHS_MAX: usize = 4;
/// The number of unanswered pings in a row after which the other paths are challenged, and the number after which one of them is
/// taken.
const SUSPECT_AFTER: u32 = 2;
const SILENT_AFTER: u32 = 3;
/// The number of unanswered Challenges in a row after which a path counts as dead.
const UNANSWERED_MAX: u32 = 3;
/// How often a working path that is not in use is challenged, in dead-peer times; and the longest such pause for a path that does
/// not answer.
const REST: u64 = 4;
const REST_MOST: u64 = 16;

/// A path that is not in use.
pub(crate) struct Spare {
    pub path: Path,
    /// It was shown to lead to the peer and back, and it has answered since.
    valid: bool,
    /// The word that its next Response must hold.
    word: u64,
    /// The time of the Challenge that waits for an answer, and the number of its repetitions.
    asked: Option<Time>,
    tries: u32,
    unanswered: u32,
    answered: Time,
    next: Time,
    /// Whether a Challenge is to be sent there.
    challenge: bool,
    response: Option<u64>,
    round_trip: RoundTrip,
    congestion: Cubic,
    mtu: PathMtu,
}

impl Spare {
    /// A path about which nothing is known yet.
    fn new(now: Time, path: Path, guess: Nanos, congestion: Cubic, mtu: PathMtu) -> Self {
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

    /// The other paths to the sender of `theirs`: each of our links with each of its addresses, at most [`PATHS_MAX`] with the
    /// one in use. Paths that share neither link nor address with others come first. Both ends choose alike, from the viewpoint
    /// of the requesting end.
    pub fn all(config: &Config, path: Path, theirs: &Params, asked: bool, guess: Nanos, now: Time) -> Vec<Spare> {
        let Some(far) = &theirs.addresses else { return Vec::new() };
        let mut near: Vec<_> = handshake::reaches(config).map(|(link, reach)| (link, Some(reach.address.get()))).collect();
        let mut far: Vec<_> = far.iter().map(|reach| (reach.address.get(), reach.mtu.get())).collect();
        if near.is_empty() {
            near.push((path.link, None));
        }
        if far.is_empty() && theirs.wildcard {
            // The other end asks by each of our addresses, from its address that leads there. Only that end knows which one does.
            return Vec::new();
        }
        if far.is_empty() {
            far.push((path.peer, theirs.fixed.mtu.get()));
        }
        let mut pairs = Vec::new();
        for (at, (link, local)) in near.iter().enumerate() {
            for (place, (peer, mtu)) in far.iter().enumerate() {
                let order = if asked { (at, place) } else { (place, at) };
                // An IPv4 address does not lead to an IPv6 address, or the reverse.
                if local.is_none_or(|local| local.is_ipv4() == peer.is_ipv4()) {
                    pairs.push((order, Path { link: *link, peer: *peer }, *mtu));
                }
            }
        }
        pairs.sort_by_key(|(order, ..)| *order);
        let mut chosen = vec![path];
        let mut spares = Vec::new();
        while chosen.len() < PATHS_MAX {
            let shared = |path: &Path| chosen.iter().filter(|one| one.link == path.link || one.peer == path.peer).count();
            let free = pairs.iter().filter(|(_, path, _)| !chosen.contains(path));
            let Some(&(_, path, theirs)) = free.min_by_key(|(_, path, _)| shared(path)) else { break };
            let (mtu, congestion) = config.links[usize::from(path.link.0)].begin(config, theirs);
            spares.push(Spare::new(now, path, guess, congestion, mtu));
            chosen.push(path);
        }
        spares
    }

    /// Challenges the path, unless a Challenge is under way.
    fn ask(&mut self, now: Time, pause: Nanos) {
        if self.asked.is_none_or(|at| now - at >= self.round_trip.patience(0)) {
            self.challenge = true;
            self.next = now + pause;
        }
    }
}

impl Session {
    /// The number of paths that are known to lead to the peer, including the one in use.
    pub fn paths(&self) -> usize {
        1 + self.spares.iter().filter(|spare| spare.valid).count()
    }

    fn spare(&mut self, path: Path) -> Option<&mut Spare> {
        self.spares.iter_mut().find(|spare| spare.path == path)
    }

    /// Whether this path, which is not the one in use, is proven, so that a datagram by it shows that the peer lives.
    pub(super) fn is_proven(&self, path: Path) -> bool {
        self.spares.iter().find(|spare| spare.path == path).is_none_or(|spare| spare.valid)
    }

    /// Whether this is one of several paths to the peer.
    pub(super) fn knows(&self, path: Path) -> bool {
        self.spares.iter().any(|spare| spare.path == path)
    }

    /// Handles a Challenge by this path, which is not the one in use. The Response goes back the same way.
    pub(super) fn challenged(&mut self, from: Path, word: u64) {
        match self.spare(from) {
            Some(spare) => spare.response = Some(word),
            None => self.response_to = Some((from, word)),
        }
    }

    /// Whether there is something to send by another path than the one in use.
    #[inline]
    pub(super) fn spares_due(&self) -> bool {
        self.response_to.is_some() || self.spares.iter().any(|spare| spare.challenge || spare.response.is_some())
    }

    /// The next time at which one of the other paths is to be challenged.
    #[inline]
    pub(super) fn spares_at(&self) -> Time {
        self.spares.iter().map(|spare| spare.next).min().unwrap_or(Time::NEVER)
    }

    /// Challenges the paths whose time has come.
    pub(super) fn attend_spares(&mut self, now: Time) {
        let Self { spares, spans, .. } = self;
        for spare in spares.iter_mut().filter(|spare| spare.next <= now) {
            if spare.asked.is_some() {
                spare.unanswered = spare.unanswered.saturating_add(1);
                if spare.unanswered >= UNANSWERED_MAX {
                    // By now no answer to the former Challenges is under way.
                    (spare.valid, spare.asked) = (false, None);
                }
            }
            let pause = spans.keep_alive << spare.unanswered.min(32);
            spare.challenge = true;
            spare.next = now + pause.max(spare.round_trip.patience(0)).min(REST_MOST * spans.dead);
        }
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
        self.fail_over(now);
    }

    /// Whether a path is known to lead to the peer.
    pub fn is_valid(&self, path: Path) -> bool {
        self.path == path || self.spares.iter().any(|spare| spare.path == path && spare.valid)
    }

    pub fn silent_since(&self) -> Time {
        self.heard_here.max(self.flight.waiting_since)
    }

    /// Leaves the path in use if it is silent and another one is not.
    fn fail_over(&mut self, now: Time) {
        let Some(since) = self.suspected.filter(|_| self.flight.questions > 0) else { return };
        if self.flight.questions < SILENT_AFTER && now - self.silent_since() < self.spans.dead / 2 {
            return;
        }
        let answered = self.spares.iter().enumerate().filter(|(_, spare)| spare.valid && spare.answered >= since);
        let Some((best, _)) = answered.min_by_key(|(_, spare)| spare.round_trip.smoothed) else { return };
        // After a forced change, the window must be earned again.
        self.congestion.on_persistent_congestion();
        self.change_path(now, best);
    }

    /// Handles a Response by another path than the one in use.
    pub(super) fn on_spare_answer(&mut self, now: Time, from: Path, word: u64) {
        // A further session can challenge its spare paths less often: it fails over as well if they are challenged only when
        // needed.
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
        self.fail_over(now);
        if self.home == Some(from)
            && self.suspected.is_none()
            && let Some(at) = self.spares.iter().position(|spare| spare.path == from)
        {
            self.change_path(now, at);
        }
    }

    /// The newest datagram, which carries data, came by this path and not by the one in use.
    pub(super) fn beckoned(&mut self, now: Time, from: Path) {
        // A session whose own traffic is answered need not follow: so two ends do not chase each other from path to path.
        let is_free = self.flight.waiting == 0 || self.flight.questions > 0;
        let Some(at) = self.spares.iter().position(|spare| spare.path == from) else { return };
        if !self.spares[at].valid {
            self.spares[at].ask(now, self.spans.keep_alive);
        } else if is_free {
            self.change_path(now, at);
        }
    }

    /// Moves to another path. Everything under way is sent again there.
    fn change_path(&mut self, now: Time, at: usize) {
        let Self { spares, flight, cargo, mtu, congestion, stats, .. } = self;
        let spare = &mut spares[at];
        let round_trip = std::mem::replace(&mut spare.round_trip, flight.round_trip);
        flight.leave(round_trip, resend(cargo, mtu, stats));
        std::mem::swap(&mut spare.mtu, mtu);
        std::mem::swap(&mut spare.congestion, congestion);
        (spare.asked, spare.tries, spare.unanswered, spare.challenge, spare.response) = (None, 0, 0, false, None);
        spare.next = now + self.spans.keep_alive;
        let to = spare.path;
        self.spares[at].path = self.go_by(to);
        self.pacer = Pacer::new(now);
        (self.limited_until, self.paced_until) = (0, Time::NEVER);
        (self.questions, self.ping_alone, self.suspected) = (0, false, None);
        (self.last_heard, self.heard_here) = (now, now);
        // The ping tells the peer where this end is now.
        self.ping = true;
        self.movement = None;
        self.stats.path_changes += 1;
    }

    /// Takes another path, and tells the driver. Returns the former one.
    pub(super) fn go_by(&mut self, path: Path) -> Path {
        self.events.push(Event::Moved { session: self.id, path });
        std::mem::replace(&mut self.path, path)
    }

    /// The addresses of the peer: the one in use, and those of the other paths.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let mut addresses = vec![self.path.peer];
        for spare in &self.spares {
            if !addresses.contains(&spare.path.peer) {
                addresses.push(spare.path.peer);
            }
        }
        addresses
    }

    /// Writes a Challenge or a Response for another path than the one in use. Returns its length and its path.
    pub(super) fn write_to_spare(&mut self, now: Time, buf: &mut [u8]) -> Option<(usize, Path)> {
        let answer = self.spares.iter_mut().find_map(|spare| Some((spare.path, spare.response.take()?)));
        let (to, frame) = if let Some((to, word)) = answer.or_else(|| self.response_to.take()) {
            (to, Short::Response(word))
        } else {
            let spare = self.spares.iter_mut().find(|spare| spare.challenge)?;
            spare.challenge = false;
            if spare.asked.is_none() {
                (spare.asked, spare.tries) = (Some(now), 0);
                spare.word = self.words.u64();
            }
            spare.tries = spare.tries.saturating_add(1);
            (spare.path, Short::Challenge(spare.word))
        };
        let len = self.write_alone(buf, frame);
        self.cipher.seal(&mut buf[..len], self.remote, self.flight.next_number(), 0);
        self.flight.on_sent_apart(now, len);
        self.stats.datagrams_out += 1;
        Some((len, to))
    }
}
