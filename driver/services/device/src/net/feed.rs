//! The feeder's half: what comes from the network for a device that this process is attached to goes into a lane of it.

use super::far::first;
use super::wire::{self, Kind};
use crate::Inner;
use doorbell_fabric::{Incarnation, NodeId, Payload};
use doorbell_shm::device::{Client, Writer};
use doorbell_shm::domain::{DeviceSegment, Membership};
use std::sync::{Arc, Weak};

/// Messages after which the sender is told that they are in the device.
const ACK_MESSAGES: u64 = 64;

/// One sender that is fed.
pub struct Feed {
    pub client: (NodeId, Incarnation),
    pub stream: u32,
    inner: Weak<Inner>,
    segment: Arc<DeviceSegment>,
    writer: Writer,
    /// Where its lane was when it was opened, and how much the lane holds.
    opened_at: u64,
    ring: u64,
    said: [u64; 2],
    /// The sender waits for news.
    asked: bool,
    part: Option<Part>,
}

/// A message that is in the lane in part.
struct Part {
    thread: u32,
    tag: u64,
    len: usize,
    got: usize,
}

impl Feed {
    /// `None`: no lane is left for that node.
    pub fn open(
        inner: Weak<Inner>,
        segment: Arc<DeviceSegment>,
        membership: &Membership,
        client: (NodeId, Incarnation),
        stream: u32,
    ) -> Option<Self> {
        let me = (membership.id(), membership.incarnation());
        let on_behalf = Client { node: client.0, life: client.1, stream };
        let writer = Writer::claim(&segment.view(), me, Some(on_behalf), |node, life| membership.is_living(node, life))?;
        let ring = (segment.geometry().lane_bytes / doorbell_shm::device::PACKET) as u64;
        let opened_at = writer.position();
        Some(Self { client, stream, inner, segment, writer, opened_at, ring, said: [0; 2], asked: false, part: None })
    }

    /// Begins anew with the same sender, which has forgotten what it sent. What it is told.
    pub fn reopen(&mut self) -> Vec<u8> {
        (self.part, self.asked) = (None, false);
        self.opened_at = self.writer.position();
        self.welcome()
    }

    /// Its sender will not come back.
    pub fn close(self) {
        self.writer.forget_client(&self.segment.view());
    }

    /// How many messages are in the device, and how far the sender may go.
    fn now(&self) -> [u64; 2] {
        let view = self.segment.view();
        let granted = self.writer.free_to(&view).wrapping_sub(self.opened_at);
        // A word of shared memory that says more than any lane holds is not believed.
        let most = self.writer.position().wrapping_sub(self.opened_at).wrapping_add(self.ring);
        [self.writer.sequence(), granted.min(most)]
    }

    /// What its sender is told first.
    pub fn welcome(&mut self) -> Vec<u8> {
        self.said = self.now();
        wire::words(&[self.said[0], self.said[1], self.segment.geometry().message_max() as u64, self.segment.nonce()])
    }

    /// What its sender is to be told now.
    pub fn news(&mut self) -> Option<Vec<u8>> {
        let now = self.now();
        let many = now[0] - self.said[0].min(now[0]) >= ACK_MESSAGES || now[1].saturating_sub(self.said[1]) >= self.ring / 8;
        if !(many || self.asked && now != self.said) {
            return None;
        }
        (self.said, self.asked) = (now, false);
        Some(wire::words(&now))
    }

    /// What is to be said before it is fed no longer.
    pub fn last_words(&self) -> Vec<u8> {
        wire::words(&self.now())
    }

    /// Whether the sender waits for room, which others make.
    pub fn is_hungry(&self) -> bool {
        self.asked
    }

    /// The sender wants to hear of news. What it knows already is said once more if it can't know better.
    pub fn ask(&mut self) -> Option<Vec<u8>> {
        self.asked = true;
        let now = self.now();
        (now != self.said).then(|| {
            (self.said, self.asked) = (now, false);
            wire::words(&now)
        })
    }

    /// Whether this process is attached to the device still.
    pub fn is_attached(&self) -> bool {
        self.inner.strong_count() > 0
    }

    /// Whether it is a device of this name.
    pub fn is_of(&self, inner: &Weak<Inner>) -> bool {
        self.inner.ptr_eq(inner)
    }

    /// A packet came. False if the sender does not keep to the rules, or the lane is no good: then it is fed no longer.
    pub fn take(&mut self, kind: Kind, payload: Payload<'_>) -> bool {
        let view = self.segment.view();
        let bytes = match kind {
            Kind::First => {
                let Some((sequence, thread, len, tag, bytes)) = first(&payload) else { return false };
                if self.part.is_some() || sequence != self.writer.sequence().wrapping_add(1) {
                    return false;
                }
                // It was granted, so there is room.
                if self.writer.has_room(&view, len).is_err() {
                    return false;
                }
                self.part = Some(Part { thread, tag, len, got: 0 });
                bytes
            }
            _ if payload.is_empty() => return false,
            _ => payload,
        };
        let Some(part) = &mut self.part else { return false };
        if bytes.len() > part.len - part.got {
            return false;
        }
        self.writer.put(&view, part.len, part.got, bytes);
        part.got += bytes.len();
        if part.got == part.len
            && let Some(Part { thread, tag, len, .. }) = self.part.take()
        {
            match self.writer.has_room(&view, len) {
                Ok(()) => self.writer.publish(&view, thread, tag, len),
                Err(_) => return false,
            }
        }
        true
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        if !doorbell_shm::space::forked() {
            self.writer.release(&self.segment.view());
        }
    }
}
