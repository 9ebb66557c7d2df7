//! A doorbell that `poll(2)` hears.
//!
//! A doorbell is a word on which one sleeps by `futex(2)`, and sockets are waited for by `poll(2)`; without io_uring no call does both. So
//! a thread of its own, the *listener*, sleeps on the word and passes a ring on to an eventfd. It stays there from one park to the
//! next, as the word says the same whenever somebody is parked: a park costs nothing more as long as nobody rings. A ring costs a wake more
//! than with io_uring, and the park after a ring has to wake the listener.
//!
//! No ring is lost. The listener goes to rest only after it found the word rung, and then signals the eventfd; whoever parks clears the
//! eventfd *before* it calls the listener up. Sleeping again on a word that is rung meanwhile is prevented by the kernel, which compares
//! the word.

#![forbid(unsafe_code)]

use super::calls::{futex_wait, futex_wake};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

const RESTS: u32 = 0;
const LISTENS: u32 = 1;
const ENDS: u32 = 2;

/// How long the listener sleeps on a word before it looks whether it is to go on. The word may be of memory that is gone by then.
const LISTEN_MOST: Duration = Duration::from_secs(1);

/// The listener, as the parked thread sees it.
pub struct Listener(Arc<Shared>);

struct Shared {
    state: AtomicU32,
    word: AtomicUsize,
    expected: AtomicU32,
    rung: File,
}

impl Listener {
    /// Starts the thread. It ends, at once or within a second, when this is dropped.
    pub fn start() -> io::Result<Self> {
        let rung = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared {
            state: AtomicU32::new(RESTS),
            word: AtomicUsize::new(0),
            expected: AtomicU32::new(0),
            rung: rung.into(),
        });
        let other = shared.clone();
        std::thread::Builder::new().name("doorbell-listen".into()).stack_size(64 << 10).spawn(move || other.run())?;
        Ok(Self(shared))
    }

    /// What becomes readable when the bell rings.
    pub fn rung(&self) -> BorrowedFd<'_> {
        self.0.rung.as_fd()
    }

    /// Makes it listen. The word says `expected` until somebody rings.
    pub fn listen(&self, bell: &AtomicU32, expected: u32) {
        let shared = &*self.0;
        self.clear();
        let word = address(bell);
        let (other_value, before) = (shared.expected.swap(expected, SeqCst) != expected, shared.word.swap(word, SeqCst));
        if before != 0 && (other_value || before != word) {
            // It may sleep on another word, or for another value. This looks like a ring to it, and to whoever parks.
            futex_wake(before);
        }
        if shared.state.swap(LISTENS, SeqCst) == RESTS {
            futex_wake(address(&shared.state));
        }
    }

    /// Takes a ring that has been noticed.
    pub fn clear(&self) {
        let mut count = [0; 8];
        // Nothing to read is as good.
        let _ = (&self.0.rung).read(&mut count);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.state.store(ENDS, SeqCst);
        futex_wake(address(&self.0.state));
        futex_wake(self.0.word.load(SeqCst));
    }
}

impl Shared {
    fn run(&self) {
        loop {
            match self.state.load(SeqCst) {
                ENDS => return,
                RESTS => drop(futex_wait(address(&self.state), RESTS, Duration::MAX)),
                _ => {
                    let (word, expected) = (self.word.load(SeqCst), self.expected.load(SeqCst));
                    if !futex_wait(word, expected, LISTEN_MOST) {
                        continue; // The time was over.
                    }
                    // Rest first: a park that begins now finds it resting and calls it up again, after it cleared the eventfd.
                    let _ = self.state.compare_exchange(LISTENS, RESTS, SeqCst, SeqCst);
                    // Full is as good: then it is readable.
                    let _ = (&self.rung).write(&1_u64.to_ne_bytes());
                }
            }
        }
    }
}

fn address(word: &AtomicU32) -> usize {
    word.as_ptr() as usize
}
