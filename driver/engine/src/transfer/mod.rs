//! Large messages, moved from both ends at once.
//!
//! The steps, and the engine that executes each:
//!
//! 1. The origin injects an **RTS** descriptor. It takes its place in the order of messages, and carries the *direct-put
//!    descriptor* to the target as its payload.
//! 2. Without waiting, the origin's engine sends chunks from the *first* end of the buffer as **memory-FIFO** packets. Chunks
//!    that arrive before a receive is posted go to temporary storage.
//! 3. The target matches the RTS to a receive, writes the destination into the descriptor, and returns it as a **remote get**,
//!    at high priority. A target that copies the whole message alone returns nothing.
//! 4. The origin's engine injects the **direct put**, without the help of the application: chunks from the *last* end of the
//!    buffer into the target's memory. A target that waits copies chunks from that end as well, so two processors copy.
//! 5. Chunks are claimed from the two ends of one [rendezvous block](doorbell_shm::meeting). When the ends have met and
//!    everything was moved, the send counter of the origin and the receive counter of the target reach zero, each once.
//!
//! By default the origin puts only into the buffer of a call that waits without a deadline, and all other memory is *pulled*, by
//! the target. If one end asks for puts ([`CopySide::Origin`], [`CopySide::Both`], or such a mode), the origin puts for every
//! receive: into the buffer of an operation, or into storage of the engine if a call can return at a deadline or reads the message
//! in place. Nothing is written into memory that a program has got back: see `incoming/grant.rs`.
//!
//! Between nodes that share no memory, the same descriptors take the lanes of a session, and the session stores a direct put in
//! any order of arrival ([`apart`]). When the remote get comes, the origin puts all that is left, over one link or in parts
//! over several. The target's own engine stores it, so every receive permits it.

pub mod apart;
pub mod descriptor;
pub mod incoming;
pub mod kept;
pub mod memory;
pub mod outgoing;
pub mod report;
pub mod slot;
pub mod way;

pub use descriptor::Place;
pub use report::{Descriptor, Executed, Side, TransferReport};

use doorbell_fabric::ParseIdError;
use strum::EnumString;

/// The shortest message in private memory, or under a set copying side, that may be moved from both ends, in bytes. A shorter one has passed
/// the lane before an RTS is answered. In regions, messages above 16 KiB may be.
pub const RENDEZVOUS_BYTES: usize = (32 << 10) + 1;

/// The same for messages in regions, unless a copying side is set. Copying them needs no system call.
pub(crate) const IN_REGION_LEAST: usize = (16 << 10) + 1;

/// The longest message that its target copies alone, in bytes, if it is the only transfer there. The origin would begin its half too late to
/// save time.
pub(crate) const ALONE_MOST: u64 = 2 * descriptor::CHUNK_MOST;

/// A shorter message has passed the lane of a session before an RTS is answered, in bytes.
pub(crate) const APART_LEAST: usize = 256 << 10;

/// A lower priority gets at least one chunk in this many.
pub(crate) const LEAST_SHARE: u32 = 16;

/// Which side copies the bytes of a large message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, strum::Display, EnumString)]
#[strum(serialize_all = "lowercase", parse_err_ty = ParseIdError, parse_err_fn = unknown_copyside)]
pub enum CopySide {
    /// Chosen for each message. Usually both sides copy, as far as their threads turn the engine: two processors if both
    /// processes wait. The target copies alone if there are several pending messages to it, or one of up to 256 KiB. Messages below
    /// 1 MiB in private memory, or of up to 256 KiB in regions, take the lane where their sender finds it faster. Longer ones in private
    /// memory take it when several are pending, and where the kernel's copy is slow. Over a network, messages below 256 KiB take the
    /// lane.
    #[default]
    Auto,
    /// Only the origin: memory-FIFO packets and direct puts. The target grants puts for every kind of receive, unless it is set
    /// to [`Target`](Self::Target).
    Origin,
    /// Only the target, once it has matched the message. Over a network the target can't copy, so all bytes go as memory-FIFO
    /// packets.
    Target,
    /// Both sides, for every large message whose memory can be reached.
    Both,
}

fn unknown_copyside(word: &str) -> ParseIdError {
    ParseIdError { word: word.into(), expected: "a copying side: auto, origin, target or both" }
}
