//! All sessions of one node.

mod connect;
mod facts;
#[cfg(any(test, feature = "sim"))]
mod for_tests;
mod open;
mod packets;
mod sessions;
mod transfers;
mod transmit;

use super::config::Spans;
use super::handshake::{Cookies, DomainSecret};
use super::header::{Header, Kind};
use super::random::Random;
use super::time::{Nanos, Time};
use super::{CloseReason, Config, ConfigError, EndpointStats, Event, Path, Peer, Receive, SessionId};
use doorbell_fabric::NodeId;
use open::Attempt;
use sessions::{Entry, Sessions};
use std::collections::VecDeque;

/// The peer to connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The link and the address.
    pub path: Path,
    /// The node that should be there, if known.
    pub node: Option<NodeId>,
}

/// The most answers to strangers that wait to be sent.
const ANSWERS_MAX: usize = 64;
/// The lowest close code of the protocol itself; lower codes belong to the driver.
const CODE_DAMAGED: u8 = 0xF0;
const CODE_NO_FIRST: u8 = 0xF4;
/// Their meanings.
const CODES: [(u8, CloseReason); 5] = [
    (CODE_DAMAGED, CloseReason::Damaged("the other end reports a broken rule")),
    (0xF1, CloseReason::Idle),
    (0xF2, CloseReason::Replaced),
    (0xF3, CloseReason::Duplicate),
    (CODE_NO_FIRST, CloseReason::NoFirst),
];
/// The shortest time between two events about refused strangers.
const REFUSED_EVERY: Nanos = 1_000_000_000;

/// The code by which the other end is told why a session ends.
fn code_of(reason: CloseReason) -> Option<u8> {
    let is_it = |(_, of): &&(u8, CloseReason)| std::mem::discriminant(of) == std::mem::discriminant(&reason);
    CODES.iter().find(is_it).map(|(code, _)| *code)
}

/// Why a session ended that the other end closed with this code.
fn reason_of(code: u8) -> CloseReason {
    CODES.iter().find(|(of, _)| *of == code).map_or(CloseReason::ByPeer(code), |(_, reason)| *reason)
}

/// All sessions of one node, over its links.
///
/// No call blocks or reads a clock. Every call that needs the time takes it as an argument; the time must not go back.
pub struct Endpoint {
    config: Config,
    spans: Spans,
    secret: DomainSecret,
    cookies: Cookies,
    random: Random,
    sessions: Sessions,
    events: VecDeque<Event>,
    /// Sessions with something to send, in turn.
    to_send: VecDeque<usize>,
    /// Sessions with something for the driver that was not taken yet.
    to_deliver: VecDeque<usize>,
    /// Datagrams of the handshake.
    requests: VecDeque<(Path, Vec<u8>)>,
    answers: VecDeque<(Path, Vec<u8>)>,
    /// Nothing is due before this time.
    earliest: Time,
    latest: Time,
    /// The time of the last common ping of quiet peers.
    asked_along: Time,
    refused_told: Time,
    stats: EndpointStats,
}

impl Endpoint {
    /// An endpoint without sessions. `seed` yields all randomness, keys included. With a key it must come from the system's
    /// generator and must never be used twice.
    pub fn new(config: Config, seed: [u8; 32]) -> Result<Endpoint, ConfigError> {
        config.check()?;
        let mut random = Random::new(seed);
        Ok(Endpoint {
            spans: config.spans(),
            secret: DomainSecret::new(&config),
            cookies: Cookies::new(&mut random),
            sessions: Sessions::new(config.sessions_max, random.u64() as u32),
            random,
            config,
            events: VecDeque::new(),
            to_send: VecDeque::new(),
            to_deliver: VecDeque::new(),
            requests: VecDeque::new(),
            answers: VecDeque::new(),
            earliest: Time::NEVER,
            latest: Time::ZERO,
            asked_along: Time::ZERO,
            refused_told: Time::ZERO,
            stats: EndpointStats::default(),
        })
    }

    /// Processes one datagram. If `stopped`, the driver gets no packets now, and they wait. Returns whether the driver answered
    /// [`Verdict::TakenAndStop`](doorbell_fabric::Verdict), now or before; then [`deliver`](Self::deliver) may have more for it.
    pub fn handle_datagram<R: Receive>(
        &mut self,
        now: Time,
        from: Path,
        datagram: &mut [u8],
        receiver: &mut R,
        stopped: bool,
    ) -> bool {
        self.be_at(now);
        self.stats.datagrams_in += 1;
        self.stats.bytes_in += datagram.len() as u64;
        match Kind::of(datagram) {
            Some(Kind::Data) => return self.handle_data(now, from, datagram, receiver, stopped),
            Some(Kind::Hello | Kind::Open) => self.handle_request(now, from, datagram),
            Some(Kind::Retry | Kind::Accept | Kind::Reject) => self.handle_answer(now, from, datagram),
            None => self.stats.junk += 1,
        }
        stopped
    }

    #[inline]
    fn handle_data<R: Receive>(
        &mut self,
        now: Time,
        from: Path,
        datagram: &mut [u8],
        receiver: &mut R,
        mut stopped: bool,
    ) -> bool {
        let Some(header) = Header::read(datagram) else {
            self.stats.junk += 1;
            return stopped;
        };
        let Some((index, session)) = self.sessions.named(header.session.get()).filter(|(_, session)| session.over.is_none())
        else {
            self.stats.stray += 1;
            return stopped;
        };
        let Some(body) = session.open(from, &header, datagram, &mut self.stats) else { return stopped };
        if !session.confirmed && !self.confirm(now, index) {
            return stopped;
        }
        let Some(session) = self.sessions.get_mut(index) else { return stopped };
        stopped = session.take(now, from, header.number.get(), body, receiver, stopped);
        let was_asked = std::mem::take(&mut session.was_asked);
        self.after(now, index);
        if was_asked {
            self.ask_along(now, true);
        }
        stopped
    }

