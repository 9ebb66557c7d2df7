//! The sender's half: messages that are on their way to a device of another machine. They are kept until they are in the device, so that another
//! node can feed it when the one that does dies.

use super::wire::{self, HEADER, Kind};
use crate::engine::op::{Op, Outcome};
use crate::error::DeviceFault;
use doorbell_fabric::{Incarnation, NodeId, Payload};
use doorbell_shm::device::lines;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often all are asked who feeds a device, while nobody says so.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// For how long nobody may feed it before what is on its way is lost.
const PATIENCE: Duration = Duration::from_secs(3);
/// The longest that anybody may say a message can be.
const MESSAGE_MAX: u64 = 1 << 30;

/// One sender.
pub struct Far {
    pub stream: u32,
    pub name: String,
    /// Who feeds the device.
    feeder: Option<(NodeId, Incarnation)>,
    /// When all were asked, and since when nobody feeds it.
    asked: Option<Instant>,
    lost: Instant,
    /// Who said that it does not.
    refused: BTreeSet<(NodeId, Incarnation)>,
    no_lane: bool,
    /// It was found once.
    pub message_max: Option<usize>,
    /// What is not known to be in the device.
    queue: VecDeque<Item>,
    /// How many of those have gone.
    pushed: usize,
    /// The number of the latest message.
    sequence: u64,
    /// Packets that were used of those that were granted since it was opened.
    used: u64,
    granted: u64,
    /// The feeder is to say when there is news.
    asking: bool,
    failed: Option<DeviceFault>,
    /// Somebody waits for whoever feeds it.
    wanted: bool,
    /// Somebody waits until all is in the device.
    pub flushing: bool,
    /// Nobody sends by it any more: it goes when all is in the device.
    pub closing: Option<Instant>,
    waiter: Option<Arc<Op>>,
}

struct Item {
    sequence: u64,
    thread: u32,
    tag: u64,
    bytes: Vec<u8>,
    /// Bytes that have gone; `None`: not even the header.
    gone: Option<usize>,
}

/// What a sender has for a node.
pub enum Say {
    /// Who feeds this device?
    Open,
    Word(Kind, (NodeId, Incarnation)),
}

impl Far {
    pub fn new(stream: u32, name: &str) -> Self {
        Self {
            stream,
            name: name.to_owned(),
            feeder: None,
            asked: None,
            lost: Instant::now(),
            refused: BTreeSet::new(),
            no_lane: false,
            message_max: None,
            queue: VecDeque::new(),
            pushed: 0,
            sequence: 0,
            used: 0,
            granted: 0,
            asking: false,
            failed: None,
            wanted: true,
            flushing: false,
            closing: None,
            waiter: None,
        }
    }

    pub fn feeder(&self) -> Option<(NodeId, Incarnation)> {
        self.feeder
    }

    /// Whether it has to be stepped: somebody is to be found, something is to go, or its end is waited for.
    pub fn is_active(&self) -> bool {
        let is_sought = self.feeder.is_none() && (self.wanted || !self.queue.is_empty());
        self.failed.is_none() && (is_sought || self.flushing || self.pushed < self.queue.len()) || self.closing.is_some()
    }

    /// Whether all that was given has gone to the feeder.
    pub fn has_gone(&self) -> bool {
        self.pushed == self.queue.len()
    }

