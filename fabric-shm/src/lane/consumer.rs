//! The reading end of a lane.

mod bundle;
mod opened;
#[cfg(not(loom))]
mod read;
pub(super) mod run;

use super::bulk::{BulkMemory, IN_BULK};
use super::conversation;
use super::ring::Drained;
use super::run::{Ahead, CONTINUED_AT, CONTINUED_MOST, Run};
use super::{APPENDED, BUNDLE, CONTINUED, Control, INLINE_BYTES, LaneMemory, MOVED, OPENED, REPORTED, STREAMED, word};
use bundle::Begun;
pub use bundle::Entry;
use doorbell_fabric::sync::{Ordering, light_barrier, planted_bug};
use doorbell_fabric::{PacketHead, PacketKind};
pub use opened::Opened;

/// The only reader of a lane. Its positions are private; it publishes its progress only for the producer.
pub struct Consumer<M> {
    /// The ring in use.
    memory: M,
    /// The ring by which the lane begins, and the one to which its producer may move.
    rings: (M, Option<M>),
    /// Position of the next packet.
    head: u64,
    /// The position that was last reported to the producer.
    head_told: u64,
    /// The position at which the next report is due: see [`report_after`].
    report_at: u64,
    data: Drained,
    bulk: Option<(BulkMemory, Drained)>,
    /// The offered bulk ring, until the offer is answered.
    offered: u64,
    answered: bool,
    /// Length of the last payload that did not fit into its cell.
    last_len: usize,
    /// The number of messages that the thread which left the last cell had sent by then.
    sent: u32,
    begun: Begun,
    /// The message to which the next packets belong is longer than half of the bulk ring.
    is_long: bool,
    /// The run that the next message may belong to. If the last packet began no run, there is no run.
    ahead: Ahead,
    refusing: bool,
    /// The position behind an opened packet that this end copies no more until it is published, or 0.
    given_up: u64,
    /// The position behind an opened packet for which the receiver had no buffer when it last looked, or 0.
    declined: u64,
}

/// The first packet of a lane: checked, and in private memory except for its payload.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The packet's head.
    pub head: PacketHead,
    /// The length of its payload.
    pub len: usize,
    /// The publishing time that the producer states, if the packet was sampled; else 0.
    pub stamp: u32,
    pub(super) place: Place,
}

/// The place of the first packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In its cell.
    Inline,
    /// At this offset of the data ring. True: the producer wants to know at once when it is read.
    Data(u64, bool),
    /// At this offset of the bulk ring.
    Bulk {
        /// The offset.
        at: u64,
        /// The producer wants to know at once when it is read.
        reported: bool,
        /// It was written past the producer's caches.
        streamed: bool,
    },
    /// In a bundle.
    Bundle(Entry),
    /// In the cell before, behind another message of its run.
    Appended,
    /// In its cell, which continues a run.
    Continued,
    /// At this offset of the data ring, where the last payload ends. Its cell continues a run.
    Detached(u64),
}

/// A message that was [read](Consumer::read_next).
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug)]
pub struct Next {
    /// Its tag.
    pub tag: u64,
    /// Its length.
    pub len: usize,
    /// Whether the producer waits for room, and its bell is to be rung.
    pub rings: bool,
}

/// Why a series of messages ended.
#[cfg(not(loom))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesEnd {
    /// Nothing more was published.
    Empty,
    /// The producer waits for room, and its bell is to be rung.
    Rings,
    /// The limit, or a message of another kind.
    Other,
}

/// The first word of the first packet in a lane.
#[derive(Clone, Copy, Debug)]
pub struct FirstWord(u64);

impl FirstWord {
    /// Whether the packet is not published yet, while its producer writes the payload.
    #[inline(always)]
    pub fn is_opened(self) -> bool {
        (self.0 >> 32) as u8 == OPENED
    }

    /// The length of its payload.
    #[inline(always)]
    pub fn payload_bytes(self) -> usize {
        (self.0 >> 40) as usize
    }
}

