//! Messages that wait in a send queue for room.

use super::QUEUE_MAX;
use super::Sent;
use super::{Far, OutState, Plan, SendOp};
use crate::error::Error;
use crate::message::order::{Begun, Order};
use crate::mode::LINKS_MAX;
use crate::sync::op::{Op, Outcome};
use crate::transfer::IN_REGION_LEAST;
use doorbell_fabric::{NodeId, PacketHead, PacketKind};
use std::sync::Arc;

impl OutState {
    /// Queues a send behind the others, with the part that is already in the lane. False if the queue is full.
    pub fn enqueue(&mut self, mut send: SendOp, far: Far) -> bool {
        if self.queue.len() >= QUEUE_MAX {
            return false;
        }
        send.far = far;
        self.queue.push_back(send);
        self.recount();
        true
    }

    pub(super) fn dequeue(&mut self) -> Option<SendOp> {
        let send = self.queue.pop_front();
        self.recount();
        send
    }

    /// Moves queued messages into the lanes, and returns the work done. `plan` decides how a message goes; if it does not take
    /// a lane, `plan` begins to move it.
    pub fn push_queue(&mut self, target: NodeId, most: usize, mut plan: impl FnMut(&mut Self, &Order<'_>) -> Plan) -> usize {
        let mut done = 0;
        while done < most
            && let Some(front) = self.queue.front()
        {
            if front.op.is_done() {
                // It was cancelled while the queue was held by another thread: its bytes are gone.
                if let Some(send) = self.dequeue()
                    && send.far.started
                {
                    self.give_up(send.far.by);
                }
                continue;
            }
            let (tag, bytes, len, asks, mut far) = (front.tag, front.bytes, front.len, front.asks, front.far);
            if !far.started && (len >= IN_REGION_LEAST || self.steered || asks.is_some() || self.bound.is_some()) {
                let op = front.op.clone();
                match plan(self, &Order { tag, bytes, len, op: &op, asks, waits: true }) {
                    Plan::Transfer(Begun::Yes) => {
                        done += 1;
                        self.dequeue();
                        continue;
                    }
                    Plan::Transfer(Begun::Full) => {
                        (0..LINKS_MAX as u8).for_each(|by| self.wait_for_room(by));
                        return done;
                    }
                    Plan::Refused(error) => {
                        done += 1;
                        self.dequeue();
                        op.finish(Outcome::Failed(error));
                        continue;
                    }
                    // The message takes the lane, which reports by itself if it is down.
                    Plan::Transfer(Begun::NoSlot | Begun::Down) => {}
                    Plan::Lane(by) => far.by = by,
                }
            }
            // SAFETY: SendOp::new's caller keeps the bytes; `far` comes from the last attempt.
            match unsafe { self.send_some(tag, bytes, len, far) } {
                Sent::Whole => {
                    done += 1;
                    if let Some(send) = self.dequeue() {
                        send.op.moved(len as u64);
                        send.op.finish(Outcome::Sent);
                    }
                }
                Sent::Partly(now) => {
                    let moved = (now.sent, now.started) != (far.sent, far.started);
                    if let Some(front) = self.queue.front_mut() {
                        front.far = now;
                        front.op.moved(now.sent as u64);
                    }
                    self.wait_for_room(far.by);
                    return done + usize::from(moved);
                }
                Sent::Down => {
                    self.damaged = true;
                    self.fail(|| Error::Damaged { node: target });
                    return done + 1;
                }
            }
        }
        done
    }

    /// Tells the target that a send waits for room, so that it rings when there is some.
    pub(super) fn wait_for_room(&mut self, by: u8) {
        if let Some(link) = self.by(by) {
            link.wait_for_room(true);
        }
    }

    /// Tells the target that no send waits for room. The caller must know this for all sends of the queue: one packet that
    /// found room proves nothing about the others.
    pub fn rest(&mut self) {
        self.link.iter_mut().chain(self.further.iter_mut().flatten()).for_each(|link| link.wait_for_room(false));
    }

    /// Removes a send from the queue. True if it was there: then the target does not get the message, and the part in the lane
    /// is given up.
    pub fn remove(&mut self, op: &Arc<Op>) -> bool {
        let Some(at) = self.queue.iter().position(|send| Arc::ptr_eq(&send.op, op)) else { return false };
        let Some(send) = self.queue.remove(at) else { return false };
        self.recount();
        if send.far.started {
            self.give_up(send.far.by);
        }
        true
    }

    /// Tells the target that the incomplete message ends here, so that its receive takes another one. The next message has the
    /// same number, because only a whole message uses up a number; so it must take the same link.
    #[cold]
    pub fn give_up(&mut self, by: u8) {
        let head = PacketHead { kind: PacketKind::GivenUp, tag: 0, sequence: self.sequence, total: 0 };
        self.bound = Some(by);
        self.recount();
        if let Some(link) = self.by(by) {
            // SAFETY: no bytes. A damaged lane reports its error at the next send.
            let _ = unsafe { link.push(&head, std::ptr::null(), 0) };
        }
    }

    /// Fails every queued send and cuts the lane.
    pub fn fail(&mut self, error: impl Fn() -> Error) {
        self.cut();
        for send in self.queue.drain(..) {
            send.op.finish(Outcome::Failed(error()));
        }
        self.recount();
    }
}
