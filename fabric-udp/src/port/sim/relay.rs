//! A bad network for real sockets: a relay between two addresses that loses, duplicates, reorders, corrupts, delays and
//! throttles.
//!
//! Each of the two ends talks to the relay as if it were the other end. The seed alone decides what happens to the n-th datagram
//! of a direction. When it happens depends on the machine, as with any real network.

#![forbid(unsafe_code)]

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The most datagrams under way, whatever the delay.
const WAITING_MOST: usize = 1 << 15;

/// The faults of the network in one direction. Probabilities are between 0 and 1 and independent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Badness {
    /// The probability that a datagram is lost.
    pub loss: f64,
    /// The probability that a datagram arrives twice.
    pub duplication: f64,
    /// The probability that a datagram is held back by [`held_back`](Self::held_back), so that later ones overtake it.
    pub reordering: f64,
    /// The probability that one bit of a datagram flips.
    pub corruption: f64,
    /// The delay of a datagram.
    pub delay: Duration,
    /// The additional delay of a datagram that is held back.
    pub held_back: Duration,
    /// Bytes a second, or 0 for no limit.
    pub bandwidth: u64,
    /// Bytes that may wait if more is sent than the bandwidth allows; the excess is lost.
    pub queue: usize,
}

impl Badness {
    /// A network without faults.
    pub const NONE: Self = Self {
        loss: 0.0,
        duplication: 0.0,
        reordering: 0.0,
        corruption: 0.0,
        delay: Duration::ZERO,
        held_back: Duration::from_millis(2),
        bandwidth: 0,
        queue: 1 << 20,
    };
}

/// The counts of a relay in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Datagrams that came in.
    pub arrived: u64,
    /// Datagrams that went on, duplicates included.
    pub passed: u64,
    /// Datagrams lost by chance.
    pub lost: u64,
    /// Datagrams for which the queue or the kernel had no room.
    pub dropped: u64,
    /// Duplicated datagrams.
    pub duplicated: u64,
    /// Datagrams that were held back.
    pub reordered: u64,
    /// Corrupted datagrams.
    pub corrupted: u64,
}

#[derive(Default)]
struct Counts {
    arrived: AtomicU64,
    passed: AtomicU64,
    lost: AtomicU64,
    dropped: AtomicU64,
    duplicated: AtomicU64,
    reordered: AtomicU64,
    corrupted: AtomicU64,
}

impl Counts {
    fn read(&self) -> Relayed {
        Relayed {
            arrived: self.arrived.load(Relaxed),
            passed: self.passed.load(Relaxed),
            lost: self.lost.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            duplicated: self.duplicated.load(Relaxed),
            reordered: self.reordered.load(Relaxed),
            corrupted: self.corrupted.load(Relaxed),
        }
    }
}

/// A running relay with its own thread. It ends when this is dropped.
#[derive(Debug)]
pub struct Relay {
    fronts: [SocketAddr; 2],
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// While true, nothing gets through.
    black_hole: AtomicBool,
    counts: [Counts; 2],
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.counts.iter().map(Counts::read)).finish()
    }
}

impl Relay {
    /// Starts a relay between two addresses. `badness` holds that from the first to the second, and back.
    ///
    /// The first end uses [`front`](Self::front)`(0)` in place of the second, and the second uses `front(1)` in place of the
    /// first. If only the first end begins, `first` may be `None`: then the first sender to `front(0)` becomes the first end.
    ///
    /// # Errors
    /// There are no sockets available.
    pub fn start(first: Option<SocketAddr>, second: SocketAddr, badness: [Badness; 2], seed: u64) -> io::Result<Self> {
        let bind = || -> io::Result<UdpSocket> {
            let unspecified: SocketAddr = match second.ip().is_loopback() {
                true if second.is_ipv6() => "[::1]:0".parse().map_err(io::Error::other)?,
                true => (Ipv4Addr::LOCALHOST, 0).into(),
                false if second.is_ipv6() => "[::]:0".parse().map_err(io::Error::other)?,
                false => (Ipv4Addr::UNSPECIFIED, 0).into(),
            };
            let socket = UdpSocket::bind(unspecified)?;
            socket.set_nonblocking(true)?;
            let socket = socket2::Socket::from(socket);
            // Take as much as the system allows: losses in this buffer would falsify the counts.
            let _ = socket.set_recv_buffer_size(4 << 20);
            Ok(socket.into())
        };
        let sockets = [bind()?, bind()?];
        let fronts = [sockets[0].local_addr()?, sockets[1].local_addr()?];
        let shared = Arc::new(Shared::default());
        let mut worker = Worker {
            sockets,
            ends: [first, Some(second)],
            ways: [Way::new(badness[0], seed), Way::new(badness[1], seed ^ 0x9e37_79b9_7f4a_7c15)],
            waiting: BinaryHeap::new(),
            order: 0,
            free: Vec::new(),
            shared: shared.clone(),
        };
        let thread = std::thread::Builder::new().name("doorbell-relay".into()).spawn(move || worker.run())?;
        Ok(Self { fronts, shared, thread: Some(thread) })
    }

    /// The address at which end 0 or end 1 reaches the other.
    pub fn front(&self, end: usize) -> SocketAddr {
        self.fronts[end]
    }

    /// The counts from the first end to the second, and back.
    pub fn relayed(&self) -> [Relayed; 2] {
        [self.shared.counts[0].read(), self.shared.counts[1].read()]
    }

