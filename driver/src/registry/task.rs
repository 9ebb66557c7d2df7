//! Keys that tasks lock.

use super::guard::drop_slowly;
use super::{KeyGuard, LockFault, LockKey, TryLock};
use crate::Result;
use crate::error::Error;
use crate::node::Clerked;
use doorbell_shm::keys::{OwnerId, Value};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a thread waits for a key until it looks whether somebody still wants it. Then it goes to the end of the line.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
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
    /// ```
    /// # use doorbell::{Node, Resource, Space};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), doorbell::Error> {
    /// # let node = Node::builder("tasks").space(Space::heap()).join()?;
    /// let key = node.init_key("table", Resource::Unnamed)?;
    /// let guard = key.lock_async().await?;
    /// assert!(key.try_lock()?.guard().is_none());
    /// guard.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As `lock`.
    pub async fn lock_async(&self) -> Result<TaskGuard> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let key = self.with_id(NUMBERS + NEXT.fetch_add(1, Ordering::Relaxed) % NUMBERS);
            // A number that came round while its key is still held is no use.
            let is_used = |error: &Error| matches!(error, Error::Lock { why, .. } if **why == LockFault::AlreadyYours);
            match key.try_lock() {
                Ok(TryLock::Locked(guard)) => return Ok(TaskGuard::of(&key, guard)),
                Ok(TryLock::Busy(Value::Owner(owner))) if owner == key.my_id() => continue,
                Ok(_) => {}
                Err(error) => return Err(error),
            }
            let waiting = Clerked::begin(self.node(), move |unwanted| {
                loop {
                    match key.lock_by(Instant::now() + LOOK_AGAIN) {
                        Err(Error::Timeout { .. }) if !unwanted.load(Ordering::Acquire) => {}
                        locked => return locked.map(|guard| TaskGuard::of(&key, guard)),
                    }
                }
            });
            match waiting.answer().await.unwrap_or(Err(Error::Cancelled)) {
                Err(error) if is_used(&error) => {}
                locked => return locked,
            }
        }
    }
}
