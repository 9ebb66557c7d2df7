//! The sender's half: messages on their way to a device on another machine. They are kept until they are in the device, so that
//! another node can take over when the serving node dies.

use super::wire::{self, HEADER, Kind};
use crate::envelope::{Parts, length};
use crate::error::DeviceError;
use doorbell_engine::kit::{Payload, PeerId, world};
use doorbell_shm::device::{PACKET, lines};
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// How often all nodes are asked for the device while none serves it.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// How long a device may be without a serving node before messages on their way are lost.
const PATIENCE: Duration = Duration::from_secs(3);
/// The greatest message length that a peer may announce, in bytes.
const MESSAGE_MAX: u64 = 1 << 30;

/// One sender.
#[derive(Default)]
pub struct Far {
    pub stream: u32,
    pub name: String,
    /// The node that serves the device.
    pub feeder: Option<PeerId>,
    /// When all nodes were asked last, and since when no message can reach the device because no node serves it.
    asked: Option<Instant>,
    lost: Option<Instant>,
    /// Whether a message reached the device since the serving node announced itself; and since when one node after the other
    /// announces itself without that.
    progressed: bool,
    stuck: Option<Instant>,
    /// Nodes that said that they do not serve it.
    refused: BTreeSet<PeerId>,
    /// The number of the device's lanes, if all are taken.
    no_lane: Option<usize>,
    /// The device's limit, once it was found, and its number: no other device of this name will do.
    pub message_max: Option<usize>,
    device: Option<u64>,
    messages: Messages,
    credit: Credit,
    failed: Option<DeviceError>,
    /// A caller waits for a serving node.
    wanted: bool,
    /// A caller waits until all messages are in the device.
    pub flushing: bool,
    /// The handle was dropped: the stream ends when all messages are in the device.
    pub closing: Option<Instant>,
}

/// Messages not known to be in the device.
#[derive(Default)]
struct Messages {
    queue: VecDeque<Item>,
    /// Their bytes.
    queued: usize,
    /// How many of those have left.
    pushed: usize,
    /// The number of the latest message.
    sequence: u64,
}

/// How many packets were used and how many granted since the stream was opened.
#[derive(Default)]
struct Credit {
    used: u64,
    granted: u64,
    /// An update was requested from the serving node.
    asking: bool,
    /// A caller wants to send more than is granted.
    starves: bool,
}

impl Credit {
    /// Whether a message of this length may be sent.
    fn covers(&self, len: usize) -> bool {
        self.used + lines(len) < self.granted
    }
}

struct Item {
    sequence: u64,
    thread: u32,
    tag: u64,
    bytes: Vec<u8>,
    /// How many bytes have left; `None`: not even the header.
    gone: Option<usize>,
}

impl Far {
    pub fn new(stream: u32, name: &str) -> Self {
        Self { stream, name: name.to_owned(), wanted: true, ..Self::default() }
    }

    /// Whether it has to be stepped: a serving node is sought, a message has to leave, or its end is awaited.
    pub fn is_active(&self) -> bool {
        let is_sought = self.feeder.is_none() && (self.wanted || !self.messages.queue.is_empty());
        self.failed.is_none() && (is_sought || self.flushing || self.messages.pushed < self.messages.queue.len())
            || self.closing.is_some()
    }

    /// Whether all messages have left for the serving node.
    pub fn has_gone(&self) -> bool {
        self.messages.pushed == self.messages.queue.len()
    }

    /// Whether all messages are in the device.
    pub fn is_in(&self) -> bool {
        self.messages.queue.is_empty()
    }

    /// Whether a message of this length may be added now. No more messages wait than the device has room for.
    fn has_room(&mut self, len: usize) -> bool {
        // Whatever the serving node grants, this node keeps no more than a lane of the device holds.
        let lane = 2 * (self.message_max.unwrap_or(0) + 2 * PACKET);
        let is_granted = self.credit.covers(len) && self.messages.queued + len <= lane;
        self.credit.starves = self.feeder.is_some() && self.has_gone() && !is_granted;
        self.feeder.is_some() && self.has_gone() && is_granted
    }

