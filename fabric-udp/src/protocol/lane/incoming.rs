//! The receiving end of a lane. Packets go to the driver in order; early and refused packets wait.

use super::{CHARGE, charge};
use crate::protocol::Peer;
use crate::protocol::frame::{self, Frame, Packet, Short, image_len, read_image, write_image};
use crate::protocol::ranges::RangeSet;
use doorbell_fabric::{PacketKind, Payload, Priority, Sink, Verdict};
use std::collections::BTreeMap;

/// Whether the driver took a packet and wants to return later, or how the sender broke the rules.
pub(crate) type Arrival = Result<bool, &'static str>;

/// The incoming packets of one lane.
#[derive(Default)]
pub(crate) struct LaneIn {
    priority: Priority,
    /// The number of the next packet for the driver.
    next: u64,
    /// The next packets, complete and in order.
    ready: Ready,
    /// Packets that came early or in part. None of them is both complete and the successor of the ready ones.
    early: BTreeMap<u64, Early>,
    /// The total charge of the waiting packets.
    held: u64,
    window: u64,
    /// The total charge of the packets that the driver took.
    taken: u64,
    /// The limit that was told to the sender.
    limit: u64,
    /// The driver refused the first packet.
    pub refused: bool,
    /// The driver wants another packet before the first one here. The sender does not know that.
    pub later: bool,
    stamp: u32,
    /// The sender must be told the credit again.
    pub untold: bool,
    pub delivered: u64,
    pub refusals: u64,
}

struct Early {
    image: Vec<u8>,
    /// The bytes that have arrived, if not all of them.
    parts: Option<RangeSet>,
}

/// Packets in order, as consecutive images. A driver may take hundreds of small packets of one datagram one at a time.
#[derive(Default)]
struct Ready {
    images: Vec<u8>,
    /// The position of the first image.
    at: usize,
    count: u64,
}

/// The length from which on the memory of taken images is freed, once they are the larger part.
const SHRINK_FROM: usize = 256 << 10;

impl Ready {
    fn push(&mut self, priority: Priority, number: u64, packet: &Packet) {
        let from = self.images.len();
        self.images.resize(from + image_len(&packet.head, packet.payload.len()), 0);
        write_image(&mut self.images[from..], priority, number as u32, &packet.head, packet.payload);
        self.count += 1;
    }

    fn push_image(&mut self, image: &[u8]) {
        self.images.extend_from_slice(image);
        self.count += 1;
    }

    /// All packets, each with the length of its image.
    fn iter(&self) -> impl Iterator<Item = (Packet<'_>, usize)> {
        let mut rest = &self.images[self.at..];
        std::iter::from_fn(move || {
            let before = rest.len();
            let Ok(Some(Frame::Packet { packet, .. })) = frame::read(&mut rest) else { return None };
            Some((packet, before - rest.len()))
        })
    }

    /// Removes the first `count` packets, whose images have `len` bytes.
    #[inline]
    fn pop(&mut self, count: u64, len: usize) {
        self.count -= count;
        self.at += len;
        if self.at == self.images.len() {
            self.at = 0;
            self.images.clear();
        } else if self.at >= SHRINK_FROM && self.at > self.images.len() / 2 {
            self.images.drain(..self.at);
            self.at = 0;
        }
    }
}

impl LaneIn {
    pub fn new(priority: Priority, window: u64) -> Self {
        Self { priority, window, limit: window, ..Self::default() }
    }

