//! How a node sends to the threads of a device.

use super::fault;
use crate::Result;
use crate::engine::baton::Token;
use crate::engine::poller::Progress;
use crate::engine::wait::Step;
use crate::error::{DeviceFault, Error};
use crate::node::Shared;
use doorbell_shm::device::{NoWrite, Writer};
use doorbell_shm::domain::DeviceSegment;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SEND: &str = "send to";
/// How often a sender that waits looks at its lane before the engine is turned.
const TURN_EVERY: u32 = 32;
const SLEEP: Duration = Duration::from_millis(25);
const SLEEP_INLINE: Duration = Duration::from_millis(1);

/// A way to send to the threads of a device. `Send`, not `Sync`: each has a lane of its own, which it gives back when it is dropped.
///
/// Messages to one thread come in the order in which they were sent by one value.
pub struct DeviceSender {
    shared: Arc<Shared>,
    segment: Arc<DeviceSegment>,
    writer: RefCell<Writer>,
}

impl DeviceSender {
    pub(super) fn open(shared: Arc<Shared>, name: &str) -> Result<Self> {
        shared.check()?;
        let Some(segment) = shared.membership().open_device(name)? else {
            return Err(fault(SEND, name, DeviceFault::Absent));
        };
        let writer = claim(&shared, &segment)?;
        Ok(Self { shared, segment: Arc::new(segment), writer: RefCell::new(writer) })
    }

    /// What the device is called.
    pub fn name(&self) -> &str {
        self.segment.name()
    }

    /// Bytes of the longest message.
    pub fn message_max(&self) -> usize {
        self.segment.geometry().message_max()
    }

    /// Sends a message to a thread id. Returns when it is in the device; while there is no room for it, waits without limit and drives the engine. Nobody
    /// needs to be that thread yet.
    ///
    /// # Errors
    /// [`Error::Device`]: the message is too long, no living process is attached any more, or the lane was damaged. Then it was not sent.
    pub fn send(&self, thread: u32, tag: u64, bytes: &[u8]) -> Result<()> {
        self.send_parts(thread, tag, &[bytes], None)
    }

    /// As [`send`](Self::send), until `deadline` at most: then [`Error::Timeout`], and it was not sent.
    pub fn send_by(&self, thread: u32, tag: u64, bytes: &[u8], deadline: Instant) -> Result<()> {
        self.send_parts(thread, tag, &[bytes], Some(deadline))
    }

    /// As [`send`](Self::send), of a message that lies in several pieces.
    pub fn send_vectored(&self, thread: u32, tag: u64, parts: &[&[u8]]) -> Result<()> {
        self.send_parts(thread, tag, parts, None)
    }

    /// Sends if there is room now; false if there is not.
    pub fn try_send(&self, thread: u32, tag: u64, bytes: &[u8]) -> Result<bool> {
        self.shared.check()?;
        match self.writer.borrow_mut().try_write(&self.segment.view(), thread, tag, &[bytes]) {
            Ok(()) => Ok(true),
            Err(NoWrite::Full) => Ok(false),
            Err(why) => Err(self.refused(why, bytes.len())),
        }
    }

    #[inline]
    fn send_parts(&self, thread: u32, tag: u64, parts: &[&[u8]], deadline: Option<Instant>) -> Result<()> {
        let me = self.shared.check()?;
        // The writer is not borrowed any more while this waits.
        let written = self.writer.borrow_mut().try_write(&self.segment.view(), thread, tag, parts);
        match written {
            Ok(()) => Ok(()),
            Err(why) => self.send_when_there_is_room(me, thread, tag, parts, deadline, why),
        }
    }

    #[cold]
    fn send_when_there_is_room(
        &self,
        me: Token,
        thread: u32,
        tag: u64,
        parts: &[&[u8]],
        deadline: Option<Instant>,
        mut why: NoWrite,
    ) -> Result<()> {
        let (shared, view) = (&self.shared, self.segment.view());
        let len = parts.iter().map(|part| part.len()).fold(0, usize::saturating_add);
        let (mut gear, mut rounds, mut anew) = (shared.gear(deadline), 0_u32, false);
        loop {
            match why {
                NoWrite::Full => {}
                // Somebody damaged the lane, or took it for a dead one's: there may be another.
                NoWrite::Broken if !anew => {
                    anew = true;
                    *self.writer.borrow_mut() = claim(shared, &self.segment)?;
                }
                why => return Err(self.refused(why, len)),
            }
            rounds += 1;
            if rounds.is_multiple_of(TURN_EVERY) && shared.progress() != Progress::Poller {
                shared.turn(me);
            }
            match gear.step() {
                Step::Again => {}
                Step::Check => self.care(me)?,
                Step::Park(most) => {
                    let is_inline = shared.progress() == Progress::Inline && shared.has_network();
                    self.writer.borrow_mut().sleep(&view, len, most.min(if is_inline { SLEEP_INLINE } else { SLEEP }));
                    gear.slept();
                    if gear.check_due() {
                        self.care(me)?;
                    }
                }
                Step::Expired => return Err(Error::Timeout { operation: "send to a device", node: None }),
            }
            match self.writer.borrow_mut().try_write(&view, thread, tag, parts) {
                Ok(()) => return Ok(()),
                Err(again) => why = again,
            }
        }
    }

    /// What a long wait has to see to: that the node lives, and that anybody is there to receive.
    #[cold]
    fn care(&self, me: Token) -> Result<()> {
        self.shared.check()?;
        if self.shared.progress() != Progress::Poller {
            self.shared.check_peers(me);
        }
        let membership = self.shared.membership();
        if self.segment.view().attached().any(|(node, life)| membership.is_living(node, life)) {
            return Ok(());
        }
        Err(fault(SEND, self.name(), DeviceFault::Absent))
    }

    #[cold]
    fn refused(&self, why: NoWrite, len: usize) -> Error {
        let max = self.message_max();
        let why = match why {
            NoWrite::TooLong => DeviceFault::TooLong { len, max },
            _ => DeviceFault::Damaged,
        };
        fault(SEND, self.name(), why)
    }
}

fn claim(shared: &Shared, segment: &DeviceSegment) -> Result<Writer> {
    let membership = shared.membership();
    let me = (membership.id(), membership.incarnation());
    Writer::claim(&segment.view(), me, None, |node, life| membership.is_living(node, life)).ok_or_else(|| {
        let senders = segment.geometry().senders;
        fault(SEND, segment.name(), DeviceFault::NoLane { senders })
    })
}

impl Drop for DeviceSender {
    fn drop(&mut self) {
        if !doorbell_shm::space::forked() {
            self.writer.get_mut().release(&self.segment.view());
        }
    }
}

impl fmt::Debug for DeviceSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceSender").field("device", &self.name()).finish_non_exhaustive()
    }
}