    /// Adds a message, if it may be sent now.
    pub fn try_give(&mut self, (thread, tag, parts): Parts<'_>) -> Option<()> {
        if self.has_failed() || !self.has_room(length(parts)) {
            return None;
        }
        let (messages, bytes) = (&mut self.messages, parts.concat());
        messages.sequence = messages.sequence.wrapping_add(1);
        messages.queued += bytes.len();
        messages.queue.push_back(Item { sequence: messages.sequence, thread, tag, bytes, gone: None });
        Some(())
    }

    /// Whether the stream has failed, so that messages on their way are lost. The next message begins it again.
    pub fn failed(&mut self) -> Option<DeviceError> {
        let failed = self.failed.take()?;
        self.messages = Messages { sequence: self.messages.sequence, ..Messages::default() };
        (self.asked, self.flushing, self.wanted) = (None, false, false);
        (self.device, self.stuck, self.lost) = (None, None, Some(world::now()));
        Some(failed)
    }

    /// Whether it can't go on.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Notes that a caller waits for a serving node.
    pub fn want(&mut self) {
        if self.feeder.is_none() && !self.wanted && self.messages.queue.is_empty() {
            self.lost = Some(world::now());
        }
        self.wanted = true;
    }

    /// Whether all nodes are to be asked now which of them serves the device. `others` are the nodes that could.
    pub fn asks_all(&mut self, now: Instant, others: impl Fn() -> Vec<PeerId>) -> bool {
        let is_sought = self.failed.is_none() && self.feeder.is_none() && (self.wanted || !self.messages.queue.is_empty());
        if !is_sought || self.asked.is_some_and(|asked| now - asked < ASK_EVERY) {
            return false;
        }
        let is_first = self.asked.replace(now).is_none();
        let nobody = others().iter().all(|other| self.refused.contains(other));
        // A node that was not attached when it was asked may be attached by now.
        if !is_first && nobody && (self.message_max.is_none() || self.lost.is_some_and(|lost| now - lost > PATIENCE)) {
            self.failed = Some(self.no_lane.map_or(DeviceError::Absent, |senders| DeviceError::NoLane { senders }));
            return false;
        }
        self.refused.clear();
        self.no_lane = None;
        true
    }

    /// The serving node, if it is to be asked now for more room.
    pub fn asks(&mut self) -> Option<PeerId> {
        let feeder = self.feeder.filter(|_| self.failed.is_none())?;
        let stalls = self.messages.queue.get(self.messages.pushed).is_some_and(|item| !self.credit.covers(item.bytes.len()));
        let flushes = (self.flushing || self.closing.is_some()) && !self.is_in() && self.has_gone();
        let asks = (stalls || flushes || self.credit.starves) && !self.credit.asking;
        self.credit.asking |= asks;
        asks.then_some(feeder)
    }

    /// Puts the next packet for the serving node into `room`, at most `most` bytes, and returns its tag. Call
    /// [`sent`](Self::sent) if it left.
    pub fn next(&mut self, most: usize, room: &mut Vec<u8>) -> Option<u64> {
        self.feeder?;
        let item = self.messages.queue.get(self.messages.pushed)?;
        room.clear();
        let kind = match item.gone {
            None if !self.credit.covers(item.bytes.len()) => return None,
            None => {
                let about = (item.thread as u64) << 32 | item.bytes.len() as u64;
                [item.sequence, about, item.tag].iter().for_each(|word| room.extend(word.to_le_bytes()));
                Kind::First
            }
            Some(_) => Kind::Next,
        };
        let from = item.gone.unwrap_or(0);
        let to = item.bytes.len().min(from + most.saturating_sub(room.len()));
        room.extend_from_slice(&item.bytes[from..to]);
        Some(wire::tag(kind, self.stream))
    }

