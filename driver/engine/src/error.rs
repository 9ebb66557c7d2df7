//! The errors of this crate: texts for people, and fields for programs.

use doorbell_fabric::{Incarnation, Message, NodeId};
#[cfg(not(loom))]
use doorbell_shm::error::ShmError;
#[cfg(feature = "udp")]
use doorbell_udp::UdpError;
use std::any::Any;
use std::fmt::Display;
use std::io;

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whether a failed operation may have taken place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// It did not take place: a program can safely repeat it.
    DidNotHappen,
    /// It may or may not have taken place.
    Unknown,
}

/// Calls whose timeout means that nothing happened, and that nothing will.
const MESSAGE_WAITS: [&str; 5] = ["send", "recv", "recv_with", "wait_for", "event"];

/// Why an operation failed. Each variant names its row of `docs/errors.md`, the page of the repository about errors.
#[derive(Debug, thiserror::Error, strum::EnumDiscriminants)]
#[strum_discriminants(name(ErrorAnchor), vis(pub(self)), derive(strum::IntoStaticStr), strum(serialize_all = "kebab-case"))]
#[non_exhaustive]
pub enum Error {
    /// There is no room now for the message, or for another update. This is an ordinary result: receive something, wait for a
    /// pending update, or try again later.
    ///
    /// See `errors.md#full`.
    #[error(
        "no room for a message to node {node}: it has not read what it was sent; try again, receive first, or send with a deadline"
    )]
    Full {
        /// The target node.
        node: NodeId,
    },
    /// The deadline passed.
    ///
    /// See `errors.md#timeout`.
    #[error("{operation} did not complete by its deadline{}", of(.node))]
    Timeout {
        /// The name of the call.
        operation: &'static str,
        /// The node that the call concerns, if it concerns one.
        node: Option<NodeId>,
    },
    /// The request was cancelled.
    ///
    /// See `errors.md#cancelled`.
    #[error("the request was cancelled")]
    Cancelled,
    /// A receive ended while its sender was copying into the buffer, and the sender has not confirmed that it stopped. Its process
    /// may be stopped, and would write when it continues. So the buffer is not returned: the engine keeps it until the sender
    /// confirms or is dead, and drops it then. The message is not lost, unless the receive was cancelled from within a callback:
    /// the next receive gets it.
    ///
    /// See `errors.md#buffer-kept`.
    #[error(
        "the receive ended, but node {node} has not confirmed that it stopped writing to the buffer, so the engine keeps the buffer until node {node} confirms or is dead; receive into another buffer, and continue or end the process of node {node} if it is stopped"
    )]
    BufferKept {
        /// The sender.
        node: NodeId,
    },
    /// The peer is dead.
    ///
    /// See `errors.md#peer-died`.
    #[error("node {node} ({incarnation}) died; take a new peer when it has joined again")]
    PeerDied {
        /// The node.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// The peer left the domain.
    ///
    /// See `errors.md#peer-left`.
    #[error("node {node} ({incarnation}) left the domain; take a new peer when it has joined again")]
    PeerLeft {
        /// The node.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// No such node is attached now, and none was before.
    ///
    /// See `errors.md#no-such-node`.
    #[error("no node {node} is attached to the domain; wait for it with wait_for, or list the attached nodes with `doorbell ls`")]
    NoSuchNode {
        /// The node.
        node: NodeId,
    },
    /// The message is longer than the buffer. It is not lost: the error owns it.
    ///
    /// See `errors.md#truncated`.
    #[error("a message of {} bytes from node {} is longer than the buffer of {capacity}; it is in the error", .message.bytes.len(), .message.envelope.source)]
    Truncated {
        /// The whole message.
        message: Box<Message>,
        /// The length of the buffer in bytes.
        capacity: usize,
    },
    /// The message does not have the size of the requested type. It is not lost: the error owns it.
    ///
    /// See `errors.md#wrong-size`.
    #[error("a message of {} bytes from node {} does not fit the requested type of {expected} bytes; it is in the error", .message.bytes.len(), .message.envelope.source)]
    WrongSize {
        /// The whole message.
        message: Box<Message>,
        /// The size of the type in bytes, or of its elements.
        expected: usize,
    },
    /// All memory for loans is in use. This is an ordinary result: try again when readers have returned loans.
    ///
    /// See `errors.md#loans-out`.
    #[error(
        "no memory for a loan of {bytes} bytes: the rest of {limit} bytes is in use, or too small; drop loans, let readers drop the messages they took, or raise the limit with loan_bytes"
    )]
    LoansOut {
        /// The requested bytes.
        bytes: usize,
        /// The most bytes that may be lent.
        limit: usize,
    },
    /// The peer wrote something into shared memory that no correct peer writes, or another process truncated its memory. If it
    /// was a region, its contents are lost. Otherwise nothing more is read from the peer.
    ///
    /// See `errors.md#damaged`.
    #[error(
        "shared memory of node {node} was damaged, by that node or by another process, and its contents are lost; ask the node for a key of another region, or wait until it joins again"
    )]
    Damaged {
        /// The node.
        node: NodeId,
    },
    /// Another process truncated this node's inbox, and the messages in it are lost. From then on the node counts as dead to
    /// all others.
    ///
    /// See `errors.md#severed`.
    #[error("the inbox of this node ({node}) was truncated by another process; its messages are lost; leave, and join again")]
    Severed {
        /// This node.
        node: NodeId,
    },
    /// The key can't be used like this. Nothing was copied, except after [`KeyFault::Stale`] in the middle of a long put.
    ///
    /// See `errors.md#key`.
    #[error("cannot {operation}{}: {why}", with_key(.node))]
    Key {
        /// The name of the call.
        operation: &'static str,
        /// The node that the key names, if it could be read.
        node: Option<NodeId>,
        /// The fault.
        why: KeyFault,
    },
    /// A service failed. [`downcast_ref`](Error::downcast_ref) gives the error of the service's own type.
    ///
    /// See `errors.md#service`.
    #[error("{}{why}", cannot(.operation))]
    Service {
        /// The operation in words, such as "lock the lock 'k'". Empty if `why` needs no such words.
        operation: Box<str>,
        /// The reason.
        why: Box<dyn ServiceError>,
    },
    /// The operation is not possible here.
    ///
    /// See `errors.md#unsupported`.
    #[error("cannot {operation}: {why}")]
    Unsupported {
        /// The name of the operation.
        operation: &'static str,
        /// The reason, and what to do instead.
        why: &'static str,
    },
    /// This process is a fork of the one that joined. A node does not survive a fork.
    ///
    /// See `errors.md#forked`.
    #[error("this process was forked from the one that joined the domain; join again in the child")]
    Forked,
    /// The call was made within a callback that this thread runs: one that reads a message, reduces vectors, or watches a team.
    ///
    /// See `errors.md#reentrant`.
    #[error("{operation} was called within a callback, such as recv_with or a reduction; return from the callback first")]
    Reentrant {
        /// The name of the call.
        operation: &'static str,
    },
    /// The operation was begun, and this call can't wait for its end.
    ///
    /// See `errors.md#abandoned`.
    #[error("{operation} ended before the answer came, so it may or may not have taken place; wait for it outside of callbacks")]
    Abandoned {
        /// The name of the call.
        operation: &'static str,
    },
    /// The node has left.
    ///
    /// See `errors.md#closed`.
    #[error("this node has left its domain")]
    Closed,
    /// A parameter is invalid.
    ///
    /// See `errors.md#invalid`.
    #[error("{what}")]
    Invalid {
        /// The fault, and the correct use.
        what: String,
    },
    /// Joining, leaving or finding a peer failed.
    ///
    /// See `errors.md#shm`.
    #[cfg(not(loom))]
    #[error(transparent)]
    Shm(Box<ShmError>),
    /// Taking part in the network failed.
    ///
    /// See `errors.md#udp`.
    #[cfg(feature = "udp")]
    #[error(transparent)]
    Udp(Box<UdpError>),
}

