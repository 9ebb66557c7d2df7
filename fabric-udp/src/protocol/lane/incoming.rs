//! The receiving end of a lane: packets go to the driver in order; those that came early, or were refused, wait.

use super::{CHARGE, charge};
use crate::protocol::frame::{Packet, image_len, read_image, write_image};
use crate::protocol::ranges::RangeSet;
use doorbell_fabric::{Incarnation, NodeId, PacketKind, Payload, Priority, Sink, Verdict};
use std::collections::BTreeMap;

/// What became of a packet that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    /// The driver took it, or it waits.
    Fine,
    /// The driver took it and wants to come back.
    Stop,
    /// Its sender broke the rules.
    Broken(&'static str),
}

/// Packets of one lane on their way in.
pub(crate) struct LaneIn {
    priority: Priority,
    /// The number of the next packet for the driver.
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// What the waiting ones were charged.
    held: u64,
    window: u64,
    /// What all packets that the driver took were charged.
    taken: u64,
    /// What the sender was told.
    limit: u64,
    refused: bool,
    stamp: u32,
    /// The sender is to be told again.
    pub untold: bool,
    pub delivered: u64,
    pub refusals: u64,
}

struct Waiting {
    image: Vec<u8>,
    /// Which bytes are there, if not all.
    parts: Option<RangeSet>,
}

/// From whom the packets are.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub node: NodeId,
    pub incarnation: Incarnation,
}

impl LaneIn {
    pub fn new(priority: Priority, window: u64) -> Self {
        Self {
            priority,
            next: 0,
            waiting: BTreeMap::new(),
            held: 0,
            window,
            taken: 0,
            limit: window,
            refused: false,
            stamp: 0,
            untold: false,
            delivered: 0,
            refusals: 0,
        }
    }

    /// Whether packets wait that the driver could have.
    #[inline]
    pub fn is_ready(&self) -> bool {
        !self.waiting.is_empty() && self.first_is_whole()
    }

    /// Whether the driver refused the first of them.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    #[inline]
    fn first_is_whole(&self) -> bool {
        self.waiting.first_key_value().is_some_and(|(number, waiting)| *number == self.next && waiting.parts.is_none())
    }

    /// What is to be told to the sender: whether it is refused, the stamp of this news, and how far it may go.
    pub fn credit(&mut self) -> (bool, u32, u64) {
        self.limit = self.taken + self.window;
        self.stamp = self.stamp.wrapping_add(1);
        self.untold = false;
        (self.refused, self.stamp, self.limit)
    }

    /// A whole packet arrived.
    #[inline]
    pub fn on_packet<S: Sink>(&mut self, sequence: u32, packet: &Packet, from: Source, sink: &mut S, stopped: bool) -> Arrival {
        let ahead = sequence.wrapping_sub(self.next as u32) as i32;
        if ahead == 0 && self.waiting.is_empty() && !stopped {
            return match self.hand_over(packet, from, sink) {
                Verdict::Taken => Arrival::Fine,
                Verdict::TakenAndStop => Arrival::Stop,
                Verdict::Refused => self.keep(self.next, packet),
                Verdict::Broken(reason) => Arrival::Broken(reason),
            };
        }
        self.on_packet_early(ahead, packet, from, sink, stopped)
    }

    #[cold]
    fn on_packet_early<S: Sink>(&mut self, ahead: i32, packet: &Packet, from: Source, sink: &mut S, stopped: bool) -> Arrival {
        if ahead < 0 {
            return Arrival::Fine;
        }
        match self.keep(self.next + ahead as u64, packet) {
            Arrival::Fine => self.deliver(from, sink, stopped),
            other => other,
        }
    }

    /// Gives one packet to the driver, and counts what it says.
    #[inline]
    fn hand_over<S: Sink>(&mut self, packet: &Packet, from: Source, sink: &mut S) -> Verdict {
        let payload = Payload::private(packet.payload);
        let verdict = sink.packet(from.node, from.incarnation, self.priority, &packet.head, payload);
        self.note(verdict, charge(packet.payload.len()));
        verdict
    }

    /// What the driver said to the next packet.
    #[inline]
    fn note(&mut self, verdict: Verdict, charge: u64) {
        match verdict {
            Verdict::Taken | Verdict::TakenAndStop => {
                self.next += 1;
                self.delivered += 1;
                self.taken += charge;
                // Telling costs a frame: do it once a quarter of the window, or if the sender was told to wait.
                if self.taken + self.window - self.limit >= self.window / 4 || self.refused {
                    self.untold = true;
                    self.refused = false;
                }
            }
            Verdict::Refused => {
                self.refusals += 1;
                if !self.refused {
                    self.refused = true;
                    self.untold = true;
                }
            }
            Verdict::Broken(_) => {}
        }
    }

    fn over_the_window(&mut self, number: u64, charge: u64) -> Option<Arrival> {
        self.held += charge;
        // Everything that waits was sent within the window, if its sender keeps to it.
        let too_far = (number - self.next) * CHARGE > self.window;
        (self.held > self.window + self.window / 16 || too_far).then_some(Arrival::Broken("a lane ran over its window"))
    }

