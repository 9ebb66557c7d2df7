//! Moves datagrams between the kernel and memory. Knows no protocol.
//!
//! A port is one bound socket or several, with two ends. [`Direct`] is the end for every thread: its calls never wait. The
//! [`Port`] is the end for the waiting thread, which waits in one place for a datagram, the doorbell word and the clock. There
//! are two ways to wait:
//!
//! - **hot**: [`Direct::receive`] polls the socket. Each look is a system call, and a datagram arrives by the shortest path.
//! - **cold**: [`Port::park`] sleeps. Any thread may park, one at a time. Datagrams stay in the socket until they are received.
//!   Nothing stays armed, so a datagram that is received by polling later wakes no thread.
//!
//! [`Uring`] waits by io_uring. [`Plain`] waits by `ppoll(2)` and a second thread where io_uring is forbidden or too old.
//! Datagrams move by plain socket calls, or by requests of io_uring that never wait. [`open`] chooses by the [`Kind`]. Either way they
//! move in [`Run`](crate::Run)s, which the kernel cuts (GSO) and gathers (GRO).

mod bell;
mod calls;
mod direct;
mod moves;
mod notation;
mod plain;
mod prompt;
mod ring;
mod shelf;
#[cfg(feature = "sim")]
mod sim;
mod socket;
mod sources;
mod uring;

pub use direct::{Direct, Room};
pub use plain::Plain;
#[cfg(feature = "sim")]
pub use sim::relay;
pub use socket::{OpenError, is_loopback_only};
pub use uring::{Uring, UringError};

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::str::FromStr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// The end of a port at which a thread waits: any thread, one after another.
pub trait Port: Send {
    /// The other end of each socket, in the order of the addresses, for any thread.
    fn links(&self) -> &[Direct];

    /// The other end of the first socket.
    fn direct(&self) -> &Direct {
        &self.links()[0]
    }

    /// The kind of the port, for people.
    fn kind(&self) -> Kind;

    /// Sleeps until something happens, and returns what happened. Arrived datagrams must still be [received](Direct::receive); as
    /// long as one waits in the socket, a park ends at once.
    ///
    /// # Errors
    /// Errors of the ring or of the system. The port must then be closed.
    fn park(&mut self, park: Park<'_>) -> io::Result<Woken>;

    /// The descriptor that [`watch`](Self::watch) makes readable. It is the same for the port's whole life. For event loops.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Like [`park`](Self::park), for an event loop of this or another thread. From now on the [descriptor](Self::descriptor)
    /// becomes readable when something happens, and sometimes for no reason. Returns false if something has happened already. The
    /// event loop handles the timeout.
    ///
    /// # Errors
    /// The same as for `park`.
    fn watch(&mut self, park: Park<'_>) -> io::Result<bool>;

    /// Ends a watch if there is one. Call it before the next watch or park.
    ///
    /// # Errors
    /// The same as for `park`.
    fn unwatch(&mut self) -> io::Result<()>;
}

/// The events that a parked thread waits for beside datagrams.
#[derive(Clone, Copy, Debug)]
pub struct Park<'a> {
    /// The doorbell word, which may be shared with other processes. A thread that changes it wakes its sleepers by `futex(2)`.
    pub bell: &'a AtomicU32,
    /// The word's value as long as nothing rang. If it differs, the park ends at once.
    pub expected: u32,
    /// The longest duration of the park.
    pub timeout: Duration,
    /// Whether the park also ends when there is room for outgoing datagrams, after [`Sent::Full`]. With several sockets, those
    /// count that had no room at their last send.
    pub writable: bool,
}

/// The reasons why a park ended. Several may be true; none is true if it ended early for no reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Woken {
    /// A datagram arrived, or there is [`trouble`](Direct::trouble), which ends every park until it is fetched.
    pub datagram: bool,
    /// The doorbell word changed.
    pub bell: bool,
    /// There may be room to send.
    pub writable: bool,
    /// The timeout passed.
    pub timeout: bool,
}

/// The result of sending a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Sent {
    /// The kernel has the whole run.
    Sent,
    /// There is no room now. The caller keeps the run, except for the first `gone` datagrams.
    Full {
        /// The number of datagrams that the kernel has.
        gone: usize,
    },
    /// The run cannot go there, except for the first `gone` datagrams. The port itself is fine.
    Failed {
        /// The number of datagrams that the kernel has.
        gone: usize,
        /// The reason.
        trouble: Trouble,
    },
}

/// A problem on the way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("datagrams to {peer}: {kind}")]
pub struct Trouble {
    /// The destination of the datagram.
    pub peer: SocketAddr,
    /// The problem.
    pub kind: TroubleKind,
}

/// The kind of a problem on the way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TroubleKind {
    /// No process has the port there.
    #[error("no process has this port there")]
    Refused,
    /// A datagram is too long. Shorter ones may get through.
    #[error("too long{}", .mtu.map_or_else(String::new, |mtu| format!("; packets of {mtu} bytes fit")))]
    TooLong {
        /// The longest packet that fits, including the headers of IP and UDP, if it was reported.
        mtu: Option<u32>,
    },
    /// There is no route.
    #[error("no way there")]
    Unreachable,
    /// The system forbids it, by a firewall or because it is a broadcast.
    #[error("forbidden by this system")]
    Forbidden,
    /// Another error.
    #[error("{}", io::Error::from_raw_os_error(*.errno))]
    Other {
        /// The system's error number.
        errno: i32,
    },
}

