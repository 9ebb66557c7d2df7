//! Collectives of this node that are under way.

use super::Engine;
use crate::collective::{Core, Note, PRIORITY};
use crate::engine::baton::Token;
use doorbell_fabric::{Incarnation, NodeId, PacketKind, Push};
use std::sync::Arc;

/// The smallest packets by which collectives go.
const PACKET_MIN: usize = 64;

impl Engine {
    /// The number of another attempt to form a team, and what keeps it known.
    pub(crate) fn next_attempt(&mut self, lineage: u64) -> (u32, Arc<()>) {
        self.inbound.teams.next_attempt(lineage)
    }

    /// Says something to those who form a team with this node.
    pub(crate) fn send_note(&mut self, node: NodeId, life: Incarnation, note: Vec<u8>) {
        self.inbound.mail.inform(node, life, note);
    }

    /// What a node said last of a lineage.
    pub(crate) fn heard(&self, node: NodeId, life: Incarnation, lineage: u64) -> Option<&Note> {
        self.inbound.teams.said(node, life, lineage)
    }

    /// Changes with each note.
    pub(crate) fn notes_heard(&mut self) -> u64 {
        self.inbound.teams.heard().version
    }

    /// What came for those who form a team.
    pub(super) fn read_notes(&mut self) -> usize {
        let mut work = 0;
        while let Some((node, life, bytes)) = self.inbound.mail.notes.pop_front() {
            work += 1;
            match Note::decode(&bytes) {
                Some(note) => self.inbound.teams.heard().hear(node, life, note),
                None => self.on_broken(node, "a note about a team that says nothing"),
            }
        }
        work
    }

    /// A team was made.
    pub(crate) fn enter_team(&mut self, core: &Arc<Core>, lineage: u64, attempt: u32) {
        self.inbound.teams.enter(core, lineage, attempt);
    }

    /// A team has operations that go on with each turn from now on.
    pub(crate) fn keep_team(&mut self, core: &Arc<Core>) {
        self.inbound.teams.keep(core);
    }

    /// Goes on with all. Returns the amount of work done.
    #[cold]
    pub(super) fn step_teams(&mut self, me: Token) -> usize {
        let mut work = 0;
        let mut active = std::mem::take(self.inbound.teams.active());
        active.retain(|core| {
            let over = core.step(&mut work);
            let pushed = self.push_team(me, core);
            work += pushed;
            if pushed > 0 {
                // What was waited for may have been room.
                core.step(&mut work);
            }
            !over || pushed > 0
        });
        // What came active meanwhile, as somebody is gone.
        for core in std::mem::replace(self.inbound.teams.active(), active) {
            self.inbound.teams.keep(&core);
        }
        work
    }

    /// Sends what a team has for others.
    fn push_team(&mut self, me: Token, core: &Arc<Core>) -> usize {
        let Some(apart) = core.apart().filter(|apart| apart.wants()) else { return 0 };
        let mut pushed = 0;
        for (rank, node, life) in core.others() {
            let Some(outbound) = self.ways.get(node, PRIORITY).cloned() else { continue };
            let Some(mut state) = outbound.state.enter(me) else { continue };
            // If it is gone, that is told to the team by its end.
            if self.connect(&outbound, &mut state, life).is_err() {
                continue;
            }
            let Some(packet) = state.region_bytes(0).filter(|packet| *packet >= PACKET_MIN) else { continue };
            pushed += apart.push(rank, packet, |tag, bytes| state.push_apart(PacketKind::Team, tag, bytes) == Push::Done);
        }
        pushed
    }
}
