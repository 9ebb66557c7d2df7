//! A ring of bytes in shared memory with one sender and one receiver.
//!
//! A message is its length in eight bytes, then its bytes, up to the next multiple of eight. Positions only grow. Each end keeps
//! its own position and the last one that it saw of the other.

use crossbeam_utils::CachePadded;
use shared_memory::Shmem;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes of a ring. A power of two.
const ROOM: usize = 1 << 20;
/// The bytes of a piece, if a message does not fit into the ring.
const PIECE: usize = ROOM / 4;
/// The bytes of a message's length.
const HEADER: usize = size_of::<u64>();

/// The beginning of the shared memory; the bytes follow.
#[repr(C)]
struct Ends {
    /// Everything before it was received.
    head: CachePadded<AtomicU64>,
    /// Everything before it was sent.
    tail: CachePadded<AtomicU64>,
}

/// The size of the shared memory, which is zero at first.
pub const SHARED: usize = size_of::<Ends>() + ROOM;

/// The shared memory as one end sees it.
struct Shared {
    memory: Shmem,
}

impl Shared {
    fn new(memory: Shmem) -> Option<Self> {
        let fits = memory.len() >= SHARED && memory.as_ptr().cast::<Ends>().is_aligned();
        fits.then_some(Self { memory })
    }

    #[inline(always)]
    fn ends(&self) -> &Ends {
        // SAFETY: `new` checked length and alignment. The memory lives as long as this, and holds only atomics there.
        unsafe { &*self.memory.as_ptr().cast::<Ends>() }
    }

    /// The bytes from a position to the end of the ring, and their number.
    #[inline(always)]
    fn from(&self, position: u64) -> (*mut u8, usize) {
        let at = position as usize % ROOM;
        // SAFETY: `new` checked the length, and `at` is below `ROOM`.
        (unsafe { self.memory.as_ptr().add(size_of::<Ends>() + at) }, ROOM - at)
    }

    /// Copies into the ring, around its end if need be.
    ///
    /// # Safety
    /// The bytes from the position on are the sender's, and there are at most [`ROOM`] of them.
    #[inline(always)]
    unsafe fn write(&self, position: u64, bytes: &[u8]) {
        let (to, left) = self.from(position);
        let (first, second) = bytes.split_at(left.min(bytes.len()));
        // SAFETY: the first part ends with the ring at the latest; the second begins with the ring and ends before the first.
        unsafe {
            ptr::copy_nonoverlapping(first.as_ptr(), to, first.len());
            ptr::copy_nonoverlapping(second.as_ptr(), self.from(0).0, second.len());
        }
    }

    /// Copies out of the ring, around its end if need be.
    ///
    /// # Safety
    /// The bytes from the position on are the receiver's, and there are at most [`ROOM`] of them.
    #[inline(always)]
    unsafe fn read(&self, position: u64, into: &mut [u8]) {
        let (from, left) = self.from(position);
        let (first, second) = into.split_at_mut(left.min(into.len()));
        // SAFETY: as in `write`.
        unsafe {
            ptr::copy_nonoverlapping(from, first.as_mut_ptr(), first.len());
            ptr::copy_nonoverlapping(self.from(0).0, second.as_mut_ptr(), second.len());
        }
    }
}

/// The bytes that a number of bytes takes in the ring.
#[inline(always)]
fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(HEADER)
}

/// The end that sends.
pub struct Sender {
    shared: Shared,
    tail: u64,
    /// The last head that was seen.
    head: u64,
}

impl Sender {
    /// The sender of a ring in new memory; `None` if that is too small.
    pub fn new(memory: Shmem) -> Option<Self> {
        Some(Self { shared: Shared::new(memory)?, tail: 0, head: 0 })
    }

