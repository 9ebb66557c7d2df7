//! Teams as a service of the engine: packets of operations, and notes of nodes that form a team.

use super::core::Core;
use super::formation::Note;
use super::table::{PRIORITY, Teams};
use doorbell_engine::drive::install::Install;
use doorbell_engine::message::service::{Class, CloseReason, Gone, Outbox, PeerId, Pushed, Service, Wants};
use doorbell_fabric::{NodeId, PacketKind, Payload, Priority, Verdict};
use doorbell_shm::board::{Metric, Metrics};
use std::sync::Arc;

/// The tag of a note. No packet of a team has the kind 4 (`net/streams.rs`).
const NOTE: u64 = 4 << 24;
/// Notes go ahead of the packets of operations.
const NOTE_PRIORITY: Priority = Priority::High;

inventory::submit!(Install { order: Teams::CLASS as u8, install: |shared| shared.register(Teams::default()) });

impl Class for Teams {
    const CLASS: PacketKind = PacketKind::Team;
}

impl Service for Teams {
    fn receive(&mut self, from: PeerId, _: Priority, tag: u64, payload: Payload<'_>) -> Verdict {
        if tag != NOTE {
            return self.take(from, tag, payload);
        }
        match Note::decode(&payload.to_vec()) {
            Some(note) => self.heard.hear(from, note),
            None => return Verdict::Broken("a note about a team that says nothing"),
        }
        Verdict::Taken
    }

    fn progress(&mut self, out: &mut Outbox<'_>) -> usize {
        let mut work = out.push_all(&mut self.notes, NOTE_PRIORITY, |(to, note)| (*to, NOTE, note));
        let mut active = std::mem::take(&mut self.active);
        active.retain(|core| {
            let over = core.step(&mut work);
            let pushed = push(core, out);
            work += pushed;
            if pushed > 0 {
                // The operation may have waited for room.
                core.step(&mut work);
            }
            !over || pushed > 0
        });
        // Teams that became active meanwhile.
        for core in std::mem::replace(&mut self.active, active) {
            self.keep(&core);
        }
        work
    }

    fn wants(&self) -> Wants {
        let has_unsent = || self.active.iter().any(|core| core.apart().is_some_and(|apart| apart.wants()));
        if !self.notes.is_empty() || has_unsent() {
            Wants::Soon
        } else if self.active.is_empty() {
            Wants::Nothing
        } else {
            Wants::Turns
        }
    }

    fn awaits(&self, peer: NodeId, priority: Priority) -> bool {
        priority == PRIORITY && self.awaits_from(peer)
    }

    fn peer_gone(&mut self, peer: PeerId, why: Gone) {
        self.notes.retain(|(to, _)| *to != peer);
        self.gone(peer, why);
    }

    fn close(&mut self, _: CloseReason) {
        self.notes.clear();
        self.end();
    }

    fn count(&self, metrics: &mut Metrics) {
        let stats = self.stats();
        metrics[Metric::Collectives] += stats.operations;
        metrics[Metric::TurnsAcquired] += stats.acquired;
        metrics[Metric::TurnsQueued] += stats.queued;
        metrics[Metric::TurnsSynchronised] += stats.synchronised;
        metrics[Metric::TurnsForeseen] += stats.foreseen;
    }
}

/// Sends the packets that a team has for others.
fn push(core: &Arc<Core>, out: &mut Outbox<'_>) -> usize {
    let Some(apart) = core.apart().filter(|apart| apart.wants()) else { return 0 };
    let mut pushed = 0;
    for (rank, to) in core.others() {
        // If the peer is gone, the team is told of that otherwise (peer_gone).
        if let Ok(packet) = out.packet_bytes(to, PRIORITY) {
            pushed += apart.push(rank, packet, |tag, bytes| out.push(to, PRIORITY, tag, bytes) == Pushed::Done);
        }
    }
    pushed
}
