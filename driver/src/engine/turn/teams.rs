//! Collectives of this node that are under way.

use super::Engine;
use crate::collective::{Core, Heard, Note};
use doorbell_fabric::{Incarnation, NodeId};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The teams of a node.
#[derive(Default)]
pub(crate) struct Teams {
    /// All of them, to be told who is gone.
    all: Vec<Weak<Core>>,
    /// Those of which operations wait for others.
    active: Vec<Arc<Core>>,
    heard: Heard,
    /// The latest attempt at each lineage.
    attempts: BTreeMap<u64, u32>,
}

impl Engine {
    /// The number of another attempt to form a team.
    pub(crate) fn next_attempt(&mut self, lineage: u64) -> u32 {
        let attempt = self.teams.attempts.entry(lineage).or_default();
        *attempt += 1;
        *attempt
    }

    /// Says something to those who form a team with this node.
    pub(crate) fn send_note(&mut self, node: NodeId, life: Incarnation, note: Vec<u8>) {
        self.inbound.mail.inform(node, life, note);
    }

    /// What a node said last of a lineage.
    pub(crate) fn heard(&self, node: NodeId, life: Incarnation, lineage: u64) -> Option<&Note> {
        self.teams.heard.of(node, life, lineage)
    }

    /// Changes with each note.
    pub(crate) fn notes_heard(&self) -> u64 {
        self.teams.heard.version
    }

    /// What came for those who form a team.
    pub(super) fn read_notes(&mut self) -> usize {
        let mut work = 0;
        while let Some((node, life, bytes)) = self.inbound.mail.notes.pop_front() {
            work += 1;
            match Note::decode(&bytes) {
                Some(note) => self.teams.heard.hear(node, life, note),
                None => self.on_broken(node, "a note about a team that says nothing"),
            }
        }
        work
    }

    /// A team was made.
    pub(crate) fn enter_team(&mut self, core: &Arc<Core>, lineage: u64, attempt: u32) {
        let latest = self.teams.attempts.entry(lineage).or_default();
        *latest = (*latest).max(attempt);
        self.teams.all.retain(|team| team.strong_count() > 0);
        self.teams.all.push(Arc::downgrade(core));
    }

    /// A team has operations that go on with each turn from now on.
    pub(crate) fn keep_team(&mut self, core: &Arc<Core>) {
        if !self.teams.active.iter().any(|active| Arc::ptr_eq(active, core)) {
            self.teams.active.push(core.clone());
        }
    }

    /// Whether operations of teams are under way.
    #[inline(always)]
    pub(super) fn has_teams(&self) -> bool {
        !self.teams.active.is_empty()
    }

    /// A life of a node is over.
    pub(super) fn fail_teams(&mut self, node: NodeId, life: Incarnation, left: bool) {
        for core in self.teams.all.iter().filter_map(Weak::upgrade) {
            core.gone(node, life, left);
        }
        self.teams.heard.forget(node, life);
    }

    /// Goes on with all. Returns the amount of work done.
    #[cold]
    pub(super) fn step_teams(&mut self) -> usize {
        let mut work = 0;
        self.teams.active.retain(|core| !core.step(&mut work));
        work
    }

    /// Ends all: the node leaves, or can do nothing any more.
    pub(super) fn end_teams(&mut self) {
        for core in self.teams.all.drain(..).filter_map(|core| core.upgrade()) {
            core.break_off();
        }
        self.step_teams();
        self.teams.active.clear();
    }
}
