//! What a node says about its network, and what can be wrong with that.

use crate::port::{Kind, OpenError, is_loopback_only};
use crate::protocol::{CloseReason, ConfigError, DomainKey, PROTOCOL_VERSION, Rejection};
use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Addresses at which a node listens at most.
pub const LINKS_MAX: usize = 4;
/// Bytes of a domain key.
const KEY_BYTES: usize = 32;
/// What is read of a key's file at most: digits, and blanks around them.
const KEY_FILE_MOST: u64 = 4096;

/// How a node takes part in a network.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// Where others find it, at most [`LINKS_MAX`] addresses with a socket each: a conversation goes on by another of them when one is cut. Without one
    /// it has whatever port is free.
    pub listen: Vec<SocketAddr>,
    /// Nodes that have to answer before it has joined. The first gives it its id, if it has none, and tells it of the others.
    pub connect: Vec<SocketAddr>,
    /// Where other nodes may be, now or later: it looks there now and then.
    pub seek: Vec<SocketAddr>,
    /// The domain's key. Without one nothing but the loopback interface will do.
    pub key: Option<DomainKey>,
    /// How the port waits.
    pub port: Kind,
    /// A peer that does not answer for so long is dead: at least a millisecond.
    pub dead_after: Duration,
    /// Bytes of packets that a lane holds at each end, from 8 KiB to 1 GiB.
    pub lane_bytes: u32,
    /// Where both ends have several links, ask for as many sessions as the end with fewer has: whoever sends can choose the link. While they are not
    /// used they cost about a datagram a second each.
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
    /// Whether it takes part at all.
    pub fn is_used(&self) -> bool {
        !self.listen.is_empty() || !self.connect.is_empty() || !self.seek.is_empty()
    }

    /// What to bind to, first of all.
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

/// Why a node can't take part in a network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpError {
    /// The port can't be had.
    #[error(transparent)]
    Port(#[from] OpenError),
    /// An option is out of range.
    #[error(transparent)]
    Option(#[from] ConfigError),
    /// Others than this machine could reach it, and there is no key.
    #[error(
        "{address} can be reached from other machines, and the domain has no key: give all its nodes the same key (a file of 32 random bytes, such as `head -c 32 /dev/urandom > grid.key` makes, by key_file, --key-file or DOORBELL_KEY_FILE), or use 127.0.0.1 or [::1]"
    )]
    NoKey {
        /// The address.
        address: SocketAddr,
    },
    /// Nobody answers there.
    #[error(
        "no node of the domain answers at {address} (asked for {waited:?}): see that one listens there, and that UDP gets through"
    )]
    NoAnswer {
        /// The address.
        address: SocketAddr,
        /// How long it was asked.
        waited: Duration,
    },
    /// The node there does not take this one.
    #[error("the node at {address} refuses this one: {}", said(*.why))]
    Rejected {
        /// The address.
        address: SocketAddr,
        /// Why.
        why: Rejection,
    },
    /// A conversation there ended before it had begun.
    #[error("the conversation with the node at {address} ended at once: {reason:?}")]
    Ended {
        /// The address.
        address: SocketAddr,
        /// Why.
        reason: CloseReason,
    },
    /// All ids are taken.
    #[error("the node at {address} has no id left to give: the domain is full; make it for more nodes (max_nodes)")]
    NoRoom {
        /// The address.
        address: SocketAddr,
    },
    /// The key's file can't be used.
    #[error("the key file {}: {reason}", .path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The system does not do as it is asked.
    #[error("could not {attempt}: {source}")]
    System {
        /// What was tried.
        attempt: &'static str,
        /// What it said.
        source: io::Error,
    },
}

fn said(why: Rejection) -> String {
    match why {
        Rejection::Version { lowest, highest } => {
            format!(
                "it speaks versions {lowest} to {highest} of the protocol, and this one {PROTOCOL_VERSION}; use one release of Doorbell everywhere"
            )
        }
        Rejection::OtherDomain => "it is of another domain; see that both give the same name".into(),
        Rejection::NeedsKey => {
            "its domain has a key, and this node was given none; give it the same (key_file, --key-file, DOORBELL_KEY_FILE)"
                .into()
        }
        Rejection::HasNoKey => "its domain has no key, and this node was given one; give both the same, or neither".into(),
        Rejection::WrongKey => "its domain has another key; give both the same".into(),
        Rejection::AlreadyConnected(node, _) => {
            format!("it talks with a node {node} of the same incarnation already; take another id")
        }
        Rejection::Stale => "a later life of this node has been there; join anew".into(),
        Rejection::SameNode => "it has the id that this one was to have; take another".into(),
        Rejection::Full => "it has as many conversations as it can have".into(),
        Rejection::NoFirst => "it knows of no conversation that this one could be beside".into(),
    }
}

impl From<UdpError> for io::Error {
    fn from(error: UdpError) -> Self {
        match error {
            UdpError::Port(error) => error.into(),
            UdpError::System { source, .. } => source,
            UdpError::NoAnswer { .. } => io::Error::new(io::ErrorKind::TimedOut, error),
            UdpError::Rejected { .. } => io::Error::new(io::ErrorKind::ConnectionRefused, error),
            UdpError::NoKey { .. } => io::Error::new(io::ErrorKind::PermissionDenied, error),
            _ => io::Error::new(io::ErrorKind::InvalidInput, error),
        }
    }
}

/// Reads a domain's key from a file: 32 bytes, or 64 hexadecimal digits. Others than its owner must not be able to read it.
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
        return Err(wrong(format!("others may use it (mode {:03o}); say `chmod 600 {}`", mode & 0o777, path.display())));
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
