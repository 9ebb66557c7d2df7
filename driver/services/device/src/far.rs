//! Sending to a device on another machine: the thread hands the message to the engine, and drives it until the message has left.

use super::attachment::fault;
use super::net::{Devices, Dropped, Far};
use super::sender::{DeviceSender, SEND, Way};
use doorbell_engine::Result;
use doorbell_engine::drive::Shared;
use doorbell_engine::error::{DeviceFault, Error};
use doorbell_engine::sync::baton::Token;
use doorbell_fabric::world;
use std::marker::PhantomData;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// How long to look for a device.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long dropping a sender waits for messages on their way.
const FAREWELL: Duration = Duration::from_secs(1);

/// Drives the engine until `look` at a sender returns a value. `None`: the deadline passed first.
fn wait<T>(
    shared: &Shared,
    me: Token,
    (name, stream): (&str, u32),
    deadline: Option<Instant>,
    mut look: impl FnMut(&mut Far) -> Option<T>,
) -> Result<Option<T>> {
    loop {
        let op = {
            let mut engine = shared.enter(me, SEND)?;
            engine.push(me);
            let Some(far) = engine.service::<Devices>().far(stream) else { return Err(Error::Closed) };
            if let Some(found) = look(far) {
                engine.push(me);
                return Ok(Some(found));
            }
            if let Some(why) = far.failed() {
                return Err(fault(SEND, name, why));
            }
            far.want();
            far.await_change()
        };
        shared.hand_over();
        if !shared.drive(me, &op, deadline, |_| false)? && !op.is_done() {
            return Ok(None);
        }
    }
}

fn timeout(operation: &'static str) -> Error {
    Error::Timeout { operation, node: None }
}

/// Finds the node that serves a device.
pub(super) fn open(shared: &Shared, me: Token, name: &str) -> Result<Way> {
    let (stream, dropped) = shared.enter(me, SEND)?.service::<Devices>().open(name);
    let found = wait(shared, me, (name, stream), Some(world::now() + PATIENCE), |far| far.message_max);
    match found {
        Ok(Some(message_max)) => Ok(Way::Far { stream, message_max, dropped, not_sync: PhantomData }),
        Ok(None) | Err(_) => {
            if let Ok(mut engine) = shared.enter(me, SEND) {
                engine.service::<Devices>().close(stream);
            }
            Err(found.err().unwrap_or_else(|| fault(SEND, name, DeviceFault::Absent)))
        }
    }
}

pub(super) fn send(
    sender: &DeviceSender,
    me: Token,
    stream: u32,
    (thread, tag, parts): (u32, u64, &[&[u8]]),
    deadline: Option<Instant>,
) -> Result<()> {
    let (shared, name) = (&*sender.shared, (sender.name(), stream));
    let len = parts.iter().map(|part| part.len()).sum();
    let give = |far: &mut Far| {
        let has_room = !far.has_failed() && far.has_room(len);
        if has_room {
            far.give(thread, tag, parts);
        }
        has_room.then_some(())
    };
    wait(shared, me, name, deadline, give)?.ok_or_else(|| timeout("send to a device"))?;
    // The message is underway whichever thread drives. This thread drives until it has left.
    wait(shared, me, name, deadline, |far| far.has_gone().then_some(())).map(drop)
}

pub(super) fn try_send(sender: &DeviceSender, me: Token, stream: u32, thread: u32, tag: u64, parts: &[&[u8]]) -> Result<bool> {
    let mut engine = sender.shared.enter(me, SEND)?;
    engine.turn(me, false);
    let Some(far) = engine.service::<Devices>().far(stream) else { return Err(Error::Closed) };
    if let Some(why) = far.failed() {
        return Err(fault(SEND, sender.name(), why));
    }
    far.want();
    let has_room = far.has_room(parts.iter().map(|part| part.len()).sum());
    if has_room {
        far.give(thread, tag, parts);
        engine.push(me);
        drop(engine);
        sender.shared.hand_over();
    }
    Ok(has_room)
}

/// Fails if no node serves the device any more. If none does at present, the search for one begins here.
pub(super) fn check_there(sender: &DeviceSender, me: Token, stream: u32) -> Result<()> {
    let mut engine = sender.shared.enter(me, SEND)?;
    let Some(far) = engine.service::<Devices>().far(stream) else { return Err(Error::Closed) };
    if let Some(why) = far.failed() {
        return Err(fault(SEND, sender.name(), why));
    }
    far.want();
    Ok(())
}

/// Waits until all messages are in the device.
pub(super) fn flush(sender: &DeviceSender, me: Token, stream: u32, deadline: Instant) -> Result<()> {
    let (shared, name) = (&*sender.shared, (sender.name(), stream));
    let look = |far: &mut Far| {
        far.flushing = !far.is_in();
        (!far.flushing).then_some(())
    };
    let is_in = wait(shared, me, name, Some(deadline), look)?;
    if is_in.is_none()
        && let Ok(mut engine) = shared.enter(me, SEND)
        && let Some(far) = engine.service::<Devices>().far(stream)
    {
        // No thread waits for it any more.
        far.flushing = false;
    }
    is_in.ok_or_else(|| timeout("flush to a device"))
}

/// Gets the sent messages into the device, if that does not take long, and ends the stream.
pub(super) fn close(sender: &DeviceSender, stream: u32, dropped: &Dropped) {
    let Ok(me) = sender.shared.check() else { return };
    if let Ok(mut engine) = sender.shared.enter(me, SEND) {
        engine.service::<Devices>().close(stream);
    } else {
        // Inside a callback of the engine. Its next turn closes the stream.
        dropped.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        return;
    }
    let _ = flush(sender, me, stream, world::now() + FAREWELL);
    if let Ok(mut engine) = sender.shared.enter(me, SEND) {
        engine.turn(me, false);
    }
    sender.shared.hand_over();
}
