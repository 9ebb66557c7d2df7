//! The slots of sessions, their names, and the peers that they belong to.

use super::Attempt;
use crate::protocol::session::Session;
use crate::protocol::{Peer, SessionId, Time};
use doorbell_fabric::{Incarnation, NodeId};
use std::collections::{BTreeMap, VecDeque};

/// The number of former incarnations remembered for each node.
const FORMER_MAX: usize = 4;

pub(super) enum Entry {
    Vacant,
    Attempt(Box<Attempt>),
    Session(Box<Session>),
}

struct Place {
    /// A number for the current use of the slot.
    generation: u64,
    entry: Entry,
}

/// All sessions and attempts. The low 16 bits of an id are the slot, the others its generation. Peers know the low 32 bits.
#[derive(Default)]
pub(super) struct Sessions {
    places: Vec<Place>,
    pub vacant: VecDeque<usize>,
    most: usize,
    /// The first generation number. It is random, so that names of a former incarnation mean nothing here.
    first_generation: u64,
    /// Usable sessions, by node and strand.
    peers: BTreeMap<(NodeId, u8), usize>,
    /// The incarnations of each node that had a session. The last one replaced the others.
    lives: BTreeMap<NodeId, VecDeque<Incarnation>>,
}

impl Sessions {
    pub fn new(most: usize, salt: u32) -> Self {
        Self { most, first_generation: salt.into(), ..Self::default() }
    }

    pub fn insert(&mut self, entry: impl FnOnce(SessionId) -> Entry) -> Option<SessionId> {
        let index = match self.vacant.pop_front() {
            Some(index) => index,
            None if self.places.len() < self.most => {
                self.places.push(Place { generation: self.first_generation, entry: Entry::Vacant });
                self.places.len() - 1
            }
            None => return None,
        };
        let place = &mut self.places[index];
        place.generation += 1;
        let id = SessionId(place.generation << 16 | index as u64);
        place.entry = entry(id);
        Some(id)
    }

    /// Puts a session into the slot of the attempt that led to it.
    pub fn promote(&mut self, index: usize, session: Box<Session>) {
        self.places[index].entry = Entry::Session(session);
    }

    pub fn remove(&mut self, index: usize) {
        self.places[index].entry = Entry::Vacant;
        self.vacant.push_back(index);
    }

    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// The earliest time at which anything is due.
    pub fn deadline(&self) -> Time {
        let of = |place: &Place| match &place.entry {
            Entry::Session(session) => session.deadline(),
            Entry::Attempt(attempt) => attempt.deadline(),
            Entry::Vacant => Time::NEVER,
        };
        self.places.iter().map(of).min().unwrap_or(Time::NEVER)
    }

    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Session> {
        match &mut self.places.get_mut(index)?.entry {
            Entry::Session(session) => Some(session),
            _ => None,
        }
    }

    pub fn at(&self, index: usize) -> Option<&Session> {
        match &self.places.get(index)?.entry {
            Entry::Session(session) => Some(session),
            _ => None,
        }
    }

    pub fn attempt_mut(&mut self, index: usize) -> Option<&mut Attempt> {
        match &mut self.places.get_mut(index)?.entry {
            Entry::Attempt(attempt) => Some(attempt),
            _ => None,
        }
    }

    fn sessions(&self) -> impl Iterator<Item = (usize, &Session)> {
        (0..self.places.len()).filter_map(|index| Some((index, self.at(index)?)))
    }

    pub fn sessions_mut(&mut self) -> impl Iterator<Item = &mut Session> {
        self.places.iter_mut().filter_map(|place| match &mut place.entry {
            Entry::Session(session) => Some(&mut **session),
            _ => None,
        })
    }

    /// The session with this name, which a peer uses for it.
    #[inline]
    pub fn named(&mut self, name: u32) -> Option<(usize, &mut Session)> {
        let index = usize::from(name as u16);
        let session = self.get_mut(index)?;
        (session.id.0 as u32 == name).then_some((index, session))
    }

