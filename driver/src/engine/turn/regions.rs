//! Puts and gets of nodes that share no memory with this one, and to them.

use super::Engine;
use crate::atomic::code::AtomicRequest;
use crate::engine::baton::Token;
use crate::engine::op::{Op, Outcome};
use crate::error::Error;
use crate::message::outbound::OutState;
use crate::region::remote::{Answer, Ask, Remote, Request, piece_bytes, priority_of};
use crate::transfer::memory::Remote as Memory;
use doorbell_fabric::{Incarnation, NodeId, PRIORITIES, Priority, Push};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes fetched of one put in one turn.
const PULL_BYTES: usize = 128 << 10;
/// Packets of one put or get, or answer, in one turn.
const PACKETS: usize = 16;
/// Puts, gets and updates that wait to be sent, at which no more updates are begun.
const WAITING_MAX: usize = 1024;
/// Updates that wait for each other at most.
const TOGETHER: usize = 32;
/// Packets up to so many bytes go together, where several are to be sent.
const SMALL_BYTES: usize = 256;

/// How far something came.
enum Step {
    /// All of it is in the lane.
    Whole,
    /// So many packets are.
    Partly(usize),
    /// It can't be.
    Failed(Error),
}

/// How a put or get is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessBy {
    /// What it is called.
    pub operation: &'static str,
    /// Whether it is a put.
    pub writes: bool,
    /// By which link of the way.
    pub by: u8,
    /// Whether the target fetches what is put.
    pub pulls: bool,
}

impl Engine {
    /// Whether bytes of this process lie in a region of this node.
    pub(crate) fn is_in_region(&self, bytes: *const u8, len: usize) -> bool {
        self.local.is_in_region(bytes, len)
    }

    /// Whether a node that shares memory with this one can fetch bytes of this process.
    pub(crate) fn is_in_reach(&self, node: NodeId, bytes: *const u8, len: usize) -> bool {
        self.local.is_in_region(bytes, len) || self.fabric.peer(node).is_some_and(|peer| peer.reach().is_some())
    }

    /// Whether something is to be sent of a put or get, of this node or another one.
    pub(crate) fn is_serving(&self) -> bool {
        self.inbound.remote.has_work()
    }

    /// Whether this life of a node is reached by a network.
    pub(crate) fn is_remote(&self, node: NodeId, life: Incarnation) -> bool {
        self.fabric.is_remote(node) && self.fabric.live(node) == Some(life)
    }

    /// Begins a put or get at a node that shares no memory with this one. Ended by [`take_back`](Self::take_back) at the latest.
    ///
    /// # Safety
    /// As [`Ask::new`].
    pub(crate) unsafe fn begin_access(
        &mut self,
        me: Token,
        how: AccessBy,
        node: NodeId,
        request: Request,
        ptr: *mut u8,
    ) -> Result<Arc<Op>, Error> {
        let priority = priority_of(request.bytes as usize);
        let lane = node.index() * PRIORITIES + priority.index();
        // If it can't be reached, that is said now.
        self.on_lane(me, lane, request.incarnation, |_, _| ())?;
        let op = Op::new();
        let pulls = how.pulls.then(|| self.local.place(ptr, request.bytes as usize));
        // SAFETY: caller.
        let ask = unsafe { Ask::new(lane, how.operation, how.writes, request, ptr, op.clone()) };
        self.inbound.remote.ask(ask.routed(how.by, pulls));
        Ok(op)
    }

    /// Begins an update of a cell at a node that shares no memory with this one.
    pub(crate) fn begin_update(
        &mut self,
        me: Token,
        operation: &'static str,
        node: NodeId,
        request: Request,
        update: AtomicRequest,
    ) -> Result<Arc<Op>, Error> {
        let lane = node.index() * PRIORITIES + Priority::High.index();
        self.on_lane(me, lane, request.incarnation, |_, _| ())?;
        let op = Op::new();
        self.inbound.remote.ask(Ask::update(lane, operation, request, update, op.clone()));
        Ok(op)
    }

    /// Keeps the update that was begun last, though nobody waits for it.
    ///
    /// # Errors
    /// [`Error::Full`] if so many wait that it was taken back.
    pub(crate) fn keep_update(&mut self, node: NodeId) -> Result<(), Error> {
        let waiting = self.inbound.remote.waiting();
        if waiting.len() > WAITING_MAX {
            waiting.pop_back();
            return Err(Error::Full { node });
        }
        Ok(())
    }