    /// Whether all that was given is in the device.
    pub fn is_in(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether another message of so many bytes may be given now: no more wait than the device has room for.
    pub fn has_room(&self, len: usize) -> bool {
        self.feeder.is_some() && self.has_gone() && self.used + lines(len) < self.granted
    }

    /// Takes a message.
    pub fn give(&mut self, thread: u32, tag: u64, parts: &[&[u8]]) {
        self.sequence += 1;
        self.queue.push_back(Item { sequence: self.sequence, thread, tag, bytes: parts.concat(), gone: None });
    }

    /// Whether it has failed, and what was on its way is lost. It begins anew with the next message.
    pub fn failed(&mut self) -> Option<DeviceFault> {
        let failed = self.failed.take()?;
        self.queue.clear();
        (self.pushed, self.asked, self.flushing, self.wanted) = (0, None, false, false);
        Some(failed)
    }

    /// Whether it can't go on.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Somebody waits for whoever feeds it.
    pub fn want(&mut self) {
        if self.feeder.is_none() && !self.wanted && self.queue.is_empty() {
            self.lost = Instant::now();
        }
        self.wanted = true;
    }

    /// Tells when something changed.
    pub fn await_change(&mut self) -> Arc<Op> {
        self.waiter.get_or_insert_with(Op::new).clone()
    }

    fn changed(&mut self) {
        if let Some(op) = self.waiter.take() {
            op.finish(Outcome::Sent);
        }
    }

    /// What there is to say: to find who feeds the device, and to hear of more room. `others` are those that could.
    pub fn say(&mut self, now: Instant, others: impl Fn() -> Vec<(NodeId, Incarnation)>) -> Option<Say> {
        if self.failed.is_some() {
            return None;
        }
        let Some(feeder) = self.feeder else {
            if !self.wanted && self.queue.is_empty() {
                return None;
            }
            if self.asked.is_none_or(|asked| now - asked >= ASK_EVERY) {
                let is_first = self.asked.is_none();
                self.asked = Some(now);
                let nobody = others().iter().all(|other| self.refused.contains(other));
                // One that was not there yet when it was asked may be by now.
                if !is_first && nobody && (self.message_max.is_none() || now - self.lost > PATIENCE) {
                    self.fail(if self.no_lane { DeviceFault::NoLane { senders: 0 } } else { DeviceFault::Absent });
                    return None;
                }
                self.refused.clear();
                return Some(Say::Open);
            }
            return None;
        };
        let stalls = self.queue.get(self.pushed).is_some_and(|item| self.used + lines(item.bytes.len()) >= self.granted);
        let flushes = (self.flushing || self.closing.is_some()) && !self.queue.is_empty() && self.has_gone();
        if !(stalls || flushes) || self.asking {
            return None;
        }
        self.asking = true;
        Some(Say::Word(Kind::Ask, feeder))
    }

    fn fail(&mut self, why: DeviceFault) {
        self.failed = Some(why);
        self.changed();
    }

    /// The next packet for the feeder, of `most` bytes at most, into `room`; its tag. Call [`sent`](Self::sent) if it went.
    pub fn next(&mut self, most: usize, room: &mut Vec<u8>) -> Option<u64> {
        self.feeder?;
        let item = self.queue.get(self.pushed)?;
        room.clear();
        let kind = match item.gone {
            None if self.used + lines(item.bytes.len()) >= self.granted => return None,
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

    /// What [`next`](Self::next) gave went, `bytes` of them with what it says of itself.
    pub fn sent(&mut self, bytes: usize) {
        let Some(item) = self.queue.get_mut(self.pushed) else { return };
        let gone = match item.gone {
            None => bytes - HEADER,
            Some(gone) => gone + bytes,
        };
        item.gone = Some(gone);
        if gone == item.bytes.len() {
            self.used += lines(gone);
            self.pushed += 1;
            if self.has_gone() {
                self.changed();
            }
        }
    }

    /// A node says that it feeds the device. False if another does: then that one need not.
    pub fn opened(&mut self, from: (NodeId, Incarnation), [published, granted, max]: [u64; 3]) -> bool {
        if self.feeder.is_some_and(|feeder| feeder != from) || self.failed.is_some() {
            return false;
        }
        if self.feeder == Some(from) {
            return true;
        }
        self.feeder = Some(from);
        self.message_max = Some(max.min(MESSAGE_MAX) as usize);
        self.forget(published);
        // A device that was made anew knows nothing of former messages: what is left is counted from where it stands.
        let first = self.queue.front().map_or(self.sequence + 1, |item| item.sequence);
        let published = published.min(self.sequence);
        self.sequence = self.sequence + published + 1 - first;
        for item in &mut self.queue {
            (item.gone, item.sequence) = (None, item.sequence + published + 1 - first);
        }
        (self.pushed, self.used, self.granted, self.asking, self.wanted) = (0, 0, granted, false, false);
        self.changed();
        true
    }

    /// What is in the device need not be kept.
    fn forget(&mut self, published: u64) {
        while self.queue.front().is_some_and(|item| item.sequence <= published) {
            self.queue.pop_front();
            self.pushed = self.pushed.saturating_sub(1);
        }
    }

    pub fn acknowledged(&mut self, from: (NodeId, Incarnation), [published, granted]: [u64; 2]) {
        if self.feeder == Some(from) {
            // No more is believed to be there than has gone.
            let last = self.queue.get(self.pushed.wrapping_sub(1)).map_or(0, |item| item.sequence);
            self.forget(published.min(last));
            self.granted = self.granted.max(granted);
            self.asking = false;
            self.changed();
        }
    }

    pub fn refused(&mut self, from: (NodeId, Incarnation), reason: u64) {
        if self.feeder.is_none() {
            self.refused.insert(from);
            self.no_lane |= reason == wire::NO_LANE;
        }
    }

    /// A node feeds it no longer, or is gone: another is to be found.
    pub fn gone(&mut self, from: (NodeId, Incarnation)) {
        if self.feeder == Some(from) {
            (self.feeder, self.asked, self.asking, self.lost) = (None, None, false, Instant::now());
            self.changed();
        }
    }

    /// Tells who waits that nothing goes on any more.
    pub fn end(&mut self) {
        self.failed.get_or_insert(DeviceFault::Absent);
        self.changed();
    }
}

/// The words of a header packet, checked: sequence, thread, bytes, tag; and the bytes that come with them.
pub fn first<'a>(payload: &Payload<'a>) -> Option<(u64, u32, usize, u64, Payload<'a>)> {
    let [sequence, about, tag] = wire::read(payload)?;
    let rest = payload.slice(HEADER, payload.len() - HEADER)?;
    let len = about as u32 as usize;
    (rest.len() <= len).then_some((sequence, (about >> 32) as u32, len, tag, rest))
}
