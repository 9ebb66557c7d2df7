//! Calls that may have to wait, for tasks: a thread of the node waits in their place.

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

/// Bytes that a task copies by itself where memory is shared: some 50 µs.
const BY_ITSELF: usize = 1 << 20;

/// What a thread of the node does for a task.
struct Clerked<T> {
    begun: Begun,
    op: Arc<Op>,
    answer: Arc<Mutex<Option<T>>>,
}

impl<T: Send + 'static> Clerked<T> {
    /// Has `job` done.
    fn begin(node: &Node, job: impl FnOnce() -> T + Send + 'static) -> Self {
        let (op, answer) = (Op::new(), Arc::new(Mutex::new(None)));
        let this = Self { begun: Begun::new(&node.shared), op: op.clone(), answer: answer.clone() };
        let finish = Finish(op);
        node.shared.movers().submit(Box::new(move || {
            let _finish = finish;
            let found = job();
            *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        }));
        this
    }

    /// Its answer. `None`: the thread panicked, or there was none.
    async fn answer(self) -> Option<T> {
        poll_fn(|context| if self.begun.0.poll_op(&self.op, context) { Poll::Ready(()) } else { Poll::Pending }).await;
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Ends the wait for a job when that is over, though it panicked or was never begun.
struct Finish(Arc<Op>);

impl Drop for Finish {
    fn drop(&mut self) {
        self.0.finish(Outcome::Copied);
    }
}

impl Node {
    /// As [`put`](Self::put), for tasks: gives the elements back, and says how it went. Up to 1 MiB to a node that shares memory is copied at once; else a thread of the
    /// node does it. If the future is dropped the put may take place all the same.
    ///
    /// # Errors
    /// As `put`.
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

    /// As [`get`](Self::get), for tasks: gives the place for the elements back, and says how it went. As [`put_async`](Self::put_async).
    ///
    /// # Errors
    /// As `get`.
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
        // What the thread has while it works; comes back even if it panics.
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
