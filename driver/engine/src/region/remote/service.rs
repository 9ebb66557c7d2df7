//! Remote memory access as a service of the engine.

use super::asked::{Ask, piece_bytes};
use super::served::Answer;
use super::wire::Request;
use super::{Remote, UNANSWERED_MAX};
use crate::drive::install::Install;
use crate::error::Error;
use crate::message::service::{Class, CloseReason, Gone, Outbox, PeerId, Pushed, Route, Service, Wants};
use crate::sync::op::Outcome;
use crate::transfer::memory::Remote as Memory;
use doorbell_fabric::{NodeId, PRIORITIES, PacketKind, Payload, Priority, Verdict};

/// The most bytes of one put that are fetched in one turn.
const PULL_BYTES: usize = 128 << 10;
/// The most packets of one operation or answer in one turn.
const PACKETS: usize = 16;
/// Packets of up to this length are gathered, where several are to be sent.
const SMALL_BYTES: usize = 256;

/// How much of an operation was sent.
enum Step {
    /// All of it is in the lane.
    Whole,
    /// This many packets are in the lane.
    Partly(usize),
    /// It can't be sent.
    Failed(Error),
}

fn priority_of(lane: usize) -> Priority {
    Priority::ALL[lane % PRIORITIES]
}

inventory::submit!(Install {
    order: Remote::CLASS as u8,
    install: |shared| shared.register(Remote::new(&shared.membership_arc(), shared.regions().clone()))
});

impl Class for Remote {
    const CLASS: PacketKind = PacketKind::Region;
}

impl Service for Remote {
    fn receive(&mut self, from: PeerId, priority: Priority, tag: u64, payload: Payload<'_>) -> Verdict {
        self.take(from.node.index() * PRIORITIES + priority.index(), from.incarnation, tag, payload)
    }

    fn progress(&mut self, out: &mut Outbox<'_>) -> usize {
        self.send_answers(out) + self.step_pulls(out) + self.send_asks(out)
    }

    fn wants(&self) -> Wants {
        if self.has_work() { Wants::Soon } else { Wants::Nothing }
    }

    fn is_hurried(&self) -> bool {
        self.has_work()
    }

    fn awaits(&self, peer: NodeId, priority: Priority) -> bool {
        self.asked.awaits(peer.index() * PRIORITIES + priority.index())
    }

    fn peer_gone(&mut self, peer: PeerId, why: Gone) {
        self.fail(peer.node, peer.incarnation, || why.error(peer));
    }

    fn close(&mut self, why: CloseReason) {
        self.end(|| why.error());
    }
}

impl Remote {
    /// Sends answers to other nodes.
    fn send_answers(&mut self, out: &mut Outbox<'_>) -> usize {
        let (mut work, mut at) = (0, 0);
        while at < self.served.answers.len() {
            let more = self.served.answers.len() > 1;
            let answer = &mut self.served.answers[at];
            let to = PeerId::from((NodeId((answer.lane / PRIORITIES) as u16), answer.incarnation));
            let priority = priority_of(answer.lane);
            match send_answer(answer, to, priority, &mut self.room, out, more) {
                Step::Partly(packets) => {
                    work += packets;
                    out.hold(to.node, priority);
                    at += 1;
                    continue;
                }
                Step::Whole => work += 1,
                // The requesting node is gone.
                Step::Failed(_) => {}
            }
            self.served.answers.remove(at);
        }
        work
    }

    /// Sends packets of this node's puts, gets and updates.
    fn send_asks(&mut self, out: &mut Outbox<'_>) -> usize {
        out.retry();
        let (mut work, mut at) = (0, 0);
        while at < self.asked.waiting.len() {
            let more = self.asked.waiting.len() > 1;
            let (node, lane) = (self.asked.waiting[at].node(), self.asked.waiting[at].lane);
            let may_begin = self.asked.waiting[at].is_begun() || !self.asked.has(UNANSWERED_MAX, node);
            let step = if may_begin {
                send_ask(&mut self.asked.waiting[at], priority_of(lane), &mut self.room, out, more)
            } else {
                Step::Partly(0)
            };
            if let Step::Partly(packets) = step {
                work += packets;
                out.hold(node, priority_of(lane));
                at += 1;
                continue;
            }
            work += 1;
            let Some(ask) = self.asked.waiting.remove(at) else { break };
            match step {
                Step::Failed(error) => ask.op.finish(Outcome::Failed(error)),
                _ => self.asked.sent.push_back(ask),
            }
        }
        work
    }

    /// Fetches some bytes of one put.
    fn step_pulls(&mut self, out: &mut Outbox<'_>) -> usize {
        let Some(mut pull) = self.served.pulls.pop_front() else { return 0 };
        let peer = out.inbox((pull.node(), pull.incarnation).into());
        let source = peer.and_then(|peer| Memory::of(pull.source, pull.bytes, &peer, &self.local, false));
        // The kernel reads the bytes: when its put ends early, the origin does not wait for a fetch to finish.
        let read = |at, into, len: u64| match &source {
            Some(Memory::Private(peer, address)) => {
                // SAFETY: that many bytes are writable there (Pull::step).
                peer.reach().is_some_and(|reach| unsafe { reach.read_by_kernel(address + at, into, len as usize) }.is_ok())
            }
            // SAFETY: as above, and within the place (Memory::of).
            Some(source) => unsafe { source.read(at, into, len) }.is_ok(),
            None => false,
        };
        match pull.step(PULL_BYTES, read) {
            None => self.served.pulls.push_back(pull),
            Some(status) => {
                let answer = pull.answer(status);
                self.served.answers.push_back(answer);
            }
        }
        1
    }
}

fn send_answer(
    answer: &mut Answer,
    to: PeerId,
    priority: Priority,
    room: &mut Vec<u8>,
    out: &mut Outbox<'_>,
    more: bool,
) -> Step {
    for packets in 0..PACKETS {
        let packet = match out.packet_bytes(to, priority) {
            Ok(packet) => packet,
            Err(Pushed::Gone) => return Step::Failed(out.why_gone()),
            Err(_) => return Step::Partly(packets),
        };
        let len = answer.next_len(piece_bytes(packet));
        // Check for room first, so that nothing is copied in vain.
        if len > SMALL_BYTES && !out.has_room(to, priority, len) {
            return Step::Partly(packets);
        }
        let tag = answer.next(len, room);
        let held = more && room.len() <= SMALL_BYTES;
        if out.push_by(to, priority, Route { link: 0, held }, tag, room) != Pushed::Done {
            return Step::Partly(packets);
        }
        if answer.sent(room.len()) {
            return Step::Whole;
        }
    }
    Step::Partly(PACKETS)
}

fn send_ask(ask: &mut Ask, priority: Priority, room: &mut Vec<u8>, out: &mut Outbox<'_>, more: bool) -> Step {
    let to = PeerId::from((ask.node(), ask.incarnation));
    for packets in 0..PACKETS {
        let by = ask.by;
        let packet = match out.packet_bytes_by(to, priority, by) {
            Ok(packet) if packet > Request::BYTES + 16 => packet,
            Err(Pushed::Gone) => return Step::Failed(out.why_gone()),
            _ => return Step::Partly(packets),
        };
        let mut push = |tag, bytes: &[u8]| {
            let route = Route { link: by, held: more && by == 0 && bytes.len() <= SMALL_BYTES };
            out.push_by(to, priority, route, tag, bytes) == Pushed::Done
        };
        if !ask.send(packet, room, &mut push) {
            return Step::Partly(packets);
        }
        if ask.is_sent() {
            return Step::Whole;
        }
    }
    Step::Partly(PACKETS)
}
