//! The messages by which nodes describe themselves and others: the greeting of a session, and notices on its lanes. Everything is
//! checked before it is believed.

use super::About;
use crate::protocol::wire::{Address, FromBytes, Immutable, IntoBytes, KnownLayout, U16, U32, U64, Unaligned, take};
use doorbell_fabric::{NodeId, Role};

/// The version of the greeting's format.
const GREETING: u8 = 1;
/// The most bytes of a label.
const LABEL_MAX: usize = 31;
/// The most ids that a guest can name as taken on its side.
const AVOID_MAX: usize = 64;
/// The most bytes of a notice.
pub const NOTICE_MAX: usize = 4 + MEMBERS_MAX * size_of::<Member>();
/// The most members named in one notice.
pub const MEMBERS_MAX: usize = 32;

/// The greeting of a node when a session begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The node's description of itself.
    pub about: About,
    /// `Some` if it asks for an id: the ids that are taken on its side.
    pub asks: Option<Vec<NodeId>>,
}

/// The beginning of a greeting. The label and the ids follow.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct GreetingHead {
    form: u8,
    role: u8,
    asks: u8,
    label: u8,
    pid: U32,
    nonce: U64,
}

impl Greeting {
    pub fn encode(&self) -> Vec<u8> {
        let About { role, pid, label, nonce } = &self.about;
        let label = &label.as_bytes()[..label.len().min(LABEL_MAX)];
        let (asks, len) = (self.asks.is_some().into(), label.len() as u8);
        let head =
            GreetingHead { form: GREETING, role: *role as u8, asks, label: len, pid: (*pid).into(), nonce: (*nonce).into() };
        let avoid: Vec<U16> = self.asks.iter().flatten().take(AVOID_MAX).map(|node| node.0.into()).collect();
        [head.as_bytes(), label, avoid.as_bytes()].concat()
    }

    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let head = take::<GreetingHead>(&mut bytes)?;
        let label = bytes.split_off(..usize::from(head.label))?;
        if head.form != GREETING || head.asks > 1 || label.len() > LABEL_MAX {
            return None;
        }
        // The label is for people; without control characters it does no harm on a terminal.
        let label = String::from_utf8_lossy(label).chars().filter(|char| !char.is_control()).collect();
        let about = About { role: Role::from_number(head.role)?, pid: head.pid.get(), label, nonce: head.nonce.get() };
        let avoid = std::iter::from_fn(|| take::<U16>(&mut bytes)).take(AVOID_MAX).map(|node| NodeId(node.get()));
        Some(Self { about, asks: (head.asks == 1).then(|| avoid.collect()) })
    }
}

/// A node as told by another node that knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Member {
    pub node: U16,
    pub incarnation: U32,
    pub address: Address,
}

/// A notice between two fabrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
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
            Notice::Members { members, last } => [&[1, (*last).into(), members.len() as u8, 0], members[..].as_bytes()].concat(),
            Notice::Welcome { node, max_nodes } => [&[2], [U16::new(node.0), U16::new(*max_nodes)].as_bytes()].concat(),
            Notice::NoRoom => vec![3],
        }
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [1, last @ 0..=1, count, _, rest @ ..] if usize::from(*count) <= MEMBERS_MAX => {
                let members = <[Member]>::ref_from_bytes_with_elems(rest, usize::from(*count)).ok()?;
                Some(Notice::Members { members: members.to_vec(), last: *last == 1 })
            }
            [2, rest @ ..] => {
                let [node, max_nodes] = <[U16; 2]>::read_from_bytes(rest).ok()?.map(U16::get);
                Some(Notice::Welcome { node: NodeId(node), max_nodes })
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
    use std::net::SocketAddr;

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
                node: node.into(),
                incarnation: life.into(),
                address: SocketAddr::new(std::net::Ipv4Addr::from(ip).into(), port).into(),
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