    /// While it is awake, the node pings all peers from which it heard nothing for half the time. So it wakes once for all of
    /// them, and soon the whole domain wakes at the same instants. `was_asked`: another node pinged first. Of two nodes that it
    /// pinged, only one then pings the other.
    #[cold]
    fn ask_along(&mut self, now: Time, was_asked: bool) {
        if now - self.asked_along < self.spans.keep_alive / 2 {
            return;
        }
        self.asked_along = now;
        let me = self.config.node;
        for index in 0..self.sessions.places() {
            if let Some(session) = self.sessions.get_mut(index)
                && session.is_quiet(now)
                && (!was_asked || me < session.peer.node)
            {
                session.ask_now();
                self.after(now, index);
            }
        }
    }

    /// Updates the endpoint's lists after a call to a session.
    #[inline]
    fn after(&mut self, now: Time, index: usize) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        if !session.events.is_empty() {
            self.events.extend(session.events.drain(..));
        }
        if !session.listed && session.is_ready() {
            session.listed = true;
            self.to_deliver.push_back(index);
        }
        if session.over.is_some() {
            return self.settle(now, index);
        }
        if !session.queued && session.wants_to_send(now) {
            session.queued = true;
            self.to_send.push_back(index);
        }
        self.earliest = self.earliest.min(session.deadline());
    }

    /// Closes a session in good order: first sends everything that was pushed and begun, for [`Config::dead_after`] at most. The
    /// peer is told `code` (below 240). An attempt to connect is abandoned.
    ///
    /// Closing the first session between two nodes also closes the further ones; the first one ends last.
    pub fn close(&mut self, now: Time, session: SessionId, code: u8) {
        let code = code.min(CODE_DAMAGED - 1);
        if let Some((index, session)) = self.sessions.live(session) {
            let (peer, is_first) = (session.peer, session.strand == 0);
            session.close(now, code);
            if is_first {
                self.close_further(now, peer, index, code);
            }
            self.after(now, index);
        } else if let Some((index, attempt)) = self.sessions.attempt_named(session.0 as u32)
            && attempt.id == session
        {
            self.fail_attempt(index, CloseReason::Local);
        }
    }

    /// Ends a session at once. Packets that were pushed and not sent are lost; packets that arrived are still delivered. The peer
    /// is told `code` (below 240) once.
    pub fn give_up(&mut self, now: Time, session: SessionId, code: u8) {
        if let Some((index, session)) = self.sessions.live(session) {
            session.end(CloseReason::GivenUp(code.min(CODE_DAMAGED - 1)));
            self.after(now, index);
        }
    }

    /// From now on another party says whether the peer of a session lives, and ends the session if not. Silence alone never ends
    /// it. Only if the peer asks for another session must it prove that it knows this one.
    pub fn vouch(&mut self, session: SessionId) {
        if let Some((_, session)) = self.sessions.live(session) {
            session.vouch();
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The time at which [`handle_timeout`](Self::handle_timeout) should be called next. It may turn out that nothing was due.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Time> {
        (self.earliest != Time::NEVER).then_some(self.earliest)
    }

    /// Records that this node runs. After a pause of this node, datagrams of the meantime may still lie in its sockets, so the
    /// peers get more time.
    #[inline]
    fn be_at(&mut self, now: Time) {
        if now - self.latest > self.spans.dead / 2 {
            self.forgive(now);
        }
        self.latest = now;
    }

    #[cold]
    fn forgive(&mut self, now: Time) {
        self.sessions.sessions_mut().for_each(|session| session.forgive(now));
    }

    /// Does everything that is due. [`poll_transmit`](Self::poll_transmit) may have datagrams afterwards.
    pub fn handle_timeout(&mut self, now: Time) {
        self.be_at(now);
        if now < self.earliest {
            return;
        }
        self.earliest = Time::NEVER;
        let mut asks = false;
        for index in 0..self.sessions.places() {
            if let Some(session) = self.sessions.get_mut(index) {
                if session.deadline() <= now {
                    asks |= session.on_timeout(now);
                    let unanswered = session.is_unanswered().then_some((session.peer.node, session.silent_since()));
                    self.compare(now, index, unanswered);
                }
                self.after(now, index);
            } else if self.sessions.attempt_mut(index).is_some() {
                self.drive_attempt(now, index);
            }
        }
        if asks {
            self.ask_along(now, false);
        }
    }

    /// No one vouches for the other end of a further session while the voucher for the peer itself is right. But if the first
    /// session heard from the peer long after this one did, this one must prove that its other end is there.
    fn compare(&mut self, now: Time, index: usize, unanswered: Option<(NodeId, Time)>) {
        if let Some((node, since)) = unanswered
            && self.sessions.with(node, 0).is_some_and(|first| first.last_heard > since + self.spans.dead / 2)
            && let Some(session) = self.sessions.get_mut(index)
        {
            session.doubt(now, 1);
        }
    }

    /// Like [`poll_timeout`](Self::poll_timeout), but never too early: it leaves out times that an answer has made void. It looks
    /// at each session, so it is meant for a caller that is about to sleep.
    pub fn next_timeout(&mut self) -> Option<Time> {
        if self.earliest != Time::NEVER {
            self.earliest = self.sessions.deadline();
        }
        self.poll_timeout()
    }

    fn closed(&mut self, session: SessionId, peer: Option<Peer>, reason: CloseReason) {
        self.stats.closed += 1;
        self.events.push_back(Event::Closed { session, peer, reason });
    }
}
