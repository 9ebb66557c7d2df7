//! The shared device: threads of one or several processes receive messages through one reception FIFO, without a thread that hands them
//! out and without copying twice.
//!
//! A device has a name in its domain, and belongs to no node: processes [attach](DeviceBuilder::attach) to it, and it is there until the last
//! has left. A message is for a **thread id**: one header packet, which says which, and data packets that follow it with none of another
//! message in between. Whoever is a thread of the device, by [`Device::thread`], receives what is sent to that id, straight into its own
//! buffer; any node sends, by [`DeviceSender::open`].
//!
//! To receive is to do the steps of the source: (a) take the device's lock; (b) look in the shared storage for a header for me; (c) if there is
//! one, receive the rest into the user's buffer, unlock, and return; (d) if not, take a header from the device; (e) if it is mine, receive the
//! rest into the user's buffer, unlock, and return; (f) if it is another's, put it in the shared storage, unlock, wait out the time-out, and
//! begin again. [`DeviceBuilder::watch`] shows them as they happen. Beyond the source:
//!
//! - The wait ends early when something changes that concerns the thread: whoever sends wakes the thread that a message is for, and so does whoever
//!   stores a header for it.
//! - The lock knows its owner, and survives it: the next one finds out what was done, and goes on.
//! - Each sender has a lane of its own in the device: one that dies in mid-message blocks nobody. A message is seen when it is whole.
//! - The storage keeps up to 63 headers for each thread, so that a thread that computes does not stop the others. What nobody fetches is dropped
//!   after a [limit](DeviceBuilder::fetch_within), and [counted](Device::counts).
//!
//! The source's modes are ways to use it: in **SMP** mode one process attaches and each of its threads takes a [`DeviceThread`]; in **dual** mode two
//! processes attach, each with a thread beside its main one. More processes work the same way.
//!
//! Costs: a short message moves its header packet's line, the lock's line and two that say how far the lane was looked at; nothing is allocated and no
//! system call is made unless somebody sleeps.

mod far;
pub(crate) mod net;
mod sender;
mod thread;
mod watch;

use self::net::Devices;
use doorbell_engine::Result;
use doorbell_engine::drive::Shared;
use doorbell_engine::error::{DeviceFault, Error};
use doorbell_engine::node::Node;
use doorbell_engine::node::shared_of;
use doorbell_engine::sync::baton::Token;
use doorbell_fabric::{Incarnation, NodeId};
use doorbell_shm::device::{Counts, Dead, DeviceGeometry, Held, this_thread};
use doorbell_shm::domain::DeviceSegment;
use doorbell_shm::keys::OwnerId;
pub use sender::DeviceSender;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
pub use thread::DeviceThread;
use watch::Watch;
pub use watch::{DeviceEvent, DeviceStep};

/// What a device counted since it was made, of all processes.
pub type DeviceCounts = Counts;

/// What a message says of itself that was received from a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceEnvelope {
    /// Who sent it, by its own word.
    pub source: NodeId,
    /// Which life of that node.
    pub incarnation: Incarnation,
    /// The thread id that it was sent to.
    pub thread: u32,
    /// The sender's tag.
    pub tag: u64,
    /// Bytes.
    pub len: usize,
    /// By which lane of the device it came.
    pub(crate) lane: usize,
}

impl DeviceEnvelope {
    /// By which lane of the device it came. Each sender has a lane of its own, which the next sender may get when it is gone.
    pub fn lane(&self) -> usize {
        self.lane
    }
}

/// How a process attaches to a device. Made by [`Device::builder`]; nothing happens before [`attach`](Self::attach).
#[derive(Clone, Debug)]
#[must_use = "nothing happens before attach()"]
pub struct DeviceBuilder {
    node: Node,
    name: String,
    geometry: DeviceGeometry,
    fetch_within: Duration,
    watch: Option<Watch>,
}

impl DeviceBuilder {
    /// How many threads can receive at a time, of all processes: 1 to 64 [default: 16]. Of whoever makes the device; the others find it as it is.
    pub fn threads(mut self, threads: usize) -> Self {
        self.geometry.threads = threads;
        self
    }

    /// How many can send at a time: 1 to 64 [default: 8]. Each has a lane of the device. A node gets another lane as long as more are free than it has:
    /// half of them if it is alone. Of whoever makes it.
    pub fn senders(mut self, senders: usize) -> Self {
        self.geometry.senders = senders;
        self
    }

    /// Bytes of the longest message [default: some 256 KiB; at most some 512 MiB]. Each lane takes more than twice as much memory. Of whoever makes it.
    pub fn message_max(mut self, bytes: usize) -> Self {
        self.geometry.lane_bytes = DeviceGeometry::lane_bytes_for(bytes);
        self
    }

    /// For how long a message may wait for its thread before it is dropped, once another thread has looked at it and there is a thread that waits at the
    /// device [default: 5 s]. Whoever waits looks after it for all, so give the same in all processes.
    pub fn fetch_within(mut self, limit: Duration) -> Self {
        self.fetch_within = limit;
        self
    }

    /// Has `watch` told each step of this process's threads, while they do it: for tests and for finding out. It runs with the device's lock held,
    /// but for [`DeviceStep::Waited`].
    pub fn watch(mut self, watch: impl Fn(DeviceEvent) + Send + Sync + 'static) -> Self {
        self.watch = Some(Watch::new(watch));
        self
    }