    /// The attempt with this name, which a peer uses for it.
    pub fn attempt_named(&mut self, name: u32) -> Option<(usize, &mut Attempt)> {
        let index = usize::from(name as u16);
        let attempt = self.attempt_mut(index)?;
        (attempt.id.0 as u32 == name).then_some((index, attempt))
    }

    /// The session with this id, if it can be used.
    #[inline]
    pub fn live(&mut self, id: SessionId) -> Option<(usize, &mut Session)> {
        let index = usize::from(id.0 as u16);
        let session = self.get_mut(index)?;
        (session.id == id && session.over.is_none() && session.confirmed).then_some((index, session))
    }

    #[inline]
    pub fn peek(&self, id: SessionId) -> Option<&Session> {
        self.at(usize::from(id.0 as u16)).filter(|session| session.id == id && session.confirmed)
    }

    /// Some of the attempts.
    pub fn attempts(&self, meant: impl Fn(&Attempt) -> bool) -> Vec<usize> {
        let of = |(index, place): (usize, &Place)| match &place.entry {
            Entry::Attempt(attempt) if meant(attempt) => Some(index),
            _ => None,
        };
        self.places.iter().enumerate().filter_map(of).collect()
    }

    /// All sessions with an incarnation that have been usable, including those that have ended and wait for the driver.
    pub fn all_with(&self, peer: Peer) -> impl Iterator<Item = (usize, &Session)> {
        self.sessions().filter(move |(_, session)| session.confirmed && session.peer == peer)
    }

    /// Those of them that are not the first.
    pub fn further(&self, peer: Peer) -> Vec<usize> {
        self.all_with(peer).filter(|(_, session)| session.strand > 0).map(|(index, _)| index).collect()
    }

    pub fn with(&self, node: NodeId, strand: u8) -> Option<&Session> {
        self.at(self.place_with(node, strand)?)
    }

    pub fn place_with(&self, node: NodeId, strand: u8) -> Option<usize> {
        self.peers.get(&(node, strand)).copied()
    }

    /// Whether there is a first session with this incarnation.
    pub fn has_first(&self, peer: Peer) -> bool {
        self.with(peer.node, 0).is_some_and(|first| first.peer == peer && first.over.is_none())
    }

    pub fn enter(&mut self, node: NodeId, strand: u8, index: usize) {
        self.peers.insert((node, strand), index);
    }

    /// Records that the session in this slot is no longer the one with its node. Returns whether it was.
    pub fn leave(&mut self, node: NodeId, strand: u8, index: usize) -> bool {
        let was = self.peers.get(&(node, strand)) == Some(&index);
        if was {
            self.peers.remove(&(node, strand));
        }
        was
    }

    /// Sessions that others began and that were not confirmed.
    pub fn offers(&self) -> impl Iterator<Item = (usize, &Session)> {
        self.sessions().filter(|(_, session)| !session.confirmed)
    }

    /// Those of them with a node and a strand.
    pub fn offers_of(&self, node: NodeId, strand: u8) -> Vec<usize> {
        let is_of = |session: &Session| (session.peer.node, session.strand) == (node, strand);
        self.offers().filter(|(_, session)| is_of(session)).map(|(index, _)| index).collect()
    }

    /// Records a session with this incarnation of a node. Any other incarnation is retired for good, even if its sessions ended
    /// before.
    pub fn live_on(&mut self, node: NodeId, incarnation: Incarnation) {
        let lives = self.lives.entry(node).or_default();
        if lives.back() != Some(&incarnation) {
            lives.push_back(incarnation);
        }
        if lives.len() > 1 + FORMER_MAX {
            lives.pop_front();
        }
    }

    pub fn is_former(&self, node: NodeId, incarnation: Incarnation) -> bool {
        let lives = self.lives.get(&node);
        lives.is_some_and(|lives| lives.back() != Some(&incarnation) && lives.contains(&incarnation))
    }
}
