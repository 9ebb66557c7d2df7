//! The doorbell: wakes a sleeping consumer.
//!
//! A consumer that is about to sleep **arms** its bell, makes every processor fence ([`heavy_barrier`]), looks at every lane once
//! more, and sleeps on the bell's word. A producer publishes its packet and then only reads the word. The word stays shared in
//! the producer's cache, so an unarmed bell costs one load. There is no fence between the publishing store and this load; the
//! consumer's heavy barrier replaces it. Either the producer's load comes after the barrier and sees the armed bell, or its store
//! came before the barrier and the consumer's last look finds the packet.

use doorbell_fabric::sync::{AtomicU32, Ordering, Reach, fence, heavy_barrier, light_barrier};
#[cfg(not(loom))]
use doorbell_fabric::world;
#[cfg(not(loom))]
use rustix::thread::futex::{self, Flags, Timespec};
#[cfg(not(loom))]
use std::num::NonZeroU32;
use std::time::Duration;

/// The doorbell words of one node, in the header page of its inbox.
#[repr(C, align(128))]
pub struct Bell {
    /// The number of the thread that sleeps or is about to, and 0 while the consumer is awake. The consumer sets it; the thread
    /// that wakes the consumer clears it.
    armed: AtomicU32,
    #[cfg(not(loom))]
    _apart: [u32; 31],
    /// Not zero once the owner has left in good order. The owner writes it; peers read it once the owner is gone.
    departed: AtomicU32,
    #[cfg(loom)]
    kernel: (loom::sync::Mutex<()>, loom::sync::Condvar),
}

#[cfg(not(loom))]
const _: () = assert!(std::mem::size_of::<Bell>() == 256 && std::mem::offset_of!(Bell, departed) == 128);

/// The number of a sleeper where there is only one.
const ONLY: u32 = 1;

impl Bell {
    /// The bell in the header page of an inbox.
    ///
    /// # Safety
    /// `header` is the page-aligned start of at least one readable and writable page that stays mapped for `'a`.
    #[cfg(not(loom))]
    pub unsafe fn at<'a>(header: *mut u8) -> &'a Bell {
        // SAFETY: inside the page and aligned (constants in layout); all fields are atomics, so other writers are allowed.
        unsafe { &*header.add(crate::layout::DOORBELL_OFFSET).cast() }
    }

    /// A bell that loom watches.
    #[cfg(loom)]
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self { armed: AtomicU32::new(0), departed: AtomicU32::new(0), kernel: Default::default() }
    }

    /// Producer, after publishing: wakes a sleeping consumer. Costs one load, or a system call of some microseconds if the
    /// consumer sleeps.
    ///
    /// `fenced` says that heavy barriers do not reach between these two processes, so this side must fence.
    #[inline(always)]
    pub fn ring(&self, fenced: bool) {
        if fenced {
            fence(Ordering::SeqCst);
        }
        if self.is_to_be_woken() {
            self.wake();
        }
    }

    /// Producer, after publishing: whether to [wake](Self::wake) the consumer. Only where heavy barriers reach both processes.
    #[inline(always)]
    pub fn is_to_be_woken(&self) -> bool {
        light_barrier();
        self.armed.load(Ordering::Relaxed) != 0
    }

    /// Wakes the consumer if it is armed. For the rare callers that changed something other than a lane.
    #[cold]
    pub fn wake(&self) {
        if self.armed.swap(0, Ordering::AcqRel) != 0 {
            fault_point!("bell.claimed");
            self.futex_wake();
        }
    }

    /// Consumer: announces that it will sleep. Look at every lane after this call and before [`sleep`](Self::sleep). Returns
    /// false where heavy barriers do not work: then sleep for a millisecond at most, because a wake-up may be lost.
    pub fn arm(&self) -> bool {
        self.arm_as(ONLY)
    }

    /// Like [`arm`](Self::arm), for one of several threads that sleep here in turns. Each thread has a number of its own, which
    /// is not 0. A thread that was told to make room finds another number than its own, and does not sleep.
    pub fn arm_as(&self, sleeper: u32) -> bool {
        // An exchange, so that it comes after the store of a producer that woke an earlier sleep.
        self.armed.swap(sleeper, Ordering::AcqRel);
        heavy_barrier(Reach::Machine)
    }

    /// Consumer: makes the sleeping thread look again and make room, even if the bell was disarmed since that thread armed it.
    pub fn rouse(&self) {
        // An exchange, and a wake-up whatever it finds: a sleeper that arms after this sees the stores before it.
        self.armed.swap(0, Ordering::AcqRel);
        self.futex_wake();
    }

    /// Consumer: whether the bell is armed.
    #[inline(always)]
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != 0
    }

    /// Consumer: undoes [`arm`](Self::arm).
    pub fn disarm(&self) {
        self.armed.store(0, Ordering::Relaxed);
    }

    /// Consumer: disarms the bell if it is armed for this sleeper. Another thread may have armed it since for itself, and
    /// sleeps on its own number.
    pub fn disarm_as(&self, sleeper: u32) {
        let _ = self.armed.compare_exchange(sleeper, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Consumer: the word to sleep on by other means than [`sleep`](Self::sleep), while it is the number of the sleeper.
    #[cfg(not(loom))]
    pub fn word(&self) -> &AtomicU32 {
        fault_point!("bell.sleeping");
        &self.armed
    }

    /// Consumer: sleeps while armed, for `timeout` at most. May return early.
    pub fn sleep(&self, timeout: Duration) {
        self.sleep_as(ONLY, timeout);
    }

    /// Consumer: sleeps while armed by this sleeper, for `timeout` at most. May return early.
    pub fn sleep_as(&self, sleeper: u32, timeout: Duration) {
        fault_point!("bell.sleeping");
        self.futex_wait(sleeper, timeout);
    }

    /// Records that the owner leaves in good order.
    pub fn depart(&self) {
        self.departed.store(1, Ordering::Release);
    }

    /// Whether the owner left in good order. Meaningful only once the owner is gone.
    pub fn departed(&self) -> bool {
        self.departed.load(Ordering::Acquire) != 0
    }

    #[cfg(not(loom))]
    fn futex_wait(&self, sleeper: u32, timeout: Duration) {
        futex_wait(&self.armed, sleeper, timeout);
    }

    #[cfg(not(loom))]
    fn futex_wake(&self) {
        futex_wake(&self.armed);
    }

    #[cfg(loom)]
    fn futex_wait(&self, sleeper: u32, _timeout: Duration) {
        // Like the kernel, compare and queue under one lock. There is no timeout: loom reports a lost wake-up as a deadlock.
        let guard = self.kernel.0.lock().unwrap();
        if self.armed.load(Ordering::Relaxed) == sleeper {
            drop(self.kernel.1.wait(guard).unwrap());
        }
    }

    #[cfg(loom)]
    fn futex_wake(&self) {
        let _guard = self.kernel.0.lock().unwrap();
        self.kernel.1.notify_all();
    }
}

/// Sleeps while `*word == expected`, for `timeout` at most. Works between processes. May return early.
#[cfg(not(loom))]
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    if !world::has_slept(timeout) {
        // Every error means "look again", and every caller does.
        let _ = futex::wait(word, Flags::empty(), expected, Some(&timespec(timeout)));
    }
}

