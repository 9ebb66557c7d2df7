//! Datagrams between the kernel and memory. Knows no protocol.
//!
//! A port is a bound socket, or several, with two ends. [`Direct`] is the end for every thread: calls that never wait. The [`Port`] is the end of
//! whoever waits, in one place for everything: a datagram, the doorbell word, and the clock. There are two gears:
//!
//! - **hot**: [`Direct::receive`] asks the socket. A system call a look, and the shortest way for a datagram.
//! - **cold**: [`Port::park`] sleeps. Any thread may, one at a time. Datagrams stay in the socket, for the hot gear to take, and nothing
//!   stays armed: what is taken in the hot gear later wakes nobody.
//!
//! [`Uring`] waits by io_uring, and [`Plain`] by `ppoll(2)` and a second thread where io_uring is forbidden or too old; [`open`] chooses. Datagrams
//! go by plain calls of the socket with both, in [`Run`]s: the kernel cuts (GSO) and gathers (GRO) them.

mod bell;
mod calls;
mod direct;
mod notation;
mod plain;
pub mod relay;
mod ring;
mod socket;
mod sources;
mod uring;

pub use direct::{Direct, Room};
pub use plain::Plain;
pub use socket::{OpenError, is_loopback_only};
pub use uring::{Uring, UringError};

use crate::Run;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::str::FromStr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Runs that a port takes from the socket in one call.
const RUNS: usize = 8;

/// The end of a socket at which a thread waits: any thread, and now this one, now that one.
pub trait Port: Send {
    /// The other end of each socket, in the order of the addresses: for any thread.
    fn links(&self) -> &[Direct];

    /// The other end of the first.
    fn direct(&self) -> &Direct {
        &self.links()[0]
    }

    /// What it is, for people.
    fn kind(&self) -> Kind;

    /// As [`Direct::receive`] of each socket in turn, with a room of the port's own.
    ///
    /// # Errors
    /// As there.
    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(Run<'_>)) -> io::Result<usize>;

    /// Sleeps until something happens, and says what did. What arrived is still to be [received](Direct::receive); as long as something
    /// waits in the socket, parks end at once.
    ///
    /// # Errors
    /// Those of the ring, or of the system: the port is to be closed.
    fn park(&mut self, park: Park<'_>) -> io::Result<Woken>;

    /// What [`watch`](Self::watch) makes readable: the same as long as the port is there. For event loops.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// As [`park`](Self::park), but who waits is an event loop, of this or another thread: from now on the [descriptor](Self::descriptor) becomes
    /// readable when something happens, and sometimes for no reason. False if something has happened already. The time is up to the event loop.
    ///
    /// # Errors
    /// As of `park`.
    fn watch(&mut self, park: Park<'_>) -> io::Result<bool>;

    /// Ends a watch, if there is one; before the next, or a park.
    ///
    /// # Errors
    /// As of `park`.
    fn unwatch(&mut self) -> io::Result<()>;
}

/// What a parked thread waits for, beside datagrams.
#[derive(Clone, Copy, Debug)]
pub struct Park<'a> {
    /// The doorbell word, which may be shared with other processes. Whoever changes it wakes its sleepers by `futex(2)`.
    pub bell: &'a AtomicU32,
    /// What it says as long as nobody rang; if it says something else the park ends at once.
    pub expected: u32,
    /// The longest it lasts.
    pub timeout: Duration,
    /// Whether it also ends when there is room for datagrams on their way out, after [`Sent::Full`]; if there are several sockets, on those
    /// that had none when they were asked last.
    pub writable: bool,
}

/// What ended a park. Several may be true; none, if it ended early for no reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Woken {
    /// Something arrived, or there is [`trouble`](Direct::trouble), which ends parks until it is asked for.
    pub datagram: bool,
    /// The doorbell word changed.
    pub bell: bool,
    /// There may be room for what is to be sent.
    pub writable: bool,
    /// The time was over.
    pub timeout: bool,
}

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Sent {
    /// The kernel has all of it.
    Sent,
    /// There is no room just now. The caller keeps it, but for so many datagrams at its beginning.
    Full {
        /// Datagrams that the kernel has.
        gone: usize,
    },
    /// It cannot go there, but for so many datagrams at its beginning. The port is as well as ever.
    Failed {
        /// Datagrams that the kernel has.
        gone: usize,
        /// Why.
        trouble: Trouble,
    },
}

/// Something is wrong on the way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("datagrams to {peer}: {kind}")]
pub struct Trouble {
    /// Where the datagram was to go.
    pub peer: SocketAddr,
    /// What is wrong.
    pub kind: TroubleKind,
}

/// What is wrong on the way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TroubleKind {
    /// Nobody has the port there.
    Refused,
    /// A datagram does not fit. It may go in smaller ones.
    TooLong {
        /// Bytes of the longest packet that fits, with the headers of IP and UDP, if it was said.
        mtu: Option<u32>,
    },
    /// There is no way there.
    Unreachable,
    /// The system forbids it: a firewall, or broadcasting.
    Forbidden,
    /// Something else.
    Other {
        /// The number of the system's error.
        errno: i32,
    },
}

