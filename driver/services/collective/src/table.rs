//! The teams of a node.

use super::apart::Apart;
use super::core::Core;
use super::formation::Heard;
use super::net::team_of;
use super::watch::{ChannelStats, Counts};
use doorbell_engine::message::service::{Gone, PeerId};
use doorbell_fabric::{NodeId, Payload, Priority, Verdict};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// The priority of the packets of operations.
pub(crate) const PRIORITY: Priority = Priority::Low;

/// Unused lineages whose latest attempt is remembered.
const ATTEMPTS_MAX: usize = 1024;

/// How often this node has tried to form the teams of one lineage.
struct Attempts {
    lineage: u64,
    latest: u32,
    /// Each team of the lineage has a share of it, and each thread that forms one.
    used: Weak<()>,
}

/// The teams of one node.
#[derive(Default)]
pub struct Teams {
    /// Notes to be sent to other nodes.
    pub(super) notes: VecDeque<(PeerId, Vec<u8>)>,
    /// All teams, with their lineages. They are told which peers are gone, and get the packets that come.
    all: Vec<(Weak<Core>, u64)>,
    /// The teams with operations under way.
    pub(super) active: Vec<Arc<Core>>,
    pub(super) heard: Heard,
    /// The latest attempt at each lineage, in the order of use.
    attempts: VecDeque<Attempts>,
    /// The counters of all teams, and the sums of teams that are gone.
    counts: Vec<Arc<Counts>>,
    past: ChannelStats,
}

impl Teams {
    /// The number of another attempt to form a team. It is remembered as long as the other half of the result lives.
    pub(crate) fn next_attempt(&mut self, lineage: u64) -> (u32, Arc<()>) {
        let known = self.attempts.iter().position(|known| known.lineage == lineage).and_then(|at| self.attempts.remove(at));
        let mut attempts = known.unwrap_or(Attempts { lineage, latest: 0, used: Weak::new() });
        attempts.latest = attempts.latest.saturating_add(1);
        let used = attempts.used.upgrade().unwrap_or_default();
        attempts.used = Arc::downgrade(&used);
        if self.attempts.len() >= ATTEMPTS_MAX {
            self.forget_attempts();
        }
        let latest = attempts.latest;
        self.attempts.push_back(attempts);
        (latest, used)
    }

    /// Forgets the unused lineage that was used longest ago, and the notes of others about it: they would be taken for answers to the attempts, which begin at 1
    /// again. A lineage with a living team is kept, as the same number would name two teams.
    fn forget_attempts(&mut self) {
        let lives = |lineage| self.all.iter().any(|(team, its)| *its == lineage && team.strong_count() > 0);
        let unused = |known: &Attempts| known.used.strong_count() == 0 && !lives(known.lineage);
        if let Some(at) = self.attempts.iter().position(unused)
            && let Some(forgotten) = self.attempts.remove(at)
        {
            self.heard.forget_lineage(forgotten.lineage);
        }
    }

    /// Sends a note about a team that is being formed. Only the latest note about a lineage counts, so it replaces an older one that has not left. So a peer that
    /// reads nothing has only one note kept for it.
    pub(crate) fn inform(&mut self, to: PeerId, note: Vec<u8>) {
        match self.notes.iter_mut().find(|(node, older)| *node == to && older.first_chunk::<8>() == note.first_chunk()) {
            Some((_, older)) => *older = note,
            None => self.notes.push_back((to, note)),
        }
    }

