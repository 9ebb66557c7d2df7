//! Errors of locks, and how long calls wait for the domain's lock file.

use doorbell_engine::kit::{Certainty, Error, NodeId, ServiceError};
use doorbell_shm::keys::{OwnerId, Value};
use std::io::ErrorKind;
use std::time::Duration;

/// How long creating and destroying a lock waits for the domain's lock file.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Why a call on a lock failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, strum::EnumDiscriminants)]
#[strum_discriminants(
    name(LockErrorAnchor),
    vis(pub(self)),
    derive(strum::IntoStaticStr),
    strum(serialize_all = "kebab-case", prefix = "lock-")
)]
#[non_exhaustive]
pub enum LockError {
    /// The lock was destroyed.
    ///
    /// See `errors.md#lock-destroyed`.
    #[error("it was destroyed; look it up again, or create it again")]
    Destroyed,
    /// No lock has this name.
    ///
    /// See `errors.md#lock-unknown`.
    #[error("no lock has this name; create it with Lock::init, or see `doorbell ls --locks`")]
    Unknown,
    /// The caller does not hold the lock.
    ///
    /// See `errors.md#lock-not-yours`.
    #[error("you do not hold it (its value is {0}); only its holder can unlock it or change it")]
    NotYours(Value),
    /// The caller already holds the lock.
    ///
    /// See `errors.md#lock-already-yours`.
    #[error("you hold it already; a holder can't lock it a second time")]
    AlreadyYours,
    /// The value was not the expected one.
    ///
    /// See `errors.md#lock-otherwise`.
    #[error("its value is {0}, not the expected one; read it and decide again")]
    Otherwise(Value),
    /// The lock is frozen by its module.
    ///
    /// See `errors.md#lock-frozen`.
    #[error("it is locked by the module; wait until unlock_all is called")]
    Frozen,
    /// The wait would be a deadlock: each owner waits for a lock that the next one holds, and the last one waits for a lock of
    /// the first.
    ///
    /// See `errors.md#lock-deadlock`.
    #[error("waiting for it would be a deadlock: {}", waiting(.waits))]
    Deadlock {
        /// The waiting owners, each with the name of the lock it waits for.
        waits: Vec<(OwnerId, String)>,
    },
    /// The coordinator of the lock registry could not do it.
    ///
    /// See `errors.md#lock-coordinator`.
    #[error("the coordinator refused: {0}")]
    Coordinator(String),
    /// Other nodes use the lock.
    ///
    /// See `errors.md#lock-in-use`.
    #[error("nodes {} have not released it; wait until they have", words(.0))]
    InUse(Vec<NodeId>),
}

impl ServiceError for LockError {
    fn anchor(&self) -> &'static str {
        LockErrorAnchor::from(self).into()
    }

    fn certainty(&self) -> Certainty {
        match self {
            LockError::Unknown
            | LockError::NotYours(_)
            | LockError::AlreadyYours
            | LockError::Otherwise(_)
            | LockError::Frozen
            | LockError::Deadlock { .. }
            | LockError::InUse(_) => Certainty::DidNotHappen,
            LockError::Destroyed | LockError::Coordinator(_) => Certainty::Unknown,
        }
    }

    fn io_kind(&self) -> ErrorKind {
        match self {
            LockError::Unknown | LockError::Destroyed => ErrorKind::NotFound,
            LockError::NotYours(_) => ErrorKind::PermissionDenied,
            LockError::Otherwise(_) | LockError::Frozen | LockError::InUse(_) | LockError::Coordinator(_) => {
                ErrorKind::ResourceBusy
            }
            LockError::AlreadyYours | LockError::Deadlock { .. } => ErrorKind::Deadlock,
        }
    }
}

fn words(nodes: &[NodeId]) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn waiting(waits: &[(OwnerId, String)]) -> String {
    let next = waits.iter().cycle().skip(1);
    let held = waits.iter().zip(next).map(|((who, key), (next, _))| format!("{who} waits for '{key}', which is held by {next}"));
    held.collect::<Vec<_>>().join("; ")
}

/// The error of a call on a lock.
pub fn fault(operation: &'static str, key: &str, why: LockError) -> Error {
    Error::cannot(format_args!("{operation} the lock '{key}'"), why)
}

/// The error for an answer of the wrong kind.
pub fn odd(key: &str) -> Error {
    fault("use", key, LockError::Coordinator("a reply that does not match the request".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_engine::kit::Incarnation;

    #[test]
    fn errors_say_what_failed_and_what_it_means() {
        let [a, b] = [1, 2].map(|node| OwnerId::thread(NodeId(node), Incarnation(1), 0));
        let waits = vec![(a, "x".to_owned()), (b, "y".to_owned())];
        let deadlock = LockError::Deadlock { waits };
        let circle = format!("{a} waits for 'x', which is held by {b}; {b} waits for 'y', which is held by {a}");
        assert_eq!(deadlock.to_string(), format!("waiting for it would be a deadlock: {circle}"));
        assert_eq!(
            LockError::InUse(vec![NodeId(1), NodeId(2)]).to_string(),
            "nodes 1, 2 have not released it; wait until they have"
        );
        assert_eq!(fault("lock", "k", LockError::NotYours(Value::Unlocked)).anchor(), "lock-not-yours");
        let frozen = fault("lock", "k", LockError::Frozen);
        assert_eq!(frozen.to_string(), "cannot lock the lock 'k': it is locked by the module; wait until unlock_all is called");
        assert_eq!((frozen.certainty(), frozen.is_retryable()), (Certainty::DidNotHappen, false));
        assert_eq!(std::io::Error::from(frozen).kind(), ErrorKind::ResourceBusy);
        assert_eq!(fault("lock", "k", LockError::Coordinator("busy".into())).certainty(), Certainty::Unknown);
    }
}
