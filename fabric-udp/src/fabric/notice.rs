//! The messages by which nodes describe themselves and others: the greeting of a session, and notices on its lanes. Everything is
//! checked before it is believed.

use super::About;
use doorbell_fabric::{Incarnation, NodeId, Role};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The version of the greeting's format.
const GREETING: u8 = 1;
/// The most bytes of a label.
const LABEL_MAX: usize = 31;
/// The most ids that a guest can name as taken on its side.
const AVOID_MAX: usize = 64;
/// The most bytes of a notice.
pub const NOTICE_MAX: usize = 4 + MEMBERS_MAX * MEMBER_BYTES;
/// The most members named in one notice.
pub const MEMBERS_MAX: usize = 32;
const MEMBER_BYTES: usize = 24;

/// The greeting of a node when a session begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The node's description of itself.
    pub about: About,
    /// `Some` if it asks for an id: the ids that are taken on its side.
    pub asks: Option<Vec<NodeId>>,
}

impl Greeting {
    pub fn encode(&self) -> Vec<u8> {
        let About { role, pid, label, nonce } = &self.about;
        let label = &label.as_bytes()[..label.len().min(LABEL_MAX)];
        let mut bytes = vec![GREETING, *role as u8, self.asks.is_some().into(), label.len() as u8];
        bytes.extend(pid.to_le_bytes());
        bytes.extend(nonce.to_le_bytes());
        bytes.extend(label);
        for node in self.asks.iter().flatten().take(AVOID_MAX) {
            bytes.extend(node.0.to_le_bytes());
        }
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let ([form, role, asks, label_len], rest) = bytes.split_first_chunk()?;
        let (pid, rest) = rest.split_first_chunk()?;
        let (nonce, rest) = rest.split_first_chunk()?;
        let (label, rest) = rest.split_at_checked(usize::from(*label_len))?;
        if *form != GREETING || *asks > 1 || label.len() > LABEL_MAX {
            return None;
        }
        // The label is for people; without control characters it does no harm on a terminal.
        let label = String::from_utf8_lossy(label).chars().filter(|char| !char.is_control()).collect();
        let about =
            About { role: Role::from_number(*role)?, pid: u32::from_le_bytes(*pid), label, nonce: u64::from_le_bytes(*nonce) };
        let avoid = rest.as_chunks().0.iter().take(AVOID_MAX).map(|id| NodeId(u16::from_le_bytes(*id)));
        Some(Self { about, asks: (*asks == 1).then(|| avoid.collect()) })
    }
}

/// A node as told by another node that knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub address: SocketAddr,
}

/// A notice between two fabrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Some of the nodes that its sender has sessions with. The last of several such notices is marked.
    Members { members: Vec<Member>, last: bool },
    /// The receiver asked for an id and may be this node, in a domain of at most `max_nodes` nodes.
    Welcome { node: NodeId, max_nodes: u16 },
    /// The receiver asked for an id, but all ids are taken.
    NoRoom,
}

impl Notice {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Notice::Members { members, last } => {
                let mut bytes = vec![1, (*last).into(), members.len() as u8, 0];
                for Member { node, incarnation, address } in members {
                    bytes.extend(node.0.to_le_bytes());
                    bytes.extend(incarnation.0.to_le_bytes());
                    let ip = match address.ip() {
                        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                        IpAddr::V6(ip) => ip,
                    };
                    bytes.extend(ip.octets());
                    bytes.extend(address.port().to_le_bytes());
                }
                bytes
            }
            Notice::Welcome { node, max_nodes } => {
                let mut bytes = vec![2];
                bytes.extend(node.0.to_le_bytes());
                bytes.extend(max_nodes.to_le_bytes());
                bytes
            }
            Notice::NoRoom => vec![3],
        }
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [1, last @ 0..=1, count, _, rest @ ..] => {
                let (members, beyond) = rest.as_chunks::<MEMBER_BYTES>();
                let fits = members.len() == usize::from(*count) && members.len() <= MEMBERS_MAX && beyond.is_empty();
                let members = members.iter().map(|bytes| {
                    let (node, rest) = bytes.split_first_chunk()?;
                    let (incarnation, rest) = rest.split_first_chunk()?;
                    let (ip, port) = rest.split_first_chunk()?;
                    let ip = IpAddr::V6(Ipv6Addr::from(*ip)).to_canonical();
                    let address = SocketAddr::new(ip, u16::from_le_bytes(port.try_into().ok()?));
                    let (node, incarnation) = (NodeId(u16::from_le_bytes(*node)), Incarnation(u32::from_le_bytes(*incarnation)));
                    Some(Member { node, incarnation, address })
                });
                fits.then(|| members.collect::<Option<Vec<_>>>())
                    .flatten()
                    .map(|members| Notice::Members { members, last: *last == 1 })
            }
            [2, a, b, c, d] => {
                let node = NodeId(u16::from_le_bytes([*a, *b]));
                Some(Notice::Welcome { node, max_nodes: u16::from_le_bytes([*c, *d]) })
            }
            [3] => Some(Notice::NoRoom),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn greetings_survive_the_way(pid: u32, nonce: u64, label in "[a-zü]{0,15}", avoid in proptest::option::of(proptest::collection::vec(any::<u16>(), 0..AVOID_MAX))) {
            let about = About { role: Role::Io, pid, label, nonce };
            let greeting = Greeting { about, asks: avoid.map(|ids| ids.into_iter().map(NodeId).collect()) };
            let bytes = greeting.encode();
            prop_assert!(bytes.len() <= 512);
            prop_assert_eq!(Greeting::decode(&bytes), Some(greeting));
        }

        #[test]
        fn notices_survive_the_way(ids in proptest::collection::vec(any::<(u16, u32, u32, u16)>(), 0..=MEMBERS_MAX), last: bool) {
            let members: Vec<_> = ids.into_iter().map(|(node, life, ip, port)| Member {
                node: NodeId(node),
                incarnation: Incarnation(life),
                address: SocketAddr::new(std::net::Ipv4Addr::from(ip).into(), port),
            }).collect();
            for notice in [Notice::Members { members, last }, Notice::Welcome { node: NodeId(7), max_nodes: 16 }, Notice::NoRoom] {
                let bytes = notice.encode();
                prop_assert!(bytes.len() <= NOTICE_MAX);
                prop_assert_eq!(Notice::decode(&bytes), Some(notice));
            }
        }

        #[test]
        fn any_bytes_are_looked_at_without_harm(bytes: Vec<u8>) {
            let _ = (Greeting::decode(&bytes), Notice::decode(&bytes));
        }
    }
}
