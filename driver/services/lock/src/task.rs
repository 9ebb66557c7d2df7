//! Keys that tasks lock. Those of one node that wait for a key stand in a line, and one thread of the node waits in the place of all of them: however many there are, there
//! are threads for whoever has the key.

use super::guard::drop_slowly;
use super::key::Which;
use super::{KeyGuard, LockFault, LockKey, TryLock};
use doorbell_engine::Result;
use doorbell_engine::drive::Begun;
use doorbell_engine::error::Error;
use doorbell_engine::node::shared_of;
use doorbell_engine::sync::op::{Op, Outcome};
use doorbell_engine::sync::pool::Clerks;
use doorbell_shm::keys::OwnerId;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

/// Numbers of those who lock by a thread of the node: from here to twice this.
const NUMBERS: u32 = 1 << 18;

/// The right to use a key's resource, until it is dropped; for tasks: it goes from thread to thread. Of [`LockKey::lock_async`].
#[must_use = "the key is given up again when the guard is dropped"]
pub struct TaskGuard {
    key: LockKey,
    inherited: Option<OwnerId>,
    held: bool,
}

impl TaskGuard {
    fn of(key: &LockKey, guard: KeyGuard<'_>) -> Self {
        let inherited = guard.inherited_from();
        guard.keep();
        Self { key: key.clone(), inherited, held: true }
    }

    /// The value that the key has now.
    pub fn owner(&self) -> OwnerId {
        self.key.my_id()
    }

    /// As [`KeyGuard::inherited_from`].
    pub fn inherited_from(&self) -> Option<OwnerId> {
        self.inherited
    }

    /// As [`KeyGuard::mark_repaired`].
    ///
    /// # Errors
    /// As there.
    pub fn mark_repaired(&mut self) -> Result<()> {
        self.key.repair(self.key.my_id())?;
        self.inherited = None;
        Ok(())
    }

    /// As [`KeyGuard::unlock`].
    ///
    /// # Errors
    /// As there.
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

impl LockKey {
    /// As [`lock`](Self::lock), for tasks: takes the key at once if it is free, else a thread of the node waits for it in the task's place. If the future is dropped the key is
    /// not taken, or given up at once.
    ///
    /// The key bears a number of this call's own, from 262 144 on, of which [`with_id`](Self::with_id) should not be told.
    ///
    /// **Circles of tasks are not found.** Each call is an owner of its own, so nothing says that the task that waits has another key: two tasks that each wait
    /// for the other's key wait for ever. Lock keys in the same order everywhere, or give the wait an end: dropping the future (`tokio::time::timeout`) ends it.
    ///
    /// ```
    /// # use doorbell::{LockKey, Node, Resource, Space};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), doorbell::Error> {
    /// # let node = Node::builder("tasks").space(Space::heap()).join()?;
    /// let key = LockKey::init(&node, "table", Resource::Unnamed)?;
    /// let guard = key.lock_async().await?;
    /// assert!(key.try_lock()?.guard().is_none());
    /// guard.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As `lock`, but for circles and keys that the task has already; [`Error::Cancelled`] if no thread can be had to wait.
    pub async fn lock_async(&self) -> Result<TaskGuard> {
        let tasks = shared_of(self.node()).kept::<Tasks>();
        let lines = &tasks.lines;
        let mut is_first = true;
        loop {
            if !lines.has(&self.which()) {
                let key = self.numbered();
                match key.try_lock()? {
                    TryLock::Locked(guard) => return Ok(TaskGuard::of(&key, guard)),
                    // If the owner is who would be: a number that came round while its key is still held. The thread has another.
                    TryLock::Busy(_) => {}
                }
            }
            match Standing::join(self).answer().await {
                // Perhaps of a key that was at its place before.
                Some(Err(Error::Lock { why, .. })) if matches!(*why, LockFault::Destroyed) && is_first => is_first = false,
                answer => return answer.unwrap_or(Err(Error::Cancelled)),
            }
        }
    }

    /// The same key, with a number that no other task has.
    fn numbered(&self) -> LockKey {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        self.with_id(NUMBERS + NEXT.fetch_add(1, Ordering::Relaxed) % NUMBERS)
    }
}

/// What the tasks of a node have in common that lock keys.
#[derive(Default)]
pub struct Tasks {
    lines: Lines,
    /// Threads that wait for keys. A thread that has a key may have to move data before it gives the key up, so these threads move none.
    pub clerks: Arc<Clerks>,
}

/// The lines of a node's tasks, one for each key for which some wait.
#[derive(Default)]
struct Lines(Mutex<BTreeMap<Which, Line>>);

#[derive(Default)]
struct Line {
    turns: VecDeque<Arc<Turn>>,
    /// Nobody is in it any more: the thread need not wait.
    is_over: Arc<AtomicBool>,
}

/// One that stands in a line.
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

    fn has(&self, which: &Which) -> bool {
        self.all().contains_key(which)
    }

    /// Whether the thread has to go on for somebody. If not, the line is no more, and whoever comes begins another.
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

/// A task's place in a line, until it is dropped.
struct Standing {
    begun: Begun,
    which: Which,
    turn: Arc<Turn>,
}

impl Standing {
    fn join(key: &LockKey) -> Self {
        let shared = shared_of(key.node());
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
            shared.kept::<Tasks>().clerks.submit(Box::new(move || serving.serve(&is_over)));
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

/// The thread that waits for those in a line.
struct Serving {
    key: LockKey,
    which: Which,
    /// Its line is no more.
    is_done: bool,
}

impl Serving {
    fn serve(mut self, is_over: &AtomicBool) {
        let tasks = shared_of(self.key.node()).kept::<Tasks>();
        let lines = &tasks.lines;
        while lines.goes_on(&self.which) {
            let key = self.key.numbered();
            let Some(answer) = key.lock_unless(is_over).transpose() else { continue };
            let answer = answer.map(|guard| TaskGuard::of(&key, guard));
            // If there is none any more, whom it was for has gone, and the key is given up here.
            if let Some(turn) = lines.next(&self.which) {
                turn.end(Some(answer));
            }
        }
        self.is_done = true;
    }
}

impl Drop for Serving {
    /// It was not begun, or panicked, if there is somebody.
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let line = shared_of(self.key.node()).kept::<Tasks>().lines.all().remove(&self.which);
        line.into_iter().flat_map(|line| line.turns).for_each(|turn| turn.end(None));
    }
}
