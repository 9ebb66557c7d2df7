//! The surroundings of a process, and its findings.

use super::{Mode, Plan};
use crate::experiment::{Place, Trouble, cannot_join};
use doorbell::{Node, NodeId};
use doorbell_benches::Samples;
use serde::{Deserialize, Serialize};

/// The name of the device.
pub const DEVICE: &str = "threads";

/// The findings of a process, by leg and scheme: of the sender for each round, or of a receiving process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    pub sent: Vec<Vec<Vec<Sent>>>,
    pub seen: Vec<Vec<Seen>>,
}

/// A section of the sender.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Sent {
    /// When it began.
    pub began_ns: u64,
    /// Messages.
    pub messages: u64,
}

/// The findings of a receiving process for one scheme.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    /// The rounds.
    pub rounds: Vec<Round>,
    /// The times of messages in nanoseconds, of all rounds.
    pub times: Samples,
}

/// A section of the threads of one process.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Round {
    /// Messages.
    pub messages: u64,
    /// When the last thread was done.
    pub ended_ns: u64,
    /// The processor time of the process.
    pub processor_ns: u64,
}

/// The surroundings of a process.
pub struct Member {
    /// The measurement.
    pub plan: Plan,
    /// The place of the process.
    pub place: Place,
    /// The node of the process.
    pub node: Node,
}

/// Joins the domain. Node 0 is the sender; then come the receiving processes, and then the threads.
pub fn join(plan: &Plan, id: usize) -> Result<Node, Trouble> {
    let joined = plan.setting.builder("device").and_then(|builder| {
        let builder = builder.id(NodeId(id as u16)).max_nodes(plan.nodes());
        builder.loan_bytes((16 * plan.longest()).max(64 << 20)).join()
    });
    joined.map_err(|error| cannot_join(&plan.setting, id, error))
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

    /// Nanoseconds since the measurement began.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        crate::clock::now() - self.place.began_ns
    }

    /// The node of the process that receives a thread's messages.
    pub fn home(&self, thread: usize) -> NodeId {
        NodeId(1 + self.plan.home(thread) as u16)
    }

    /// The node of a thread.
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
