//! Sending to the threads of a device.

use super::envelope::{Parts, length};
use super::error::{DeviceError, fault};
use super::far::FarLane;
use doorbell_engine::kit::{Error, Locality, Moment, Node, PeerId, Progress, Result, Shared, Token, Work, shared_of};
use doorbell_shm::device::{NoWrite, Writer};
use doorbell_shm::domain::DeviceSegment;
use std::cell::{Cell, RefCell};
use std::fmt;
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
    shared: Arc<Shared>,
    name: Box<str>,
    way: Locality<Box<Lane>, FarLane>,
}

/// A lane of the device in shared memory.
struct Lane {
    segment: DeviceSegment,
    writer: RefCell<Writer>,
    work: Work,
    /// Attempts to send without waiting that found no room.
    vain: Cell<u32>,
}

impl DeviceSender {
    /// Prepares to send to the threads of the device `name`, over a lane of its own. Makes system calls. Over the network it
    /// waits up to five seconds for a node that serves the device.
    ///
    /// # Errors
    /// [`DeviceError`]: no living process is attached to a device of this name, or the device has no lane left for this node.
    pub fn open(node: &Node, name: &str) -> Result<Self> {
        let shared = shared_of(node).clone();
        shared.check()?;
        let way = match shared.membership().open_device(name)? {
            Some(segment) => {
                let writer = RefCell::new(claim(&shared, &segment)?);
                Locality::Near(Box::new(Lane { segment, writer, work: shared.new_work(), vain: Cell::new(0) }))
            }
            None if shared.has_network() => Locality::Far(FarLane::open(&shared, name)?),
            None => return Err(fault(SEND, name, DeviceError::Absent)),
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
            Locality::Near(lane) => lane.segment.geometry().message_max(),
            Locality::Far(lane) => lane.message_max,
        }
    }

    /// Sends a message to a thread id, which no thread needs to have yet. Returns when the message is in the device or, over
    /// the network, on its way there. While there is no room, it waits without limit and drives the engine.
    ///
    /// # Errors
    /// [`DeviceError`]: the message is too long, no living process is attached any more, or the lane was damaged. The message
    /// was not sent then; over the network, earlier messages on their way may be lost, too.
    pub fn send(&self, thread: u32, tag: u64, bytes: &[u8]) -> Result<()> {
        self.send_parts(thread, tag, &[bytes], None)
    }

