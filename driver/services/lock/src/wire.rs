//! What nodes say to each other about keys.

use super::{Circle, LockFault};
use doorbell_fabric::{Incarnation, NodeId};
use doorbell_shm::domain::Key;
use doorbell_shm::keys::{KeyFacts, KeyRef, OwnerId, Resource, ResourceError, Seen};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// No letter is longer: it goes in one packet of any fabric.
pub const LETTER_MAX: usize = 1024;
/// Bytes that may go with an offer.
pub const WITH_MAX: usize = 256;
/// Keys in one letter.
pub const ENTRIES_MAX: usize = 8;
/// Nodes in one answer.
pub const KNOWS_MAX: usize = 120;
/// Users and waiters in one answer.
const NAMED_MAX: usize = 32;

/// No registry moves so often.
pub const TERM_MAX: u64 = 1 << 48;

/// How far a term may lie above the last one that a node knows. Honest terms go up by one, and a node that has just come knows none.
pub const TERMS_AHEAD_MAX: u64 = 1 << 32;

/// Which life of which node.
pub type Life = (u16, u32);

/// Where the registry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    /// How often it has moved.
    pub term: u64,
    /// Who serves it.
    pub at: Life,
}

impl Home {
    /// Which node, and its life.
    pub fn node(&self) -> (NodeId, Incarnation) {
        (NodeId(self.at.0), Incarnation(self.at.1))
    }
}

/// A key: by its place if the registry has not moved since, and else by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct At {
    pub term: u64,
    pub slot: u16,
    pub generation: u64,
    pub name: String,
}

impl At {
    pub fn place(&self) -> KeyRef {
        KeyRef { slot: self.slot, generation: self.generation }
    }
}

/// What is to be done with a key. Owners are named by their bits; 0 is nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deed {
    Get,
    Facts,
    Set { expected: u64, new: u64 },
    Try { me: u64 },
    Lock { me: u64 },
    Unlock { me: u64 },
    Repair { me: u64 },
    Bar,
    Unbar,
    Release,
    Destroy { me: u64 },
}

/// What needs an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Here is a key. Answered when the program accepts it.
    Offer {
        name: String,
        resource: [u64; 4],
        with: Vec<u8>,
    },
    /// Where is the registry?
    WhoIsHome,
    /// Nobody knows: be it, as the lowest of all nodes.
    BeHome,
    /// I will be home: what do you know of keys, from this one on?
    Claim {
        term: u64,
        from: u32,
    },
    Init {
        name: String,
        resource: [u64; 4],
    },
    Find {
        name: String,
    },
    Deed {
        at: At,
        deed: Deed,
    },
}

/// What needs none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tell {
    /// A key is given up.
    Unlock { at: At, me: u64 },
    /// I am not home after all.
    Abandon { term: u64 },
    /// Who asked by this number does not wait any more; and does not want the key that it asked for, for this owner, should it have got it.
    Withdraw { id: u64, want: Option<(At, u64)> },
    /// To a home that was another before: of all keys this node has these, and one of which the former home did not tell it any more is free.
    Holding { names: Vec<String>, more: bool },
    /// The home leaves, the last of its group: these keys are held, damaged or barred, and no others are.
    Farewell { left: Vec<Entry>, more: bool },
    /// I am home now.
    Here { term: u64 },
}

/// What a node knows of a key when the registry moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    pub resource: [u64; 4],
    /// Which of its threads has it; 0 for none.
    pub owner: u64,
    /// Who died with it, as far as it was told; 0 for nobody.
    pub dead: u64,
    /// It locked it for everybody.
    pub barred: bool,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Accepted {
        pid: u32,
        module: u64,
    },
    /// Where it is, as far as is known; and the other nodes that are known.
    Home {
        home: Option<Home>,
        knows: Vec<Life>,
    },
    Agreed {
        entries: Vec<Entry>,
        more: bool,
    },
    /// Another is home; or the registry has moved more often than you say, and was there last.
    Disagreed {
        home: Option<Home>,
        last: Option<Home>,
    },
    /// Not here, or no more.
    NotHome,
    Key {
        at: At,
        resource: [u64; 4],
    },
    Seen(u64),
    Taken {
        damaged: bool,
        dead: u64,
    },
    Busy(u64),
    Barred {
        first: bool,
    },
    Done,
    Facts(Facts),
    Withdrawn,
    Trouble(Trouble),
}

impl Answer {
    /// The answer about a key that was taken.
    pub fn taken(key: Key<'_>, damaged: bool) -> Self {
        let dead = if damaged { key.dead().map_or(0, OwnerId::bits) } else { 0 };
        Answer::Taken { damaged, dead }
    }

