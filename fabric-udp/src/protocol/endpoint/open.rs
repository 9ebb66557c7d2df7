//! The beginning of sessions.

use super::{CODE_NO_FIRST, Endpoint, Entry, REFUSED_EVERY, Target, code_of, reason_of};
use crate::protocol::handshake::{
    self, Answer, Asked, COOKIE, Exchange, HANDSHAKE_MAX, Hello, Params, Rejection, Request, take_addressee,
};
use crate::protocol::session::{Beginning, Session};
use crate::protocol::time::{MICRO, MILLI, Nanos, Time};
use crate::protocol::{CloseReason, Event, Path, Peer, SessionId};

/// The first pause before a request is repeated. The pause doubles each time, up to the limit below.
const AGAIN_FIRST: Nanos = 100 * MILLI;
const AGAIN_MOST: Nanos = 1_000 * MILLI;
/// How long a vouched-for session whose peer asks for another may stay silent, in dead-peer times. A stopped peer answers no more
/// than one that does not know the session.
const DOUBTED: u64 = 30;
/// The assumed round trip before any measurement.
const ROUND_TRIP_GUESS: Nanos = 100 * MILLI;

/// A session that this end requested.
pub(super) struct Attempt {
    pub id: SessionId,
    pub target: Target,
    pub strand: u8,
    hello: Hello,
    give_up: Time,
    next: Time,
    pause: Nanos,
    /// The time of the latest request, if an answer to it reveals the round trip.
    asked_at: Option<Time>,
    open: Option<Opening>,
}

/// The part of an attempt that has a cookie.
struct Opening {
    cookie: [u8; COOKIE],
    exchange: Exchange,
    message: Vec<u8>,
}

impl Attempt {
    pub fn new(id: SessionId, now: Time, target: Target, strand: u8, hello: Hello, give_up: Time) -> Self {
        Self { id, target, strand, hello, give_up, next: now, pause: AGAIN_FIRST, asked_at: None, open: None }
    }

    /// The time of its next step.
    pub fn deadline(&self) -> Time {
        self.next.min(self.give_up)
    }
}

impl Endpoint {
    /// Repeats an attempt's request, or gives the attempt up.
    pub(super) fn drive_attempt(&mut self, now: Time, index: usize) {
        let Some(attempt) = self.sessions.attempt_mut(index) else { return };
        if attempt.give_up <= now {
            return self.fail_attempt(index, CloseReason::NoAnswer);
        }
        if attempt.next <= now {
            attempt.asked_at = attempt.asked_at.is_none().then_some(now);
            attempt.next = now + attempt.pause;
            attempt.pause = (attempt.pause * 2).min(AGAIN_MOST);
            let datagram = match &attempt.open {
                None => handshake::write_hello(&self.secret, &attempt.hello),
                Some(open) => handshake::write_open(&self.secret, &attempt.hello, &open.cookie, &open.message),
            };
            self.requests.push_back((attempt.target.path, datagram));
        }
        self.earliest = self.earliest.min(attempt.deadline());
    }

    pub(super) fn fail_attempt(&mut self, index: usize, reason: CloseReason) {
        if let Some(attempt) = self.sessions.attempt_mut(index) {
            let id = attempt.id;
            self.sessions.remove(index);
            self.closed(id, None, reason);
        }
    }

    fn answer(&mut self, path: Path, datagram: Vec<u8>) {
        if self.answers.len() >= super::ANSWERS_MAX {
            self.stats.answers_dropped += 1;
        } else {
            self.answers.push_back((path, datagram));
        }
    }

    fn refuse(&mut self, now: Time, from: Path, hello: &Hello, why: Rejection) {
        self.stats.rejected += 1;
        if self.refused_told == Time::ZERO || now - self.refused_told >= REFUSED_EVERY {
            self.refused_told = now;
            self.events.push_back(Event::Refused { path: from, why });
        }
        if self.config.explain {
            self.answer(from, handshake::write_reject(&self.secret, hello, why));
        }
    }

    /// Why there can be no new session with this incarnation of a node and this strand, if so.
    fn objection(&self, peer: Peer, strand: u8) -> Option<Rejection> {
        if peer.node == self.config.node {
            Some(Rejection::SameNode)
        } else if self.sessions.is_former(peer.node, peer.incarnation) {
            Some(Rejection::Stale)
        } else if strand > 0 && !self.sessions.has_first(peer) {
            Some(Rejection::NoFirst)
        } else {
            let twin = self.sessions.with(peer.node, strand).filter(|twin| twin.peer == peer);
            twin.map(|_| Rejection::AlreadyConnected(peer.node, peer.incarnation))
        }
    }

