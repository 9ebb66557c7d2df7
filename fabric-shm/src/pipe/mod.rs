//! A pipe: bytes from one process to another, in order, through a ring in shared memory. One writer, one reader, and no system call unless one of them
//! sleeps.
//!
//! ```text
//! pipe | written, ended | read, gone | the reader waits | the writer waits | ring |
//! ```
//!
//! Each word is written by one side, but for those that say who waits: these are set by who is about to sleep, who then makes all processors fence and looks
//! once more, and cleared by who then wakes it ([`doorbell`](crate::doorbell) has the pairing). How to wake is not this module's business: whoever
//! writes or reads is told that the other side is to be woken.
//!
//! **What survives a death.** Bytes are seen once they are whole; what a dead writer left in the middle was never there.
//!
//! **Trust.** The other side may write anything here. Counts are checked before they are used, and what is wrong ends the stream by name.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use doorbell_fabric::sync::{AtomicU32, AtomicU64, Ordering, Reach, heavy_barrier, light_barrier, planted_bug};

/// Bytes of a pipe's words: its ring begins behind them.
#[cfg(not(loom))]
pub const HEAD: usize = size_of::<Words>();
/// So many bytes are copied between two notes of how far it is: the other side copies meanwhile.
const PIECE: usize = if cfg!(loom) { 1 } else { 16 << 10 };
/// Of `written`: no more will be. Of `read`: nobody reads any more.
const LAST: u64 = 1 << 63;
/// Of `written`, besides: there was to be more.
const CUT: u64 = 1 << 62;
/// Of either, last of all: this side touches nothing of the pipe any more.
const DONE: u64 = 1 << 61;
/// What is counted.
const COUNT: u64 = DONE - 1;

/// In cache lines of its own.
#[repr(C, align(128))]
struct Apart<T>(T);

/// The words of a pipe. All zero is one that is empty.
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

/// A byte a word, which loom watches.
#[cfg(loom)]
#[derive(Clone, Copy)]
struct Ring<'a>(&'a [AtomicU64]);

/// A pipe, wherever it lies.
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
    /// Nobody reads any more.
    Gone,
    /// The other side wrote what no reader writes.
    Broken,
}

/// Why nothing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRead {
    /// There is nothing now.
    Empty,
    /// There is nothing, and will be no more.
    End,
    /// The same, but the writer gave up in the middle.
    Cut,
    /// The other side wrote what no writer writes.
    Broken,
}

/// What came of writing or reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Bytes.
    pub bytes: usize,
    /// The other side waits for them: whoever moved them has to wake it.
    pub wake: bool,
}

#[cfg(not(loom))]
impl<'a> View<'a> {
    /// The pipe at `base`, with a ring of so many bytes, a power of two.
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
        assert!(from.len() <= bytes, "more than a ring holds");
        // SAFETY: both pieces lie in the ring (View::at). They are the writer's until it says that they are written; a reader that copies them all the same
        // copies raw bytes.
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
        assert!(into.len() <= bytes, "more than a ring holds");
        // SAFETY: as in `put`; what changes meanwhile is a hostile writer's, and bytes are bytes.
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
    /// Whether neither side uses it any more, as both have said.
    pub fn is_over(&self) -> bool {
        let [written, read] = [&self.words.written.0, &self.words.read.0].map(|word| word.load(Ordering::Acquire));
        written & read & DONE != 0
    }

    /// Whether a reader that is [so far](Reader::at) would find something: bytes, the end, or an error. One load; for who is not the reader.
    pub fn has_news(&self, at: u64) -> bool {
        self.words.written.0.load(Ordering::Acquire) != at
    }

    /// Whether a writer that is [so far](Writer::at) would find something: room, that nobody reads any more, or an error. One load; for who is
    /// not the writer.
    pub fn has_room(&self, at: u64) -> bool {
        let read = self.words.read.0.load(Ordering::Acquire);
        read & LAST != 0 || at.wrapping_sub(read) != self.capacity()
    }

    /// Says that the reader waits, without a barrier: who does this for many makes one for all, and looks once more after it.
    pub fn mark_reader(&self) {
        self.words.reader_waits.0.swap(1, Ordering::AcqRel);
    }

    /// The same of the writer.
    pub fn mark_writer(&self) {
        self.words.writer_waits.0.swap(1, Ordering::AcqRel);
    }

    /// Says for both sides that they do not use it. Nobody may be.
    pub fn give_up(&self) {
        [&self.words.written.0, &self.words.read.0].into_iter().for_each(|word| word.store(LAST | DONE, Ordering::Release));
    }