    /// Starts or stops swallowing every datagram.
    pub fn black_hole(&self, swallow: bool) {
        self.shared.black_hole.store(swallow, Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has been printed already.
            let _ = thread.join();
        }
    }
}

/// Random decisions from a seed: splitmix64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn happens(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }
}

struct Way {
    badness: Badness,
    chance: Chance,
    /// The time at which the bandwidth has let the last waiting byte through.
    through: Instant,
}

impl Way {
    fn new(badness: Badness, seed: u64) -> Self {
        Self { badness, chance: Chance(seed), through: Instant::now() }
    }
}

struct Waiting {
    due: Instant,
    order: u64,
    way: usize,
    bytes: Vec<u8>,
}

// A heap yields the greatest element first. Here that is the datagram that is due first.
impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.order).cmp(&(self.due, self.order))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}

struct Worker {
    /// The sockets that the two ends talk to.
    sockets: [UdpSocket; 2],
    ends: [Option<SocketAddr>; 2],
    ways: [Way; 2],
    waiting: BinaryHeap<Waiting>,
    order: u64,
    /// Memory of forwarded datagrams, for reuse.
    free: Vec<Vec<u8>>,
    shared: Arc<Shared>,
}

impl Worker {
    fn run(&mut self) {
        let mut room = vec![0; 1 << 16];
        while !self.shared.stop.load(Relaxed) {
            let mut idle = true;
            for way in 0..2 {
                // Take several from each direction, so that neither direction waits for the other, nor do datagrams that are due.
                for _ in 0..32 {
                    // An error concerns an outgoing datagram to an end that is not there.
                    let Ok((bytes, from)) = self.sockets[way].recv_from(&mut room) else { break };
                    idle = false;
                    self.take(way, &room[..bytes], from);
                }
            }
            let now = Instant::now();
            while self.waiting.peek().is_some_and(|waiting| waiting.due <= now) {
                if let Some(waiting) = self.waiting.pop() {
                    idle = false;
                    self.pass(waiting);
                }
            }
            if idle {
                self.sleep();
            }
        }
    }

    /// Handles a datagram that came in on one side.
    fn take(&mut self, way: usize, bytes: &[u8], from: SocketAddr) {
        let counts = &self.shared.counts[way];
        counts.arrived.fetch_add(1, Relaxed);
        if way == 0 && self.ends[0].is_none() {
            self.ends[0] = Some(from);
        }
        let Way { badness, chance, through } = &mut self.ways[way];
        // Roll all dice for each datagram, so that the fate of one does not depend on the fate of another.
        let [loss, duplication, reordering, corruption] =
            [badness.loss, badness.duplication, badness.reordering, badness.corruption].map(|p| chance.happens(p));
        let bit = chance.next();
        if loss || self.shared.black_hole.load(Relaxed) {
            counts.lost.fetch_add(1, Relaxed);
            return;
        }
        let now = Instant::now();
        let mut due = now;
        if self.waiting.len() >= WAITING_MOST {
            counts.dropped.fetch_add(1, Relaxed);
            return;
        }
        if badness.bandwidth > 0 {
            let time = |bytes: usize| Duration::from_secs_f64(bytes as f64 / badness.bandwidth as f64);
            if through.saturating_duration_since(now) > time(badness.queue) {
                counts.dropped.fetch_add(1, Relaxed);
                return;
            }
            *through = (*through).max(now) + time(bytes.len());
            due = *through;
        }
        due += badness.delay;
        if reordering {
            counts.reordered.fetch_add(1, Relaxed);
            due += badness.held_back;
        }
        let mut copy = self.free.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        if corruption && !copy.is_empty() {
            counts.corrupted.fetch_add(1, Relaxed);
            let at = bit as usize % (copy.len() * 8);
            copy[at / 8] ^= 1 << (at % 8);
        }
        if duplication {
            counts.duplicated.fetch_add(1, Relaxed);
            self.order += 1;
            let again = Waiting { due: due + Duration::from_micros(100), order: self.order, way, bytes: copy.clone() };
            self.waiting.push(again);
        }
        self.order += 1;
        self.waiting.push(Waiting { due, order: self.order, way, bytes: copy });
    }

    /// Forwards a datagram that is due on the other side.
    fn pass(&mut self, waiting: Waiting) {
        let Waiting { way, bytes, .. } = waiting;
        let counts = &self.shared.counts[way];
        let (socket, end) = (&self.sockets[1 - way], self.ends[1 - way]);
        let sent = end.is_some_and(|end| {
            // The first error may concern another datagram.
            socket.send_to(&bytes, end).or_else(|_| socket.send_to(&bytes, end)).is_ok()
        });
        if sent { &counts.passed } else { &counts.dropped }.fetch_add(1, Relaxed);
        if self.free.len() < 1024 {
            self.free.push(bytes);
        }
    }

    /// Sleeps until a datagram comes in or is due, for 50 ms at most so that it notices the end.
    fn sleep(&self) {
        let most = Duration::from_millis(50);
        let time = self.waiting.peek().map_or(most, |waiting| waiting.due.saturating_duration_since(Instant::now()).min(most));
        let mut polled = self
            .sockets
            .each_ref()
            .map(|socket| rustix::event::PollFd::from_borrowed_fd(socket.as_fd(), rustix::event::PollFlags::IN));
        // After an early wake-up the caller looks again.
        let _ = rustix::event::poll(&mut polled, rustix::event::Timespec::try_from(time).ok().as_ref());
    }
}
