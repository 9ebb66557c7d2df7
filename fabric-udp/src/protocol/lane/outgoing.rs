//! The sending end of a lane. It keeps packets as images until they are acknowledged.

use super::{CHARGE, charge};
use crate::protocol::frame::{self, FRAGMENT_HEAD, IMAGE_MAX, PACKET_HEAD_MAX, image_len, write_image};
use crate::protocol::lent::{LEND_LEAST, Lender, Lent};
use crate::protocol::loss::Carried;
use crate::protocol::ranges::{Pieces, RangeSet};
use crate::protocol::wire::Writer;
use doorbell_fabric::{PacketHead, PacketKind, Priority};
use std::collections::VecDeque;

/// A smaller part of a packet is not worth a frame.
const FRAGMENT_LEAST: usize = 256;

/// The outgoing packets of one lane.
#[derive(Default)]
pub(crate) struct LaneOut {
    priority: Priority,
    /// The images, each in one piece. The ring skips its end where an image would not fit.
    images: Vec<u8>,
    capacity: usize,
    /// The position of the next image.
    head: usize,
    slots: VecDeque<Slot>,
    /// The number of the first slot.
    base: u64,
    /// The number of the first packet that was never sent.
    unsent: u64,
    /// Numbers to send again, or whose parts are to be sent.
    again: RangeSet,
    charged: u64,
    /// The number of unacknowledged packets, and the bytes of their images.
    waiting: (u64, u64),
    /// The bytes that the other end keeps for this lane at least.
    window: u64,
    limit: u64,
    stamp: u32,
    /// The other end's driver takes no more until it asks for some.
    pub refused: bool,
    /// A push found no room.
    full: bool,
}

struct Slot {
    at: u32,
    len: u32,
    acked: bool,
    /// The bytes of a packet that is sent in parts.
    parts: Option<Box<Pieces>>,
}

impl Slot {
    #[inline]
    fn note_acked(&mut self, waiting: &mut (u64, u64)) {
        if !self.acked {
            self.acked = true;
            *waiting = (waiting.0 - 1, waiting.1 - u64::from(self.len));
        }
    }
}

impl LaneOut {
    pub fn new(priority: Priority, limit: u64, buffer: usize) -> Self {
        // The largest packet must fit anywhere in the ring, together with another one.
        let capacity = buffer.max(4 * IMAGE_MAX);
        Self { priority, capacity, window: limit, limit, ..Self::default() }
    }

    /// Whether nothing waits for an acknowledgement.
    pub fn is_idle(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether anything is to be sent.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.unsent < self.base + self.slots.len() as u64 || !self.again.is_empty()
    }

    /// The position at which `len` bytes fit in one piece, with `spare` bytes behind them.
    #[inline]
    fn place(&self, len: usize, spare: usize) -> Option<usize> {
        let Some(first) = self.slots.front() else { return Some(0) };
        let tail = first.at as usize;
        if self.head > tail {
            if self.capacity - self.head >= len + spare {
                return Some(self.head);
            }
            (tail > len + spare).then_some(0)
        } else {
            (tail - self.head > len + spare).then_some(self.head)
        }
    }

    /// The number of unacknowledged packets, and their backlog in bytes. The backlog includes bytes that the other end still
    /// keeps for its driver, which it reports once a quarter of its window.
    pub fn outstanding(&self) -> (u64, u64) {
        let (packets, bytes) = self.waiting;
        let kept = self.charged.saturating_sub(self.limit.saturating_sub(self.window));
        // Bytes below the other end's reporting step may have been taken already.
        (packets, if kept > self.window / 4 { bytes.max(kept) } else { bytes })
    }

    /// The bytes that fit at least, at both ends, if nothing else is there.
    pub fn bytes(&self) -> usize {
        self.capacity.min(usize::try_from(self.window).unwrap_or(usize::MAX))
    }

    /// Whether `len` bytes in packets of `packet` bytes can be pushed now, wherever they come to lie.
    pub fn has_room(&self, len: usize, packet: usize) -> bool {
        let packets = len.div_ceil(packet.max(1)).max(1);
        let credit = self.charged + len as u64 + (packets as u64 + 1) * CHARGE <= self.limit;
        // Up to a packet's length at the ring's end stays unused.
        let needed = len + (packets + 1) * PACKET_HEAD_MAX + packet.min(len) + PACKET_HEAD_MAX;
        self.takes_again() && credit && self.used() + needed <= self.capacity
    }

