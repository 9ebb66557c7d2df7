//! The writing end of a lane.

mod room;
mod series;

pub use room::Outstanding;
pub use series::{Chunks, Series};

use super::bulk::{BulkMemory, IN_BULK};
use super::bundle::MESSAGE_MOST as SERIES_BYTES;
use super::conversation;
use super::pieces::Pieces;
use super::ring::Filled;
use super::run::{CONTINUED_AT, CONTINUED_MOST, Run};
use super::ways::Ways;
use super::{
    CONTINUED, Control, INLINE_BYTES, LaneMemory, OPENED, PIECES_LEAST, STAMP_EVERY, STAMP_NS, STAMPED, check_word, word,
};
use doorbell_fabric::copies::Copying;
use doorbell_fabric::sync::{Ordering, planted_bug};
use doorbell_fabric::{PacketHead, PacketKind, Push};

#[cfg(not(loom))]
const _: () = assert!(SERIES_BYTES < PIECES_LEAST && SERIES_BYTES < super::ways::LEAST && SERIES_BYTES < super::bulk::BULK_LEAST);

/// How many cells ahead a producer owns a cell, where payloads lie in cells. So many lines are then on their way at once. If it owned only the
/// next one, its stores would wait for that line in each message. In a ring of 16 cells it seldom knows that such a cell is free. Where
/// payloads lie in the data ring, the producer owns no cells: far apart that was slower.
const OWN_AHEAD: u64 = 8;

/// The cells that stay free: one for giving up a message, and the one that the consumer has reported but not left, because messages may be
/// appended there.
const SPARE: u64 = 2;

/// The greatest length that a cell's first word can state, in whole lines.
const LENGTH_MAX: usize = (1 << 24) - 64;

/// The only writer of a lane. Its position is private: the shared memory holds no copy that could be forged.
pub struct Producer<M> {
    memory: M,
    /// Position of the next packet.
    tail: u64,
    /// The consumer's position when last read.
    head_seen: u64,
    data: Filled,
    ways: Ways,
    bulk: Option<Bulk>,
    /// The longest packet that this ring takes.
    most: usize,
    /// The position behind the packet by which this end moved to the larger ring, or 0.
    moved: u64,
    waiting: bool,
    /// The length of the message that goes in several packets, and the bytes that are still to come.
    coming: (u64, u64),
    /// The time, in ticks, of the last push of a packet that might be offered.
    pushed_at: u64,
    /// Whether the processor has the instruction to offer lines.
    can_offer: bool,
    /// The run that the next message may belong to.
    run: Run,
    /// The number of cells that the thread of the last message had left when it sent it.
    cells_left: u32,
    /// The last attempt of [`push_whole`](Self::push_whole) was for a reply.
    is_reply: bool,
    /// The position from which on a packet may get a time stamp, and the time of the last one, in nanoseconds.
    stamp_from: u64,
    stamped_at: u64,
}

/// A ring that was offered to the consumer.
struct Bulk {
    memory: BulkMemory,
    ring: Filled,
    offer: u64,
    /// The consumer has mapped it.
    taken: bool,
    /// The offset behind which this lap may end early, or `u64::MAX` after a vain attempt in this lap.
    due: u64,
}

/// The most bytes that one packet carries: a quarter of the data ring. Then a packet, the waste at the ring's end, and the bytes
/// that the consumer has read but not yet freed always fit together.
#[inline]
pub fn packet_bytes(data_bytes: usize) -> usize {
    (data_bytes / 4).min(LENGTH_MAX)
}

