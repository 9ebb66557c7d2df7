//! Deadlines: for what must happen, and for what must not.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long anything may take that must happen. Far longer than it does take, on a slow and crowded machine too.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The deadline of something that must happen.
pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// The deadline of something that must not happen, or need not.
pub fn briefly() -> Instant {
    Instant::now() + Duration::from_millis(20)
}

/// Runs something that might hang if it were wrong. Panics if it does; its thread is then lost.
#[track_caller]
pub fn finishes<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    running(what, run).join()
}

/// Something that runs in a thread of its own and might hang if it were wrong.
pub struct Running<T> {
    what: String,
    result: mpsc::Receiver<thread::Result<T>>,
    started: mpsc::Receiver<()>,
}

/// Starts something that might hang if it were wrong.
pub fn running<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> Running<T> {
    let (sender, result) = mpsc::channel();
    let (start, started) = mpsc::channel();
    thread::spawn(move || {
        let _ = start.send(());
        let _ = sender.send(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)));
    });
    Running { what: what.to_owned(), result, started }
}

impl<T> Running<T> {
    /// Waits until its thread runs.
    pub fn started(self) -> Self {
        let _ = self.started.recv_timeout(PATIENCE);
        self
    }

    /// Waits for its end. Panics if it does not come.
    #[track_caller]
    pub fn join(self) -> T {
        match self.result.recv_timeout(PATIENCE) {
            Ok(Ok(value)) => value,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => panic!("{} hangs: no end after {PATIENCE:?}", self.what),
        }
    }
}

/// Asks again and again until there is an answer. Panics if there is none in time.
#[track_caller]
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = soon();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not after {PATIENCE:?}");
        thread::yield_now();
    }
}

/// Runs a future on this thread.
#[track_caller]
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    let deadline = soon();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "a future is not ready after {PATIENCE:?}");
        thread::park_timeout(left);
    }
}