/// The faults of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error, strum::EnumDiscriminants)]
#[strum_discriminants(
    name(KeyFaultAnchor),
    vis(pub(self)),
    derive(strum::IntoStaticStr),
    strum(serialize_all = "kebab-case", prefix = "key-")
)]
#[non_exhaustive]
pub enum KeyFault {
    /// The region was withdrawn, or belongs to an earlier incarnation of its node.
    ///
    /// See `errors.md#key-stale`.
    #[error("its region was withdrawn, or its node has another incarnation now; ask the owner for a new key")]
    Stale,
    /// The call has more elements than the key covers, or the key reaches beyond its region.
    ///
    /// See `errors.md#key-out-of-range`.
    #[error("there are more elements than the key covers; use fewer, or a key that covers more")]
    OutOfRange,
    /// The key may only read.
    ///
    /// See `errors.md#key-read-only`.
    #[error("the key may only read; ask the owner for one that may write")]
    ReadOnly,
    /// The key is for elements of another size or alignment.
    ///
    /// See `errors.md#key-wrong-type`.
    #[error("the key is for elements of another size or alignment; read it as the type that the owner made the region of")]
    WrongType,
    /// The bytes are no key, or not one that the owner of the region made.
    ///
    /// See `errors.md#key-forged`.
    #[error("the owner of the region made no such key; check that its bytes arrived complete and unchanged")]
    Forged,
    /// The domain has no such node.
    ///
    /// See `errors.md#key-unknown`.
    #[error("the domain has no such node; check that the key belongs to this domain, and whether its owner has left")]
    Unknown,
    /// The key belongs to another node than the peer.
    ///
    /// See `errors.md#key-other-node`.
    #[error("the key belongs to another node than the peer; use a peer of that node, or the call of Node")]
    OtherNode,
}