    /// Sends a message if there is room for it, or the next piece of a long one. `done` counts the bytes of the message that are
    /// sent. Returns whether that is all of them.
    #[inline(always)]
    pub fn push(&mut self, message: &[u8], done: &mut usize) -> bool {
        let header = if *done == 0 { HEADER } else { 0 };
        let rest = message.len() - *done;
        let piece = if HEADER + padded(message.len()) <= ROOM { rest } else { rest.min(PIECE) };
        let taken = (header + padded(piece)) as u64;
        if self.tail + taken - self.head > ROOM as u64 {
            self.head = self.shared.ends().head.load(Ordering::Acquire);
            if self.tail + taken - self.head > ROOM as u64 {
                return false;
            }
        }
        // SAFETY: the receiver is done with everything before its head, so there is room for both from the tail on.
        unsafe {
            if header > 0 {
                self.shared.write(self.tail, &(message.len() as u64).to_ne_bytes());
            }
            self.shared.write(self.tail + header as u64, &message[*done..*done + piece]);
        }
        self.tail += taken;
        self.shared.ends().tail.store(self.tail, Ordering::Release);
        *done += piece;
        *done == message.len()
    }

    /// Sends whole messages as long as there is room, and publishes them together. Returns their number.
    #[inline(always)]
    pub fn push_many<'a>(&mut self, messages: impl Iterator<Item = &'a [u8]>) -> usize {
        let mut sent = 0;
        for message in messages {
            let taken = (HEADER + padded(message.len())) as u64;
            if self.tail + taken - self.head > ROOM as u64 {
                self.head = self.shared.ends().head.load(Ordering::Acquire);
                if self.tail + taken - self.head > ROOM as u64 {
                    break;
                }
            }
            // SAFETY: as in `push`.
            unsafe {
                self.shared.write(self.tail, &(message.len() as u64).to_ne_bytes());
                self.shared.write(self.tail + HEADER as u64, message);
            }
            self.tail += taken;
            sent += 1;
        }
        if sent > 0 {
            self.shared.ends().tail.store(self.tail, Ordering::Release);
        }
        sent
    }
}

/// The end that receives.
pub struct Receiver {
    shared: Shared,
    head: u64,
    /// The last tail that was seen.
    tail: u64,
}

impl Receiver {
    /// The receiver of a ring in new memory; `None` if that is too small.
    pub fn new(memory: Shmem) -> Option<Self> {
        Some(Self { shared: Shared::new(memory)?, head: 0, tail: 0 })
    }

    /// Receives what there is of the next message. `done` counts the bytes of the message that were received. Returns whether that
    /// is all of them.
    ///
    /// # Errors
    /// The length of the message, if `into` has another.
    #[inline(always)]
    pub fn pull(&mut self, into: &mut [u8], done: &mut usize) -> Result<bool, u64> {
        if self.tail == self.head {
            self.tail = self.shared.ends().tail.load(Ordering::Acquire);
            if self.tail == self.head {
                return Ok(false);
            }
        }
        let mut at = self.head;
        if *done == 0 {
            let mut length = [0; HEADER];
            // SAFETY: the sender has sent everything before its tail, and a message's first piece comes with its length.
            unsafe { self.shared.read(at, &mut length) };
            let length = u64::from_ne_bytes(length);
            if length != into.len() as u64 {
                return Err(length);
            }
            at += HEADER as u64;
        }
        let piece = (into.len() - *done).min((self.tail - at) as usize);
        // SAFETY: as above, and no more than `ROOM` bytes are between head and tail.
        unsafe { self.shared.read(at, &mut into[*done..*done + piece]) };
        self.head = at + padded(piece) as u64;
        self.shared.ends().head.store(self.head, Ordering::Release);
        *done += piece;
        Ok(*done == into.len())
    }