    /// Handles a Hello or an Open.
    pub(super) fn handle_request(&mut self, now: Time, from: Path, datagram: &[u8]) {
        if datagram.len() > HANDSHAKE_MAX || usize::from(from.link.0) >= self.config.links.len() {
            self.stats.junk += 1;
            return;
        }
        match handshake::read_request(&self.secret, self.config.versions, datagram) {
            None => self.stats.junk += 1,
            Some(Request::Rejected(hello, why)) => self.refuse(now, from, &hello, why),
            Some(Request::Hello(hello)) => self.retry(now, from, &hello),
            Some(Request::Open(hello, cookie, message)) => match self.cookies.age(now.nanos(), from.peer, &hello, &cookie) {
                Some(age) => self.handle_open(now, from, &hello, message, age),
                None => {
                    self.stats.bad_cookies += 1;
                    self.retry(now, from, &hello);
                }
            },
        }
    }

    fn retry(&mut self, now: Time, from: Path, hello: &Hello) {
        self.stats.retries += 1;
        let cookie = self.cookies.bake(now.nanos(), from.peer, hello);
        self.answer(from, handshake::write_retry(&self.secret, hello, &cookie));
    }

    /// Handles an Open from an address that is known to receive.
    fn handle_open(&mut self, now: Time, from: Path, hello: &Hello, message: &[u8], age: Nanos) {
        // The answer to this very request may have been lost.
        let is_it = |(_, offer): &(usize, &Session)| offer.nonce == hello.nonce && offer.path == from;
        let again = self.sessions.offers().find(is_it).map(|(_, offer)| offer.accept.clone());
        if let Some(accept) = again {
            return self.answer(from, accept);
        }
        let Some(asked) = Asked::read(&self.secret, hello, message, &mut self.random) else {
            self.stats.junk += 1;
            return;
        };
        let (peer, strand) = (asked.params.peer(), asked.params.fixed.strand);
        let mut objection = self.objection(peer, strand);
        if let Some(Rejection::AlreadyConnected(..)) = objection
            && let Some(index) = self.sessions.place_with(peer.node, strand)
            && let Some(session) = self.sessions.get_mut(index)
        {
            if session.nonce == hello.nonce {
                // A late copy of the request that led to this session.
                return;
            }
            // If the peer does not know the session, this will reveal it.
            session.doubt(now, DOUBTED);
            self.after(now, index);
            objection = Some(Rejection::AlreadyConnected(self.config.node, self.config.incarnation));
        }
        if let Some(why) = objection {
            return self.refuse(now, from, hello, why);
        }
        if self.sessions.offers().count() >= self.config.offers_max {
            let oldest = self.sessions.offers().min_by_key(|(_, session)| session.deadline()).map(|(index, _)| index);
            if let Some(index) = oldest {
                self.sessions.remove(index);
            }
        }
        let link = &self.config.links[usize::from(from.link.0)];
        let ours = Params::new(&self.config, link, strand, &mut self.random);
        let Some((theirs, reply, secrets)) = asked.agree(hello, &ours) else {
            self.stats.junk += 1;
            return;
        };
        let (remote, guess) = (hello.session.get(), age.clamp(10 * MICRO, ROUND_TRIP_GUESS));
        let (config, words) = (&self.config, self.random.child());
        let beginning = Beginning { config, path: from, asked: false, hello, remote, theirs, secrets: &secrets, guess, words };
        let mut session = Box::new(Session::new(now, beginning));
        let (deadline, secret) = (session.deadline(), &self.secret);
        let mut accept = Vec::new();
        let id = self.sessions.insert(|id| {
            accept = handshake::write_accept(secret, hello, id.0 as u32, &reply);
            (session.id, session.accept) = (id, accept.clone());
            Entry::Session(session)
        });
        if id.is_none() {
            return self.refuse(now, from, hello, Rejection::Full);
        }
        self.earliest = self.earliest.min(deadline);
        self.answer(from, accept);
    }

