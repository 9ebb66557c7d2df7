//! Errors of locks, and how long calls wait for the domain's lock file.

use doorbell_engine::kit::{Error, LockFault};
use std::time::Duration;

/// How long creating and destroying a lock waits for the domain's lock file.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The error of a call on a lock.
pub fn fault(operation: &'static str, key: &str, why: LockFault) -> Error {
    Error::Lock { operation, key: key.into(), why: Box::new(why) }
}

/// The error for an answer of the wrong kind.
pub fn odd(key: &str) -> Error {
    fault("use", key, LockFault::Home("a reply that does not match the request".into()))
}
