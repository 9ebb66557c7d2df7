//! The reason for a message's mode.

use std::fmt;
use strum::{FromRepr, IntoStaticStr, VariantArray};

/// The reason for a message's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The caller requested it.
    Requested,
    /// It is the call's default.
    Default,
    /// The queue of the requested link is too long.
    Queue {
        /// How many packets were not taken yet, or how many transfers were not complete.
        depth: u32,
        /// The limit.
        limit: u32,
    },
    /// The memory of the requested link is too full.
    Occupancy {
        /// The unread part of the memory, in thousandths.
        occupancy: u16,
        /// The limit, in thousandths.
        limit: u16,
    },
    /// At this length another protocol is faster.
    Size {
        /// The length in bytes from which it is faster.
        limit: u64,
    },
    /// Another link of the same kind has less to do.
    Balance {
        /// Bytes that wait on the requested link.
        bytes: u64,
        /// Bytes that wait on the chosen link.
        instead: u64,
    },
    /// The other protocol was faster for messages of this size: means in nanoseconds.
    Latency {
        /// The mean of the requested protocol.
        asked: u32,
        /// The mean of the chosen protocol.
        instead: u32,
    },
    /// A trial: now and then the other protocol is used, to measure it.
    Trial {
        /// One of this many messages of the size is a trial.
        every: u32,
    },
    /// Another link to that node moves long messages, so both processors already copy other bytes. By DMA, the bytes of this
    /// message are copied only once.
    AtWork,
    /// The request can't be followed for this message; the text tells why.
    Unavailable(&'static str),
    /// The requested link has too much to do, and so have all others.
    AllBusy,
}

/// The kinds of reasons for which a message does not go as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, FromRepr, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
#[repr(u8)]
pub enum Refusal {
    /// [`Reason::Queue`].
    Queue,
    /// [`Reason::Occupancy`].
    Occupancy,
    /// [`Reason::Size`].
    Size,
    /// [`Reason::Balance`].
    Balance,
    /// [`Reason::Latency`].
    Latency,
    /// [`Reason::Trial`].
    Trial,
    /// [`Reason::AtWork`].
    AtWork,
    /// [`Reason::Unavailable`].
    Unavailable,
    /// [`Reason::AllBusy`].
    AllBusy,
}

impl Refusal {
    /// All kinds.
    pub const ALL: &[Refusal] = <Self as VariantArray>::VARIANTS;

    /// Its name in output, for example `all_busy`.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

impl Reason {
    /// The kind of reason for which the message did not go as requested. `None`: it went as requested or by default.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Reason::Requested | Reason::Default => None,
            Reason::Queue { .. } => Some(Refusal::Queue),
            Reason::Occupancy { .. } => Some(Refusal::Occupancy),
            Reason::Size { .. } => Some(Refusal::Size),
            Reason::Balance { .. } => Some(Refusal::Balance),
            Reason::Latency { .. } => Some(Refusal::Latency),
            Reason::Trial { .. } => Some(Refusal::Trial),
            Reason::AtWork => Some(Refusal::AtWork),
            Reason::Unavailable(_) => Some(Refusal::Unavailable),
            Reason::AllBusy => Some(Refusal::AllBusy),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |permille: &u16| f64::from(*permille) / 10.0;
        match self {
            Reason::Requested => write!(f, "as asked"),
            Reason::Default => write!(f, "the call's default"),
            Reason::Queue { depth, limit } => write!(f, "queue: {depth} wait, {limit} may"),
            Reason::Occupancy { occupancy, limit } => {
                write!(f, "occupancy: {:.1} % is not read, {:.1} % may be", percent(occupancy), percent(limit))
            }
            Reason::Size { limit } => write!(f, "size: from {limit} bytes on"),
            Reason::Balance { bytes, instead } => write!(f, "balance: {bytes} bytes wait there, {instead} here"),
            Reason::Latency { asked, instead } => write!(f, "latency: {asked} ns there, {instead} ns here"),
            Reason::Trial { every } => write!(f, "trial: one of {every} goes the other way"),
            Reason::AtWork => write!(f, "another link is at work: these bytes are copied once"),
            Reason::Unavailable(why) => write!(f, "not possible: {why}"),
            Reason::AllBusy => write!(f, "all links have too much to do"),
        }
    }
}