impl<M: LaneMemory> Producer<M> {
    /// Claims a free lane for an incarnation. `None` while the lane still belongs to another: the consumer has not yet read
    /// everything that the former producer left behind.
    pub fn claim(memory: M, incarnation: u32) -> Option<Self> {
        let owner = memory.control(Control::Owner);
        // Acquire: pairs with the release of `Consumer::reset`. This producer's writes must not overtake the blanking of the
        // cells.
        owner.compare_exchange(0, incarnation as u64, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        fault_point!("lane.claimed");
        let data = Filled::new(memory.data_bytes());
        Some(Self {
            memory,
            tail: 0,
            head_seen: 0,
            ways: Ways::of(data.bytes),
            data,
            bulk: None,
            most: usize::MAX,
            moved: 0,
            waiting: false,
            coming: (0, 0),
            pushed_at: 0,
            can_offer: doorbell_fabric::hint::can_offer(),
            run: Run::NONE,
            cells_left: conversation::cells_left(),
            is_reply: false,
            stamp_from: if STAMPED { 0 } else { u64::MAX },
            stamped_at: 0,
        })
    }

    /// Uses these ways, which may compare none.
    #[cfg(all(test, not(loom)))]
    pub(super) fn set_ways(&mut self, ways: Ways) {
        self.ways = ways;
    }

    /// Lets the next packet have a time stamp.
    #[cfg(all(test, not(loom)))]
    pub(super) fn forget_stamp(&mut self) {
        (self.stamp_from, self.stamped_at) = (if STAMPED { self.tail } else { u64::MAX }, 0);
    }

    /// Whether this thread's next message would be no reply (`conversation.rs`): it probably follows others in a stream.
    pub fn is_stream(&self) -> bool {
        conversation::cells_left() == self.cells_left
    }

    /// Lets the next message be no reply, although this thread may also be the consumer.
    #[cfg(all(test, not(loom)))]
    pub(super) fn reply_to_nothing(&mut self) {
        self.cells_left = conversation::cells_left();
    }

    /// Lets no packet have a time stamp.
    #[cfg(all(test, not(loom)))]
    pub(super) fn stamp_not(&mut self) {
        self.stamp_from = u64::MAX;
    }

    /// Bytes of the data ring.
    pub fn data_bytes(&self) -> usize {
        self.memory.data_bytes()
    }

    /// Whether the consumer said that it accepts no more messages for now.
    #[inline]
    pub fn refused(&self) -> bool {
        self.memory.control(Control::Refused).load(Ordering::Relaxed) != 0
    }

    /// Packets pushed so far.
    #[inline]
    pub fn pushed(&self) -> u64 {
        self.tail
    }

    /// Writes one packet and publishes it.
    ///
    /// # Safety
    /// `len` bytes are readable at `bytes`, and `len` is at most 16 MiB less a cache line (`LENGTH_MAX`).
    #[inline]
    pub unsafe fn push(&mut self, head: &PacketHead, bytes: *const u8, len: usize) -> Push {
        let cells = self.memory.cell_count() as u64;
        // One cell is reserved for giving up a message that was begun.
        let room = if head.kind == PacketKind::GivenUp { cells - 1 } else { cells - SPARE };
        if self.tail - self.head_seen >= room {
            match self.see_head() {
                Ok(()) if self.tail - self.head_seen < room => {}
                Ok(()) => return Push::Full,
                Err(down) => return Push::Down(down),
            }
        }
        let cell = (self.tail & (cells - 1)) as usize;
        let is_stamped = self.may_be_stamped() && self.is_stamp_due();
        let written = if self.has_pieces(len) && head.kind == PacketKind::Whole && !is_stamped {
            // SAFETY: `len` bytes are readable (caller).
            unsafe { self.write_in_pieces(cell, head.tag, head.sequence, bytes, len) }
        } else {
            // SAFETY: as above.
            unsafe { self.write(cell, bytes, len, head.kind) }
        };
        if let Err(push) = written {
            return push;
        }
        if head.kind.has_total() {
            self.memory.cell_word(cell, word::TOTAL).store(head.total, Ordering::Relaxed);
        }
        let stamp = if is_stamped { self.stamp() } else { 0 };
        publish(&self.memory, self.tail, stamp, head.kind, head.tag, head.sequence, len);
        if len <= INLINE_BYTES && !head.kind.has_total() {
            self.own_cell_ahead(&self.memory, self.tail);
        }
        self.tail += 1;
        match head.kind {
            PacketKind::Whole => self.count(len),
            PacketKind::First => {
                self.coming = (head.total, head.total.saturating_sub(len as u64));
                self.cells_left = conversation::cells_left();
            }
            PacketKind::Next => {
                let (total, rest) = self.coming;
                self.coming.1 = rest.saturating_sub(len as u64);
                // With its last packet, since the time counts from one message to the next.
                if rest == len as u64 {
                    self.count(total as usize);
                }
            }
            PacketKind::GivenUp => self.coming = (0, 0),
            _ => {}
        }
        Push::Done
    }
}

impl<M: LaneMemory + Copy> Producer<M> {
    /// Pushes a whole message: [`push`](Self::push) without the steps that only other packets need. Returns false if there is no
    /// known room, or the packet gets a time stamp: use `push` then.
    ///
    /// # Safety
    /// The same as for [`push`](Self::push).
    #[inline(always)]
    pub unsafe fn push_whole(&mut self, tag: u64, sequence: u32, bytes: *const u8, len: usize) -> bool {
        // SAFETY: caller.
        unsafe { self.push_next(tag, sequence, bytes, len) || self.push_packet(tag, sequence, bytes, len) }
    }

