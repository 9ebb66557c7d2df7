//! One session: all traffic between this node and one incarnation of another, by one path at a time.

mod cargo;
#[cfg(any(test, feature = "sim"))]
mod for_tests;
mod paths;
mod receive;
mod timers;
mod transmit;

use super::TransferId;
use super::ack::Received;
use super::cipher::{Cipher, Secrets, TAG_MAX};
use super::config::{Config, Integrity, Spans};
use super::congestion::Cubic;
use super::frame::{ACK_LEN, ACK_RANGE, PACKET_HEAD_MAX};
use super::handshake::{Hello, Params};
use super::header::HEADER;
use super::lane::payload_max;
use super::lent::{Lender, Lent, Middle};
use super::loss::{Carried, Flight, RoundTrip};
use super::mtu::PathMtu;
use super::pacing::Pacer;
use super::random::Random;
use super::stats::{Outstanding, SessionStats};
use super::time::{MICRO, Nanos, Time};
use super::wire::U64;
use super::{CloseReason, Event, Path, Peer, SessionId};
pub(super) use cargo::{Cargo, Closing};
use doorbell_fabric::{LinkDown, PRIORITIES, PacketHead, Priority, Push, Sink};
use std::net::SocketAddr;

pub(crate) use paths::Spare;

/// The number of ranges of an acknowledgement that travels with packets.
const RANGES_ALONG: usize = 4;

/// A possible new address of the peer.
struct Move {
    to: Path,
    word: u64,
    /// The time of the last Challenge, unless it must be repeated.
    asked: Option<Time>,
}

pub(crate) struct Session {
    pub id: SessionId,
    /// The peer's name for the session.
    remote: u32,
    pub path: Path,
    pub peer: Peer,
    /// The index of the session among those with that peer. The first session tells all of them whether the peer lives.
    pub strand: u8,
    /// The path of a further session, to which it returns, because its user wants that link.
    home: Option<Path>,
    /// The peer has one link, which is bound to all addresses of its machine.
    pub is_everywhere: bool,
    /// The addresses that the peer told of, in its order.
    pub far: Vec<SocketAddr>,
    /// It is closing, but waits for the further sessions.
    pub held: bool,
    /// The other end has shown that it has the keys.
    pub confirmed: bool,
    /// The answer to the request for it, kept until the requesting end shows that it got it.
    pub accept: Vec<u8>,
    /// The nonce of the request that led here.
    pub nonce: U64,
    /// The greeting of the other end for the driver.
    pub greeting: Vec<u8>,
    /// The reason why it ended, if it did. Packets that wait for the driver may still be delivered.
    pub over: Option<CloseReason>,
    /// The other end was told of the end, or need not be told.
    pub settled: bool,
    /// It is in the endpoint's list of sessions with something to send.
    pub queued: bool,
    /// It is in the endpoint's list of sessions with something for the driver.
    pub listed: bool,
    cipher: Cipher,
    received: Received,
    flight: Flight,
    congestion: Cubic,
    pacer: Pacer,
    mtu: PathMtu,
    pub cargo: Cargo,
    /// For each class of traffic, the number of datagrams for which it stood back.
    passed_over: [u8; CLASSES],
    /// The number of datagrams that may go whatever the window is.
    questions: u8,
    ping: bool,
    /// The next datagram must be as small as possible.
    ping_alone: bool,
    /// The peer, with nothing else to send, asked whether this end lives.
    pub was_asked: bool,
    /// Datagrams up to this number were sent while the window was in use.
    limited_until: u64,
    paced_until: Time,
    close_by: Time,
    movement: Option<Move>,
    response: Option<u64>,
    /// Other paths to the same peer.
    spares: Vec<Spare>,
    /// A Response to a Challenge that came by none of these paths.
    response_to: Option<(Path, u64)>,
    /// The time since when the path in use is thought to be cut.
    suspected: Option<Time>,
    pub last_heard: Time,
    /// The time at which the peer last acknowledged something new.
    acked_at: Time,
    /// The time at which anything was last heard by the path in use.
    heard_here: Time,
    pub last_used: Time,
    spans: Spans,
    /// Another party says whether the peer lives, and silence means nothing.
    vouched: bool,
    /// The time since when that is in doubt: the peer, or an impostor, did not know this session then, and nothing came by it
    /// since.
    doubted: Option<Time>,
    /// How long nothing is heard before the peer is pinged.
    quiet_after: Nanos,
    ack_every: u32,
    /// The source of the words in Challenges.
    words: Random,
    lane_window: u64,
    stats: SessionStats,
    /// What the driver is to be told next.
    pub events: Vec<Event>,
}

