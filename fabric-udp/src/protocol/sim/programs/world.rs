//! The actions of both nodes of a program, from the viewpoint of an observer that sees both: what was sent, and what must arrive.

use crate::protocol::CloseReason;
use crate::protocol::Time;
use doorbell_fabric::{PRIORITIES, PacketKind};
use std::collections::BTreeMap;
use std::fmt;

/// One end of a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct End {
    pub node: u16,
    pub life: u32,
    /// This end's name for the session.
    pub name: u32,
}

/// A packet that was pushed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pushed {
    pub kind: PacketKind,
    pub len: usize,
    /// Its message was given up, so the other driver need not see it.
    pub given_up: bool,
}

/// One lane, from its sender to the other driver.
#[derive(Default)]
pub(super) struct Lane {
    pub pushed: Vec<Pushed>,
    /// The number of packets that the other driver has.
    pub had: usize,
    /// The first packet of the message that is being sent.
    pub open: Option<usize>,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.had, self.pushed.len())?;
        self.pushed.get(self.had).map_or(Ok(()), |next| write!(f, ", next {next:?}"))
    }
}

impl Lane {
    /// Whether the other driver has everything that it must have.
    pub fn is_through(&self) -> bool {
        self.pushed[self.had..].iter().all(|packet| packet.given_up)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Running,
    /// Arrived, or sent.
    Done,
    /// This end's driver cancelled it.
    GivenUp,
    /// This end was told that the other end cancelled it, or that its source failed.
    Cancelled,
}

/// A transfer, at the end that expects it.
pub(super) struct Incoming {
    pub total: u64,
    pub limit: u64,
    pub there: Vec<bool>,
    pub placed: u64,
    pub fate: Fate,
    /// The other driver was told of it.
    pub told: bool,
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { total, limit, placed, fate, told, .. } = self;
        write!(f, "{placed} of {total}, limit {limit}, told {told}, {fate:?}")
    }
}

/// The actions of one end of a session.
#[derive(Debug)]
pub(super) struct Side {
    pub peer: End,
    pub lanes: [Lane; PRIORITIES],
    pub incoming: BTreeMap<u64, Incoming>,
    pub outgoing: BTreeMap<u64, Fate>,
    /// The time and the code with which its driver closed it.
    pub closed: Option<(Time, u8)>,
    /// Its driver knows that it has ended, or its node was killed.
    pub ended: bool,
    /// It ended in good order, so everything that it sent must reach the other driver.
    pub promised: bool,
}

impl Side {
    pub fn new(peer: End) -> Self {
        Self {
            peer,
            lanes: Default::default(),
            incoming: BTreeMap::new(),
            outgoing: BTreeMap::new(),
            closed: None,
            ended: false,
            promised: false,
        }
    }

    pub fn is_through(&self) -> bool {
        self.lanes.iter().all(Lane::is_through)
            && self.incoming.values().all(|transfer| transfer.fate != Fate::Running)
            && self.outgoing.values().all(|fate| *fate != Fate::Running)
    }
}

#[derive(Default)]
pub(super) struct World {
    pub ends: BTreeMap<End, Side>,
    /// The network was so bad, or so much happened, that sessions may have died.
    pub may_die: bool,
    pub has_idle: bool,
    pub both_asked: bool,
    pub restarted: bool,
    pub dead_after: u64,
}

impl World {
    /// Whether an end and its other end both live.
    pub fn is_whole(&self, end: End) -> bool {
        self.ends
            .get(&end)
            .is_some_and(|side| !side.ended && self.ends.get(&side.peer).is_some_and(|other| !other.ended && other.peer == end))
    }

    /// Whether everything that must end has ended.
    pub fn is_through(&self) -> bool {
        self.ends.iter().all(|(end, side)| side.ended || (self.is_whole(*end) && side.is_through()))
    }

    /// Records the end of an end, and checks whether it was allowed.
    pub fn end(&mut self, now: Time, end: End, reason: CloseReason) {
        let other = self.ends.get(&self.ends[&end].peer);
        let other_lives = other.is_some_and(|other| !other.ended && other.closed.is_none());
        let side = &self.ends[&end];
        assert!(!side.ended, "{end:?} ended twice: {reason:?}");
        let through = other.is_none_or(|other| other.lanes.iter().all(Lane::is_through));
        let mut promised = false;
        match reason {
            CloseReason::Local => {
                let (at, _) = side.closed.unwrap_or_else(|| panic!("{end:?} ended, but no driver closed it"));
                promised = now - at < self.dead_after && !self.may_die && other_lives;
            }
            CloseReason::ByPeer(code) => {
                let other = other.unwrap_or_else(|| panic!("{end:?} was closed by no driver"));
                assert_eq!(other.closed.map(|(_, code)| code), Some(code), "{end:?}");
                assert!(through, "{end:?} was closed in good order, but data is missing: {other:?}");
            }
            CloseReason::Silent => {
                assert!(self.may_die || !other_lives, "{end:?} ended as silent, but the other end lives");
            }
            CloseReason::Idle => assert!(self.has_idle, "{end:?} ended as idle"),
            CloseReason::Replaced => assert!(self.restarted, "{end:?} was replaced, but no node restarted"),
            CloseReason::Duplicate => assert!(self.both_asked, "{end:?} ended as a duplicate, but only one end asked"),
            other => panic!("{end:?} ended: {other:?}"),
        }
        if other.is_some_and(|other| other.promised) {
            assert!(through, "{end:?} ended as {reason:?}; the other end had closed in good order, but data is missing");
        }
        let side = self.ends.get_mut(&end).expect("it was there");
        (side.ended, side.promised) = (true, promised);
    }
}