    /// Pushes the next message of the run. Returns false if the message does not belong to it, or needs more steps.
    ///
    /// # Safety
    /// The same as for [`push`](Self::push).
    #[inline(always)]
    unsafe fn push_next(&mut self, tag: u64, sequence: u32, bytes: *const u8, len: usize) -> bool {
        // Copies, which the compiler need not read again after each store to the lane.
        let (memory, tail) = (self.memory, self.tail);
        let mask = memory.cell_count() as u64 - 1;
        let left = conversation::count_message();
        let is_reply = left != self.cells_left;
        self.is_reply = is_reply;
        if is_reply {
            self.cells_left = left;
        }
        if !self.run.takes(tail, tag, sequence) {
            return false;
        }
        if !is_reply
            && let Some(at) = self.run.room()
            && len <= Run::most(at)
        {
            let cell = (tail.wrapping_sub(1) & mask) as usize;
            // SAFETY: `len` bytes are readable (caller); they have room.
            unsafe { write_words(&memory, cell, at + 1, bytes, len) };
            reveal(&memory, cell, at, Run::check(tail, len));
            self.run.append(at + 1, len);
            return true;
        }
        if self.may_be_stamped() || tail - self.head_seen >= mask + 1 - SPARE {
            return false;
        }
        if len > CONTINUED_MOST {
            // SAFETY: `len` bytes are readable (caller).
            return len <= SERIES_BYTES && unsafe { self.push_detached(tag, sequence, bytes, len) };
        }
        let cell = (tail & mask) as usize;
        // SAFETY: `len` bytes are readable (caller); they have room.
        unsafe { write_words(&memory, cell, CONTINUED_AT, bytes, len) };
        reveal(&memory, cell, word::CHECK, check_word(tail + 1, CONTINUED, len));
        self.own_cell_ahead(&memory, tail);
        self.tail = tail + 1;
        self.run = Run::behind(tail + 1, tag, sequence, CONTINUED_AT, len);
        true
    }

    /// Pushes a message of the run whose payload does not fit into its cell. There is a cell for it. Returns false if the payload has no known
    /// room behind the last one in the data ring.
    ///
    /// # Safety
    /// `len` bytes are readable at `bytes`.
    #[inline(always)]
    unsafe fn push_detached(&mut self, tag: u64, sequence: u32, bytes: *const u8, len: usize) -> bool {
        let (memory, tail, end) = (self.memory, self.tail, self.data.end());
        // A lap's first payload has a packet that tells its place.
        if end == 0 || len > self.most || self.data.place(len) != Some(end) {
            return false;
        }
        // SAFETY: caller; inside the ring and not yet given to the consumer (place).
        unsafe { memory.write_data(end as usize, bytes, len, Copying::Library) };
        self.data.fill(end, len);
        if self.is_worth_offering(len) {
            memory.offer_data(end as usize, len);
        }
        fault_point!("lane.written");
        reveal(&memory, (tail & (memory.cell_count() as u64 - 1)) as usize, word::CHECK, check_word(tail + 1, CONTINUED, len));
        self.tail = tail + 1;
        self.run = Run::behind_data(tail + 1, tag, sequence);
        true
    }

