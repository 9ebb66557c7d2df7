//! Large messages, moved from both ends at once.
//!
//! The method, step by step, with who executes what:
//!
//! 1. The origin injects an **RTS** descriptor. It takes its place in the order of messages, and carries the *direct-put
//!    descriptor* to the target as its payload.
//! 2. Without waiting, the origin's engine sends chunks from the *first* end of the buffer as **memory-FIFO** packets. What arrives
//!    before any receive is posted goes to temporary storage.
//! 3. The target matches the RTS to a receive, inscribes where the message is to be stored, and sends the descriptor back as a
//!    **remote get**, at high priority.
//! 4. The origin's engine, and no thread of its application, injects the **direct put**: chunks from the *last* end of the
//!    buffer into the target's memory. A target that waits copies chunks from that end as well: two processors copy.
//! 5. Chunks are claimed from the two ends of one [meeting](doorbell_shm::meeting). When the ends have met and everything was
//!    moved, the send counter of the origin and the receive counter of the target reach zero, each once.
//!
//! Memory is only ever *pulled*, by the target, unless its owner is certain to wait: a receive that blocks without a deadline lets
//! the origin put into its buffer, and does not return before the origin has let go of it, or is dead. A receive
//! that can be cancelled grants nothing, so nothing can land in a buffer that was given back.
//!
//! Between nodes that share no memory the same descriptors go by the lanes of a session, and a direct put is what the session
//! stores in whatever order it arrives ([`apart`]). There the origin puts all that is left when the remote get comes, by one link or in parts by
//! several, and the target's own engine stores it, so that any receive grants.

pub mod apart;
pub mod descriptor;
pub mod incoming;
pub mod memory;
pub mod outgoing;
pub mod report;
pub mod way;

pub use descriptor::Place;
pub use report::{Descriptor, Executed, Side, TransferReport};

use std::fmt;
use std::str::FromStr;

/// The shortest message that is moved from both ends, in bytes: shorter ones are through a lane before an RTS is answered.
pub const RENDEZVOUS_BYTES: usize = (32 << 10) + 1;

/// A shorter message is through the lane of a session before an RTS is answered, in bytes.
pub(crate) const APART_LEAST: usize = 256 << 10;

/// A lower priority gets at least one chunk in so many.
pub(crate) const LEAST_SHARE: u32 = 16;

/// Who copies the bytes of a large message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Copy {
    /// Whoever drives: both processors if both processes wait. Messages in private memory go through the lane where that is faster than the
    /// kernel's copy: shorter ones than 1 MiB, several at once, and where the system makes its copy dear. Over a network shorter ones
    /// than 256 KiB go through the lane.
    #[default]
    Auto,
    /// The origin alone: memory-FIFO packets and direct puts.
    Origin,
    /// The target alone, once it has matched the message. Over a network it can't, and all goes by memory-FIFO packets.
    Target,
    /// Both, whoever waits.
    Both,
}

impl Copy {
    const WORDS: [(Copy, &str); 4] =
        [(Copy::Auto, "auto"), (Copy::Origin, "origin"), (Copy::Target, "target"), (Copy::Both, "both")];
}

impl fmt::Display for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::WORDS.iter().find(|(copy, _)| copy == self).map_or("", |(_, word)| word))
    }
}

impl FromStr for Copy {
    type Err = doorbell_fabric::ParseIdError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let expected = "who copies: auto, origin, target or both";
        let found = Self::WORDS.iter().find(|(_, known)| *known == word);
        found.map(|(copy, _)| *copy).ok_or_else(|| doorbell_fabric::ParseIdError { word: word.into(), expected })
    }
}
