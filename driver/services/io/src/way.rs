//! How requests and replies travel: through a device of the server, and a device of each node that has clients.
//!
//! The names of the devices contain the node ids, so both sides know them. A client's thread is a thread of its node's device,
//! so a reply goes straight into its memory, whichever other threads of that node wait.

use super::wire::{HEAD, ROOM, thread_of};
use doorbell_device::{Device, DeviceEnvelope, DeviceError, DeviceSender, DeviceThread};
use doorbell_engine::kit::{Error, Node, NodeId, PeerId, Result, Token, shared_of, world};
use std::time::{Duration, Instant};

/// The thread id of a server.
const SERVER: u32 = 0;
/// Lanes of a server's device: the most clients at a time.
pub(super) const CLIENTS: usize = 64;
/// Threads of a client's device: the most clients of one node at a time.
const THREADS: usize = 64;
/// Lanes of a client's device: the most servers at a time, and some more, since a server may briefly open a second way.
const SERVERS: usize = 16;
/// How long a server may take to make room for a request without a reply.
const TELL: Duration = Duration::from_secs(5);
/// How long a reply may wait for a client's thread while other threads of its node wait for theirs. A thread that was stopped
/// for longer finds out that its reply is lost.
const FETCH: Duration = Duration::from_secs(30);
/// How many invalid messages are dropped before the thread does something else.
const INVALID_AT_ONCE: usize = 64;

fn of_server(server: NodeId) -> String {
    format!("io.{server}")
}

fn of_client(PeerId { node, incarnation }: PeerId) -> String {
    format!("io.{node}.{incarnation}")
}

/// A message that has arrived.
pub(super) type Letter = DeviceEnvelope;

/// Where a thread receives its messages.
pub(super) struct Mailbox {
    thread: DeviceThread,
    /// The server that a client expects messages from.
    server: Option<PeerId>,
    _device: Device,
}

impl Mailbox {
    /// The mailbox of a server.
    pub(super) fn of_server(node: &Node) -> Result<Self> {
        let device = Device::builder(node, &of_server(node.id())).threads(1).senders(CLIENTS).message_max(ROOM).attach()?;
        Ok(Self { thread: device.thread(SERVER)?.conversing(), server: None, _device: device })
    }

    /// The mailbox of a client's thread, for messages of one server.
    pub(super) fn of_thread(node: &Node, server: PeerId, thread: u32) -> Result<Self> {
        let name = of_client(shared_of(node).membership().into());
        let device =
            Device::builder(node, &name).threads(THREADS).senders(SERVERS).message_max(ROOM).fetch_within(FETCH).attach()?;
        Ok(Self { thread: device.thread(thread)?.conversing(), server: Some(server), _device: device })
    }

    /// Waits for the next message until `deadline`, at most. Messages of other nodes, and messages that are too short or too
    /// long to be valid, are dropped.
    #[inline]
    pub(super) fn receive_until(&mut self, buf: &mut [u8], deadline: Instant) -> Result<Option<Letter>> {
        loop {
            let got = self.thread.receive_until(buf, deadline).map(Some);
            if let Some(letter) = self.valid(got)? {
                return Ok(Some(letter));
            }
            // A flood of other messages must not hide that the time is over.
            if world::now() >= deadline {
                return Ok(None);
            }
        }
    }

    /// Whether the node that a message names is the one that has its lane.
    pub(super) fn is_from(&self, letter: &Letter) -> bool {
        self.thread.is_from_its_source(letter)
    }

    /// The next message, if there is one that is valid. Drops invalid ones before it, but only so many: a flood of them must
    /// neither hide a valid message nor keep the thread.
    #[inline]
    pub(super) fn try_receive(&mut self, buf: &mut [u8]) -> Result<Option<Letter>> {
        for _ in 0..INVALID_AT_ONCE {
            let got = self.thread.try_receive(buf);
            if matches!(got, Ok(None)) {
                break;
            }
            let letter = self.valid(got)?;
            if letter.is_some() {
                return Ok(letter);
            }
        }
        Ok(None)
    }

    #[inline]
    fn valid(&mut self, got: Result<Option<Letter>>) -> Result<Option<Letter>> {
        match got {
            Ok(letter) => Ok(letter.filter(|letter| {
                let is_its = |server: PeerId| server == (letter.source, letter.incarnation).into();
                letter.len >= HEAD && self.server.is_none_or(is_its)
            })),
            Err(error) => self.nothing(error),
        }
    }

    #[cold]
    fn nothing(&mut self, error: Error) -> Result<Option<Letter>> {
        if let Error::Timeout { .. } = error {
            return Ok(None);
        }
        match error.downcast_ref() {
            // Longer than any valid message: taken, and dropped.
            Some(DeviceError::TooSmall { len, .. }) => self.thread.try_receive(&mut vec![0; *len]).map(|_| None),
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

    /// A way to the threads of this incarnation of a node.
    pub(super) fn to_client(node: &Node, client: PeerId) -> Result<Self> {
        Ok(Self { sender: DeviceSender::open(node, &of_client(client))?, to: client.node, is_of_server: false })
    }

    /// Whether ending it may take time.
    pub(super) fn is_far(&self, node: &Node) -> bool {
        !shared_of(node).is_near(Token::current(), self.to)
    }

    #[inline]
    fn thread(&self, tag: u64) -> u32 {
        if self.is_of_server { SERVER } else { thread_of(tag) }
    }

    /// Fails if the receiver is gone.
    pub(super) fn check_there(&self) -> Result<()> {
        self.sender.check_there()
    }

    /// Sends a message that lies in two pieces. Waits while there is no room, until `deadline` if there is one.
    #[inline]
    pub(super) fn send(&self, tag: u64, head: &[u8], follows: &[u8], deadline: Option<Instant>) -> Result<()> {
        self.sender.send_parts(self.thread(tag), tag, &[head, follows], deadline)
    }

    /// Sends a request that gets no reply. Waits for room for a few seconds at most.
    pub(super) fn tell(&self, tag: u64, bytes: &[u8]) -> Result<()> {
        self.sender.send_until(self.thread(tag), tag, bytes, world::now() + TELL)
    }

    /// Sends if there is room now, and returns false if there is not.
    #[inline]
    pub(super) fn try_send(&self, tag: u64, bytes: &[u8]) -> Result<bool> {
        self.sender.try_send(self.thread(tag), tag, bytes)
    }
}