    /// Pushes a whole message in a packet of its own, which may begin a run. Returns false as [`push_whole`](Self::push_whole) does.
    ///
    /// # Safety
    /// The same as for [`push`](Self::push).
    #[inline(never)]
    unsafe fn push_packet(&mut self, tag: u64, sequence: u32, bytes: *const u8, len: usize) -> bool {
        let (memory, tail) = (self.memory, self.tail);
        let mask = memory.cell_count() as u64 - 1;
        let room = mask + 1 - SPARE;
        if (self.may_be_stamped() && self.is_stamp_due()) || (tail - self.head_seen >= room && !self.has_free_cell(room)) {
            return false;
        }
        let cell = (tail & mask) as usize;
        if len <= INLINE_BYTES {
            // SAFETY: `len` bytes are readable (caller).
            unsafe { write_words(&memory, cell, word::PAYLOAD, bytes, len) };
            self.run = Run::behind(tail + 1, tag, sequence, word::PAYLOAD, len);
        } else if len <= SERIES_BYTES {
            // SAFETY: as above.
            let Some(place) = (unsafe { self.write_short(bytes, len) }) else { return false };
            if self.is_worth_offering(len) {
                memory.offer_data(place as usize, len);
            }
            memory.cell_word(cell, word::PLACE).store(place, Ordering::Relaxed);
            self.run = Run::behind_data(tail + 1, tag, sequence);
        } else if self.has_pieces(len) {
            // SAFETY: as above.
            if unsafe { self.write_in_pieces(cell, tag, sequence, bytes, len) }.is_err() {
                return false;
            }
        // SAFETY: as above.
        } else if unsafe { self.write(cell, bytes, len, PacketKind::Whole) }.is_err() {
            return false;
        }
        publish(&memory, tail, 0, PacketKind::Whole, tag, sequence, len);
        if len <= INLINE_BYTES {
            self.own_cell_ahead(&memory, tail);
        }
        self.tail = tail + 1;
        self.count(len);
        true
    }
}

impl<M: LaneMemory> Producer<M> {
    /// Writes a payload of at most [`SERIES_BYTES`] into the data ring, and returns its place. Such a payload ends no lap, has no pieces,
    /// and needs no other ring. `None`: there is no known room.
    ///
    /// # Safety
    /// `len` bytes are readable at `bytes`.
    #[inline(always)]
    unsafe fn write_short(&mut self, bytes: *const u8, len: usize) -> Option<u64> {
        let place = self.data.place(len).filter(|_| len <= self.most)?;
        // SAFETY: caller; inside the ring and not yet given to the consumer (place).
        unsafe { self.memory.write_data(place as usize, bytes, len, Copying::Library) };
        self.data.fill(place, len);
        if place == 0 {
            self.ways.began();
        }
        Some(place)
    }

    /// Writes a payload into a cell, or into a ring and its place into the cell.
    ///
    /// # Safety
    /// `len` bytes are readable at `bytes`, and `len` is at most 16 MiB less a cache line (`LENGTH_MAX`).
    #[inline(always)]
    unsafe fn write(&mut self, cell: usize, bytes: *const u8, len: usize, kind: PacketKind) -> Result<(), Push> {
        if len <= INLINE_BYTES && !kind.has_total() {
            // SAFETY: `len` bytes are readable (caller).
            unsafe { write_words(&self.memory, cell, word::PAYLOAD, bytes, len) };
            return Ok(());
        }
        // Chunks of a transfer should keep the target busy until it sees the next RTS. A long ring of chunks would delay that
        // RTS, and more chunks would come meanwhile. So chunks use the data ring only.
        let (place, way) = (self.reserve(len, kind != PacketKind::Chunk)?, self.ways.copying(len));
        if place & IN_BULK != 0 {
            if let Some(bulk) = &mut self.bulk {
                let place = place & !IN_BULK;
                // SAFETY: readable (caller); inside the ring and not yet given to the consumer (reserve).
                unsafe { store(&self.memory, Some(bulk.memory), place as usize, bytes, len, way) };
                bulk.ring.fill(place, len);
            }
        } else {
            // SAFETY: as above.
            unsafe { store(&self.memory, None, place as usize, bytes, len, way) };
            if self.is_worth_offering(len) {
                self.memory.offer_data(place as usize, len);
            }
            self.data.fill(place, len);
        }
        let place = self.told(place, len);
        self.memory.cell_word(cell, word::PLACE).store(place, Ordering::Relaxed);
        Ok(())
    }