    /// Handles an answer to a Hello or an Open.
    pub(super) fn handle_answer(&mut self, now: Time, from: Path, datagram: &[u8]) {
        let found = take_addressee(&mut &*datagram).filter(|_| datagram.len() <= HANDSHAKE_MAX);
        let attempt = found.and_then(|(name, nonce)| {
            self.sessions.attempt_named(name).filter(|(_, attempt)| attempt.hello.nonce == nonce && attempt.target.path == from)
        });
        let Some((index, attempt)) = attempt else {
            self.stats.stray += 1;
            return;
        };
        let strand = attempt.strand;
        match handshake::read_answer(&self.secret, datagram) {
            None => self.stats.junk += 1,
            Some(Answer::Retry(cookie)) => self.on_retry(now, index, cookie),
            Some(Answer::Accept(name, message)) => self.on_accept(now, index, from, name, message),
            // The session should exist or be on its way. If it is neither, the other end will find out.
            Some(Answer::Reject(Rejection::AlreadyConnected(node, _)))
                if self.sessions.with(node, strand).is_none() && self.sessions.offers_of(node, strand).is_empty() => {}
            Some(Answer::Reject(why)) => self.fail_attempt(index, CloseReason::Rejected(why)),
        }
    }

    fn on_retry(&mut self, now: Time, index: usize, cookie: [u8; COOKIE]) {
        let Some(attempt) = self.sessions.attempt_mut(index) else { return };
        // The former cookie is no longer valid. But a copy of an old answer must not make this end send again.
        if let Some(open) = &mut attempt.open {
            open.cookie = cookie;
            return;
        }
        let link = &self.config.links[usize::from(attempt.target.path.link.0)];
        let params = Params::new(&self.config, link, attempt.strand, &mut self.random);
        let begun = Exchange::begin(&self.secret, &attempt.hello, &params, &mut self.random);
        let Some((exchange, message)) = begun else { return };
        attempt.open = Some(Opening { cookie, exchange, message });
        (attempt.pause, attempt.asked_at, attempt.next) = (AGAIN_FIRST, None, now);
        self.drive_attempt(now, index);
    }

    fn on_accept(&mut self, now: Time, index: usize, from: Path, name: u32, message: &[u8]) {
        let Some(attempt) = self.sessions.attempt_mut(index) else { return };
        let (id, expected, strand, hello) = (attempt.id, attempt.target.node, attempt.strand, attempt.hello);
        let Some(open) = &mut attempt.open else { return };
        // A peer that knows no further sessions answers as if it had been asked for the first one.
        let agreed = open.exchange.finish(&hello, message).filter(|(theirs, _)| theirs.fixed.strand == strand);
        let Some((theirs, secrets)) = agreed else {
            self.stats.junk += 1;
            return;
        };
        let guess = attempt.asked_at.map_or(ROUND_TRIP_GUESS, |at| now - at).max(10 * MICRO);
        let peer = theirs.peer();
        if expected.is_some_and(|node| node != peer.node) {
            return self.fail_attempt(index, CloseReason::WrongNode(peer.node));
        }
        // Both ends asked at once. The session that the lower node requested stays, and the higher node knows that as soon as it
        // is asked.
        let is_twin = |at: &usize| self.sessions.at(*at).is_some_and(|session| session.peer == peer);
        let yields = peer.node < self.config.node && self.sessions.offers_of(peer.node, strand).iter().any(is_twin);
        let there = Rejection::AlreadyConnected(peer.node, peer.incarnation);
        match self.objection(peer, strand).or(yields.then_some(there)) {
            Some(Rejection::NoFirst) => return self.fail_attempt(index, CloseReason::NoFirst),
            Some(why) => return self.fail_attempt(index, CloseReason::Rejected(why)),
            None => {}
        }
        let (config, hello, secrets, words) = (&self.config, &hello, &secrets, self.random.child());
        let beginning = Beginning { config, path: from, asked: true, hello, remote: name, theirs, secrets, guess, words };
        let mut session = Box::new(Session::new(now, beginning));
        session.id = id;
        self.sessions.promote(index, session);
        self.connected(now, index, true);
        self.after(now, index);
    }

    /// Handles the first genuine datagram of an offered session. Returns whether the session is established.
    pub(super) fn confirm(&mut self, now: Time, index: usize) -> bool {
        let Some(session) = self.sessions.at(index) else { return false };
        let reason = match self.objection(session.peer, session.strand) {
            None => None,
            Some(Rejection::Stale) => Some(CloseReason::Replaced),
            Some(Rejection::NoFirst) => Some(CloseReason::NoFirst),
            Some(_) => Some(CloseReason::Duplicate),
        };
        let Some(session) = self.sessions.get_mut(index) else { return false };
        if let Some(reason) = reason {
            let (path, farewell) = (session.path, session.farewell(now, code_of(reason)));
            self.answer(path, farewell);
            self.sessions.remove(index);
            return false;
        }
        session.confirmed = true;
        session.accept = Vec::new();
        self.connected(now, index, false);
        true
    }