    /// The answer about a key that was found or made, and that a node uses from now on.
    pub fn key(key: Key<'_>, term: u64, name: &str, user: NodeId) -> Self {
        key.set_user(user, true);
        let place = key.place();
        let resource = key.facts().map_or(Resource::Unnamed, |facts| facts.resource);
        let at = At { term, slot: place.slot, generation: place.generation, name: name.to_owned() };
        Answer::Key { at, resource: resource.to_words() }
    }
}

/// [`KeyFacts`] in a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    resource: [u64; 4],
    creator: Life,
    seen: u64,
    dead: u64,
    users: Vec<u16>,
    waiting: Vec<u64>,
}

impl Facts {
    pub fn new(facts: &KeyFacts) -> Self {
        Self {
            resource: facts.resource.to_words(),
            creator: (facts.creator.0.0, facts.creator.1.0),
            seen: facts.seen.bits(),
            dead: facts.dead.map_or(0, OwnerId::bits),
            users: facts.users.iter().take(NAMED_MAX).map(|node| node.0).collect(),
            waiting: facts.waiting.iter().take(NAMED_MAX).map(|owner| owner.bits()).collect(),
        }
    }

    pub fn of(self, key: KeyRef, name: &str) -> KeyFacts {
        KeyFacts {
            key,
            name: name.to_owned(),
            resource: Resource::from_words(self.resource),
            creator: (NodeId(self.creator.0), Incarnation(self.creator.1)),
            seen: Seen::from_bits(self.seen),
            dead: OwnerId::from_bits(self.dead),
            users: self.users.into_iter().map(NodeId).collect(),
            waiting: self.waiting.into_iter().filter_map(OwnerId::from_bits).collect(),
        }
    }
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trouble {
    Destroyed,
    Unknown,
    NotYours(u64),
    AlreadyYours,
    Otherwise(u64),
    Barred,
    Circle(Vec<(u64, String)>),
    Exists,
    Full,
    Name,
    Other(String),
}

impl From<&LockFault> for Trouble {
    fn from(fault: &LockFault) -> Self {
        match fault {
            LockFault::Destroyed => Trouble::Destroyed,
            LockFault::Unknown => Trouble::Unknown,
            LockFault::NotYours(value) => Trouble::NotYours(Seen::of(*value).bits()),
            LockFault::AlreadyYours => Trouble::AlreadyYours,
            LockFault::Otherwise(value) => Trouble::Otherwise(Seen::of(*value).bits()),
            LockFault::Barred => Trouble::Barred,
            LockFault::Circle(circle) => {
                Trouble::Circle(circle.waits.iter().take(ENTRIES_MAX).map(|(who, key)| (who.bits(), key.clone())).collect())
            }
            other => Trouble::other(other),
        }
    }
}

impl From<&ResourceError> for Trouble {
    fn from(error: &ResourceError) -> Self {
        match error {
            ResourceError::Exists { .. } => Trouble::Exists,
            ResourceError::Full => Trouble::Full,
            _ => Trouble::Name,
        }
    }
}

impl Trouble {
    /// Anything else, in words: as many as a letter takes.
    pub fn other(why: &dyn std::fmt::Display) -> Self {
        Trouble::Other(why.to_string().chars().take(200).collect())
    }

    /// What is told to the caller. The other node may have said anything.
    pub fn fault(self, name: &str) -> Result<LockFault, ResourceError> {
        let value = |bits| Seen::from_bits(bits).value();
        Ok(match self {
            Trouble::Destroyed => LockFault::Destroyed,
            Trouble::Unknown => LockFault::Unknown,
            Trouble::NotYours(bits) => LockFault::NotYours(value(bits)),
            Trouble::AlreadyYours => LockFault::AlreadyYours,
            Trouble::Otherwise(bits) => LockFault::Otherwise(value(bits)),
            Trouble::Barred => LockFault::Barred,
            Trouble::Circle(waits) => {
                let waits = waits.into_iter().filter_map(|(who, key)| Some((OwnerId::from_bits(who)?, key)));
                LockFault::Circle(Circle { waits: waits.collect() })
            }
            Trouble::Exists => return Err(ResourceError::Exists { name: name.to_owned() }),
            Trouble::Full => return Err(ResourceError::Full),
            Trouble::Name => return Err(ResourceError::Name { name: name.to_owned() }),
            Trouble::Other(why) => LockFault::Home(why.chars().filter(|c| !c.is_control()).take(200).collect()),
        })
    }
}

/// As bytes. What is longer than a letter may be is cut down by whoever makes it.
pub fn encode<T: Serialize>(letter: &T) -> Vec<u8> {
    postcard::to_stdvec(letter).unwrap_or_default()
}

/// From bytes that may be anything.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}
