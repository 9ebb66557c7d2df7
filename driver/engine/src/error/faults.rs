//! What is wrong with a thing that an operation is about: a key, a lock, a team, a device, a cell.

use doorbell_fabric::NodeId;
use doorbell_shm::keys::{OwnerId, Value};
use std::fmt;

/// Why a team can't go on together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum TeamFault {
    /// Another member called something else, with another root, or with another number of elements; or it divides the team's memory in another way.
    #[error(
        "node {node} called something else, or with another root or length; all members make the same calls in the same order"
    )]
    Mismatch {
        /// The member.
        node: NodeId,
    },
    /// Another member does nothing for the team any more: it dropped it, shrinks it, or gave an operation up.
    #[error("node {node} gave the team up, or an operation of it; shrink the team, or form another one")]
    GaveUp {
        /// The member.
        node: NodeId,
    },
    /// The reduction of the application panicked, here.
    #[error("the reduction panicked, so the result is lost; mend it, and shrink the team or form another one")]
    Panicked,
    /// So many operations of the team are under way at this member that no more are kept. This one was not begun; the others do not know of it.
    #[error("{most} operations of it are under way here, and no more are kept; wait for one of them, and call again")]
    Full {
        /// How many there may be.
        most: usize,
    },
    /// This member gave an operation up: by a time-out, or as it shrinks the team.
    #[error("its members are out of step, as one gave an operation up; shrink the team, or form another one")]
    OutOfStep,
}

/// What is wrong with a device, or with what is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceFault {
    /// No living process is attached to a device of this name.
    #[error(
        "no living process is attached to it; see that the name is right, that somebody attaches before others send, and after the last has left, once one is attached again, open it anew"
    )]
    Absent,
    /// A living thread has this id.
    #[error("{owner} is thread {thread} of it already; take another id, or drop the other one first")]
    Taken {
        /// The thread id.
        thread: u32,
        /// Who has it.
        owner: OwnerId,
    },
    /// It serves as many threads as it can.
    #[error("it serves {threads} threads, and no more can be; have whoever makes it allow more, with DeviceBuilder::threads")]
    Crowded {
        /// How many.
        threads: usize,
    },
    /// All its lanes are taken, or this node has as many as are left for others.
    #[error(
        "of its {senders} lanes none is left for this node, which gets another as long as more are free than it has; drop a sender, or have the process that makes it allow more, with DeviceBuilder::senders"
    )]
    NoLane {
        /// How many there are.
        senders: usize,
    },
    /// The message is longer than any of this device. It was not sent.
    #[error(
        "a message of {len} bytes is longer than the {max} it takes; send it in parts, put it into a region, or have whoever makes it allow more, with DeviceBuilder::message_max"
    )]
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// Bytes of the longest.
        max: usize,
    },
    /// The buffer is shorter than the message, which is not lost: the next call with a longer buffer gets it.
    #[error("the next message has {len} bytes, and the buffer {capacity}; it is not lost: call again with a longer one")]
    TooSmall {
        /// Bytes of the message.
        len: usize,
        /// Bytes of the buffer.
        capacity: usize,
    },
    /// Somebody wrote over it, or truncated it.
    #[error("another process wrote over its memory or truncated it; all should detach, and attach anew")]
    Damaged,
}

/// Why a call on a key failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockFault {
    /// Somebody destroyed it.
    #[error("it was destroyed; look it up again, or make it anew")]
    Destroyed,
    /// There is none of this name.
    #[error("there is none of this name; make it with init_key, or see `doorbell ls --locks`")]
    Unknown,
    /// The caller does not have it.
    #[error("it is not yours but {0}; who holds nothing cannot unlock")]
    NotYours(Value),
    /// The caller has it already.
    #[error("you hold it already; a key is not locked twice")]
    AlreadyYours,
    /// The value was not the expected one.
    #[error("its value is {0}, not the expected one; read it and decide again")]
    Otherwise(Value),
    /// It is locked by the module.
    #[error("it is locked by the module; wait until somebody calls unlock_all")]
    Barred,
    /// To wait for it would be for ever.
    #[error("to wait for it would never end: {0}")]
    Circle(Circle),
    /// The home of the registry could not do it.
    #[error("its home says: {0}")]
    Home(String),
    /// Others use it.
    #[error("nodes {} have not released it; wait until they have", words(.0))]
    InUse(Vec<NodeId>),
}

fn words(nodes: &[NodeId]) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Who waits for whom, all around: each of them waits for a key that the next one has, and the last one's key is the first one's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circle {
    /// Who waits, and the name of the key it waits for.
    pub waits: Vec<(OwnerId, String)>,
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (who, key)) in self.waits.iter().enumerate() {
            let next = self.waits[(at + 1) % self.waits.len()].0;
            write!(f, "{}{who} waits for '{key}', which is held by {next}", if at > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

/// Why an update did not take place. The cell is as others left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NotPerformed {
    /// The condition was false of its value.
    #[error("the update was declined: its condition was not true of the cell's value")]
    Declined,
    /// Others were faster at each attempt.
    #[error("others updated the cell at each of the attempts that were allowed; try again, or allow more")]
    Attempts,
    /// `attempts(n)` with an `n` that was 0.
    #[error("no attempt was allowed, so the cell was not looked at; allow one or more")]
    NoAttempt,
}
