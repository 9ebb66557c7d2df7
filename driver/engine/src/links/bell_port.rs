//! A descriptor that event loops wait for in place of the bell, in a build without the network and its io_uring.
//!
//! A thread, the *listener*, sleeps on the bell and passes a ring on to an eventfd. It sleeps on from one watch to the next,
//! because the bell has the same value whenever the same sleeper has armed it. No ring is lost: the listener goes to rest before
//! it signals the eventfd, and a watch clears the eventfd before it makes the listener listen.

use doorbell_fabric::world;
use doorbell_shm::domain::Membership;
use doorbell_shm::doorbell::Bell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the listener sleeps on the bell before it checks whether to go on.
const LISTEN_MOST: Duration = Duration::from_secs(1);

/// The event loop's handle on the listener.
pub struct AnyPort(Arc<Listener>);

struct Listener {
    membership: Arc<Membership>,
    task: Mutex<Task>,
    /// The task changed.
    told: Condvar,
    rung: File,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    Rest,
    /// Listen while the bell has this number.
    Listen(u32),
    End,
}

/// A port for the bell of a node.
///
/// # Errors
/// The system has no descriptor or thread left.
pub fn port_of_bell(membership: &Arc<Membership>) -> io::Result<Box<AnyPort>> {
    use rustix::event::{EventfdFlags, eventfd};
    let rung = File::from(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let listener =
        Arc::new(Listener { membership: membership.clone(), task: Mutex::new(Task::Rest), told: Condvar::new(), rung });
    let other = listener.clone();
    world::spawn("doorbell-listen", move || other.run())?;
    Ok(Box::new(AnyPort(listener)))
}

/// Prepares an event loop's sleep while the bell is armed for this sleeper. False if something has happened already.
///
/// # Errors
/// None; a network's port has some.
pub fn watch(port: &mut AnyPort, bell: &Bell, sleeper: u32, _: Duration) -> io::Result<bool> {
    port.unwatch()?;
    port.0.tell(Task::Listen(sleeper));
    Ok(bell.word().load(SeqCst) == sleeper)
}

impl AnyPort {
    /// Readable when the bell has rung, and sometimes for no reason.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.rung.as_fd()
    }

    /// Ends a watch if there is one.
    ///
    /// # Errors
    /// None; a network's port has some.
    pub fn unwatch(&mut self) -> io::Result<()> {
        // An eventfd that was not signalled is fine too.
        let _ = (&self.0.rung).read(&mut [0; 8]);
        Ok(())
    }
}

impl Drop for AnyPort {
    fn drop(&mut self) {
        // A child has neither the thread, which may have held the lock at the fork, nor the memory of the bell.
        if doorbell_shm::space::forked() {
            return;
        }
        self.0.tell(Task::End);
        self.0.bell().rouse();
    }
}

impl Listener {
    fn bell(&self) -> &Bell {
        super::own_bell(&self.membership)
    }

    fn task(&self) -> MutexGuard<'_, Task> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, task: Task) {
        *self.task() = task;
        self.told.notify_one();
    }

    fn run(&self) {
        loop {
            let task = self.told.wait_while(self.task(), |task| *task == Task::Rest).unwrap_or_else(PoisonError::into_inner);
            let sleeper = match *task {
                Task::Listen(sleeper) => sleeper,
                _ => return,
            };
            drop(task);
            self.bell().sleep_as(sleeper, LISTEN_MOST);
            if self.bell().word().load(SeqCst) != sleeper {
                let mut task = self.task();
                if *task == Task::Listen(sleeper) {
                    *task = Task::Rest;
                }
                drop(task);
                // An eventfd that is full is fine too: it is readable.
                let _ = (&self.rung).write(&1_u64.to_ne_bytes());
            }
        }
    }
}
