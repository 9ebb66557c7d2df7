//! A mesh of three dimensions whose ends are joined: every node has six links.

use super::nodes::{TopologyError, checked};
use std::fmt;
use std::iter::FusedIterator;

/// One of the six links of a node in a [`Torus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Towards larger x.
    XPlus,
    /// Towards smaller x.
    XMinus,
    /// Towards larger y.
    YPlus,
    /// Towards smaller y.
    YMinus,
    /// Towards larger z.
    ZPlus,
    /// Towards smaller z.
    ZMinus,
}

impl Direction {
    /// All six, axis by axis.
    pub const ALL: [Self; 6] = [Self::XPlus, Self::XMinus, Self::YPlus, Self::YMinus, Self::ZPlus, Self::ZMinus];

    /// The direction of the same link from its other end.
    pub const fn opposite(self) -> Self {
        Self::along(self.axis(), !self.is_plus())
    }

    /// The coordinate that it changes: 0 for x, 1 for y, 2 for z.
    pub const fn axis(self) -> usize {
        self as usize / 2
    }

    /// Whether the coordinate grows along it.
    pub const fn is_plus(self) -> bool {
        matches!(self, Self::XPlus | Self::YPlus | Self::ZPlus)
    }

    const fn along(axis: usize, plus: bool) -> Self {
        Self::ALL[2 * axis + !plus as usize]
    }
}

/// As people write it: `+x`.
impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_plus() { '+' } else { '-' }, ['x', 'y', 'z'][self.axis()])
    }
}

/// The place of a node in a [`Torus`], each coordinate from 0 to one less than the extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Coordinates {
    /// The coordinate that changes from one rank to the next.
    pub x: usize,
    /// The one that changes when x begins anew.
    pub y: usize,
    /// The one that changes when y begins anew.
    pub z: usize,
}

impl Coordinates {
    /// x, y and z.
    pub const fn new(x: usize, y: usize, z: usize) -> Self {
        Self { x, y, z }
    }

    const fn array(self) -> [usize; 3] {
        [self.x, self.y, self.z]
    }
}

impl From<[usize; 3]> for Coordinates {
    fn from([x, y, z]: [usize; 3]) -> Self {
        Self { x, y, z }
    }
}

/// As people write it: `(1, 0, 2)`.
impl fmt::Display for Coordinates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {}, {})", self.x, self.y, self.z)
    }
}

/// Nodes in a mesh of three dimensions. In each dimension the last node is joined to the first.
///
/// Ranks run along x first, then y, then z. An axis of extent 1 leads from a node to itself, and one of extent 2 to the same
/// node both ways, as two links.
///
/// ```
/// use doorbell::topology::{Coordinates, Direction, Torus};
///
/// # fn main() -> Result<(), doorbell::topology::TopologyError> {
/// let torus = Torus::new(4, 3, 2)?;
/// assert_eq!(torus.coordinates(23), Some(Coordinates::new(3, 2, 1)));
/// assert_eq!(torus.rank(Coordinates::new(3, 2, 1)), Some(23));
///
/// // The shortest way from corner to corner is round the ends: one hop along each axis.
/// let way: Vec<_> = torus.route(0, 23).into_iter().flatten().map(|hop| (hop.direction, hop.rank)).collect();
/// assert_eq!(way, [(Direction::XMinus, 3), (Direction::YMinus, 11), (Direction::ZPlus, 23)]);
/// assert_eq!(torus.distance(0, 23), Some(3));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Torus {
    extents: [usize; 3],
}

impl Torus {
    /// A torus of these extents.
    ///
    /// # Errors
    /// An extent is 0, or there are more than [`NODES_MAX`](super::NODES_MAX) nodes.
    pub fn new(x: usize, y: usize, z: usize) -> Result<Self, TopologyError> {
        let nodes = x.checked_mul(y).and_then(|plane| plane.checked_mul(z));
        // Zero is asked for first: the other two may overflow before they meet it.
        let nodes = if x.min(y).min(z) == 0 { 0 } else { nodes.unwrap_or(usize::MAX) };
        checked(nodes).map(|_| Self { extents: [x, y, z] })
    }

