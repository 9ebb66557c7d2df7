//! The number of nodes in a topology.

/// The most nodes of a topology: as many as there are node ids.
pub const NODES_MAX: usize = 1 << 16;

/// Why there is no such torus or tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// It would have no node.
    #[error("a topology has at least one node: every extent is 1 or more")]
    Empty,
    /// It would have too many nodes.
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

pub(super) fn checked(nodes: usize) -> Result<usize, TopologyError> {
    match nodes {
        0 => Err(TopologyError::Empty),
        1..=NODES_MAX => Ok(nodes),
        _ => Err(TopologyError::TooLarge),
    }
}