    /// Sends an update that was kept; or lets it wait for others, if an answer is to come that will wake somebody who sends it.
    pub(crate) fn push_update(&mut self, me: Token, node: NodeId) {
        let remote = &mut self.inbound.remote;
        if remote.is_idle() || remote.waiting().len() >= TOGETHER && !remote.is_full(node) {
            self.push(me);
        }
    }

    /// Takes a put, get or update back: its bytes are not touched any more.
    /// True if it was not begun.
    pub(crate) fn take_back(&mut self, op: &Arc<Op>) -> bool {
        self.inbound.remote.remove(op)
    }

    /// Does something with a lane to this life of a node. `None`: this thread is in there already.
    fn on_lane<R>(
        &mut self,
        me: Token,
        lane: usize,
        life: Incarnation,
        act: impl FnOnce(&mut Remote, &mut OutState) -> R,
    ) -> Result<Option<R>, Error> {
        let (node, priority) = (NodeId((lane / PRIORITIES) as u16), Priority::ALL[lane % PRIORITIES]);
        let Some(outbound) = self.ways.get(node, priority).cloned() else { return Err(Error::NoSuchNode { node }) };
        let Some(mut state) = outbound.state.enter(me) else { return Ok(None) };
        self.connect(&outbound, &mut state, life)?;
        Ok(Some(act(&mut self.inbound.remote, &mut state)))
    }

    /// Sends what is to be sent. Returns the amount of work done.
    #[cold]
    pub(super) fn step_regions(&mut self, me: Token) -> usize {
        let mut work = 0;
        // Lanes in which nothing more can go in this turn.
        let mut full = Vec::new();
        let mut at = 0;
        // Whether something may have been held for what follows.
        let mut held = false;
        // Taken out while it is looked at: to reach its node is to learn who is gone, and then some of these end.
        while let Some(mut answer) = take(self.inbound.remote.answers(), &mut at, |answer| !full.contains(&answer.lane)) {
            let lane = answer.lane;
            let life = answer.life;
            let done = self.on_lane(me, lane, life, |remote, state| {
                let more = !remote.answers().is_empty();
                send_answer(&mut answer, remote, state, more)
            });
            held |= !self.inbound.remote.answers().is_empty();
            match flat(done) {
                Step::Whole => work += 1,
                Step::Partly(packets) => {
                    work += packets;
                    full.push(lane);
                    put_back(self.inbound.remote.answers(), &mut at, answer, |_, _| false);
                }
                // There is nobody to be told.
                Step::Failed(_) => {}
            }
        }
        work += self.step_pulls();
        full.clear();
        let mut at = 0;
        while let Some(mut ask) = take(self.inbound.remote.waiting(), &mut at, |ask| !full.contains(&ask.lane)) {
            let lane = ask.lane;
            let done = self.on_lane(me, lane, ask.life, |remote, state| match ask.by {
                // Its link is gone, and so is what the node had to say by it.
                by if by > 0 && !state.has(by) => Step::Failed(Error::Damaged { node: ask.node() }),
                _ => {
                    let more = !remote.waiting().is_empty();
                    send_ask(&mut ask, remote, state, more)
                }
            });
            held |= !self.inbound.remote.waiting().is_empty();
            match flat(done) {
                Step::Whole => {
                    work += 1;
                    self.inbound.remote.await_answer(ask);
                }
                Step::Partly(packets) => {
                    work += packets;
                    full.push(lane);
                    put_back(self.inbound.remote.waiting(), &mut at, ask, Ask::is_behind);
                }
                Step::Failed(error) => {
                    work += 1;
                    ask.op.finish(Outcome::Failed(error));
                }
            }
        }
        if held {
            self.fabric.release();
        }
        work
    }
}

