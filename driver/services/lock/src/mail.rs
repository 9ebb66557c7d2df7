//! Requests, replies and notices about locks, as they travel between engines. A request is answered at once by the engine, or
//! later by another thread; a notice is not answered.

use super::wire::{self, Answer, Entry, LETTER_MAX, Tell};
use doorbell_engine::kit::{Error, NodeId, Op, Outcome, Packet, Payload, PeerId, Priority, SendQueue, Verdict};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How many requests of one node are kept until their replies have left. A node has no more underway: it counts a request until
/// the reply arrives.
pub const UNANSWERED_MAX: usize = doorbell_engine::sync::pool::WAITS_MAX;
/// How many requests and notices of one node are kept until the engine handles them. Further ones stay in the lane.
const RECEIVED_MAX: usize = 512;
const IDS: u64 = 1 << 56;

const ASK: u64 = 1 << 56;
const ANSWER: u64 = 2 << 56;
const TELL: u64 = 3 << 56;

/// A request or notice that has arrived.
pub struct Received {
    pub from: PeerId,
    /// The number that the reply has to bear; `None` for a notice.
    pub id: Option<u64>,
    pub bytes: Vec<u8>,
}

struct Asked {
    id: u64,
    peer: PeerId,
    /// `None` if no thread waits for the reply any more.
    op: Option<Arc<Op>>,
    /// The lock that the request would take, and for which owner.
    wants: Option<(String, u64)>,
}

/// The requests, replies and notices of one node.
#[derive(Default)]
pub struct Mail {
    made: u64,
    pub out: SendQueue,
    asked: Vec<Asked>,
    /// Requests and notices to be handled.
    pub received: VecDeque<Received>,
    /// Locks that this node opened while the registry was elsewhere, and which of its threads own them. Kept here because the
    /// arrival of a grant must be noted before another node can ask about the lock.
    pub opened: Vec<Entry>,
    /// How many replies each node is owed: those not given yet, and those in `out`.
    owed: BTreeMap<PeerId, usize>,
}