    /// Receives messages that are there, each into a buffer of its own and no more than there are buffers, and frees their places
    /// together. `read` gets each message. Returns their number. Only for messages that fit into the ring.
    ///
    /// # Errors
    /// The length of a message, if its buffer has another.
    #[inline(always)]
    pub fn pull_many<'a>(
        &mut self,
        buffers: impl Iterator<Item = &'a mut [u8]>,
        read: &mut impl FnMut(&[u8]),
    ) -> Result<usize, u64> {
        if self.tail == self.head {
            self.tail = self.shared.ends().tail.load(Ordering::Acquire);
        }
        let mut taken = 0;
        for into in buffers {
            if self.tail == self.head {
                break;
            }
            let mut length = [0; HEADER];
            // SAFETY: as in `pull`.
            unsafe { self.shared.read(self.head, &mut length) };
            let length = u64::from_ne_bytes(length);
            if length != into.len() as u64 {
                return Err(length);
            }
            // SAFETY: a message that fits into the ring was published whole.
            unsafe { self.shared.read(self.head + HEADER as u64, into) };
            read(into);
            self.head += (HEADER + padded(into.len())) as u64;
            taken += 1;
        }
        if taken > 0 {
            self.shared.ends().head.store(self.head, Ordering::Release);
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_memory::ShmemConf;

    fn ring() -> (Sender, Receiver) {
        let here = ShmemConf::new().size(SHARED).create().expect("memory");
        let there = ShmemConf::new().os_id(here.get_os_id()).open().expect("the same memory");
        (Sender::new(here).expect("large enough"), Receiver::new(there).expect("large enough"))
    }

    #[test]
    fn messages_of_all_lengths_arrive_around_the_end_and_in_pieces() {
        let (mut sender, mut receiver) = ring();
        for round in 0..40_usize {
            for bytes in [1, 8, 13, 64, 4_096, 100_001, ROOM - HEADER, ROOM, 3 * ROOM + 5] {
                let sent: Vec<u8> = (0..bytes).map(|at| (at * 7 + round) as u8).collect();
                let mut got = vec![0; bytes];
                let (mut out, mut back, mut pieces) = (0, 0, 0);
                while back < bytes {
                    if out < bytes {
                        sender.push(&sent, &mut out);
                    }
                    let all = receiver.pull(&mut got, &mut back).expect("the right length");
                    assert_eq!(all, back == bytes);
                    pieces += 1;
                }
                assert!(out == bytes && got == sent, "{bytes} bytes in round {round}");
                assert_eq!(pieces > 1, HEADER + bytes > ROOM, "{bytes} bytes came in {pieces} pieces");
            }
        }
    }

    #[test]
    fn batches_arrive_around_the_end_and_end_where_there_is_no_room() {
        let (mut sender, mut receiver) = ring();
        // 72 bytes a message: the ring ends within one.
        let (bytes, count) = (64, 3 * ROOM / 72);
        let all: Vec<u8> = (0..bytes * count).map(|at| (at * 7 / 5) as u8).collect();
        let (mut sent, mut got, mut room) = (0, Vec::new(), vec![0; 50 * bytes]);
        while got.len() < all.len() {
            let pushed = sender.push_many(all[sent * bytes..].chunks_exact(bytes));
            assert!(pushed < count, "a ring of {ROOM} bytes took everything");
            sent += pushed;
            let read = &mut |message: &[u8]| got.extend_from_slice(message);
            let pulled = receiver.pull_many(room.chunks_exact_mut(bytes), read).expect("the right length");
            assert!(0 < pulled && pulled <= 50);
        }
        assert!(got == all);
        assert_eq!(receiver.pull_many(room.chunks_exact_mut(bytes), &mut |_| {}), Ok(0));
        assert_eq!(sender.push_many([&[1; 8][..]].into_iter()), 1);
        assert_eq!(receiver.pull_many(room.chunks_exact_mut(bytes), &mut |_| {}), Err(8));
    }

    #[test]
    fn a_full_ring_takes_nothing_and_an_empty_one_gives_nothing() {
        let (mut sender, mut receiver) = ring();
        let (message, mut into) = ([3; 1_000], [0; 1_000]);
        assert_eq!(receiver.pull(&mut into, &mut 0), Ok(false));
        let sent = (0..2_000).take_while(|_| sender.push(&message, &mut 0)).count();
        assert_eq!(sent, ROOM / (HEADER + 1_000));
        assert_eq!(receiver.pull(&mut [0; 8], &mut 0), Err(1_000));
        let got = (0..2_000).take_while(|_| receiver.pull(&mut into, &mut 0) == Ok(true)).count();
        assert_eq!((got, into), (sent, message));
        assert!(sender.push(&message, &mut 0));
    }
}
