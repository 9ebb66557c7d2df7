//! The writing end of a lane.

use super::bulk::{BulkMemory, Filled, IN_BULK};
use super::{Control, INLINE_BYTES, LaneMemory, STAMP_EVERY, STAMPED, check_word, data_room, stamp, word};
use crate::copies::Distance;
use doorbell_fabric::sync::{Ordering, planted_bug};
use doorbell_fabric::{LinkDown, PacketHead, PacketKind, Push};
use std::time::Instant;

/// The longest packet whose lines are worth owning ahead. The requests for a longer one delay the reply.
const OWN_AHEAD_BYTES: usize = 2048;

/// The longest packet whose lines are offered to the consumer. Of a longer one, the consumer prefetches the next line while it
/// reads the first, and the offers would only cost time.
const OFFER_BYTES: usize = 1024;

/// The number of ticks between two packets from which the consumer is likely to be waiting for the next one.
const SELDOM_TICKS: u64 = 768;

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
    bulk: Option<Bulk>,
    /// The distance of the consumer's processor when last measured.
    distance: Distance,
    waiting: bool,
    /// The time, in ticks, of the last push of a packet that might be offered.
    pushed_at: u64,
}

/// The backlog that a consumer has not read yet, as far as its producer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outstanding {
    /// Packets.
    pub packets: u64,
    /// The number of packets that the lane has room for.
    pub places: u64,
    /// Bytes of payloads in a ring, including the unused bytes at its end.
    pub bytes: u64,
    /// The size of that ring in bytes.
    pub room: u64,
}

