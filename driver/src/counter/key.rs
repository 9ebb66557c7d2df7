//! What names a counter to others.

use doorbell_fabric::{Incarnation, NodeId};

/// Names one use of one DMA counter of one life of a node. Plain data: it may travel in messages. Whoever has it may say to that
/// node how much was moved; what a key of an earlier use says changes nothing.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CounterKey {
    /// Whose counter it is.
    pub node: NodeId,
    /// Which life of that node.
    pub incarnation: Incarnation,
    /// Which counter.
    pub index: u16,
    /// Which use of it.
    pub generation: u32,
}

impl CounterKey {
    /// Bytes of a key in a message.
    pub const BYTES: usize = 12;

    /// The key as bytes, the same on all machines.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..2].copy_from_slice(&self.node.0.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.index.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.incarnation.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.generation.to_le_bytes());
        bytes
    }

    /// The key in these bytes; `None` if they are not as many. Whether there is such a counter is asked when it is used.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let [n0, n1, i0, i1, l0, l1, l2, l3, g0, g1, g2, g3] = *bytes;
        Some(Self {
            node: NodeId(u16::from_le_bytes([n0, n1])),
            incarnation: Incarnation(u32::from_le_bytes([l0, l1, l2, l3])),
            index: u16::from_le_bytes([i0, i1]),
            generation: u32::from_le_bytes([g0, g1, g2, g3]),
        })
    }
}