impl TroubleKind {
    fn of(error: &io::Error) -> Option<Self> {
        error.raw_os_error().and_then(Self::of_errno)
    }

    /// None if it is not about a destination.
    fn of_errno(errno: i32) -> Option<Self> {
        Some(match errno {
            libc::ECONNREFUSED => Self::Refused,
            libc::EMSGSIZE => Self::TooLong { mtu: None },
            libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN | libc::ENETDOWN | libc::ENONET | libc::EADDRNOTAVAIL => {
                Self::Unreachable
            }
            libc::EPERM | libc::EACCES => Self::Forbidden,
            libc::EPROTO | libc::ENOPROTOOPT | libc::EOPNOTSUPP => Self::Other { errno },
            _ => return None,
        })
    }
}

impl fmt::Display for TroubleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("nobody has this port there"),
            Self::TooLong { mtu: Some(mtu) } => write!(f, "too long; packets of {mtu} bytes fit"),
            Self::TooLong { mtu: None } => f.write_str("too long"),
            Self::Unreachable => f.write_str("no way there"),
            Self::Forbidden => f.write_str("forbidden by this system"),
            Self::Other { errno } => write!(f, "{}", io::Error::from_raw_os_error(*errno)),
        }
    }
}

/// What went in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// System calls that moved something.
    pub calls: u64,
    /// Datagrams.
    pub datagrams: u64,
    /// Bytes of their payload.
    pub bytes: u64,
}

/// What a port counted. A little less than there was if several threads called [`Direct`] at the same instant: nothing is locked to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// What was received.
    pub received: Traffic,
    /// What was sent.
    pub sent: Traffic,
    /// Datagrams that arrived and found the receive buffer full, or had a wrong checksum: lost here, and not on the way. Zero before Linux 4.12, which does not say.
    pub overflowed: u64,
    /// Times that there was no room to send.
    pub full: u64,
    /// Runs that could not be sent.
    pub failed: u64,
    /// Datagrams that were thrown away for being longer than any can be, or from no address.
    pub unusable: u64,
}

impl Traffic {
    fn and(self, other: Self) -> Self {
        Self { calls: self.calls + other.calls, datagrams: self.datagrams + other.datagrams, bytes: self.bytes + other.bytes }
    }
}

impl Statistics {
    /// What two sockets counted.
    fn and(self, other: &Self) -> Self {
        Self {
            received: self.received.and(other.received),
            sent: self.sent.and(other.sent),
            overflowed: self.overflowed + other.overflowed,
            full: self.full + other.full,
            failed: self.failed + other.failed,
            unusable: self.unusable + other.unusable,
        }
    }
}