    /// Attaches: makes the device if no living process is attached to one of that name. Blocks on the domain's lock for up to a second.
    ///
    /// # Errors
    /// A number is out of range, there is no room in shared memory, or 64 processes are attached already.
    pub fn attach(self) -> Result<Device> {
        let shared = shared_of(&self.node).clone();
        shared.check()?;
        let segment = Arc::new(shared.membership().attach_device(&self.name, self.geometry)?);
        let Self { fetch_within, watch, .. } = self;
        let inner = Arc::new(Inner { shared: shared.clone(), segment, fetch_within, watch });
        if shared.has_network() {
            shared.enter(Token::current(), "attach to a device")?.service::<Devices>().enter(&inner);
        }
        Ok(Device { inner })
    }
}

/// A device that this process is attached to. `Send` and `Sync`; clones are the same attachment, which ends with the last of them and of their threads.
///
/// ```
/// use doorbell::{Device, DeviceSender, Node, Space};
///
/// # fn main() -> Result<(), doorbell::Error> {
/// # let space = Space::heap();
/// let node = Node::builder("device-example").space(space.clone()).join()?;
/// let device = Device::builder(&node, "net").attach()?;
/// let mut worker = device.thread(7)?;
///
/// # let other = Node::builder("device-example").space(space).join()?;
/// let sender = DeviceSender::open(&other, "net")?; // `other` is a node of this or of another process
/// sender.send(7, 1, b"for thread 7")?;
///
/// let mut buf = [0; 64];
/// let envelope = worker.receive(&mut buf)?;
/// assert_eq!((envelope.source, envelope.tag, &buf[..envelope.len]), (other.id(), 1, &b"for thread 7"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

/// One attachment of this process.
pub(crate) struct Inner {
    shared: Arc<Shared>,
    segment: Arc<DeviceSegment>,
    fetch_within: Duration,
    watch: Option<Watch>,
}

impl Device {
    /// What it is called.
    pub fn name(&self) -> &str {
        self.inner.segment.name()
    }

    /// Bytes of the longest message.
    pub fn message_max(&self) -> usize {
        self.inner.segment.geometry().message_max()
    }

    /// Becomes the thread of this id: what is sent to it comes to the value returned, also what was sent before. Any thread may use the value, one at a
    /// time. Waits for the device's lock, which is held for the length of a copy.
    ///
    /// # Errors
    /// A living thread has the id already, or the device serves as many threads as it can.
    pub fn thread(&self, id: u32) -> Result<DeviceThread> {
        DeviceThread::attach(self.inner.clone(), id)
    }

    /// What it counted since it was made, of all processes. Reads some words; does not block. In a forked child, which has no part in the device: nothing.
    pub fn counts(&self) -> DeviceCounts {
        if doorbell_shm::space::forked() { DeviceCounts::default() } else { Held::counts(self.inner.segment.view()) }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Inner {
    fn fault(&self, operation: &'static str, why: DeviceFault) -> Error {
        fault(operation, self.segment.name(), why)
    }

    /// Who this call is, if it takes the lock without having a slot.
    fn caller(&self) -> OwnerId {
        let membership = self.shared.membership();
        // By its number others see whether it lives, from the moment at which it has the lock.
        OwnerId::user(membership.id(), membership.incarnation(), this_thread() as u32)
    }

    /// Whether whoever has the lock lives.
    fn lives(&self, owner: OwnerId) -> bool {
        self.shared.membership().is_receiver_living(owner, self.segment.view().tid_of(owner))
    }

    /// Receivers that do not live. Makes system calls: before the lock is taken.
    fn dead(&self, but: Option<usize>) -> Dead {
        self.segment.view().dead(but, |owner, tid| self.shared.membership().is_receiver_living(owner, tid))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if doorbell_shm::space::forked() {
            return;
        }
        let membership = self.shared.membership();
        self.segment.view().leave_port((membership.id(), membership.incarnation()));
        if !self.shared.is_closed()
            && let Err(error) = membership.detach_device(&self.segment)
        {
            tracing::warn!(%error, device = self.segment.name(), "a device stays until somebody else cleans up");
        }
        let me = Token::current();
        if self.shared.has_network()
            && let Ok(mut engine) = self.shared.enter(me, "detach from a device")
        {
            // Who is fed is told so.
            engine.push(me);
            engine.service::<Devices>().leave();
        }
    }
}

fn fault(operation: &'static str, device: &str, why: DeviceFault) -> Error {
    Error::Device { operation, device: device.into(), why: Box::new(why) }
}

impl Device {
    /// Prepares to attach to the device of this name: 1 to 64 of the characters `A-Z a-z 0-9 _ - .`.
    pub fn builder(node: &Node, name: &str) -> DeviceBuilder {
        DeviceBuilder {
            node: node.clone(),
            name: name.to_owned(),
            geometry: DeviceGeometry::default(),
            fetch_within: Duration::from_secs(5),
            watch: None,
        }
    }
}

impl DeviceSender {
    /// A way to send to the threads of a device, with a lane of its own there. Control path: makes system calls.
    ///
    /// # Errors
    /// [`Error::Device`]: no living process is attached to a device of this name, or it has no lane left for this node.
    pub fn open(node: &Node, name: &str) -> Result<Self> {
        Self::open_for(shared_of(node).clone(), name)
    }
}
