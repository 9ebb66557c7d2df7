//! The teams of a node.

use super::apart::Apart;
use super::core::Core;
use super::formation::{Heard, Note};
use super::net::team_of;
use super::watch::{ChannelStats, Counts};
use doorbell_engine::message::service::{Gone, PeerId};
use doorbell_fabric::{Incarnation, NodeId, PRIORITIES, Payload, Priority, Verdict};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// At which priority what goes by the network goes.
pub(crate) const PRIORITY: Priority = Priority::Low;

/// Lineages whose latest attempt is known beside those that somebody uses.
const ATTEMPTS_MAX: usize = 1024;

/// How often this node has tried to form the teams of one lineage.
struct Attempts {
    lineage: u64,
    latest: u32,
    /// Whoever forms such a team or has one has a share of it.
    used: Weak<()>,
}

/// All of them.
#[derive(Default)]
pub struct Teams {
    /// Notes that are to go to other nodes.
    pub(super) notes: VecDeque<(PeerId, Vec<u8>)>,
    /// To be told who is gone, and to be given what comes, with their lineages.
    all: Vec<(Weak<Core>, u64)>,
    /// Those of which operations wait for others.
    active: Vec<Arc<Core>>,
    heard: Heard,
    /// The latest attempt at each lineage; that which was used last is at the back.
    attempts: VecDeque<Attempts>,
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

    /// The number of another attempt to form a team. It is not forgotten as long as somebody keeps what comes with it.
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

    /// Forgets the lineage that was used longest ago, of those that nobody uses. What others said of it goes, too: it would be taken for an answer to the
    /// attempts that begin at 1 again. The same number would name two teams if one of them still lived.
    fn forget_attempts(&mut self) {
        let lives = |lineage| self.all.iter().any(|(team, its)| *its == lineage && team.strong_count() > 0);
        let unused = |known: &Attempts| known.used.strong_count() == 0 && !lives(known.lineage);
        if let Some(at) = self.attempts.iter().position(unused)
            && let Some(forgotten) = self.attempts.remove(at)
        {
            self.heard.forget_lineage(forgotten.lineage);
        }
    }

    /// Says something about a team that is to be. Only the latest note about a lineage counts, so it takes the place of an older one that has not left:
    /// a peer that reads nothing has one note kept for it.
    pub(crate) fn inform(&mut self, to: PeerId, note: Vec<u8>) {
        match self.notes.iter_mut().find(|(node, older)| *node == to && older.first_chunk::<8>() == note.first_chunk()) {
            Some((_, older)) => *older = note,
            None => self.notes.push_back((to, note)),
        }
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
        if let Some(known) = self.attempts.iter_mut().find(|known| known.lineage == lineage) {
            known.latest = known.latest.max(attempt);
        }
        self.all.retain(|(team, _)| team.strong_count() > 0 && !std::ptr::eq(team.as_ptr(), Arc::as_ptr(core)));
        self.all.push((Arc::downgrade(core), lineage));
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

    /// Nothing of a life of a node counts any more.
    pub(crate) fn gone(&mut self, node: NodeId, life: Incarnation, why: Gone) {
        for core in self.all.iter().filter_map(|(team, _)| team.upgrade()).collect::<Vec<_>>() {
            core.gone(node, life, why);
            if core.apart().is_some_and(Apart::wants) {
                self.keep(&core);
            }
        }
        self.heard.forget(node, life);
    }

    /// Ends all: the node leaves, or can do nothing any more.
    pub(crate) fn end(&mut self) {
        for core in self.all.drain(..).filter_map(|(team, _)| team.upgrade()) {
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
        for core in self.all.iter().filter_map(|(team, _)| team.upgrade()) {
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

#[cfg(test)]
mod tests {
    use super::super::formation::Stage;
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "too many of them")]
    fn attempts_at_teams_that_are_gone_are_forgotten() {
        let mut teams = Teams::default();
        let (first, used) = teams.next_attempt(7);
        assert_eq!(first, 1);
        let note = Note { lineage: 100, attempt: 1, stage: Stage::Mapped, layout: 0, region: None, set: vec![], near: vec![] };
        teams.heard().hear(NodeId(3), Incarnation(1), note);
        for lineage in 100..100 + 3 * ATTEMPTS_MAX as u64 {
            teams.next_attempt(lineage);
            assert!(teams.attempts.len() <= ATTEMPTS_MAX + 1, "{} are kept", teams.attempts.len());
        }
        // One that is used is known, and so is a late one; of the first others is nothing left that could be taken for an answer.
        assert_eq!(teams.next_attempt(7).0, 2);
        assert_eq!(teams.next_attempt(99 + 3 * ATTEMPTS_MAX as u64).0, 2);
        assert!(teams.said(NodeId(3), Incarnation(1), 100).is_none());
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
