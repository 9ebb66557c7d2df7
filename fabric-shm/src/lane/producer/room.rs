//! Room for the next packet: what the consumer has read, where the next payload goes, and which lines it will fill.

use super::{Bulk, CONTINUED_MOST, OWN_AHEAD, Producer, SPARE};
use crate::lane::bulk::IN_BULK;
use crate::lane::ring::Filled;
use crate::lane::ways::{LEAST, SHORT, Ways};
use crate::lane::{Control, LaneMemory, MOVED, REPORTED, STREAMED, check_word, data_room, word};
use doorbell_fabric::copies::Copying;
use doorbell_fabric::sync::{Ordering, planted_bug};
use doorbell_fabric::{LinkDown, Push};

/// A lap may end early if at most so many bytes are unread, or a single message.
const LAG: u64 = SHORT / 4 * 3;

/// How often this end looks for the consumer's progress before a lap goes on: less than the copy of a few KiB takes. A consumer that
/// is there is about as fast as this end.
const PATIENCE: u32 = if cfg!(any(loom, miri)) { 1 } else { 64 };

/// The longest packet whose lines are offered to the consumer. Of a longer one, the consumer prefetches the next line while it
/// reads the first, and the offers would only cost time.
const OFFER_BYTES: usize = 1024;

/// The number of ticks between two packets from which the consumer is likely to be waiting for the next one.
const SELDOM_TICKS: u64 = 768;

/// The backlog that a consumer has not read yet, as far as its producer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outstanding {
    /// Packets.
    pub packets: u64,
    /// The number of packets that the lane has room for.
    pub places: u64,
    /// Bytes of payloads in a ring.
    pub bytes: u64,
    /// The size of that ring in bytes.
    pub room: u64,
}

impl<M: LaneMemory> Producer<M> {
    /// Whether a whole message of `len` bytes fits now, in packets of `packet` bytes. It errs towards false: if a message does
    /// not fit as a whole, not even its first packet should take room.
    pub fn has_room(&mut self, len: usize, packet: usize) -> bool {
        let packets = len.div_ceil(packet) as u64;
        let fits = |lane: &Self| {
            lane.tail - lane.head_seen + packets <= lane.memory.cell_count() as u64 - SPARE
                && match &lane.bulk {
                    // The last packet may be a short one.
                    Some(bulk) if bulk.taken && bulk.memory.takes(packet) => {
                        bulk.ring.fits(len, packet) && lane.data.fits(packet, packet)
                    }
                    _ => lane.data.fits(len, packet),
                }
        };
        fits(self) || (self.see_head().is_ok() && fits(self))
    }

    /// Lets longer packets find no room in this ring, until this end has [moved](Self::move_to). A packet of more than a quarter of a
    /// ring waits for the consumer each time that the ring begins anew.
    pub fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// Goes on in a larger ring, whose memory nobody uses: blanks it, and tells the consumer where to look from the next packet on.
    /// Both rings have the same control words. Returns false if the lane has no cell left for that.
    #[cold]
    pub fn move_to(&mut self, larger: M) -> bool {
        let cells = self.memory.cell_count() as u64;
        if self.tail - self.head_seen >= cells - 1 && !self.has_free_cell(cells - 1) {
            return false;
        }
        for cell in 0..larger.cell_count() {
            larger.cell_word(cell, word::CHECK).store(0, Ordering::Relaxed);
        }
        fault_point!("lane.moving");
        // Release: the larger ring is blank before the consumer looks there.
        let order = if planted_bug("moved") { Ordering::Relaxed } else { Ordering::Release };
        let cell = (self.tail & (cells - 1)) as usize;
        self.memory.cell_word(cell, word::CHECK).store(check_word(self.tail + 1, MOVED, 0), order);
        self.tail += 1;
        self.moved = self.tail;
        self.most = usize::MAX;
        self.data.go_on_in(larger.data_bytes());
        self.ways = Ways::of(self.data.bytes);
        self.memory = larger;
        fault_point!("lane.moved");
        true
    }

    /// Announces that this end waits for room, or no longer waits. Announce it, arm the bell, and try once more before sleeping.
    pub fn wait_for_room(&mut self, waits: bool) {
        if self.waiting != waits {
            self.waiting = waits;
            self.memory.control(Control::Waiting).store(waits as u64, Ordering::Relaxed);
        }
    }

    /// The backlog that the consumer has not read yet, as of its latest report: it reports at least once a quarter lap. Reads the shared
    /// words only where they can have changed.
    #[inline]
    pub fn outstanding(&mut self) -> Result<Outstanding, LinkDown> {
        let cells = self.memory.cell_count() as u64;
        let (packets, bytes) = (self.tail - self.head_seen, self.data.tail - self.data.head_seen);
        let bulk = matches!(&self.bulk, Some(Bulk { ring, taken: true, .. }) if ring.tail - ring.head_seen >= ring.bytes / 4);
        if packets >= cells / 4 || bytes >= self.data.bytes / 4 || bulk {
            self.see_head()?;
        }
        let mut all = Outstanding {
            // The packet that tells of the move is none of the sender's.
            packets: self.tail - self.head_seen - u64::from(self.moved > self.head_seen),
            places: cells,
            // Right after the move, both rings may have unread bytes.
            bytes: (self.data.tail - self.data.head_seen).min(self.data.bytes),
            room: self.data.bytes,
        };
        if let Some(Bulk { ring, taken: true, .. }) = &self.bulk {
            let bytes = ring.tail - ring.head_seen;
            // The fuller of the two rings determines how full the lane is.
            if bytes * all.room > all.bytes * ring.bytes {
                (all.bytes, all.room) = (bytes, ring.bytes);
            }
        }
        Ok(all)
    }