    /// Handles an established session: closes every session that it replaces.
    fn connected(&mut self, now: Time, index: usize, asked: bool) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let (session, peer, strand, path, greeting) =
            (session.id, session.peer, session.strand, session.path, std::mem::take(&mut session.greeting));
        if let Some(former) = self.sessions.place_with(peer.node, strand)
            && former != index
            && let Some(session) = self.sessions.get_mut(former)
            && session.peer.incarnation != peer.incarnation
        {
            session.end(CloseReason::Replaced);
            self.after(now, former);
        }
        // Requests of both ends led to one session, so the other offers and attempts are void.
        for twin in self.sessions.offers_of(peer.node, strand) {
            self.sessions.remove(twin);
        }
        self.sessions.live_on(peer.node, peer.incarnation);
        self.sessions.enter(peer.node, strand, index);
        self.stats.connected += 1;
        self.events.push_back(Event::Connected { session, peer, path, greeting, asked, strand });
        // An answer to one of these attempts might come from a former incarnation, after a long delay.
        for attempt in self.sessions.attempts(|attempt| attempt.target.path == path && attempt.strand == strand) {
            self.fail_attempt(attempt, CloseReason::Rejected(Rejection::AlreadyConnected(peer.node, peer.incarnation)));
        }
    }

    /// Handles the end of a session: tells the other end, and tells the driver once everything that arrived was delivered.
    pub(super) fn settle(&mut self, now: Time, index: usize) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let Some(reason) = session.over else { return };
        let (id, peer, path, confirmed, strand) = (session.id, session.peer, session.path, session.confirmed, session.strand);
        if !session.settled {
            session.settled = true;
            let farewell = match reason {
                CloseReason::ByPeer(_) => Some(None),
                CloseReason::GivenUp(code) => Some(Some(code)),
                reason => code_of(reason).map(Some),
            };
            let datagram = farewell.map(|code| session.farewell(now, code));
            let stood = self.sessions.leave(peer.node, strand, index);
            if let Some(datagram) = datagram {
                self.answer(path, datagram);
            }
            if stood && strand == 0 {
                self.end_further(now, peer);
            } else if reason == CloseReason::ByPeer(CODE_NO_FIRST)
                && let Some(first) = self.sessions.place_with(peer.node, 0)
                && let Some(session) = self.sessions.get_mut(first)
                && session.peer == peer
            {
                // The other end may have ended, and its notice may have been lost.
                session.doubt(now, DOUBTED);
                self.after(now, first);
            }
        }
        let Some(session) = self.sessions.get_mut(index) else { return };
        // Packets that the peer sent before are delivered before its end is reported.
        if session.is_ready() && !matches!(reason, CloseReason::Damaged(_)) {
            return;
        }
        // The end of the first session is reported last: by then everything that the peer sent was delivered.
        if confirmed && strand == 0 && !self.sessions.further(peer).is_empty() {
            return;
        }
        self.sessions.remove(index);
        if confirmed {
            let reason = if let CloseReason::ByPeer(code) = reason { reason_of(code) } else { reason };
            self.closed(id, Some(peer), reason);
            if strand > 0 {
                self.release_first(now, peer);
            }
        }
    }

    /// Closes the further sessions with an incarnation before its first session, which waits for them.
    pub(super) fn close_further(&mut self, now: Time, peer: Peer, first: usize, code: u8) {
        let further = self.sessions.further(peer);
        if let Some(session) = self.sessions.get_mut(first) {
            session.held = !further.is_empty();
        }
        for at in further {
            if let Some(session) = self.sessions.get_mut(at) {
                session.close(now, code);
                self.after(now, at);
            }
        }
    }

    /// Ends the further sessions after the first session with an incarnation ended.
    fn end_further(&mut self, now: Time, peer: Peer) {
        for attempt in self.sessions.attempts(|attempt| attempt.target.node == Some(peer.node) && attempt.strand > 0) {
            self.fail_attempt(attempt, CloseReason::NoFirst);
        }
        for at in self.sessions.further(peer) {
            if let Some(session) = self.sessions.get_mut(at) {
                session.end(CloseReason::NoFirst);
                self.after(now, at);
            }
        }
    }

    /// Handles the end of a further session. If the first session waited for it and it was the last, the first one now ends.
    fn release_first(&mut self, now: Time, peer: Peer) {
        if !self.sessions.further(peer).is_empty() {
            return;
        }
        let waits = |session: &Session| session.over.is_some() || session.held;
        let first = self.sessions.all_with(peer).find(|(_, session)| waits(session)).map(|(index, _)| index);
        if let Some(first) = first
            && let Some(session) = self.sessions.get_mut(first)
        {
            session.held = false;
            self.after(now, first);
        }
    }
}
