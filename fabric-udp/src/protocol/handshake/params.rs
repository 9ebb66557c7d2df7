//! The parameters that each end tells the other, and the addresses among them.

use crate::protocol::LinkId;
use crate::protocol::config::{Config, Integrity, LinkConfig};
use crate::protocol::random::Random;
use crate::protocol::wire::{Put, Reader};
use doorbell_fabric::{Incarnation, NodeId};
use std::net::{IpAddr, SocketAddr};

/// The most addresses that an end tells of.
pub(crate) const ADDRESSES_MAX: usize = 4;
/// The most sessions between two nodes: one for each address that an end tells of.
pub(crate) const STRANDS_MAX: usize = ADDRESSES_MAX;

/// The parameters that each end tells the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    pub node: NodeId,
    /// The strand: the index of this session among those between two nodes.
    pub strand: u8,
    pub incarnation: Incarnation,
    pub full_integrity: bool,
    /// The largest datagram that it takes.
    pub mtu: u16,
    pub lane_window: u32,
    /// The microseconds for which it may delay an acknowledgement.
    pub ack_delay: u32,
    /// Its share of the secrets of a session without a key.
    pub(super) share: [u8; 16],
    pub greeting: Vec<u8>,
    /// The addresses of its links; empty if it has only one. `None`: it does not know this parameter and has one path for a
    /// session.
    pub addresses: Option<Vec<Reach>>,
    /// Its only link is bound to all addresses of its machine. The address that it uses depends on the receiver.
    pub wildcard: bool,
}

/// One of several addresses, and the largest datagram that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    pub address: SocketAddr,
    pub mtu: u16,
}

impl Params {
    pub fn new(config: &Config, link: &LinkConfig, random: &mut Random) -> Params {
        Params {
            node: config.node,
            strand: 0,
            incarnation: config.incarnation,
            full_integrity: config.integrity == Integrity::Full,
            mtu: link.mtu as u16,
            lane_window: config.lane_window,
            ack_delay: config.ack_delay.as_micros() as u32,
            share: random.array(),
            greeting: config.greeting.clone(),
            addresses: Some(reaches(config).map(|(_, reach)| reach).collect()),
            wildcard: !config.addresses.is_empty() && config.addresses.iter().all(|address| address.ip().is_unspecified()),
        }
    }

    /// The same parameters for a session with this strand. The requesting end of a further session has identified itself already.
    pub fn of_strand(self, strand: u8) -> Params {
        let greeting = if strand == 0 { self.greeting } else { Vec::new() };
        Params { strand, greeting, ..self }
    }

    pub fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.u16(self.node.0);
        bytes.bytes(&[self.strand, self.full_integrity.into()]);
        bytes.u32(self.incarnation.0);
        bytes.u16(self.mtu);
        bytes.u16(self.greeting.len() as u16);
        bytes.u32(self.lane_window);
        bytes.u32(self.ack_delay);
        bytes.u16(0);
        bytes.bytes(&self.share);
        bytes.bytes(&self.greeting);
        if let Some(addresses) = &self.addresses {
            bytes.bytes(&[addresses.len() as u8, self.wildcard.into(), 0, 0]);
            for Reach { address, mtu } in addresses {
                bytes.address(*address);
                bytes.u16(*mtu);
            }
        }
        bytes
    }

    pub fn read(bytes: &[u8]) -> Option<Params> {
        let mut reader = Reader::new(bytes);
        let node = NodeId(reader.u16()?);
        let strand = reader.u8()?;
        let full_integrity = reader.u8()? != 0;
        let incarnation = Incarnation(reader.u32()?);
        let mtu = reader.u16()?;
        let greeting = usize::from(reader.u16()?);
        let (lane_window, ack_delay) = (reader.u32()?, reader.u32()?);
        reader.array::<2>()?;
        let share = reader.array()?;
        let greeting = reader.bytes(greeting)?.to_vec();
        let (addresses, wildcard) = match reader.array::<4>() {
            Some([count, wildcard, ..]) => (Some(Self::read_addresses(&mut reader, count)?), wildcard != 0),
            None => (None, false),
        };
        // Bytes that follow were added by a later release.
        let sound = incarnation.0 != 0
            && mtu >= 1_200
            && (8 << 10..=1 << 30).contains(&lane_window)
            && usize::from(strand) < STRANDS_MAX
            && ack_delay <= 100_000
            && greeting.len() <= 512;
        sound.then_some(Params {
            node,
            strand,
            incarnation,
            full_integrity,
            mtu,
            lane_window,
            ack_delay,
            share,
            greeting,
            addresses,
            wildcard,
        })
    }

    fn read_addresses(reader: &mut Reader, count: u8) -> Option<Vec<Reach>> {
        if usize::from(count) > ADDRESSES_MAX {
            return None;
        }
        let one = |reader: &mut Reader| {
            let (address, mtu) = (reader.address()?, reader.u16()?);
            (is_one_place(address) && mtu >= 1_200).then_some(Reach { address, mtu })
        };
        (0..count).map(|_| one(reader)).collect()
    }
}

/// Whether exactly one node can be at an address.
pub(crate) fn is_one_place(address: SocketAddr) -> bool {
    let is_broadcast = matches!(address.ip(), IpAddr::V4(ip) if ip.is_broadcast());
    !address.ip().is_unspecified() && !address.ip().is_multicast() && !is_broadcast && address.port() != 0
}

/// The links that a node tells of, and their addresses.
pub(crate) fn reaches(config: &Config) -> impl Iterator<Item = (LinkId, Reach)> {
    let told = config.addresses.len() > 1;
    let links = config.addresses.iter().zip(&config.links).enumerate();
    let links = links.filter(move |(_, (address, _))| told && !address.ip().is_unspecified() && address.port() != 0);
    links.map(|(at, (address, link))| (LinkId(at as u8), Reach { address: *address, mtu: link.mtu as u16 })).take(ADDRESSES_MAX)
}
