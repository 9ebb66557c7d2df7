//! How nodes are arranged: a torus for messages from point to point, a tree for collectives.
//!
//! Both are pure arithmetic over *ranks*, the numbers from 0 to n − 1 that nodes have in a domain ([`NodeId::index`]) or in a
//! team. They know no fabric: shared memory reaches every node in one hop in any topology. A program that exchanges the borders of
//! its grid asks [`Torus`] for its neighbours; a collective asks [`Tree`] for the ranks that send to it and the rank that it sends to.
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

mod nodes;
mod torus;
mod tree;

pub use nodes::{NODES_MAX, TopologyError};
pub use torus::{Coordinates, Direction, Hop, Route, Torus};
pub use tree::Tree;

#[cfg(test)]
mod tests;
