//! A bad network for real sockets: a relay between two addresses that loses, doubles, reorders, damages, delays and throttles.
//!
//! Each of the two talks to the relay as if it were the other. What happens to the n-th datagram of a direction follows from the seed
//! alone; when it happens, as with any real network, does not.

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

/// Datagrams under way at most, whatever the delay.
const WAITING_MOST: usize = 1 << 15;

/// How bad the network is in one direction. Probabilities are between 0 and 1, each for itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Badness {
    /// How many are lost.
    pub loss: f64,
    /// How many come twice.
    pub duplication: f64,
    /// How many are held back by [`held_back`](Self::held_back), so that later ones overtake them.
    pub reordering: f64,
    /// How many have one bit turned over.
    pub corruption: f64,
    /// How long a datagram is on its way.
    pub delay: Duration,
    /// How much longer, for those that are held back.
    pub held_back: Duration,
    /// Bytes a second, or 0 for as many as there are.
    pub bandwidth: u64,
    /// Bytes that wait for their turn if the bandwidth is less than what is sent; more are lost.
    pub queue: usize,
}

impl Badness {
    /// As good as the machine allows.
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

/// What a relay did in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Datagrams that came in.
    pub arrived: u64,
    /// Datagrams that went on, doubled ones twice.
    pub passed: u64,
    /// Those that chance took.
    pub lost: u64,
    /// Those for which the queue was full, or the kernel.
    pub dropped: u64,
    /// Those that came twice.
    pub duplicated: u64,
    /// Those that were held back.
    pub reordered: u64,
    /// Those that were damaged.
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

/// A relay at work, with a thread of its own. It ends when this is dropped.
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
    /// Begins to relay between two addresses. `badness` is that from the first to the second, and back.
    ///
    /// The first says [`front`](Self::front)`(0)` for the second, the second says `front(1)` for the first. If only the first knows
    /// where to begin, `first` may be None: it is then whoever writes to `front(0)`.
    ///
    /// # Errors
    /// There are no sockets to be had.
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
            // As much as is allowed: what is lost here unasked falsifies the numbers.
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

    /// Where the first (0) or the second (1) of the two reaches the other.
    pub fn front(&self, end: usize) -> SocketAddr {
        self.fronts[end]
    }

    /// What was done with datagrams from the first to the second, and back.
    pub fn relayed(&self) -> [Relayed; 2] {
        [self.shared.counts[0].read(), self.shared.counts[1].read()]
    }

    /// From now on nothing gets through, or things are as before.
    pub fn black_hole(&self, swallow: bool) {
        self.shared.black_hole.store(swallow, Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}

/// Chance, from a seed: splitmix64.
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
    /// When the last byte that waits for the bandwidth is through.
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

// A heap gives the greatest first: here, the one that is due first.
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
    /// What each of the two talks to.
    sockets: [UdpSocket; 2],
    ends: [Option<SocketAddr>; 2],
    ways: [Way; 2],
    waiting: BinaryHeap<Waiting>,
    order: u64,
    /// Memory of datagrams that went on.
    free: Vec<Vec<u8>>,
    shared: Arc<Shared>,
}

impl Worker {
    fn run(&mut self) {
        let mut room = vec![0; 1 << 16];
        while !self.shared.stop.load(Relaxed) {
            let mut idle = true;
            for way in 0..2 {
                // A number of each, so that neither direction waits for the other, nor those that are due.
                for _ in 0..32 {
                    // Errors are those of datagrams that went out, to an end that is not there.
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

    /// Something came in on one side.
    fn take(&mut self, way: usize, bytes: &[u8], from: SocketAddr) {
        let counts = &self.shared.counts[way];
        counts.arrived.fetch_add(1, Relaxed);
        if way == 0 && self.ends[0].is_none() {
            self.ends[0] = Some(from);
        }
        let Way { badness, chance, through } = &mut self.ways[way];
        // All dice are thrown for each datagram, so that what happens to one does not depend on what happened to another.
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

    /// Something is due on the other side.
    fn pass(&mut self, waiting: Waiting) {
        let Waiting { way, bytes, .. } = waiting;
        let counts = &self.shared.counts[way];
        let (socket, end) = (&self.sockets[1 - way], self.ends[1 - way]);
        let sent = end.is_some_and(|end| {
            // The first error may be that of another datagram.
            socket.send_to(&bytes, end).or_else(|_| socket.send_to(&bytes, end)).is_ok()
        });
        if sent { &counts.passed } else { &counts.dropped }.fetch_add(1, Relaxed);
        if self.free.len() < 1024 {
            self.free.push(bytes);
        }
    }

    /// Until something comes in or is due, and 50 ms at most, so that the end is noticed.
    fn sleep(&self) {
        let most = Duration::from_millis(50);
        let time = self.waiting.peek().map_or(most, |waiting| waiting.due.saturating_duration_since(Instant::now()).min(most));
        let mut polled = self
            .sockets
            .each_ref()
            .map(|socket| rustix::event::PollFd::from_borrowed_fd(socket.as_fd(), rustix::event::PollFlags::IN));
        // Woken early, one looks again.
        let _ = rustix::event::poll(&mut polled, rustix::event::Timespec::try_from(time).ok().as_ref());
    }
}
