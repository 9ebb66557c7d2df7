//! A pipe: an ordered stream of bytes from one process to another, through a ring in shared memory. It has one writer and one
//! reader, and makes no system call unless one of them sleeps.
//!
//! ```text
//! pipe | written, ended | read, gone | the reader waits | the writer waits | ring |
//! ```
//!
//! Each word is written by one side, except for the two that record which side waits. A side that is about to sleep sets its
//! word, makes all processors fence, and looks once more; the side that then wakes it clears the word
//! ([`doorbell`](crate::doorbell) explains the pairing). This module does not wake anyone: it tells the caller that the other
//! side must be woken.
//!
//! **Deaths.** The reader sees bytes only once they are whole. Bytes that a dead writer did not finish never appear.
//!
//! **Trust.** The other side may write anything here. Counts are checked before use, and a wrong one ends the stream with a named
//! error.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use doorbell_fabric::sync::{AtomicU32, AtomicU64, Ordering, Reach, heavy_barrier, light_barrier, planted_bug};

/// The size of a pipe's words. Its ring begins behind them.
#[cfg(not(loom))]
pub const HEAD: usize = size_of::<Words>();
/// The number of bytes copied between two updates of the position, so that the other side can copy meanwhile.
const PIECE: usize = if cfg!(loom) { 1 } else { 16 << 10 };
/// In `written`: no more bytes will be written. In `read`: the reader has left.
const LAST: u64 = 1 << 63;
/// In `written`, in addition: the stream was cut short.
const CUT: u64 = 1 << 62;
/// In either, as the very last flag: this side no longer touches the pipe.
const DONE: u64 = 1 << 61;
/// The bits that hold the count.
const COUNT: u64 = DONE - 1;

/// Keeps a value in cache lines of its own.
#[repr(C, align(128))]
struct Apart<T>(T);

/// The words of a pipe. All zero is an empty pipe.
#[repr(C)]
pub struct Words {
    written: Apart<AtomicU64>,
    read: Apart<AtomicU64>,
    reader_waits: Apart<AtomicU32>,
    writer_waits: Apart<AtomicU32>,
}

/// The bytes of a ring.
#[cfg(not(loom))]
#[derive(Clone, Copy)]
struct Ring {
    base: *mut u8,
    bytes: usize,
}

/// One word for each byte, which loom observes.
#[cfg(loom)]
#[derive(Clone, Copy)]
struct Ring<'a>(&'a [AtomicU64]);

/// A pipe, in any memory.
#[derive(Clone, Copy)]
pub struct View<'a> {
    words: &'a Words,
    #[cfg(not(loom))]
    ring: Ring,
    #[cfg(loom)]
    ring: Ring<'a>,
}

/// Why nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoWrite {
    /// There is no room now.
    Full,
    /// The reader has left.
    Gone,
    /// The other side wrote a value that no reader writes.
    Broken,
}

/// Why nothing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRead {
    /// No bytes are there now.
    Empty,
    /// No bytes are there, and no more will come.
    End,
    /// No bytes are there, and the writer gave up in the middle.
    Cut,
    /// The other side wrote a value that no writer writes.
    Broken,
}

/// The result of writing or reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Bytes.
    pub bytes: usize,
    /// The other side waits for this, and the caller must wake it.
    pub wake: bool,
}

#[cfg(not(loom))]
impl<'a> View<'a> {
    /// The pipe at `base`, with a ring of `ring` bytes, a power of two.
    ///
    /// # Safety
    /// At `base`, aligned to 128, begin [`HEAD`] and `ring` readable and writable bytes, mapped for `'a`.
    pub unsafe fn at(base: *mut u8, ring: usize) -> Self {
        debug_assert!(ring.is_power_of_two() && base.addr().is_multiple_of(128));
        // SAFETY: caller; all words are atomics, so other writers are allowed.
        unsafe { Self { words: &*base.cast(), ring: Ring { base: base.add(HEAD), bytes: ring } } }
    }

    fn capacity(&self) -> u64 {
        self.ring.bytes as u64
    }

    /// Copies into the ring, from `at` on.
    fn put(&self, at: u64, from: &[u8]) {
        let Ring { base, bytes } = self.ring;
        let first = at as usize & (bytes - 1);
        let one = from.len().min(bytes - first);
        assert!(from.len() <= bytes, "the piece exceeds the ring");
        // SAFETY: both pieces lie in the ring (View::at). They belong to the writer until it publishes them; a reader that copies
        // them earlier only copies raw bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), base.add(first), one);
            std::ptr::copy_nonoverlapping(from.as_ptr().add(one), base, from.len() - one);
        }
    }

    /// Copies out of the ring, from `at` on.
    fn get(&self, at: u64, into: &mut [u8]) {
        let Ring { base, bytes } = self.ring;
        let first = at as usize & (bytes - 1);
        let one = into.len().min(bytes - first);
        assert!(into.len() <= bytes, "the piece exceeds the ring");
        // SAFETY: as in `put`; only a hostile writer changes them meanwhile, and any value of raw bytes is valid.
        unsafe {
            std::ptr::copy_nonoverlapping(base.add(first), into.as_mut_ptr(), one);
            std::ptr::copy_nonoverlapping(base, into.as_mut_ptr().add(one), into.len() - one);
        }
    }
}

