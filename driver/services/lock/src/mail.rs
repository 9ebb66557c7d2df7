//! Requests, replies and notices about locks, as they travel between engines. A request is answered at once by the engine, or
//! later by another thread; a notice is not answered.

use doorbell_engine::error::Error;
use doorbell_engine::sync::op::{Op, Outcome};
use doorbell_fabric::{Incarnation, NodeId, PRIORITIES, Payload, Priority, Verdict};
use std::collections::VecDeque;
use std::sync::Arc;

use super::wire::{self, Answer, Entry, LETTER_MAX};

/// How many requests of one node are kept until their replies have left. A node has no more underway: it counts a request until
/// the reply arrives.
pub const UNANSWERED_MAX: usize = doorbell_engine::sync::pool::WAITS_MAX;
/// How many requests and notices of one node are kept until the engine handles them. Further ones stay in the lane.
const RECEIVED_MAX: usize = 512;
const IDS: u64 = 1 << 56;

const ASK: u64 = 1 << 56;
const ANSWER: u64 = 2 << 56;
const TELL: u64 = 3 << 56;

/// A packet to be sent.
pub struct Letter {
    pub node: NodeId,
    pub life: Incarnation,
    pub tag: u64,
    pub bytes: Vec<u8>,
}

/// A request or notice that has arrived.
pub struct Received {
    pub node: NodeId,
    pub life: Incarnation,
    /// The number that the reply has to bear; `None` for a notice.
    pub id: Option<u64>,
    pub bytes: Vec<u8>,
}

struct Asked {
    id: u64,
    node: NodeId,
    life: Incarnation,
    /// `None` if no thread waits for the reply any more.
    op: Option<Arc<Op>>,
    /// The lock that the request would take, and for which owner.
    wants: Option<(String, u64)>,
}

/// The requests, replies and notices of one node.
#[derive(Default)]
pub struct Mail {
    made: u64,
    /// Packets to be sent, in this order for each node.
    pub out: VecDeque<Letter>,
    asked: Vec<Asked>,
    /// Requests and notices to be handled.
    pub received: VecDeque<Received>,
    /// Locks that this node opened while the registry was elsewhere, and which of its threads own them. Kept here because the
    /// arrival of a grant must be noted before another node can ask about the lock.
    pub opened: Vec<Entry>,
    /// How many replies each node is owed: those not given yet, and those in `out`.
    owed: Vec<(NodeId, Incarnation, usize)>,
}