    /// Looks for the consumer's progress, and whether fewer than `most` packets are unread. The first ring is short, so this comes
    /// often.
    #[cold]
    #[inline(never)]
    pub(super) fn has_free_cell(&mut self, most: u64) -> bool {
        self.see_head().is_ok() && self.tail - self.head_seen < most
    }

    /// The place of the next `len` bytes, in the data ring or, if allowed, in the bulk ring.
    #[inline(always)]
    pub(super) fn reserve(&mut self, len: usize, may_bulk: bool) -> Result<u64, Push> {
        if len > self.most {
            return Err(Push::Full);
        }
        let place = |lane: &Self| match &lane.bulk {
            Some(bulk) if may_bulk && bulk.taken && bulk.memory.takes(len) => bulk.ring.place(len).map(|place| place | IN_BULK),
            _ => lane.data.place(len),
        };
        if self.ways.is_due(self.data.end(), len) && !(may_bulk && self.goes_to_bulk(len)) && self.ends_lap(len)? {
            return Ok(0);
        }
        if may_bulk && self.goes_to_bulk(len) && self.is_bulk_lap_due(self.bulk_end(), len) && self.ends_bulk_lap(len)? {
            return Ok(IN_BULK);
        }
        let found = match place(self) {
            Some(found) => found,
            None => {
                self.see_head().map_err(Push::Down)?;
                place(self).ok_or(Push::Full)?
            }
        };
        match (found, &mut self.bulk) {
            (0, _) => self.ways.began(),
            (IN_BULK, Some(bulk)) => bulk.due = bulk.memory.lap(),
            _ => {}
        }
        Ok(found)
    }

    /// A place as its cell states it.
    #[inline(always)]
    pub(super) fn told(&self, place: u64, len: usize) -> u64 {
        let in_bulk = place & IN_BULK != 0;
        let reported = self.ways.wants_report(in_bulk, place, len) || in_bulk && self.ends_soon(place & !IN_BULK, len);
        let streamed = in_bulk && self.ways.copying(len) == Copying::Streamed;
        place | if reported { REPORTED } else { 0 } | if streamed { STREAMED } else { 0 }
    }

    /// Whether the next payload may begin a lap of the bulk ring, if the consumer has read these `len` bytes by then. The next payload may be
    /// longer than this one.
    #[inline(always)]
    fn ends_soon(&self, place: u64, len: usize) -> bool {
        self.bulk.as_ref().is_some_and(|bulk| {
            let room = data_room(len);
            place + room + room.max(bulk.memory.lap() / 8) > bulk.due
        })
    }

    /// Where the bulk ring's lap ends so far.
    #[inline(always)]
    fn bulk_end(&self) -> u64 {
        self.bulk.as_ref().map_or(0, |bulk| bulk.ring.end())
    }

    /// Whether the next `len` bytes should begin a lap of the bulk ring, where this one has come to `end`.
    #[inline(always)]
    fn is_bulk_lap_due(&self, end: u64, len: usize) -> bool {
        self.bulk.as_ref().is_some_and(|bulk| end + data_room(len) > bulk.due)
    }

    /// Whether the bulk ring's lap ends here, and the next begins with `len` bytes.
    #[cold]
    #[inline(never)]
    fn ends_bulk_lap(&mut self, len: usize) -> Result<bool, Push> {
        self.see_head().map_err(Push::Down)?;
        let (total, rest) = self.coming;
        let Some(bulk) = &mut self.bulk else { return Ok(false) };
        let lap = bulk.memory.lap();
        // The consumer may still be reading this lap, if the message is longer than a lap.
        let unread = if rest > 0 && total > lap { lap + data_room(len) } else { 0 };
        let ends = bulk.ring.may_end_lap(len, unread);
        if ends {
            bulk.due = lap;
        } else if rest == 0 {
            // In a stream it is tried once in a lap, since each attempt costs a report.
            bulk.due = u64::MAX;
        }
        Ok(ends)
    }

