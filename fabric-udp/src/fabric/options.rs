//! A node's network options, and the errors they can cause.

use super::address::{Address, ParseAddressError};
use super::places::{Tried, told};
use crate::port::{Kind, OpenError, is_loopback_only};
use crate::protocol::{CloseReason, ConfigError, DomainKey, PROTOCOL_VERSION, Rejection};
use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The most addresses at which a node listens.
pub const LINKS_MAX: usize = 4;
/// The length of a domain key.
const KEY_BYTES: usize = 32;
/// The most bytes that are read of a key's file: digits, and blanks around them.
const KEY_FILE_MOST: u64 = 4096;

/// A node's network options.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// The addresses at which others find it, at most [`LINKS_MAX`], each with its own socket. A session moves to another one
    /// when one is cut off. Without an address the node takes any free port.
    pub listen: Vec<SocketAddr>,
    /// Nodes that must answer before the node has joined. The first one gives it an id if it has none, and tells it of the
    /// others.
    pub connect: Vec<SocketAddr>,
    /// Addresses at which other nodes may be, now or later. The node tries them now and then.
    pub seek: Vec<SocketAddr>,
    /// The domain's key. Without one only the loopback interface is allowed.
    pub key: Option<DomainKey>,
    /// The way in which the port moves datagrams and waits.
    pub port: Kind,
    /// A peer that does not answer for this long is dead. At least a millisecond.
    pub dead_after: Duration,
    /// The bytes of packets that a lane holds at each end, from 8 KiB to 1 GiB.
    pub lane_bytes: u32,
    /// Where both ends have several links, ask for as many sessions as the end with fewer links has, so that the sender can
    /// choose the link. Each unused session costs about one datagram a second.
    pub strands: bool,
}

impl Default for UdpOptions {
    fn default() -> Self {
        let (listen, connect, seek) = (Vec::new(), Vec::new(), Vec::new());
        let (port, dead_after) = (Kind::Auto, Duration::from_secs(1));
        Self { listen, connect, seek, key: None, port, dead_after, lane_bytes: 1 << 20, strands: true }
    }
}

impl UdpOptions {
    /// The first address to bind to.
    pub(super) fn address(&self) -> SocketAddr {
        let others = || self.connect.iter().chain(&self.seek);
        match self.listen.first() {
            Some(address) => *address,
            None => {
                let is_six = others().any(SocketAddr::is_ipv6);
                let is_here = others().all(|address| is_loopback_only(*address));
                let ip = match (is_here, is_six) {
                    (true, false) => Ipv4Addr::LOCALHOST.into(),
                    (true, true) => Ipv6Addr::LOCALHOST.into(),
                    (false, false) => Ipv4Addr::UNSPECIFIED.into(),
                    (false, true) => Ipv6Addr::UNSPECIFIED.into(),
                };
                SocketAddr::new(ip, 0)
            }
        }
    }
}

/// Why a node cannot take part in a network.
#[derive(Debug, thiserror::Error, strum::EnumDiscriminants)]
#[strum_discriminants(
    name(UdpErrorAnchor),
    vis(pub(self)),
    derive(strum::IntoStaticStr),
    strum(serialize_all = "kebab-case", prefix = "udp-")
)]
#[non_exhaustive]
pub enum UdpError {
    /// The port cannot be opened.
    ///
    /// See `errors.md#udp-port`.
    #[error(transparent)]
    Port(#[from] OpenError),
    /// An option is out of range.
    ///
    /// See `errors.md#udp-option`.
    #[error(transparent)]
    Option(#[from] ConfigError),
    /// A text is no address.
    ///
    /// See `errors.md#udp-address`.
    #[error(transparent)]
    Address(#[from] ParseAddressError),
    /// The system's resolver does not know the name of a host.
    ///
    /// See `errors.md#udp-name`.
    #[error("cannot find '{name}': {reason}; check the name with `getent hosts {name}`, or give an IP address")]
    Name {
        /// The name.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The node can listen at no address of a name.
    ///
    /// See `errors.md#udp-listen`.
    #[error("cannot listen at {place}: {}; give an address of this machine that `ip addr` lists, or the wildcard 0.0.0.0 or [::]", told(.tried))]
    Listen {
        /// The place.
        place: Address,
        /// Its addresses.
        tried: Vec<Tried>,
    },
    /// No node answers at any address of a name.
    ///
    /// See `errors.md#udp-none-answers`.
    #[error(
        "no node of the domain answers at {place} (asked for {waited:?}): {}; check that one listens there, and that UDP gets through",
        told(.tried)
    )]
    NoneAnswers {
        /// The place.
        place: Address,
        /// Its addresses.
        tried: Vec<Tried>,
        /// How long the node tried.
        waited: Duration,
    },
    /// Other machines could reach the address, and there is no key.
    ///
    /// See `errors.md#udp-no-key`.
    #[error(
        "{address} can be reached from other machines, and the domain has no key: give all its nodes the same key (a file of 32 random bytes, such as `head -c 32 /dev/urandom > grid.key` makes, by key_file, --key-file or DOORBELL_KEY_FILE), or use 127.0.0.1 or [::1]"
    )]
    NoKey {
        /// The address.
        address: SocketAddr,
    },
    /// No node answers at the address.
    ///
    /// See `errors.md#udp-no-answer`.
    #[error(
        "no node of the domain answers at {address} (asked for {waited:?}): check that one listens there, and that UDP gets through"
    )]
    NoAnswer {
        /// The address.
        address: SocketAddr,
        /// How long the node tried.
        waited: Duration,
    },
    /// The node there refuses this one.
    ///
    /// See `errors.md#udp-rejected`.
    #[error("the node at {address} refuses this one: {}", said(*.why))]
    Rejected {
        /// The address.
        address: SocketAddr,
        /// The reason.
        why: Rejection,
    },
    /// The session ended before it had begun.
    ///
    /// See `errors.md#udp-ended`.
    #[error("the session with the node at {address} ended at once: {reason:?}")]
    Ended {
        /// The address.
        address: SocketAddr,
        /// The reason.
        reason: CloseReason,
    },
    /// All ids are taken.
    ///
    /// See `errors.md#udp-no-room`.
    #[error("the node at {address} has no id left to give: the domain is full; make it for more nodes (max_nodes)")]
    NoRoom {
        /// The address.
        address: SocketAddr,
    },
    /// The key file cannot be used.
    ///
    /// See `errors.md#udp-key-file`.
    #[error("the key file {}: {reason}", .path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The system refused a call.
    ///
    /// See `errors.md#udp-system`.
    #[error("could not {attempt}: {source}")]
    System {
        /// The operation.
        attempt: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl UdpError {
    /// The place on the page `docs/errors.md` that explains the error: `"udp-no-key"` stands for `errors.md#udp-no-key`.
    pub fn anchor(&self) -> &'static str {
        UdpErrorAnchor::from(self).into()
    }
}

