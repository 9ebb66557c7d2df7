//! Sending to the threads of a device.

use super::attachment::fault;
use super::far;
use super::net::Dropped;
use doorbell_engine::Result;
use doorbell_engine::drive::poller::Progress;
use doorbell_engine::drive::{Shared, Work};
use doorbell_engine::error::{DeviceFault, Error};
use doorbell_engine::node::{Node, shared_of};
use doorbell_engine::sync::baton::Token;
use doorbell_engine::sync::wait::Step;
use doorbell_shm::device::{NoWrite, Writer};
use doorbell_shm::domain::DeviceSegment;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const SEND: &str = "send to";
/// How often a waiting sender looks at its lane before it turns the engine.
const TURN_EVERY: u32 = 32;
/// After how many failed attempts a sender that does not wait checks whether a receiver is attached.
const CARE_EVERY: u32 = 64;
const SLEEP: Duration = Duration::from_millis(25);
const SLEEP_INLINE: Duration = Duration::from_millis(1);

/// Sends to the threads of a device. `Send`, not `Sync`: each value has a lane of its own, which it gives back when it is
/// dropped.
///
/// Messages that one value sends to one thread id arrive in order.
pub struct DeviceSender {
    pub(super) shared: Arc<Shared>,
    name: Box<str>,
    way: Way,
}

/// How the device is reached.
pub(super) enum Way {
    /// In shared memory, by a lane of the device.
    Near { segment: Box<DeviceSegment>, writer: RefCell<Writer>, work: Work, vain: Cell<u32> },
    /// By the network, as stream number `stream`. `message_max` is the limit when the device was found.
    Far { stream: u32, message_max: usize, dropped: Dropped, not_sync: PhantomData<Cell<()>> },
}

impl DeviceSender {
    pub(super) fn open_for(shared: Arc<Shared>, name: &str) -> Result<Self> {
        let me = shared.check()?;
        let way = match shared.membership().open_device(name)? {
            Some(segment) => {
                let writer = RefCell::new(claim(&shared, &segment)?);
                Way::Near { segment: Box::new(segment), writer, work: shared.new_work(), vain: Cell::new(0) }
            }
            None if shared.has_network() => far::open(&shared, me, name)?,
            None => return Err(fault(SEND, name, DeviceFault::Absent)),
        };
        Ok(Self { shared, name: name.into(), way })
    }

    /// The name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The length of the longest message, in bytes.
    pub fn message_max(&self) -> usize {
        match &self.way {
            Way::Near { segment, .. } => segment.geometry().message_max(),
            Way::Far { message_max, .. } => *message_max,
        }
    }

    /// Sends a message to a thread id, which no thread needs to have yet. Returns when the message is in the device or, over
    /// the network, on its way there. While there is no room, it waits without limit and drives the engine.
    ///
    /// # Errors
    /// [`Error::Device`]: the message is too long, no living process is attached any more, or the lane was damaged. The message
    /// was not sent then; over the network, earlier messages on their way may be lost, too.
    pub fn send(&self, thread: u32, tag: u64, bytes: &[u8]) -> Result<()> {
        self.send_parts(thread, tag, &[bytes], None)
    }

    /// As [`send`](Self::send), but fails with [`Error::Timeout`] at `deadline`. The message was not sent then.
    pub fn send_by(&self, thread: u32, tag: u64, bytes: &[u8], deadline: Instant) -> Result<()> {
        self.send_parts(thread, tag, &[bytes], Some(deadline))
    }

    /// As [`send`](Self::send), for a message that lies in several pieces.
    pub fn send_vectored(&self, thread: u32, tag: u64, parts: &[&[u8]]) -> Result<()> {
        self.send_parts(thread, tag, parts, None)
    }

    /// Sends if there is room now, and returns false if there is not. Errors are those of [`send`](Self::send). That no living
    /// process is attached any more is noticed at every 64th failed attempt at the latest.
    pub fn try_send(&self, thread: u32, tag: u64, bytes: &[u8]) -> Result<bool> {
        let me = self.shared.check()?;
        match &self.way {
            Way::Near { segment, writer, work, vain } => match self.write((segment, writer, work), thread, tag, &[bytes])? {
                Ok(()) => Ok(true),
                Err(NoWrite::Full) => {
                    vain.set(vain.get().wrapping_add(1));
                    if vain.get().is_multiple_of(CARE_EVERY) {
                        self.care(me, segment)?;
                    }
                    Ok(false)
                }
                Err(why) => Err(self.refused(why, bytes.len())),
            },
            Way::Far { stream, .. } => {
                self.check_len(bytes.len())?;
                far::try_send(self, me, *stream, thread, tag, &[bytes])
            }
        }
    }

    /// Waits until all sent messages are in the device, and fails with [`Error::Timeout`] at `deadline`. Returns at once in
    /// shared memory, where a sent message is in the device already.
    pub fn flush_by(&self, deadline: Instant) -> Result<()> {
        let me = self.shared.check()?;
        match &self.way {
            Way::Near { .. } => Ok(()),
            Way::Far { stream, .. } => far::flush(self, me, *stream, deadline),
        }
    }

    /// Fails if it is known that no process receives any more. Makes system calls.
    pub fn check_there(&self) -> Result<()> {
        let me = self.shared.check()?;
        match &self.way {
            Way::Near { segment, .. } if segment.view().has_ended() => Err(self.refused(NoWrite::Ended, 0)),
            Way::Near { segment, .. } => self.care(me, segment),
            Way::Far { stream, .. } => far::check_there(self, me, *stream),
        }
    }

