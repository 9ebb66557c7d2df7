//! Locks for async tasks. The tasks of one node that wait for a lock stand in a queue, and one thread of the node waits for all
//! of them. So however many tasks wait, threads remain for the task that owns the lock.

use super::error::LockError;
use super::guard::{LockGuard, TryLock, drop_slowly};
use super::key::{Lock, Which};
use doorbell_engine::kit::{Begun, BlockingPool, Error, Op, Outcome, Result};
use doorbell_shm::keys::OwnerId;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

/// Owner numbers of tasks lie from this number up to twice this number.
const NUMBERS: u32 = 1 << 18;

/// The right to use a lock's resource, for tasks: it may move from thread to thread. Dropping it unlocks. Made by
/// [`Lock::lock_async`].
#[must_use = "dropping the guard unlocks"]
pub struct TaskGuard {
    key: Lock,
    inherited: Option<OwnerId>,
    held: bool,
}

impl TaskGuard {
    fn of(key: &Lock, guard: LockGuard<'_>) -> Self {
        let inherited = guard.inherited_from();
        guard.keep();
        Self { key: key.clone(), inherited, held: true }
    }

    /// The value that the lock has now.
    pub fn owner(&self) -> OwnerId {
        self.key.my_id()
    }

    /// As [`LockGuard::inherited_from`].
    pub fn inherited_from(&self) -> Option<OwnerId> {
        self.inherited
    }

    /// As [`LockGuard::mark_repaired`].
    ///
    /// # Errors
    /// As [`LockGuard::mark_repaired`].
    pub fn mark_repaired(&mut self) -> Result<()> {
        self.key.repair(self.key.my_id())?;
        self.inherited = None;
        Ok(())
    }

    /// As [`LockGuard::unlock`].
    ///
    /// # Errors
    /// As [`LockGuard::unlock`].
    pub fn unlock(mut self) -> Result<()> {
        self.held = false;
        self.key.unlock()
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        let me = self.key.my_id();
        if self.held && !self.key.release_unmarked(me) {
            drop_slowly(&self.key, me);
        }
    }
}

impl std::fmt::Debug for TaskGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskGuard").field("key", &self.key).field("owner", &self.owner()).finish()
    }
}

impl Lock {
    /// As [`lock`](Self::lock), for tasks. Takes the lock at once if it is free; else a thread of the node waits for it on
    /// behalf of the task. If the future is dropped, the lock is not taken, or is released at once.
    ///
    /// Each call owns the lock under a number of its own, from 262 144 on. Do not pass such numbers to
    /// [`with_id`](Self::with_id).
    ///
    /// **Deadlocks of tasks are not found.** Each call is an owner of its own, so the registry can't see that the waiting task
    /// holds another lock. Two tasks that wait for each other's lock wait for ever. Take locks in the same order everywhere, or
    /// limit the wait: dropping the future (`tokio::time::timeout`) ends it.
    ///
    /// ```
    /// # use doorbell::{Lock, Node, Resource, Space};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), doorbell::Error> {
    /// # let node = Node::builder("tasks").space(Space::heap()).join()?;
    /// let key = Lock::init(&node, "table", Resource::Unnamed)?;
    /// let guard = key.lock_async().await?;
    /// assert!(key.try_lock()?.guard().is_none());
    /// guard.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`lock`](Self::lock), except for deadlocks and locks that the task owns already. [`Error::Cancelled`] if there is no
    /// thread that could wait.
    pub async fn lock_async(&self) -> Result<TaskGuard> {
        let tasks = self.shared().kept::<Tasks>();
        let lines = &tasks.lines;
        let mut is_first = true;
        loop {
            if !lines.all().contains_key(&self.which()) {
                let key = self.numbered();
                match key.try_lock()? {
                    TryLock::Locked(guard) => return Ok(TaskGuard::of(&key, guard)),
                    // Even if the owner is this very number: numbers repeat after a while, and the thread that waits uses
                    // another one.
                    TryLock::Busy(_) => {}
                }
            }
            match Standing::join(self).answer().await {
                // The error may concern a lock that was at the same place before.
                Some(Err(error)) if is_first && error.downcast_ref() == Some(&LockError::Destroyed) => is_first = false,
                answer => return answer.unwrap_or(Err(Error::Cancelled)),
            }
        }
    }

