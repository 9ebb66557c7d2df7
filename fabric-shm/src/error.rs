//! The errors of shared memory. Each names the operation, its object, the reason and a remedy.

use crate::keys::ResourceError;
use crate::region::RegionFault;
use doorbell_fabric::{Incarnation, NodeId};
use std::io;
use std::path::PathBuf;

/// Why a shared-memory object could not be created, opened, or removed.
///
/// Every message names the operation, the segment or domain, the reason, and a remedy.
#[derive(Debug, thiserror::Error, strum::EnumDiscriminants)]
#[strum_discriminants(
    name(ShmErrorAnchor),
    vis(pub(self)),
    derive(strum::IntoStaticStr),
    strum(serialize_all = "kebab-case", prefix = "shm-")
)]
#[non_exhaustive]
pub enum ShmError {
    /// The process was forked from one that had joined a domain. A forked child does not inherit shared memory.
    ///
    /// See `errors.md#shm-forked`.
    #[error("cannot {operation}: this process was forked from a node and is no node itself; join in a program started with exec")]
    Forked {
        /// The operation.
        operation: &'static str,
    },

    /// An option of a join is out of range.
    ///
    /// See `errors.md#shm-invalid-option`.
    #[error("cannot join domain '{domain}': {option} is {value}, but {rule}")]
    InvalidOption {
        /// The domain to join.
        domain: String,
        /// The option.
        option: &'static str,
        /// The given value.
        value: String,
        /// The rule for valid values.
        rule: &'static str,
    },

    /// A name that cannot be the name of a domain.
    ///
    /// See `errors.md#shm-invalid-domain-name`.
    #[error("'{name}' cannot name a domain; use 1 to 64 of the characters A-Z a-z 0-9 _ -")]
    InvalidDomainName {
        /// The given name.
        name: String,
    },

