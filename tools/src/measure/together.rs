//! How the processes of a measurement keep step.

use super::carrier::CarrierError;
use super::plan::Arrival;
use doorbell::{Error, Match, Node, NodeId};
use doorbell_benches::floor::{Finish, HopProbe, Mapping, Patience, Stopped};
use std::time::{Duration, Instant};

/// Tags of messages by which two halves keep step.
const GATE: u64 = 3;
const THROUGH: u64 = 4;
/// How often a process that waits looks whether it is to stop.
const GLANCE: Duration = Duration::from_millis(100);

/// How this process keeps step with the others.
pub enum Together<'a> {
    /// By memory that all share.
    Here {
        /// That memory.
        mapping: &'a Mapping,
        /// How many there are.
        parties: usize,
        /// Of this pair.
        finish: Finish<'a>,
        /// Of this pair, if it finds out how far apart its processors are, and nanoseconds in a tick.
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
    /// It was told to stop, the other half is gone, or the deadline passed.
    pub fn hear(&self, tag: u64, into: &mut [u8], deadline: Option<Instant>) -> Result<usize, CarrierError> {
        receive(self.node, Match::from(self.to).tag(tag), into, deadline, self.patience).map(|(_, len)| len)
    }
}

/// Waits for a message: from whom, and how long it is.
///
/// # Errors
/// It was told to stop, the sender is gone, or the deadline passed.
pub fn receive(
    node: &Node,
    what: Match,
    into: &mut [u8],
    deadline: Option<Instant>,
    patience: &Patience,
) -> Result<(NodeId, usize), CarrierError> {
    loop {
        if patience.stopped() {
            return Err(Stopped.into());
        }
        let glance = Instant::now() + GLANCE;
        match node.recv_by(what, into, deadline.map_or(glance, |deadline| deadline.min(glance))) {
            Err(Error::Timeout { .. }) if deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
            received => return Ok(received.map(|envelope| (envelope.source, envelope.len))?),
        }
    }
}

impl Together<'_> {
    /// Waits until all are here.
    ///
    /// # Errors
    /// It was told to stop, or the other half is gone.
    pub fn gate(&self) -> Result<(), CarrierError> {
        match self {
            Together::Here { mapping, parties, patience, .. } => Ok(mapping.gate().pass(*parties, patience)?),
            Together::Apart(apart) => {
                apart.node.send(apart.to, GATE, &[])?;
                apart.hear(GATE, &mut [], None).map(drop)
            }
        }
    }

    /// Says that this side is through with a stream.
    ///
    /// # Errors
    /// The other half is gone.
    pub fn tell(&mut self) -> Result<(), CarrierError> {
        match self {
            Together::Here { finish, .. } => finish.tell(),
            Together::Apart(apart) => apart.node.send(apart.to, THROUGH, &[])?,
        }
        Ok(())
    }

    /// Whether the other side has said so. Only where memory is shared.
    pub fn is_told(&self) -> bool {
        matches!(self, Together::Here { finish, .. } if finish.is_told())
    }

    /// Waits until the other side has said so.
    ///
    /// # Errors
    /// It was told to stop, or the other half is gone.
    pub fn wait(&mut self) -> Result<(), CarrierError> {
        match self {
            Together::Here { finish, .. } => Ok(finish.wait()?),
            Together::Apart(apart) => apart.hear(THROUGH, &mut [], None).map(drop),
        }
    }

    /// The same, while the other one puts into this side's memory.
    ///
    /// # Errors
    /// It was told to stop, or the other half is gone.
    pub fn wait_helping(&mut self, node: &Node, arrival: Arrival, patience: &Patience) -> Result<(), CarrierError> {
        while matches!(self, Together::Here { .. }) && !self.is_told() {
            if patience.stopped() {
                return Err(Stopped.into());
            }
            arrival.help(node)?;
        }
        self.wait()
    }

    /// How far apart the processors of the first pair are, while all others sleep.
    ///
    /// # Errors
    /// It was told to stop, or the other half is gone.
    pub fn probe(&mut self) -> Result<Option<(f64, bool)>, CarrierError> {
        self.gate()?;
        match self {
            Together::Here { probe: Some((probe, ns_per_tick)), .. } => {
                Ok(probe.probe(*ns_per_tick)?.map(|hop| (hop.ns, hop.shared_core)))
            }
            _ => Ok(None),
        }
    }
}
