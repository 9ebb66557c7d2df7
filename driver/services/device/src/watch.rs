//! The steps of receiving, as they happen.

use doorbell_shm::device::Moved;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A step of one thread; see [`DeviceBuilder::watch`](super::DeviceBuilder::watch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceEvent {
    /// The thread id.
    pub thread: u32,
    /// The step.
    pub step: DeviceStep,
}

/// A step of a receiving thread. The letters are those of the [crate's description](crate).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceStep {
    /// (a) It has taken the device's lock.
    Locked,
    /// (b) It has looked in the shared storage. The value says whether a header for it is there.
    Checked(bool),
    /// (c) There was one: the rest of the message went straight to the user's buffer.
    FromStorage,
    /// (d) It has taken a header from the device, for this thread id. `None`: there is no header.
    Header(Option<u32>),
    /// (e) The header was its own: the rest of the message went straight to the user's buffer.
    FromDevice,
    /// (f) The header was for this other thread, and is in the shared storage now.
    Stored(u32),
    /// It has unlocked the device.
    Unlocked,
    /// (f) It has waited until something changed or a time was over, and begins again.
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

/// The program's watching function.
#[derive(Clone)]
pub(super) struct Watch(Arc<dyn Fn(DeviceEvent) + Send + Sync>);

impl Watch {
    pub fn new(watch: impl Fn(DeviceEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(watch))
    }

    #[cold]
    pub fn tell(&self, thread: u32, step: DeviceStep) {
        // The device is locked here, and must go on if the function panics.
        let _ = catch_unwind(AssertUnwindSafe(|| (self.0)(DeviceEvent { thread, step })));
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}
