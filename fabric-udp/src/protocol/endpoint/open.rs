//! The beginning and the end of sessions.

use super::{CODE_DAMAGED, CODE_DUPLICATE, CODE_IDLE, CODE_NO_FIRST, CODE_REPLACED, Endpoint, Entry, REFUSED_EVERY, Target};
use crate::protocol::cipher::Secrets;
use crate::protocol::congestion::Cubic;
use crate::protocol::handshake::{
    self, Answer, Asked, COOKIE, Exchange, HANDSHAKE_MAX, Hello, Params, Rejection, Request, addressee,
};
use crate::protocol::mtu::PathMtu;
use crate::protocol::session::{Beginning, Offer, Session, Spare};
use crate::protocol::time::{MICRO, MILLI, Nanos, Time};
use crate::protocol::{CloseReason, Event, Path, Peer, SessionId};

/// The first pause before a request is repeated. The pause doubles each time, up to the limit below.
const AGAIN_FIRST: Nanos = 100 * MILLI;
const AGAIN_MOST: Nanos = 1_000 * MILLI;
/// How long a vouched-for session whose peer asks for another may stay silent, in dead-peer times. A stopped peer answers no more
/// than one that does not know the session.
const DOUBTED: u64 = 30;
/// The most paths of a session.
const PATHS_MAX: usize = 4;
/// The assumed round trip before any measurement.
const ROUND_TRIP_GUESS: Nanos = 100 * MILLI;

/// A session that this end requested.
pub(super) struct Attempt {
    pub id: SessionId,
    pub target: Target,
    pub strand: u8,
    nonce: u64,
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
    pub fn new(id: SessionId, now: Time, target: Target, strand: u8, nonce: u64, give_up: Time) -> Self {
        Self { id, target, strand, nonce, give_up, next: now, pause: AGAIN_FIRST, asked_at: None, open: None }
    }

    /// The time of its next step.
    pub fn deadline(&self) -> Time {
        self.next.min(self.give_up)
    }
}

impl Endpoint {
    fn hello(&self, session: SessionId, nonce: u64) -> Hello {
        Hello {
            versions: self.config.versions,
            session: session.0 as u32,
            nonce,
            domain: self.secret.domain,
            keyed: self.secret.key.is_some(),
        }
    }

    /// Repeats an attempt's request, or gives the attempt up.
    pub(super) fn drive_attempt(&mut self, now: Time, index: usize) {
        let Some(attempt) = self.sessions.attempt_mut(index) else { return };
        if attempt.give_up <= now {
            return self.fail_attempt(index, CloseReason::NoAnswer);
        }
        if attempt.next > now {
            self.earliest = self.earliest.min(attempt.deadline());
            return;
        }
        attempt.asked_at = attempt.asked_at.is_none().then_some(now);
        attempt.next = now + attempt.pause;
        attempt.pause = (attempt.pause * 2).min(AGAIN_MOST);
        let (id, nonce, path, next) = (attempt.id, attempt.nonce, attempt.target.path, attempt.next);
        let hello = self.hello(id, nonce);
        let Some(attempt) = self.sessions.attempt_mut(index) else { return };
        let datagram = match &attempt.open {
            None => handshake::write_hello(&self.secret, &hello),
            Some(open) => handshake::write_open(&self.secret, &hello, &open.cookie, &open.message),
        };
        self.requests.push_back((path, datagram));
        self.earliest = self.earliest.min(next);
    }