    /// The packet of [`next`](Self::next) has left, with `bytes` bytes including its header words.
    pub fn sent(&mut self, bytes: usize) {
        let Some(item) = self.messages.queue.get_mut(self.messages.pushed) else { return };
        let gone = match item.gone {
            None => bytes - HEADER,
            Some(gone) => gone + bytes,
        };
        item.gone = Some(gone);
        if gone == item.bytes.len() {
            self.credit.used += lines(gone);
            self.messages.pushed += 1;
        }
    }

    /// A node announces that it serves the device. False if another one does, and this one need not.
    pub fn opened(&mut self, from: PeerId, [published, granted, max, device]: [u64; 4]) -> bool {
        if self.feeder.is_some_and(|feeder| feeder != from) || self.failed.is_some() {
            return false;
        }
        if self.feeder == Some(from) {
            return true;
        }
        if self.device.is_some_and(|known| known != device) {
            // Another device of the same name. It is unknown what became of the messages on their way.
            self.failed = Some(DeviceError::Absent);
            return false;
        }
        let max = max.min(MESSAGE_MAX) as usize;
        if let Some(item) = self.messages.queue.iter().find(|item| item.bytes.len() > max) {
            self.failed = Some(DeviceError::TooLong { len: item.bytes.len(), max });
            return false;
        }
        (self.feeder, self.device, self.message_max) = (Some(from), Some(device), Some(max));
        self.forget(published);
        // A node that takes over counts from where its lane stands, so the remaining messages get new numbers.
        self.messages.sequence = published;
        for item in &mut self.messages.queue {
            self.messages.sequence = self.messages.sequence.wrapping_add(1);
            (item.gone, item.sequence) = (None, self.messages.sequence);
        }
        self.credit = Credit { granted, ..Credit::default() };
        (self.messages.pushed, self.wanted, self.progressed) = (0, false, false);
        true
    }

    /// Forgets messages that are in the device. A message that has not left can't be there, whatever the peer says.
    fn forget(&mut self, published: u64) {
        let is_in = |item: &Item| item.gone == Some(item.bytes.len()) && item.sequence <= published;
        while self.messages.queue.front().is_some_and(is_in)
            && let Some(item) = self.messages.queue.pop_front()
        {
            self.messages.queued -= item.bytes.len();
            self.messages.pushed = self.messages.pushed.saturating_sub(1);
            (self.progressed, self.stuck) = (true, None);
        }
    }

    pub fn acknowledged(&mut self, from: PeerId, [published, granted]: [u64; 2]) {
        if self.feeder == Some(from) {
            self.forget(published);
            self.credit.granted = self.credit.granted.max(granted);
            (self.credit.asking, self.credit.starves) = (false, false);
        }
    }

    pub fn refused(&mut self, from: PeerId, reason: u64, senders: u64) {
        if self.feeder.is_none() {
            self.refused.insert(from);
            if reason == wire::NO_LANE {
                self.no_lane = Some(usize::try_from(senders).unwrap_or(usize::MAX));
            }
        }
    }

    /// The serving node ends the stream or is gone. Another one has to be found.
    pub fn gone(&mut self, from: PeerId) {
        if self.feeder != Some(from) {
            return;
        }
        let now = world::now();
        (self.feeder, self.asked, self.credit.asking) = (None, None, false);
        if self.progressed || self.messages.queue.is_empty() {
            (self.lost, self.stuck) = (Some(now), None);
        } else if self.stuck.is_some_and(|since| now - since > PATIENCE) {
            // Node after node has announced that it serves the device, and no message has reached it.
            self.failed = Some(DeviceError::Damaged);
        } else if self.stuck.is_none() {
            (self.lost, self.stuck) = (Some(now), Some(now));
        }
    }
}

/// The words of a header packet, checked: sequence, thread, length, tag; and the bytes that follow.
pub fn first<'a>(payload: &Payload<'a>) -> Option<(u64, u32, usize, u64, Payload<'a>)> {
    let [sequence, about, tag] = wire::read(payload)?;
    let rest = payload.slice(HEADER, payload.len() - HEADER)?;
    let len = about as u32 as usize;
    (rest.len() <= len).then_some((sequence, (about >> 32) as u32, len, tag, rest))
}
