//! What a mode is made of, how a program asks for one, and what is seen of a link.

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