    /// Whether packets wait for the driver.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.ready.count > 0
    }

    /// Whether packets wait that the driver neither refused nor put off.
    pub fn is_wanted(&self) -> bool {
        self.is_ready() && !self.refused && !self.later
    }

    /// The number of the first packet that is neither taken nor ready.
    #[inline]
    fn end(&self) -> u64 {
        self.next + self.ready.count
    }

    /// The next credit for the sender.
    pub fn credit(&mut self) -> Short {
        self.limit = self.taken + self.window;
        self.stamp = self.stamp.wrapping_add(1);
        self.untold = false;
        Short::Credit { priority: self.priority, refused: self.refused, stamp: self.stamp, limit: self.limit }
    }

    /// Handles a whole packet.
    #[inline]
    pub fn on_packet<S: Sink>(&mut self, sequence: u32, packet: &Packet, from: Peer, sink: &mut S, stopped: bool) -> Arrival {
        let ahead = sequence.wrapping_sub(self.next as u32) as i32;
        if ahead == 0 && self.ready.count == 0 && self.early.is_empty() && !stopped {
            return match self.hand_over(packet, from, sink) {
                Verdict::Taken => Ok(false),
                Verdict::TakenAndStop => Ok(true),
                Verdict::Refused | Verdict::Later => self.keep(self.next, packet).map(|()| false),
                Verdict::Broken(reason) => Err(reason),
            };
        }
        self.on_packet_early(ahead, packet, from, sink, stopped)
    }

    fn on_packet_early<S: Sink>(&mut self, ahead: i32, packet: &Packet, from: Peer, sink: &mut S, stopped: bool) -> Arrival {
        if ahead < 0 {
            return Ok(false);
        }
        self.keep(self.next + ahead as u64, packet)?;
        self.deliver(from, sink, stopped)
    }

    /// Gives one packet to the driver, and records its verdict.
    #[inline]
    fn hand_over<S: Sink>(&mut self, packet: &Packet, from: Peer, sink: &mut S) -> Verdict {
        let payload = Payload::private(packet.payload);
        let verdict = sink.packet(from.node, from.incarnation, self.priority, &packet.head, payload);
        self.note(verdict, charge(packet.payload.len()));
        verdict
    }

    /// Records the driver's verdict on the next packet.
    #[inline]
    fn note(&mut self, verdict: Verdict, charge: u64) {
        match verdict {
            Verdict::Taken | Verdict::TakenAndStop => {
                self.next += 1;
                self.delivered += 1;
                self.taken += charge;
                self.later = false;
                // A credit costs a frame, so send one once a quarter of the window, or if the sender was told to wait.
                if self.taken + self.window - self.limit >= self.window / 4 || self.refused {
                    self.untold = true;
                    self.refused = false;
                }
            }
            Verdict::Refused => {
                self.refusals += 1;
                self.later = false;
                if !self.refused {
                    self.refused = true;
                    self.untold = true;
                }
            }
            Verdict::Later => {
                self.later = true;
                // The former refusal no longer holds.
                self.untold |= std::mem::take(&mut self.refused);
            }
            Verdict::Broken(_) => {}
        }
    }

    /// Counts a packet that waits.
    fn hold(&mut self, number: u64, charge: u64) -> Result<(), &'static str> {
        self.held += charge;
        // A sender that keeps to the rules sends within the window only.
        let too_far = (number - self.next) * CHARGE > self.window;
        if self.held > self.window + self.window / 16 || too_far { Err("a lane ran over its window") } else { Ok(()) }
    }

    fn keep(&mut self, number: u64, packet: &Packet) -> Result<(), &'static str> {
        if number < self.end() {
            return Ok(());
        }
        match self.early.get(&number) {
            Some(Early { parts: None, .. }) => return Ok(()),
            // A partial packet is complete now.
            Some(Early { parts: Some(_), image }) => {
                self.held -= image.len() as u64 + CHARGE;
                self.early.remove(&number);
            }
            None => {}
        }
        self.hold(number, charge(packet.payload.len()))?;
        if number == self.end() {
            self.ready.push(self.priority, number, packet);
            self.line_up();
        } else {
            let mut image = vec![0; image_len(&packet.head, packet.payload.len())];
            write_image(&mut image, self.priority, number as u32, &packet.head, packet.payload);
            self.early.insert(number, Early { image, parts: None });
        }
        Ok(())
    }

    /// Moves early packets that are next now to the ready ones.
    #[inline]
    fn line_up(&mut self) {
        while let Some(first) = self.early.first_entry()
            && *first.key() == self.next + self.ready.count
            && first.get().parts.is_none()
        {
            self.ready.push_image(&first.remove().image);
        }
    }

    /// Handles a part of a packet.
    pub fn on_fragment<S: Sink>(
        &mut self,
        (sequence, total, offset, bytes): (u32, u32, u32, &[u8]),
        from: Peer,
        sink: &mut S,
        stopped: bool,
    ) -> Arrival {
        let ahead = i64::from(sequence.wrapping_sub(self.next as u32) as i32);
        let number = self.next.wrapping_add_signed(ahead);
        if ahead < 0 || number < self.end() {
            return Ok(false);
        }
        if !self.early.contains_key(&number) {
            // An image is a little longer than the charge of its packet. A sixteenth is allowed for that.
            self.hold(number, u64::from(total) + CHARGE)?;
            let image = vec![0; total as usize];
            self.early.insert(number, Early { image, parts: Some(RangeSet::default()) });
        }
        let early = self.early.get_mut(&number).expect("just inserted");
        let Some(parts) = &mut early.parts else { return Ok(false) };
        if early.image.len() != total as usize {
            return Err("parts of one packet disagree about its length");
        }
        early.image[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        parts.insert(u64::from(offset), u64::from(offset) + bytes.len() as u64);
        if !parts.covers(0, u64::from(total)) {
            return Ok(false);
        }
        early.parts = None;
        let Some((priority, said, packet)) = read_image(&early.image) else {
            return Err("the parts of a packet do not make a packet");
        };
        if priority != self.priority || said != number as u32 {
            return Err("the parts of a packet make another packet");
        }
        self.held -= u64::from(total) + CHARGE;
        self.held += charge(packet.payload.len());
        self.line_up();
        self.deliver(from, sink, stopped)
    }

    /// Handles a refused first packet. If its message was given up by the sender since, no driver misses it, so all its packets
    /// are taken.
    fn skip_given_up(&mut self) -> bool {
        let (mut count, mut len, mut charged) = (0, 0, 0);
        let mut whole = false;
        for (packet, image) in self.ready.iter() {
            let is_of_it = if count == 0 { PacketKind::First } else { PacketKind::Next };
            charged += charge(packet.payload.len());
            count += 1;
            len += image;
            match packet.head.kind {
                PacketKind::GivenUp if count > 1 => {
                    whole = true;
                    break;
                }
                kind if kind == is_of_it => {}
                _ => return false,
            }
        }
        if !whole {
            return false;
        }
        self.ready.pop(count, len);
        self.delivered += count;
        self.next += count;
        self.held -= charged;
        self.taken += charged;
        (self.untold, self.refused) = (true, false);
        true
    }

    /// Gives the driver the waiting packets that are in order.
    pub fn deliver<S: Sink>(&mut self, from: Peer, sink: &mut S, stopped: bool) -> Arrival {
        // A driver that did not take a packet asks again itself, by `retry`.
        if stopped || self.refused || self.later {
            return Ok(false);
        }
        let mut budget = usize::MAX;
        self.retry(from, sink, &mut budget)
    }

    /// Like [`deliver`](Self::deliver), for at most `budget` packets, even if the first one was not taken before.
    pub fn retry<S: Sink>(&mut self, from: Peer, sink: &mut S, budget: &mut usize) -> Arrival {
        while *budget > 0 && self.is_ready() {
            // The packet stays in place until the driver has it, because the driver may panic.
            let Some((packet, len)) = self.ready.iter().next() else {
                return Err("the parts of a packet do not make a packet");
            };
            let (charge, payload) = (charge(packet.payload.len()), Payload::private(packet.payload));
            let verdict = sink.packet(from.node, from.incarnation, self.priority, &packet.head, payload);
            self.note(verdict, charge);
            match verdict {
                Verdict::Taken | Verdict::TakenAndStop => {
                    self.ready.pop(1, len);
                    *budget -= 1;
                    self.held -= charge;
                    if verdict == Verdict::TakenAndStop {
                        return Ok(true);
                    }
                }
                Verdict::Refused if self.skip_given_up() => {}
                Verdict::Refused | Verdict::Later => break,
                Verdict::Broken(reason) => return Err(reason),
            }
        }
        Ok(false)
    }
}