    /// Writes the long payload of a whole message, and opens its packet after the first piece. Not for one that gets a time stamp: the
    /// consumer takes that one by a longer way.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    #[inline(never)]
    unsafe fn write_in_pieces(&mut self, cell: usize, tag: u64, sequence: u32, bytes: *const u8, len: usize) -> Result<(), Push> {
        let reserved = self.reserve(len, true)?;
        let told = self.told(reserved, len);
        let (place, bulk) = (reserved & !IN_BULK, self.bulk.as_mut().filter(|_| reserved & IN_BULK != 0));
        let (pieces, way) = (Pieces::of(len, self.ways.piece_bytes(len)), self.ways.copying(len));
        let write = |number: usize| {
            let (start, len) = (pieces.start(number), pieces.len_of(number));
            let ring = bulk.as_ref().map(|bulk| bulk.memory);
            // SAFETY: readable (caller); inside the ring, and not yet given to the consumer (reserve).
            unsafe { store(&self.memory, ring, place as usize + start, bytes.add(start), len, way) };
        };
        // Before the words of the cell, whose line the consumer polls.
        write(0);
        let word = |index| self.memory.cell_word(cell, index);
        word(word::TAG).store(tag, Ordering::Relaxed);
        word(word::SEQUENCE).store(sequence.into(), Ordering::Relaxed);
        word(word::PLACE).store(told, Ordering::Relaxed);
        word(word::PIECE).store(pieces.bytes() as u64, Ordering::Relaxed);
        word(word::WRITTEN).store(1, Ordering::Relaxed);
        // Release: a consumer that sees this word sees the rest of the cell and the first piece.
        word(word::CHECK).store(check_word(self.tail + 1, OPENED, len), Ordering::Release);
        for number in 1..pieces.count() {
            if number + 1 == pieces.count() {
                fault_point!("lane.opened");
            }
            write(number);
            if number + 1 < pieces.count() {
                // WRITTEN: release, so that a consumer that sees this number sees the bytes.
                let order = if planted_bug("written") { Ordering::Relaxed } else { Ordering::Release };
                word(word::WRITTEN).store(number as u64 + 1, order);
            }
        }
        match bulk {
            Some(bulk) => bulk.ring.fill(place, len),
            None => self.data.fill(place, len),
        }
        Ok(())
    }

    /// Whether the next packet may get a time stamp.
    #[inline(always)]
    fn may_be_stamped(&self) -> bool {
        self.tail >= self.stamp_from
    }

    /// Whether a packet that may get a time stamp gets one: the last stamp is old enough.
    #[cold]
    #[inline(never)]
    fn is_stamp_due(&mut self) -> bool {
        let is_due = crate::clock::now_ns() - self.stamped_at >= STAMP_NS;
        if !is_due {
            self.stamp_from = self.tail + STAMP_EVERY;
        }
        is_due
    }

    /// The time stamp of the next packet: never zero, which means no stamp.
    #[cold]
    #[inline(never)]
    fn stamp(&mut self) -> u32 {
        (self.stamp_from, self.stamped_at) = (self.tail + STAMP_EVERY, crate::clock::now_ns());
        (self.stamped_at as u32).max(1)
    }

    /// Counts a message for the choice of a way.
    #[inline(always)]
    fn count(&mut self, len: usize) {
        if self.ways.count(len) {
            self.compare_ways(len);
        }
    }

    /// Whether a payload of this length is written in pieces.
    #[inline(always)]
    fn has_pieces(&self, len: usize) -> bool {
        len >= PIECES_LEAST && self.ways.piece_bytes(len) < len
    }

