//! Direct calls on the socket: by any thread, none of which waits.

#![forbid(unsafe_code)]

use super::calls::{self, Arrival, BATCH, Label, Place};
use super::socket::{self, Made};
use super::sources::Sources;
use super::{Options, Sent, Statistics, Traffic, Trouble, TroubleKind, Woken};
use crate::Run;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Datagrams that older kernels cut from one run.
const SEGMENTS_MOST: usize = 64;
/// Bytes of a run, as an IPv4 packet holds them.
const RUN_BYTES_MOST: usize = 65_507;
/// Errors of other datagrams that a call gets over before it gives up.
const STRANGERS_ERRORS: usize = 32;

/// The socket of a port, for any thread. Clones are the same socket; it closes with the last of them and the port.
#[derive(Clone)]
pub struct Direct(Arc<Shared>);

struct Shared {
    socket: socket2::Socket,
    local: SocketAddr,
    receive_buffer: usize,
    send_buffer: usize,
    /// Whether the kernel cuts runs. Becomes false if an interface turns out to be unable to.
    gso: AtomicBool,
    gro: bool,
    /// Whether it is a socket of IPv6.
    mapped: bool,
    /// Which address was asked by whom, if the socket has all addresses.
    sources: Option<Sources>,
    /// Whether there may be something in the socket's queue of errors.
    troubled: AtomicBool,
    /// There was no room when something was to be sent last.
    full: AtomicBool,
    counts: Counts,
    /// As it was opened.
    options: Options,
    /// Whether it is a twin, which sends to one peer alone.
    connected: bool,
    twin: OnceLock<Direct>,
}

/// No locked instruction: what threads count at the same instant may be counted once.
#[derive(Default)]
struct Counter(AtomicU64);

impl Counter {
    fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(more), Relaxed);
    }
}

#[derive(Default)]
struct Counts {
    received: [Counter; 3],
    sent: [Counter; 3],
    full: Counter,
    failed: Counter,
    unusable: Counter,
}

/// Where runs arrive. Whoever receives has one of its own.
pub struct Room {
    places: Box<[Place]>,
    /// Whether the last look found something and ended before the socket was empty.
    more: bool,
}

impl Room {
    /// Room for so many runs in one call: 1 to 16, of 68 KiB each, which cost memory as they are used.
    pub fn new(runs: usize) -> Self {
        Self { places: calls::places(runs.clamp(1, BATCH)), more: false }
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Room({})", self.places.len())
    }
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct").field("local", &self.0.local).finish_non_exhaustive()
    }
}

impl AsFd for Direct {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
    }
}

impl Direct {
    pub(super) fn new(made: Made) -> Self {
        Self::made(made, false)
    }

    fn made(made: Made, connected: bool) -> Self {
        let Made { socket, local, receive_buffer, send_buffer, gso, gro, options } = made;
        let sources = local.ip().is_unspecified().then(Sources::new);
        let (gso, mapped) = (AtomicBool::new(gso), local.is_ipv6());
        let (troubled, full, counts) = (AtomicBool::new(false), AtomicBool::new(false), Counts::default());
        let twin = OnceLock::new();
        Self(Arc::new(Shared {
            socket,
            local,
            receive_buffer,
            send_buffer,
            gso,
            gro,
            mapped,
            sources,
            troubled,
            full,
            counts,
            options,
            connected,
            twin,
        }))
    }