    /// Whether the lap ends here, and the next begins with `len` bytes.
    #[cold]
    #[inline(never)]
    fn ends_lap(&mut self, len: usize) -> Result<bool, Push> {
        let may_end = |lane: &Self| lane.data.may_end_lap(len, LAG.max(len as u64));
        if !may_end(self) {
            self.see_head().map_err(Push::Down)?;
        }
        let is_patient = self.ways.is_patient(self.data.end(), len);
        let mut looks = if is_patient { PATIENCE } else { 0 };
        while looks > 0 && !may_end(self) {
            self.see_head().map_err(Push::Down)?;
            looks -= 1;
        }
        let ends = may_end(self);
        match ends {
            true => self.ways.began(),
            false if is_patient => self.ways.could_not_begin(self.data.end()),
            false => {}
        }
        Ok(ends)
    }

    /// Makes the processor own a cell that a later packet will fill, once the packet at position `tail` is published.
    #[inline(always)]
    pub(super) fn own_cell_ahead(&self, memory: &M, tail: u64) {
        let cells = memory.cell_count() as u64;
        // Not a cell that the consumer may still read: its line would have to come back.
        if tail + OWN_AHEAD - self.head_seen < cells - SPARE {
            memory.own_cell(((tail + OWN_AHEAD) & (cells - 1)) as usize);
        }
    }

    /// Makes the processor own the lines that a packet of `len` bytes would fill next, if that pays. They come while the caller prepares it.
    #[inline]
    pub fn own_ahead(&self, len: usize) {
        if !self.is_worth_owning(len) {
            return;
        }
        let end = self.data.end();
        if !self.ways.is_due(end, len) {
            self.own_at(end, len);
        } else if end >= 2 * len as u64 {
            // The consumer has probably read the beginning of this lap.
            self.own_at(0, len);
        }
    }

    /// Makes the processor own the lines of `len` bytes that the data ring has from `offset` on, unless the consumer may still have to read
    /// what the lap before left there.
    #[inline(always)]
    pub(super) fn own_at(&self, offset: u64, len: usize) {
        if offset + len as u64 <= self.data.free() {
            self.memory.own_data(offset as usize, len.min(self.ways.own_ahead_most()));
        }
    }

    /// Whether the consumer is likely to wait for these lines. In a stream it lags behind, and offering them would only cost
    /// time.
    #[inline(always)]
    pub(super) fn is_worth_offering(&mut self, len: usize) -> bool {
        if !(64 + 1..=OFFER_BYTES).contains(&len) {
            return len <= 64 && self.can_offer;
        }
        if !self.can_offer {
            return false;
        }
        let now = doorbell_fabric::hint::ticks();
        now.wrapping_sub(std::mem::replace(&mut self.pushed_at, now)) > SELDOM_TICKS
    }

    /// Whether [`own_ahead`](Self::own_ahead) pays for such packets. After a reply of less than 2 KiB, the consumer fetches the lines of the
    /// reply at once. Requests for further lines would delay those.
    #[inline(always)]
    pub(in crate::lane) fn is_worth_owning(&self, len: usize) -> bool {
        len > CONTINUED_MOST
            && !(self.is_reply && len < LEAST)
            && self.ways.copying(len) != Copying::Streamed
            && !self.goes_to_bulk(len)
    }

    /// Whether a payload of this length goes to the bulk ring.
    #[inline(always)]
    pub(super) fn goes_to_bulk(&self, len: usize) -> bool {
        self.bulk.as_ref().is_some_and(|bulk| bulk.taken && bulk.memory.takes(len))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn compare_ways(&mut self, len: usize) {
        let mut backlog = 0;
        // A wrong position is found again by the next packet that needs room.
        if self.ways.needs_backlog(len) && self.see_head().is_ok() {
            let bulk = self.bulk.as_ref().filter(|bulk| bulk.taken).map(|bulk| bulk.ring);
            let rings = [Some(self.data), bulk].into_iter().flatten();
            // The consumer reports each message of a comparison. It may still read the last one and the one before.
            let is_full = |ring: &Filled| ring.tail - ring.head_seen > 2 * data_room(len);
            if self.tail - self.head_seen > self.memory.cell_count() as u64 / 2 || rings.clone().any(|ring| is_full(&ring)) {
                backlog = rings.map(|ring| ring.tail - ring.head_seen).sum();
            }
        }
        self.ways.compare(len, backlog, doorbell_fabric::hint::ticks());
    }

    /// Reads the consumer's position. Acquire: the consumer's reads of freed places happen before our next writes there.
    #[cold]
    pub(super) fn see_head(&mut self) -> Result<(), LinkDown> {
        let acquire = if planted_bug("head") { Ordering::Relaxed } else { Ordering::Acquire };
        let head = self.memory.control(Control::Head).load(acquire);
        let data_head = self.memory.control(Control::DataHead).load(acquire);
        // Compare as a distance, as in the data rings.
        if head.wrapping_sub(self.head_seen) > self.tail - self.head_seen {
            return Err(LinkDown::Damaged);
        }
        self.head_seen = head;
        self.data.see(data_head)?;
        if let Some(bulk) = &mut self.bulk {
            if bulk.taken {
                bulk.ring.see(self.memory.control(Control::BulkHead).load(acquire))?;
            } else {
                bulk.taken = self.memory.control(Control::BulkTaken).load(acquire) == bulk.offer;
            }
        }
        Ok(())
    }
}