    /// Makes it one that is empty. Nobody may be using it.
    pub fn clear(&self) {
        let Words { written, read, reader_waits, writer_waits } = self.words;
        [written, read].into_iter().for_each(|word| word.0.store(0, Ordering::Release));
        [reader_waits, writer_waits].into_iter().for_each(|word| word.0.store(0, Ordering::Release));
    }
}

/// Takes back that the other side waits, if it does: then it is to be woken.
fn claim(waits: &AtomicU32) -> bool {
    // What was moved, before the look who waits: pairs with the heavy barrier of who sleeps.
    light_barrier();
    waits.load(Ordering::Relaxed) != 0 && waits.swap(0, Ordering::AcqRel) != 0
}

/// A side says that it was the last, and then that it is done. Whether the other side is to be woken.
fn finish(word: &AtomicU64, last: u64, waits: &AtomicU32) -> bool {
    word.store(last, Ordering::Release);
    let wake = claim(waits);
    // Release, and not before the claim: once both are done the pipe is another stream's, whose mark is not ours to take.
    word.store(last | DONE, Ordering::Release);
    wake
}

/// Says that this side waits. Look once more after it. False where heavy barriers don't reach: then look again within a millisecond.
fn arm(waits: &AtomicU32) -> bool {
    waits.swap(1, Ordering::AcqRel);
    heavy_barrier(Reach::Machine)
}

/// The side that writes.
#[derive(Debug, Default)]
pub struct Writer {
    at: u64,
    /// Up to where it was read when this was looked at last.
    read: u64,
}

impl Writer {
    /// How far it is.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Bytes for which there is room.
    fn room(&mut self, view: &View<'_>, wanted: u64) -> Result<u64, NoWrite> {
        let room = |read: u64| view.capacity().checked_sub(self.at.wrapping_sub(read)).ok_or(NoWrite::Broken);
        let known = room(self.read)?;
        if known >= wanted {
            return Ok(known);
        }
        // Acquire: what is written there comes after it was read.
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
    /// Cost of few bytes: their line, and one that says how far it is written; one that is only read.
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
            // Release: who sees the count sees the bytes.
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

    /// Whether writing would do something: there is room, or an error.
    pub fn is_ready(&mut self, view: &View<'_>) -> bool {
        self.room(view, 1) != Ok(0)
    }

    /// This side waits for room, and is to be woken. Look once more after it.
    pub fn wait(&self, view: &View<'_>) -> bool {
        arm(&view.words.writer_waits.0)
    }

    /// No more will be written. Whether the other side is to be woken.
    pub fn end(&self, view: &View<'_>) -> bool {
        finish(&view.words.written.0, self.at | LAST, &view.words.reader_waits.0)
    }

    /// The same, though there was to be more.
    pub fn cut(&self, view: &View<'_>) -> bool {
        finish(&view.words.written.0, self.at | LAST | CUT, &view.words.reader_waits.0)
    }
}

/// The side that reads.
#[derive(Debug, Default)]
pub struct Reader {
    at: u64,
    /// Up to where it was written when this was looked at last.
    written: u64,
}

impl Reader {
    /// How far it is.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Bytes that are there.
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
                    // No writer says only that: who looks for news would find them for ever.
                    flags if flags & LAST == 0 => NoRead::Broken,
                    flags if flags & CUT == 0 => NoRead::End,
                    _ => NoRead::Cut,
                });
            }
            self.written = written & COUNT;
        }
        Ok(self.written.wrapping_sub(self.at))
    }

    /// Reads what is there, as much as fits. Does not block.
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
            // Release: who writes there afterwards does so after it was read.
            view.words.read.0.store(self.at, Ordering::Release);
            done += piece;
        }
        Ok(Moved { bytes: done, wake: claim(&view.words.writer_waits.0) })
    }

    /// Whether reading would do something: there is something, the end, or an error.
    pub fn is_ready(&mut self, view: &View<'_>) -> bool {
        self.there(view) != Err(NoRead::Empty)
    }

    /// This side waits for bytes, and is to be woken. Look once more after it.
    pub fn wait(&self, view: &View<'_>) -> bool {
        arm(&view.words.reader_waits.0)
    }

    /// Nobody will read any more. Whether the other side is to be woken.
    pub fn leave(&self, view: &View<'_>) -> bool {
        finish(&view.words.read.0, self.at | LAST, &view.words.writer_waits.0)
    }
}