/// A ring that was offered to the consumer.
struct Bulk {
    memory: BulkMemory,
    ring: Filled,
    offer: u64,
    /// The consumer has mapped it.
    taken: bool,
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
            data,
            bulk: None,
            distance: Distance::default(),
            waiting: false,
            pushed_at: 0,
        })
    }

    /// The most bytes that one packet carries: a quarter of the data ring. Then a packet, the waste at the ring's end, and the
    /// bytes that the consumer has read but not yet freed always fit together.
    #[inline]
    pub fn packet_bytes(&self) -> usize {
        (self.memory.data_bytes() / 4).min(LENGTH_MAX)
    }

    /// Bytes of the data ring.
    pub fn data_bytes(&self) -> usize {
        self.memory.data_bytes()
    }

    /// Whether a whole message of `len` bytes fits now, in packets of `packet` bytes. It errs towards false: if a message does
    /// not fit as a whole, not even its first packet should take room.
    pub fn has_room(&mut self, len: usize, packet: usize) -> bool {
        let packets = len.div_ceil(packet) as u64;
        let fits = |lane: &Self| {
            lane.tail - lane.head_seen + packets < lane.memory.cell_count() as u64
                && match &lane.bulk {
                    // The last packet may be a short one.
                    Some(bulk) if bulk.taken && bulk.ring.takes(packet) => {
                        bulk.ring.fits(len, packet) && lane.data.fits(packet, packet)
                    }
                    _ => lane.data.fits(len, packet),
                }
        };
        fits(self) || (self.look_at_head().is_ok() && fits(self))
    }

    /// Whether the consumer said that it accepts no more messages for now.
    #[inline]
    pub fn refused(&self) -> bool {
        self.memory.control(Control::Refused).load(Ordering::Relaxed) != 0
    }

    /// Announces that this end waits for room, or no longer waits. Announce it, arm the bell, and try once more before sleeping.
    pub fn wait_for_room(&mut self, waits: bool) {
        if self.waiting != waits {
            self.waiting = waits;
            self.memory.control(Control::Waiting).store(waits as u64, Ordering::Relaxed);
        }
    }

    /// The backlog that the consumer has not read yet, as of its latest report: it reports once a quarter lap. Reads the shared
    /// words only where they can have changed.
    #[inline]
    pub fn outstanding(&mut self) -> Result<Outstanding, LinkDown> {
        let cells = self.memory.cell_count() as u64;
        let (packets, bytes) = (self.tail - self.head_seen, self.data.tail - self.data.head_seen);
        let bulk = matches!(&self.bulk, Some(Bulk { ring, taken: true, .. }) if ring.tail - ring.head_seen >= ring.used / 4);
        if packets >= cells / 4 || bytes >= self.data.bytes / 4 || bulk {
            self.see_head()?;
        }
        let mut all = Outstanding {
            packets: self.tail - self.head_seen,
            places: cells,
            bytes: self.data.tail - self.data.head_seen,
            room: self.data.bytes,
        };
        if let Some(Bulk { ring, taken: true, .. }) = &self.bulk {
            let bytes = ring.tail - ring.head_seen;
            // The fuller of the two rings determines how full the lane is.
            if bytes * all.room > all.bytes * ring.used {
                (all.bytes, all.room) = (bytes, ring.used);
            }
        }
        Ok(all)
    }

    /// Packets pushed so far.
    #[inline]
    pub fn pushed(&self) -> u64 {
        self.tail
    }

    /// Writes one packet and publishes it with one release store.
    ///
    /// # Safety
    /// `len` bytes are readable at `bytes`, and `len` is at most `packet_bytes()`.
    #[inline]
    pub unsafe fn push(&mut self, head: &PacketHead, bytes: *const u8, len: usize) -> Push {
        let cells = self.memory.cell_count() as u64;
        // One cell is reserved for giving up a message that was begun.
        let room = if head.kind == PacketKind::GivenUp { cells } else { cells - 1 };
        if self.tail - self.head_seen >= room {
            match self.look_at_head() {
                Ok(()) if self.tail - self.head_seen < room => {}
                Ok(()) => return Push::Full,
                Err(down) => return Push::Down(down),
            }
        }
        let cell = (self.tail & (cells - 1)) as usize;
        // SAFETY: `len` bytes are readable (caller).
        if let Err(push) = unsafe { self.write(cell, bytes, len, head.kind) } {
            return push;
        }
        if head.kind.has_total() {
            self.memory.cell_word(cell, word::TOTAL).store(head.total, Ordering::Relaxed);
        }
        let stamp = if is_stamped(self.tail) { stamp() } else { 0 };
        self.tail = publish(&self.memory, self.tail, stamp, head.kind, head.tag, head.sequence, len);
        Push::Done
    }

    /// Pushes a whole message: [`push`](Self::push) without the steps that only other packets need. Returns false if there is no
    /// known room, or the packet gets a time stamp: use `push` then.
    ///
    /// # Safety
    /// The same as for [`push`](Self::push).
    #[inline(always)]
    pub unsafe fn push_whole(&mut self, tag: u64, sequence: u32, bytes: *const u8, len: usize) -> bool
    where
        M: Copy,
    {
        // Copies, which the compiler need not read again after each store to the lane.
        let (memory, tail) = (self.memory, self.tail);
        let mask = memory.cell_count() as u64 - 1;
        if tail - self.head_seen >= mask || is_stamped(tail) {
            return false;
        }
        let cell = (tail & mask) as usize;
        if len <= INLINE_BYTES {
            // SAFETY: `len` bytes are readable (caller).
            unsafe { write_inline(&memory, cell, bytes, len) };
        // SAFETY: as above.
        } else if unsafe { self.write(cell, bytes, len, PacketKind::Whole) }.is_err() {
            return false;
        }
        self.tail = publish(&memory, tail, 0, PacketKind::Whole, tag, sequence, len);
        true
    }

    /// Pushes the first of these messages, each a tag and its bytes, as long as they fit into their cells, there is known room, and
    /// none gets a time stamp. Returns their number and their bytes. The first one gets this sequence number.
    #[inline(always)]
    pub fn push_series(&mut self, sequence: u32, messages: &[(u64, &[u8])]) -> (usize, u64)
    where
        M: Copy,
    {
        // Copies, as in `push_whole`.
        let (memory, mut tail) = (self.memory, self.tail);
        let room = (memory.cell_count() as u64 - 1).saturating_sub(tail - self.head_seen);
        let unstamped = if STAMPED { tail.wrapping_neg() & (STAMP_EVERY - 1) } else { room };
        let (mut sequence, mut sum) = (sequence, 0);
        for (tag, bytes) in messages.iter().take(room.min(unstamped) as usize) {
            if bytes.len() > INLINE_BYTES {
                break;
            }
            let cell = (tail & (memory.cell_count() as u64 - 1)) as usize;
            // SAFETY: a slice.
            unsafe { write_inline(&memory, cell, bytes.as_ptr(), bytes.len()) };
            tail = publish(&memory, tail, 0, PacketKind::Whole, *tag, sequence, bytes.len());
            (sequence, sum) = (sequence.wrapping_add(1), sum + bytes.len() as u64);
        }
        let count = tail - std::mem::replace(&mut self.tail, tail);
        (count as usize, sum)
    }

    /// Writes a payload into a cell, or into a ring and its place into the cell.
    ///
    /// # Safety
    /// `len` bytes are readable at `bytes`, and `len` is at most `packet_bytes()`.
    #[inline(always)]
    unsafe fn write(&mut self, cell: usize, bytes: *const u8, len: usize, kind: PacketKind) -> Result<(), Push> {
        if len <= INLINE_BYTES && !kind.has_total() {
            // SAFETY: `len` bytes are readable (caller).
            unsafe { write_inline(&self.memory, cell, bytes, len) };
            return Ok(());
        }
        // Chunks of a transfer should keep the target busy until it sees the next RTS. A long ring of chunks would delay that
        // RTS, and more chunks would come meanwhile. So chunks use the data ring only.
        let place = self.reserve(len, kind != PacketKind::Chunk)?;
        if place & IN_BULK != 0 {
            if let Some(bulk) = &mut self.bulk {
                let place = place & !IN_BULK;
                // SAFETY: readable (caller); inside the ring and not yet given to the consumer (reserve).
                unsafe { std::ptr::copy_nonoverlapping(bytes, bulk.memory.at(place), len) };
                bulk.ring.tail = place + data_room(len);
            }
        } else {
            let offset = (place & (self.memory.data_bytes() as u64 - 1)) as usize;
            // SAFETY: as above.
            unsafe { self.memory.write_data(offset, bytes, len, self.distance) };
            if self.is_worth_offering(len) {
                self.memory.offer_data(offset, len);
            }
            self.data.tail = place + data_room(len);
        }
        self.memory.cell_word(cell, word::PLACE).store(place, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the consumer is likely to wait for these lines. In a stream it lags behind, and offering them would only cost
    /// time.
    #[inline(always)]
    fn is_worth_offering(&mut self, len: usize) -> bool {
        if !(64 + 1..=OFFER_BYTES).contains(&len) {
            return len <= 64;
        }
        let now = crate::hint::ticks();
        now.wrapping_sub(std::mem::replace(&mut self.pushed_at, now)) > SELDOM_TICKS
    }

    /// Makes the processor own the lines that a packet of `len` bytes would fill next. Worthwhile when the caller waits now and
    /// sends later: the lines arrive while it waits.
    #[inline]
    pub fn own_ahead(&self, len: usize) {
        if len > INLINE_BYTES && len <= OWN_AHEAD_BYTES {
            self.memory.own_data((self.data.tail & (self.memory.data_bytes() as u64 - 1)) as usize, len);
        }
    }

    /// The place of the next `len` bytes, in the data ring or, if allowed, in the bulk ring.
    #[inline(always)]
    fn reserve(&mut self, len: usize, may_bulk: bool) -> Result<u64, Push> {
        let place = |lane: &Self| match &lane.bulk {
            Some(bulk) if may_bulk && bulk.taken && bulk.ring.takes(len) => bulk.ring.place(len).map(|place| place | IN_BULK),
            _ => lane.data.place(len),
        };
        if let Some(place) = place(self) {
            return Ok(place);
        }
        self.look_at_head().map_err(Push::Down)?;
        place(self).ok_or(Push::Full)
    }

    /// Offers a ring of this process, the region with this number, for long payloads. Once for each lane.
    ///
    /// # Safety
    /// The memory stays mapped, and writable, as long as this producer lives.
    #[cold]
    pub unsafe fn offer_bulk(&mut self, memory: BulkMemory, number: u32) {
        let offer = u64::from(number) + 1;
        self.bulk = Some(Bulk { memory, ring: Filled::new(memory.len()), offer, taken: false });
        // Release: the region exists before the offer.
        self.memory.control(Control::Bulk).store(offer, Ordering::Release);
    }

    /// Reads the consumer's position, and measures its distance.
    #[cold]
    fn look_at_head(&mut self) -> Result<(), LinkDown> {
        if cfg!(any(loom, miri)) {
            return self.see_head();
        }
        let began = Instant::now();
        let head = self.memory.control(Control::Head).load(Ordering::Relaxed);
        std::hint::black_box(head);
        // The consumer wrote this line since the last look, so the load took one journey of a line.
        if let Some(distance) = Distance::measured(began.elapsed().as_nanos()) {
            self.distance = distance;
        }
        self.see_head()
    }

    /// Reads the consumer's position. Acquire: the consumer's reads of freed places happen before our next writes there.
    fn see_head(&mut self) -> Result<(), LinkDown> {
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
                bulk.ring.adapt(self.distance);
            } else {
                bulk.taken = self.memory.control(Control::BulkTaken).load(acquire) == bulk.offer;
            }
        }
        Ok(())
    }
}