    /// A team was made.
    pub(crate) fn enter(&mut self, core: &Arc<Core>, lineage: u64, attempt: u32) {
        if let Some(known) = self.attempts.iter_mut().find(|known| known.lineage == lineage) {
            known.latest = known.latest.max(attempt);
        }
        self.all.retain(|(team, _)| team.strong_count() > 0 && !std::ptr::eq(team.as_ptr(), Arc::as_ptr(core)));
        self.all.push((Arc::downgrade(core), lineage));
        let Self { counts, past, .. } = self;
        // Counters that only this table has are of teams that are gone.
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

    /// The counters of all teams that this node ever had.
    pub(crate) fn stats(&self) -> ChannelStats {
        let mut sum = self.past;
        self.counts.iter().for_each(|counts| sum += counts.read());
        sum
    }

    /// The engine goes on with this team in each turn from now on.
    pub(crate) fn keep(&mut self, core: &Arc<Core>) {
        if !self.active.iter().any(|active| Arc::ptr_eq(active, core)) {
            self.active.push(core.clone());
        }
    }

    /// A node is gone.
    pub(crate) fn gone(&mut self, peer: PeerId, why: Gone) {
        for core in self.all.iter().filter_map(|(team, _)| team.upgrade()).collect::<Vec<_>>() {
            core.gone(peer, why);
            if core.apart().is_some_and(Apart::wants) {
                self.keep(&core);
            }
        }
        self.heard.forget(peer);
    }

    /// Ends all teams: the node leaves, or can do nothing any more.
    pub(crate) fn end(&mut self) {
        for core in self.all.drain(..).filter_map(|(team, _)| team.upgrade()) {
            core.leave();
        }
        let mut work = 0;
        for core in self.active.drain(..) {
            core.step(&mut work);
        }
    }

    /// A packet of an operation came.
    #[cold]
    pub fn take(&mut self, from: PeerId, tag: u64, payload: Payload<'_>) -> Verdict {
        for core in self.all.iter().filter_map(|(team, _)| team.upgrade()) {
            if let Some(apart) = core.apart().filter(|apart| apart.number == team_of(tag))
                && let Some(rank) = core.rank_of(from)
            {
                let verdict = apart.take(rank, tag, payload);
                self.keep(&core);
                return verdict;
            }
        }
        // This node does not have the team any more.
        Verdict::Taken
    }

    /// Whether a thread of this node waits for a packet of an operation from a node.
    pub fn awaits_from(&self, node: NodeId) -> bool {
        let is_its = |core: &Arc<Core>| {
            let Some(apart) = core.apart() else { return false };
            core.others().any(|(rank, peer)| peer.node == node && apart.awaits(rank))
        };
        self.active.iter().any(is_its)
    }
}

#[cfg(test)]
mod tests {
    use super::super::formation::{Note, Stage};
    use super::*;
    use doorbell_fabric::Incarnation;

    #[test]
    #[cfg_attr(miri, ignore = "too many of them")]
    fn attempts_at_teams_that_are_gone_are_forgotten() {
        let mut teams = Teams::default();
        let (first, used) = teams.next_attempt(7);
        assert_eq!(first, 1);
        let note = Note { lineage: 100, attempt: 1, stage: Stage::Mapped, layout: 0, region: None, set: vec![], near: vec![] };
        let peer = PeerId::from((NodeId(3), Incarnation(1)));
        teams.heard.hear(peer, note);
        for lineage in 100..100 + 3 * ATTEMPTS_MAX as u64 {
            teams.next_attempt(lineage);
            assert!(teams.attempts.len() <= ATTEMPTS_MAX + 1, "{} are kept", teams.attempts.len());
        }
        // A used lineage is remembered, and so is a late one. Of the earliest others no note is left that could be taken for an answer.
        assert_eq!(teams.next_attempt(7).0, 2);
        assert_eq!(teams.next_attempt(99 + 3 * ATTEMPTS_MAX as u64).0, 2);
        assert!(teams.heard.of(peer, 100).is_none());
        drop(used);
        for lineage in 0..2 * ATTEMPTS_MAX as u64 {
            teams.next_attempt(1 << 20 | lineage);
        }
        assert_eq!(teams.next_attempt(7).0, 1);
    }

    /// A node that reads nothing has the latest note about each team kept for it, and no earlier one.
    #[test]
    fn a_note_takes_the_place_of_one_that_has_not_left() {
        let mut teams = Teams::default();
        let (peer, other) = (PeerId::from((NodeId(3), Incarnation(1))), PeerId::from((NodeId(4), Incarnation(1))));
        for attempt in 0..1000_u32 {
            for team in 0..2_u64 {
                teams.inform(peer, [&team.to_le_bytes()[..], &attempt.to_le_bytes()].concat());
            }
        }
        teams.inform(other, vec![0; 12]);
        let mut kept = teams.notes.iter().map(|(to, note)| (*to, &note[8..])).collect::<Vec<_>>();
        kept.sort_unstable();
        let last = 999_u32.to_le_bytes();
        assert_eq!(kept, [(peer, &last[..]), (peer, &last[..]), (other, &[0; 4][..])]);
    }
}