impl TroubleKind {
    fn of(error: &io::Error) -> Option<Self> {
        error.raw_os_error().and_then(Self::of_errno)
    }

    /// `None` if the error does not concern a destination.
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

/// The traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Calls of the socket that moved datagrams.
    pub calls: u64,
    /// Calls of the ring that moved datagrams.
    pub enters: u64,
    /// Datagrams.
    pub datagrams: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

/// The counts of a port. They may be slightly low if several threads called [`Direct`] at the same instant, because counting
/// takes no lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Received traffic.
    pub received: Traffic,
    /// Sent traffic.
    pub sent: Traffic,
    /// Datagrams that arrived but found the receive buffer full, or had a wrong checksum. They were lost here and not on the way.
    /// Zero before Linux 4.12, which does not report it.
    pub overflowed: u64,
}

/// The way in which a port moves datagrams and waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kind {
    /// The way that is best as far as is known: like [`Calls`](Self::Calls).
    #[default]
    Auto,
    /// Datagrams move by io_uring, and the port waits by it.
    Uring,
    /// Datagrams move by plain socket calls. The port waits by io_uring, or else like [`Plain`](Self::Plain).
    Calls,
    /// Nothing uses io_uring: datagrams move by plain socket calls, and the port waits by `ppoll(2)` and a second thread that sleeps on
    /// the doorbell.
    Plain,
}

impl Kind {
    /// The kind of port that this one means on this machine. Calls move datagrams unless io_uring is asked for: they are faster where
    /// messages go back and forth, and nowhere slower by more than noise. A port without io_uring is plain.
    pub fn here(self) -> Self {
        match self {
            Self::Auto | Self::Calls if Uring::check().is_ok() => Self::Calls,
            Self::Auto | Self::Calls => Self::Plain,
            kind => kind,
        }
    }

    const WORDS: [(Kind, &str); 4] =
        [(Kind::Auto, "auto"), (Kind::Uring, "uring"), (Kind::Calls, "calls"), (Kind::Plain, "plain")];
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
        found.map(|(kind, _)| *kind).ok_or_else(|| format!("'{word}' is no kind of port: auto, uring, calls or plain"))
    }
}

/// The options of a port.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address to bind to. Port 0 means any free port. A wildcard means every address of the machine; `[::]` means those of
    /// both IP versions.
    pub address: SocketAddr,
    /// Further addresses, each with its own socket.
    pub further: Vec<SocketAddr>,
    /// The way in which the port moves datagrams and waits.
    pub kind: Kind,
    /// The requested receive buffer in bytes. The system grants less to processes without CAP_NET_ADMIN.
    pub receive_buffer: usize,
    /// The requested send buffer in bytes.
    pub send_buffer: usize,
    /// Whether the kernel cuts runs (GSO). Without it each datagram makes its own way through the kernel.
    pub cut: bool,
    /// Whether the kernel gathers runs (GRO). That costs each datagram some time, and does not help where all datagrams are
    /// large.
    pub gather: bool,
    /// How long each address is tried again while another socket has it; zero means once. The kernel may take seconds to release the
    /// address of a killed process, so the default is 5 s.
    pub bind_timeout: Duration,
}

impl Options {
    /// The default options.
    pub fn new(address: SocketAddr) -> Self {
        let (receive_buffer, send_buffer) = (16 << 20, 4 << 20);
        let (kind, further, bind_timeout) = (Kind::Auto, Vec::new(), socket::TEARDOWN);
        Self { address, further, kind, receive_buffer, send_buffer, cut: true, gather: true, bind_timeout }
    }
}

/// A port without a socket, for waiting on the doorbell alone. Uses io_uring if it is available.
///
/// # Errors
/// Errors of the system, mostly that the limit of descriptors or threads is reached.
pub fn bell_only(kind: Kind) -> io::Result<Box<dyn Port>> {
    if kind != Kind::Plain {
        match Uring::new(Vec::new()) {
            Ok(port) => return Ok(Box::new(port)),
            Err(reason) => tracing::debug!("{reason}; a second thread passes doorbells on to event loops instead"),
        }
    }
    Ok(Box::new(Plain::new(Vec::new())?))
}

/// Opens a port. Logs one warning if io_uring was tried and is not available.
///
/// # Errors
/// An address cannot be used, or io_uring was required and is not available.
pub fn open(options: &Options) -> Result<Box<dyn Port>, OpenError> {
    let addresses = std::iter::once(&options.address).chain(&options.further);
    let by_ring = options.kind == Kind::Uring;
    let links = addresses
        .map(|address| Ok(Direct::new(socket::make(*address, options, false)?, by_ring)?))
        .collect::<Result<Vec<_>, OpenError>>()?;
    if options.kind != Kind::Plain {
        match Uring::new(links.clone()) {
            Ok(port) => return Ok(Box::new(port)),
            Err(reason) if by_ring => return Err(reason.into()),
            Err(reason) => tracing::warn!(
                address = %links[0].local(),
                "{reason}; the UDP port waits by plain calls instead: everything works, but a second thread passes doorbells on to the poller"
            ),
        }
    }
    Ok(Box::new(Plain::new(links).map_err(|source| OpenError::System {
        attempt: "prepare to wait",
        address: options.address,
        source,
    })?))
}