fn said(why: Rejection) -> String {
    match why {
        Rejection::Version { lowest, highest } => {
            format!(
                "it speaks versions {lowest} to {highest} of the protocol, and this one {PROTOCOL_VERSION}; use one release of Doorbell everywhere"
            )
        }
        Rejection::OtherDomain => "it belongs to another domain; check that both nodes name the same one".into(),
        Rejection::NeedsKey => {
            "its domain has a key, and this node was given none; give it the same (key_file, --key-file, DOORBELL_KEY_FILE)"
                .into()
        }
        Rejection::HasNoKey => "its domain has no key, and this node was given one; give both the same, or neither".into(),
        Rejection::WrongKey => "its domain has another key; give both the same".into(),
        Rejection::AlreadyConnected(node, _) => {
            format!("it already has a session with node {node} in the same incarnation; take another id")
        }
        Rejection::Stale => "it has met a later incarnation of this node; join again".into(),
        Rejection::SameNode => "it has the id that this node asked for; take another".into(),
        Rejection::Full => "it has no room for another session".into(),
        Rejection::NoFirst => "it has no first session with this node".into(),
    }
}

impl From<UdpError> for io::Error {
    fn from(error: UdpError) -> Self {
        match error {
            UdpError::Port(error) => error.into(),
            UdpError::System { source, .. } => source,
            UdpError::NoAnswer { .. } | UdpError::NoneAnswers { .. } => io::Error::new(io::ErrorKind::TimedOut, error),
            UdpError::Name { .. } => io::Error::new(io::ErrorKind::NotFound, error),
            UdpError::Listen { .. } => io::Error::new(io::ErrorKind::AddrNotAvailable, error),
            UdpError::Rejected { .. } => io::Error::new(io::ErrorKind::ConnectionRefused, error),
            UdpError::NoKey { .. } => io::Error::new(io::ErrorKind::PermissionDenied, error),
            _ => io::Error::new(io::ErrorKind::InvalidInput, error),
        }
    }
}

/// Reads a domain's key from a file: 32 bytes, or 64 hexadecimal digits. Only its owner may have access to the file.
///
/// # Errors
/// [`UdpError::KeyFile`].
pub fn read_key(path: &Path) -> Result<DomainKey, UdpError> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let wrong = |reason: String| UdpError::KeyFile { path: path.to_owned(), reason };
    let unreadable = |error: io::Error| wrong(format!("{error}; make one with `head -c 32 /dev/urandom > FILE; chmod 600 FILE`"));
    // Without it, opening a FIFO would wait for a writer.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(unreadable)?;
    let facts = file.metadata().map_err(unreadable)?;
    if !facts.is_file() {
        return Err(wrong("it is no regular file; name a file with 32 random bytes".into()));
    }
    let mode = facts.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(wrong(format!(
            "other users have access to it (mode {:03o}); run `chmod 600 {}`",
            mode & 0o777,
            path.display()
        )));
    }
    let mut bytes = Vec::new();
    file.take(KEY_FILE_MOST).read_to_end(&mut bytes).map_err(unreadable)?;
    if let Ok(key) = <[u8; KEY_BYTES]>::try_from(&bytes[..]) {
        return Ok(DomainKey(key));
    }
    let digits = bytes.trim_ascii();
    let key = std::str::from_utf8(digits).ok().filter(|text| text.len() == 2 * KEY_BYTES && text.is_ascii()).and_then(|text| {
        let pairs = (0..KEY_BYTES).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok());
        pairs.collect::<Option<Vec<_>>>()
    });
    match key.and_then(|key| key.try_into().ok()) {
        Some(key) => Ok(DomainKey(key)),
        None => Err(wrong(format!("it has {} bytes; a key is 32 bytes, or 64 hexadecimal digits", facts.len()))),
    }
}