/// Wakes every thread that sleeps on `word`, in any process.
#[cfg(not(loom))]
pub fn futex_wake(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::empty(), i32::MAX as u32);
}

/// Sleeps like [`futex_wait`], until [`futex_wake_some`] wakes one of these kinds.
#[cfg(not(loom))]
pub(crate) fn futex_wait_as(word: &AtomicU32, expected: u32, kinds: NonZeroU32, timeout: Duration) {
    let until = crate::clock::now_ns().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX >> 1));
    // This operation takes the absolute time of the timeout, by the clock that `now_ns` reads.
    let until = timespec(Duration::from_nanos(until));
    let _ = futex::wait_bitset(word, Flags::empty(), expected, Some(&until), kinds);
}

/// Wakes up to `most` sleepers on `word` of these kinds, and returns their number.
#[cfg(not(loom))]
pub(crate) fn futex_wake_some(word: &AtomicU32, kinds: NonZeroU32, most: i32) -> usize {
    futex::wake_bitset(word, Flags::empty(), most as u32, kinds).unwrap_or(0)
}

#[cfg(not(loom))]
fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().min(1 << 30) as i64, tv_nsec: time.subsec_nanos().into() }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use doorbell_fabric::sync::AtomicU32;
    use std::sync::Arc;

    /// A sleeping consumer wakes for a packet published before or after it armed.
    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let shared = Arc::new((Bell::new(), AtomicU32::new(0)));
            let producer = shared.clone();
            let sender = loom::thread::spawn(move || {
                producer.1.store(1, Ordering::Release);
                producer.0.ring(false);
            });
            let (bell, word) = (&shared.0, &shared.1);
            while word.load(Ordering::Acquire) == 0 {
                let _ = bell.arm();
                if word.load(Ordering::Acquire) == 0 {
                    bell.sleep(Duration::MAX);
                }
                bell.disarm();
            }
            sender.join().unwrap();
        });
    }

    /// Two producers and one consumer that sleeps more than once.
    #[test]
    fn two_producers_wake_one_consumer() {
        loom::model(|| {
            let shared = Arc::new((Bell::new(), AtomicU32::new(0)));
            let senders: Vec<_> = (0..2)
                .map(|_| {
                    let producer = shared.clone();
                    loom::thread::spawn(move || {
                        producer.1.fetch_add(1, Ordering::Release);
                        producer.0.ring(false);
                    })
                })
                .collect();
            let (bell, word) = (&shared.0, &shared.1);
            while word.load(Ordering::Acquire) < 2 {
                let _ = bell.arm();
                if word.load(Ordering::Acquire) < 2 {
                    bell.sleep(Duration::MAX);
                }
                bell.disarm();
            }
            for sender in senders {
                sender.join().unwrap();
            }
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_is_woken() {
        let page = Box::new([0_u64; 512]);
        #[repr(align(4096))]
        struct Page([u8; 4096]);
        drop(page);
        let page = Box::leak(Box::new(Page([0; 4096])));
        // SAFETY: a leaked page.
        let bell: &'static Bell = unsafe { Bell::at(page.0.as_mut_ptr()) };
        assert!(bell.arm());
        let waker = std::thread::spawn(move || bell.ring(false));
        // The wake-up ends the loop; the timeout is far longer than a test run.
        while bell.armed.load(Ordering::Relaxed) == 1 {
            bell.sleep(Duration::from_secs(600));
        }
        waker.join().unwrap();
        // SAFETY: no reference is left.
        drop(unsafe { Box::from_raw(page as *mut Page) });
    }
}
