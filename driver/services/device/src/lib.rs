//! The device service: threads of several processes receive messages through one reception FIFO, without a thread that
//! distributes them and without a second copy. A receiving process calls [`Device::builder`] and
//! [`attach`](DeviceBuilder::attach), then [`Device::thread`] for each thread id, and [`DeviceThread::receive`]. A sending node
//! calls [`DeviceSender::open`] and [`DeviceSender::send`].
//!
//! A device has a name in its domain and belongs to no node: it exists until the last attached process has left. A message goes
//! to a **thread id**. It is one header packet, which holds the id, and data packets that follow it without packets of other
//! messages in between. The [`DeviceThread`] of that id receives it straight into the caller's buffer.
//!
//! A thread receives in these steps. (a) It takes the device's lock. (b) It looks in the shared storage for a header for
//! itself. (c) If there is one, it receives the rest of the message into the user's buffer, unlocks, and returns. (d) If not,
//! it takes a header from the device. (e) If the header is its own, it receives the rest into the user's buffer, unlocks, and
//! returns. (f) If the header is another thread's, it puts it into the shared storage, unlocks, waits for a time, and begins
//! again. [`DeviceBuilder::watch`] shows these steps as they happen. In addition:
//!
//! - The wait in (f) ends early: a sender wakes the thread that its message is for, and so does a thread that stores a header
//!   for it.
//! - The lock knows its owner. If the owner dies, the next thread finds out how far it got, and goes on.
//! - Each sender has a lane of its own in the device, so a sender that dies in the middle of a message blocks no other. A
//!   message is visible once it is complete.
//! - The storage keeps up to 63 headers for each thread, so a thread that computes does not stop the others. A message that is
//!   not fetched is dropped after a [limit](DeviceBuilder::fetch_within), and [counted](Device::counts).
//!
//! In **SMP** mode one process attaches, and each of its threads takes a [`DeviceThread`]. In **dual** mode two processes
//! attach, each with a thread beside its main one. More processes work in the same way.
//!
//! Costs: a short message moves the cache lines of its header packet, of the lock, and of two words that say how far the lane
//! was read. Nothing is allocated, and no system call is made unless a thread sleeps.

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

/// What all processes counted on a device since it was created.
pub type DeviceCounts = Counts;

/// The description of a message that was received from a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceEnvelope {
    /// The sending node, as the sender states it.
    pub source: NodeId,
    /// The incarnation of that node, as the sender states it.
    pub incarnation: Incarnation,
    /// The thread id that the message was sent to.
    pub thread: u32,
    /// The sender's tag.
    pub tag: u64,
    /// The length of the message, in bytes.
    pub len: usize,
    /// The device's lane that it came by.
    pub(crate) lane: usize,
}

impl DeviceEnvelope {
    /// The device's lane that the message came by. Each sender has a lane of its own. When a sender is gone, another one may
    /// get its lane.
    pub fn lane(&self) -> usize {
        self.lane
    }
}

/// The options for attaching to a device. Made by [`Device::builder`]; nothing happens before [`attach`](Self::attach).
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
    /// Sets how many threads of all processes can receive at a time: 1 to 64 [default: 16]. Only the process that creates the
    /// device decides this.
    pub fn threads(mut self, threads: usize) -> Self {
        self.geometry.threads = threads;
        self
    }

    /// Sets how many senders there can be at a time: 1 to 64 [default: 8]. Each has a lane of the device. A node gets another
    /// lane only while more lanes are free than it has, so a single node gets half of them. Only the process that creates the
    /// device decides this.
    pub fn senders(mut self, senders: usize) -> Self {
        self.geometry.senders = senders;
        self
    }

    /// Sets the length of the longest message, in bytes [default: about 256 KiB; at most about 512 MiB]. Each lane takes more
    /// than twice as much memory. Only the process that creates the device decides this.
    pub fn message_max(mut self, bytes: usize) -> Self {
        self.geometry.lane_bytes = DeviceGeometry::lane_bytes_for(bytes);
        self
    }

    /// Sets how long a message may wait for its thread [default: 5 s]. The time starts when another thread has looked at the
    /// message, and the message is dropped by a thread that waits at the device. Any waiting thread drops for all processes, so
    /// set the same limit in all of them.
    pub fn fetch_within(mut self, limit: Duration) -> Self {
        self.fetch_within = limit;
        self
    }

    /// Sets a function that is called at each step of this process's threads, for tests and for diagnosis. Except for
    /// [`DeviceStep::Waited`], it runs with the device's lock held, so it has to be short. A panic in it is ignored.
    pub fn watch(mut self, watch: impl Fn(DeviceEvent) + Send + Sync + 'static) -> Self {
        self.watch = Some(Watch::new(watch));
        self
    }

    /// Attaches, and creates the device if no living process is attached to one of this name. Blocks on the domain's lock file
    /// for up to a second.
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

/// A device that this process is attached to. `Send` and `Sync`. Clones share one attachment, which ends with the last clone
/// and the last of their threads.
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
    /// The name of the device.
    pub fn name(&self) -> &str {
        self.inner.segment.name()
    }

    /// The length of the longest message, in bytes.
    pub fn message_max(&self) -> usize {
        self.inner.segment.geometry().message_max()
    }

    /// Takes the thread id `id`: the returned value receives all messages to it, including those sent earlier. Any thread may
    /// use the value, one at a time. Waits for the device's lock, which is held for the length of a copy.
    ///
    /// # Errors
    /// [`Error::Device`]: a living thread has this id, or the device serves as many threads as it can. [`Error::Timeout`]: the
    /// lock was not free within two seconds.
    pub fn thread(&self, id: u32) -> Result<DeviceThread> {
        DeviceThread::attach(self.inner.clone(), id)
    }

    /// The counts of all processes since the device was created. Reads a few words; does not block. Zero in a forked child,
    /// which has no part in the device.
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

    /// The identification of a caller that takes the lock without a slot.
    fn caller(&self) -> OwnerId {
        let membership = self.shared.membership();
        // It contains the thread's number, by which others see whether the owner lives from the moment it has the lock.
        OwnerId::user(membership.id(), membership.incarnation(), this_thread() as u32)
    }

    /// Whether the lock's owner lives.
    fn lives(&self, owner: OwnerId) -> bool {
        self.shared.membership().is_receiver_living(owner, self.segment.view().tid_of(owner))
    }

    /// Receivers that do not live. Makes system calls, so call it before taking the lock.
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
            tracing::warn!(%error, device = self.segment.name(), "could not detach from a device; its memory stays until another process cleans up");
        }
        let me = Token::current();
        if self.shared.has_network()
            && let Ok(mut engine) = self.shared.enter(me, "detach from a device")
        {
            // The next turn tells the senders that this process served.
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
    /// Prepares to send to the threads of the device `name`, over a lane of its own. Makes system calls. Over the network it
    /// waits up to five seconds for a node that serves the device.
    ///
    /// # Errors
    /// [`Error::Device`]: no living process is attached to a device of this name, or the device has no lane left for this node.
    pub fn open(node: &Node, name: &str) -> Result<Self> {
        Self::open_for(shared_of(node).clone(), name)
    }
}
