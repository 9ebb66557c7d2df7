//! The teams of a node.

use super::core::Core;
use super::formation::{Heard, Note};
use super::net::team_of;
use super::watch::{ChannelStats, Counts};
use crate::message::service::PeerId;
use doorbell_fabric::{Incarnation, NodeId, PRIORITIES, Payload, Priority, Verdict};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

/// At which priority what goes by the network goes.
pub(crate) const PRIORITY: Priority = Priority::Low;

/// All of them.
#[derive(Default)]
pub struct Teams {
    /// Notes that are to go to other nodes.
    pub(super) notes: VecDeque<(PeerId, Vec<u8>)>,
    /// To be told who is gone, and to be given what comes.
    all: Vec<Weak<Core>>,
    /// Those of which operations wait for others.
    active: Vec<Arc<Core>>,
    heard: Heard,
    /// The latest attempt at each lineage.
    attempts: BTreeMap<u64, u32>,
    /// What is counted of all teams, and what was of those that are gone.
    counts: Vec<Arc<Counts>>,
    past: ChannelStats,
}

impl Teams {
    /// Whether operations are under way.
    #[inline(always)]
    pub fn is_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// The number of another attempt to form a team.
    pub(crate) fn next_attempt(&mut self, lineage: u64) -> u32 {
        let attempt = self.attempts.entry(lineage).or_default();
        *attempt += 1;
        *attempt
    }

    /// Says something to a node that forms a team with this one.
    pub(crate) fn inform(&mut self, to: PeerId, note: Vec<u8>) {
        self.notes.push_back((to, note));
    }

    /// What others said of teams that are to be.
    pub(crate) fn heard(&mut self) -> &mut Heard {
        &mut self.heard
    }

    /// What a node said last of a lineage.
    pub(crate) fn said(&self, node: NodeId, life: Incarnation, lineage: u64) -> Option<&Note> {
        self.heard.of(node, life, lineage)
    }

    /// A team was made.
    pub(crate) fn enter(&mut self, core: &Arc<Core>, lineage: u64, attempt: u32) {
        let latest = self.attempts.entry(lineage).or_default();
        *latest = (*latest).max(attempt);
        self.all.retain(|team| team.strong_count() > 0 && !std::ptr::eq(team.as_ptr(), Arc::as_ptr(core)));
        self.all.push(Arc::downgrade(core));
        let Self { counts, past, .. } = self;
        // What nobody else has is not counted any more.
        counts.retain(|counts| {
            let lives = Arc::strong_count(counts) > 1;
            if !lives {
                *past += counts.read();
            }
            lives
        });
        if !counts.iter().any(|counts| Arc::ptr_eq(counts, core.counts())) {
            counts.push(core.counts().clone());
        }
    }

    /// What became of the channels of all teams that this node ever had.
    pub(crate) fn stats(&self) -> ChannelStats {
        let mut sum = self.past;
        self.counts.iter().for_each(|counts| sum += counts.read());
        sum
    }

    /// It has operations that go on with each turn from now on.
    pub(crate) fn keep(&mut self, core: &Arc<Core>) {
        if !self.active.iter().any(|active| Arc::ptr_eq(active, core)) {
            self.active.push(core.clone());
        }
    }

    /// Those with operations under way, to go on with them.
    pub(crate) fn active(&mut self) -> &mut Vec<Arc<Core>> {
        &mut self.active
    }

    /// A life of a node is over.
    pub(crate) fn fail(&mut self, node: NodeId, life: Incarnation, left: bool) {
        for core in self.all.iter().filter_map(Weak::upgrade) {
            core.gone(node, life, left);
        }
        self.heard.forget(node, life);
    }

    /// Ends all: the node leaves, or can do nothing any more.
    pub(crate) fn end(&mut self) {
        for core in self.all.drain(..).filter_map(|core| core.upgrade()) {
            core.leave();
        }
        let mut work = 0;
        for core in self.active.drain(..) {
            core.step(&mut work);
        }
    }

    /// A packet came, by a lane from this life of a node.
    #[cold]
    pub fn take(&mut self, lane: usize, life: Incarnation, tag: u64, payload: Payload<'_>) -> Verdict {
        let node = NodeId((lane / PRIORITIES) as u16);
        for core in self.all.iter().filter_map(Weak::upgrade) {
            if let Some(apart) = core.apart().filter(|apart| apart.number == team_of(tag))
                && let Some(rank) = core.rank_of(node, life)
            {
                let verdict = apart.take(rank, tag, payload);
                self.keep(&core);
                return verdict;
            }
        }
        // Of a team that is no more here.
        Verdict::Taken
    }

    /// Whether a thread of this node waits for something that is to come by a lane.
    pub fn awaits_by(&self, lane: usize) -> bool {
        let is_its = |core: &Arc<Core>| {
            let Some(apart) = core.apart() else { return false };
            core.others().any(|(rank, node, _)| node.index() == lane / PRIORITIES && apart.awaits(rank))
        };
        lane % PRIORITIES == PRIORITY.index() && self.active.iter().any(is_its)
    }
}