    fn fail_attempt(&mut self, index: usize, reason: CloseReason) {
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
        let offered = |session: &Session| {
            session
                .offer
                .as_ref()
                .filter(|offer| offer.nonce == hello.nonce && session.path == from)
                .map(|offer| offer.accept.clone())
        };
        let again = self.sessions.offers().find_map(|(_, session)| offered(session));
        if let Some(accept) = again {
            return self.answer(from, accept);
        }
        let Some(asked) = Asked::read(&self.secret, hello, message, &mut self.random) else {
            self.stats.junk += 1;
            return;
        };
        let (node, incarnation, strand) = (asked.params.node, asked.params.incarnation, asked.params.strand);
        if node == self.config.node {
            return self.refuse(now, from, hello, Rejection::SameNode);
        }
        if self.sessions.is_former(node, incarnation) {
            return self.refuse(now, from, hello, Rejection::Stale);
        }
        if strand > 0 && !self.sessions.has_first(Peer { node, incarnation }) {
            return self.refuse(now, from, hello, Rejection::NoFirst);
        }
        if let Some(index) = self.sessions.place_with(node, strand)
            && let Some(session) = self.sessions.get_mut(index)
            && session.peer.incarnation == incarnation
        {
            if session.nonce == hello.nonce {
                // A late copy of the request that led to this session.
                return;
            }
            // If the peer does not know the session, this will reveal it.
            session.doubt(now, DOUBTED);
            self.after(now, index);
            return self.refuse(now, from, hello, Rejection::AlreadyConnected(self.config.node, self.config.incarnation));
        }
        if self.sessions.offers().count() >= self.config.offers_max {
            let oldest = self.sessions.offers().min_by_key(|(_, session)| session.deadline()).map(|(index, _)| index);
            if let Some(index) = oldest {
                self.sessions.remove(index);
            }
        }
        let link = &self.config.links[usize::from(from.link.0)];
        let ours = Params::new(&self.config, link, &mut self.random).of_strand(strand);
        let Some((theirs, reply, secrets)) = asked.agree(hello, &ours) else {
            self.stats.junk += 1;
            return;
        };
        let guess = age.clamp(10 * MICRO, ROUND_TRIP_GUESS);
        let mut session = self.session(now, from, (hello.session, theirs), false, hello, &secrets, guess);
        let id = self.sessions.insert(|id| {
            session.id = id;
            Entry::Session(session)
        });
        let Some(id) = id else { return self.refuse(now, from, hello, Rejection::Full) };
        let accept = handshake::write_accept(&self.secret, hello, id.0 as u32, &reply);
        let index = usize::from(id.0 as u16);
        if let Some(session) = self.sessions.get_mut(index) {
            session.offer = Some(Offer { nonce: hello.nonce, accept: accept.clone() });
            self.earliest = self.earliest.min(session.deadline());
        }
        self.answer(from, accept);
    }

    /// A session with the sender of `theirs`, which names it `remote`. The caller fills in the id.
    #[allow(clippy::too_many_arguments)]
    fn session(
        &mut self,
        now: Time,
        path: Path,
        (remote, theirs): (u32, Params),
        asked: bool,
        hello: &Hello,
        secrets: &Secrets,
        guess: Nanos,
    ) -> Box<Session> {
        let spares = self.spares(path, &theirs, asked, guess, now);
        let (config, spans, words) = (&self.config, self.spans, self.random.child());
        let beginning = Beginning { config, spans, path, asked, hello, remote, theirs, secrets, guess, spares, words };
        Box::new(Session::new(now, beginning))
    }

    /// The other paths to the sender of `theirs`: each of our links with each of its addresses, at most [`PATHS_MAX`] with the
    /// one in use. Paths that share neither link nor address with others come first. Both ends choose alike, from the viewpoint
    /// of the requesting end.
    fn spares(&self, path: Path, theirs: &Params, asked: bool, guess: Nanos, now: Time) -> Vec<Spare> {
        let Some(far) = &theirs.addresses else { return Vec::new() };
        let mut near: Vec<_> = handshake::reaches(&self.config).map(|(link, reach)| (link, Some(reach.address))).collect();
        let mut far: Vec<_> = far.iter().map(|reach| (reach.address, reach.mtu)).collect();
        if near.is_empty() {
            near.push((path.link, None));
        }
        if far.is_empty() && theirs.wildcard {
            // The other end asks by each of our addresses, from its address that leads there. Only that end knows which one does.
            return Vec::new();
        }
        if far.is_empty() {
            far.push((path.peer, theirs.mtu));
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
            let link = self.config.links[usize::from(path.link.0)];
            let mtu = PathMtu::new(link.start, link.mtu.min(usize::from(theirs)), link.search);
            let congestion = Cubic::new(self.config.initial_window, mtu.current());
            spares.push(Spare::new(now, path, guess, congestion, mtu));
            chosen.push(path);
        }
        spares
    }

    /// Handles an answer to a Hello or an Open.
    pub(super) fn handle_answer(&mut self, now: Time, from: Path, datagram: &[u8]) {
        let found = addressee(datagram).filter(|_| datagram.len() <= HANDSHAKE_MAX);
        let attempt = found.and_then(|(name, nonce)| {
            self.sessions.attempt_named(name).filter(|(_, attempt)| attempt.nonce == nonce && attempt.target.path == from)
        });
        let Some((index, attempt)) = attempt else {
            self.stats.stray += 1;
            return;
        };
        let (id, nonce, strand) = (attempt.id, attempt.nonce, attempt.strand);
        let hello = self.hello(id, nonce);
        match handshake::read_answer(&self.secret, datagram) {
            None => self.stats.junk += 1,
            Some(Answer::Retry(cookie)) => self.on_retry(now, index, &hello, cookie),
            Some(Answer::Accept(name, message)) => self.on_accept(now, index, from, &hello, name, message),
            Some(Answer::Reject(Rejection::AlreadyConnected(node, incarnation))) => {
                // The session exists or is on its way. If not, the other end will find out.
                let session = self.sessions.with(node, strand);
                let on_its_way = self.sessions.offers().any(|(_, session)| (session.peer.node, session.strand) == (node, strand));
                if session.is_some() || on_its_way {
                    self.fail_attempt(index, CloseReason::Rejected(Rejection::AlreadyConnected(node, incarnation)));
                }
            }
            Some(Answer::Reject(why)) => self.fail_attempt(index, CloseReason::Rejected(why)),
        }
    }

