//! The parameters that each end tells the other, and the addresses among them.

use crate::protocol::config::{Config, Integrity, LinkConfig};
use crate::protocol::random::Random;
use crate::protocol::wire::{Address, FromBytes, Immutable, IntoBytes, KnownLayout, U16, U32, Unaligned, take};
use crate::protocol::{LinkId, Peer};
use doorbell_fabric::{Incarnation, NodeId};
use std::net::{IpAddr, SocketAddr};

/// The most addresses that an end tells of.
pub(crate) const ADDRESSES_MAX: usize = 4;
/// The most sessions between two nodes: one for each address that an end tells of.
pub(crate) const STRANDS_MAX: usize = ADDRESSES_MAX;

/// The parameters that each end tells the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    pub fixed: Fixed,
    pub greeting: Vec<u8>,
    /// The addresses of its links; empty if it has only one. `None`: it does not know this parameter and has one path for a
    /// session.
    pub addresses: Option<Vec<Reach>>,
    /// Its only link is bound to all addresses of its machine. The address that it uses depends on the receiver.
    pub wildcard: bool,
}

/// The parameters of fixed length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Fixed {
    pub node: U16,
    /// The strand: the index of this session among those between two nodes.
    pub strand: u8,
    pub full_integrity: u8,
    pub incarnation: U32,
    /// The largest datagram that it takes.
    pub mtu: U16,
    greeting: U16,
    pub lane_window: U32,
    /// The microseconds for which it may delay an acknowledgement.
    pub ack_delay: U32,
    reserved: U16,
    /// Its share of the secrets of a session without a key.
    pub(super) share: [u8; 16],
}

/// One of several addresses, and the largest datagram that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Reach {
    pub address: Address,
    pub mtu: U16,
}

impl Params {
    /// This end's parameters. The requesting end of a further session (`strand` is not zero) has identified itself already.
    pub fn new(config: &Config, link: &LinkConfig, strand: u8, random: &mut Random) -> Params {
        let greeting = if strand == 0 { config.greeting.clone() } else { Vec::new() };
        let fixed = Fixed {
            node: config.node.0.into(),
            strand,
            full_integrity: (config.integrity == Integrity::Full).into(),
            incarnation: config.incarnation.0.into(),
            mtu: (link.mtu as u16).into(),
            greeting: (greeting.len() as u16).into(),
            lane_window: config.lane_window.into(),
            ack_delay: (config.ack_delay.as_micros() as u32).into(),
            reserved: U16::ZERO,
            share: random.array(),
        };
        let wildcard = !config.addresses.is_empty() && config.addresses.iter().all(|address| address.ip().is_unspecified());
        Params { fixed, greeting, addresses: Some(reaches(config).map(|(_, reach)| reach).collect()), wildcard }
    }

    /// The node that tells these parameters.
    pub fn peer(&self) -> Peer {
        Peer { node: NodeId(self.fixed.node.get()), incarnation: Incarnation(self.fixed.incarnation.get()) }
    }

    pub fn write(&self) -> Vec<u8> {
        let mut bytes = [self.fixed.as_bytes(), &self.greeting].concat();
        if let Some(addresses) = &self.addresses {
            bytes.extend([addresses.len() as u8, self.wildcard.into(), 0, 0]);
            bytes.extend_from_slice(addresses[..].as_bytes());
        }
        bytes
    }

    /// Reads parameters. Bytes behind them were added by a later release.
    pub fn read(mut bytes: &[u8]) -> Option<Params> {
        let fixed = *take::<Fixed>(&mut bytes)?;
        let greeting = bytes.split_off(..usize::from(fixed.greeting.get()))?.to_vec();
        let (addresses, wildcard) = match take::<[u8; 4]>(&mut bytes) {
            Some([count, wildcard, ..]) => {
                let (addresses, _) = <[Reach]>::ref_from_prefix_with_elems(bytes, usize::from(*count)).ok()?;
                (Some(addresses.to_vec()), *wildcard != 0)
            }
            None => (None, false),
        };
        let is_sound = |reach: &Reach| is_one_place(reach.address.get()) && reach.mtu >= 1_200;
        let sound = fixed.incarnation != 0
            && fixed.mtu >= 1_200
            && (8 << 10..=1 << 30).contains(&fixed.lane_window.get())
            && usize::from(fixed.strand) < STRANDS_MAX
            && fixed.ack_delay <= 100_000
            && greeting.len() <= 512
            && addresses.iter().all(|addresses| addresses.len() <= ADDRESSES_MAX && addresses.iter().all(is_sound));
        sound.then_some(Params { fixed, greeting, addresses, wildcard })
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
    links
        .map(|(at, (address, link))| (LinkId(at as u8), Reach { address: (*address).into(), mtu: (link.mtu as u16).into() }))
        .take(ADDRESSES_MAX)
}