    /// Whether no push found it full, or enough space is free again since.
    #[inline]
    fn takes_again(&self) -> bool {
        !self.full || self.has_ample_room()
    }

    /// The bytes of the ring that are not free.
    fn used(&self) -> usize {
        match self.slots.front() {
            None => 0,
            Some(first) if self.head > first.at as usize => self.head - first.at as usize,
            Some(first) => self.capacity - (first.at as usize - self.head),
        }
    }

    /// Whether a quarter of everything is free. A sender without room returns then, and sends large datagrams instead of many
    /// small ones.
    fn has_ample_room(&self) -> bool {
        self.limit.saturating_sub(self.charged) >= self.window / 4 && self.capacity - self.used() >= self.capacity / 4
    }

    /// Keeps one packet for sending. Returns false if there is no room.
    #[inline]
    pub fn push(&mut self, head: &PacketHead, payload: &[u8]) -> bool {
        let charge = charge(payload.len());
        // A packet that gives up a message uses the room that every other packet left.
        let gives_up = head.kind == PacketKind::GivenUp;
        let (reserve, spare) = if gives_up { (0, 0) } else { (CHARGE, PACKET_HEAD_MAX) };
        if !gives_up && !self.takes_again() {
            return false;
        }
        let len = image_len(head, payload.len());
        let at = if self.charged + charge + reserve > self.limit { None } else { self.place(len, spare) };
        self.full = at.is_none();
        let Some(at) = at else { return false };
        if self.images.is_empty() {
            self.images = vec![0; self.capacity];
        }
        let number = self.base + self.slots.len() as u64;
        write_image(&mut self.images[at..at + len], self.priority, number as u32, head, payload);
        self.head = at + len;
        self.slots.push_back(Slot { at: at as u32, len: len as u32, acked: false, parts: None });
        self.charged += charge;
        self.waiting = (self.waiting.0 + 1, self.waiting.1 + len as u64);
        true
    }

    /// The bytes that were lent.
    pub fn lent(&self, at: usize, len: usize) -> &[u8] {
        &self.images[at..][..len]
    }

    /// Writes as much as fits, and returns what it was. Writes a part of a packet that would not fit into `whole` bytes. With
    /// `lend`, leaves the bytes of a long last packet where they are: there is room for them, and nothing may follow.
    #[inline]
    pub fn write(&mut self, writer: &mut Writer, whole: usize, lend: Option<&mut Option<Lent>>) -> Option<Carried> {
        if !self.again.is_empty()
            && let Some(carried) = self.write_again(writer, whole)
        {
            return Some(carried);
        }
        let end = self.base + self.slots.len() as u64;
        let first = self.unsent;
        // Consecutive images are written in one piece.
        let (mut from, mut to) = (0, 0);
        for slot in self.slots.range((first - self.base) as usize..) {
            let (at, len) = (slot.at as usize, slot.len as usize);
            if at != to {
                writer.put(&self.images[from..to]);
                (from, to) = (at, at);
            }
            if to - from + len > writer.room() {
                break;
            }
            to += len;
            self.unsent += 1;
        }
        if let Some(lend) = lend
            && self.unsent > first
            && to - from >= LEND_LEAST
        {
            let last = self.slots[(self.unsent - 1 - self.base) as usize].at as usize;
            let payload = usize::from(u16::from_le_bytes([self.images[last + 2], self.images[last + 3]]));
            if payload >= LEND_LEAST {
                to -= payload;
                *lend = Some(Lent { by: Lender::Lane(self.priority), at: to as u64, len: payload as u32 });
            }
        }
        writer.put(&self.images[from..to]);
        if self.unsent > first {
            return Some(Carried::Packets { lane: self.priority as u8, first, count: (self.unsent - first) as u32 });
        }
        if self.unsent < end && self.slots[(self.unsent - self.base) as usize].len as usize > whole {
            self.again.insert(self.unsent, self.unsent + 1);
            self.unsent += 1;
            return self.write_again(writer, whole);
        }
        None
    }

