//! The serving node's half: packets from the network for a device of this process go into one of its lanes.

use super::far::first;
use super::wire::{self, Kind};
use crate::attachment::Inner;
use doorbell_engine::kit::{Payload, PeerId};
use doorbell_shm::device::{Client, Writer};
use doorbell_shm::domain::{DeviceSegment, Membership};
use std::sync::{Arc, Weak};

/// After how many messages the sender is told that they are in the device.
const ACK_MESSAGES: u64 = 64;

/// One sender that this node serves.
pub struct Feed {
    pub client: PeerId,
    pub stream: u32,
    inner: Weak<Inner>,
    segment: Arc<DeviceSegment>,
    writer: Writer,
    /// The position of the lane when it was opened, and how many packets the lane holds.
    opened_at: u64,
    ring: u64,
    said: [u64; 2],
    /// The sender waits for an update.
    pub asked: bool,
    part: Option<Part>,
}

/// A message of which a part is in the lane.
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
        client: PeerId,
        stream: u32,
    ) -> Option<Self> {
        let on_behalf = Client { node: client.node, incarnation: client.incarnation, stream };
        let me = PeerId::from(membership).into();
        let writer =
            Writer::claim(&segment.view(), me, Some(on_behalf), |node, incarnation| membership.is_living(node, incarnation))?;
        let ring = (segment.geometry().lane_bytes / doorbell_shm::device::PACKET) as u64;
        let opened_at = writer.position();
        Some(Self { client, stream, inner, segment, writer, opened_at, ring, said: [0; 2], asked: false, part: None })
    }

    /// Ends a stream whose sender will not come back.
    pub fn close(self) {
        self.writer.forget_client(&self.segment.view());
    }

    /// How many messages are in the device, and up to which packet the sender may send.
    fn now(&self) -> [u64; 2] {
        let view = self.segment.view();
        let granted = self.writer.free_to(&view).wrapping_sub(self.opened_at);
        // A word in shared memory that claims more than a lane can hold is not believed.
        let most = self.writer.position().wrapping_sub(self.opened_at).wrapping_add(self.ring);
        [self.writer.sequence(), granted.min(most)]
    }

    /// The first answer to a sender, which has forgotten its earlier packets.
    pub fn welcome(&mut self) -> Vec<u8> {
        (self.part, self.asked) = (None, false);
        self.opened_at = self.writer.position();
        self.said = self.now();
        wire::words(&[self.said[0], self.said[1], self.segment.geometry().message_max() as u64, self.segment.nonce()])
    }

    /// The update that the sender is to get now, if any.
    pub fn news(&mut self) -> Option<Vec<u8>> {
        let now = self.now();
        let many = now[0] - self.said[0].min(now[0]) >= ACK_MESSAGES || now[1].saturating_sub(self.said[1]) >= self.ring / 8;
        if !(many || self.asked && now != self.said) {
            return None;
        }
        (self.said, self.asked) = (now, false);
        Some(wire::words(&now))
    }

    /// The last update before the stream ends.
    pub fn last_words(&self) -> Vec<u8> {
        wire::words(&self.now())
    }

    /// Whether this process is still attached to the device.
    pub fn is_attached(&self) -> bool {
        self.inner.strong_count() > 0
    }

    /// Whether the stream leads to this device.
    pub fn is_of(&self, inner: &Weak<Inner>) -> bool {
        self.inner.ptr_eq(inner)
    }

    /// Takes a packet. False if the sender breaks the rules or the lane is damaged: then the stream ends.
    pub fn take(&mut self, kind: Kind, payload: Payload<'_>) -> bool {
        let view = self.segment.view();
        let bytes = match kind {
            Kind::First => {
                let Some((sequence, thread, len, tag, bytes)) = first(&payload) else { return false };
                if self.part.is_some() || sequence != self.writer.sequence().wrapping_add(1) {
                    return false;
                }
                // The sender was granted this room, so there must be room.
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
