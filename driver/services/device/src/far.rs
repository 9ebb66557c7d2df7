//! Sending to a device on another machine: the thread hands the message to the engine, and drives it until the message has left.

use super::envelope::Parts;
use super::error::{DeviceError, fault};
use super::net::{Devices, Dropped, Far};
use super::sender::SEND;
use doorbell_engine::kit::{Error, Result, Shared, Token, world};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How long to look for a device.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long dropping a sender waits for messages on their way.
const FAREWELL: Duration = Duration::from_secs(1);

/// A way to a device by the network.
pub(super) struct FarLane {
    shared: Arc<Shared>,
    name: Box<str>,
    /// The number of the stream.
    stream: u32,
    /// The limit when the device was found.
    pub message_max: usize,
    dropped: Dropped,
    _not_sync: PhantomData<Cell<()>>,
}

fn timeout(operation: &'static str) -> Error {
    Error::Timeout { operation, node: None }
}

impl FarLane {
    /// Finds the node that serves a device.
    pub(super) fn open(shared: &Arc<Shared>, name: &str) -> Result<Self> {
        let (stream, dropped) = shared.call(SEND, |devices: &mut Devices| devices.open(name))?;
        let mut this =
            Self { shared: shared.clone(), name: name.into(), stream, message_max: 0, dropped, _not_sync: PhantomData };
        match this.wait(Some(world::now() + PATIENCE), |far| far.message_max) {
            Ok(Some(message_max)) => {
                this.message_max = message_max;
                Ok(this)
            }
            found => {
                let _ = shared.call(SEND, |devices: &mut Devices| devices.close(stream));
                Err(found.err().unwrap_or_else(|| fault(SEND, name, DeviceError::Absent)))
            }
        }
    }

    /// Looks at the sender. If it has failed, or no node serves the device any more, an error says so once, and the search for
    /// one begins.
    fn look<T>(&self, devices: &mut Devices, look: &mut impl FnMut(&mut Far) -> Option<T>) -> Result<Option<T>> {
        let far = devices.far(self.stream).ok_or(Error::Closed)?;
        let found = look(far);
        if found.is_none() {
            far.failed().map_or(Ok(()), |why| Err(fault(SEND, &self.name, why)))?;
            far.want();
        }
        Ok(found)
    }

    /// Drives the engine until a look at the sender returns a value. `None`: the deadline passed first.
    fn wait<T>(&self, deadline: Option<Instant>, mut look: impl FnMut(&mut Far) -> Option<T>) -> Result<Option<T>> {
        let found = self.shared.wait_for_service(SEND, deadline, |devices| self.look(devices, &mut look).transpose());
        found?.transpose()
    }

    pub(super) fn send(&self, message: Parts<'_>, deadline: Option<Instant>) -> Result<()> {
        self.wait(deadline, |far| far.try_give(message))?.ok_or_else(|| timeout("send to a device"))?;
        // The message is underway whichever thread drives. This thread drives until it has left.
        self.wait(deadline, |far| far.has_gone().then_some(())).map(drop)
    }

    pub(super) fn try_send(&self, me: Token, message: Parts<'_>) -> Result<bool> {
        self.shared.turn(me);
        let given = self.shared.call(SEND, |devices| self.look(devices, &mut |far| far.try_give(message)))?;
        given.map(|given| given.is_some())
    }

    /// Fails if no node serves the device any more. If none does at present, the search for one begins here.
    pub(super) fn check_there(&self) -> Result<()> {
        self.shared.call(SEND, |devices| self.look(devices, &mut |_| None::<()>))?.map(drop)
    }

    /// Waits until all messages are in the device.
    pub(super) fn flush(&self, deadline: Instant) -> Result<()> {
        let is_in = self.wait(Some(deadline), |far| {
            far.flushing = !far.is_in();
            (!far.flushing).then_some(())
        })?;
        if is_in.is_none() {
            // No thread waits for it any more.
            let _ = self.shared.call(SEND, |devices: &mut Devices| devices.far(self.stream).map(|far| far.flushing = false));
        }
        is_in.ok_or_else(|| timeout("flush to a device"))
    }

    /// Gets the sent messages into the device, if that does not take long, and ends the stream.
    pub(super) fn close(&self) {
        let Ok(me) = self.shared.check() else { return };
        if self.shared.call(SEND, |devices: &mut Devices| devices.close(self.stream)).is_err() {
            // Inside a callback of the engine. Its next turn closes the stream.
            self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(self.stream);
            return;
        }
        let _ = self.flush(world::now() + FAREWELL);
        self.shared.turn(me);
        self.shared.hand_over();
    }
}