/// The state of the first cell of a lane.
#[derive(Clone, Copy, Debug)]
pub enum Peek {
    /// Nothing.
    Empty,
    /// A message that its producer is still writing.
    Opened(FirstWord),
    /// A packet.
    Packet(Seen),
    /// The producer goes on in the larger ring: [`follow`](Consumer::follow) it and look again.
    Moved,
    /// Values that no producer writes.
    Damaged(&'static str),
}

/// The number of packets after which the consumer reports its progress: once a quarter lap, and in a small ring once half a lap.
fn report_after(memory: &impl LaneMemory) -> u64 {
    let cells = memory.cell_count() as u64;
    if cells <= 64 { cells / 2 } else { cells / 4 }
}

impl<M: LaneMemory + Clone> Consumer<M> {
    /// The reader of a lane that is blank or was [`reset`](Self::reset). Its producer may move to the larger ring, if there is one.
    /// Both have the same control words.
    pub fn new(memory: M, larger: Option<M>) -> Self {
        let data = Drained::new(memory.data_bytes());
        Self {
            report_at: report_after(&memory),
            memory: memory.clone(),
            rings: (memory, larger),
            head: 0,
            head_told: 0,
            data,
            bulk: None,
            offered: 0,
            answered: false,
            last_len: usize::MAX,
            sent: 0,
            begun: Begun::default(),
            is_long: false,
            ahead: Ahead::NONE,
            refusing: false,
            given_up: 0,
            declined: 0,
        }
    }

    /// Whether a packet waits: one load of a line that stays in this processor's cache until the producer writes it.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        // A word without a kind is not a packet, whichever process wrote it.
        let check = self.first_word();
        (check as u32 == (self.head + 1) as u32 && (check >> 32) as u8 != OPENED) || self.is_run_ahead()
    }

    /// Whether a packet waits that was not refused.
    #[inline(always)]
    pub fn is_news(&self) -> bool {
        self.is_ready() && !self.refusing
    }

    #[inline(always)]
    fn cell(&self) -> usize {
        (self.head & (self.memory.cell_count() as u64 - 1)) as usize
    }

    #[inline(always)]
    fn first_word(&self) -> u64 {
        // Acquire: pairs with PUBLISH.
        self.memory.cell_word(self.cell(), word::CHECK).load(Ordering::Acquire)
    }

    /// Looks for a packet up to `rounds` times, and calls `between` after each look that finds none. Returns the packet's first word.
    /// With `also_opened` it also finds a packet that is only [opened](FirstWord::is_opened), and that this end has not given up.
    #[inline(always)]
    pub fn watch(&self, rounds: u32, also_opened: bool, mut between: impl FnMut()) -> Option<FirstWord> {
        // An opened packet has a length and no kind.
        let enough = if also_opened { !0 << 32 } else { 0xff << 32 };
        let (word, position) = (self.memory.cell_word(self.cell(), word::CHECK), (self.head + 1) as u32);
        // Copies, which the compiler need not read again after each acquiring load.
        let (ahead, behind) = (self.ahead, self.memory.nth_word(self.ahead.place()));
        // Acquire, both loads: pair with PUBLISH.
        let appended = || Some(behind.load(Ordering::Acquire)).filter(|check| ahead.len_by(*check).is_some());
        for _ in 0..rounds {
            if let Some(check) = appended() {
                return Some(FirstWord(check));
            }
            let check = word.load(Ordering::Acquire);
            if check as u32 == position && check & enough != 0 {
                // Once more, after that load: before the producer wrote this packet, it may have appended a message.
                if !planted_bug("append")
                    && let Some(check) = appended()
                {
                    return Some(FirstWord(check));
                }
                let first = FirstWord(check);
                if !also_opened || !first.is_opened() || self.given_up != self.head + 1 {
                    return Some(first);
                }
            }
            between();
        }
        None
    }

    /// The place of the first packet's payload, whose length `len` comes from the first word. `None` if it is not within the
    /// lane.
    #[inline(always)]
    pub fn place(&self, len: usize, has_total: bool) -> Option<Place> {
        if len <= INLINE_BYTES && !has_total {
            return Some(Place::Inline);
        }
        let place = self.memory.cell_word(self.cell(), word::PLACE).load(Ordering::Relaxed);
        let (place, reported) = (place & !REPORTED, place & REPORTED != 0);
        if place & IN_BULK != 0 {
            let (at, streamed) = (place & !(IN_BULK | STREAMED), place & STREAMED != 0);
            let (_, ring) = self.bulk.as_ref()?;
            return ring.holds(at, len).then_some(Place::Bulk { at, reported, streamed });
        }
        self.data.holds(place, len).then_some(Place::Data(place, reported))
    }

    /// Examines the first packet without taking it.
    #[inline(always)]
    pub fn peek(&self) -> Peek {
        self.watch(1, true, || ()).map_or(Peek::Empty, |first| self.examine(first))
    }