impl Engine {
    /// Fetches some bytes of one put.
    fn step_pulls(&mut self) -> usize {
        let Some(mut pull) = self.inbound.remote.pulls().pop_front() else { return 0 };
        let peer = self.fabric.peer(pull.node()).filter(|peer| peer.incarnation() == pull.life);
        let source = peer.and_then(|peer| Memory::of(pull.source, pull.bytes, peer, &self.local, false));
        // By the kernel: the origin does not wait until nobody fetches any more, when its put ends early.
        let read = |at, into, len: u64| match source {
            Some(Memory::Private(peer, address)) => {
                // SAFETY: so many bytes are writable there (Pull::step).
                peer.reach().is_some_and(|reach| unsafe { reach.read_by_kernel(address + at, into, len as usize) }.is_ok())
            }
            // SAFETY: as above, and within the place (Memory::of).
            Some(source) => unsafe { source.read(at, into, len) }.is_ok(),
            None => false,
        };
        match pull.step(PULL_BYTES, read) {
            None => self.inbound.remote.pulls().push_back(pull),
            Some(status) => {
                let answer = pull.answer(status);
                self.inbound.remote.answers().push_back(answer);
            }
        }
        1
    }
}

fn flat(done: Result<Option<Step>, Error>) -> Step {
    match done {
        Ok(step) => step.unwrap_or(Step::Partly(0)),
        Err(error) => Step::Failed(error),
    }
}

/// Takes the first from `at` on of which `may` says so.
fn take<T>(queue: &mut VecDeque<T>, at: &mut usize, may: impl Fn(&T) -> bool) -> Option<T> {
    *at += queue.iter().skip(*at).position(may)?;
    queue.remove(*at)
}

/// Puts one back where it was taken, and goes on behind it. Some before it may be gone: then it is put before those that are `behind` it.
fn put_back<T>(queue: &mut VecDeque<T>, at: &mut usize, one: T, behind: impl Fn(&T, &T) -> bool) {
    let first = queue.iter().take(*at).position(|other| behind(other, &one));
    let place = first.unwrap_or(*at).min(queue.len());
    queue.insert(place, one);
    *at = (*at + 1).min(queue.len());
}

fn send_answer(answer: &mut Answer, remote: &mut Remote, state: &mut OutState, more: bool) -> Step {
    for packets in 0..PACKETS {
        let Some(packet) = state.region_bytes(0) else { return Step::Partly(packets) };
        let len = answer.next_len(piece_bytes(packet));
        // Not copied in vain.
        if len > SMALL_BYTES && !state.has_region_room(len) {
            return Step::Partly(packets);
        }
        let tag = answer.next(len, &mut remote.room);
        let held = more && remote.room.len() <= SMALL_BYTES;
        if state.push_region(0, tag, &remote.room, held) != Push::Done {
            return Step::Partly(packets);
        }
        if answer.sent(remote.room.len()) {
            return Step::Whole;
        }
    }
    Step::Partly(PACKETS)
}

fn send_ask(ask: &mut Ask, remote: &mut Remote, state: &mut OutState, more: bool) -> Step {
    if !ask.is_begun() && remote.is_full(ask.node()) {
        return Step::Partly(0);
    }
    for packets in 0..PACKETS {
        let by = ask.by;
        let Some(packet) = state.region_bytes(by).filter(|packet| *packet > Request::BYTES + 16) else {
            return Step::Partly(packets);
        };
        let mut push =
            |tag, bytes: &[u8]| state.push_region(by, tag, bytes, more && by == 0 && bytes.len() <= SMALL_BYTES) == Push::Done;
        if !ask.send(packet, &mut remote.room, &mut push) {
            return Step::Partly(packets);
        }
        if ask.is_sent() {
            return Step::Whole;
        }
    }
    Step::Partly(PACKETS)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_is_put_back_stays_before_those_behind_it() {
        // Of each its lane and its number.
        let behind = |other: &(u8, u8), one: &(u8, u8)| other.0 == one.0 && other.1 > one.1;
        for gone in 0..=3 {
            let mut queue = VecDeque::from([(1, 1), (1, 2), (1, 3), (0, 4), (0, 5), (1, 6), (0, 7)]);
            let mut at = 0;
            // Those of lane 1 are left alone.
            let one = take(&mut queue, &mut at, |one| one.0 == 0).unwrap();
            assert_eq!((one, at), ((0, 4), 3));
            // Some before it end meanwhile.
            queue.drain(..gone);
            put_back(&mut queue, &mut at, one, behind);
            assert!(at <= queue.len());
            for lane in [0, 1] {
                let numbers: Vec<_> = queue.iter().filter(|one| one.0 == lane).map(|one| one.1).collect();
                assert!(numbers.is_sorted(), "{gone} gone: {queue:?}");
            }
            assert_eq!(queue.len(), 7 - gone);
        }
    }
}