impl KeyFault {
    /// The place on the page `docs/errors.md` that explains the fault. See [`Error::anchor`].
    pub fn anchor(self) -> &'static str {
        KeyFaultAnchor::from(self).into()
    }
}

/// An error of one service. Each service has one type of errors, which lies in the service's own crate. It converts into
/// [`Error::Service`].
pub trait ServiceError: std::error::Error + Any + Send + Sync {
    /// Whether the operation may have taken place in spite of the error. See [`Error::certainty`].
    fn certainty(&self) -> Certainty {
        Certainty::Unknown
    }

    /// Whether the same call may succeed later without a change of the program.
    fn is_retryable(&self) -> bool {
        false
    }

    /// The node that the error concerns, if it concerns one.
    fn node(&self) -> Option<NodeId> {
        None
    }

    /// The kind of the [`io::Error`] that a program makes of this error.
    fn io_kind(&self) -> io::ErrorKind {
        io::ErrorKind::Other
    }

    /// The place on the page `docs/errors.md` that explains the error. See [`Error::anchor`].
    fn anchor(&self) -> &'static str {
        ErrorAnchor::Service.into()
    }
}

fn cannot(operation: &str) -> String {
    if operation.is_empty() { String::new() } else { format!("cannot {operation}: ") }
}

fn with_key(node: &Option<NodeId>) -> String {
    node.map_or(String::new(), |node| format!(" with a key of node {node}"))
}

fn of(node: &Option<NodeId>) -> String {
    node.map_or(String::new(), |node| format!(" (node {node})"))
}

impl Error {
    /// The error of a service's operation, which is given in words.
    #[cold]
    pub fn cannot(operation: impl Display, why: impl ServiceError) -> Error {
        Error::Service { operation: operation.to_string().into(), why: Box::new(why) }
    }

    /// The error of a service, if this is one, and of type `E`.
    pub fn downcast_ref<E: ServiceError>(&self) -> Option<&E> {
        let Error::Service { why, .. } = self else { return None };
        let why: &dyn Any = &**why;
        why.downcast_ref()
    }