    /// Examines the first packet, whose first word was read since the last packet was taken.
    #[inline(always)]
    pub fn examine(&self, FirstWord(check): FirstWord) -> Peek {
        let cell = self.cell();
        let load = |index| self.memory.cell_word(cell, index).load(Ordering::Relaxed);
        let len = (check >> 40) as usize;
        let Some(kind) = PacketKind::from_number((check >> 32) as u8) else {
            return match (check >> 32) as u8 {
                OPENED => Peek::Opened(FirstWord(check)),
                kind @ (APPENDED | CONTINUED) => match self.examine_of_run(kind, check) {
                    Some(seen) => Peek::Packet(seen),
                    None => Peek::Damaged("a message of a run that no sender makes"),
                },
                MOVED if self.may_move() => Peek::Moved,
                BUNDLE => match self.examine_bundle(len) {
                    Some(seen) => Peek::Packet(seen),
                    None => Peek::Damaged("a bundle of messages that no sender makes"),
                },
                _ => Peek::Damaged("a packet of unknown kind"),
            };
        };
        let Some(place) = self.place(len, kind.has_total()) else {
            return Peek::Damaged("a packet's payload lies outside the lane");
        };
        let total = if kind.has_total() { load(word::TOTAL) } else { len as u64 };
        if total < len as u64 && kind == PacketKind::First {
            return Peek::Damaged("a packet is longer than its message");
        }
        let sequence = load(word::SEQUENCE);
        let head = PacketHead { kind, tag: load(word::TAG), sequence: sequence as u32, total };
        Peek::Packet(Seen { head, len, stamp: (sequence >> 32) as u32, place })
    }

    /// The index, among the words of all cells, where a payload begins that does not lie in a ring.
    #[inline(always)]
    fn word_of(&self, place: Place) -> usize {
        match place {
            Place::Appended => self.ahead.place() + 1,
            Place::Continued => self.cell() * word::COUNT + CONTINUED_AT,
            _ => self.cell() * word::COUNT + word::PAYLOAD,
        }
    }

    /// Whether the producer can still move: a lane moves once.
    fn may_move(&self) -> bool {
        self.rings.1.is_some() && !self.has_moved()
    }

    /// Whether this end reads the larger ring.
    pub fn has_moved(&self) -> bool {
        self.memory.data_bytes() != self.rings.0.data_bytes()
    }

    /// Takes the packet [`Moved`](Peek::Moved) and goes on in the larger ring.
    #[cold]
    pub fn follow(&mut self) {
        if let (true, Some(larger)) = (self.may_move(), &self.rings.1) {
            self.memory = larger.clone();
            self.report_at = self.head_told + report_after(&self.memory);
            self.data.go_on_in(self.memory.data_bytes());
            self.head += 1;
            self.ahead = Ahead::NONE;
        }
    }

    /// Whether a correct packet waits: one for the caller, or the packet behind which others are in the larger ring.
    pub fn has_packet(&self) -> bool {
        matches!(self.peek(), Peek::Packet(_) | Peek::Moved)
    }

    /// Copies the payload of the first packet.
    ///
    /// # Safety
    /// `seen` comes from the latest `peek`, nothing was taken since, and `seen.len` bytes are writable at `dst`.
    pub unsafe fn copy_out(&self, seen: &Seen, dst: *mut u8) {
        match seen.place {
            Place::Inline | Place::Appended | Place::Continued => {
                let begin = self.word_of(seen.place);
                let mut words = [0_u64; CONTINUED_MOST / 8];
                for (index, value) in words.iter_mut().enumerate().take(seen.len.div_ceil(8)) {
                    *value = self.memory.nth_word(begin + index).load(Ordering::Relaxed);
                }
                // SAFETY: peek checked that the payload lies in the cell.
                unsafe { std::ptr::copy_nonoverlapping(words.as_ptr().cast(), dst, seen.len) };
            }
            // SAFETY: peek checked that the place lies in the ring in one piece.
            Place::Data(place, _) | Place::Detached(place) => unsafe {
                self.memory.read_data(place as usize, dst, seen.len);
            },
            // SAFETY: as above.
            Place::Bundle(entry) => unsafe { self.memory.read_data(entry.offset(), dst, seen.len) },
            Place::Bulk { at, .. } => {
                if let Some((memory, _)) = &self.bulk {
                    // SAFETY: as above.
                    unsafe { std::ptr::copy_nonoverlapping(memory.at(at), dst, seen.len) };
                }
            }
        }
    }

    /// The tag of the first packet.
    #[inline(always)]
    pub fn tag(&self) -> u64 {
        self.memory.cell_word(self.cell(), word::TAG).load(Ordering::Relaxed)
    }

