//! Put and get for asynchronous tasks: a thread of the blocking pool does the work that may wait.

use super::Node;
use crate::Result;
use crate::drive::Begun;
use crate::error::Error;
use crate::region::{Access, Key, Plain, ReadWrite};
use crate::sync::baton::Token;
use crate::sync::op::{Op, Outcome};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

/// The most bytes that a task copies by itself where memory is shared: some 50 µs.
const BY_ITSELF: usize = 1 << 20;

/// A job that the blocking pool does for a task.
struct Clerked<T> {
    begun: Begun,
    op: Arc<Op>,
    answer: Arc<Mutex<Option<T>>>,
}

impl<T: Send + 'static> Clerked<T> {
    /// Hands `job` to the blocking pool.
    fn begin(node: &Node, job: impl FnOnce() -> T + Send + 'static) -> Self {
        let (op, answer) = (Op::new(), Arc::new(Mutex::new(None)));
        let this = Self { begun: Begun::new(&node.shared), op: op.clone(), answer: answer.clone() };
        let finish = Finish(op);
        node.shared.copiers().submit(Box::new(move || {
            let _finish = finish;
            let found = job();
            *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        }));
        this
    }

    /// The job's result. `None`: the thread panicked, or there was no thread.
    async fn answer(self) -> Option<T> {
        poll_fn(|context| if self.begun.0.poll_op(&self.op, context) { Poll::Ready(()) } else { Poll::Pending }).await;
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Ends the wait for a job when the job is dropped: after it ran, after a panic, or before it ever began.
struct Finish(Arc<Op>);

impl Drop for Finish {
    fn drop(&mut self) {
        self.0.finish(Outcome::Copied);
    }
}

impl Node {
    /// As [`put`](Self::put), for asynchronous tasks. Returns the elements and the result. Up to 1 MiB to a node that shares
    /// memory is copied at once; otherwise a thread of the node does the work. If the future is dropped, the put may still take
    /// place.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_async<T: Plain + Send + 'static, B>(&self, from: B, to: Key<T, ReadWrite>) -> (B, Result<()>)
    where
        B: AsRef<[T]> + Send + 'static,
    {
        if self.is_quick(&to, size_of_val(from.as_ref())) {
            let put = self.put(from.as_ref(), to);
            return (from, put);
        }
        let node = self.clone();
        self.by_clerk(from, move |from| node.put(from.as_ref(), to)).await
    }

    /// As [`get`](Self::get), for asynchronous tasks. Returns the buffer and the result. The same sizes as with
    /// [`put_async`](Self::put_async) are copied at once.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_async<T: Plain + Send + 'static, A: Access + Send + 'static, B>(
        &self,
        from: Key<T, A>,
        mut into: B,
    ) -> (B, Result<()>)
    where
        B: AsMut<[T]> + Send + 'static,
    {
        if self.is_quick(&from, size_of_val(into.as_mut())) {
            let got = self.get(from, into.as_mut());
            return (into, got);
        }
        let node = self.clone();
        self.by_clerk(into, move |into| node.get(from, into.as_mut())).await
    }

    fn is_quick<T: Plain, A: Access>(&self, key: &Key<T, A>, bytes: usize) -> bool {
        bytes <= BY_ITSELF && self.shared.is_near(Token::current(), key.node())
    }

    async fn by_clerk<B: Send + 'static>(
        &self,
        buffer: B,
        job: impl FnOnce(&mut B) -> Result<()> + Send + 'static,
    ) -> (B, Result<()>) {
        // The thread's result goes here, even if the thread panics.
        let place = Arc::new(Mutex::new(Some(buffer)));
        let theirs = place.clone();
        let done = Clerked::begin(self, move || {
            let mut place = theirs.lock().unwrap_or_else(PoisonError::into_inner);
            place.as_mut().map_or(Err(Error::Cancelled), job)
        });
        let result = done.answer().await.unwrap_or(Err(Error::Cancelled));
        let buffer = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        (buffer.unwrap_or_else(|| unreachable!("only this takes it")), result)
    }
}
