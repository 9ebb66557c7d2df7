//! A doorbell that `poll(2)` can wait for.
//!
//! A thread sleeps on a doorbell word by `futex(2)` and waits for sockets by `poll(2)`; without io_uring no call does both. So a
//! separate thread, the *listener*, sleeps on the word and passes a ring on to an eventfd. It stays asleep from one park to the
//! next, because the word has the same value whenever the same sleeper is parked. Thus a park costs nothing extra as long as
//! nothing rings. A ring costs one more wake-up than with io_uring. The next park, or the park of another sleeper, must wake the
//! listener.
//!
//! No ring is lost. The listener goes to rest only after it found the word rung, and then signals the eventfd. A parking thread
//! clears the eventfd *before* it wakes the listener. The kernel compares the word, so the listener cannot fall asleep on a word
//! that was rung meanwhile.

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

/// How long the listener sleeps on a word before it checks whether to go on. The word's memory may be gone by then.
const LISTEN_MOST: Duration = Duration::from_secs(1);

/// The parked thread's handle on the listener.
pub struct Listener(Arc<Shared>);

struct Shared {
    state: AtomicU32,
    word: AtomicUsize,
    expected: AtomicU32,
    rung: File,
}

impl Listener {
    /// Starts the thread. It ends within a second after this is dropped.
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

    /// Becomes readable when the bell rings.
    pub fn rung(&self) -> BorrowedFd<'_> {
        self.0.rung.as_fd()
    }

    /// Makes the listener listen. The word is `expected` until it is rung.
    pub fn listen(&self, bell: &AtomicU32, expected: u32) {
        let shared = &*self.0;
        self.clear();
        let word = address(bell);
        let (other_value, before) = (shared.expected.swap(expected, SeqCst) != expected, shared.word.swap(word, SeqCst));
        if before != 0 && (other_value || before != word) {
            // The listener may sleep on another word, or for another value. The wake-up looks like a ring to the listener and to
            // the parking thread.
            futex_wake(before);
        }
        if shared.state.swap(LISTENS, SeqCst) == RESTS {
            futex_wake(address(&shared.state));
        }
    }

    /// Takes a ring that was noticed.
    pub fn clear(&self) {
        let mut count = [0; 8];
        // An empty eventfd is fine too.
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
                        continue; // The timeout passed.
                    }
                    // Rest first: a park that begins now finds the listener at rest and wakes it again, after clearing the
                    // eventfd.
                    let _ = self.state.compare_exchange(LISTENS, RESTS, SeqCst, SeqCst);
                    // A full eventfd is fine too: it is readable.
                    let _ = (&self.rung).write(&1_u64.to_ne_bytes());
                }
            }
        }
    }
}

fn address(word: &AtomicU32) -> usize {
    word.as_ptr() as usize
}
