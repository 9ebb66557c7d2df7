//! A counter is watched at every moment: by a thread that looks at it without end, and by threads that wait for it.

use doorbell::{Counter, Error, Node};
use doorbell_tests::patience::{PATIENCE, soon};
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::{Scope, ScopedJoinHandle, yield_now};
use std::time::{Duration, Instant};

/// One use of a counter, from its beginning to zero.
pub struct Use {
    pub node: Node,
    pub counter: Counter,
    /// What it was set to.
    pub size: u64,
    /// It may rise: a message may be given up in the middle, and its bytes then do not count.
    pub rises: bool,
    /// The test itself lowers the counter from now on, so that it says no more what moved.
    released: AtomicBool,
    /// Nothing more happens to it.
    over: AtomicBool,
}

/// The threads of a use.
pub struct Threads<'scope>([ScopedJoinHandle<'scope, ()>; 3]);

impl Use {
    pub fn begin(node: &Node, size: u64, rises: bool) -> Self {
        let counter = node.counter().unwrap();
        counter.interrupt().unwrap();
        counter.init(size).unwrap();
        Self { node: node.clone(), counter, size, rises, released: AtomicBool::new(false), over: AtomicBool::new(false) }
    }

    /// Whether the counter has fallen to this share of its size, in percent.
    pub fn fell_to(&self, percent: u64) -> bool {
        self.counter.value() * 100 <= self.size * percent
    }

    fn is_closed(&self) -> bool {
        self.node.metrics().is_err()
    }

    /// Starts the threads. `at_zero` runs when the counter came to zero by what was moved alone.
    pub fn observe<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        pause: Duration,
        at_zero: impl FnOnce() + Send + 'scope,
    ) -> Threads<'scope> {
        let patient = move || match self.counter.wait_until(soon()) {
            Ok(()) => {
                assert_eq!(self.counter.value(), 0, "a wait ended before zero");
                if !self.released.load(SeqCst) {
                    at_zero();
                }
            }
            Err(Error::Closed) => {}
            Err(error) => panic!("{error}: {} of {} bytes are left", self.counter.value(), self.size),
        };
        let hasty = move || {
            loop {
                let deadline = Instant::now() + pause;
                let ended = self.counter.wait_until(deadline);
                let late = Instant::now().saturating_duration_since(deadline);
                assert!(late < PATIENCE, "a wait ended {late:?} after its deadline");
                match ended {
                    Ok(()) | Err(Error::Closed) => return,
                    Err(Error::Timeout { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let interrupt = self.counter.interrupt().unwrap();
        Threads([scope.spawn(move || self.watch(interrupt)), scope.spawn(patient), scope.spawn(hasty)])
    }

    /// Looks at value, status bit and interrupt until the use is over: the value never rises, and the others come once.
    fn watch(&self, interrupt: BorrowedFd<'_>) {
        let (word, bit) = (self.counter.index() / 64, 1 << (self.counter.index() % 64));
        let (mut last, mut marks, mut fired, mut looks) = (self.size, 0, 0, 0);
        let deadline = soon() + PATIENCE;
        loop {
            let over = self.over.load(SeqCst);
            let marked = self.node.counter_status()[word] & bit != 0;
            let value = self.counter.value();
            assert!(value <= self.size, "{value} bytes are left of {}", self.size);
            assert!(value <= last || self.rises && last > 0, "the counter rose from {last} to {value}");
            assert!(!marked || value == 0, "the status bit is set while {value} bytes are left");
            last = value;
            // Cleared each time, so that a second time shows.
            if marked && self.counter.clear().is_ok() {
                marks += 1;
            }
            let mut times = [0; 8];
            if rustix::io::read(interrupt, &mut times).is_ok() {
                fired += u64::from_ne_bytes(times);
                assert_eq!(self.counter.value(), 0, "an interrupt before zero");
            }
            assert!(marks <= 1 && fired <= 1, "{marks} times in the status register, {fired} interrupts");
            if over {
                // The thread that lowered it may still be about to tell.
                looks += u32::from((marks, fired) == (1, 1) || self.is_closed());
                if looks > 3 {
                    return;
                }
                assert!(Instant::now() < deadline, "at zero: {marks} times in the status register, {fired} interrupts");
            }
            yield_now();
        }
    }

    /// Checks what is left when the operations are over: of their bytes, between `least` and `most` were counted. Then lowers the
    /// counter to zero, which ends all waits.
    #[track_caller]
    pub fn end(&self, least: u64, most: u64) {
        if !self.is_closed() {
            let left = |moved: u64| self.size.saturating_sub(moved);
            // What a peer reports comes later.
            let deadline = soon();
            while self.counter.value() > left(least) && Instant::now() < deadline {
                self.node.progress().unwrap();
            }
            let value = self.counter.value();
            let range = left(most)..=left(least);
            assert!(range.contains(&value), "{value} bytes of {} are left, not {range:?}", self.size);
            self.released.store(value > 0, SeqCst);
            let lowered = self.counter.lower(value).unwrap();
            assert!(least != most || value == 0 || lowered.reached_zero(), "{lowered:?} instead of zero");
        }
        self.over.store(true, SeqCst);
    }
}

/// Lets the threads of a use end if the test fails.
pub struct Release<'a>(pub &'a Use);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        if !self.0.over.swap(true, SeqCst) {
            self.0.released.store(true, SeqCst);
            let _ = self.0.counter.lower(u64::MAX);
        }
    }
}

impl Threads<'_> {
    pub fn join(self) {
        for thread in self.0 {
            thread.join().unwrap_or_else(|error| std::panic::resume_unwind(error));
        }
    }
}