    /// The sequence number of the first packet, unless it carries a time stamp.
    #[inline(always)]
    pub fn unstamped_sequence(&self) -> Option<u32> {
        u32::try_from(self.memory.cell_word(self.cell(), word::SEQUENCE).load(Ordering::Relaxed)).ok()
    }

    /// Frees the first packet's place. `seen` comes from the latest `peek`. Returns true if the producer waits for room and its
    /// bell is to be rung, because there is some now.
    #[inline(always)]
    #[must_use]
    pub fn take(&mut self, seen: &Seen) -> bool {
        let PacketHead { kind, tag, sequence, .. } = seen.head;
        if kind == PacketKind::First {
            self.is_long = self.begins_long(seen);
        }
        let run = match seen.place {
            // Others begin no run.
            _ if kind != PacketKind::Whole || seen.stamp != 0 => Run::NONE,
            Place::Inline => Run::behind(self.head + 1, tag, sequence, word::PAYLOAD, seen.len),
            Place::Data(..) => Run::behind_data(self.head + 1, tag, sequence),
            _ => Run::NONE,
        };
        self.leave(seen.place, seen.len, run)
    }

    /// Whether the packet begins a [long](doorbell_fabric::copies::Known::Long) message. It is of the kind `First`.
    #[inline]
    pub(super) fn begins_long(&self, seen: &Seen) -> bool {
        self.bulk.as_ref().is_some_and(|(memory, _)| seen.head.total > memory.len() as u64 / 2)
    }

    /// Like [`take`](Self::take), for a packet that begins no run, and whose `len` bytes lie at `place`.
    #[inline(always)]
    #[must_use]
    pub fn take_from(&mut self, place: Place, len: usize) -> bool {
        self.leave(place, len, Run::NONE)
    }

    /// Frees the place of the first packet, which begins this run.
    #[inline(always)]
    fn leave(&mut self, place: Place, len: usize, run: Run) -> bool {
        match place {
            Place::Bundle(entry) => return self.leave_entry(entry) && self.tell(),
            Place::Appended => {
                self.pass_appended(len);
                return false;
            }
            Place::Continued => return self.leave_cell(self.continued(len)) && self.tell(),
            Place::Detached(place) => return self.leave_detached(place, len) && self.tell(),
            _ => {}
        }
        // Report seldom: the producer reads the line with these words, and every store here costs it a cache miss.
        let mut is_due = self.leave_cell(run);
        if let Place::Data(place, reported) = place {
            self.last_len = len;
            is_due |= self.data.take(place, len) | reported;
        } else if let (Place::Bulk { at, reported, .. }, Some((_, ring))) = (place, &mut self.bulk) {
            is_due |= ring.take(at, len) | reported;
        }
        is_due && self.tell()
    }

    /// Goes on behind an appended message of this length.
    #[inline(always)]
    pub(super) fn pass_appended(&mut self, len: usize) {
        let next = (self.head, self.memory.cell_count() as u64 - 1);
        self.ahead.pass(len, || (next.0 & next.1) as usize);
    }

    /// Goes on behind the first cell. The next message may belong to this run. Returns true if a report is due.
    #[inline(always)]
    fn leave_cell(&mut self, run: Run) -> bool {
        let cell = self.cell();
        self.head += 1;
        self.ahead = Ahead::of(run, cell, self.cell());
        self.sent = conversation::count_cell();
        self.head >= self.report_at
    }

    /// Takes the first packet and the following parts if their sender gave the message up. For an unwanted message, so that the
    /// messages behind it need not wait for it.
    #[cold]
    pub fn skip_given_up(&mut self) -> bool {
        let Peek::Packet(Seen { head: PacketHead { kind: PacketKind::First, total, .. }, len, .. }) = self.peek() else {
            return false;
        };
        // The packet behind which the producer uses the larger ring may lie between the parts.
        let (mut memory, mut parts, mut bytes) = (&self.memory, 1, len as u64);
        while bytes < total {
            let (position, cells) = (self.head + parts, memory.cell_count() as u64);
            // Acquire: as in `first_word`.
            let check = memory.cell_word((position & (cells - 1)) as usize, word::CHECK).load(Ordering::Acquire);
            if parts >= cells || check as u32 != (position + 1) as u32 {
                // The rest may still come.
                return false;
            }
            match (check >> 32) as u8 {
                MOVED if self.may_move() && std::ptr::eq(memory, &self.memory) => {
                    let Some(larger) = &self.rings.1 else { return false };
                    (memory, parts) = (larger, parts + 1);
                }
                kind if kind == PacketKind::Next as u8 => (parts, bytes) = (parts + 1, bytes + (check >> 40)),
                _ => {
                    // The rest will not come: another message begins, or the sender reports that it gave this one up.
                    for _ in 0..parts {
                        match self.peek() {
                            Peek::Packet(seen) => _ = self.take(&seen),
                            Peek::Moved => self.follow(),
                            Peek::Empty | Peek::Opened(_) | Peek::Damaged(_) => break,
                        }
                    }
                    return true;
                }
            }
        }
        false
    }