    /// The file system behind shared memory has no room.
    ///
    /// See `errors.md#shm-no-space`.
    #[error(
        "cannot create segment '{segment}': it needs {wanted} bytes and {directory} has {free} free; enlarge that file \
         system (containers: --shm-size), use fewer nodes or smaller lanes, or remove leftovers with 'doorbell clean'"
    )]
    NoSpace {
        /// The segment that did not fit.
        segment: String,
        /// The bytes that it needs.
        wanted: u64,
        /// The free bytes.
        free: u64,
        /// The directory for segments.
        directory: PathBuf,
    },

    /// Another process held the domain's lock file until the deadline. Nodes hold it only for moments, while they join or leave.
    ///
    /// See `errors.md#shm-lock-timeout`.
    #[error(
        "cannot {operation} domain '{domain}': its lock file is held{}; check whether that process is stopped, then try again",
        .holder.map(|pid| format!(", last taken by process {pid}")).unwrap_or_default()
    )]
    LockTimeout {
        /// The operation.
        operation: &'static str,
        /// The domain.
        domain: String,
        /// The process that last wrote its id into the lock file, in its own pid namespace.
        holder: Option<u32>,
    },

    /// Living nodes of another build use the domain.
    ///
    /// See `errors.md#shm-other-layout`.
    #[error(
        "cannot {operation} domain '{domain}': its layout is {their_version}/{their_hash:016x}, this program has \
         {our_version}/{our_hash:016x}, and {living} of its nodes live; use one build for all nodes, or another domain name, or \
         another directory (DOORBELL_SPACE)"
    )]
    OtherLayout {
        /// The operation.
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
        /// The number of living nodes in the domain.
        living: usize,
    },

    /// A segment holds values that no owner writes, and nodes still use it.
    ///
    /// See `errors.md#shm-damaged`.
    #[error("cannot {operation}: segment '{segment}' is damaged: {reason}; end the nodes that use it, then run 'doorbell clean'")]
    Damaged {
        /// The operation.
        operation: &'static str,
        /// The segment.
        segment: String,
        /// The reason.
        reason: String,
    },

    /// Someone removed the domain segment from outside while nodes live.
    ///
    /// See `errors.md#shm-domain-lost`.
    #[error(
        "cannot {operation} domain '{domain}': its domain segment is gone, but {living} of its nodes live; end those nodes, \
         then 'doorbell clean'"
    )]
    DomainLost {
        /// The operation.
        operation: &'static str,
        /// The domain.
        domain: String,
        /// The number of living nodes.
        living: usize,
    },

    /// A living node has the requested id.
    ///
    /// See `errors.md#shm-id-taken`.
    #[error("cannot join domain '{domain}' as node {id}: process {pid} is that node; ask for another id, or for none")]
    IdTaken {
        /// The domain.
        domain: String,
        /// The requested id.
        id: NodeId,
        /// The process that has the id, by its own account; 0 if unknown.
        pid: u32,
    },

    /// The domain has the largest number of nodes that its creator allowed.
    ///
    /// See `errors.md#shm-domain-full`.
    #[error("cannot join domain '{domain}': all its {max_nodes} places are taken; create it with a larger max_nodes")]
    DomainFull {
        /// The domain.
        domain: String,
        /// The number of nodes it can have.
        max_nodes: usize,
    },

    /// No node with this id is attached.
    ///
    /// See `errors.md#shm-no-such-node`.
    #[error("cannot {operation}: domain '{domain}' has no node {id}; wait until it has joined, or see 'doorbell ls'")]
    NoSuchNode {
        /// The operation.
        operation: &'static str,
        /// The domain.
        domain: String,
        /// The id.
        id: NodeId,
    },

    /// The node is in the directory, but its process is gone.
    ///
    /// See `errors.md#shm-node-dead`.
    #[error("cannot {operation}: node {id} ({incarnation}) of domain '{domain}' is dead; wait for a new one to join")]
    NodeDead {
        /// The operation.
        operation: &'static str,
        /// The domain.
        domain: String,
        /// The id.
        id: NodeId,
        /// The incarnation.
        incarnation: Incarnation,
    },

    /// The node was just joining or leaving.
    ///
    /// See `errors.md#shm-node-changing`.
    #[error("cannot {operation}: node {id} of domain '{domain}' is joining or leaving just now; try again")]
    NodeChanging {
        /// The operation.
        operation: &'static str,
        /// The domain.
        domain: String,
        /// The id.
        id: NodeId,
    },

    /// The lane to the node is in use. Each target and priority has only one link at a time.
    ///
    /// See `errors.md#shm-lane-busy`.
    #[error("cannot connect to node {id} of domain '{domain}': a link of this priority is open; use that one, or drop it first")]
    LaneBusy {
        /// The domain.
        domain: String,
        /// The target.
        id: NodeId,
    },

    /// A peer's region could not be opened.
    ///
    /// See `errors.md#shm-region`.
    #[error("cannot open region {number} of node {node} of domain '{domain}': {fault}")]
    Region {
        /// The domain.
        domain: String,
        /// The owner of the region.
        node: NodeId,
        /// The number of the region.
        number: u32,
        /// The reason.
        fault: RegionFault,
    },

    /// A region of this length cannot be created.
    ///
    /// See `errors.md#shm-invalid-region`.
    #[error("cannot create a region of {bytes} bytes in domain '{domain}': {rule}")]
    InvalidRegion {
        /// The domain.
        domain: String,
        /// The requested bytes.
        bytes: usize,
        /// The rule for valid lengths.
        rule: &'static str,
    },

    /// A lock cannot be created.
    ///
    /// See `errors.md#shm-key`.
    #[error("cannot create a lock in domain '{domain}': {fault}")]
    Key {
        /// The domain.
        domain: String,
        /// The reason.
        fault: ResourceError,
    },

    /// This node has left its domain.
    ///
    /// See `errors.md#shm-left`.
    #[error("cannot {operation}: this node has left domain '{domain}'; join again")]
    Left {
        /// The operation.
        operation: &'static str,
        /// The domain.
        domain: String,
    },

    /// A file with one of this domain's names belongs to another user, or is not a plain file.
    ///
    /// See `errors.md#shm-not-ours`.
    #[error("cannot {operation} '{object}': it is {what}; let its owner remove it, or use another domain name")]
    NotOurs {
        /// The operation.
        operation: &'static str,
        /// The file.
        object: String,
        /// The actual kind or owner of the file.
        what: String,
    },

    /// The operating system refused the operation.
    ///
    /// See `errors.md#shm-os`.
    #[error("cannot {operation} '{object}': {source}; {hint}")]
    Os {
        /// The operation.
        operation: &'static str,
        /// The file or segment.
        object: String,
        /// A remedy.
        hint: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl ShmError {
    /// Whether the same call may succeed a little later, without any change by the caller. Every failed operation of this crate
    /// leaves nothing behind, so repeating it is always safe.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::LockTimeout { .. } | Self::NodeChanging { .. } | Self::LaneBusy { .. } | Self::NoSuchNode { .. })
    }

    /// Whether the system refused something with this number.
    pub(crate) fn is_os(&self, number: i32) -> bool {
        matches!(self, Self::Os { source, .. } if source.raw_os_error() == Some(number))
    }

    /// The place on the page `docs/errors.md` that explains the error: `"shm-not-ours"` stands for `errors.md#shm-not-ours`.
    pub fn anchor(&self) -> &'static str {
        ShmErrorAnchor::from(self).into()
    }

    pub(crate) fn os(operation: &'static str, object: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let hint = match source.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => "too many files are open: raise 'ulimit -n'",
            Some(libc::EACCES | libc::EPERM) => "check the owner of the file and of its directory",
            Some(libc::ENOENT | libc::ENOTDIR) => "check that the directory exists (usually /dev/shm, a tmpfs)",
            Some(libc::ENOMEM) => "free memory, or use fewer nodes or smaller lanes",
            Some(libc::EEXIST) => "a file of that name exists and is not a leftover of Doorbell: remove it",
            Some(libc::ENOSPC | libc::EDQUOT) => "no room for another file: remove leftovers with 'doorbell clean'",
            Some(libc::EROFS) => "the file system is read-only: mount a tmpfs there",
            _ => "check that the directory is a tmpfs that this user may write to",
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
            ShmError::Key { fault: ResourceError::Name { .. }, .. } => io::ErrorKind::InvalidInput,
            ShmError::NoSpace { .. } => io::ErrorKind::StorageFull,
            ShmError::LockTimeout { .. } => io::ErrorKind::TimedOut,
            ShmError::OtherLayout { .. } | ShmError::Damaged { .. } | ShmError::DomainLost { .. } => io::ErrorKind::InvalidData,
            ShmError::Region { fault: RegionFault::Header(_), .. } => io::ErrorKind::InvalidData,
            ShmError::IdTaken { .. } => io::ErrorKind::AddrInUse,
            ShmError::DomainFull { .. } | ShmError::Key { fault: ResourceError::Full, .. } => io::ErrorKind::QuotaExceeded,
            ShmError::NoSuchNode { .. } | ShmError::Region { .. } => io::ErrorKind::NotFound,
            ShmError::Key { fault: ResourceError::Exists { .. }, .. } => io::ErrorKind::AlreadyExists,
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
