//! Why a message went as it did.

use std::fmt;

/// Why a message went as it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// As the caller asked.
    Requested,
    /// As the call does by default.
    Default,
    /// The queue of the link that was asked for is too long: so many wait, of so many that may.
    Queue {
        /// How many were not taken yet, or how many transfers were not complete.
        depth: u32,
        /// How many may be.
        limit: u32,
    },
    /// The shared memory of the link that was asked for is too full: in thousandths of all.
    Occupancy {
        /// What part of it was not read yet.
        occupancy: u16,
        /// What part may be.
        limit: u16,
    },
    /// The message is so long that another protocol is faster.
    Size {
        /// Bytes from which on that is so.
        limit: u64,
    },
    /// Other links of the same kind have less to do.
    Balance {
        /// Bytes that wait on the link that was asked for.
        bytes: u64,
        /// On the one that was taken.
        instead: u64,
    },
    /// The other protocol was seen to be faster for messages of this size: in nanoseconds.
    Latency {
        /// The mean of the one that was asked for.
        asked: u32,
        /// Of the one that was taken.
        instead: u32,
    },
    /// The other protocol is tried now and then, to know how long it takes: with one of so many messages of this size.
    Trial {
        /// Of how many.
        every: u32,
    },
    /// Another link to that node moves long messages: both processors have other bytes to copy, and by DMA these are copied once.
    AtWork,
    /// What was asked for can't be done for this message, and why.
    Unavailable(&'static str),
    /// The link that was asked for has too much to do, and all others as well.
    AllBusy,
}

/// The kinds of reasons for which a message does not go as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
    /// All of them.
    pub const ALL: &[Refusal] = &[
        Refusal::Queue,
        Refusal::Occupancy,
        Refusal::Size,
        Refusal::Balance,
        Refusal::Latency,
        Refusal::Trial,
        Refusal::AtWork,
        Refusal::Unavailable,
        Refusal::AllBusy,
    ];

    /// Its name in output: `all_busy`.
    pub const fn word(self) -> &'static str {
        ["queue", "occupancy", "size", "balance", "latency", "trial", "at_work", "unavailable", "all_busy"][self as usize]
    }
}

impl Reason {
    /// For what kind of reason the message did not go as it was asked for; `None`: it did, or as is usual.
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

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
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
