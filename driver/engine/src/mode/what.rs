//! The parts of a mode, the request for one, and the figures of a link.

use doorbell_fabric::ParseIdError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use strum::{EnumString, FromRepr};

/// The most links to one node: shared memory, and four of a network.
pub const LINKS_MAX: usize = 5;

/// A kind of fabric.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, strum::Display, EnumString, FromRepr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = ParseIdError, parse_err_fn = unknown_fabric)]
#[repr(u8)]
pub enum Fabric {
    /// Memory that both nodes share.
    Shm,
    /// UDP.
    Udp,
}

/// The protocol by which data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, strum::Display, EnumString, FromRepr)]
#[strum(serialize_all = "lowercase", parse_err_ty = ParseIdError, parse_err_fn = unknown_protocol)]
#[repr(u8)]
pub enum Protocol {
    /// Shared memory transfer: as packets through the lane. Both processors copy.
    Transfer,
    /// DMA put: the origin's engine writes to the address that the target gave.
    Put,
    /// Remote get: the target's engine fetches the data.
    Get,
    /// Put and remote get at once, from both ends of the buffer, until they meet.
    Both,
}

/// A complete mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mode {
    /// The kind of fabric.
    pub fabric: Fabric,
    /// The number of the link within that kind, from 0.
    pub link: u8,
    /// The protocol.
    pub protocol: Protocol,
}

/// A request for a mode, or for parts of one.
///
/// Written with slashes, in any order: `udp`, `udp/1`, `put`, `shm/get`, `udp/0/transfer`. `any` requests nothing.
///
/// ```
/// # use doorbell::mode::{Fabric, ModeRequest, Protocol};
/// let request: ModeRequest = "udp/1/put".parse().unwrap();
/// assert_eq!(request, ModeRequest::fabric(Fabric::Udp).link(1).protocol(Protocol::Put));
/// assert_eq!(ModeRequest::default().to_string(), "any");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ModeRequest {
    /// The requested kind of fabric.
    pub fabric: Option<Fabric>,
    /// The requested link, by its number.
    pub link: Option<u8>,
    /// The requested protocol.
    pub protocol: Option<Protocol>,
}

/// The kinds of calls, each with a default mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, FromRepr)]
#[strum(serialize_all = "lowercase")]
#[repr(u8)]
pub enum Call {
    /// `send` and similar calls.
    Send,
    /// `put`.
    Put,
    /// `get`.
    Get,
}

/// The present load of a link, as the sending node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LinkMetrics {
    /// Messages and other packets that the target has not taken yet, as far as is known. In shared memory the target may have
    /// taken up to a quarter of the lane since.
    pub depth: u32,
    /// The bytes of these packets.
    pub bytes: u64,
    /// The room in bytes.
    pub room: u64,
    /// The room in messages and packets; 0 if there is no such limit.
    pub places: u32,
    /// DMA transfers that are not complete, including those of which the link carries only a part.
    pub transfers: u32,
    /// How long the target has taken nothing, in microseconds, although it had something to take: half of the room, 128
    /// packets, or an incomplete transfer. Otherwise 0.
    pub still: u32,
}

impl LinkMetrics {
    /// The part of the memory that is written and not yet read, in thousandths.
    pub fn occupancy(&self) -> u16 {
        let of = |used: u64, all: u64| (used.min(all) * 1000).checked_div(all).unwrap_or(0) as u16;
        of(self.bytes, self.room).max(of(self.depth.into(), self.places.into()))
    }
}

impl Fabric {
    /// All fabrics.
    pub const ALL: [Fabric; 2] = [Fabric::Shm, Fabric::Udp];
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Protocol; 4] = [Protocol::Transfer, Protocol::Put, Protocol::Get, Protocol::Both];
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

fn unknown_fabric(word: &str) -> ParseIdError {
    ParseIdError { word: word.into(), expected: "a fabric: shm or udp" }
}

fn unknown_protocol(word: &str) -> ParseIdError {
    ParseIdError { word: word.into(), expected: "a protocol: transfer, put, get or both" }
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
    /// A request for a kind of fabric.
    pub fn fabric(fabric: Fabric) -> Self {
        Self { fabric: Some(fabric), ..Self::default() }
    }

    /// Also requests a link.
    pub fn link(self, link: u8) -> Self {
        Self { link: Some(link), ..self }
    }

    /// Also requests a protocol.
    pub fn protocol(self, protocol: Protocol) -> Self {
        Self { protocol: Some(protocol), ..self }
    }

    /// Completes this request by `other` where it requests nothing.
    pub fn or(self, other: ModeRequest) -> Self {
        Self { fabric: self.fabric.or(other.fabric), link: self.link.or(other.link), protocol: self.protocol.or(other.protocol) }
    }

    /// Whether a mode satisfies this request.
    pub fn allows(&self, mode: Mode) -> bool {
        self.fabric.is_none_or(|fabric| fabric == mode.fabric)
            && self.link.is_none_or(|link| link == mode.link)
            && self.protocol.is_none_or(|protocol| protocol == mode.protocol)
    }
}

/// The length from which messages are faster by DMA than through a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dma {
    /// From this many bytes on.
    From(u64),
    /// Not at any length.
    Never,
}