#[cfg(loom)]
impl View<'_> {
    fn capacity(&self) -> u64 {
        self.ring.0.len() as u64
    }

    fn put(&self, at: u64, from: &[u8]) {
        for (offset, byte) in from.iter().enumerate() {
            self.ring.0[(at as usize + offset) % self.ring.0.len()].store((*byte).into(), Ordering::Relaxed);
        }
    }

    fn get(&self, at: u64, into: &mut [u8]) {
        for (offset, byte) in into.iter_mut().enumerate() {
            *byte = self.ring.0[(at as usize + offset) % self.ring.0.len()].load(Ordering::Relaxed) as u8;
        }
    }
}

impl View<'_> {
    /// Whether both sides have recorded that they no longer use it.
    pub fn is_over(&self) -> bool {
        let [written, read] = [&self.words.written.0, &self.words.read.0].map(|word| word.load(Ordering::Acquire));
        written & read & DONE != 0
    }

    /// Whether a reader [at this position](Reader::at) would find bytes, the end, or an error. One load. For threads other than
    /// the reader.
    pub fn has_news(&self, at: u64) -> bool {
        self.words.written.0.load(Ordering::Acquire) != at
    }

    /// Whether a writer [at this position](Writer::at) would find room, a departed reader, or an error. One load. For threads
    /// other than the writer.
    pub fn has_room(&self, at: u64) -> bool {
        let read = self.words.read.0.load(Ordering::Acquire);
        read & LAST != 0 || at.wrapping_sub(read) != self.capacity()
    }

    /// Records that the reader waits, without a barrier. A caller that marks many pipes makes one barrier for all, and then looks
    /// once more.
    pub fn mark_reader(&self) {
        self.words.reader_waits.0.swap(1, Ordering::AcqRel);
    }

    /// Records that the writer waits; otherwise like [`mark_reader`](Self::mark_reader).
    pub fn mark_writer(&self) {
        self.words.writer_waits.0.swap(1, Ordering::AcqRel);
    }

    /// Records for both sides that they no longer use the pipe. Neither side may be using it.
    pub fn give_up(&self) {
        [&self.words.written.0, &self.words.read.0].into_iter().for_each(|word| word.store(LAST | DONE, Ordering::Release));
    }

    /// Empties the pipe. Neither side may be using it.
    pub fn clear(&self) {
        let Words { written, read, reader_waits, writer_waits } = self.words;
        [written, read].into_iter().for_each(|word| word.0.store(0, Ordering::Release));
        [reader_waits, writer_waits].into_iter().for_each(|word| word.0.store(0, Ordering::Release));
    }
}

/// Clears the other side's waiting mark. Returns true if it was set, so that the other side must be woken.
fn claim(waits: &AtomicU32) -> bool {
    // Orders the moved bytes before the load of the mark. Pairs with the heavy barrier of the side that sleeps.
    light_barrier();
    waits.load(Ordering::Relaxed) != 0 && waits.swap(0, Ordering::AcqRel) != 0
}

/// Records that this was a side's last step, and then that the side is done. Returns whether the other side must be woken.
fn finish(word: &AtomicU64, last: u64, waits: &AtomicU32) -> bool {
    word.store(last, Ordering::Release);
    let wake = claim(waits);
    // Release, and not before the claim: once both sides are done, the pipe belongs to another stream, and its mark is not ours
    // to take.
    word.store(last | DONE, Ordering::Release);
    wake
}

/// Records that this side waits. Look once more after it. Returns false where heavy barriers do not reach: then look again within
/// a millisecond.
fn arm(waits: &AtomicU32) -> bool {
    waits.swap(1, Ordering::AcqRel);
    heavy_barrier(Reach::Machine)
}

/// The side that writes.
#[derive(Debug, Default)]
pub struct Writer {
    at: u64,
    /// The reader's position when last read.
    read: u64,
}

impl Writer {
    /// Its position.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The bytes that there is room for.
    fn room(&mut self, view: &View<'_>, wanted: u64) -> Result<u64, NoWrite> {
        let room = |read: u64| view.capacity().checked_sub(self.at.wrapping_sub(read)).ok_or(NoWrite::Broken);
        let known = room(self.read)?;
        if known >= wanted {
            return Ok(known);
        }
        // Acquire: the reader's reads come before the next writes there.
        let read = view.words.read.0.load(Ordering::Acquire);
        if read & LAST != 0 {
            return Err(NoWrite::Gone);
        }
        let room = room(read)?;
        self.read = read;
        Ok(room)
    }

