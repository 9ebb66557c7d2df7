//! A device that this process is attached to.

use super::attachment::Inner;
use super::envelope::DeviceCounts;
use super::net::Devices;
use super::thread::DeviceThread;
use super::watch::{DeviceEvent, Watch};
use doorbell_engine::kit::{Node, Result, Shared, shared_of};
use doorbell_shm::device::{DeviceGeometry, Held};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

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
    /// [`DeviceStep::Waited`](crate::DeviceStep::Waited), it runs with the device's lock held, so it has to be short. A panic in it is ignored.
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
        let leave = |shared: &Shared| drop(shared.call("detach from a device", Devices::leave));
        let inner = Arc::new(Inner { shared, segment, fetch_within, watch, leave });
        if inner.shared.has_network() {
            inner.shared.call("attach to a device", |devices: &mut Devices| devices.enter(&inner))?;
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
    /// [`DeviceError`](crate::DeviceError): a living thread has this id, or the device serves as many threads as it can. [`Error::Timeout`](doorbell_engine::Error::Timeout): the
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