    fn keep(&mut self, number: u64, packet: &Packet) -> Arrival {
        match self.waiting.get(&number) {
            Some(Waiting { parts: None, .. }) => return Arrival::Fine,
            // The same packet is complete now.
            Some(Waiting { parts: Some(_), image }) => self.held -= image.len() as u64 + CHARGE,
            None => {}
        }
        let mut image = vec![0; image_len(&packet.head, packet.payload.len())];
        write_image(&mut image, self.priority, number as u32, &packet.head, packet.payload);
        if let Some(broken) = self.over_the_window(number, charge(packet.payload.len())) {
            return broken;
        }
        self.waiting.insert(number, Waiting { image, parts: None });
        Arrival::Fine
    }

    /// A part of a packet arrived.
    pub fn on_fragment<S: Sink>(
        &mut self,
        (sequence, total, offset, bytes): (u32, u32, u32, &[u8]),
        from: Source,
        sink: &mut S,
        stopped: bool,
    ) -> Arrival {
        let ahead = sequence.wrapping_sub(self.next as u32) as i32;
        if ahead < 0 {
            return Arrival::Fine;
        }
        let number = self.next + ahead as u64;
        if !self.waiting.contains_key(&number) {
            // An image is a little longer than what its packet was charged: a sixteenth is left for that.
            if let Some(broken) = self.over_the_window(number, u64::from(total) + CHARGE) {
                return broken;
            }
            let image = vec![0; total as usize];
            self.waiting.insert(number, Waiting { image, parts: Some(RangeSet::default()) });
        }
        let waiting = self.waiting.get_mut(&number).expect("just inserted");
        let Some(parts) = &mut waiting.parts else { return Arrival::Fine };
        if waiting.image.len() != total as usize {
            return Arrival::Broken("parts of one packet disagree about its length");
        }
        waiting.image[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        parts.insert(u64::from(offset), u64::from(offset) + bytes.len() as u64);
        if !parts.covers(0, u64::from(total)) {
            return Arrival::Fine;
        }
        waiting.parts = None;
        let Some((priority, said, packet)) = read_image(&waiting.image) else {
            return Arrival::Broken("parts that make no packet");
        };
        if priority != self.priority || said != number as u32 {
            return Arrival::Broken("parts that make another packet");
        }
        self.held -= u64::from(total) + CHARGE;
        self.held += charge(packet.payload.len());
        self.deliver(from, sink, stopped)
    }

    /// The first packet was refused. If it began a message that its sender has given up since, nobody misses that: it is taken with all
    /// its packets.
    fn skip_given_up(&mut self) -> bool {
        let mut number = self.next;
        let mut charged = 0;
        loop {
            let Some(waiting) = self.waiting.get(&number).filter(|waiting| waiting.parts.is_none()) else { return false };
            let Some((_, _, packet)) = read_image(&waiting.image) else { return false };
            let is_of_it = if number == self.next { PacketKind::First } else { PacketKind::Next };
            charged += charge(packet.payload.len());
            number += 1;
            match packet.head.kind {
                PacketKind::GivenUp if number > self.next + 1 => break,
                kind if kind == is_of_it => {}
                _ => return false,
            }
        }
        self.waiting = self.waiting.split_off(&number);
        self.delivered += number - self.next;
        self.next = number;
        self.held -= charged;
        self.taken += charged;
        (self.untold, self.refused) = (true, false);
        true
    }

    /// Gives the driver what waits and is in order.
    pub fn deliver<S: Sink>(&mut self, from: Source, sink: &mut S, stopped: bool) -> Arrival {
        // Who refused a packet is asked again when it says so: `retry`.
        if stopped || self.refused {
            return Arrival::Fine;
        }
        let mut budget = usize::MAX;
        self.retry(from, sink, &mut budget)
    }

    /// Like [`deliver`](Self::deliver), at most `budget` packets, even if the first had been refused.
    pub fn retry<S: Sink>(&mut self, from: Source, sink: &mut S, budget: &mut usize) -> Arrival {
        while *budget > 0 && self.first_is_whole() {
            // It stays where it is until the driver has it, who may panic.
            let image = self.waiting.first_key_value().and_then(|(_, waiting)| read_image(&waiting.image));
            let Some((_, _, packet)) = image else { return Arrival::Broken("parts that make no packet") };
            let (charge, payload) = (charge(packet.payload.len()), Payload::private(packet.payload));
            let verdict = sink.packet(from.node, from.incarnation, self.priority, &packet.head, payload);
            self.note(verdict, charge);
            match verdict {
                Verdict::Taken | Verdict::TakenAndStop => {
                    self.waiting.pop_first();
                    *budget -= 1;
                    self.held -= charge;
                    if verdict == Verdict::TakenAndStop {
                        return Arrival::Stop;
                    }
                }
                Verdict::Refused => {
                    if !self.skip_given_up() {
                        break;
                    }
                }
                Verdict::Broken(reason) => return Arrival::Broken(reason),
            }
        }
        Arrival::Fine
    }
}
