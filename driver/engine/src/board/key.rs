//! Names of counters for other nodes.

use doorbell_fabric::{Incarnation, NodeId};
use std::fmt;

/// A name for one use of one DMA counter of one incarnation of a node. Plain data: it may travel in messages. A node that has
/// the key may report moved bytes to the owner. A key of an earlier use changes nothing.
///
/// Each use has a random secret, which only its keys carry. A node that was not given the key can't make one: the owner
/// publishes the secret nowhere, and checks it. The `Debug` form leaves it out.
///
/// ```
/// # use doorbell::{CounterKey, Node, Space};
/// # fn main() -> Result<(), doorbell::Error> {
/// # let node = Node::builder("keys").space(Space::heap()).join()?;
/// let counter = node.counter()?;
/// counter.init(4096)?;
/// let bytes = counter.key().to_bytes();
/// assert_eq!(CounterKey::from_bytes(&bytes), Some(counter.key()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CounterKey {
    /// The node that has the counter.
    pub node: NodeId,
    /// The incarnation of that node.
    pub incarnation: Incarnation,
    /// The number of the counter.
    pub index: u16,
    /// The random secret of the use.
    pub(crate) secret: u64,
}

impl fmt::Debug for CounterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, incarnation, index, .. } = self;
        let mut key = f.debug_struct("CounterKey");
        key.field("node", node).field("incarnation", incarnation).field("index", index).finish_non_exhaustive()
    }
}

impl CounterKey {
    /// The length of a key in a message.
    pub const BYTES: usize = 16;

    /// Encodes the key, in the same way on all machines.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..2].copy_from_slice(&self.node.0.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.index.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.incarnation.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.secret.to_le_bytes());
        bytes
    }

    /// Decodes a key; `None` if the length is wrong. Whether the counter exists is checked when the key is used.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let [n0, n1, i0, i1, l0, l1, l2, l3, secret @ ..] = *bytes;
        Some(Self {
            node: NodeId(u16::from_le_bytes([n0, n1])),
            incarnation: Incarnation(u32::from_le_bytes([l0, l1, l2, l3])),
            index: u16::from_le_bytes([i0, i1]),
            secret: u64::from_le_bytes(secret),
        })
    }
}
