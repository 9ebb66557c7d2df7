//! One attachment of this process to a device.

use super::error::{DeviceError, fault};
use super::watch::Watch;
use doorbell_engine::kit::{Error, PeerId, Shared};
use doorbell_shm::device::{Dead, this_thread};
use doorbell_shm::domain::DeviceSegment;
use doorbell_shm::keys::OwnerId;
use std::sync::Arc;
use std::time::Duration;

/// One attachment of this process.
pub struct Inner {
    pub shared: Arc<Shared>,
    pub segment: Arc<DeviceSegment>,
    pub fetch_within: Duration,
    pub watch: Option<Watch>,
    /// Tells the service of the engine that this attachment ended.
    pub leave: fn(&Shared),
}

impl Inner {
    pub fn fault(&self, operation: &'static str, why: DeviceError) -> Error {
        fault(operation, self.segment.name(), why)
    }

    /// The identification of a caller that takes the lock without a slot.
    pub fn caller(&self) -> OwnerId {
        let membership = self.shared.membership();
        // It contains the thread's number, by which others see whether the owner lives from the moment it has the lock.
        OwnerId::user(membership.id(), membership.incarnation(), this_thread() as u32)
    }

    /// Whether the lock's owner lives.
    pub fn lives(&self, owner: OwnerId) -> bool {
        self.shared.membership().is_receiver_living(owner, self.segment.view().tid_of(owner))
    }

    /// Receivers that do not live. Makes system calls, so call it before taking the lock.
    pub fn dead(&self, but: Option<usize>) -> Dead {
        self.segment.view().dead(but, |owner, tid| self.shared.membership().is_receiver_living(owner, tid))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if doorbell_shm::space::forked() {
            return;
        }
        let membership = self.shared.membership();
        self.segment.view().leave_port(PeerId::from(membership).into());
        if !self.shared.is_closed()
            && let Err(error) = membership.detach_device(&self.segment)
        {
            tracing::warn!(%error, device = self.segment.name(), "could not detach from a device; its memory stays until another process cleans up");
        }
        if self.shared.has_network() {
            // The next turn tells the senders that this process served.
            (self.leave)(&self.shared);
        }
    }
}
