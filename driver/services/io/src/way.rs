//! How requests and replies travel: through a device of the server, and one of each node that is a client.
//!
//! The names say whose they are, so nobody has to be told. A client's thread is a thread of its node's device; what comes for it goes straight into its
//! own memory, whoever else of that node waits.

use super::wire::{ROOM, thread_of};
use doorbell_device::{Device, DeviceEnvelope, DeviceSender, DeviceThread};
use doorbell_engine::error::{DeviceFault, Error};
use doorbell_engine::node::shared_of;
use doorbell_engine::sync::baton::Token;
use doorbell_engine::{Incarnation, Node, NodeId, Result};
use std::time::{Duration, Instant};

/// The thread id of a server.
const SERVER: u32 = 0;
/// Lanes of a server's device: clients at a time.
pub(super) const CLIENTS: usize = 64;
/// Threads of a client's device: clients of one node at a time.
const THREADS: usize = 64;
/// Lanes of a client's device: servers at a time, and then some, as a server may open two ways where one would do.
const SERVERS: usize = 16;
/// How long a server may take to make room for what nobody waits for an answer to.
const TELL: Duration = Duration::from_secs(5);
/// How long an answer may wait for a client's thread while others of its node wait for theirs. A thread that stood still for longer finds out that it is lost.
const FETCH: Duration = Duration::from_secs(30);

fn of_server(server: NodeId) -> String {
    format!("io.{server}")
}

fn of_client(client: NodeId, life: Incarnation) -> String {
    format!("io.{client}.{life}")
}

/// A message that came.
pub(super) type Letter = DeviceEnvelope;

/// What came of looking for a letter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Got {
    Letter(Letter),
    /// One that is longer than any: it is gone.
    TooLong,
    Nothing,
}

/// Where a thread gets its letters.
pub(super) struct Mailbox {
    thread: DeviceThread,
    /// Of a client: from whom letters are expected.
    server: Option<(NodeId, Incarnation)>,
    _device: Device,
}

impl Mailbox {
    /// Of a server.
    pub(super) fn of_server(node: &Node) -> Result<Self> {
        let device = Device::builder(node, &of_server(node.id())).threads(1).senders(CLIENTS).message_max(ROOM).attach()?;
        Ok(Self { thread: device.thread(SERVER)?.conversing(), server: None, _device: device })
    }

    /// Of a client's thread, which gets them from one server.
    pub(super) fn of_thread(node: &Node, server: NodeId, life: Incarnation, thread: u32) -> Result<Self> {
        let name = of_client(node.id(), node.incarnation());
        let device =
            Device::builder(node, &name).threads(THREADS).senders(SERVERS).message_max(ROOM).fetch_within(FETCH).attach()?;
        Ok(Self { thread: device.thread(thread)?.conversing(), server: Some((server, life)), _device: device })
    }

    /// Waits for the next one, until then at most.
    #[inline]
    pub(super) fn receive_by(&mut self, buf: &mut [u8], deadline: Instant) -> Result<Got> {
        loop {
            match self.thread.receive_by(buf, deadline) {
                Ok(envelope) if self.server.is_some_and(|server| server != (envelope.source, envelope.incarnation)) => {
                    // Whoever floods it must not hide that the time is over.
                    if Instant::now() >= deadline {
                        return Ok(Got::Nothing);
                    }
                }
                Ok(envelope) => return Ok(Got::Letter(envelope)),
                Err(error) => return self.nothing(error),
            }
        }
    }

    /// Whether the node that a letter names is the one that has its lane.
    pub(super) fn is_from(&self, letter: &Letter) -> bool {
        self.thread.is_from_its_source(letter)
    }

    /// The next one, if there is one.
    #[inline]
    pub(super) fn try_receive(&mut self, buf: &mut [u8]) -> Result<Got> {
        match self.thread.try_receive(buf) {
            Ok(got) => Ok(got.map_or(Got::Nothing, Got::Letter)),
            Err(error) => self.nothing(error),
        }
    }

    #[cold]
    fn nothing(&mut self, error: Error) -> Result<Got> {
        match &error {
            Error::Timeout { .. } => Ok(Got::Nothing),
            Error::Device { why, .. } => match **why {
                // Longer than anything that is said here: taken, and dropped.
                DeviceFault::TooSmall { len, .. } => {
                    self.thread.try_receive(&mut vec![0; len])?;
                    Ok(Got::TooLong)
                }
                _ => Err(error),
            },
            _ => Err(error),
        }
    }
}

/// A way to a server, or to the threads of a client.
pub(super) struct Outlet {
    sender: DeviceSender,
    to: NodeId,
    is_of_server: bool,
}

impl Outlet {
    pub(super) fn to_server(node: &Node, server: NodeId) -> Result<Self> {
        Ok(Self { sender: DeviceSender::open(node, &of_server(server))?, to: server, is_of_server: true })
    }

    /// To the threads of this life of a node.
    pub(super) fn to_client(node: &Node, client: NodeId, life: Incarnation) -> Result<Self> {
        Ok(Self { sender: DeviceSender::open(node, &of_client(client, life))?, to: client, is_of_server: false })
    }

    /// Whether it may take time to end it.
    pub(super) fn is_far(&self, node: &Node) -> bool {
        !shared_of(node).is_near(Token::current(), self.to)
    }

    #[inline]
    fn thread(&self, tag: u64) -> u32 {
        if self.is_of_server { SERVER } else { thread_of(tag) }
    }

    /// An error if nobody is there any more.
    pub(super) fn check_there(&self) -> Result<()> {
        self.sender.check_there()
    }

    /// Sends what lies in two pieces; waits while there is no room, until `deadline` if there is one.
    #[inline]
    pub(super) fn send(&self, tag: u64, head: &[u8], follows: &[u8], deadline: Option<Instant>) -> Result<()> {
        self.sender.send_parts(self.thread(tag), tag, &[head, follows], deadline)
    }

    /// The same, for a moment at most: what nobody waits for an answer to.
    pub(super) fn tell(&self, tag: u64, bytes: &[u8]) -> Result<()> {
        self.sender.send_by(self.thread(tag), tag, bytes, Instant::now() + TELL)
    }

    /// Sends if there is room now; false if there is not.
    #[inline]
    pub(super) fn try_send(&self, tag: u64, bytes: &[u8]) -> Result<bool> {
        self.sender.try_send(self.thread(tag), tag, bytes)
    }
}
