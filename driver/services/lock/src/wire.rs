//! The requests, replies and notices that nodes exchange about locks.

use super::error::LockError;
use doorbell_engine::kit::{NodeId, PeerId};
use doorbell_shm::domain::Key;
use doorbell_shm::keys::{KeyRef, LockFacts, OwnerId, Resource, ResourceError, Seen};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The longest packet, in bytes: it fits in one packet of any fabric.
pub const LETTER_MAX: usize = 1024;
/// Most bytes that a program can send with an offer.
pub const WITH_MAX: usize = 256;
/// Most locks in one packet.
pub const ENTRIES_MAX: usize = 8;
/// Most nodes in one reply.
pub const KNOWS_MAX: usize = 120;
/// Most users and most waiters in one reply.
const NAMED_MAX: usize = 32;

/// The greatest term. No registry moves that often.
pub const TERM_MAX: u64 = 1 << 48;

/// How far a term may lie above the last one that a node knows. Honest terms go up by one, but a node that has just joined
/// knows none.
pub const TERMS_AHEAD_MAX: u64 = 1 << 32;

/// The coordinator of the lock registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    /// How often the registry has moved.
    pub term: u64,
    /// The node that serves it.
    pub at: PeerId,
}

/// A lock: named by its place if the registry has not moved since, and else by its name.
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

/// An operation on a lock. Owners are given by their bits; 0 is no owner.
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
    Thaw,
    Release,
    Destroy { me: u64 },
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Offers a lock. Answered when the program accepts it.
    Offer {
        name: String,
        resource: [u64; 4],
        with: Vec<u8>,
    },
    /// Asks for the coordinator.
    WhoIsHome,
    /// Asks the node with the lowest id to become coordinator, since no node knows one.
    BeHome,
    /// Asks for agreement that the sender becomes coordinator, and for the entries from number `from` on.
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

/// A notice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tell {
    /// The sender has unlocked.
    Unlock { at: At, me: u64 },
    /// The sender has not become coordinator after all.
    Abandon { term: u64 },
    /// The sender no longer waits for the reply to request `id`. If it got the lock in `want` for this owner, the lock is to be
    /// released.
    Withdraw { id: u64, want: Option<(At, u64)> },
    /// To a new coordinator: the sender owns exactly these locks. Its other ones are free, since the former coordinator's
    /// grants may have been lost.
    Holding { names: Vec<String>, more: bool },
    /// From a leaving coordinator, the last of its group: exactly these locks are held, damaged or frozen.
    Farewell { left: Vec<Entry>, more: bool },
    /// The sender is coordinator now.
    Here { term: u64 },
    /// From a leaving coordinator: this node of its group lives, and can follow it.
    Heir { at: PeerId },
}

/// What a node knows of a lock when the registry moves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    pub resource: [u64; 4],
    /// Which of its threads owns the lock; 0 for none.
    pub owner: u64,
    /// The owner that died with the lock, as far as the node was told; 0 for none.
    pub dead: u64,
    /// The node has frozen the lock.
    pub frozen: bool,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Accepted {
        pid: u32,
        module: u64,
    },
    /// The coordinator, if known, and the other nodes that the sender knows.
    Home {
        home: Option<Home>,
        knows: Vec<PeerId>,
    },
    Agreed {
        entries: Vec<Entry>,
        more: bool,
    },
    /// Another node is coordinator, or the sender knows a greater term: that of `last`.
    Disagreed {
        home: Option<Home>,
        last: Option<Home>,
    },
    /// The registry is not here, or not any more.
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
    Frozen {
        first: bool,
    },
    Done,
    Facts(Facts),
    Withdrawn,
    Trouble(Trouble),
}

impl Answer {
    /// The reply for a lock that was taken.
    pub fn taken(key: Key<'_>, damaged: bool) -> Self {
        let dead = if damaged { key.dead().map_or(0, OwnerId::bits) } else { 0 };
        Answer::Taken { damaged, dead }
    }