    /// Whether there is unreported progress.
    pub fn has_untold(&self) -> bool {
        let untold = |ring: &Drained| ring.head != ring.told;
        self.head != self.head_told || untold(&self.data) || self.bulk.as_ref().is_some_and(|(_, ring)| untold(ring))
    }

    /// Reports this end's progress to the producer. Release: our reads happen before the producer's next writes there. Returns
    /// true if the producer waits for the report.
    pub fn tell(&mut self) -> bool {
        self.memory.control(Control::Head).store(self.head, Ordering::Release);
        self.memory.control(Control::DataHead).store(self.data.head, Ordering::Release);
        (self.head_told, self.data.told) = (self.head, self.data.head);
        self.report_at = self.head + report_after(&self.memory);
        if let Some((_, ring)) = &mut self.bulk {
            self.memory.control(Control::BulkHead).store(ring.head, Ordering::Release);
            ring.told = ring.head;
        } else if !self.answered {
            // Acquire: the offered ring exists before the offer.
            self.offered = self.memory.control(Control::Bulk).load(Ordering::Acquire);
        }
        // As with the bell: a producer that is about to sleep announces it, fences for both, and reads the head once more.
        light_barrier();
        self.memory.control(Control::Waiting).load(Ordering::Relaxed) != 0
    }

    /// Tells the producer whether this end accepts messages.
    #[inline]
    pub fn refuse(&mut self, refuse: bool) {
        if self.refusing != refuse {
            self.refusing = refuse;
            self.memory.control(Control::Refused).store(refuse as u64, Ordering::Relaxed);
        }
    }

    /// Whether the producer was told that no more messages are accepted.
    #[inline]
    pub fn refusing(&self) -> bool {
        self.refusing
    }

    /// The number of the region that the producer offers as a bulk ring, until the offer is answered.
    #[inline(always)]
    pub fn offered(&self) -> Option<u32> {
        if self.offered == 0 { None } else { u32::try_from(self.offered - 1).ok() }
    }

    /// Answers the offer: from now on packets may lie in this ring. With `None`, this incarnation of the producer gets no bulk
    /// ring.
    ///
    /// # Safety
    /// The memory stays mapped until the lane is [reset](Self::reset) or dropped.
    #[cold]
    pub unsafe fn answer(&mut self, ring: Option<BulkMemory>) {
        let offered = std::mem::take(&mut self.offered);
        self.answered = true;
        if let Some(memory) = ring {
            self.bulk = Some((memory, Drained::new(memory.len())));
            // Release: pairs with the producer's load. The mapping need not be ordered before, because the load only permits the
            // producer to write.
            self.memory.control(Control::BulkTaken).store(offered, Ordering::Release);
        }
    }

    /// The incarnation that produces here, or 0. Only a hint, because another process may write it.
    #[inline]
    pub fn owner(&self) -> u64 {
        self.memory.control(Control::Owner).load(Ordering::Acquire)
    }

    /// Packets taken so far.
    #[inline]
    pub fn taken(&self) -> u64 {
        self.head
    }

    /// Blanks the lane and lets a new incarnation claim it. Call it only when the former producer is dead or has left, and
    /// everything it published was taken.
    pub fn reset(&mut self) {
        // A producer blanks the larger ring before it moves there.
        self.memory = self.rings.0.clone();
        for cell in 0..self.memory.cell_count() {
            self.memory.cell_word(cell, word::CHECK).store(0, Ordering::Relaxed);
        }
        (self.head, self.given_up, self.declined, self.begun, self.ahead) = (0, 0, 0, Begun::default(), Ahead::NONE);
        self.data = Drained::new(self.memory.data_bytes());
        (self.bulk, self.offered, self.answered) = (None, 0, false);
        for control in [Control::Waiting, Control::Bulk, Control::BulkHead, Control::BulkTaken] {
            self.memory.control(control).store(0, Ordering::Relaxed);
        }
        self.tell();
        self.refusing = true;
        self.refuse(false);
        fault_point!("lane.blanked");
        // Release: pairs with the acquire of `Producer::claim`.
        self.memory.control(Control::Owner).store(0, Ordering::Release);
    }
}