    /// As [`send_vectored`](Self::send_vectored), until `deadline` if there is one.
    #[inline]
    pub fn send_parts(&self, thread: u32, tag: u64, parts: &[&[u8]], deadline: Option<Instant>) -> Result<()> {
        let me = self.shared.check()?;
        match &self.way {
            Way::Near { segment, writer, work, .. } => match self.write((segment, writer, work), thread, tag, parts)? {
                Ok(()) => Ok(()),
                Err(why) => self.send_when_there_is_room(me, (segment, writer, work), (thread, tag, parts), deadline, why),
            },
            Way::Far { stream, .. } => {
                self.check_len(parts.iter().map(|part| part.len()).fold(0, usize::saturating_add))?;
                far::send(self, me, *stream, (thread, tag, parts), deadline)
            }
        }
    }

    fn check_len(&self, len: usize) -> Result<()> {
        if len <= self.message_max() { Ok(()) } else { Err(self.refused(NoWrite::TooLong, len)) }
    }

    #[inline]
    fn write(
        &self,
        (segment, writer, work): (&DeviceSegment, &RefCell<Writer>, &Work),
        thread: u32,
        tag: u64,
        parts: &[&[u8]],
    ) -> Result<Result<(), NoWrite>> {
        // While this guard lives the node does not leave. Another sender could get the lane after that.
        let _working = self.shared.begin(work)?;
        Ok(writer.borrow_mut().try_write(&segment.view(), thread, tag, parts))
    }

    #[cold]
    fn send_when_there_is_room(
        &self,
        me: Token,
        (segment, writer, work): (&DeviceSegment, &RefCell<Writer>, &Work),
        (thread, tag, parts): (u32, u64, &[&[u8]]),
        deadline: Option<Instant>,
        mut why: NoWrite,
    ) -> Result<()> {
        let (shared, view) = (&self.shared, segment.view());
        let len = parts.iter().map(|part| part.len()).fold(0, usize::saturating_add);
        let (mut gear, mut rounds, mut anew) = (shared.gear(deadline), 0_u32, false);
        loop {
            match why {
                NoWrite::Full => {}
                // Another process damaged the lane, or took this sender for dead. Another lane may be free.
                NoWrite::Broken if !anew => {
                    anew = true;
                    *writer.borrow_mut() = claim(shared, segment)?;
                }
                why => return Err(self.refused(why, len)),
            }
            rounds += 1;
            if rounds.is_multiple_of(TURN_EVERY) && shared.progress() != Progress::Poller {
                shared.turn(me);
            }
            match gear.step() {
                Step::Again => {}
                Step::Check => self.care(me, segment)?,
                Step::Park(most) => {
                    let is_inline = shared.progress() == Progress::Inline && shared.has_network();
                    writer.borrow_mut().sleep(&view, len, most.min(if is_inline { SLEEP_INLINE } else { SLEEP }));
                    gear.slept();
                    if gear.check_due() {
                        self.care(me, segment)?;
                    }
                }
                Step::Expired => return Err(Error::Timeout { operation: "send to a device", node: None }),
            }
            match self.write((segment, writer, work), thread, tag, parts)? {
                Ok(()) => return Ok(()),
                Err(again) => why = again,
            }
        }
    }

    /// The checks of a long wait: this node lives, and a living process is attached.
    #[cold]
    fn care(&self, me: Token, segment: &DeviceSegment) -> Result<()> {
        self.shared.check()?;
        if self.shared.progress() != Progress::Poller {
            self.shared.check_peers(me);
        }
        let membership = self.shared.membership();
        if segment.view().attached().any(|(node, life)| membership.is_living(node, life)) {
            return Ok(());
        }
        Err(fault(SEND, self.name(), DeviceFault::Absent))
    }

    #[cold]
    fn refused(&self, why: NoWrite, len: usize) -> Error {
        let max = self.message_max();
        let why = match why {
            NoWrite::TooLong => DeviceFault::TooLong { len, max },
            NoWrite::Ended => DeviceFault::Absent,
            NoWrite::Full | NoWrite::Broken => DeviceFault::Damaged,
        };
        fault(SEND, self.name(), why)
    }
}

fn claim(shared: &Shared, segment: &DeviceSegment) -> Result<Writer> {
    let _updating = shared.begin_update()?;
    let membership = shared.membership();
    let me = (membership.id(), membership.incarnation());
    Writer::claim(&segment.view(), me, None, |node, life| membership.is_living(node, life)).ok_or_else(|| {
        let senders = segment.geometry().senders;
        fault(SEND, segment.name(), DeviceFault::NoLane { senders })
    })
}

impl Drop for DeviceSender {
    fn drop(&mut self) {
        if doorbell_shm::space::forked() {
            return;
        }
        match &mut self.way {
            Way::Near { segment, writer, .. } => writer.get_mut().release(&segment.view()),
            Way::Far { stream, dropped, .. } => {
                let (stream, dropped) = (*stream, dropped.clone());
                far::close(self, stream, &dropped);
            }
        }
    }
}

impl fmt::Debug for DeviceSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceSender").field("device", &self.name()).finish_non_exhaustive()
    }
}

impl DeviceSender {
    /// Prepares to send to the threads of the device `name`, over a lane of its own. Makes system calls. Over the network it
    /// waits up to five seconds for a node that serves the device.
    ///
    /// # Errors
    /// [`Error::Device`]: no living process is attached to a device of this name, or the device has no lane left for this node.
    pub fn open(node: &Node, name: &str) -> Result<Self> {
        Self::open_for(shared_of(node).clone(), name)
    }
}