/// Lanes and transfers, each of every priority.
const CLASSES: usize = 2 * PRIORITIES;

/// The facts from which a session is made.
pub(crate) struct Beginning<'a> {
    pub config: &'a Config,
    pub path: Path,
    /// Whether this end requested it. Then the other end has shown already that it has the keys.
    pub asked: bool,
    pub hello: &'a Hello,
    /// The other end's name for the session, and its parameters.
    pub remote: u32,
    pub theirs: Params,
    pub secrets: &'a Secrets,
    /// The assumed round trip.
    pub guess: Nanos,
    /// A source of numbers that only this end knows.
    pub words: Random,
}

/// Queues the items of datagrams that are given up to be sent again.
fn resend(cargo: &mut Cargo, mtu: &mut PathMtu, stats: &mut SessionStats) -> impl FnMut(Carried) {
    move |carried| match carried {
        Carried::Probe { .. } => mtu.forget_probe(),
        carried => stats.bytes_again += cargo.again(carried),
    }
}

impl Session {
    /// A session. The caller fills in the id.
    pub fn new(now: Time, beginning: Beginning) -> Self {
        let Beginning { config, path, asked, hello, remote, theirs, secrets, guess, words } = beginning;
        let (fixed, spans) = (theirs.fixed, config.spans());
        let link = config.links[usize::from(path.link.0)];
        let full = fixed.full_integrity != 0 || config.integrity == Integrity::Full;
        let (mtu, congestion) = link.begin(config, fixed.mtu.get());
        let spares = Spare::all(config, path, &theirs, asked, guess, now);
        let peer_delay = u64::from(fixed.ack_delay) * MICRO;
        let lane_window = u64::from(fixed.lane_window);
        let strand = fixed.strand;
        Self {
            id: SessionId(0),
            remote,
            path,
            peer: theirs.peer(),
            strand,
            home: (strand > 0).then_some(path),
            is_everywhere: theirs.wildcard,
            far: theirs.addresses.iter().flatten().map(|reach| reach.address.get()).collect(),
            held: false,
            confirmed: asked,
            accept: Vec::new(),
            nonce: hello.nonce,
            quiet_after: spans.quiet_after(config.node, theirs.peer().node, strand),
            greeting: theirs.greeting,
            over: None,
            settled: false,
            queued: false,
            listed: false,
            cipher: if hello.is_keyed() {
                Cipher::sealed(secrets, config.rekey_after_packets)
            } else {
                Cipher::checked(secrets, full)
            },
            received: Received::new(),
            flight: Flight::new(RoundTrip::new(guess), spans.patience, peer_delay, spans.dead / 8),
            congestion,
            pacer: Pacer::new(now),
            mtu,
            cargo: Cargo::new((lane_window, config.lane_window.into()), config.lane_buffer as usize),
            passed_over: [0; CLASSES],
            questions: 0,
            // The other end waits for a sign that its answer arrived.
            ping: true,
            ping_alone: false,
            was_asked: false,
            limited_until: 0,
            paced_until: Time::NEVER,
            close_by: Time::NEVER,
            movement: None,
            response: None,
            response_to: None,
            spares,
            suspected: None,
            last_heard: now,
            acked_at: now,
            heard_here: now,
            last_used: now,
            vouched: false,
            doubted: None,
            spans,
            ack_every: config.ack_every,
            words,
            lane_window,
            stats: SessionStats::default(),
            events: Vec::new(),
        }
    }

    /// The longest payload of a packet that fits into one datagram now.
    pub fn packet_bytes(&self) -> usize {
        let overhead = HEADER + TAG_MAX + PACKET_HEAD_MAX + ACK_LEN + (RANGES_ALONG - 1) * ACK_RANGE;
        (self.mtu.current() - overhead).min(payload_max(self.lane_window))
    }