    fn on_retry(&mut self, now: Time, index: usize, hello: &Hello, cookie: [u8; COOKIE]) {
        let Some(attempt) = self.sessions.attempt_mut(index) else { return };
        match &mut attempt.open {
            // The cookie is no longer valid. But a copy of an old answer must not make this end send again.
            Some(open) if open.cookie == cookie => return,
            Some(open) => open.cookie = cookie,
            None => {
                let link = &self.config.links[usize::from(attempt.target.path.link.0)];
                let params = Params::new(&self.config, link, &mut self.random).of_strand(attempt.strand);
                let Some((exchange, message)) = Exchange::begin(&self.secret, hello, &params, &mut self.random) else { return };
                attempt.open = Some(Opening { cookie, exchange, message });
                attempt.pause = AGAIN_FIRST;
                attempt.asked_at = None;
                attempt.next = now;
                return self.drive_attempt(now, index);
            }
        }
        self.earliest = self.earliest.min(now);
    }

    fn on_accept(&mut self, now: Time, index: usize, from: Path, hello: &Hello, name: u32, message: &[u8]) {
        let Some(attempt) = self.sessions.attempt_mut(index) else { return };
        let Some(open) = &mut attempt.open else { return };
        let Some((theirs, secrets)) = open.exchange.finish(hello, message) else {
            self.stats.junk += 1;
            return;
        };
        // A peer that knows no further sessions answers as if it had been asked for the first one.
        if theirs.strand != attempt.strand {
            self.stats.junk += 1;
            return;
        }
        let (id, expected) = (attempt.id, attempt.target.node);
        let guess = attempt.asked_at.map_or(ROUND_TRIP_GUESS, |at| now - at).max(10 * MICRO);
        if expected.is_some_and(|node| node != theirs.node) {
            return self.fail_attempt(index, CloseReason::WrongNode(theirs.node));
        }
        if theirs.node == self.config.node {
            return self.fail_attempt(index, CloseReason::Rejected(Rejection::SameNode));
        }
        if self.sessions.is_former(theirs.node, theirs.incarnation) {
            return self.fail_attempt(index, CloseReason::Rejected(Rejection::Stale));
        }
        let peer = Peer { node: theirs.node, incarnation: theirs.incarnation };
        if theirs.strand > 0 && !self.sessions.has_first(peer) {
            return self.fail_attempt(index, CloseReason::NoFirst);
        }
        let twin = |session: &Session| session.peer == peer && session.strand == theirs.strand;
        let existing = self.sessions.place_with(theirs.node, theirs.strand);
        let connected = existing.is_some_and(|at| self.sessions.get_mut(at).is_some_and(|session| twin(session)));
        // Both ends asked at once. The session that the lower node requested stays, and the higher node knows that as soon as it
        // is asked.
        let yields = theirs.node < self.config.node && self.sessions.offers().any(|(_, session)| twin(session));
        if connected || yields {
            let there = Rejection::AlreadyConnected(theirs.node, theirs.incarnation);
            return self.fail_attempt(index, CloseReason::Rejected(there));
        }
        let mut session = self.session(now, from, (name, theirs), true, hello, &secrets, guess);
        session.id = id;
        self.sessions.promote(index, session);
        self.connected(now, index, true);
        self.after(now, index);
    }

    /// Handles the first genuine datagram of an offered session. Returns whether the session is established.
    pub(super) fn confirm(&mut self, now: Time, index: usize) -> bool {
        let Some(session) = self.sessions.get_mut(index) else { return false };
        let (peer, strand) = (session.peer, session.strand);
        if self.sessions.is_former(peer.node, peer.incarnation) {
            return self.drop_offer(now, index, CODE_REPLACED);
        }
        if strand > 0 && !self.sessions.has_first(peer) {
            return self.drop_offer(now, index, CODE_NO_FIRST);
        }
        if let Some(at) = self.sessions.place_with(peer.node, strand)
            && self.sessions.get_mut(at).is_some_and(|other| other.peer.incarnation == peer.incarnation)
        {
            return self.drop_offer(now, index, CODE_DUPLICATE);
        }
        if let Some(session) = self.sessions.get_mut(index) {
            session.confirmed = true;
            session.offer = None;
        }
        self.connected(now, index, false);
        true
    }

    fn drop_offer(&mut self, now: Time, index: usize, code: u8) -> bool {
        if let Some(session) = self.sessions.get_mut(index) {
            let (path, farewell) = (session.path, session.farewell(now, Some(code)));
            self.answer(path, farewell);
            self.sessions.remove(index);
        }
        false
    }