    /// The same lock, under a number that no other task uses at present.
    fn numbered(&self) -> Lock {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        self.with_id(NUMBERS + NEXT.fetch_add(1, Ordering::Relaxed) % NUMBERS)
    }
}

/// State that the tasks of a node share.
#[derive(Default)]
pub struct Tasks {
    lines: Lines,
    /// Threads that wait for locks. The owner of a lock may have to move data before it can unlock, so these threads move none.
    pub blocking: Arc<BlockingPool>,
}

/// The queues of a node's tasks, one for each lock that tasks wait for.
#[derive(Default)]
struct Lines(Mutex<BTreeMap<Which, Line>>);

#[derive(Default)]
struct Line {
    turns: VecDeque<Arc<Turn>>,
    /// The queue is empty: the thread may stop waiting.
    is_over: Arc<AtomicBool>,
}

/// One task in a queue.
struct Turn {
    op: Arc<Op>,
    answer: Mutex<Option<Result<TaskGuard>>>,
}

impl Turn {
    fn end(&self, answer: Option<Result<TaskGuard>>) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
        self.op.finish(Outcome::Copied);
    }
}

impl Lines {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Which, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a task is left in the queue. If not, the queue is removed, and the next task begins a new one.
    fn goes_on(&self, which: &Which) -> bool {
        let mut all = self.all();
        let Some(line) = all.get(which) else { return false };
        let goes_on = !line.turns.is_empty();
        if !goes_on {
            all.remove(which);
        }
        goes_on
    }

    fn next(&self, which: &Which) -> Option<Arc<Turn>> {
        self.all().get_mut(which)?.turns.pop_front()
    }
}

/// A task's place in a queue, until it is dropped.
struct Standing {
    begun: Begun,
    which: Which,
    turn: Arc<Turn>,
}

impl Standing {
    fn join(key: &Lock) -> Self {
        let shared = key.shared();
        let (which, turn) = (key.which(), Arc::new(Turn { op: Op::new(), answer: Mutex::new(None) }));
        let is_over = {
            let tasks = shared.kept::<Tasks>();
            let mut all = tasks.lines.all();
            let is_first = !all.contains_key(&which);
            let line = all.entry(which.clone()).or_default();
            line.turns.push_back(turn.clone());
            line.is_over.store(false, Ordering::Release);
            is_first.then(|| line.is_over.clone())
        };
        if let Some(is_over) = is_over {
            let serving = Serving { key: key.clone(), which: which.clone(), is_done: false };
            shared.kept::<Tasks>().blocking.submit(Box::new(move || serving.serve(&is_over)));
        }
        Self { begun: Begun::new(shared), which, turn }
    }

    async fn answer(self) -> Option<Result<TaskGuard>> {
        let Self { begun, turn, .. } = &self;
        poll_fn(|context| if begun.0.poll_op(&turn.op, context) { Poll::Ready(()) } else { Poll::Pending }).await;
        turn.answer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let tasks = self.begun.0.kept::<Tasks>();
        let mut all = tasks.lines.all();
        let Some(line) = all.get_mut(&self.which) else { return };
        line.turns.retain(|turn| !Arc::ptr_eq(turn, &self.turn));
        if line.turns.is_empty() {
            line.is_over.store(true, Ordering::Release);
        }
    }
}

/// The thread that waits for the tasks of one queue.
struct Serving {
    key: Lock,
    which: Which,
    /// The queue was removed.
    is_done: bool,
}

impl Serving {
    fn serve(mut self, is_over: &AtomicBool) {
        let tasks = self.key.shared().kept::<Tasks>();
        let lines = &tasks.lines;
        while lines.goes_on(&self.which) {
            let key = self.key.numbered();
            let Some(answer) = key.lock_unless(is_over).transpose() else { continue };
            let answer = answer.map(|guard| TaskGuard::of(&key, guard));
            // With an empty queue, the last task has given up, and dropping `answer` unlocks.
            if let Some(turn) = lines.next(&self.which) {
                turn.end(Some(answer));
            }
        }
        self.is_done = true;
    }
}

impl Drop for Serving {
    /// If the job never ran or panicked, fails the tasks that are left in the queue.
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let line = self.key.shared().kept::<Tasks>().lines.all().remove(&self.which);
        line.into_iter().flat_map(|line| line.turns).for_each(|turn| turn.end(None));
    }
}