    /// Offers a ring of this process, the region with this number, for long payloads. Once for each lane.
    ///
    /// # Safety
    /// The memory stays mapped, and writable, as long as this producer lives.
    #[cold]
    pub unsafe fn offer_bulk(&mut self, memory: BulkMemory, number: u32) {
        let offer = u64::from(number) + 1;
        self.bulk = Some(Bulk { memory, ring: Filled::new(memory.len()), offer, taken: false, due: memory.lap() });
        // Release: the region exists before the offer.
        self.memory.control(Control::Bulk).store(offer, Ordering::Release);
    }
}

/// Publishes the packet at position `tail`, whose payload is written.
#[inline(always)]
fn publish<M: LaneMemory>(memory: &M, tail: u64, stamp: u32, kind: PacketKind, tag: u64, sequence: u32, len: usize) {
    let mask = memory.cell_count() as u64 - 1;
    describe(memory, (tail & mask) as usize, stamp, tag, sequence);
    reveal(memory, (tail & mask) as usize, word::CHECK, check_word(tail + 1, kind as u8, len));
}

/// Writes what the consumer has to know of a packet beside its payload.
#[inline(always)]
fn describe<M: LaneMemory>(memory: &M, cell: usize, stamp: u32, tag: u64, sequence: u32) {
    memory.cell_word(cell, word::TAG).store(tag, Ordering::Relaxed);
    memory.cell_word(cell, word::SEQUENCE).store(u64::from(sequence) | u64::from(stamp) << 32, Ordering::Relaxed);
    fault_point!("lane.written");
}

/// Writes the first word of a packet or of an appended message. This publishes it, and the packets behind it whose first words are written.
#[inline(always)]
fn reveal<M: LaneMemory>(memory: &M, cell: usize, at: usize, check: u64) {
    // PUBLISH: release, so that a consumer that sees this word sees the rest of the cell and the data.
    let order = if planted_bug("publish") { Ordering::Relaxed } else { Ordering::Release };
    memory.cell_word(cell, at).store(check, order);
    fault_point!("lane.published");
}

/// Copies into the bulk ring, if given, or the data ring.
///
/// # Safety
/// `len` bytes are readable at `bytes`. Those at `place`, the start of a line, lie inside the ring, and no other thread accesses them.
#[inline(always)]
unsafe fn store<M: LaneMemory>(memory: &M, bulk: Option<BulkMemory>, place: usize, bytes: *const u8, len: usize, way: Copying) {
    // SAFETY: caller; a bulk ring begins with a line.
    unsafe {
        match bulk {
            Some(bulk) => {
                let way = way.with(bulk.len().saturating_sub(place + len));
                doorbell_fabric::copies::copy_by(way, bytes, bulk.at(place as u64), len);
            }
            None => memory.write_data(place, bytes, len, way.with(memory.data_bytes().saturating_sub(place + len))),
        }
    }
}

/// Writes whole words, then the rest without reading beyond the end of the source, then zero where a message may be appended.
///
/// # Safety
/// `len` bytes are readable at `bytes`, and the cell has room for them from the word `at` on.
#[inline(always)]
unsafe fn write_words<M: LaneMemory>(memory: &M, cell: usize, at: usize, bytes: *const u8, len: usize) {
    let store = |index: usize, value: u64| memory.cell_word(cell, at + index).store(value, Ordering::Relaxed);
    if let Some(blank) = Run::blank(at, len) {
        memory.cell_word(cell, blank).store(0, Ordering::Relaxed);
    }
    if len == 8 {
        // The most common length by far, and a loop takes longer than the rest.
        // SAFETY: `len` bytes are readable.
        return store(0, unsafe { bytes.cast::<u64>().read_unaligned() });
    }
    let words = len / 8;
    for index in 0..words {
        // SAFETY: `index * 8 + 8 <= len`.
        store(index, unsafe { bytes.add(index * 8).cast::<u64>().read_unaligned() });
    }
    let rest = len % 8;
    if rest != 0 {
        // SAFETY: the last `rest` of `len` bytes.
        store(words, unsafe { last_word(bytes, len, rest) });
    }
}

/// The last `rest` of `len` bytes, one to seven, and zeros behind them. It loads words that the source has there, because a copy of so few
/// bytes would be a call.
///
/// # Safety
/// `len` bytes are readable at `bytes`, and `rest` is `len` modulo eight, not zero.
#[inline(always)]
unsafe fn last_word(bytes: *const u8, len: usize, rest: usize) -> u64 {
    // SAFETY: each load is of bytes before `len` (caller).
    let word = unsafe {
        if len > 8 {
            u64::from_le(bytes.add(len - 8).cast::<u64>().read_unaligned()) >> (64 - rest * 8)
        } else if len >= 4 {
            let half = |at: usize| u64::from(u32::from_le(bytes.add(at).cast::<u32>().read_unaligned())) << (at * 8);
            half(0) | half(len - 4)
        } else {
            let byte = |at: usize| u64::from(*bytes.add(at)) << (at * 8);
            byte(0) | byte(len / 2) | byte(len - 1)
        }
    };
    word.to_le()
}