    #[cold]
    fn write_again(&mut self, writer: &mut Writer, whole: usize) -> Option<Carried> {
        loop {
            let (number, _) = self.again.first()?;
            let Some(slot) = number.checked_sub(self.base).and_then(|index| self.slots.get_mut(index as usize)) else {
                self.again.remove(number, number + 1);
                continue;
            };
            let image = &self.images[slot.at as usize..][..slot.len as usize];
            if slot.acked {
                self.again.remove(number, number + 1);
                continue;
            }
            if slot.parts.is_none() {
                if image.len() <= writer.room() {
                    writer.put(image);
                    self.again.remove(number, number + 1);
                    return Some(Carried::Packets { lane: self.priority as u8, first: number, count: 1 });
                }
                if image.len() <= whole {
                    return None;
                }
            }
            let parts = slot.parts.get_or_insert_with(|| {
                let mut parts = Box::<Pieces>::default();
                parts.unsent.insert(0, u64::from(slot.len));
                parts
            });
            if writer.room() < FRAGMENT_HEAD + FRAGMENT_LEAST.min(image.len()) {
                return None;
            }
            let most = (writer.room() - FRAGMENT_HEAD).min(usize::from(u16::MAX)) as u64;
            let Some((from, to)) = parts.unsent.take_front(most) else {
                self.again.remove(number, number + 1);
                continue;
            };
            if parts.unsent.is_empty() {
                self.again.remove(number, number + 1);
            }
            let bytes = &image[from as usize..to as usize];
            frame::write_fragment(writer, self.priority, number as u32, slot.len, from as u32, bytes);
            let (offset, len) = (from as u32, (to - from) as u32);
            return Some(Carried::Fragment { lane: self.priority as u8, sequence: number, offset, len });
        }
    }

    /// Handles the arrival of whole packets.
    #[inline]
    pub fn on_packets_acked(&mut self, first: u64, count: u32) {
        let end = first + u64::from(count);
        for number in first.max(self.base)..end {
            let Some(slot) = self.slots.get_mut((number - self.base) as usize) else { break };
            slot.note_acked(&mut self.waiting);
        }
        if !self.again.is_empty() {
            self.again.remove(first, end);
        }
        self.drop_acked();
    }

    pub fn on_fragment_acked(&mut self, number: u64, offset: u32, len: u32) {
        let Some(slot) = number.checked_sub(self.base).and_then(|index| self.slots.get_mut(index as usize)) else { return };
        let Some(parts) = &mut slot.parts else { return };
        parts.on_acked(u64::from(offset), u64::from(offset) + u64::from(len));
        if parts.acked.covers(0, u64::from(slot.len)) {
            slot.note_acked(&mut self.waiting);
            slot.parts = None;
            self.again.remove(number, number + 1);
            self.drop_acked();
        }
    }

    #[inline]
    fn drop_acked(&mut self) {
        while self.slots.front().is_some_and(|slot| slot.acked) {
            self.slots.pop_front();
            self.base += 1;
        }
    }

    /// Handles the loss of whole packets: those not acknowledged are sent again. Returns their bytes.
    pub fn on_packets_lost(&mut self, first: u64, count: u32) -> u64 {
        let mut bytes = 0;
        for number in first.max(self.base)..first + u64::from(count) {
            let Some(slot) = self.slots.get_mut((number - self.base) as usize) else { break };
            if slot.acked {
                continue;
            }
            if let Some(parts) = &mut slot.parts {
                parts.on_lost(0, u64::from(slot.len));
            }
            bytes += u64::from(slot.len);
            self.again.insert(number, number + 1);
        }
        bytes
    }

    pub fn on_fragment_lost(&mut self, number: u64, offset: u32, len: u32) -> u64 {
        let Some(slot) = number.checked_sub(self.base).and_then(|index| self.slots.get_mut(index as usize)) else { return 0 };
        let Some(parts) = &mut slot.parts else { return 0 };
        let bytes = parts.on_lost(u64::from(offset), u64::from(offset) + u64::from(len));
        if bytes > 0 {
            self.again.insert(number, number + 1);
        }
        bytes
    }

    /// Handles a credit of the other end.
    pub fn on_credit(&mut self, refused: bool, stamp: u32, limit: u64) {
        // An older credit may arrive later.
        if stamp.wrapping_sub(self.stamp) as i32 > 0 {
            (self.stamp, self.refused, self.limit) = (stamp, refused, self.limit.max(limit));
        }
    }
}