/// How a port waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kind {
    /// By io_uring, else as [`Plain`](Self::Plain).
    #[default]
    Auto,
    /// By io_uring. Datagrams go by plain calls of the socket.
    Uring,
    /// By `ppoll(2)` and a second thread that sleeps on the doorbell. Datagrams go as with the other.
    Plain,
}

impl Kind {
    const WORDS: [(Kind, &str); 3] = [(Kind::Auto, "auto"), (Kind::Uring, "io_uring"), (Kind::Plain, "plain")];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::WORDS.iter().find(|(kind, _)| kind == self).map_or("", |(_, word)| word);
        f.pad(word)
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let found = Self::WORDS.iter().find(|(_, known)| *known == word);
        found.map(|(kind, _)| *kind).ok_or_else(|| format!("'{word}' is no kind of port: auto, io_uring or plain"))
    }
}

/// How to open a port.
#[derive(Clone, Debug)]
pub struct Options {
    /// What to bind to. Port 0 is any that is free; a wildcard is every address of the machine, `[::]` those of both IP versions.
    pub address: SocketAddr,
    /// Further addresses, each with a socket of its own.
    pub further: Vec<SocketAddr>,
    /// How it waits.
    pub kind: Kind,
    /// Bytes that may wait in the socket: what is asked of the system, which grants less to processes without CAP_NET_ADMIN.
    pub receive_buffer: usize,
    /// Bytes that may be on their way out of the socket.
    pub send_buffer: usize,
    /// Whether the kernel cuts runs (GSO). Without, each datagram takes its own way through the kernel.
    pub cut: bool,
    /// Whether it gathers runs (GRO). That costs each datagram some time, and is of no use where all are large.
    pub gather: bool,
}

impl Options {
    /// The usual ones.
    pub fn new(address: SocketAddr) -> Self {
        let (receive_buffer, send_buffer) = (16 << 20, 4 << 20);
        Self { address, further: Vec::new(), kind: Kind::Auto, receive_buffer, send_buffer, cut: true, gather: true }
    }
}

/// Receives from each socket in turn.
fn receive_all(links: &[Direct], room: &mut Room, budget: usize, each: &mut dyn FnMut(Run<'_>)) -> io::Result<usize> {
    let mut received = 0;
    for direct in links.iter().flat_map(Direct::sockets) {
        received += direct.receive(room, budget - received, each)?;
    }
    Ok(received)
}

/// A port without a socket, at which one waits for the doorbell alone: by io_uring if that can be had.
///
/// # Errors
/// Those of the system, mostly that there are as many descriptors or threads as may.
pub fn bell_only(kind: Kind) -> io::Result<Box<dyn Port>> {
    if kind != Kind::Plain {
        match Uring::new(Vec::new()) {
            Ok(port) => return Ok(Box::new(port)),
            Err(reason) => tracing::debug!("{reason}; a doorbell wakes an event loop by way of a second thread instead"),
        }
    }
    Ok(Box::new(Plain::new(Vec::new())?))
}

/// Opens a port. Says once, as a warning, if io_uring was tried and could not be had.
///
/// # Errors
/// An address cannot be had, or io_uring was insisted on.
pub fn open(options: &Options) -> Result<Box<dyn Port>, OpenError> {
    let addresses = std::iter::once(&options.address).chain(&options.further);
    let links =
        addresses.map(|address| socket::make(*address, options, false).map(Direct::new)).collect::<Result<Vec<_>, _>>()?;
    if options.kind != Kind::Plain {
        match Uring::new(links.clone()) {
            Ok(port) => return Ok(Box::new(port)),
            Err(reason) if options.kind == Kind::Uring => return Err(reason.into()),
            Err(reason) => tracing::warn!(
                address = %links[0].local(),
                "{reason}; the UDP port uses plain socket calls instead: all works, but a doorbell wakes the poller by way of a second thread"
            ),
        }
    }
    Ok(Box::new(Plain::new(links).map_err(|source| OpenError::System {
        attempt: "prepare to wait",
        address: options.address,
        source,
    })?))
}