    /// The torus of exactly `nodes` nodes with the shortest longest distance: its extents are as equal as the factors of `nodes` allow, the
    /// largest first. A prime number of nodes makes a ring.
    ///
    /// # Errors
    /// `nodes` is 0 or more than [`NODES_MAX`](super::NODES_MAX).
    ///
    /// ```
    /// # use doorbell::topology::Torus;
    /// # fn main() -> Result<(), doorbell::topology::TopologyError> {
    /// assert_eq!(Torus::near_cubic(64)?.extents(), [4, 4, 4]);
    /// assert_eq!(Torus::near_cubic(24)?.extents(), [4, 3, 2]);
    /// assert_eq!(Torus::near_cubic(7)?.extents(), [7, 1, 1]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn near_cubic(nodes: usize) -> Result<Self, TopologyError> {
        let nodes = checked(nodes)?;
        let thirds = (1..=nodes).take_while(|z| z * z * z <= nodes).filter(|z| nodes.is_multiple_of(*z));
        let shapes = thirds.flat_map(|z| {
            let plane = nodes / z;
            let seconds = (z..=plane).take_while(move |y| y * y <= plane).filter(move |y| plane.is_multiple_of(*y));
            seconds.map(move |y| [plane / y, y, z])
        });
        // Of equal products the most equal factors have the least sum, and half of it is how far the farthest are.
        let extents = shapes.min_by_key(|extents| extents.iter().sum::<usize>()).unwrap_or([nodes, 1, 1]);
        Ok(Self { extents })
    }

    /// How many nodes there are along x, y and z.
    pub const fn extents(&self) -> [usize; 3] {
        self.extents
    }

    /// How many nodes there are.
    pub const fn nodes(&self) -> usize {
        self.extents[0] * self.extents[1] * self.extents[2]
    }

    /// Where a rank is; nowhere if it is not in the torus.
    pub fn coordinates(&self, rank: usize) -> Option<Coordinates> {
        let [x, y, _] = self.extents;
        (rank < self.nodes()).then(|| Coordinates::new(rank % x, rank / x % y, rank / (x * y)))
    }

    /// The rank at these coordinates; none if a coordinate is not below its extent.
    pub fn rank(&self, at: Coordinates) -> Option<usize> {
        let [x, y, z] = self.extents;
        (at.x < x && at.y < y && at.z < z).then(|| at.x + x * (at.y + y * at.z))
    }

    /// All ranks in order, and where they are.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (usize, Coordinates)> + use<> {
        let [x, y, _] = self.extents;
        (0..self.nodes()).map(move |rank| (rank, Coordinates::new(rank % x, rank / x % y, rank / (x * y))))
    }

    /// The rank at the other end of a link; none if `rank` is not in the torus.
    pub fn neighbour(&self, rank: usize, direction: Direction) -> Option<usize> {
        let mut at = self.coordinates(rank)?.array();
        let (axis, extent) = (direction.axis(), self.extents[direction.axis()]);
        at[axis] = (at[axis] + if direction.is_plus() { 1 } else { extent - 1 }) % extent;
        self.rank(at.into())
    }

    /// All six links of a rank with the ranks at their other ends; nothing if `rank` is not in the torus.
    pub fn neighbours(&self, rank: usize) -> impl Iterator<Item = (Direction, usize)> + use<> {
        let torus = *self;
        Direction::ALL.into_iter().filter_map(move |direction| Some((direction, torus.neighbour(rank, direction)?)))
    }

    /// Hops from one rank to another, the shortest way; none if either is not in the torus.
    pub fn distance(&self, from: usize, to: usize) -> Option<usize> {
        Some(self.route(from, to)?.len())
    }

    /// The shortest way from one rank to another, along x first, then y, then z; none if either is not in the torus.
    ///
    /// All nodes that keep this order of axes cannot block each other in a circle across axes. Where both ways round a ring
    /// are equally long, it is the one towards larger coordinates.
    pub fn route(&self, from: usize, to: usize) -> Option<Route> {
        let (at, goal) = (self.coordinates(from)?.array(), self.coordinates(to)?.array());
        let mut legs = [(0, true); 3];
        for (axis, leg) in legs.iter_mut().enumerate() {
            let extent = self.extents[axis];
            let (up, down) = ((goal[axis] + extent - at[axis]) % extent, (at[axis] + extent - goal[axis]) % extent);
            *leg = (up.min(down), up <= down);
        }
        Some(Route { torus: *self, rank: from, legs })
    }
}

/// One step of a [`Route`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The link that is taken.
    pub direction: Direction,
    /// Where it leads.
    pub rank: usize,
}

/// The hops from one node of a [`Torus`] to another, without the node at the beginning.
#[derive(Clone, Debug)]
pub struct Route {
    torus: Torus,
    rank: usize,
    /// For each axis: hops that are left, and whether they go up.
    legs: [(usize, bool); 3],
}

impl Iterator for Route {
    type Item = Hop;

    fn next(&mut self) -> Option<Hop> {
        let (axis, (left, plus)) = self.legs.iter_mut().enumerate().find(|(_, (left, _))| *left > 0)?;
        *left -= 1;
        let direction = Direction::along(axis, *plus);
        self.rank = self.torus.neighbour(self.rank, direction)?;
        Some(Hop { direction, rank: self.rank })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.legs.iter().map(|(left, _)| left).sum();
        (left, Some(left))
    }
}

impl ExactSizeIterator for Route {}
impl FusedIterator for Route {}