impl Mail {
    /// Whether there is anything to send or to handle.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        !(self.out.is_empty() && self.received.is_empty())
    }

    /// Whether a thread of this node waits for a reply that comes by this lane.
    pub fn awaits(&self, node: NodeId, priority: Priority) -> bool {
        priority == Priority::High && self.asked.iter().any(|asked| asked.peer.node == node && asked.op.is_some())
    }

    /// Queues a request. `None` if too many requests to this node are unanswered.
    pub fn ask(&mut self, peer: PeerId, bytes: &[u8], wants: Option<(String, u64)>) -> Option<Arc<Op>> {
        if self.asked.iter().filter(|asked| asked.peer == peer).count() >= UNANSWERED_MAX {
            return None;
        }
        self.made = (self.made + 1) % IDS;
        let (id, op) = (self.made, Op::new());
        self.asked.push(Asked { id, peer, op: Some(op.clone()), wants });
        self.out.push(peer, ASK | id, bytes.to_vec());
        Some(op)
    }

    /// Queues a notice. A repetition of the node's last queued notice is dropped, so that a node that reads nothing does not
    /// make the queue grow.
    pub fn tell(&mut self, peer: PeerId, tell: &Tell) {
        let bytes = wire::encode(tell);
        if !self.out.to(peer).next_back().is_some_and(|last| last.tag == TELL && last.bytes == bytes) {
            self.out.push(peer, TELL, bytes);
        }
    }

    /// Queues a reply.
    pub fn answer(&mut self, peer: PeerId, id: u64, answer: &Answer) {
        self.out.push(peer, ANSWER | id, wire::encode(answer));
    }

    /// A packet has left or can't be delivered. A reply is owed until then; else a node that reads none could have any number
    /// of them queued.
    pub fn left(owed: &mut BTreeMap<PeerId, usize>, packet: &Packet) {
        if packet.tag - packet.tag % IDS == ANSWER
            && let Some(owed) = owed.get_mut(&packet.to)
        {
            *owed = owed.saturating_sub(1);
        }
    }

    /// Sends the packets that find room. Returns how many packets left.
    pub fn send(&mut self, out: &mut doorbell_engine::kit::Outbox<'_>) -> usize {
        let owed = &mut self.owed;
        self.out.send(out, Priority::High, |packet| Self::left(owed, packet))
    }

    /// Takes the first packet out, as if it had been sent.
    #[cfg(test)]
    pub fn send_first(&mut self) {
        let packet = self.out.pop().unwrap();
        Self::left(&mut self.owed, &packet);
    }

    /// No thread waits for the reply any more; it will still arrive. Returns the asked node and the request's number.
    pub fn withdraw(&mut self, op: &Arc<Op>) -> Option<(PeerId, u64)> {
        let is_its = |asked: &&mut Asked| asked.op.as_ref().is_some_and(|its| Arc::ptr_eq(its, op));
        let asked = self.asked.iter_mut().find(is_its)?;
        asked.op = None;
        Some((asked.peer, asked.id))
    }

    /// Takes a packet that arrived from this incarnation of a node.
    #[cold]
    pub fn take(&mut self, from: PeerId, tag: u64, payload: Payload<'_>) -> Verdict {
        let id = tag % IDS;
        if payload.len() > LETTER_MAX {
            return Verdict::Broken("a lock packet that is too long");
        }
        let kind = tag - id;
        let is_full = |received: &VecDeque<Received>| {
            received.len() >= RECEIVED_MAX && received.iter().filter(|one| one.from == from).count() >= RECEIVED_MAX
        };
        match kind {
            ASK | TELL if is_full(&self.received) => return Verdict::Refused,
            ASK => {
                let owed = self.owed.entry(from).or_default();
                if *owed >= UNANSWERED_MAX {
                    return Verdict::Broken("too many unanswered lock requests");
                }
                *owed += 1;
                self.received.push_back(Received { from, id: Some(id), bytes: payload.to_vec() });
            }
            TELL => self.received.push_back(Received { from, id: None, bytes: payload.to_vec() }),
            ANSWER => {
                let Some(at) = self.asked.iter().position(|asked| (asked.id, asked.peer) == (id, from)) else {
                    return Verdict::Broken("a lock reply without a request");
                };
                // A node that guesses replies and reads nothing would otherwise make the queue of requests grow.
                if self.out.to(from).any(|packet| packet.tag == ASK | id) {
                    return Verdict::Broken("a lock reply to a request that was not sent yet");
                }
                let Asked { op: Some(op), wants, .. } = self.asked.swap_remove(at) else { return Verdict::Taken };
                let answer = payload.to_vec();
                if let Some((name, owner)) = wants
                    && matches!(wire::decode(&answer), Some(Answer::Taken { .. }))
                {
                    self.note(&name, None, Some(owner));
                }
                op.finish(Outcome::Answered(answer));
            }
            _ => return Verdict::Broken("a lock packet of unknown kind"),
        }
        Verdict::Taken
    }

    /// Notes that this node has opened a lock elsewhere, and which of its threads owns it.
    pub fn note(&mut self, name: &str, resource: Option<[u64; 4]>, owner: Option<u64>) {
        let at = self.opened.iter().position(|entry| entry.name == name).unwrap_or_else(|| {
            self.opened.push(Entry { name: name.to_owned(), ..Entry::default() });
            self.opened.len() - 1
        });
        let entry = &mut self.opened[at];
        (entry.resource, entry.owner) = (resource.unwrap_or(entry.resource), owner.unwrap_or(entry.owner));
    }

    /// The note of a lock.
    pub fn entry(&mut self, name: &str) -> Option<&mut Entry> {
        self.opened.iter_mut().find(|entry| entry.name == name)
    }

    /// Notes that an owner has unlocked. False if this node did not know it as the owner.
    pub fn note_unlocked(&mut self, name: &str, owner: u64) -> bool {
        let entry = self.entry(name).filter(|entry| entry.owner == owner && owner != 0);
        entry.map(|entry| (entry.owner, entry.dead) = (0, 0)).is_some()
    }

    /// Removes the note of a lock that was destroyed, or that this node no longer uses.
    pub fn close(&mut self, name: &str) {
        self.opened.retain(|entry| entry.name != name || entry.owner != 0);
    }

    /// The names of the locks that this node owns, or has asked this incarnation for.
    pub fn held(&self, peer: PeerId) -> Vec<String> {
        let wanted = self.asked.iter().filter(|asked| asked.peer == peer && asked.op.is_some());
        let wanted = wanted.filter_map(|asked| Some(asked.wants.as_ref()?.0.clone()));
        self.opened.iter().filter(|entry| entry.owner != 0).map(|entry| entry.name.clone()).chain(wanted).collect()
    }

    /// Ends everything that concerns an incarnation of a node; with `None`, everything.
    pub fn fail(&mut self, peer: Option<PeerId>, error: impl Fn() -> Error) {
        let is_its = |its: PeerId| peer.is_none_or(|peer| peer == its);
        self.out.retain(|packet| !is_its(packet.to));
        self.received.retain(|received| !is_its(received.from));
        self.owed.retain(|peer, _| !is_its(*peer));
        for asked in self.asked.extract_if(.., |asked| is_its(asked.peer)) {
            if let Some(op) = asked.op {
                op.finish(Outcome::Failed(error()));
            }
        }
    }
}