impl Mail {
    /// Whether there is anything to send or to handle.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        !(self.out.is_empty() && self.received.is_empty())
    }

    /// Whether a thread of this node waits for a reply that comes by this lane.
    pub fn awaits(&self, lane: usize) -> bool {
        lane % PRIORITIES == Priority::High.index()
            && self.asked.iter().any(|asked| asked.node.index() == lane / PRIORITIES && asked.op.is_some())
    }

    /// Queues a request. `None` if too many requests to this node are unanswered.
    pub fn ask(&mut self, node: NodeId, life: Incarnation, bytes: &[u8], wants: Option<(String, u64)>) -> Option<Arc<Op>> {
        if self.asked.iter().filter(|asked| asked.node == node && asked.life == life).count() >= UNANSWERED_MAX {
            return None;
        }
        self.made = (self.made + 1) % IDS;
        let (id, op) = (self.made, Op::new());
        self.asked.push(Asked { id, node, life, op: Some(op.clone()), wants });
        self.push(node, life, ASK | id, bytes.to_vec());
        Some(op)
    }

    /// Queues a notice. A repetition of the node's last queued notice is dropped, so that a node that reads nothing does not
    /// make the queue grow.
    pub fn tell(&mut self, node: NodeId, life: Incarnation, bytes: Vec<u8>) {
        let mut latest = self.out.iter().rev().filter(|letter| (letter.node, letter.life) == (node, life));
        if !latest.next().is_some_and(|letter| letter.tag == TELL && letter.bytes == bytes) {
            self.push(node, life, TELL, bytes);
        }
    }

    /// Queues a reply.
    pub fn answer(&mut self, node: NodeId, life: Incarnation, id: u64, bytes: Vec<u8>) {
        self.push(node, life, ANSWER | id, bytes);
    }

    /// Removes a packet that has left or can't be delivered. A reply is owed until then; else a node that reads none could have
    /// any number of them queued.
    pub fn remove(&mut self, at: usize) {
        let Some(letter) = self.out.remove(at) else { return };
        if letter.tag - letter.tag % IDS == ANSWER
            && let Some((_, _, owed)) = self.owed.iter_mut().find(|owed| (owed.0, owed.1) == (letter.node, letter.life))
        {
            *owed = owed.saturating_sub(1);
        }
    }

    fn push(&mut self, node: NodeId, life: Incarnation, tag: u64, bytes: Vec<u8>) {
        debug_assert!(bytes.len() <= LETTER_MAX);
        self.out.push_back(Letter { node, life, tag, bytes });
    }

    /// No thread waits for the reply any more; it will still arrive. Returns the asked node and the request's number.
    pub fn withdraw(&mut self, op: &Arc<Op>) -> Option<(NodeId, Incarnation, u64)> {
        let is_its = |asked: &&mut Asked| asked.op.as_ref().is_some_and(|its| Arc::ptr_eq(its, op));
        let asked = self.asked.iter_mut().find(is_its)?;
        asked.op = None;
        Some((asked.node, asked.life, asked.id))
    }

    /// Takes a packet that arrived by a lane from this incarnation of a node.
    #[cold]
    pub fn take(&mut self, lane: usize, life: Incarnation, tag: u64, payload: Payload<'_>) -> Verdict {
        let (node, id) = (NodeId((lane / PRIORITIES) as u16), tag % IDS);
        if payload.len() > LETTER_MAX {
            return Verdict::Broken("a lock packet that is too long");
        }
        let kind = tag - id;
        let is_from = |received: &&Received| received.node == node && received.life == life;
        if (kind == ASK || kind == TELL)
            && self.received.len() >= RECEIVED_MAX
            && self.received.iter().filter(is_from).count() >= RECEIVED_MAX
        {
            return Verdict::Refused;
        }
        match kind {
            ASK => {
                let at = self.owed.iter().position(|owed| (owed.0, owed.1) == (node, life)).unwrap_or_else(|| {
                    self.owed.push((node, life, 0));
                    self.owed.len() - 1
                });
                let owed = &mut self.owed[at].2;
                if *owed >= UNANSWERED_MAX {
                    return Verdict::Broken("too many unanswered lock requests");
                }
                *owed += 1;
                self.received.push_back(Received { node, life, id: Some(id), bytes: payload.to_vec() });
            }
            TELL => self.received.push_back(Received { node, life, id: None, bytes: payload.to_vec() }),
            ANSWER => {
                let is_its = |asked: &Asked| asked.id == id && asked.node == node && asked.life == life;
                let Some(at) = self.asked.iter().position(is_its) else {
                    return Verdict::Broken("a lock reply without a request");
                };
                // A node that guesses replies and reads nothing would otherwise make the queue of requests grow.
                if self.out.iter().any(|letter| letter.tag == ASK | id && (letter.node, letter.life) == (node, life)) {
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
            self.opened.push(Entry { name: name.to_owned(), resource: [0; 4], owner: 0, dead: 0, barred: false });
            self.opened.len() - 1
        });
        let entry = &mut self.opened[at];
        (entry.resource, entry.owner) = (resource.unwrap_or(entry.resource), owner.unwrap_or(entry.owner));
    }

    /// Changes the note of a lock.
    pub fn note_of(&mut self, name: &str, note: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.opened.iter_mut().find(|entry| entry.name == name) {
            note(entry);
        }
    }

    /// Notes that an owner has unlocked. False if this node did not know it as the owner.
    pub fn note_unlocked(&mut self, name: &str, owner: u64) -> bool {
        let entry = self.opened.iter_mut().find(|entry| entry.name == name && entry.owner == owner && owner != 0);
        entry.map(|entry| (entry.owner, entry.dead) = (0, 0)).is_some()
    }

    /// Removes the note of a lock that was destroyed, or that this node no longer uses.
    pub fn close(&mut self, name: &str) {
        self.opened.retain(|entry| entry.name != name || entry.owner != 0);
    }

    /// The names of the locks that this node owns, or has asked this incarnation for.
    pub fn held(&self, node: NodeId, life: Incarnation) -> impl Iterator<Item = String> {
        let wanted = self.asked.iter().filter(move |asked| (asked.node, asked.life) == (node, life) && asked.op.is_some());
        let wanted = wanted.filter_map(|asked| Some(asked.wants.as_ref()?.0.clone()));
        self.opened.iter().filter(|entry| entry.owner != 0).map(|entry| entry.name.clone()).chain(wanted)
    }

    /// Which of this node's threads owns a lock elsewhere; 0 for none.
    pub fn owner_of(&self, name: &str) -> u64 {
        self.opened.iter().find(|entry| entry.name == name).map_or(0, |entry| entry.owner)
    }

    /// Ends everything that concerns an incarnation of a node.
    pub fn fail(&mut self, node: NodeId, life: Incarnation, error: impl Fn() -> Error) {
        let is_its = |a: NodeId, b: Incarnation| a == node && b == life;
        self.out.retain(|letter| !is_its(letter.node, letter.life));
        self.received.retain(|received| !is_its(received.node, received.life));
        self.owed.retain(|owed| !is_its(owed.0, owed.1));
        self.asked.retain(|asked| {
            let ends = is_its(asked.node, asked.life);
            if ends && let Some(op) = &asked.op {
                op.finish(Outcome::Failed(error()));
            }
            !ends
        });
    }

    /// Ends everything.
    pub fn end(&mut self, error: impl Fn() -> Error) {
        for asked in self.asked.drain(..) {
            if let Some(op) = asked.op {
                op.finish(Outcome::Failed(error()));
            }
        }
        self.out.clear();
        self.received.clear();
        self.owed.clear();
    }
}