    /// Has a [twin](Self::twin) for what goes to and comes from this peer, in place of the one before.
    ///
    /// # Errors
    /// The socket has all addresses of the machine, or is a twin; or the system can't.
    pub fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        let shared = &*self.0;
        if shared.sources.is_some() || shared.connected || peer.is_ipv4() != shared.local.is_ipv4() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let twin = match shared.twin.get() {
            Some(twin) => twin,
            None => {
                // For this moment only: to share an address takes both, and nobody else is to have this one.
                shared.socket.set_reuse_address(true)?;
                let made = socket::make(shared.local, &shared.options, true);
                shared.socket.set_reuse_address(false)?;
                let made = made?;
                made.socket.set_reuse_address(false)?;
                // Until then what comes from others arrives there as well; so one that can't be connected must not stay.
                made.socket.connect(&peer.into())?;
                shared.twin.get_or_init(|| Self::made(made, true));
                return Ok(());
            }
        };
        twin.0.socket.connect(&peer.into())
    }

    /// A second socket of the same address, for one peer. Sending there is cheaper, as the kernel looks for the way once; what that peer sends
    /// arrives there, so whoever receives has to look at both. A park waits for both.
    pub fn twin(&self) -> Option<&Direct> {
        self.0.twin.get()
    }

    /// This socket, and its twin.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Direct> {
        std::iter::once(self).chain(self.twin())
    }

    /// The address it is bound to.
    pub fn local(&self) -> SocketAddr {
        self.0.local
    }

    /// Bytes that wait in the socket at most, as the kernel counts them: with its overhead, which for small datagrams is most of it.
    pub fn receive_buffer(&self) -> usize {
        self.0.receive_buffer
    }

    /// Bytes on their way out at most, as the kernel counts them.
    pub fn send_buffer(&self) -> usize {
        self.0.send_buffer
    }

    /// Whether the kernel cuts runs into datagrams, and whether it gathers datagrams into runs.
    pub fn offloads(&self) -> (bool, bool) {
        (self.0.gso.load(Relaxed), self.0.gro)
    }

    /// Takes what has arrived: up to `budget` runs, each given to `each` in place. Says how many there were; none if the socket was empty.
    /// Does not wait. Any thread, with a room of its own.
    ///
    /// A run after a look that emptied the socket is handed over by itself, in one call: to ask whether there is a second one would cost a
    /// lone datagram, whose sender waits for an answer, as much again. The look after that takes further runs several in a call, until the
    /// budget is used up or the socket is empty.
    ///
    /// # Errors
    /// Those of the socket itself, which does not happen as long as it is open. What became of a datagram that went out is not one: see
    /// [`trouble`](Self::trouble).
    pub fn receive<F: FnMut(Run<'_>) + ?Sized>(&self, room: &mut Room, budget: usize, each: &mut F) -> io::Result<usize> {
        self.receive_by(None, room, budget, each)
    }

    /// The same for a twin that was found empty since it was connected to `peer`: so that is who sent what waits there, and the kernel is not asked.
    pub(crate) fn receive_from<F: FnMut(Run<'_>) + ?Sized>(
        &self,
        peer: SocketAddr,
        room: &mut Room,
        budget: usize,
        each: &mut F,
    ) -> io::Result<usize> {
        self.receive_by(Some(peer), room, budget, each)
    }

    #[inline]
    fn receive_by<F: FnMut(Run<'_>) + ?Sized>(
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
            let most = (budget - delivered).min(room.places.len());
            let got = if delivered == 0 || most == 1 {
                let place = &mut room.places[0];
                let got = match peer {
                    Some(peer) if self.is_bare() => calls::receive_connected(self.as_fd(), place, peer),
                    _ if self.is_bare() => calls::receive_bare(self.as_fd(), place),
                    _ => calls::receive(self.as_fd(), place),
                };
                got.map(|arrival| {
                    self.0.counts.received[0].add(1);
                    self.deliver(&mut room.places[0], arrival, each);
                    (1, 1)
                })
            } else {
                let mut arrivals = [None; BATCH];
                calls::receive_many(self.as_fd(), &mut room.places[..most], &mut arrivals).map(|count| {
                    self.0.counts.received[0].add(1);
                    for (place, arrival) in room.places.iter_mut().zip(arrivals.into_iter().flatten()) {
                        self.deliver(place, arrival, each);
                    }
                    (count, most)
                })
            };
            match got {
                Ok((count, asked)) => {
                    delivered += count;
                    if count < asked {
                        break;
                    }
                }
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

    /// Whether the kernel has nothing to say of a datagram but who sent it.
    fn is_bare(&self) -> bool {
        !self.0.gro && self.0.sources.is_none()
    }

    /// Counts a run and hands it over.
    fn deliver<F: FnMut(Run<'_>) + ?Sized>(&self, place: &mut Place, arrival: Arrival, each: &mut F) {
        let counts = &self.0.counts;
        let Some(peer) = arrival.peer.filter(|_| !arrival.truncated) else {
            counts.unusable.add(1);
            return;
        };
        let bytes = &mut place.payload[..arrival.bytes];
        let segment = arrival.remarks.segment.filter(|segment| *segment > 0).unwrap_or(bytes.len());
        counts.received[1].add(datagrams(bytes.len(), segment) as u64);
        counts.received[2].add(bytes.len() as u64);
        if let (Some(sources), Some(local)) = (&self.0.sources, arrival.remarks.local) {
            sources.note(peer, local);
        }
        each(Run { peer, bytes, segment });
    }

    /// Sends a run. Does not wait. Any thread.
    ///
    /// A run of up to 64 datagrams and 65 507 bytes takes one call, and goes whole or not at all; a longer one takes several.
    pub fn send(&self, run: &Run<'_>) -> Sent {
        let (len, segment) = (run.bytes.len(), run.segment.max(1));
        let mut gone = 0;
        loop {
            let most = if self.gso(segment) { SEGMENTS_MOST.min(RUN_BYTES_MOST / segment).max(1) } else { 1 };
            let part = &run.bytes[gone * segment..len.min((gone + most) * segment)];
            match self.send_part(run, part) {
                Ok(()) if (gone + most) * segment >= len => return Sent::Sent,
                Ok(()) => gone += most,
                Err(error) if error.raw_os_error() == Some(libc::EIO) && part.len() > segment => {
                    // The interface cannot cut and has nobody who can. The loop goes on with datagrams one by one.
                    if self.0.gso.swap(false, Relaxed) {
                        tracing::warn!(peer = %run.peer, "an interface cannot cut runs into datagrams (UDP_SEGMENT); each takes a call now");
                    }
                }
                Err(error) => return self.judge(run, gone, part.len() > segment, &error),
            }
        }
    }

    /// Sends one datagram of at most 65 507 bytes that lies in three pieces. Does not wait. Any thread.
    pub fn send_pieces(&self, peer: SocketAddr, pieces: [&[u8]; 3]) -> Sent {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let run = Run { peer, bytes: &mut [], segment: len };
        let label = self.label(&run, len);
        match self.send_call(len, len, || calls::send_pieces(self.as_fd(), &label, pieces)) {
            Ok(()) => Sent::Sent,
            Err(error) => self.judge(&run, 0, false, &error),
        }
    }

    /// Sends runs, several in a call, and says of each what became of it. Ends with the first that found no room: it and those behind it
    /// remain the caller's. Does not wait. Any thread.
    pub fn send_all<F: FnMut(usize, Sent) + ?Sized>(&self, runs: &[Run<'_>], told: &mut F) {
        let mut next = 0;
        while next < runs.len() {
            let together = runs[next..].iter().take(BATCH).take_while(|run| self.is_one_send(run)).count();
            let batch = &runs[next..next + together];
            let many = || calls::send_many(self.as_fd(), batch, |run| self.label(run, run.bytes.len()));
            // Of an error the call says nothing but that it was the first run's, or another datagram's: that one by itself, then.
            let count = if together < 2 { 0 } else { many().unwrap_or(0) };
            if count == 0 {
                let sent = self.send(&runs[next]);
                let full = matches!(sent, Sent::Full { .. });
                told(next, sent);
                if full {
                    return;
                }
                next += 1;
                continue;
            }
            self.0.counts.sent[0].add(1);
            for run in &batch[..count] {
                self.sent(run.bytes.len(), run.segment);
                told(next, Sent::Sent);
                next += 1;
            }
        }
    }

    /// What became of a datagram that went out earlier, if somebody on its way or at its end said so. Unauthenticated: a hint, and never a
    /// proof. Does not wait, and makes no system call as long as there is nothing. Any thread.
    pub fn trouble(&self) -> Option<Trouble> {
        if let Some(trouble) = self.twin().and_then(Self::trouble) {
            return Some(trouble);
        }
        if !self.0.troubled.load(Relaxed) {
            return None;
        }
        self.0.troubled.store(false, Relaxed);
        for _ in 0..STRANGERS_ERRORS {
            let (peer, report) = match calls::receive_report(self.as_fd()) {
                Ok(found) => found,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                // Errors of datagrams are reported by any call, even by this one.
                Err(_) => continue,
            };
            let (Some(peer), Some(report)) = (peer, report) else { continue };
            let kind = TroubleKind::of_errno(report.errno);
            let kind = match kind {
                Some(TroubleKind::TooLong { .. }) => TroubleKind::TooLong { mtu: Some(report.mtu).filter(|mtu| *mtu > 0) },
                // Told by the call that sent it.
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

    /// Whether something is known to be in the queue of errors.
    pub(super) fn has_trouble(&self) -> bool {
        self.sockets().any(|direct| direct.0.troubled.load(Relaxed))
    }

    /// Whether there was no room when something was to be sent last.
    pub(super) fn is_full(&self) -> bool {
        self.0.full.load(Relaxed)
    }

    /// What a park waits for on this socket, which is one of several or the `only` one.
    pub(super) fn events(&self, writable: bool, only: bool) -> i16 {
        if writable && (only || self.is_full()) { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN }
    }

    /// Notes what `poll(2)` said of the socket.
    pub(super) fn polled(&self, events: i16, woken: &mut Woken) {
        if events & libc::POLLERR != 0 {
            self.0.troubled.store(true, Relaxed);
        }
        woken.datagram |= events & (libc::POLLIN | libc::POLLERR) != 0;
        woken.writable |= events & libc::POLLOUT != 0;
    }

    /// What was counted since the port was opened.
    pub fn statistics(&self) -> Statistics {
        let own = self.own_statistics();
        self.twin().map_or(own, |twin| own.and(&twin.own_statistics()))
    }

    fn own_statistics(&self) -> Statistics {
        let read = |counter: &Counter| counter.0.load(Relaxed);
        let traffic = |[calls, datagrams, bytes]: &[Counter; 3]| Traffic {
            calls: read(calls),
            datagrams: read(datagrams),
            bytes: read(bytes),
        };
        let counts = &self.0.counts;
        Statistics {
            received: traffic(&counts.received),
            sent: traffic(&counts.sent),
            // Kernels before 4.12 do not say.
            overflowed: calls::overflowed(self.as_fd()).map_or(0, u64::from),
            full: read(&counts.full),
            failed: read(&counts.failed),
            unusable: read(&counts.unusable),
        }
    }

    fn gso(&self, segment: usize) -> bool {
        self.0.gso.load(Relaxed) && segment <= usize::from(u16::MAX)
    }

    fn is_one_call(&self, len: usize, segment: usize) -> bool {
        len <= RUN_BYTES_MOST && len.div_ceil(segment) <= SEGMENTS_MOST
    }

    fn is_one_send(&self, run: &Run<'_>) -> bool {
        let (len, segment) = (run.bytes.len(), run.segment.max(1));
        len <= segment || (self.gso(segment) && self.is_one_call(len, segment))
    }

    fn label(&self, run: &Run<'_>, len: usize) -> Label {
        let segment = (len > run.segment).then_some(run.segment as u16);
        if self.0.connected {
            return Label::connected(segment);
        }
        let source = self.0.sources.as_ref().and_then(|sources| sources.find(run.peer));
        Label::new(run.peer, segment, source, self.0.mapped)
    }

    fn sent(&self, len: usize, segment: usize) {
        self.0.counts.sent[1].add(datagrams(len, segment) as u64);
        self.0.counts.sent[2].add(len as u64);
    }

    /// One call. Nothing is said to have gone that did not.
    fn send_part(&self, run: &Run<'_>, part: &[u8]) -> io::Result<()> {
        let label = self.label(run, part.len());
        self.send_call(part.len(), run.segment, || calls::send(self.as_fd(), &label, part))
    }

    fn send_call(&self, len: usize, segment: usize, call: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let mut tries = 0;
        loop {
            match call() {
                Ok(()) => {
                    self.0.counts.sent[0].add(1);
                    self.sent(len, segment);
                    if self.is_full() {
                        self.0.full.store(false, Relaxed);
                    }
                    return Ok(());
                }
                // What an earlier datagram met with, be it to somebody else, is handed to whoever calls next, and once. So whatever is
                // said a third time is about this one.
                Err(error) if tries < 2 && TroubleKind::of(&error).is_some() => {
                    self.0.troubled.store(true, Relaxed);
                    tries += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    #[cold]
    fn judge(&self, run: &Run<'_>, gone: usize, cut: bool, error: &io::Error) -> Sent {
        let errno = error.raw_os_error().unwrap_or_default();
        if matches!(errno, libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) {
            self.0.counts.full.add(1);
            self.0.full.store(true, Relaxed);
            return Sent::Full { gone };
        }
        self.0.counts.failed.add(1);
        let kind = match TroubleKind::of_errno(errno) {
            Some(kind) => kind,
            // What older kernels say of datagrams that are too long for the interface and would have to be cut from a run.
            None if cut && errno == libc::EINVAL => TroubleKind::TooLong { mtu: None },
            None => TroubleKind::Other { errno },
        };
        Sent::Failed { gone, trouble: Trouble { peer: run.peer, kind } }
    }
}

fn datagrams(len: usize, segment: usize) -> usize {
    len.div_ceil(segment.max(1)).max(1)
}
