//! Where nodes stand to each other: a torus for messages from point to point, a tree for what all do together.
//!
//! Both are pure arithmetic over *ranks*, the numbers from 0 to n − 1 that nodes have in a domain ([`NodeId::index`]) or in a
//! team. Nothing here knows a fabric: shared memory reaches every node in one hop, whatever the topology says. A program that
//! exchanges the borders of its grid asks [`Torus`] who its neighbours are; a collective asks [`Tree`] whom to wait for
//! and whom to tell.
//!
//! ```
//! use doorbell::topology::{Direction, Torus, Tree};
//!
//! # fn main() -> Result<(), doorbell::topology::TopologyError> {
//! let torus = Torus::near_cubic(12)?;
//! assert_eq!(torus.extents(), [3, 2, 2]);
//! assert_eq!(torus.neighbour(2, Direction::XPlus), Some(0)); // round the ring
//!
//! let tree = Tree::new(12, 0)?;
//! assert_eq!((tree.parent(5), tree.depth(5)), (Some(2), Some(2)));
//! # Ok(())
//! # }
//! ```
//!
//! [`NodeId::index`]: doorbell_fabric::NodeId::index

mod torus;
mod tree;

pub use torus::{Coordinates, Direction, Hop, Route, Torus};
pub use tree::Tree;

/// Nodes of a topology, at most: as many as there are node ids.
pub const NODES_MAX: usize = 1 << 16;

/// Why there is no such torus or tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// There would be no node in it.
    #[error("a topology has at least one node: every extent is 1 or more")]
    Empty,
    /// More nodes than there can be.
    #[error("a topology has at most {NODES_MAX} nodes, as many as there are node ids")]
    TooLarge,
    /// The root is not one of the nodes.
    #[error("rank {root} cannot be the root: the ranks of {nodes} nodes are 0 to {}", nodes - 1)]
    NoSuchRoot {
        /// The rank that was to be the root.
        root: usize,
        /// How many nodes there are.
        nodes: usize,
    },
}

fn checked(nodes: usize) -> Result<usize, TopologyError> {
    match nodes {
        0 => Err(TopologyError::Empty),
        1..=NODES_MAX => Ok(nodes),
        _ => Err(TopologyError::TooLarge),
    }
}

#[cfg(test)]
mod tests;
