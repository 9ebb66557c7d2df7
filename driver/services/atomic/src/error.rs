//! Errors of atomic updates.

use doorbell_engine::error::{Certainty, ServiceError};
use doorbell_fabric::NodeId;

/// Why an update failed. [`LockLost`](Self::LockLost) only comes from a [`RemoteCell`](crate::RemoteCell). After each of the
/// others the cell is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error, strum::EnumDiscriminants)]
#[strum_discriminants(
    name(AtomicErrorAnchor),
    vis(pub(self)),
    derive(strum::IntoStaticStr),
    strum(serialize_all = "kebab-case", prefix = "atomic-")
)]
#[non_exhaustive]
pub enum AtomicError {
    /// The condition was false for the cell's value.
    ///
    /// See `errors.md#atomic-declined`.
    #[error("the update was declined: its condition was not true of the cell's value")]
    Declined,
    /// Other threads updated the cell during each attempt.
    ///
    /// See `errors.md#atomic-attempts`.
    #[error("other threads updated the cell during each of the allowed attempts; try again, or allow more")]
    Attempts,
    /// `attempts(n)` with `n` = 0.
    ///
    /// See `errors.md#atomic-no-attempt`.
    #[error("no attempt was allowed, so the cell was not read; allow one or more")]
    NoAttempt,
    /// Another owner took the lock of a cell in the middle of an update: this node left or was abandoned meanwhile, or another
    /// process overwrote the lock.
    ///
    /// See `errors.md#atomic-lock-lost`.
    #[error(
        "the lock of a cell in a region of node {node} was lost in the middle of an update: this node left meanwhile, or another process overwrote the lock; read the cell to see whether the update took place"
    )]
    LockLost {
        /// The node that has the region.
        node: NodeId,
    },
}

impl ServiceError for AtomicError {
    fn anchor(&self) -> &'static str {
        AtomicErrorAnchor::from(self).into()
    }

    fn certainty(&self) -> Certainty {
        match self {
            AtomicError::LockLost { .. } => Certainty::Unknown,
            _ => Certainty::DidNotHappen,
        }
    }

    fn is_retryable(&self) -> bool {
        *self == AtomicError::Attempts
    }

    fn node(&self) -> Option<NodeId> {
        match self {
            AtomicError::LockLost { node } => Some(*node),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_engine::error::Error;

    #[test]
    fn only_a_lost_lock_leaves_it_open_whether_the_update_took_place() {
        let node = NodeId(1);
        let lost = Error::from(AtomicError::LockLost { node });
        assert_eq!(lost.anchor(), "atomic-lock-lost");
        assert_eq!((lost.certainty(), lost.is_retryable(), lost.node()), (Certainty::Unknown, false, Some(node)));
        for (why, is_retryable) in
            [(AtomicError::Declined, false), (AtomicError::Attempts, true), (AtomicError::NoAttempt, false)]
        {
            let error = Error::from(why);
            assert_eq!(error.to_string(), why.to_string());
            assert_eq!((error.certainty(), error.is_retryable()), (Certainty::DidNotHappen, is_retryable), "{why}");
            assert_eq!(error.node(), None);
        }
    }
}
