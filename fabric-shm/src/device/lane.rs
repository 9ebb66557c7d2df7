//! Writing a message into a lane of a device.

use super::words::{LaneWords, Place, View, is_behind, life_word, lines, stamp};
use super::{INLINE, PACKET};
use doorbell_fabric::sync::{AtomicU64, Ordering, light_barrier, planted_bug};
use doorbell_fabric::{Incarnation, NodeId, Payload};

/// Why a message was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoWrite {
    /// The lane has no room now.
    Full,
    /// The message is longer than the device allows.
    TooLong,
    /// Another process wrote into the lane what no process should. The lane can't be used any more.
    Broken,
    /// The device was removed, so no thread will receive the message.
    Ended,
}

/// The remote sender that a serving node writes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The node.
    pub node: NodeId,
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// The number of the node's sender.
    pub stream: u32,
}

/// The writer of a lane.
#[derive(Debug)]
pub struct Writer {
    lane: usize,
    owner: u64,
    source: u64,
    at: u64,
    /// How many messages the client has sent by the lane.
    sequence: u64,
    /// The index of the record that is written next.
    record: usize,
    /// The read position when this writer last looked.
    read: u64,
    /// The slot of the thread that it last wrote to.
    slot: usize,
}

impl Writer {
    /// Takes a lane without a sender, or with a sender that is dead according to `lives`, and continues behind its messages.
    /// With a `client`, the messages are that node's, and a lane that was that sender's before is preferred: its
    /// [`sequence`](Self::sequence) continues.
    ///
    /// One node can never take all lanes: it gets another one only while more are free than it has.
    ///
    /// `None`: there is no lane for this node now.
    pub fn claim(
        view: &View<'_>,
        me: (NodeId, Incarnation),
        client: Option<Client>,
        lives: impl Fn(NodeId, Incarnation) -> bool,
    ) -> Option<Self> {
        let owner = life_word(me.0, me.1);
        let (on_behalf, stream) =
            client.map_or((0, 0), |client| (life_word(client.node, client.incarnation), client.stream as u64));
        let source = if on_behalf == 0 { owner } else { on_behalf };
        let is_its = |words: &LaneWords| {
            words.client.load(Ordering::Acquire) == on_behalf && words.stream.load(Ordering::Relaxed) == stream
        };
        // First the client's own lane; last lanes with a client that may come back and ask how far it got.
        let rank = |lane: &usize| match &view.lanes[*lane] {
            words if is_its(words) => 0,
            words if words.client.load(Ordering::Relaxed) == 0 => 1,
            _ => 2,
        };
        let is_free = |was: u64| was == 0 || was != owner && !lives(NodeId((was >> 32) as u16), Incarnation(was as u32));
        let (mut has, mut free, mut former) = (0, 0, 0_u64);
        for (lane, words) in view.lanes.iter().enumerate().filter(|(_, words)| words.broken.load(Ordering::Relaxed) == 0) {
            let (was, client) = (words.owner.load(Ordering::Acquire), words.client.load(Ordering::Acquire));
            let (is_free, is_this_nodes) = (is_free(was), if client == 0 { was } else { client } >> 32 == source >> 32);
            // A lane that is kept for a client that may come back still counts as that client's.
            has += usize::from(is_this_nodes && (client != 0 || !is_free));
            free += usize::from(is_free && !(is_this_nodes && client != 0));
            former |= u64::from(is_free && is_this_nodes && client != 0) << lane;
        }
        let may_take = |lane: &usize| has < free || former & 1 << lane != 0;
        let ranked = (0..3).flat_map(|wanted| (0..view.lanes.len()).filter(move |lane| rank(lane) == wanted)).filter(may_take);
        let lane = ranked.filter(|lane| view.lanes[*lane].broken.load(Ordering::Relaxed) == 0).find(|lane| {
            let word = &view.lanes[*lane].owner;
            let was = word.load(Ordering::Acquire);
            is_free(was) && word.compare_exchange(was, owner, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        let words = &view.lanes[lane];
        if former & 1 << lane == 0 {
            // Threads that claim lanes at once may all have counted before any of them took one. Each counts again, as if
            // threads with lower lanes had come first, so that the node gets its share and no more.
            let (mut before, mut left) = (0, 0);
            for (other, words) in view.lanes.iter().enumerate().filter(|(_, words)| words.broken.load(Ordering::Relaxed) == 0) {
                let (was, client) = (words.owner.load(Ordering::Acquire), words.client.load(Ordering::Acquire));
                let is_own = other == lane || if on_behalf == 0 { was == owner && client == 0 } else { client == on_behalf };
                before += usize::from(is_own && other < lane);
                left += usize::from(!is_own && is_free(was) || is_own && other >= lane);
            }
            if before >= left {
                let _ = words.owner.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
                return None;
            }
        }
        let (mut at, mut sequence, latest) = words.published();
        let mut record = 1 - latest;
        // The former owner may have died between a message and its record. The header is checked first: a receiver advances the
        // scanned position before it takes the message.
        let place = Place { lane, at };
        let is_there =
            view.header(place).is_ok_and(|header| header.is_some()) || is_behind(at, words.scan.0.load(Ordering::Acquire));
        if is_there && let Ok(header) = view.extent(place) {
            (at, sequence) = (at.wrapping_add(header.lines()), sequence.wrapping_add(1));
            words.record(record, at, sequence);
            record = 1 - record;
        }
        if !is_its(words) {
            // In this order, so that no client takes another's count for its own.
            words.client.store(0, Ordering::Release);
            words.published.iter().for_each(|record| record[1].store(0, Ordering::Release));
            words.stream.store(stream, Ordering::Release);
            sequence = 0;
            words.client.store(on_behalf, Ordering::Release);
        }
        // Clears the remains of a message whose writer died.
        view.line(lane, at).0[0].store(0, Ordering::Relaxed);
        let read = words.read.load(Ordering::Acquire);
        view.root.busy.0.fetch_or(1 << lane, Ordering::AcqRel);
        Some(Self { lane, owner, source, at, sequence, record, read, slot: 0 })
    }

    /// The lane.
    pub fn lane(&self) -> usize {
        self.lane
    }

    /// How many messages the client has sent by the lane.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The position of the next message, among all packets that were ever in the lane.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// The packet up to which the lane can be written now.
    pub fn free_to(&self, view: &View<'_>) -> u64 {
        view.lanes[self.lane].read.load(Ordering::Acquire).wrapping_add(view.ring())
    }

    /// How many packets of the lane are free, without another look at the read position.
    fn room(&self, ring: u64) -> Result<u64, NoWrite> {
        ring.checked_sub(self.at.wrapping_sub(self.read)).ok_or(NoWrite::Broken)
    }

    /// Whether a message of `len` bytes has room now.
    pub fn has_room(&mut self, view: &View<'_>, len: usize) -> Result<(), NoWrite> {
        let ring = view.ring();
        // One more packet, since the next message's header is cleared before this message is visible.
        let need = lines(len) + 1;
        if need > ring / 2 {
            return Err(NoWrite::TooLong);
        }
        if view.root.ended.0.load(Ordering::Relaxed) != 0 {
            return Err(NoWrite::Ended);
        }
        if self.room(ring)? < need {
            let words = &view.lanes[self.lane];
            self.read = words.read.load(Ordering::Acquire);
            if words.broken.load(Ordering::Relaxed) != 0 {
                return Err(NoWrite::Broken);
            }
            if self.room(ring)? < need {
                return Err(NoWrite::Full);
            }
        }
        Ok(())
    }

    /// Writes a message of several parts, and wakes its thread if it sleeps. Writes nothing if there is no room.
    ///
    /// Cost: the cache line of the header packet, with up to 32 bytes of data, and three lines that are only read.
    pub fn try_write(&mut self, view: &View<'_>, thread: u32, tag: u64, parts: &[&[u8]]) -> Result<(), NoWrite> {
        let len = parts.iter().map(|part| part.len()).fold(0, usize::saturating_add);
        self.has_room(view, len)?;
        let mut at = 0;
        for part in parts {
            self.put(view, len, at, Payload::private(part));
            at += part.len();
        }
        self.publish(view, thread, tag, len);
        Ok(())
    }

    /// Stores a part of a message of `len` bytes before it is [published](Self::publish). There must be room for the message.
    pub fn put(&self, view: &View<'_>, len: usize, offset: usize, bytes: Payload<'_>) {
        assert!(bytes.len() <= len && offset <= len - bytes.len() && lines(len) < view.ring(), "a part outside its message");
        if len <= INLINE {
            put_words(&view.line(self.lane, self.at).0[4..], offset, bytes);
            return;
        }
        #[cfg(not(loom))]
        {
            let ring = view.ring() as usize * PACKET;
            let base = view.rings[self.lane * (ring / PACKET)..].as_ptr().cast::<u8>().cast_mut();
            let from = (self.at as usize).wrapping_add(1).wrapping_mul(PACKET).wrapping_add(offset) & (ring - 1);
            let one = bytes.len().min(ring - from);
            // SAFETY: both pieces lie in this lane's ring, in atomics; the packets are this writer's until it publishes them,
            // and a reader that breaks that rule copies raw bytes. A payload's bytes are readable, and no payload lies in a
            // ring that is written.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(from), one);
                std::ptr::copy_nonoverlapping(bytes.as_ptr().add(one), base, bytes.len() - one);
            }
        }
        #[cfg(loom)]
        let _ = PACKET;
    }

    /// Makes a message of `len` bytes visible, and wakes its thread if it sleeps. There must be [room](Self::has_room) for it.
    pub fn publish(&mut self, view: &View<'_>, thread: u32, tag: u64, len: usize) {
        let (words, next) = (&view.lanes[self.lane], self.at.wrapping_add(lines(len)));
        // Bytes of a former message must not be mistaken for a header.
        view.line(self.lane, next).0[0].store(0, Ordering::Relaxed);
        let line = &view.line(self.lane, self.at).0;
        line[1].store((thread as u64) << 32 | len as u64, Ordering::Relaxed);
        line[2].store(tag, Ordering::Relaxed);
        line[3].store(self.source, Ordering::Relaxed);
        // Release: a reader that sees the stamp sees the message.
        let order = if planted_bug("device-publish") { Ordering::Relaxed } else { Ordering::Release };
        line[0].store(stamp(self.at), order);
        fault_point!("device.published");
        // Before the slot is looked up: a thread that took the id since, and saw no stamp, is found by its name.
        light_barrier();
        (self.at, self.sequence) = (next, self.sequence.wrapping_add(1));
        words.record(self.record, self.at, self.sequence);
        self.record = 1 - self.record;
        let name = thread as u64 + 1;
        if view.root.names.0.get(self.slot).is_none_or(|found| found.load(Ordering::Relaxed) != name) {
            match view.slot_of(thread) {
                Some(slot) => self.slot = slot,
                // No thread has that id.
                None => return,
            }
        }
        if let Some(slot) = view.slots.get(self.slot) {
            slot.bell.ring(false);
        }
    }

    /// Sleeps until there may be room for a message, for `timeout` at most. May return early.
    pub fn sleep(&mut self, view: &View<'_>, len: usize, timeout: std::time::Duration) {
        let bell = &view.lanes[self.lane].room;
        let timeout = if bell.arm() { timeout } else { timeout.min(std::time::Duration::from_millis(1)) };
        if self.has_room(view, len) == Err(NoWrite::Full) {
            bell.sleep(timeout);
        }
        bell.disarm();
    }

    /// The client will not come back: its lane is like any other once it is [released](Self::release).
    pub fn forget_client(&self, view: &View<'_>) {
        let words = &view.lanes[self.lane];
        if words.owner.load(Ordering::Acquire) == self.owner {
            words.client.store(0, Ordering::Release);
        }
    }

    /// Gives the lane up, if this writer still has it. Messages in it are received nevertheless.
    pub fn release(&self, view: &View<'_>) {
        // The lane may be another's by now, if the node left before.
        let _ = view.lanes[self.lane].owner.compare_exchange(self.owner, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Stores up to 32 bytes in words.
fn put_words(words: &[AtomicU64], offset: usize, bytes: Payload<'_>) {
    if let (0, 8, Some(word)) = (offset, bytes.len(), bytes.u64_at(0)) {
        words[0].store(word, Ordering::Relaxed);
        return;
    }
    let mut all = [0_u8; INLINE];
    if offset > 0 {
        for (at, word) in words.iter().enumerate() {
            all[8 * at..8 * at + 8].copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
    }
    bytes.copy_to(&mut all[offset..]);
    for (at, word) in words.iter().enumerate() {
        word.store(u64::from_ne_bytes(all[8 * at..8 * at + 8].try_into().unwrap_or_default()), Ordering::Relaxed);
    }
}