/// Whether the packet at a position states when it was published.
#[inline(always)]
fn is_stamped(tail: u64) -> bool {
    STAMPED && tail & (STAMP_EVERY - 1) == 0
}

/// Publishes the packet at position `tail`, whose payload is written. Returns the next position.
#[inline(always)]
fn publish<M: LaneMemory>(memory: &M, tail: u64, stamp: u32, kind: PacketKind, tag: u64, sequence: u32, len: usize) -> u64 {
    let mask = memory.cell_count() as u64 - 1;
    let cell = (tail & mask) as usize;
    memory.cell_word(cell, word::TAG).store(tag, Ordering::Relaxed);
    memory.cell_word(cell, word::SEQUENCE).store(u64::from(sequence) | u64::from(stamp) << 32, Ordering::Relaxed);
    fault_point!("lane.written");
    // PUBLISH: release, so that a consumer that sees this word sees the rest of the cell and the data.
    let order = if planted_bug("publish") { Ordering::Relaxed } else { Ordering::Release };
    memory.cell_word(cell, word::CHECK).store(check_word(tail + 1, kind as u8, len), order);
    memory.own_cell(((tail + 1) & mask) as usize);
    fault_point!("lane.published");
    tail + 1
}

/// Writes whole words, then the rest without reading beyond the end of the source.
///
/// # Safety
/// `len` bytes are readable at `bytes`, at most [`INLINE_BYTES`].
#[inline(always)]
unsafe fn write_inline<M: LaneMemory>(memory: &M, cell: usize, bytes: *const u8, len: usize) {
    let store = |index: usize, value: u64| memory.cell_word(cell, word::PAYLOAD + index).store(value, Ordering::Relaxed);
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
        let mut last = [0; 8];
        // SAFETY: the last `rest` of `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.add(words * 8), last.as_mut_ptr(), rest) };
        store(words, u64::from_ne_bytes(last));
    }
}
