//! Direct calls on the socket, for any thread. None of them waits.

#![forbid(unsafe_code)]

use super::calls::{self, Arrival, Label, Place};
use super::moves::{BATCH, Look, Message, Moved, Moves, SERIES};
use super::socket::{self, Made};
use super::sources::Sources;
use super::{Sent, Statistics, Traffic, Trouble, TroubleKind, UringError, Woken};
use crate::Run;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// The most datagrams that older kernels cut from one run.
const SEGMENTS_MOST: usize = 64;
/// The most bytes of a run, as an IPv4 packet holds them.
const RUN_BYTES_MOST: usize = 65_507;
/// The number of errors about other datagrams that a call tolerates before it gives up.
const STRANGERS_ERRORS: usize = 32;

/// The socket of a port, for any thread. Clones share the socket. It closes when the port and the last clone are dropped.
#[derive(Clone)]
pub struct Direct(Arc<Shared>);

struct Shared {
    made: Made,
    /// The ring by which datagrams move. Without one they move by plain calls.
    moves: Option<Box<Moves>>,
    /// Whether the kernel cuts runs. Becomes false if an interface turns out to be unable to.
    gso: AtomicBool,
    /// The local address that each peer wrote to, if the socket is bound to all addresses.
    sources: Option<Sources>,
    /// Whether the socket's error queue may hold a report.
    troubled: AtomicBool,
    /// The last send found no room.
    full: AtomicBool,
    counts: Counts,
    /// Whether it is a twin, which sends to one peer only.
    connected: bool,
    twin: OnceLock<Direct>,
}

/// Uses no locked instruction. If two threads count at the same instant, one count may be lost.
#[derive(Default)]
struct Counter(AtomicU64);

impl Counter {
    fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(more), Relaxed);
    }

    fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The counts of one direction, as in [`Traffic`].
#[derive(Default)]
struct Tally {
    calls: Counter,
    enters: Counter,
    datagrams: Counter,
    bytes: Counter,
}

impl Tally {
    fn add_to(&self, traffic: &mut Traffic) {
        traffic.calls += self.calls.read();
        traffic.enters += self.enters.read();
        traffic.datagrams += self.datagrams.read();
        traffic.bytes += self.bytes.read();
    }
}

#[derive(Default)]
struct Counts {
    received: Tally,
    sent: Tally,
}

/// The buffer for an arriving run. Each receiving thread has its own.
pub struct Room {
    place: Box<Place>,
    /// Whether the last look found runs and ended before the socket was empty.
    more: bool,
}

impl Default for Room {
    /// It has 68 KiB, which cost memory only as they are used.
    fn default() -> Self {
        Self { place: calls::place(), more: false }
    }
}

impl AsFd for Direct {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.made.socket.as_fd()
    }
}

impl Direct {
    /// `by_ring`: datagrams move by io_uring.
    pub(super) fn new(made: Made, by_ring: bool) -> Result<Self, UringError> {
        let moves = by_ring.then(Moves::new).transpose()?;
        Ok(Self::over(made, moves.map(Box::new), false))
    }

    /// `connected`: it is a twin.
    fn over(made: Made, moves: Option<Box<Moves>>, connected: bool) -> Self {
        let (gso, sources) = (AtomicBool::new(made.gso), made.local.ip().is_unspecified().then(Sources::new));
        let (troubled, full, counts, twin) = Default::default();
        Self(Arc::new(Shared { made, moves, gso, sources, troubled, full, counts, connected, twin }))
    }

