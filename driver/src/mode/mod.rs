//! Modes: how data goes, asked for and chosen.
//!
//! A **mode** is a fabric, one of its links, and a protocol: shared memory transfer, DMA put, remote get. Each call has a default mode
//! (`send`: shared memory transfer; `put`: DMA put), a program may [ask](ModeRequest) for another, fully or in part, and a [`Policy`] decides from
//! what is [seen](LinkFigures) at this moment whether to do as asked. The [`Receipt`] of a message says what was asked for, what was
//! decided, why, with the figures, and which protocol moved how many of its bytes.
//!
//! A node without a policy does as it always does, and the path of a small message is the same; what is asked for by name is done then, or
//! is an error.
//!
//! [`Thresholds`] is the policy that there is:
//!
//! ```
//! use doorbell::mode::{Dma, Fabric, Thresholds};
//! // What `doorbell tune` found here, and queues of another length.
//! let policy = Thresholds::tuned().depth_high(512).depth_low(256);
//! // From regions always by DMA where that is possible, and what is asked for by name is done, whatever waits there.
//! let strict = Thresholds::new().dma(Fabric::Shm, true, Dma::From(0)).strict(true);
//! ```
//!
//! A long message may go by several links of a network at once, a part of it by each: [`Decision::beside`] says by which.
//!
//! Messages keep their order whatever modes they take: each has its number among those of its pair of nodes and priority, and the
//! target takes what comes by several links in the order of the numbers.

mod links;
#[cfg(not(loom))]
mod log;
mod means;
mod modes;
#[cfg(not(loom))]
mod monitor;
mod policy;
mod receipt;
mod thresholds;
mod tune;

pub use links::Links;
#[cfg(not(loom))]
pub(crate) use links::NETWORK_LINKS;
pub use means::Mean;
pub use modes::Modes;
#[cfg(not(loom))]
pub use monitor::{DecisionShown, LatencySum, LinkMeans, LinkShown, ModeAggregate, ModeCounts, ModeMonitor, SIZE_CLASSES};
pub use policy::{Decision, LinkView, Policy, Question};
pub use receipt::{MovedBytes, Receipt};
pub use thresholds::Thresholds;
pub use tune::{Dma, Found, Machine, Tune, TuneError};

use doorbell_fabric::ParseIdError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The most links to one node: shared memory, and four of a network.
pub const LINKS_MAX: usize = 5;

/// A kind of fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fabric {
    /// Memory that both nodes share.
    Shm,
    /// UDP.
    Udp,
}

/// By which rules data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// Shared memory transfer: as packets through the lane, which both processors copy.
    Transfer,
    /// DMA put: the origin's engine writes it to where the target said.
    Put,
    /// Remote get: the target's engine fetches it.
    Get,
    /// Put and remote get at once, from both ends of the buffer, until they meet.
    Both,
}

/// A whole mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mode {
    /// By which kind of fabric.
    pub fabric: Fabric,
    /// By which of its links, from 0.
    pub link: u8,
    /// By which protocol.
    pub protocol: Protocol,
}

/// What a program asks for: a mode, or parts of one.
///
/// Written with slashes, in any order, as `udp`, `udp/1`, `put`, `shm/get`, `udp/0/transfer`; `any` asks for nothing.
///
/// ```
/// # use doorbell::mode::{Fabric, ModeRequest, Protocol};
/// let request: ModeRequest = "udp/1/put".parse().unwrap();
/// assert_eq!(request, ModeRequest::fabric(Fabric::Udp).link(1).protocol(Protocol::Put));
/// assert_eq!(ModeRequest::default().to_string(), "any");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ModeRequest {
    /// By this kind of fabric.
    pub fabric: Option<Fabric>,
    /// By this of its links.
    pub link: Option<u8>,
    /// By this protocol.
    pub protocol: Option<Protocol>,
}

/// The calls that have a default mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// `send` and its kin.
    Send,
    /// `put`.
    Put,
    /// `get`.
    Get,
}

/// What is seen of a link at this moment, by the node that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LinkFigures {
    /// Messages and other packets that the target has not taken yet, as far as is known: in shared memory up to a quarter of the lane may
    /// have been taken since.
    pub depth: u32,
    /// Bytes of them.
    pub bytes: u64,
    /// The bytes that there is room for.
    pub room: u64,
    /// Messages and packets that there is room for; none if there is no such limit.
    pub places: u32,
    /// DMA transfers that are not complete, those of which the link carries a part included.
    pub transfers: u32,
    /// For how long the target was not seen to take anything, in microseconds, while it had half of what there is room for, 128
    /// packets, or a transfer that was not complete; else 0.
    pub still: u32,
}

impl LinkFigures {
    /// What part of the memory holds what was written and not yet read, in thousandths.
    pub fn occupancy(&self) -> u16 {
        let of = |used: u64, all: u64| (used.min(all) * 1000).checked_div(all).unwrap_or(0) as u16;
        of(self.bytes, self.room).max(of(self.depth.into(), self.places.into()))
    }
}

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

