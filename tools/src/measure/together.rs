//! How the processes of a measurement keep step.

use super::Arrival;
use crate::experiment::{Trouble, unless_stopped};
use doorbell::{Error, Match, Node, NodeId};
use doorbell_benches::{Finish, HopProbe, Mapping, Patience};
use std::time::{Duration, Instant};

/// Tags of the messages by which two halves keep step.
const GATE: u64 = 3;
const THROUGH: u64 = 4;
/// How often a waiting process looks whether it is told to stop.
const GLANCE: Duration = Duration::from_millis(100);

/// How this process keeps step with the others.
pub enum Together<'a> {
    /// By memory that all processes share.
    Here {
        /// The shared memory.
        mapping: &'a Mapping,
        /// The number of processes.
        parties: usize,
        /// By which each side of this pair tells the other that it is done.
        finish: Finish<'a>,
        /// Measures how far apart the processors of this pair are, with the nanoseconds in a tick; if this pair does so.
        probe: Option<(HopProbe<'a>, f64)>,
        /// Says when to stop.
        patience: &'a Patience,
    },
    /// By messages between two halves.
    Apart(Apart<'a>),
}

/// The other half, as this one sees it.
#[derive(Clone, Copy)]
pub struct Apart<'a> {
    /// The node at this end.
    pub node: &'a Node,
    /// The node at the other end.
    pub to: NodeId,
    /// Says when to stop.
    pub patience: &'a Patience,
}

impl Apart<'_> {
    /// Waits for a message from the other half.
    ///
    /// # Errors
    /// The process was told to stop, the other half is gone, or the deadline passed.
    pub fn hear(&self, tag: u64, into: &mut [u8], deadline: Option<Instant>) -> Result<usize, Trouble> {
        receive(self.node, Match::from(self.to).tag(tag), into, deadline, self.patience).map(|(_, len)| len)
    }
}

/// Waits for a message, and returns its sender and its length.
///
/// # Errors
/// The process was told to stop, the sender is gone, or the deadline passed.
pub fn receive(
    node: &Node,
    what: Match,
    into: &mut [u8],
    deadline: Option<Instant>,
    patience: &Patience,
) -> Result<(NodeId, usize), Trouble> {
    loop {
        unless_stopped(patience)?;
        let glance = Instant::now() + GLANCE;
        match node.recv_until(what, into, deadline.map_or(glance, |deadline| deadline.min(glance))) {
            Err(Error::Timeout { .. }) if deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
            received => return Ok(received.map(|envelope| (envelope.source, envelope.len))?),
        }
    }
}

impl Together<'_> {
    /// Waits until all processes are here.
    ///
    /// # Errors
    /// The process was told to stop, or the other half is gone.
    pub fn gate(&self) -> Result<(), Trouble> {
        match self {
            Together::Here { mapping, parties, patience, .. } => Ok(mapping.gate().pass(*parties, patience)?),
            Together::Apart(apart) => {
                apart.node.send(apart.to, GATE, &[])?;
                apart.hear(GATE, &mut [], None).map(drop)
            }
        }
    }

    /// Tells the other side that this one is through with a stream.
    ///
    /// # Errors
    /// The other half is gone.
    pub fn tell(&mut self) -> Result<(), Trouble> {
        match self {
            Together::Here { finish, .. } => finish.tell(),
            Together::Apart(apart) => apart.node.send(apart.to, THROUGH, &[])?,
        }
        Ok(())
    }

    /// Whether the other side has told so. Always false without shared memory.
    pub fn is_told(&self) -> bool {
        matches!(self, Together::Here { finish, .. } if finish.is_told())
    }

    /// Waits until the other side has told so.
    ///
    /// # Errors
    /// The process was told to stop, or the other half is gone.
    pub fn wait(&mut self) -> Result<(), Trouble> {
        match self {
            Together::Here { finish, .. } => Ok(finish.wait()?),
            Together::Apart(apart) => apart.hear(THROUGH, &mut [], None).map(drop),
        }
    }

    /// The same, while the other side puts into this side's memory.
    ///
    /// # Errors
    /// The process was told to stop, or the other half is gone.
    pub fn wait_helping(&mut self, node: &Node, arrival: Arrival, patience: &Patience) -> Result<(), Trouble> {
        while matches!(self, Together::Here { .. }) && !self.is_told() {
            unless_stopped(patience)?;
            arrival.help(node)?;
        }
        self.wait()
    }

    /// Measures how far apart the processors of the first pair are, while all other processes sleep.
    ///
    /// # Errors
    /// The process was told to stop, or the other half is gone.
    pub fn probe(&mut self) -> Result<Option<(f64, bool)>, Trouble> {
        self.gate()?;
        match self {
            Together::Here { probe: Some((probe, ns_per_tick)), .. } => {
                Ok(probe.probe(*ns_per_tick)?.map(|hop| (hop.ns, hop.shared_core)))
            }
            _ => Ok(None),
        }
    }
}
