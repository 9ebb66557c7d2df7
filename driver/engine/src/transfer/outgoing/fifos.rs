//! The descriptors of a message in the injection FIFOs of this node: one in the FIFO of its priority, and its direct put in that
//! of high priority. A FIFO without room shows a descriptor later, and holds up no transfer.

use super::transfer::Transfer;
use crate::transfer::slot::{Kind, message_words};
use crate::transfer::{CopySide, Place};
use doorbell_fabric::Priority;

impl Transfer {
    /// Whether the target has told where to put.
    fn has_put(&self) -> bool {
        let is_apart = self.get.is_some_and(|get| matches!(get.target, Place::Session(_)));
        (self.target.is_some() || is_apart) && self.route.copy != CopySide::Target
    }

    /// Whether one of its descriptors is not in its FIFO yet.
    pub(super) fn waits_for_slot(&self) -> bool {
        self.fifo_slot.is_none() || self.put_slot.is_none() && self.has_put()
    }

    /// Injects descriptors that are not in their FIFO yet: that of the message, and its direct put, which the remote get
    /// brought, at high priority.
    pub(super) fn inject(&mut self) {
        let to = (self.out.target, self.partner.incarnation()).into();
        let words = |kind| message_words(kind, to, self.ticket.word(), self.ends.len);
        if self.fifo_slot.is_none() {
            self.fifo_slot = self.monitor.fifos[1 + self.out.priority.index()].inject(words(Kind::Rts));
        }
        if self.put_slot.is_none() && self.has_put() {
            self.put_slot = self.monitor.fifos[1 + Priority::High.index()].inject(words(Kind::Rendezvous));
        }
    }

    /// The priority at which it is executed: a direct put that a remote get brought is urgent.
    pub(super) fn rank(&self) -> usize {
        if self.get.is_some() && self.has_put() { Priority::High.index() } else { self.out.priority.index() }
    }

    /// Its descriptors are over.
    pub(super) fn leave_fifos(&self) {
        let fifos = &self.monitor.fifos;
        if let Some(position) = self.fifo_slot {
            fifos[1 + self.out.priority.index()].end(position, 1, self.report.fifo.bytes, false);
        }
        if let Some(position) = self.put_slot {
            fifos[1 + Priority::High.index()].end(position, 1, self.report.put.bytes, false);
        }
    }
}
