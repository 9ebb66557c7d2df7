//! Errors of teams.

use doorbell_engine::error::{Certainty, ServiceError};
use doorbell_fabric::NodeId;
use std::io::ErrorKind;

/// Why the members of a team can't continue together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error, strum::EnumDiscriminants)]
#[strum_discriminants(
    name(TeamErrorAnchor),
    vis(pub(self)),
    derive(strum::IntoStaticStr),
    strum(serialize_all = "kebab-case", prefix = "team-")
)]
#[non_exhaustive]
pub enum TeamError {
    /// Another member made another call, or used another root or number of elements, or divides the team's memory differently.
    ///
    /// See `errors.md#team-mismatch`.
    #[error(
        "node {node} made another call, or used another root or length; all members must make the same calls in the same order"
    )]
    Mismatch {
        /// The member.
        node: NodeId,
    },
    /// Another member no longer takes part: it dropped the team, is shrinking it, or gave up an operation.
    ///
    /// See `errors.md#team-gave-up`.
    #[error("node {node} dropped the team or gave up one of its operations; shrink the team, or form another one")]
    GaveUp {
        /// The member.
        node: NodeId,
    },
    /// The application's reduction panicked on this node.
    ///
    /// See `errors.md#team-panicked`.
    #[error("the reduction panicked, so the result is lost; correct it, and shrink the team or form another one")]
    Panicked,
    /// This member has as many pending operations of the team as it keeps. This operation was not begun, and the other members
    /// do not know of it.
    ///
    /// See `errors.md#team-full`.
    #[error("{most} operations of the team are pending on this node, which is the most; wait for one of them, and call again")]
    Full {
        /// The most pending operations.
        most: usize,
    },
    /// This member gave up an operation, because of a timeout or to shrink the team.
    ///
    /// See `errors.md#team-out-of-step`.
    #[error("the members are out of step because this node gave up an operation; shrink the team, or form another one")]
    OutOfStep,
}

impl ServiceError for TeamError {
    fn anchor(&self) -> &'static str {
        TeamErrorAnchor::from(self).into()
    }

    fn certainty(&self) -> Certainty {
        if self.is_retryable() { Certainty::DidNotHappen } else { Certainty::Unknown }
    }

    fn node(&self) -> Option<NodeId> {
        match self {
            TeamError::Mismatch { node } | TeamError::GaveUp { node } => Some(*node),
            _ => None,
        }
    }

    fn is_retryable(&self) -> bool {
        matches!(self, TeamError::Full { .. })
    }

    fn io_kind(&self) -> ErrorKind {
        if self.is_retryable() { ErrorKind::WouldBlock } else { ErrorKind::Other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_engine::error::Error;

    #[test]
    fn errors_say_what_failed_and_what_it_means() {
        let node = NodeId(3);
        let unknown = [TeamError::Panicked, TeamError::OutOfStep, TeamError::GaveUp { node }, TeamError::Mismatch { node }];
        for why in unknown {
            let error = Error::cannot("allreduce", why);
            assert_eq!(error.to_string(), format!("cannot allreduce: {why}"));
            assert_eq!((error.certainty(), error.is_retryable()), (Certainty::Unknown, false), "{error}");
            assert_eq!(std::io::Error::from(error).kind(), ErrorKind::Other);
        }
        assert_eq!(Error::cannot("allreduce", TeamError::OutOfStep).anchor(), "team-out-of-step");
        let full = Error::cannot("start a collective", TeamError::Full { most: 8 });
        assert_eq!((full.certainty(), full.is_retryable()), (Certainty::DidNotHappen, true));
        assert_eq!(Error::cannot("allreduce", TeamError::GaveUp { node }).node(), Some(node));
        assert_eq!(std::io::Error::from(full).kind(), ErrorKind::WouldBlock);
    }
}
