//! Memory that the kernel fills with arriving runs: buffers that it takes from a ring of their addresses, in order.
//!
//! Each buffer is with one side at a time. The kernel writes to those that lie in the ring, and only while a request that receives
//! is under way; one that such a request has filled is read here, and goes back to the end of the ring afterwards.

use super::calls::PAYLOAD_BYTES;
use super::notation::CONTROL_BYTES;
use io_uring::types::BufRingEntry;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// The number of buffers: the most runs that one request receives. Few, so that they stay in a processor's cache.
pub const BUFFERS: u16 = 8;
/// The space for the name of a sender, before the control data.
pub const NAME_BYTES: usize = 32;
/// What the kernel writes before the name: four lengths.
const HEAD_BYTES: usize = 16;
/// Where the payload of a run begins that is described.
const PAYLOAD_AT: usize = HEAD_BYTES + NAME_BYTES + CONTROL_BYTES;
/// An odd number of pages; otherwise the beginnings of all runs would compete for a few cache sets.
const STRIDE: usize = 17 << 12;
const PAGE: usize = 1 << 12;
const ALL: usize = PAGE + BUFFERS as usize * STRIDE;
/// Where the word is that tells whether this process made the shelf, on the page of the ring.
const WORD_AT: usize = PAGE / 2;

const _: () = assert!(PAYLOAD_AT + PAYLOAD_BYTES <= STRIDE && BUFFERS.is_power_of_two());
const _: () = assert!(BUFFERS as usize * size_of::<BufRingEntry>() <= WORD_AT && PAYLOAD_AT.is_multiple_of(64));

/// The mapping.
struct Memory(NonNull<u8>);

// SAFETY: the shelf alone uses the ring and the buffers, through `&mut`; the word is an atomic.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// The buffers and their ring.
pub struct Shelf {
    memory: Arc<Memory>,
    tail: u16,
}

/// Tells whether this process is the one that made a shelf.
#[derive(Clone)]
pub struct Own(Arc<Memory>);

impl Own {
    /// A forked child has neither the buffers nor the queues of the ring.
    pub fn is_own(&self) -> bool {
        self.0.word().load(Ordering::Relaxed) == 1
    }
}

impl Memory {
    fn new() -> io::Result<Self> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), ALL, access, kind, -1, 0) };
        let memory = NonNull::new(memory.cast()).filter(|_| memory != libc::MAP_FAILED).ok_or_else(io::Error::last_os_error)?;
        let memory = Self(memory);
        // SAFETY: the whole mapping. A forked child finds zeroes there.
        if unsafe { libc::madvise(memory.0.as_ptr().cast(), ALL, libc::MADV_WIPEONFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        memory.word().store(1, Ordering::Relaxed);
        Ok(memory)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: in the mapping, aligned, initialised, and only used as an atomic.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().add(WORD_AT).cast()) }
    }

    fn buffer(&self, number: u16) -> *mut u8 {
        // SAFETY: within the mapping.
        unsafe { self.0.as_ptr().add(PAGE + usize::from(number % BUFFERS) * STRIDE) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`. The ring that used it has been closed, or had no request under way.
        unsafe { libc::munmap(self.0.as_ptr().cast(), ALL) };
    }
}

impl Shelf {
    /// All buffers are in the ring. They cost memory only as they are written to.
    pub fn new() -> io::Result<Self> {
        let mut shelf = Self { memory: Arc::new(Memory::new()?), tail: 0 };
        (0..BUFFERS).for_each(|buffer| shelf.give_back(buffer));
        Ok(shelf)
    }

    /// Tells whether this process made it.
    pub fn own(&self) -> Own {
        Own(self.memory.clone())
    }

    /// The address of the ring of buffers.
    pub fn ring(&self) -> u64 {
        self.memory.0.as_ptr() as u64
    }

    /// Puts a buffer into the ring that is not there.
    pub fn give_back(&mut self, buffer: u16) {
        let start = self.memory.buffer(buffer) as u64;
        let ring = self.memory.0.as_ptr().cast::<BufRingEntry>();
        // SAFETY: an entry of the ring that the kernel does not read before the tail passes it. The tail lies in the first entry,
        // in a field that no entry uses.
        unsafe {
            let entry = &mut *ring.add(usize::from(self.tail % BUFFERS));
            entry.set_addr(start);
            entry.set_len(STRIDE as u32);
            entry.set_bid(buffer % BUFFERS);
            self.tail = self.tail.wrapping_add(1);
            AtomicU16::from_ptr(BufRingEntry::tail(ring).cast_mut()).store(self.tail, Ordering::Release);
        }
    }

    /// The bytes of a buffer that the kernel has filled. The caller gives it back after use.
    pub fn filled(&mut self, buffer: u16, len: usize) -> &mut [u8] {
        // SAFETY: within the buffer, which is initialised; the kernel took it out of the ring, and the borrow ends before it goes back.
        unsafe { std::slice::from_raw_parts_mut(self.memory.buffer(buffer), len.min(STRIDE)) }
    }
}

/// The parts of a filled buffer whose run is described.
pub struct Described<'a> {
    pub name: &'a [u8],
    pub control: &'a [u8],
    pub flags: i32,
    pub payload: &'a mut [u8],
}

/// Reads what the kernel wrote before the payload. None if it is too short.
pub fn described(bytes: &mut [u8]) -> Option<Described<'_>> {
    let (head, payload) = bytes.split_at_mut_checked(PAYLOAD_AT)?;
    let (lengths, rest) = head.split_at(HEAD_BYTES);
    let word = |at: usize| lengths[4 * at..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
    let (name, control) = rest.split_at(NAME_BYTES);
    Some(Described {
        name: &name[..NAME_BYTES.min(word(0) as usize)],
        control: &control[..CONTROL_BYTES.min(word(1) as usize)],
        flags: word(3) as i32,
        payload,
    })
}
