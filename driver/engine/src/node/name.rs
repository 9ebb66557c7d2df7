//! Names of nodes: an id, or an address of one fabric. An address requests its fabric.

use super::Node;
use crate::mode::{Fabric, ModeRequest};
use crate::{Error, Peer, Result};
use doorbell_fabric::{NodeId, ParseIdError};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// The name of a node. Written as `3`, `shm:3`, or `127.0.0.1:7000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeName {
    /// The id in the domain. Any fabric may be used.
    Id(NodeId),
    /// The id of the node's inbox in shared memory. Requests that fabric.
    Shm(NodeId),
    /// The node's UDP address, and no host name: names are looked up only while a node joins. Requests the network.
    Udp(SocketAddr),
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeName::Id(node) => f.pad(&node.to_string()),
            NodeName::Shm(node) => f.pad(&format!("shm:{node}")),
            NodeName::Udp(address) => f.pad(&address.to_string()),
        }
    }
}

impl FromStr for NodeName {
    type Err = ParseIdError;

    fn from_str(word: &str) -> std::result::Result<Self, Self::Err> {
        let expected = "a node: its id (3), its place in shared memory (shm:3), or its UDP address (127.0.0.1:7000)";
        let wrong = |_| ParseIdError { word: word.into(), expected };
        match word.strip_prefix("shm:") {
            Some(id) => id.parse().map(NodeName::Shm).map_err(wrong),
            None => word.parse().map(NodeName::Udp).or_else(|_| word.parse().map(NodeName::Id).map_err(wrong)),
        }
    }
}

impl From<NodeId> for NodeName {
    fn from(node: NodeId) -> Self {
        NodeName::Id(node)
    }
}

impl From<SocketAddr> for NodeName {
    fn from(address: SocketAddr) -> Self {
        NodeName::Udp(address)
    }
}

impl Node {
    /// A handle to the node with this name, and the mode that the name requests. An id requests nothing; an address requests
    /// shared memory or the network. Pass the mode to [`Peer::send_as`], [`Peer::put_as`] and similar calls. Does not wait for
    /// the node.
    ///
    /// ```
    /// # use doorbell::{Match, Node, Space, mode::Fabric};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let space = Space::heap();
    /// # let a = Node::builder("names").space(space.clone()).join()?;
    /// # let b = Node::builder("names").space(space).join()?;
    /// let (peer, mode) = a.peer_named("shm:1".parse().unwrap())?;
    /// assert_eq!(peer.send_as(1, b"hello", mode)?.requested.fabric, Some(Fabric::Shm));
    /// # b.recv(Match::any(), &mut [0; 5])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if this node knows no node at that address; otherwise as [`peer`](Self::peer).
    pub fn peer_named(&self, name: NodeName) -> Result<(Peer, ModeRequest)> {
        let (node, mode) = match name {
            NodeName::Id(node) => (node, ModeRequest::default()),
            NodeName::Shm(node) => (node, ModeRequest::fabric(Fabric::Shm)),
            NodeName::Udp(address) => {
                let found = self.shared().node_at(address);
                let what =
                    || format!("this node knows no node at {address}: check that both are on the network and have connected");
                (found.ok_or_else(|| Error::Invalid { what: what() })?, ModeRequest::fabric(Fabric::Udp))
            }
        };
        Ok((self.peer(node)?, mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for word in ["3", "shm:0", "127.0.0.1:7000", "[::1]:9"] {
            assert_eq!(word.parse::<NodeName>().unwrap().to_string(), word);
        }
        for word in ["", "shm:", "shm:x", "udp:3", "127.0.0.1", "-1"] {
            assert!(word.parse::<NodeName>().is_err(), "{word}");
        }
    }
}