impl Fabric {
    /// All of them.
    pub const ALL: [Fabric; 2] = [Fabric::Shm, Fabric::Udp];
    const WORDS: [(Fabric, &str); 2] = [(Fabric::Shm, "shm"), (Fabric::Udp, "udp")];
}

impl Protocol {
    /// All of them.
    pub const ALL: [Protocol; 4] = [Protocol::Transfer, Protocol::Put, Protocol::Get, Protocol::Both];
    const WORDS: [&'static str; 4] = ["transfer", "put", "get", "both"];
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

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::WORDS.iter().find(|(fabric, _)| fabric == self).map_or("", |(_, word)| word))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::WORDS[*self as usize])
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(["send", "put", "get"][*self as usize])
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}/{}", self.fabric, self.link, self.protocol))
    }
}

impl fmt::Display for ModeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            self.fabric.map(|fabric| fabric.to_string()),
            self.link.map(|link| link.to_string()),
            self.protocol.map(|protocol| protocol.to_string()),
        ];
        let words: Vec<_> = words.into_iter().flatten().collect();
        f.pad(&if words.is_empty() { "any".into() } else { words.join("/") })
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

impl FromStr for Fabric {
    type Err = ParseIdError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let found = Self::WORDS.iter().find(|(_, known)| *known == word);
        found.map(|(fabric, _)| *fabric).ok_or_else(|| ParseIdError { word: word.into(), expected: "a fabric: shm or udp" })
    }
}

impl FromStr for Protocol {
    type Err = ParseIdError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|protocol| Self::WORDS[*protocol as usize] == word);
        let expected = "a protocol: transfer, put, get or both";
        found.ok_or_else(|| ParseIdError { word: word.into(), expected })
    }
}

impl FromStr for ModeRequest {
    type Err = ParseIdError;

    fn from_str(words: &str) -> Result<Self, Self::Err> {
        let mut request = Self::default();
        if words == "any" {
            return Ok(request);
        }
        let expected = "a mode: a fabric (shm, udp), a link (from 0), a protocol (transfer, put, get, both), with slashes between them, or any";
        for word in words.split('/') {
            let is_new = if let Ok(fabric) = word.parse() {
                request.fabric.replace(fabric).is_none()
            } else if let Ok(protocol) = word.parse() {
                request.protocol.replace(protocol).is_none()
            } else {
                word.parse().is_ok_and(|link: u8| request.link.replace(link).is_none())
            };
            if !is_new {
                return Err(ParseIdError { word: words.into(), expected });
            }
        }
        Ok(request)
    }
}

impl From<Mode> for ModeRequest {
    fn from(mode: Mode) -> Self {
        Self { fabric: Some(mode.fabric), link: Some(mode.link), protocol: Some(mode.protocol) }
    }
}

impl ModeRequest {
    /// Asks for a kind of fabric.
    pub fn fabric(fabric: Fabric) -> Self {
        Self { fabric: Some(fabric), ..Self::default() }
    }

    /// Asks for a link, too.
    pub fn link(self, link: u8) -> Self {
        Self { link: Some(link), ..self }
    }

    /// Asks for a protocol, too.
    pub fn protocol(self, protocol: Protocol) -> Self {
        Self { protocol: Some(protocol), ..self }
    }

    /// What is not asked for here is asked for as there.
    pub fn or(self, other: ModeRequest) -> Self {
        Self { fabric: self.fabric.or(other.fabric), link: self.link.or(other.link), protocol: self.protocol.or(other.protocol) }
    }

    /// Whether a mode is one that was asked for.
    pub fn allows(&self, mode: Mode) -> bool {
        self.fabric.is_none_or(|fabric| fabric == mode.fabric)
            && self.link.is_none_or(|link| link == mode.link)
            && self.protocol.is_none_or(|protocol| protocol == mode.protocol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        // Many cases: not for Miri.
        #[cfg_attr(miri, ignore)]
        fn a_request_is_read_as_it_is_written(fabric in 0..3_usize, link in proptest::option::of(any::<u8>()), protocol in 0..5_usize) {
            let fabric = [None, Some(Fabric::Shm), Some(Fabric::Udp)][fabric];
            let protocol = Protocol::ALL.get(protocol).copied();
            let request = ModeRequest { fabric, link, protocol };
            prop_assert_eq!(request.to_string().parse::<ModeRequest>(), Ok(request));
        }
    }

    #[test]
    fn a_request_that_says_something_twice_or_nothing_known_is_refused() {
        for words in ["", "shm/udp", "1/2", "put/get", "udp/", "udp/256", "tcp", "any/udp"] {
            assert!(words.parse::<ModeRequest>().is_err(), "{words}");
        }
        assert_eq!("put/udp".parse(), Ok(ModeRequest::fabric(Fabric::Udp).protocol(Protocol::Put)));
    }

    #[test]
    fn occupancy_is_of_what_is_scarcer() {
        let figures = LinkFigures { depth: 8, bytes: 1, room: 100, places: 16, transfers: 0, still: 0 };
        assert_eq!((figures.occupancy(), LinkFigures::default().occupancy()), (500, 0));
        assert_eq!(LinkFigures { bytes: u64::MAX, room: 7, ..figures }.occupancy(), 1000);
    }
}
