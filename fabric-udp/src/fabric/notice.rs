//! The messages by which nodes describe themselves and others: the greeting of a session, and notices on its lanes. Everything is
//! checked before it is believed.

use super::About;
use crate::protocol::wire::{Put, Reader};
use doorbell_fabric::{Incarnation, NodeId, Role};
use std::net::SocketAddr;

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
        bytes.u32(*pid);
        bytes.u64(*nonce);
        bytes.bytes(label);
        self.asks.iter().flatten().take(AVOID_MAX).for_each(|node| bytes.u16(node.0));
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let [form, role, asks, label] = reader.array()?;
        let (pid, nonce, label) = (reader.u32()?, reader.u64()?, reader.bytes(label.into())?);
        if form != GREETING || asks > 1 || label.len() > LABEL_MAX {
            return None;
        }
        // The label is for people; without control characters it does no harm on a terminal.
        let label = String::from_utf8_lossy(label).chars().filter(|char| !char.is_control()).collect();
        let about = About { role: Role::from_number(role)?, pid, label, nonce };
        let avoid = std::iter::from_fn(|| reader.u16()).take(AVOID_MAX).map(NodeId);
        Some(Self { about, asks: (asks == 1).then(|| avoid.collect()) })
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
                    bytes.u16(node.0);
                    bytes.u32(incarnation.0);
                    bytes.address(*address);
                }
                bytes
            }
            Notice::Welcome { node, max_nodes } => {
                let mut bytes = vec![2];
                bytes.u16(node.0);
                bytes.u16(*max_nodes);
                bytes
            }
            Notice::NoRoom => vec![3],
        }
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let notice = match reader.u8()? {
            1 => {
                let [last @ 0..=1, count, _] = reader.array()? else { return None };
                let member = |reader: &mut Reader| {
                    let (node, incarnation) = (NodeId(reader.u16()?), Incarnation(reader.u32()?));
                    Some(Member { node, incarnation, address: reader.address()? })
                };
                let members = (0..count).map(|_| member(&mut reader)).collect::<Option<Vec<_>>>()?;
                Some(Notice::Members { members, last: last == 1 }).filter(|_| usize::from(count) <= MEMBERS_MAX)?
            }
            2 => Notice::Welcome { node: NodeId(reader.u16()?), max_nodes: reader.u16()? },
            3 => Notice::NoRoom,
            _ => return None,
        };
        reader.is_empty().then_some(notice)
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