    /// Whether the same call may succeed later without a change of the program.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Full { .. } | Error::Timeout { .. } | Error::NoSuchNode { .. } | Error::LoansOut { .. } => true,
            Error::Service { why, .. } => why.is_retryable(),
            #[cfg(not(loom))]
            Error::Shm(error) => error.is_retryable(),
            #[cfg(feature = "udp")]
            Error::Udp(error) => matches!(**error, UdpError::NoAnswer { .. } | UdpError::NoneAnswers { .. }),
            _ => false,
        }
    }

    /// Whether the operation may have taken place in spite of the error. [`Unknown`](Certainty::Unknown) unless the error means
    /// for certain that nothing happened. A caller that repeats the operation after `Unknown` may do it twice.
    pub fn certainty(&self) -> Certainty {
        let is_certain = match self {
            // Each of these is returned before anything is begun.
            Error::Full { .. }
            | Error::NoSuchNode { .. }
            | Error::LoansOut { .. }
            | Error::Unsupported { .. }
            | Error::Forked
            | Error::Reentrant { .. }
            | Error::Invalid { .. } => true,
            Error::Service { why, .. } => return why.certainty(),
            // A message that times out is withdrawn. A collective, a request to another node or a stream has left effects
            // behind.
            Error::Timeout { operation, .. } => MESSAGE_WAITS.contains(operation),
            // A region may be withdrawn in the middle of a long put; all other faults are found before the first byte.
            Error::Key { why, .. } => *why != KeyFault::Stale,
            // A waiting call also gets `Closed` when its own node leaves, and its operation may have been pending.
            _ => false,
        };
        if is_certain { Certainty::DidNotHappen } else { Certainty::Unknown }
    }

    /// The place on the page `docs/errors.md` that explains the error: `"peer-died"` stands for `errors.md#peer-died`.
    pub fn anchor(&self) -> &'static str {
        match self {
            Error::Key { why, .. } => why.anchor(),
            Error::Service { why, .. } => why.anchor(),
            #[cfg(not(loom))]
            Error::Shm(error) => error.anchor(),
            #[cfg(feature = "udp")]
            Error::Udp(error) => error.anchor(),
            _ => ErrorAnchor::from(self).into(),
        }
    }

    /// The node that the error concerns, if it concerns one.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Error::Full { node }
            | Error::BufferKept { node }
            | Error::PeerDied { node, .. }
            | Error::PeerLeft { node, .. }
            | Error::NoSuchNode { node }
            | Error::Damaged { node }
            | Error::Severed { node } => Some(*node),
            Error::Timeout { node, .. } | Error::Key { node, .. } => *node,
            Error::Service { why, .. } => why.node(),
            _ => None,
        }
    }
}

#[cfg(not(loom))]
impl From<ShmError> for Error {
    fn from(error: ShmError) -> Self {
        Error::Shm(Box::new(error))
    }
}

#[cfg(feature = "udp")]
impl From<UdpError> for Error {
    fn from(error: UdpError) -> Self {
        Error::Udp(Box::new(error))
    }
}