    #[inline]
    pub fn push(&mut self, now: Time, priority: Priority, head: &PacketHead, payload: &[u8]) -> Push {
        if self.over.is_some() || self.cargo.closing != Closing::No {
            return Push::Down(LinkDown::Damaged);
        }
        assert!(payload.len() <= usize::from(u16::MAX), "the packet exceeds packet_bytes()");
        if !self.cargo.lanes_out[priority.index()].push(head, payload) {
            return Push::Full;
        }
        self.last_used = now;
        Push::Done
    }

    /// Sends everything that was pushed, then closes the session.
    pub fn close(&mut self, now: Time, code: u8) {
        if self.cargo.closing == Closing::No && self.over.is_none() {
            self.cargo.closing = Closing::Finishing { code };
            self.close_by = now + self.spans.dead;
        }
    }

    pub fn end(&mut self, reason: CloseReason) {
        if self.over.is_none() {
            self.over = Some(reason);
        }
    }

    /// Whether packets wait for the driver.
    pub fn is_ready(&self) -> bool {
        self.cargo.lanes_in.iter().any(|lane| lane.is_ready())
    }

    pub fn outstanding(&self, priority: Priority) -> Outstanding {
        let lane = &self.cargo.lanes_out[priority.index()];
        let (packets, bytes) = lane.outstanding();
        let round_trip = self.flight.round_trip.smoothed;
        Outstanding { packets, bytes, room: lane.bytes() as u64, round_trip, link: self.path.link }
    }

    pub fn stats(&self) -> SessionStats {
        SessionStats {
            packets_in: self.cargo.lanes_in.iter().map(|lane| lane.delivered).sum(),
            refused: self.cargo.lanes_in.iter().map(|lane| lane.refusals).sum(),
            window: self.congestion.window(),
            under_way: self.flight.bytes,
            mtu: self.mtu.current() as u64,
            paths: self.paths() as u64,
            ..self.stats
        }
    }

    /// Pings the peer to find out whether it is still there.
    pub fn ask_now(&mut self) {
        self.ping = true;
    }

    /// From now on another party says whether the peer lives.
    pub fn vouch(&mut self) {
        self.vouched = true;
        self.flight.pause_max = self.spans.keep_alive;
    }

    /// The peer may not know this session. If it does not answer within this many dead-peer times, the session ends, whoever
    /// vouches for the peer.
    pub fn doubt(&mut self, now: Time, times: u64) {
        self.doubted.get_or_insert(now + times * self.spans.dead);
        self.ask_now();
    }

    /// The bytes that were lent to the last datagram.
    pub fn lent(&self, lent: Lent) -> Middle<'_> {
        let (at, len) = (lent.at, lent.len as usize);
        match lent.by {
            Lender::Lane(lane) => Middle::Lane(self.cargo.lanes_out[lane.index()].lent(at as usize, len)),
            Lender::Transfer(transfer) => Middle::Transfer { session: self.id, transfer: TransferId(transfer), offset: at, len },
        }
    }

    pub fn too_large(&mut self, path: Path, size: usize) {
        if path != self.path {
            return;
        }
        self.mtu.on_refused(size);
        self.congestion.set_mtu(self.mtu.current());
    }

    /// Reports the transfers to the peer that ended.
    pub fn tell_finished(&mut self) {
        while let Some((transfer, sent)) = self.cargo.transfers_out.finished.pop_front() {
            let (session, transfer) = (self.id, TransferId(transfer));
            self.events.push(if sent {
                Event::Sent { session, transfer }
            } else {
                Event::Cancelled { session, transfer, outgoing: true }
            });
        }
    }

    /// Gives the driver the waiting packets, even if it had refused them. Returns whether it wants to return later.
    pub fn deliver<S: Sink>(&mut self, sink: &mut S, budget: &mut usize) -> bool {
        for priority in Priority::ALL {
            match self.cargo.lanes_in[priority.index()].retry(self.peer, sink, budget) {
                Ok(false) => {}
                Ok(true) => return true,
                Err(reason) => {
                    sink.damaged(self.peer.node, priority, reason);
                    self.over = Some(CloseReason::Damaged(reason));
                    return false;
                }
            }
        }
        false
    }
}