    /// Opens a [twin](Self::twin) for the traffic with this peer, in place of the former one.
    ///
    /// # Errors
    /// The socket is bound to all addresses of the machine or is a twin, or the system refuses.
    pub fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        let shared = &*self.0;
        if shared.sources.is_some() || shared.connected || peer.is_ipv4() != shared.made.local.is_ipv4() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let twin = match shared.twin.get() {
            Some(twin) => twin,
            None => {
                // Allow it only for this moment: two sockets share an address only if both allow it, and no other socket should
                // get this one.
                shared.made.socket.set_reuse_address(true)?;
                let made = socket::make(shared.made.local, &shared.made.options, true);
                shared.made.socket.set_reuse_address(false)?;
                let made = made?;
                made.socket.set_reuse_address(false)?;
                let moves = shared.moves.as_ref().map(|_| Moves::new()).transpose().map_err(io::Error::other)?;
                // Until the twin is connected, datagrams of others arrive there as well. So a twin that cannot be connected must
                // not stay.
                made.socket.connect(&peer.into())?;
                shared.twin.get_or_init(|| Self::over(made, moves.map(Box::new), true));
                return Ok(());
            }
        };
        twin.0.made.socket.connect(&peer.into())
    }

    /// A second socket with the same address, connected to one peer. Sending there is cheaper, because the kernel looks up the
    /// route only once. That peer's datagrams arrive there, so a receiver must look at both sockets. A park waits for both.
    pub fn twin(&self) -> Option<&Direct> {
        self.0.twin.get()
    }

    /// This socket and its twin.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Direct> {
        std::iter::once(self).chain(self.twin())
    }

    /// The address that it is bound to.
    pub fn local(&self) -> SocketAddr {
        self.0.made.local
    }

    /// The address of this machine to which a peer wrote; if it wrote none, the one that the socket is bound to. `None`: the socket is
    /// bound to all, and the peer has not written lately.
    pub fn local_towards(&self, peer: SocketAddr) -> Option<IpAddr> {
        match &self.0.sources {
            Some(sources) => sources.find(peer),
            None => Some(self.local().ip()),
        }
    }

    /// The size of the receive buffer as the kernel counts it: including its overhead, which for small datagrams is most of it.
    pub fn receive_buffer(&self) -> usize {
        self.0.made.socket.recv_buffer_size().unwrap_or(0)
    }

    /// Takes up to `budget` arrived runs and passes each to `each` in place. Returns their number, zero if the socket was empty.
    /// Does not wait. Any thread may call it with its own buffers.
    ///
    /// After a look that emptied the socket, the next run is taken alone. Asking for a second one would double the cost of a
    /// lone datagram, whose sender waits for a reply. The look after that goes on until the budget is used up or the socket is
    /// empty.
    ///
    /// # Errors
    /// Errors of the socket itself, which do not happen while it is open. The fate of an outgoing datagram is not one: see
    /// [`trouble`](Self::trouble).
    pub fn receive<F: FnMut(Run<'_>) + ?Sized>(&self, room: &mut Room, budget: usize, each: &mut F) -> io::Result<usize> {
        self.receive_by(None, room, budget, each)
    }

    /// Like [`receive`](Self::receive). `peer`: it is a twin that was found empty after it was connected to `peer`. Then every
    /// waiting datagram comes from `peer`, and the kernel is not asked.
    #[inline]
    pub(crate) fn receive_by<F: FnMut(Run<'_>) + ?Sized>(
        &self,
        peer: Option<SocketAddr>,
        room: &mut Room,
        budget: usize,
        each: &mut F,
    ) -> io::Result<usize> {
        let budget = if room.more { budget } else { budget.min(1) };
        let mut delivered = 0;
        let mut errors = 0;
        while delivered < budget {
            let (count, end) = self.take(peer, room, budget - delivered, each);
            delivered += count;
            match end {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if errors < STRANGERS_ERRORS && TroubleKind::of(&error).is_some() => {
                    errors += 1;
                    self.0.troubled.store(true, Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        room.more = delivered > 0 && delivered == budget;
        Ok(delivered)
    }

    /// Takes one run, or up to `most` if there may be several. Returns their number, and why there were no more.
    #[inline]
    fn take<F: FnMut(Run<'_>) + ?Sized>(
        &self,
        peer: Option<SocketAddr>,
        room: &mut Room,
        most: usize,
        each: &mut F,
    ) -> (usize, io::Result<()>) {
        let (peer, place) = (peer.filter(|_| self.is_bare()), &mut *room.place);
        if let Some(moves) = &self.0.moves {
            let look = Look { peer, is_series: room.more && most >= SERIES };
            let deliver = &mut |arrival, bytes: &mut [u8]| self.deliver(arrival, bytes, each);
            if let Some(Moved { count, end, enters }) = moves.receive(self.as_fd(), look, place, deliver) {
                self.0.counts.received.enters.add(if count > 0 { enters } else { 0 });
                return (count, end);
            }
        }
        let got = match peer {
            Some(peer) => calls::receive_connected(&self.0.made.socket, place, peer),
            None if self.is_bare() => calls::receive_bare(&self.0.made.socket, place),
            None => calls::receive(&self.0.made.socket, place),
        };
        match got {
            Ok(arrival) => {
                self.0.counts.received.calls.add(1);
                let bytes = &mut place.payload[..arrival.bytes];
                self.deliver(arrival, bytes, each);
                (1, Ok(()))
            }
            Err(error) => (0, Err(error)),
        }
    }

    /// The budget of a look that takes what one call brings: one run, or a series.
    pub fn at_once(&self) -> usize {
        if self.0.moves.is_some() { SERIES } else { 1 }
    }

    /// Whether datagrams move by io_uring.
    pub(super) fn by_ring(&self) -> bool {
        self.0.moves.is_some()
    }

    /// Whether the kernel reports nothing about a datagram but its sender.
    fn is_bare(&self) -> bool {
        !self.0.made.gro && self.0.sources.is_none()
    }

    /// Counts a run and hands it over.
    fn deliver<F: FnMut(Run<'_>) + ?Sized>(&self, arrival: Arrival, bytes: &mut [u8], each: &mut F) {
        let counts = &self.0.counts.received;
        // Nobody can use one that is longer than any can be, or without an Internet address.
        let Some(peer) = arrival.peer.filter(|_| !arrival.truncated) else { return };
        let segment = arrival.remarks.segment.filter(|segment| *segment > 0).unwrap_or(bytes.len());
        counts.datagrams.add(datagrams(bytes.len(), segment) as u64);
        counts.bytes.add(bytes.len() as u64);
        if let (Some(sources), Some(local)) = (&self.0.sources, arrival.remarks.local) {
            sources.note(peer, local);
        }
        each(Run { peer, bytes, segment });
    }

    /// Sends a run. Does not wait. Any thread.
    ///
    /// A run of up to 64 datagrams and 65 507 bytes is sent whole or not at all. A longer one goes in several parts, and by io_uring
    /// several of them go in one call.
    pub fn send(&self, run: &Run<'_>) -> Sent {
        let (len, segment) = (run.bytes.len(), run.segment.max(1));
        let mut gone = 0;
        loop {
            let most = if self.gso(segment) { SEGMENTS_MOST.min(RUN_BYTES_MOST / segment).max(1) } else { 1 };
            let rest = &run.bytes[gone * segment..];
            let is_cut = most > 1 && rest.len() > segment;
            let (parts, end) = if rest.len() <= most * segment {
                self.send_parts(&[(self.label(run, rest.len()), &[IoSlice::new(rest)])], segment)
            } else {
                self.send_series(run, rest, most * segment)
            };
            gone += parts * most;
            match end {
                Ok(()) if gone * segment >= len => return Sent::Sent,
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::EIO) && is_cut => {
                    // The interface cannot cut runs and has no helper that can. The loop goes on with single datagrams.
                    if self.0.gso.swap(false, Relaxed) {
                        tracing::warn!(peer = %run.peer, "an interface cannot cut runs into datagrams (UDP_SEGMENT); each takes a call now");
                    }
                }
                Err(error) => return self.judge(run, gone, is_cut, &error),
            }
        }
    }

    /// Sends as many parts of a run as go in one call on a ring.
    fn send_series(&self, run: &Run<'_>, rest: &[u8], part: usize) -> (usize, io::Result<()>) {
        let mut pieces = [[IoSlice::new(&[])]; BATCH];
        let count = pieces.iter_mut().zip(rest.chunks(part)).map(|(piece, part)| *piece = [IoSlice::new(part)]).count();
        // Those beyond the count stay unused.
        let messages: [Message<'_>; BATCH] = std::array::from_fn(|at| (self.label(run, pieces[at][0].len()), &pieces[at][..]));
        self.send_parts(&messages[..count], run.segment)
    }

    /// Sends one datagram of at most 65 507 bytes that lies in three pieces. Does not wait. Any thread.
    pub fn send_pieces(&self, peer: SocketAddr, pieces: [&[u8]; 3]) -> Sent {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let run = Run { peer, bytes: &mut [], segment: len };
        match self.send_parts(&[(self.label(&run, len), &pieces.map(IoSlice::new))], len).1 {
            Ok(()) => Sent::Sent,
            Err(error) => self.judge(&run, 0, false, &error),
        }
    }

    /// The fate of an earlier outgoing datagram, if a router or the receiver reported it. The report is unauthenticated: a hint,
    /// and never a proof. Does not wait, and makes no system call as long as there is no report. Any thread.
    pub fn trouble(&self) -> Option<Trouble> {
        if let Some(trouble) = self.twin().and_then(Self::trouble) {
            return Some(trouble);
        }
        if !self.0.troubled.load(Relaxed) {
            return None;
        }
        self.0.troubled.store(false, Relaxed);
        for _ in 0..STRANGERS_ERRORS {
            let (peer, report) = match calls::receive_report(&self.0.made.socket) {
                Ok(found) => found,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                // Any call reports errors of earlier datagrams, even this one.
                Err(_) => continue,
            };
            let (Some(peer), Some(report)) = (peer, report) else { continue };
            let kind = TroubleKind::of_errno(report.errno);
            let kind = match kind {
                Some(TroubleKind::TooLong { .. }) => TroubleKind::TooLong { mtu: Some(report.mtu).filter(|mtu| *mtu > 0) },
                // The call that sent it has reported that already.
                _ if report.local => continue,
                Some(kind) => kind,
                None => TroubleKind::Other { errno: report.errno },
            };
            self.0.troubled.store(true, Relaxed);
            return Some(Trouble { peer, kind });
        }
        self.0.troubled.store(true, Relaxed);
        None
    }

    /// Whether the error queue is known to hold a report.
    pub(super) fn has_trouble(&self) -> bool {
        self.sockets().any(|direct| direct.0.troubled.load(Relaxed))
    }

    /// Whether the last send found no room.
    pub(super) fn is_full(&self) -> bool {
        self.0.full.load(Relaxed)
    }

    /// The events that a park waits for on this socket. `only` says whether it is the only one.
    pub(super) fn events(&self, writable: bool, only: bool) -> i16 {
        if writable && (only || self.is_full()) { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN }
    }

    /// Records what `poll(2)` reported about the socket.
    pub(super) fn polled(&self, events: i16, woken: &mut Woken) {
        if events & libc::POLLERR != 0 {
            self.0.troubled.store(true, Relaxed);
        }
        woken.datagram |= events & (libc::POLLIN | libc::POLLERR) != 0;
        woken.writable |= events & libc::POLLOUT != 0;
    }

    /// The counts since the port was opened.
    pub fn statistics(&self) -> Statistics {
        let mut sum = Statistics::default();
        for direct in self.sockets() {
            direct.0.counts.received.add_to(&mut sum.received);
            direct.0.counts.sent.add_to(&mut sum.sent);
            // Kernels before 4.12 do not report this.
            sum.overflowed += calls::overflowed(direct.as_fd()).map_or(0, u64::from);
        }
        sum
    }

    fn gso(&self, segment: usize) -> bool {
        self.0.gso.load(Relaxed) && segment <= usize::from(u16::MAX)
    }

    fn label(&self, run: &Run<'_>, len: usize) -> Label {
        let segment = (len > run.segment).then_some(run.segment as u16);
        let source = self.0.sources.as_ref().and_then(|sources| sources.find(run.peer));
        Label::new((!self.0.connected).then_some(run.peer), segment, source, self.0.made.local.is_ipv6())
    }

    /// Sends messages of datagrams of `segment` bytes until one fails, and returns how many were sent. It never reports as sent what
    /// was not sent.
    #[inline]
    fn send_parts(&self, messages: &[Message<'_>], segment: usize) -> (usize, io::Result<()>) {
        let (mut sent, mut tries) = (0, 0);
        while sent < messages.len() {
            let (count, end) = self.send_some(&messages[sent..]);
            for (_, pieces) in &messages[sent..sent + count] {
                let len = pieces.iter().map(|piece| piece.len()).sum();
                self.0.counts.sent.datagrams.add(datagrams(len, segment) as u64);
                self.0.counts.sent.bytes.add(len as u64);
            }
            if count > 0 {
                (sent, tries) = (sent + count, 0);
                if self.is_full() {
                    self.0.full.store(false, Relaxed);
                }
            }
            match end {
                Ok(()) => {}
                // The kernel reports the error of an earlier datagram, perhaps to another peer, once to the next call. So a third
                // error in a row concerns this datagram.
                Err(error) if tries < 2 && TroubleKind::of(&error).is_some() => {
                    self.0.troubled.store(true, Relaxed);
                    tries += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (sent, Err(error)),
            }
        }
        (sent, Ok(()))
    }

    /// Sends the first message, or as many as go in one call on the ring.
    #[inline]
    fn send_some(&self, messages: &[Message<'_>]) -> (usize, io::Result<()>) {
        let counts = &self.0.counts.sent;
        if let Some(moves) = &self.0.moves
            && let Some(Moved { count, end, enters }) = moves.send(self.as_fd(), messages)
        {
            counts.enters.add(if count > 0 { enters } else { 0 });
            return (count, end);
        }
        let [(label, pieces), ..] = messages else { return (0, Ok(())) };
        match calls::send(&self.0.made.socket, label, pieces) {
            Ok(()) => {
                counts.calls.add(1);
                (1, Ok(()))
            }
            Err(error) => (0, Err(error)),
        }
    }

    #[cold]
    fn judge(&self, run: &Run<'_>, gone: usize, cut: bool, error: &io::Error) -> Sent {
        let errno = error.raw_os_error().unwrap_or_default();
        if matches!(errno, libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) {
            self.0.full.store(true, Relaxed);
            return Sent::Full { gone };
        }
        let kind = match TroubleKind::of_errno(errno) {
            Some(kind) => kind,
            // This is what older kernels report for datagrams that exceed the interface's MTU and would have to be cut from a
            // run.
            None if cut && errno == libc::EINVAL => TroubleKind::TooLong { mtu: None },
            None => TroubleKind::Other { errno },
        };
        Sent::Failed { gone, trouble: Trouble { peer: run.peer, kind } }
    }
}

fn datagrams(len: usize, segment: usize) -> usize {
    len.div_ceil(segment.max(1)).max(1)
}