impl<E: ServiceError> From<E> for Error {
    #[cold]
    fn from(error: E) -> Self {
        Error::Service { operation: Box::default(), why: Box::new(error) }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        use io::ErrorKind;
        #[cfg(feature = "udp")]
        if let Error::Udp(error) = error {
            return (*error).into();
        }
        let kind = match &error {
            Error::Full { .. } | Error::LoansOut { .. } => ErrorKind::WouldBlock,
            Error::Timeout { .. } => ErrorKind::TimedOut,
            Error::Cancelled => ErrorKind::Interrupted,
            Error::PeerDied { .. } | Error::PeerLeft { .. } => ErrorKind::ConnectionReset,
            Error::Severed { .. } => ErrorKind::ConnectionAborted,
            Error::NoSuchNode { .. } | Error::Key { why: KeyFault::Stale | KeyFault::Unknown, .. } => ErrorKind::NotFound,
            Error::Key { why: KeyFault::ReadOnly, .. } => ErrorKind::PermissionDenied,
            Error::Key { .. } => ErrorKind::InvalidInput,
            Error::Truncated { .. } | Error::WrongSize { .. } | Error::Invalid { .. } => ErrorKind::InvalidInput,
            Error::Damaged { .. } => ErrorKind::InvalidData,
            Error::Service { why, .. } => why.io_kind(),
            Error::Closed => ErrorKind::NotConnected,
            Error::Unsupported { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_and_whom_and_what_to_do() {
        let error = Error::Timeout { operation: "recv", node: Some(NodeId(3)) };
        assert_eq!(error.to_string(), "recv did not complete by its deadline (node 3)");
        assert!(error.is_retryable());
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::TimedOut);
        let died = Error::PeerDied { node: NodeId(2), incarnation: Incarnation(9) };
        assert_eq!((died.certainty(), died.node()), (Certainty::Unknown, Some(NodeId(2))));
        assert!(died.to_string().contains("node 2"));
    }

    #[test]
    fn nothing_happened_only_where_that_is_certain() {
        let node = NodeId(1);
        let timeout = |operation| Error::Timeout { operation, node: None };
        let key = |why| Error::Key { operation: "put", node: Some(node), why };
        let certain = [
            Error::Full { node },
            Error::NoSuchNode { node },
            Error::LoansOut { bytes: 1, limit: 1 },
            Error::Invalid { what: String::new() },
            Error::Unsupported { operation: "o", why: "w" },
            Error::Forked,
            Error::Reentrant { operation: "put" },
            timeout("send"),
            timeout("recv"),
            timeout("recv_with"),
            key(KeyFault::OutOfRange),
            key(KeyFault::ReadOnly),
        ];
        for error in certain {
            assert_eq!(error.certainty(), Certainty::DidNotHappen, "{error}");
        }
        let message = || {
            let envelope = doorbell_fabric::Envelope {
                source: node,
                incarnation: Incarnation(1),
                tag: 0,
                len: 0,
                sequence: 0,
                priority: doorbell_fabric::Priority::Normal,
            };
            Box::new(Message { envelope, bytes: Vec::new() })
        };
        let unknown = [
            timeout("allreduce"),
            timeout("a request to an I/O node"),
            timeout("put"),
            // A collective that was given up returns this, too.
            Error::Cancelled,
            // The message was taken, so the same call would take another.
            Error::Truncated { message: message(), capacity: 0 },
            Error::WrongSize { message: message(), expected: 1 },
            Error::Closed,
            Error::Abandoned { operation: "o" },
            Error::PeerDied { node, incarnation: Incarnation(1) },
            Error::PeerLeft { node, incarnation: Incarnation(1) },
            Error::Damaged { node },
            Error::Severed { node },
            key(KeyFault::Stale),
        ];
        for error in unknown {
            assert_eq!(error.certainty(), Certainty::Unknown, "{error}");
        }
    }

    #[test]
    fn an_error_knows_where_the_page_explains_it() {
        let node = NodeId(1);
        assert_eq!(Error::PeerDied { node, incarnation: Incarnation(1) }.anchor(), "peer-died");
        assert_eq!(Error::Key { operation: "put", node: None, why: KeyFault::OutOfRange }.anchor(), "key-out-of-range");
        let shm = ShmError::NoSuchNode { operation: "o", domain: "d".into(), id: node };
        assert_eq!(Error::from(shm).anchor(), "shm-no-such-node");
        #[cfg(feature = "udp")]
        assert_eq!(Error::from(UdpError::NoKey { address: ([127, 0, 0, 1], 1).into() }).anchor(), "udp-no-key");
        assert_eq!(Error::from(Lamp::Broken).anchor(), "service");
    }

    #[derive(Debug, thiserror::Error, PartialEq)]
    enum Lamp {
        #[error("it is broken")]
        Broken,
        #[error("it is too hot; wait a minute")]
        Hot,
    }

    impl ServiceError for Lamp {
        fn certainty(&self) -> Certainty {
            if *self == Lamp::Hot { Certainty::DidNotHappen } else { Certainty::Unknown }
        }

        fn is_retryable(&self) -> bool {
            *self == Lamp::Hot
        }

        fn node(&self) -> Option<NodeId> {
            (*self == Lamp::Hot).then_some(NodeId(4))
        }

        fn io_kind(&self) -> io::ErrorKind {
            io::ErrorKind::BrokenPipe
        }
    }

    #[test]
    fn a_service_decides_what_its_error_means() {
        let hot = Error::cannot(format_args!("light lamp {}", 3), Lamp::Hot);
        assert_eq!(hot.to_string(), "cannot light lamp 3: it is too hot; wait a minute");
        assert_eq!((hot.certainty(), hot.is_retryable(), hot.node()), (Certainty::DidNotHappen, true, Some(NodeId(4))));
        assert_eq!(hot.downcast_ref(), Some(&Lamp::Hot));
        assert_eq!(io::Error::from(hot).kind(), io::ErrorKind::BrokenPipe);
        let broken = Error::from(Lamp::Broken);
        assert_eq!(broken.to_string(), "it is broken");
        assert_eq!((broken.certainty(), broken.is_retryable(), broken.node()), (Certainty::Unknown, false, None));
        assert_eq!(Error::Closed.downcast_ref::<Lamp>(), None);
    }

    #[test]
    fn an_error_stays_small_since_each_result_holds_one() {
        assert!(size_of::<Error>() <= 40, "{}", size_of::<Error>());
    }
}