    /// The reply for a lock that was found or created, which `user` uses from now on.
    pub fn key(key: Key<'_>, term: u64, name: &str, user: NodeId) -> Self {
        key.set_user(user, true);
        let place = key.place();
        let resource = key.facts().map_or(Resource::Unnamed, |facts| facts.resource);
        let at = At { term, slot: place.slot, generation: place.generation, name: name.to_owned() };
        Answer::Key { at, resource: resource.to_words() }
    }
}

/// [`LockFacts`] in a reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    resource: [u64; 4],
    creator: PeerId,
    seen: u64,
    dead: u64,
    users: Vec<u16>,
    waiting: Vec<u64>,
}

impl Facts {
    pub fn new(facts: &LockFacts) -> Self {
        Self {
            resource: facts.resource.to_words(),
            creator: facts.creator.into(),
            seen: facts.seen.bits(),
            dead: facts.dead.map_or(0, OwnerId::bits),
            users: facts.users.iter().take(NAMED_MAX).map(|node| node.0).collect(),
            waiting: facts.waiting.iter().take(NAMED_MAX).map(|owner| owner.bits()).collect(),
        }
    }

    pub fn of(self, key: KeyRef, name: &str) -> LockFacts {
        LockFacts {
            key,
            name: name.to_owned(),
            resource: Resource::from_words(self.resource),
            creator: self.creator.into(),
            seen: Seen::from_bits(self.seen),
            dead: OwnerId::from_bits(self.dead),
            users: self.users.into_iter().map(NodeId).collect(),
            waiting: self.waiting.into_iter().filter_map(OwnerId::from_bits).collect(),
        }
    }
}

/// Why an operation was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trouble {
    Destroyed,
    Unknown,
    NotYours(u64),
    AlreadyYours,
    Otherwise(u64),
    Frozen,
    Deadlock(Vec<(u64, String)>),
    Exists,
    Full,
    Name,
    Other(String),
}

impl From<&LockError> for Trouble {
    fn from(fault: &LockError) -> Self {
        match fault {
            LockError::Destroyed => Trouble::Destroyed,
            LockError::Unknown => Trouble::Unknown,
            LockError::NotYours(value) => Trouble::NotYours(Seen::of(*value).bits()),
            LockError::AlreadyYours => Trouble::AlreadyYours,
            LockError::Otherwise(value) => Trouble::Otherwise(Seen::of(*value).bits()),
            LockError::Frozen => Trouble::Frozen,
            LockError::Deadlock { waits } => {
                Trouble::Deadlock(waits.iter().take(ENTRIES_MAX).map(|(who, key)| (who.bits(), key.clone())).collect())
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
    /// Any other reason, in words: at most 200 characters.
    pub fn other(why: &dyn std::fmt::Display) -> Self {
        Trouble::Other(why.to_string().chars().take(200).collect())
    }

    /// The caller's error. The other node may have sent anything.
    pub fn fault(self, name: &str) -> Result<LockError, ResourceError> {
        let value = |bits| Seen::from_bits(bits).value();
        Ok(match self {
            Trouble::Destroyed => LockError::Destroyed,
            Trouble::Unknown => LockError::Unknown,
            Trouble::NotYours(bits) => LockError::NotYours(value(bits)),
            Trouble::AlreadyYours => LockError::AlreadyYours,
            Trouble::Otherwise(bits) => LockError::Otherwise(value(bits)),
            Trouble::Frozen => LockError::Frozen,
            Trouble::Deadlock(waits) => {
                let waits = waits.into_iter().filter_map(|(who, key)| Some((OwnerId::from_bits(who)?, key)));
                LockError::Deadlock { waits: waits.collect() }
            }
            Trouble::Exists => return Err(ResourceError::Exists { name: name.to_owned() }),
            Trouble::Full => return Err(ResourceError::Full),
            Trouble::Name => return Err(ResourceError::Name { name: name.to_owned() }),
            Trouble::Other(why) => LockError::Coordinator(why.chars().filter(|c| !c.is_control()).take(200).collect()),
        })
    }
}

/// Encodes a packet. The maker of a packet keeps it within [`LETTER_MAX`].
pub fn encode<T: Serialize>(letter: &T) -> Vec<u8> {
    postcard::to_stdvec(letter).unwrap_or_default()
}

/// Decodes bytes that may be anything.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}
