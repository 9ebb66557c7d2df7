//! A binary tree in which values are combined on the way up and handed out on the way down.

use super::nodes::{TopologyError, checked};

/// Ranks as a binary combining tree: each has a parent, the root aside, and up to two children.
///
/// The tree is filled level by level, in the order of ranks from the root on, round the end: no two leaves differ in depth by
/// more than one. Any rank can be the root, and another root moves all ranks.
///
/// ```
/// use doorbell::topology::Tree;
///
/// # fn main() -> Result<(), doorbell::topology::TopologyError> {
/// //        2
/// //      3   4
/// //     0 1
/// let tree = Tree::new(5, 2)?;
/// assert_eq!(tree.children(2).collect::<Vec<_>>(), [3, 4]);
/// assert_eq!((tree.parent(1), tree.parent(2)), (Some(3), None));
/// assert_eq!(tree.leaves().collect::<Vec<_>>(), [4, 0, 1]);
///
/// // A sum, as a reduction up the tree: each rank comes after all ranks below it.
/// let mut sums = [1, 2, 3, 4, 5];
/// for rank in tree.upwards() {
///     if let Some(parent) = tree.parent(rank) {
///         sums[parent] += sums[rank];
///     }
/// }
/// assert_eq!(sums[tree.root()], 15);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tree {
    nodes: usize,
    root: usize,
}

impl Tree {
    /// A tree of the ranks 0 to `nodes` − 1.
    ///
    /// # Errors
    /// There are no nodes, or more than [`NODES_MAX`](super::NODES_MAX), or the root is none of them.
    pub fn new(nodes: usize, root: usize) -> Result<Self, TopologyError> {
        let nodes = checked(nodes)?;
        if root < nodes { Ok(Self { nodes, root }) } else { Err(TopologyError::NoSuchRoot { root, nodes }) }
    }

    /// How many nodes there are.
    pub const fn nodes(&self) -> usize {
        self.nodes
    }

    /// The rank without a parent.
    pub const fn root(&self) -> usize {
        self.root
    }

    /// The rank that gets the result of this one; none for the root, and for ranks that are not in the tree.
    pub fn parent(&self, rank: usize) -> Option<usize> {
        let above = self.place(rank)?.checked_sub(1)? / 2;
        Some(self.at(above))
    }

    /// The ranks whose results this one waits for, in order: up to two; none for ranks that are not in the tree.
    pub fn children(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        let tree = *self;
        let below = self.place(rank).map_or(0..0, |place| 2 * place + 1..2 * place + 3);
        below.filter(move |place| *place < tree.nodes).map(move |place| tree.at(place))
    }

    /// Whether no rank is below; false for ranks that are not in the tree.
    pub fn is_leaf(&self, rank: usize) -> bool {
        self.place(rank).is_some_and(|place| 2 * place + 1 >= self.nodes)
    }

    /// Links between a rank and the root; none for ranks that are not in the tree.
    pub fn depth(&self, rank: usize) -> Option<usize> {
        Some((self.place(rank)? + 1).ilog2() as usize)
    }

    /// Links between the root and the farthest rank: how many steps a reduction takes.
    pub const fn height(&self) -> usize {
        self.nodes.ilog2() as usize
    }

    /// The ranks without children, in the order of the tree.
    pub fn leaves(&self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator + use<> {
        let tree = *self;
        (self.nodes / 2..self.nodes).map(move |place| tree.at(place))
    }

    /// All ranks in an order in which children come before their parents: that of a reduction.
    pub fn upwards(&self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator + use<> {
        self.downwards().rev()
    }

    /// All ranks in an order in which parents come before their children, level by level: that of a broadcast.
    pub fn downwards(&self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator + use<> {
        let tree = *self;
        (0..self.nodes).map(move |place| tree.at(place))
    }

    /// The place of a rank when the tree is read level by level.
    fn place(&self, rank: usize) -> Option<usize> {
        (rank < self.nodes).then(|| (rank + self.nodes - self.root) % self.nodes)
    }

    fn at(&self, place: usize) -> usize {
        (place + self.root) % self.nodes
    }
}
