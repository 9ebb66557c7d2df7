//! All sessions of one node.

mod open;
mod sessions;

use super::cipher::CHECK;
use super::config::Spans;
use super::handshake::{self, Cookies, DomainSecret};
use super::header::{Header, Kind};
use super::lent::Middle;
use super::random::Random;
use super::session::{Genuine, Opened, Session};
use super::time::{Nanos, Time};
use super::{
    CloseReason, Config, ConfigError, EndpointStats, Event, LinkId, Outstanding, Path, Peer, Receive, SessionId, SessionStats,
    Source, TransferError, TransferId, Transmit,
};
use crate::Run;
use doorbell_fabric::{LinkDown, NodeId, PacketHead, Priority, Push, Sink};
use open::Attempt;
use sessions::{Entry, Sessions};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;

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
/// The most datagrams of one run, as the kernel takes them.
const SEGMENTS_MAX: usize = 64;
/// The most bytes of one run, as the kernel takes them.
const RUN_MAX: usize = 65_507;
/// Close codes of the protocol itself; lower codes belong to the driver.
const CODE_DAMAGED: u8 = 0xF0;
const CODE_IDLE: u8 = 0xF1;
const CODE_REPLACED: u8 = 0xF2;
const CODE_DUPLICATE: u8 = 0xF3;
const CODE_NO_FIRST: u8 = 0xF4;
/// The shortest time between two events about refused strangers.
const REFUSED_EVERY: Nanos = 1_000_000_000;

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
            cookies: Cookies::new(&mut random, super::time::nanos(config.cookie_for)),
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

    /// Requests a session. [`Event::Connected`] or [`Event::Closed`] with this id reports the result. `None`: there is no free
    /// slot, or no such link.
    pub fn connect(&mut self, now: Time, target: Target) -> Option<SessionId> {
        self.config.links.get(usize::from(target.path.link.0))?;
        self.attempt(now, target, 0)
    }

    fn attempt(&mut self, now: Time, target: Target, strand: u8) -> Option<SessionId> {
        let nonce = self.random.u64();
        let give_up = now + self.config.connect_for;
        let id = self.sessions.insert(|id| Entry::Attempt(Box::new(Attempt::new(id, now, target, strand, nonce, give_up))))?;
        self.earliest = self.earliest.min(now);
        Some(id)
    }

    /// The number of sessions that are possible with the peer of a first one, including that one: one for each link if both ends
    /// told of several.
    pub fn strands(&self, first: SessionId) -> usize {
        let ours = handshake::reaches(&self.config).count();
        self.sessions.peek(first).map_or(0, |session| ours.min(session.far.len()).max(1))
    }

    /// Requests a further session with the peer of a first one. It begins by a link and at an address that the sessions with
    /// lower numbers do not use: if possible by the link with its number, at the peer's address with that number. `tries` is the
    /// number of such paths that failed before; the next one is taken. As with [`connect`](Self::connect), an event reports the
    /// result. `None`: there is no such path, no first session, or no free slot.
    pub fn connect_further(&mut self, now: Time, first: SessionId, strand: u8, tries: usize) -> Option<SessionId> {
        let session = self.sessions.peek(first).filter(|session| session.over.is_none() && session.strand == 0)?;
        if strand == 0 || usize::from(strand) >= self.strands(first) {
            return None;
        }
        let (node, place) = (session.peer.node, usize::from(strand));
        let used: Vec<_> = (0..strand).filter_map(|lower| Some(self.sessions.with(node, lower)?.path)).collect();
        let mut ways: Vec<_> = handshake::reaches(&self.config)
            .enumerate()
            .flat_map(|(at, (link, near))| {
                let is_alike = move |far: &&SocketAddr| near.address.is_ipv4() == far.is_ipv4();
                let ways = session.far.iter().enumerate().filter(move |(_, far)| is_alike(far));
                ways.map(move |(to, far)| ((at, to) != (place, place), Path { link, peer: *far }))
            })
            .filter(|(_, path)| !used.iter().any(|used| used.link == path.link || used.peer == path.peer))
            .collect();
        ways.sort_by_key(|(is_other, path)| (*is_other, !session.is_valid(*path)));
        let (_, path) = *ways.get(tries % ways.len().max(1))?;
        self.attempt(now, Target { path, node: Some(node) }, strand)
    }

    /// Processes the datagrams of a run that arrived by `link`. Returns whether the driver answered
    /// [`Verdict::TakenAndStop`](doorbell_fabric::Verdict); then [`deliver`](Self::deliver) may have more for it.
    pub fn handle<R: Receive>(&mut self, now: Time, link: LinkId, run: &mut Run, receiver: &mut R) -> bool {
        let path = Path { link, peer: run.peer };
        let mut stopped = false;
        for datagram in run.datagrams() {
            stopped = self.handle_datagram(now, path, datagram, receiver, stopped);
        }
        stopped
    }

    /// Processes one datagram. If `stopped`, the driver gets no packets now, and they wait. Returns whether the driver wants no
    /// more.
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
        let Some((index, session)) = self.sessions.named(header.session) else {
            self.stats.stray += 1;
            return stopped;
        };
        if session.over.is_some() {
            self.stats.stray += 1;
            return stopped;
        }
        let body = match session.open(from, &header, datagram) {
            Opened::Body(body) => body,
            Opened::Corrupted => {
                self.stats.corrupted += 1;
                return stopped;
            }
            Opened::Misplaced => {
                self.stats.misplaced += 1;
                return stopped;
            }
            Opened::Duplicate => {
                // The sender may have missed the answer.
                return stopped;
            }
        };
        if !session.confirmed && !self.confirm(now, index) {
            self.settle(now, index);
            return stopped;
        }
        let Some(session) = self.sessions.get_mut(index) else { return stopped };
        stopped = session.take(now, &Genuine { from, number: header.number, body }, receiver, stopped, &mut self.events);
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

    /// Puts one packet on a lane. `Full`: the target or the network takes no more now. `bytes` holds at most
    /// [`packet_bytes`](Self::packet_bytes) bytes; a size that was allowed once stays allowed. `Down`: the session has ended or
    /// is closing.
    ///
    /// # Panics
    /// There are more than 65 535 bytes.
    #[inline]
    pub fn push(&mut self, now: Time, session: SessionId, priority: Priority, head: &PacketHead, bytes: &[u8]) -> Push {
        let Some((index, session)) = self.sessions.live(session) else { return Push::Down(LinkDown::Damaged) };
        let pushed = session.push(now, priority, head, bytes);
        if pushed == Push::Done && !session.queued {
            session.queued = true;
            self.to_send.push_back(index);
        }
        pushed
    }

    /// The most bytes of one packet of a session at this time; zero if the session has ended.
    #[inline]
    pub fn packet_bytes(&self, session: SessionId) -> usize {
        self.sessions.peek(session).map_or(0, Session::packet_bytes)
    }

    /// The bytes of packets that a lane of a session holds at least; zero if the session has ended.
    pub fn lane_bytes(&self, session: SessionId) -> usize {
        self.sessions.peek(session).map_or(0, |session| session.lane_bytes())
    }

    /// Whether `len` bytes can be pushed now, in packets of `packet` bytes.
    pub fn has_room(&self, session: SessionId, priority: Priority, len: usize, packet: usize) -> bool {
        self.sessions.peek(session).is_some_and(|session| session.has_room(priority, len, packet))
    }

    /// Whether the target has refused further packets of this lane until it asks for some.
    #[inline]
    pub fn refused(&self, session: SessionId, priority: Priority) -> bool {
        self.sessions.peek(session).is_some_and(|session| session.refused(priority))
    }

    /// Whether packets wait that the driver neither refused nor put off.
    pub fn has_ready(&self) -> bool {
        self.to_deliver.iter().any(|index| self.sessions.at(*index).is_some_and(Session::has_ready))
    }

    /// Whether any waiting packets were refused by the driver.
    pub fn refusing(&self) -> bool {
        self.to_deliver.iter().any(|index| self.sessions.at(*index).is_some_and(Session::refusing))
    }

    /// Whether the driver put off all waiting packets of a session.
    pub fn is_put_off(&self, session: SessionId) -> bool {
        self.sessions.peek(session).is_none_or(Session::is_put_off)
    }

    /// The driver may now want packets that it put off ([`Verdict::Later`](doorbell_fabric::Verdict)). Each
    /// [`deliver`](Self::deliver) offers them anyway; this makes [`has_ready`](Self::has_ready) count them.
    pub fn try_again(&mut self) {
        for index in &self.to_deliver {
            if let Some(session) = self.sessions.get_mut(*index) {
                session.try_again();
            }
        }
    }

    /// Gives the driver at most `budget` waiting packets that it had refused or wanted to return to. Returns how many it took.
    pub fn deliver<S: Sink>(&mut self, now: Time, sink: &mut S, budget: usize) -> usize {
        let mut left = budget;
        for _ in 0..self.to_deliver.len() {
            let Some(&index) = self.to_deliver.front() else { break };
            let Some(session) = self.sessions.get_mut(index) else {
                self.to_deliver.pop_front();
                continue;
            };
            // The session stays listed meanwhile, because the driver may panic.
            let stopped = session.deliver(sink, &mut left);
            session.listed = false;
            self.to_deliver.pop_front();
            self.after(now, index);
            if stopped || left == 0 {
                break;
            }
        }
        budget - left
    }

    /// Expects a transfer of `total` bytes from the peer, and names it. The caller must tell the peer's driver the name; the peer
    /// may then send the bytes below `limit` (at most `total`). For a transfer without bytes only [`Event::Arrived`] is reported.
    pub fn expect(&mut self, now: Time, session: SessionId, total: u64, limit: u64) -> Result<TransferId, TransferError> {
        let (index, live) = self.sessions.live(session).ok_or(TransferError::Gone)?;
        let transfer = TransferId(live.expect(total, limit.min(total)));
        if total == 0 {
            self.events.push_back(Event::Arrived { session, transfer });
        }
        self.after(now, index);
        Ok(transfer)
    }

    /// Like [`expect`](Self::expect), but the peer's driver reads the name as a grant for all bytes.
    pub fn expect_granted(&mut self, session: SessionId, total: u64) -> Result<TransferId, TransferError> {
        let (_, live) = self.sessions.live(session).ok_or(TransferError::Gone)?;
        Ok(TransferId(live.expect_granted(total)))
    }

    /// Lets the peer send the bytes of a transfer below `limit`. A lower limit than before changes nothing.
    pub fn grant(&mut self, now: Time, session: SessionId, transfer: TransferId, limit: u64) {
        if let Some((index, session)) = self.sessions.live(session) {
            session.grant(transfer.0, limit);
            self.after(now, index);
        }
    }

    /// Sends the `total` bytes of a transfer that the peer named. [`Source`] supplies them when they are sent.
    pub fn begin_transfer(
        &mut self,
        now: Time,
        session: SessionId,
        transfer: TransferId,
        total: u64,
        priority: Priority,
    ) -> Result<(), TransferError> {
        self.begin(now, session, transfer, (0..total, total), 0, priority)
    }

    /// Sends a part of a transfer of `total` bytes that the peer named by [`expect_granted`](Self::expect_granted).
    /// [`Event::Sent`] reports that this part has arrived. The peer gets an event only for a whole transfer, so its driver must
    /// learn by other means which part comes, and must [`forget`](Self::forget) the rest.
    pub fn begin_part(
        &mut self,
        now: Time,
        session: SessionId,
        transfer: TransferId,
        part: Range<u64>,
        total: u64,
        priority: Priority,
    ) -> Result<(), TransferError> {
        self.begin(now, session, transfer, (part.start..part.end.min(total), total), total, priority)
    }

    fn begin(
        &mut self,
        now: Time,
        session: SessionId,
        transfer: TransferId,
        (part, total): (Range<u64>, u64),
        granted: u64,
        priority: Priority,
    ) -> Result<(), TransferError> {
        let (index, live) = self.sessions.live(session).ok_or(TransferError::Gone)?;
        live.begin_transfer(now, transfer.0, part, total, granted, priority)?;
        live.tell_finished(&mut self.events);
        self.after(now, index);
        Ok(())
    }

    /// Stops expecting a transfer from the peer, because everything that the peer sends is there. The peer is not told.
    pub fn forget(&mut self, session: SessionId, transfer: TransferId) {
        if let Some((_, session)) = self.sessions.live(session) {
            session.forget(transfer.0);
        }
    }

    /// Cancels a transfer to the peer; its bytes are no longer read. Returns whether it was still running. If so, no event
    /// reports its end.
    pub fn cancel_outgoing(&mut self, now: Time, session: SessionId, transfer: TransferId) -> bool {
        self.cancel(now, session, transfer, false)
    }

    /// Cancels a transfer from the peer; no more bytes are placed. Returns whether it was still running. If so, no event reports
    /// its end.
    pub fn cancel_incoming(&mut self, now: Time, session: SessionId, transfer: TransferId) -> bool {
        self.cancel(now, session, transfer, true)
    }

    fn cancel(&mut self, now: Time, session: SessionId, transfer: TransferId, by_receiver: bool) -> bool {
        let Some((index, session)) = self.sessions.live(session) else { return false };
        let running = session.cancel(transfer.0, by_receiver);
        self.after(now, index);
        running
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
        } else if self.sessions.remove_attempt(session) {
            self.closed(session, None, CloseReason::Local);
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
        for index in 0..self.sessions.places() {
            if let Some(session) = self.sessions.get_mut(index) {
                session.forgive(now);
            }
        }
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
                    session.tell_path(&mut self.events);
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

    /// Fills `buf` with the next datagrams, and returns their destination. `buf` must hold 65 536 bytes. Call it until there are
    /// none.
    pub fn poll_transmit<S: Source>(&mut self, now: Time, buf: &mut [u8], source: &mut S) -> Option<Transmit> {
        self.next_transmit(now, buf, source, false, 0)
    }

    /// Like [`poll_transmit`](Self::poll_transmit), but a long packet, and bytes of a transfer, may stay where they lie. The
    /// datagram is then in [`pieces`](Self::pieces), until the next call of another method.
    pub fn poll_pieces<S: Source>(&mut self, now: Time, buf: &mut [u8], source: &mut S) -> Option<Transmit> {
        self.next_transmit(now, buf, source, true, 0)
    }

    /// Like [`poll_pieces`](Self::poll_pieces), but keeps datagrams of links that have no room now: `full` has a bit for each
    /// link, the lowest for the first. (A Challenge to another path of a session may be returned nevertheless.)
    pub fn poll_pieces_but<S: Source>(&mut self, now: Time, buf: &mut [u8], full: u32, source: &mut S) -> Option<Transmit> {
        self.next_transmit(now, buf, source, true, full)
    }

    /// The last datagram of [`poll_pieces`](Self::poll_pieces) in three pieces, if it does not lie in the buffer as a whole.
    pub fn pieces<'a>(&'a self, transmit: &Transmit, buf: &'a [u8]) -> Option<(&'a [u8], Middle<'a>, &'a [u8])> {
        let (index, lent) = transmit.lent?;
        let session = self.sessions.at(index)?;
        let (front, tag) = buf[..transmit.len - lent.len as usize].split_last_chunk::<CHECK>()?;
        Some((front, session.lent(lent), tag))
    }

    /// Copies the parts of a datagram that lie elsewhere into the buffer, so that it can be sent later. `None`: they are gone,
    /// and the datagram counts as lost.
    pub fn joined<S: Source>(&self, transmit: Transmit, buf: &mut [u8], source: &mut S) -> Option<Transmit> {
        if let Some((index, lent)) = transmit.lent {
            let (len, end) = (lent.len as usize, transmit.len - lent.len as usize);
            buf.copy_within(end - CHECK..end, end - CHECK + len);
            let into = &mut buf[end - CHECK..][..len];
            match self.sessions.at(index)?.lent(lent) {
                Middle::Lane(bytes) => into.copy_from_slice(bytes),
                Middle::Transfer { session, transfer, offset, .. } => {
                    source.read(session, transfer, offset, into).then_some(())?;
                }
            }
        }
        Some(Transmit { lent: None, ..transmit })
    }

    fn next_transmit<S: Source>(&mut self, now: Time, buf: &mut [u8], source: &mut S, lend: bool, full: u32) -> Option<Transmit> {
        assert!(buf.len() >= RUN_MAX, "the buffer must hold the largest datagram");
        if now >= self.earliest {
            self.handle_timeout(now);
        }
        let is_full = |path: &Path| 1u32.checked_shl(path.link.0.into()).is_some_and(|link| full & link != 0);
        let first = |queue: &mut VecDeque<(Path, Vec<u8>)>| {
            let at = queue.iter().position(|(path, _)| !is_full(path))?;
            queue.remove(at)
        };
        if let Some((path, datagram)) = first(&mut self.requests).or_else(|| first(&mut self.answers)) {
            buf[..datagram.len()].copy_from_slice(&datagram);
            self.stats.datagrams_out += 1;
            self.stats.bytes_out += datagram.len() as u64;
            return Some(Transmit { path, len: datagram.len(), segment: datagram.len(), lent: None });
        }
        for _ in 0..self.to_send.len() {
            let Some(index) = self.to_send.pop_front() else { break };
            let Some(session) = self.sessions.get_mut(index) else { continue };
            if is_full(&session.path) {
                self.to_send.push_back(index);
                continue;
            }
            session.queued = false;
            let made = fill(now, (index, session), buf, source, lend, &mut self.events);
            self.after(now, index);
            if let Some((transmit, count)) = made {
                self.stats.datagrams_out += count;
                self.stats.bytes_out += transmit.len as u64;
                return Some(transmit);
            }
            // The session may want to send but not be allowed to; the event that allows it lists it again.
            if let Some(session) = self.sessions.get_mut(index)
                && session.queued
            {
                session.queued = false;
                self.to_send.pop_back();
            }
        }
        None
    }

    /// The local system refused to send a datagram of `size` bytes by this path, because it was too large.
    pub fn too_large(&mut self, path: Path, size: usize) {
        for index in 0..self.sessions.places() {
            if let Some(session) = self.sessions.get_mut(index) {
                session.too_large(path, size);
            }
        }
    }

    /// The other end of a connected session.
    pub fn peer(&self, session: SessionId) -> Option<Peer> {
        self.sessions.peek(session).map(|session| session.peer)
    }

    /// The addresses of a session's peer, the one in use first, as far as the peer told them and links lead there.
    pub fn addresses(&self, session: SessionId) -> Vec<SocketAddr> {
        self.sessions.peek(session).map_or_else(Vec::new, Session::addresses)
    }

    /// The path to the peer of a session.
    pub fn path(&self, session: SessionId) -> Option<Path> {
        self.sessions.peek(session).map(|session| session.path)
    }

    /// The first session with a node, if there is one.
    pub fn session_with(&self, node: NodeId) -> Option<SessionId> {
        self.sessions.with(node, 0).map(|session| session.id)
    }

    /// The traffic under way on a lane of a session, and its path. `None`: the session has ended.
    pub fn outstanding(&self, session: SessionId, priority: Priority) -> Option<Outstanding> {
        self.sessions.peek(session).map(|session| session.outstanding(priority))
    }

    /// Whether everything pushed on a session was acknowledged and no transfer to the peer runs. `true` if the session has ended.
    pub fn is_flushed(&self, session: SessionId) -> bool {
        self.sessions.peek(session).is_none_or(Session::is_flushed)
    }

    /// The counts of a session.
    pub fn session_stats(&self, session: SessionId) -> Option<SessionStats> {
        self.sessions.peek(session).map(Session::stats)
    }

    /// The counts of the endpoint.
    pub fn stats(&self) -> EndpointStats {
        self.stats
    }

    /// The name by which the other end knows a session.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn named_there(&self, session: SessionId) -> Option<u32> {
        self.sessions.peek(session).map(Session::named_there)
    }

    /// Whether the session with this name has ended or never existed.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn is_over(&self, name: u32) -> bool {
        self.sessions.at(usize::from(name as u16)).is_none_or(|session| session.id.0 as u32 != name || session.over.is_some())
    }

    /// The number of slots ever used.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn places(&self) -> usize {
        self.sessions.places()
    }

    /// The number of sessions and attempts.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn occupied(&self) -> usize {
        self.sessions.occupied()
    }

    /// Forges a datagram of an existing session, with this body and perhaps this number, that no endpoint would send.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn forge(&mut self, now: Time, session: SessionId, number: Option<u64>, body: &[u8]) -> Vec<u8> {
        self.sessions.live(session).expect("a session").1.forge(now, number, body)
    }

    /// The number of records of sent datagrams that a session keeps, and of the items that these carried.
    #[cfg(test)]
    pub(crate) fn records(&self, session: SessionId) -> Option<(usize, usize)> {
        self.sessions.peek(session).map(Session::records)
    }

    /// The number of waiting answers, requests and events.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn waiting(&self) -> (usize, usize, usize) {
        (self.answers.len(), self.requests.len(), self.events.len())
    }

    /// The cookie that answers a Hello.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn cookie(
        &self,
        now: Time,
        from: std::net::SocketAddr,
        hello: &super::handshake::Hello,
    ) -> [u8; super::handshake::COOKIE] {
        self.cookies.bake(now.nanos(), from, hello)
    }

    /// The domain's secret, for proofs of datagrams that no endpoint would send.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn secret(&self) -> &DomainSecret {
        &self.secret
    }

    fn closed(&mut self, session: SessionId, peer: Option<Peer>, reason: CloseReason) {
        self.stats.closed += 1;
        self.events.push_back(Event::Closed { session, peer, reason });
    }
}

/// Fills a run with datagrams of one session.
#[inline]
fn fill<S: Source>(
    now: Time,
    (index, session): (usize, &mut Session),
    buf: &mut [u8],
    source: &mut S,
    lend: bool,
    events: &mut VecDeque<Event>,
) -> Option<(Transmit, u64)> {
    let first = session.transmit(now, buf, None, lend, source, events)?;
    if let Some(lent) = first.lent {
        let len = first.len + lent.len as usize;
        return Some((Transmit { path: first.to, len, segment: len, lent: Some((index, lent)) }, 1));
    }
    let segment = first.len;
    let (mut len, mut count) = (segment, 1);
    if !first.alone {
        while count < SEGMENTS_MAX && len + segment <= RUN_MAX {
            let Some(next) = session.transmit(now, &mut buf[len..], Some(segment), false, source, events) else { break };
            len += next.len;
            count += 1;
            if next.len < segment {
                break;
            }
        }
    }
    Some((Transmit { path: first.to, len, segment, lent: None }, count as u64))
}