    /// Handles an established session: closes every session that it replaces.
    fn connected(&mut self, now: Time, index: usize, asked: bool) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let (id, peer, path, greeting) = (session.id, session.peer, session.path, std::mem::take(&mut session.greeting));
        let strand = session.strand;
        if let Some(former) = self.sessions.place_with(peer.node, strand)
            && former != index
            && let Some(session) = self.sessions.get_mut(former)
            && session.peer.incarnation != peer.incarnation
        {
            session.end(CloseReason::Replaced);
            self.settle(now, former);
        }
        // Requests of both ends led to one session, so the other offers and attempts are void.
        let is_twin = |session: &Session| (session.peer.node, session.strand) == (peer.node, strand);
        let twins: Vec<usize> = self.sessions.offers().filter(|(_, session)| is_twin(session)).map(|(at, _)| at).collect();
        for twin in twins {
            self.sessions.remove(twin);
        }
        self.sessions.live_on(peer.node, peer.incarnation);
        self.sessions.enter(peer.node, strand, index);
        self.stats.connected += 1;
        self.events.push_back(Event::Connected { session: id, peer, path, greeting, asked, strand });
        // An answer to one of these attempts might come from a former incarnation, after a long delay.
        for attempt in self.sessions.attempts_at(path, strand) {
            self.fail_attempt(attempt, CloseReason::Rejected(Rejection::AlreadyConnected(peer.node, peer.incarnation)));
        }
    }

    /// Handles the end of a session: tells the other end, and tells the driver once everything that arrived was delivered.
    pub(super) fn settle(&mut self, now: Time, index: usize) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let Some(reason) = session.over else { return };
        let (id, peer, path, confirmed) = (session.id, session.peer, session.path, session.confirmed);
        let strand = session.strand;
        if !session.settled {
            session.settled = true;
            let farewell = match reason {
                CloseReason::ByPeer(_) => Some(None),
                CloseReason::Damaged(_) => Some(Some(CODE_DAMAGED)),
                CloseReason::Idle => Some(Some(CODE_IDLE)),
                CloseReason::Replaced => Some(Some(CODE_REPLACED)),
                CloseReason::GivenUp(code) => Some(Some(code)),
                CloseReason::NoFirst => Some(Some(CODE_NO_FIRST)),
                _ => None,
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
            if !session.listed {
                session.listed = true;
                self.to_deliver.push_back(index);
            }
            return;
        }
        // The end of the first session is reported last: by then everything that the peer sent was delivered.
        if confirmed && strand == 0 && self.sessions.all_with(peer).any(|(_, session)| session.strand > 0) {
            return;
        }
        self.sessions.remove(index);
        if confirmed {
            let reason = match reason {
                CloseReason::ByPeer(CODE_DAMAGED) => CloseReason::Damaged("the other end reports a broken rule"),
                CloseReason::ByPeer(CODE_IDLE) => CloseReason::Idle,
                CloseReason::ByPeer(CODE_REPLACED) => CloseReason::Replaced,
                CloseReason::ByPeer(CODE_DUPLICATE) => CloseReason::Duplicate,
                CloseReason::ByPeer(CODE_NO_FIRST) => CloseReason::NoFirst,
                reason => reason,
            };
            self.closed(id, Some(peer), reason);
            if strand > 0 {
                self.release_first(now, peer);
            }
        }
    }

    /// Closes the further sessions with an incarnation before its first session, which waits for them.
    pub(super) fn close_further(&mut self, now: Time, peer: Peer, first: usize, code: u8) {
        let further: Vec<_> = self.sessions.all_with(peer).filter(|(_, session)| session.strand > 0).map(|(at, _)| at).collect();
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
        for attempt in self.sessions.further_attempts(peer.node) {
            self.fail_attempt(attempt, CloseReason::NoFirst);
        }
        let further: Vec<_> = self.sessions.all_with(peer).filter(|(_, session)| session.strand > 0).map(|(at, _)| at).collect();
        for at in further {
            if let Some(session) = self.sessions.get_mut(at) {
                session.end(CloseReason::NoFirst);
                self.settle(now, at);
            }
        }
    }

    /// Handles the end of a further session. If the first session waited for it and it was the last, the first one now ends.
    fn release_first(&mut self, now: Time, peer: Peer) {
        if self.sessions.all_with(peer).any(|(_, session)| session.strand > 0) {
            return;
        }
        let waits = |session: &Session| session.over.is_some() || session.held;
        let first = self.sessions.all_with(peer).find(|(_, session)| waits(session)).map(|(index, _)| index);
        if let Some(session) = first.and_then(|first| self.sessions.get_mut(first)) {
            session.held = false;
        }
        if let Some(first) = first {
            self.after(now, first);
        }
    }
}
