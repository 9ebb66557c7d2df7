//! What can be wrong with the object of an operation: a key, a lock, a team, a device, a cell.

use doorbell_fabric::NodeId;
use doorbell_shm::keys::{OwnerId, Value};
use std::fmt;

/// Why the members of a team can't continue together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum TeamFault {
    /// Another member made another call, or used another root or number of elements, or divides the team's memory differently.
    #[error(
        "node {node} made another call, or used another root or length; all members must make the same calls in the same order"
    )]
    Mismatch {
        /// The member.
        node: NodeId,
    },
    /// Another member no longer takes part: it dropped the team, is shrinking it, or gave up an operation.
    #[error("node {node} dropped the team or gave up one of its operations; shrink the team, or form another one")]
    GaveUp {
        /// The member.
        node: NodeId,
    },
    /// The application's reduction panicked on this node.
    #[error("the reduction panicked, so the result is lost; correct it, and shrink the team or form another one")]
    Panicked,
    /// This member has as many pending operations of the team as it keeps. This operation was not begun, and the other members
    /// do not know of it.
    #[error("{most} operations of the team are pending on this node, which is the most; wait for one of them, and call again")]
    Full {
        /// The most pending operations.
        most: usize,
    },
    /// This member gave up an operation, because of a timeout or to shrink the team.
    #[error("the members are out of step because this node gave up an operation; shrink the team, or form another one")]
    OutOfStep,
}

/// The faults of a device, or of a request to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceFault {
    /// No living process is attached to a device of this name.
    #[error(
        "no living process is attached to it; check the name, attach a process before others send, and open the device again if all its processes had left"
    )]
    Absent,
    /// A living thread has this id.
    #[error("{owner} already is thread {thread} of it; take another id, or drop that thread first")]
    Taken {
        /// The thread id.
        thread: u32,
        /// The owner of the id.
        owner: OwnerId,
    },
    /// The device has as many threads as it can serve.
    #[error(
        "it already serves {threads} threads, which is its limit; let the process that creates it allow more, with DeviceBuilder::threads"
    )]
    Crowded {
        /// The most threads.
        threads: usize,
    },
    /// All its lanes are taken, or the rest is reserved for other nodes.
    #[error(
        "none of its {senders} lanes is left for this node: a node gets another lane only while more lanes are free than it has; drop a sender, or let the process that creates the device allow more, with DeviceBuilder::senders"
    )]
    NoLane {
        /// The number of lanes.
        senders: usize,
    },
    /// The message is longer than the device allows. It was not sent.
    #[error(
        "a message of {len} bytes is longer than the {max} it takes; send it in parts, put it into a region, or let the process that creates the device allow more, with DeviceBuilder::message_max"
    )]
    TooLong {
        /// The length of the message in bytes.
        len: usize,
        /// The most bytes of a message.
        max: usize,
    },
    /// The buffer is shorter than the message. The message is not lost: the next call with a longer buffer gets it.
    #[error(
        "the next message has {len} bytes, but the buffer only {capacity}; the message is kept: call again with a longer buffer"
    )]
    TooSmall {
        /// The length of the message in bytes.
        len: usize,
        /// The length of the buffer in bytes.
        capacity: usize,
    },
    /// Another process overwrote or truncated its memory.
    #[error("another process overwrote or truncated its memory; let all processes detach and attach again")]
    Damaged,
}

/// Why a call on a lock failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockFault {
    /// The lock was destroyed.
    #[error("it was destroyed; look it up again, or create it again")]
    Destroyed,
    /// No lock has this name.
    #[error("no lock has this name; create it with LockKey::init, or see `doorbell ls --locks`")]
    Unknown,
    /// The caller does not hold the lock.
    #[error("you do not hold it (its value is {0}); only its holder can unlock it or change it")]
    NotYours(Value),
    /// The caller already holds the lock.
    #[error("you hold it already; a holder can't lock it a second time")]
    AlreadyYours,
    /// The value was not the expected one.
    #[error("its value is {0}, not the expected one; read it and decide again")]
    Otherwise(Value),
    /// The lock is frozen by its module.
    #[error("it is locked by the module; wait until unlock_all is called")]
    Frozen,
    /// The wait would be a deadlock.
    #[error("waiting for it would be a deadlock: {0}")]
    Deadlock(Deadlock),
    /// The coordinator of the lock registry could not do it.
    #[error("the coordinator refused: {0}")]
    Home(String),
    /// Other nodes use the lock.
    #[error("nodes {} have not released it; wait until they have", words(.0))]
    InUse(Vec<NodeId>),
}

fn words(nodes: &[NodeId]) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A deadlock: each owner waits for a lock that the next one holds, and the last one waits for a lock of the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The waiting owners, each with the name of the lock it waits for.
    pub waits: Vec<(OwnerId, String)>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (who, key)) in self.waits.iter().enumerate() {
            let next = self.waits[(at + 1) % self.waits.len()].0;
            write!(f, "{}{who} waits for '{key}', which is held by {next}", if at > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

/// Why an update did not take place. The update left the cell unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NotPerformed {
    /// The condition was false for the cell's value.
    #[error("the update was declined: its condition was not true of the cell's value")]
    Declined,
    /// Other threads updated the cell during each attempt.
    #[error("other threads updated the cell during each of the allowed attempts; try again, or allow more")]
    Attempts,
    /// `attempts(n)` with `n` = 0.
    #[error("no attempt was allowed, so the cell was not read; allow one or more")]
    NoAttempt,
}
