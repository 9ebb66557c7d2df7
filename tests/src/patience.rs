//! Deadlines: for events that must happen, and for those that must not.

use doorbell::{Completion, Error, Operation};
use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The longest that an event may take that must happen: far longer than it takes on a slow and busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The deadline of an event that must happen.
pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// The deadline of an event that must not happen, or need not.
pub fn briefly() -> Instant {
    Instant::now() + Duration::from_millis(20)
}

/// Cancels a send or a receive. `Ok` has the buffer of one that did not take place, `Err` the end of one that did.
pub fn take_back<B, R>(operation: Operation<Completion<B, R>>) -> Result<B, Completion<B, R>> {
    let completion = operation.cancel();
    match completion.result {
        Err(Error::Cancelled) => Ok(completion.buffer),
        _ => Err(completion),
    }
}

/// Runs a function that hangs if the code under test is wrong. Panics if it does; its thread is then lost.
#[track_caller]
pub fn finishes<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    running(what, run).join()
}

/// A function that runs in a thread of its own, and hangs if the code under test is wrong.
pub struct Running<T> {
    result: Arc<Mutex<Option<thread::Result<T>>>>,
    signals: Signals,
}

/// The signals of a thread. They have no type parameter, as channels of every type are much code in every test program.
struct Signals {
    what: String,
    started: mpsc::Receiver<()>,
    ended: mpsc::Receiver<()>,
}

/// Starts a function that hangs if the code under test is wrong.
pub fn running<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> Running<T> {
    let result = Arc::new(Mutex::new(None));
    let place = result.clone();
    let run = move || {
        let outcome = panic::catch_unwind(AssertUnwindSafe(run));
        *place.lock().unwrap() = Some(outcome);
    };
    Running { result, signals: Signals::start(what, Box::new(run)) }
}

impl<T> Running<T> {
    /// Waits until its thread runs.
    pub fn started(self) -> Self {
        let _ = self.signals.started.recv_timeout(PATIENCE);
        self
    }

    /// Waits for its end. Panics if it does not come.
    #[track_caller]
    pub fn join(self) -> T {
        self.signals.wait();
        let outcome = self.result.lock().unwrap().take().unwrap();
        outcome.unwrap_or_else(|error| panic::resume_unwind(error))
    }
}

impl Signals {
    fn start(what: &str, run: Box<dyn FnOnce() + Send>) -> Self {
        let ((start, started), (end, ended)) = (mpsc::channel(), mpsc::channel());
        thread::spawn(move || {
            let _ = start.send(());
            run();
            let _ = end.send(());
        });
        Self { what: what.to_owned(), started, ended }
    }

    #[track_caller]
    fn wait(&self) {
        assert!(self.ended.recv_timeout(PATIENCE).is_ok(), "{} hangs: no end after {PATIENCE:?}", self.what);
    }
}

/// Asks until there is an answer. Panics after [`PATIENCE`].
#[track_caller]
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let mut answer = None;
    eventually(what, || {
        answer = ask();
        answer.is_some()
    });
    answer.unwrap()
}

/// Waits until a condition holds. Panics after [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_until(what, &mut is_so);
}

#[track_caller]
fn wait_until(what: &str, is_so: &mut dyn FnMut() -> bool) {
    let deadline = soon();
    while !is_so() {
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
