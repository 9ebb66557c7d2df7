//! One of the processes: what it has at hand, and what it finds.

use super::super::net;
use super::super::plan::Recorded;
use super::{Mode, Plan};
use crate::experiment::Trouble;
use crate::experiment::place::Place;
use doorbell::{Node, NodeId};
use serde::{Deserialize, Serialize};

/// What the device is called.
pub const DEVICE: &str = "threads";

/// What a process found: for each leg, for each scheme.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Found {
    /// Of the one that sends.
    Sent(Vec<Vec<Vec<Sent>>>),
    /// Of one of which threads receive.
    Received(Vec<Vec<Seen>>),
}

/// A section, as the sender saw it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Sent {
    /// When it began.
    pub began_ns: u64,
    /// Messages.
    pub messages: u64,
}

/// What a receiving process saw of a scheme.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Round by round.
    pub rounds: Vec<Round>,
    /// How long messages took, in nanoseconds, of all rounds.
    pub times: Recorded,
}

/// A section, as the threads of one process saw it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Round {
    /// Messages.
    pub messages: u64,
    /// When the last thread was done.
    pub ended_ns: u64,
    /// What the process used of processors.
    pub processor_ns: u64,
}

/// What a process has at hand.
pub struct Member {
    /// The measurement.
    pub plan: Plan,
    /// What it has as a process.
    pub place: Place,
    /// The node of the process.
    pub node: Node,
}

/// Joins the domain: 0 is the sender, then come the processes that receive, and then the threads.
pub fn join(plan: &Plan, id: usize) -> Result<Node, Trouble> {
    let joined = plan.setting.builder("device").and_then(|builder| {
        let builder = builder.id(NodeId(id as u16)).max_nodes(plan.nodes());
        builder.loan_bytes((16 * plan.longest()).max(64 << 20)).join()
    });
    joined.map_err(|error| {
        Trouble::Unable(net::failure(error).of(format!("could not join the domain '{}' as node {id}", plan.setting.domain)))
    })
}

impl Member {
    /// Waits until all nodes are there.
    pub fn meet(&self) -> Result<(), Trouble> {
        self.place.meet(&self.node, self.plan.nodes())
    }

    /// Waits until all processes are here.
    pub fn gate(&self) -> Result<(), Trouble> {
        self.place.gate(1 + self.plan.receivers())
    }

    /// Since the measurement began.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        crate::clock::now() - self.place.began_ns
    }

    /// The node that a thread's messages go to, where a process receives them.
    pub fn home(&self, thread: usize) -> NodeId {
        NodeId(1 + self.plan.home(thread) as u16)
    }

    /// The node that a thread is itself.
    pub fn itself(&self, thread: usize) -> NodeId {
        NodeId((1 + self.plan.receivers() + thread) as u16)
    }

    /// The threads of this process, if it receives.
    pub fn threads(&self) -> Vec<usize> {
        let plan = &self.plan;
        let me = self.place.process.saturating_sub(1);
        (0..plan.threads).filter(|thread| plan.mode == Mode::Smp || plan.home(*thread) == me).collect()
    }
}