    /// As [`send`](Self::send), but fails with [`Error::Timeout`] at `deadline`. The message was not sent then.
    pub fn send_until(&self, thread: u32, tag: u64, bytes: &[u8], deadline: Instant) -> Result<()> {
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
            Locality::Near(lane) => match self.write(lane, (thread, tag, &[bytes]))? {
                Ok(()) => Ok(true),
                Err(NoWrite::Full) => {
                    lane.vain.set(lane.vain.get().wrapping_add(1));
                    if lane.vain.get().is_multiple_of(CARE_EVERY) {
                        self.care(me, lane)?;
                    }
                    Ok(false)
                }
                Err(why) => Err(self.refused(why, bytes.len())),
            },
            Locality::Far(lane) => {
                self.check_len(bytes.len())?;
                lane.try_send(me, (thread, tag, &[bytes]))
            }
        }
    }

    /// Waits until all sent messages are in the device, and fails with [`Error::Timeout`] at `deadline`. Returns at once in
    /// shared memory, where a sent message is in the device already.
    pub fn flush_until(&self, deadline: Instant) -> Result<()> {
        self.shared.check()?;
        self.way.far().map_or(Ok(()), |lane| lane.flush(deadline))
    }

    /// Fails if it is known that no process receives any more. Makes system calls.
    pub fn check_there(&self) -> Result<()> {
        let me = self.shared.check()?;
        match &self.way {
            Locality::Near(lane) if lane.segment.view().has_ended() => Err(self.refused(NoWrite::Ended, 0)),
            Locality::Near(lane) => self.care(me, lane),
            Locality::Far(lane) => lane.check_there(),
        }
    }

    /// As [`send_vectored`](Self::send_vectored), until `deadline` if there is one.
    #[inline]
    pub fn send_parts(&self, thread: u32, tag: u64, parts: &[&[u8]], deadline: Option<Instant>) -> Result<()> {
        let me = self.shared.check()?;
        let message = (thread, tag, parts);
        match &self.way {
            Locality::Near(lane) => match self.write(lane, message)? {
                Ok(()) => Ok(()),
                Err(why) => self.send_when_there_is_room(me, lane, message, deadline, why),
            },
            Locality::Far(lane) => {
                self.check_len(length(parts))?;
                lane.send(message, deadline)
            }
        }
    }

    fn check_len(&self, len: usize) -> Result<()> {
        if len <= self.message_max() { Ok(()) } else { Err(self.refused(NoWrite::TooLong, len)) }
    }

    #[inline]
    fn write(&self, lane: &Lane, (thread, tag, parts): Parts<'_>) -> Result<Result<(), NoWrite>> {
        // While this guard lives the node does not leave. Another sender could get the lane after that.
        let _working = self.shared.begin(&lane.work)?;
        Ok(lane.writer.borrow_mut().try_write(&lane.segment.view(), thread, tag, parts))
    }

    #[cold]
    fn send_when_there_is_room(
        &self,
        me: Token,
        lane: &Lane,
        message: Parts<'_>,
        deadline: Option<Instant>,
        why: NoWrite,
    ) -> Result<()> {
        let (shared, len) = (&self.shared, length(message.2));
        let (mut why, mut anew) = (Some(why), false);
        shared.wait_for(me, shared.backoff(deadline), TURN_EVERY, |moment| {
            match moment {
                Moment::Look => {
                    // The first attempt was made by the caller.
                    let done = why.take().map_or_else(|| self.write(lane, message), |why| Ok(Err(why)))?;
                    match done {
                        Ok(()) => return Ok(Some(())),
                        Err(NoWrite::Full) => {}
                        // Another process damaged the lane, or took this sender for dead. Another lane may be free.
                        Err(NoWrite::Broken) if !anew => {
                            anew = true;
                            *lane.writer.borrow_mut() = claim(shared, &lane.segment)?;
                        }
                        Err(why) => return Err(self.refused(why, len)),
                    }
                }
                Moment::Check => self.care(me, lane)?,
                Moment::Sleep(most) => {
                    let is_inline = shared.progress() == Progress::Inline && shared.has_network();
                    let most = most.min(if is_inline { SLEEP_INLINE } else { SLEEP });
                    lane.writer.borrow_mut().sleep(&lane.segment.view(), len, most);
                }
                Moment::Expired => return Err(Error::Timeout { operation: "send to a device", node: None }),
            }
            Ok(None)
        })
    }

    /// The checks of a long wait: this node lives, and a living process is attached.
    #[cold]
    fn care(&self, me: Token, lane: &Lane) -> Result<()> {
        self.shared.check_long_wait(me)?;
        let membership = self.shared.membership();
        if lane.segment.view().attached().any(|(node, incarnation)| membership.is_living(node, incarnation)) {
            return Ok(());
        }
        Err(fault(SEND, self.name(), DeviceError::Absent))
    }

    #[cold]
    fn refused(&self, why: NoWrite, len: usize) -> Error {
        let max = self.message_max();
        let why = match why {
            NoWrite::TooLong => DeviceError::TooLong { len, max },
            NoWrite::Ended => DeviceError::Absent,
            NoWrite::Full | NoWrite::Broken => DeviceError::Damaged,
        };
        fault(SEND, self.name(), why)
    }
}

fn claim(shared: &Shared, segment: &DeviceSegment) -> Result<Writer> {
    let _updating = shared.begin_update()?;
    let membership = shared.membership();
    Writer::claim(&segment.view(), PeerId::from(membership).into(), None, |node, incarnation| {
        membership.is_living(node, incarnation)
    })
    .ok_or_else(|| {
        let senders = segment.geometry().senders;
        fault(SEND, segment.name(), DeviceError::NoLane { senders })
    })
}

impl Drop for DeviceSender {
    fn drop(&mut self) {
        if doorbell_shm::space::forked() {
            return;
        }
        match &mut self.way {
            Locality::Near(lane) => lane.writer.get_mut().release(&lane.segment.view()),
            Locality::Far(lane) => lane.close(),
        }
    }
}

impl fmt::Debug for DeviceSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceSender").field("device", &self.name()).finish_non_exhaustive()
    }
}
