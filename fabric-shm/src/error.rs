//! What can go wrong with shared memory, what it went wrong with, and what to do about it.

use crate::keys::ResourceError;
use crate::region::RegionFault;
use doorbell_fabric::{Incarnation, NodeId};
use std::io;
use std::path::PathBuf;

/// Why shared memory could not be made, opened, or given back.
///
/// Every message names the operation, the segment or domain it was tried on, the reason, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// The calling process was forked from one that had joined a domain; shared memory did not come with it.
    #[error("cannot {operation}: this process was forked from a node and is none itself; join in a program started with exec")]
    Forked {
        /// What was tried.
        operation: &'static str,
    },

    /// An option of a join is out of range.
    #[error("cannot join domain '{domain}': {option} is {value}, but {rule}")]
    InvalidOption {
        /// The domain that was to be joined.
        domain: String,
        /// Which option.
        option: &'static str,
        /// What was given.
        value: String,
        /// What would have been right.
        rule: &'static str,
    },

    /// A name that cannot be the name of a domain.
    #[error("'{name}' cannot name a domain; use 1 to 64 of the characters A-Z a-z 0-9 _ -")]
    InvalidDomainName {
        /// What was given.
        name: String,
    },

    /// The file system behind shared memory has no room.
    #[error(
        "cannot create segment '{segment}': it needs {wanted} bytes and {directory} has {free} free; enlarge that file \
         system (containers: --shm-size), use fewer nodes or smaller lanes, or remove leftovers with 'doorbell clean'"
    )]
    NoSpace {
        /// The segment that did not fit.
        segment: String,
        /// Bytes it needs.
        wanted: u64,
        /// Bytes that are free.
        free: u64,
        /// Where it should have gone.
        directory: PathBuf,
    },

    /// Somebody else held the domain's lock file until the deadline. It is held for moments only, while nodes join and leave.
    #[error(
        "cannot {operation} domain '{domain}': its lock file is held{}; see whether that process is stopped, then try again",
        .holder.map(|pid| format!(", last taken by process {pid}")).unwrap_or_default()
    )]
    LockTimeout {
        /// What was tried.
        operation: &'static str,
        /// The domain.
        domain: String,
        /// Who said last that it holds the lock, in its own pid namespace.
        holder: Option<u32>,
    },

    /// Living nodes of another build use the domain.
    #[error(
        "cannot {operation} domain '{domain}': its layout is {their_version}/{their_hash:016x}, this program has \
         {our_version}/{our_hash:016x}, and {living} of its nodes live; use one build for all nodes, or another domain name"
    )]
    OtherLayout {
        /// What was tried.
        operation: &'static str,
        /// The domain.
        domain: String,
        /// The layout version of the domain.
        their_version: u64,
        /// The layout hash of the domain.
        their_hash: u64,
        /// The layout version of this program.
        our_version: u64,
        /// The layout hash of this program.
        our_hash: u64,
        /// How many nodes of the domain live.
        living: usize,
    },

    /// A segment holds what no owner writes, while nodes still use it.
    #[error("cannot {operation}: segment '{segment}' is damaged: {reason}; end the nodes that use it, then 'doorbell clean'")]
    Damaged {
        /// What was tried.
        operation: &'static str,
        /// The segment.
        segment: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The domain segment was removed from outside while nodes live.
    #[error(
        "cannot {operation} domain '{domain}': its domain segment is gone, but {living} of its nodes live; end those nodes, \
         then 'doorbell clean'"
    )]
    DomainLost {
        /// What was tried.
        operation: &'static str,
        /// The domain.
        domain: String,
        /// How many nodes live.
        living: usize,
    },

    /// A living node has the id that was asked for.
    #[error("cannot join domain '{domain}' as node {id}: process {pid} is that node; ask for another id, or for none")]
    IdTaken {
        /// The domain.
        domain: String,
        /// The id asked for.
        id: NodeId,
        /// The process that has it, as it says itself; 0 if it says nothing.
        pid: u32,
    },

    /// The domain has as many nodes as its creator allowed.
    #[error("cannot join domain '{domain}': all its {max_nodes} places are taken; create it with a larger max_nodes")]
    DomainFull {
        /// The domain.
        domain: String,
        /// How many nodes it can have.
        max_nodes: usize,
    },

    /// No node with this id is attached.
    #[error("cannot {operation}: domain '{domain}' has no node {id}; wait until it has joined, or see 'doorbell ls'")]
    NoSuchNode {
        /// What was tried.
        operation: &'static str,
        /// The domain.
        domain: String,
        /// The id.
        id: NodeId,
    },

    /// The node is in the directory, but its process is gone.
    #[error("cannot {operation}: node {id} ({incarnation}) of domain '{domain}' is dead; wait for a new one to join")]
    NodeDead {
        /// What was tried.
        operation: &'static str,
        /// The domain.
        domain: String,
        /// The id.
        id: NodeId,
        /// Which life of it.
        incarnation: Incarnation,
    },

    /// The node was joining or leaving at this moment.
    #[error("cannot {operation}: node {id} of domain '{domain}' is joining or leaving just now; try again")]
    NodeChanging {
        /// What was tried.
        operation: &'static str,
        /// The domain.
        domain: String,
        /// The id.
        id: NodeId,
    },

    /// The lane to a node is in use: one link a target and priority at a time.
    #[error("cannot connect to node {id} of domain '{domain}': a link of this priority is open; use that one, or drop it first")]
    LaneBusy {
        /// The domain.
        domain: String,
        /// The target.
        id: NodeId,
    },

    /// A region of a node can't be had.
    #[error("cannot open region {number} of node {node} of domain '{domain}': {fault}")]
    Region {
        /// The domain.
        domain: String,
        /// Whose region.
        node: NodeId,
        /// Which of its regions.
        number: u32,
        /// Why not.
        fault: RegionFault,
    },

    /// A region of this length can't be made.
    #[error("cannot make a region of {bytes} bytes in domain '{domain}': {rule}")]
    InvalidRegion {
        /// The domain.
        domain: String,
        /// Bytes that were asked for.
        bytes: usize,
        /// What would have been right.
        rule: &'static str,
    },

    /// A key can't be made.
    #[error("cannot make a key in domain '{domain}': {fault}")]
    Key {
        /// The domain.
        domain: String,
        /// Why not.
        fault: ResourceError,
    },

    /// This node has left its domain.
    #[error("cannot {operation}: this node has left domain '{domain}'; join again")]
    Left {
        /// What was tried.
        operation: &'static str,
        /// The domain.
        domain: String,
    },

    /// A file with a name of ours that is somebody else's, or not a plain file.
    #[error("cannot {operation} '{object}': it is {what}; let its owner remove it, or use another domain name")]
    NotOurs {
        /// What was tried.
        operation: &'static str,
        /// The file.
        object: String,
        /// What it is instead.
        what: String,
    },

    /// The operating system refused.
    #[error("cannot {operation} '{object}': {source}; {hint}")]
    Os {
        /// What was tried.
        operation: &'static str,
        /// The file or segment.
        object: String,
        /// What to do about it.
        hint: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl ShmError {
    /// Whether the same call may succeed a little later with nothing changed by the caller. Every failed operation of this
    /// crate left nothing behind, so to repeat it is always safe.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::LockTimeout { .. } | Self::NodeChanging { .. } | Self::LaneBusy { .. } | Self::NoSuchNode { .. })
    }

    pub(crate) fn no_such_node(domain: &str, id: NodeId) -> Self {
        Self::NoSuchNode { operation: "connect", domain: domain.to_owned(), id }
    }

    pub(crate) fn lane_busy(domain: &str, id: NodeId) -> Self {
        Self::LaneBusy { domain: domain.to_owned(), id }
    }

    pub(crate) fn os(operation: &'static str, object: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let hint = match source.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => "too many files are open: raise 'ulimit -n'",
            Some(libc::EACCES | libc::EPERM) => "see who owns the file and its directory",
            Some(libc::ENOENT | libc::ENOTDIR) => "see that the directory exists (usually /dev/shm, a tmpfs)",
            Some(libc::ENOMEM) => "free memory, or use fewer nodes or smaller lanes",
            Some(libc::EEXIST) => "a file of that name is in the way and not a leftover of ours: remove it",
            Some(libc::ENOSPC | libc::EDQUOT) => "no room for another file: remove leftovers with 'doorbell clean'",
            Some(libc::EROFS) => "the file system is read-only: mount a tmpfs there",
            _ => "see that the directory is a tmpfs that this user may write to",
        };
        Self::Os { operation, object: object.into(), hint, source }
    }
}