    /// Writes as much of `from` as there is room for. Does not block.
    ///
    /// A few bytes cost two written cache lines (the bytes and the position) and one line that is only read.
    pub fn try_write(&mut self, view: &View<'_>, from: &[u8]) -> Result<Moved, NoWrite> {
        let mut done = 0;
        while done < from.len() {
            let piece = (from.len() - done).min(PIECE);
            let room = match self.room(view, piece as u64) {
                Ok(room) => room,
                Err(_) if done > 0 => break,
                Err(why) => return Err(why),
            };
            let piece = piece.min(usize::try_from(room).unwrap_or(usize::MAX));
            if piece == 0 {
                break;
            }
            view.put(self.at, &from[done..done + piece]);
            self.at = self.at.wrapping_add(piece as u64) & COUNT;
            // Release: a reader that sees the count sees the bytes.
            let order = if planted_bug("pipe-write") { Ordering::Relaxed } else { Ordering::Release };
            view.words.written.0.store(self.at, order);
            fault_point!("pipe.written");
            done += piece;
        }
        if done == 0 && !from.is_empty() {
            return Err(NoWrite::Full);
        }
        Ok(Moved { bytes: done, wake: claim(&view.words.reader_waits.0) })
    }

    /// Whether a write would make progress or report an error.
    pub fn is_ready(&mut self, view: &View<'_>) -> bool {
        self.room(view, 1) != Ok(0)
    }

    /// Records that this side waits for room and must be woken. Look once more after it.
    pub fn wait(&self, view: &View<'_>) -> bool {
        arm(&view.words.writer_waits.0)
    }

    /// Ends the stream. Returns whether the other side must be woken.
    pub fn end(&self, view: &View<'_>) -> bool {
        finish(&view.words.written.0, self.at | LAST, &view.words.reader_waits.0)
    }

    /// Ends the stream although there was to be more. Returns whether the other side must be woken.
    pub fn cut(&self, view: &View<'_>) -> bool {
        finish(&view.words.written.0, self.at | LAST | CUT, &view.words.reader_waits.0)
    }
}

/// The side that reads.
#[derive(Debug, Default)]
pub struct Reader {
    at: u64,
    /// The writer's position when last read.
    written: u64,
}

impl Reader {
    /// Its position.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The number of bytes that are there.
    fn there(&mut self, view: &View<'_>) -> Result<u64, NoRead> {
        if self.written == self.at {
            let written = view.words.written.0.load(Ordering::Acquire);
            let there = (written & COUNT).wrapping_sub(self.at);
            if there > view.capacity() {
                return Err(NoRead::Broken);
            }
            if there == 0 {
                return Err(match written & !COUNT {
                    0 => NoRead::Empty,
                    // No writer sets only these flags. A reader that looks for news would find news forever.
                    flags if flags & LAST == 0 => NoRead::Broken,
                    flags if flags & CUT == 0 => NoRead::End,
                    _ => NoRead::Cut,
                });
            }
            self.written = written & COUNT;
        }
        Ok(self.written.wrapping_sub(self.at))
    }

    /// Reads as much as is there and fits. Does not block.
    pub fn try_read(&mut self, view: &View<'_>, into: &mut [u8]) -> Result<Moved, NoRead> {
        let mut done = 0;
        while done < into.len() {
            let there = match self.there(view) {
                Ok(there) => there,
                Err(_) if done > 0 => break,
                Err(why) => return Err(why),
            };
            let piece = (into.len() - done).min(PIECE).min(usize::try_from(there).unwrap_or(usize::MAX));
            view.get(self.at, &mut into[done..done + piece]);
            self.at = self.at.wrapping_add(piece as u64) & COUNT;
            // Release: the reads come before the writer's next writes there.
            view.words.read.0.store(self.at, Ordering::Release);
            done += piece;
        }
        Ok(Moved { bytes: done, wake: claim(&view.words.writer_waits.0) })
    }

    /// Whether a read would return bytes, the end, or an error.
    pub fn is_ready(&mut self, view: &View<'_>) -> bool {
        self.there(view) != Err(NoRead::Empty)
    }

    /// Records that this side waits for bytes and must be woken. Look once more after it.
    pub fn wait(&self, view: &View<'_>) -> bool {
        arm(&view.words.reader_waits.0)
    }

    /// Records that the reader has left. Returns whether the other side must be woken.
    pub fn leave(&self, view: &View<'_>) -> bool {
        finish(&view.words.read.0, self.at | LAST, &view.words.writer_waits.0)
    }
}
