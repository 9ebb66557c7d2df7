//! The steps of receiving, as they happen.

use doorbell_shm::device::Moved;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A step of one thread: see [`DeviceBuilder::watch`](super::DeviceBuilder::watch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceEvent {
    /// Its thread id.
    pub thread: u32,
    /// What it did.
    pub step: DeviceStep,
}

/// What a thread does that receives; the letters are the source's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceStep {
    /// (a) It has the device's lock.
    Locked,
    /// (b) It looked in the shared storage: whether a header for it is there.
    Checked(bool),
    /// (c) There was one: the rest of the message went straight to the user's buffer.
    FromStorage,
    /// (d) It took a header from the device: for which thread. `None`: there is none.
    Header(Option<u32>),
    /// (e) It was its own: the rest of the message went straight to the user's buffer.
    FromDevice,
    /// (f) It was that other thread's, and is in the shared storage now.
    Stored(u32),
    /// It has given the lock up.
    Unlocked,
    /// (f) It waited until something changed, or until a time-out, and begins again.
    Waited,
}

impl From<Moved> for DeviceStep {
    fn from(moved: Moved) -> Self {
        match moved {
            Moved::Checked(found) => Self::Checked(found),
            Moved::FromStorage => Self::FromStorage,
            Moved::Header(thread) => Self::Header(thread),
            Moved::FromDevice => Self::FromDevice,
            Moved::Stored(thread) => Self::Stored(thread),
        }
    }
}

/// Who watches.
#[derive(Clone)]
pub(super) struct Watch(Arc<dyn Fn(DeviceEvent) + Send + Sync>);

impl Watch {
    pub fn new(watch: impl Fn(DeviceEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(watch))
    }

    #[cold]
    pub fn tell(&self, thread: u32, step: DeviceStep) {
        // The device is locked here, and goes on without whoever watches.
        let _ = catch_unwind(AssertUnwindSafe(|| (self.0)(DeviceEvent { thread, step })));
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}