impl From<ShmError> for io::Error {
    fn from(error: ShmError) -> io::Error {
        let kind = match &error {
            ShmError::InvalidOption { .. } | ShmError::InvalidDomainName { .. } | ShmError::InvalidRegion { .. } => {
                io::ErrorKind::InvalidInput
            }
            ShmError::NoSpace { .. } => io::ErrorKind::StorageFull,
            ShmError::LockTimeout { .. } => io::ErrorKind::TimedOut,
            ShmError::OtherLayout { .. } | ShmError::Damaged { .. } | ShmError::DomainLost { .. } => io::ErrorKind::InvalidData,
            ShmError::IdTaken { .. } => io::ErrorKind::AddrInUse,
            ShmError::DomainFull { .. } => io::ErrorKind::QuotaExceeded,
            ShmError::NoSuchNode { .. } => io::ErrorKind::NotFound,
            ShmError::Region { fault: RegionFault::Header(_), .. } => io::ErrorKind::InvalidData,
            ShmError::Region { .. } => io::ErrorKind::NotFound,
            ShmError::Key { fault: ResourceError::Exists { .. }, .. } => io::ErrorKind::AlreadyExists,
            ShmError::Key { fault: ResourceError::Full, .. } => io::ErrorKind::QuotaExceeded,
            ShmError::Key { fault: ResourceError::Name { .. }, .. } => io::ErrorKind::InvalidInput,
            ShmError::NodeDead { .. } => io::ErrorKind::ConnectionReset,
            ShmError::NodeChanging { .. } | ShmError::LaneBusy { .. } => io::ErrorKind::WouldBlock,
            ShmError::Left { .. } => io::ErrorKind::NotConnected,
            ShmError::NotOurs { .. } => io::ErrorKind::PermissionDenied,
            ShmError::Os { source, .. } => source.kind(),
            ShmError::Forked { .. } => io::ErrorKind::Unsupported,
        };
        io::Error::new(kind, error)
    }
}
