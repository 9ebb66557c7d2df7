//! Creates the socket.

#![forbid(unsafe_code)]

use super::Options;
use super::calls::set_option;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another socket has the address.
    #[error("the UDP address {address} is in use by another socket; take another port, or port 0 for any that is free")]
    AddressInUse {
        /// The requested address.
        address: SocketAddr,
    },
    /// The machine has no such address.
    #[error("{address} is not an address of this machine; take one that `ip addr` lists, or the wildcard 0.0.0.0 or [::]")]
    AddressNotAvailable {
        /// The requested address.
        address: SocketAddr,
    },
    /// The system forbids the address to this process.
    #[error("not permitted to bind the UDP address {address}; ports below 1024 need CAP_NET_BIND_SERVICE, so take a higher one")]
    NotPermitted {
        /// The requested address.
        address: SocketAddr,
    },
    /// The system does not have the protocol.
    #[error("this system has no sockets for {address}: {source}; take an address of the other IP version")]
    NoSuchProtocol {
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// io_uring was required and is not available.
    #[error("io_uring was requested but is not usable: {0}; do not require it to use plain socket calls instead")]
    Uring(#[from] super::UringError),
    /// Another error.
    #[error("could not {attempt} for the UDP address {address}: {source}")]
    System {
        /// The operation.
        attempt: &'static str,
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::AddressInUse { .. } => io::ErrorKind::AddrInUse,
            OpenError::AddressNotAvailable { .. } => io::ErrorKind::AddrNotAvailable,
            OpenError::NotPermitted { .. } => io::ErrorKind::PermissionDenied,
            OpenError::NoSuchProtocol { .. } | OpenError::Uring(_) => io::ErrorKind::Unsupported,
            OpenError::System { source, .. } => source.kind(),
        };
        io::Error::new(kind, error)
    }
}

/// Whether only this machine can reach a socket that is bound to the address.
pub fn is_loopback_only(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// A socket with what the kernel granted.
#[derive(Debug)]
pub struct Made {
    pub socket: Socket,
    pub local: SocketAddr,
    /// Whether the kernel cuts runs into datagrams, and whether it gathers them.
    pub gso: bool,
    pub gro: bool,
    /// The requested options.
    pub options: Options,
}

/// How long the kernel may take to release the address of a killed process. It dismantles the process's ring later, which took
/// more than two seconds on machines with few processors.
pub const TEARDOWN: Duration = Duration::from_secs(5);

fn bind(socket: &Socket, address: SocketAddr, timeout: Duration) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match socket.bind(&address.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) && began.elapsed() < timeout => {
                std::thread::sleep(Duration::from_millis(2));
            }
            bound => return bound,
        }
    }
}

/// A bound socket with all its options. `shares`: another socket that allows it may have the same address.
pub fn make(address: SocketAddr, options: &Options, shares: bool) -> Result<Made, OpenError> {
    let failed = |attempt| move |source| OpenError::System { attempt, address, source };
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP)).map_err(
        |source| match source.raw_os_error() {
            Some(libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT) => OpenError::NoSuchProtocol { address, source },
            _ => OpenError::System { attempt: "make a socket", address, source },
        },
    )?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // One socket serves both IP versions.
        socket.set_only_v6(false).map_err(failed("accept both IP versions"))?;
    }
    grow(&socket, options);
    let set = |level, option, value| set_option(socket.as_fd(), level, option, value);
    let (any, six) = (address.ip().is_unspecified(), address.is_ipv6());
    // Datagrams must never be cut on their way, because their sender must know what fits. PROBE rather than DO: the protocol
    // finds the MTU itself, and a stranger's ICMP must not be believed.
    let whole = "forbid fragments";
    // Have errors of outgoing datagrams reported with their destination, and not to the next call of any thread.
    let reports = "ask for reports of undeliverable datagrams";
    let targets = "ask to which address datagrams were sent";
    let wanted = [
        (true, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE, whole),
        (six, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE, whole),
        (true, libc::IPPROTO_IP, libc::IP_RECVERR, 1, reports),
        (six, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1, reports),
        (any && six, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1, targets),
        (any && !six, libc::IPPROTO_IP, libc::IP_PKTINFO, 1, targets),
    ];
    for (_, level, option, value, attempt) in wanted.into_iter().filter(|(is_wanted, ..)| *is_wanted) {
        set(level, option, value).map_err(failed(attempt))?;
    }
    // Kernels before 4.18 and 5.0 can do neither, and everything works without.
    let gso = options.cut && set(libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
    let gro = options.gather && set(libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
    if shares {
        socket.set_reuse_address(true).map_err(failed("share the address"))?;
    }
    bind(&socket, address, if shares { Duration::ZERO } else { options.bind_timeout }).map_err(|source| {
        match source.raw_os_error() {
            Some(libc::EADDRINUSE) => OpenError::AddressInUse { address },
            Some(libc::EADDRNOTAVAIL) => OpenError::AddressNotAvailable { address },
            Some(libc::EACCES | libc::EPERM) => OpenError::NotPermitted { address },
            _ => OpenError::System { attempt: "bind the socket", address, source },
        }
    })?;
    let local = socket.local_addr().map_err(failed("ask for the address of the socket"))?;
    let local = local.as_socket().ok_or_else(|| failed("read the address of the socket")(io::ErrorKind::InvalidData.into()))?;
    Ok(Made { socket, local, gso, gro, options: options.clone() })
}

/// Requests larger buffers: beyond the system's limit where that is allowed, else up to it. The granted size is read later.
fn grow(socket: &Socket, options: &Options) {
    let size = |bytes: usize| i32::try_from(bytes).unwrap_or(i32::MAX / 2);
    let ask = |forced, plain, bytes| {
        let bytes = size(bytes);
        // A refusal is not an error: the granted size can be read.
        let _ = set_option(socket.as_fd(), libc::SOL_SOCKET, forced, bytes)
            .or_else(|_| set_option(socket.as_fd(), libc::SOL_SOCKET, plain, bytes));
    };
    ask(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, options.receive_buffer);
    ask(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, options.send_buffer);
}
