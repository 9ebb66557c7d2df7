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

mod attachment;
mod device;
mod envelope;
mod error;
mod far;
mod net;
mod sender;
mod thread;
mod watch;

pub use device::{Device, DeviceBuilder};
pub use envelope::{DeviceCounts, DeviceEnvelope};
pub use error::DeviceError;
pub use sender::DeviceSender;
pub use thread::DeviceThread;
pub use watch::{DeviceEvent, DeviceStep};
