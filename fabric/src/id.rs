//! Node ids, incarnations, roles and priorities.

use std::fmt;
use std::str::FromStr;

/// A node's number in its domain (MPI calls it *rank*). Ids are small and dense, and are reused after a node left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeId(pub u16);

impl NodeId {
    /// The id as an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl From<u16> for NodeId {
    fn from(id: u16) -> Self {
        Self(id)
    }
}

/// One incarnation of a node id. A domain never uses a number twice, and never uses zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Incarnation(pub u32);

/// A node and one of its incarnations, in one word: a receive compares both at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerWord(u64);

impl PeerWord {
    /// The bits that name the node.
    pub const NODE: u64 = u16::MAX as u64;
    /// The bits that name its incarnation.
    pub const INCARNATION: u64 = (u32::MAX as u64) << 32;

    /// The word for this incarnation of this node.
    #[inline(always)]
    pub const fn new(node: NodeId, incarnation: Incarnation) -> Self {
        Self(node.0 as u64 | (incarnation.0 as u64) << 32)
    }

    /// The node.
    #[inline(always)]
    pub const fn node(self) -> NodeId {
        NodeId(self.0 as u16)
    }

    /// The incarnation.
    #[inline(always)]
    pub const fn incarnation(self) -> Incarnation {
        Incarnation((self.0 >> 32) as u32)
    }

    /// Whether the bits in `mask` are the same.
    #[inline(always)]
    pub const fn agrees(self, other: Self, mask: u64) -> bool {
        (self.0 ^ other.0) & mask == 0
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "incarnation {}", self.0)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The part that a node plays in its domain. Roles are for people and for placement; any node may send to any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Role {
    /// Runs the program that hands out work.
    #[default]
    Host = 1,
    /// Computes for a host.
    Accelerator = 2,
    /// Serves files and devices to other nodes.
    Io = 3,
    /// Serves the domain in any other way.
    Service = 4,
}

impl Role {
    /// All roles, in the order of their numbers.
    pub const ALL: [Role; 4] = [Role::Host, Role::Accelerator, Role::Io, Role::Service];

    /// The role's name on command lines and in the environment.
    pub const fn word(self) -> &'static str {
        match self {
            Role::Host => "host",
            Role::Accelerator => "accelerator",
            Role::Io => "io",
            Role::Service => "service",
        }
    }

    /// The role with this number, or `None`: the number may come from shared memory.
    pub fn from_number(number: u8) -> Option<Role> {
        Role::ALL.into_iter().find(|role| *role as u8 == number)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// A string that names no role or no node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{word}' is not {expected}")]
pub struct ParseIdError {
    /// The string as given.
    pub word: String,
    /// A description of a valid string.
    pub expected: &'static str,
}

impl FromStr for Role {
    type Err = ParseIdError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let expected = "a role: host, accelerator, io or service";
        Role::ALL.into_iter().find(|role| role.word() == word).ok_or_else(|| ParseIdError { word: word.into(), expected })
    }
}

impl FromStr for NodeId {
    type Err = ParseIdError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let expected = "a node id: a number from 0 to 1023";
        match word.parse::<u16>() {
            Ok(id) if id < 1024 => Ok(NodeId(id)),
            _ => Err(ParseIdError { word: word.into(), expected }),
        }
    }
}

/// The number of priorities, which is also the number of lanes from one node to another.
pub const PRIORITIES: usize = 3;

/// Selects one of the lanes between two nodes. Messages of one priority keep their order; messages of different priorities are
/// not ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Priority {
    /// The receiver polls this short lane first. For control messages.
    High = 0,
    /// The default.
    #[default]
    Normal = 1,
    /// The receiver polls this lane last. For bulk data that can wait.
    Low = 2,
}

impl Priority {
    /// All priorities, most urgent first.
    pub const ALL: [Priority; PRIORITIES] = [Priority::High, Priority::Normal, Priority::Low];

    /// The priority as an index.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }
}
