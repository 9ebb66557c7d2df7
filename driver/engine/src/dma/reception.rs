//! Reception FIFOs: packets that other nodes' engines sent to a FIFO of this node.

use super::descriptor::FifoKey;
use super::fifo::FifoBuilder;
use super::service::Dma;
use crate::board::eventfd;
use crate::drive::Begun;
use crate::error::{Error, Result};
use crate::message::service::PeerId;
use crate::node::Node;
use crate::sync::baton::Token;
use crate::turn::Engine;
use doorbell_fabric::{Envelope, Payload, Priority};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

const OPERATION: &str = "wait for a packet of a reception FIFO";
/// What a packet costs beside its bytes.
const PACKET_COST: usize = 64;

/// A packet in a reception FIFO.
pub(super) struct Held {
    pub envelope: Envelope,
    pub at: u64,
    pub bytes: Vec<u8>,
}

/// The packets of a FIFO. The engine adds them, and the program takes them.
pub(super) struct Reception {
    /// The most bytes that are kept for one node.
    pub capacity: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    packets: VecDeque<Held>,
    /// The bytes of each node.
    held: BTreeMap<PeerId, usize>,
    interrupt: Option<Arc<OwnedFd>>,
    /// A packet was refused for lack of room, and lies in its lane.
    refused: bool,
}

impl Reception {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a packet. False if its sender has as many bytes here as one node may have.
    pub fn add(&self, from: PeerId, priority: Priority, tag: u64, total: u64, at: u64, payload: Payload<'_>) -> bool {
        let mut state = self.state();
        let held = state.held.entry(from).or_default();
        // A single packet finds room in any case.
        if *held > 0 && *held + payload.len() + PACKET_COST > self.capacity {
            state.refused = true;
            return false;
        }
        *held += payload.len() + PACKET_COST;
        let PeerId { node, incarnation } = from;
        let envelope = Envelope { source: node, incarnation, tag, len: total as usize, sequence: 0, priority };
        state.packets.push_back(Held { envelope, at, bytes: payload.to_vec() });
        if let Some(fd) = &state.interrupt {
            // It does not block, and can only fail if it is readable already.
            let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
        }
        true
    }

    /// Whether a packet was refused since the last call.
    fn take_refused(&self) -> bool {
        std::mem::take(&mut self.state().refused)
    }

    /// The oldest packet.
    pub fn take(&self) -> Option<Held> {
        let mut state = self.state();
        let packet = state.packets.pop_front()?;
        let from = (packet.envelope.source, packet.envelope.incarnation).into();
        if let Some(held) = state.held.get_mut(&from) {
            *held -= packet.bytes.len() + PACKET_COST;
            if *held == 0 {
                state.held.remove(&from);
            }
        }
        if state.packets.is_empty()
            && let Some(fd) = &state.interrupt
        {
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
        Some(packet)
    }
}

/// A reception FIFO of this node: packets that descriptors of other nodes ([`Descriptor::packet`](super::Descriptor::packet))
/// sent to its number. They are read in place, in the order of their arrival, and packets of one node and priority in the order
/// of their descriptors.
///
/// A FIFO keeps so many bytes for each node ([`capacity`](FifoBuilder::capacity)). Beyond that the node's packets wait in
/// its lane, and so does everything behind them at that priority. Thread-safe. Dropping it discards its packets; later ones are
/// faults of their descriptors.
///
/// ```
/// # use doorbell::{Node, Space};
/// # use doorbell::dma::{Descriptor, InjectionFifo, ReceptionFifo};
/// # fn main() -> Result<(), doorbell::Error> {
/// # let space = Space::heap();
/// # let a = Node::builder("packets").space(space.clone()).join()?;
/// # let b = Node::builder("packets").space(space).join()?;
/// let packets = ReceptionFifo::builder(&b).number(7).open()?;
/// let source = a.region::<u8>(5)?;
/// source.write(0, b"hello")?;
/// let fifo = InjectionFifo::builder(&a).open()?;
/// fifo.inject(&Descriptor::packet(source.key(), packets.key(), 42)?)?;
/// fifo.wait()?;
/// let (tag, text) = packets.wait(|envelope, _, payload| (envelope.tag, payload.to_vec()))?;
/// assert_eq!((tag, &text[..]), (42, &b"hello"[..]));
/// # Ok(())
/// # }
/// ```
pub struct ReceptionFifo {
    node: Node,
    number: u16,
    fifo: Arc<Reception>,
    interrupt: OnceLock<(Arc<OwnedFd>, Begun)>,
}

impl ReceptionFifo {
    /// The settings of a reception FIFO, which [`open`](FifoBuilder::<ReceptionFifo>::open) opens.
    pub fn builder(node: &Node) -> FifoBuilder<Self> {
        FifoBuilder::new(node)
    }

    pub(super) fn opened(node: Node, number: u16, fifo: Arc<Reception>) -> Self {
        Self { node, number, fifo, interrupt: OnceLock::new() }
    }

    /// The name of this FIFO for other nodes.
    pub fn key(&self) -> FifoKey {
        FifoKey { node: self.node.id(), incarnation: self.node.incarnation(), number: self.number }
    }

    /// The number of packets that wait.
    pub fn depth(&self) -> usize {
        self.fifo.state().packets.len()
    }

    /// Reads the oldest packet in place, if there is one. `read` gets the envelope of the whole descriptor, with its length in
    /// `len`, the packet's offset in it, and the packet's bytes. Turns the engine once if there is no packet. Never waits.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Forked`].
    pub fn poll<R>(&self, read: impl FnOnce(&Envelope, u64, Payload<'_>) -> R) -> Result<Option<R>> {
        let me = self.node.shared().check()?;
        let packet = self.fifo.take().or_else(|| {
            self.node.shared().turn_unless_poller(me);
            self.fifo.take()
        });
        self.look_again(me);
        Ok(packet.map(|Held { envelope, at, bytes }| read(&envelope, at, Payload::private(&bytes))))
    }

    /// Waits for a packet and reads it in place: as [`poll`](Self::poll). The thread turns the engine meanwhile.
    ///
    /// # Errors
    /// [`Error::Closed`] if the node leaves; [`Error::Reentrant`] from within a callback; [`Error::Forked`].
    pub fn wait<R>(&self, read: impl FnOnce(&Envelope, u64, Payload<'_>) -> R) -> Result<R> {
        self.wait_at_most(None, read)
    }

    /// Waits for a packet until `deadline` at most: as [`wait`](Self::wait).
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`wait`](Self::wait).
    pub fn wait_until<R>(&self, deadline: Instant, read: impl FnOnce(&Envelope, u64, Payload<'_>) -> R) -> Result<R> {
        self.wait_at_most(Some(deadline), read)
    }

    /// Has refused packets taken again, now that there is room: nothing rings for them.
    fn look_again(&self, me: Token) {
        if self.fifo.take_refused() {
            self.node.shared().have_done(me, Engine::look_again);
        }
    }

    fn wait_at_most<R>(&self, deadline: Option<Instant>, read: impl FnOnce(&Envelope, u64, Payload<'_>) -> R) -> Result<R> {
        let take = |dma: &mut Dma| match self.fifo.take() {
            Some(packet) => Some(Ok(packet)),
            None => dma.closed.map(|why| Err(why.error())),
        };
        let found = self.node.shared().wait_for_service(OPERATION, deadline, take)?.transpose()?;
        self.look_again(Token::current());
        let Held { envelope, at, bytes } = found.ok_or(Error::Timeout { operation: OPERATION, node: None })?;
        Ok(read(&envelope, at, Payload::private(&bytes)))
    }

    /// A descriptor for `poll` and similar calls that is readable while packets wait. The first call makes it. The interrupt
    /// comes only if a thread turns the engine: with `Progress::Adaptive` and `Poller` the poller does so from now on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the process has no free descriptor; [`Error::Closed`], [`Error::Forked`].
    pub fn interrupt(&self) -> Result<BorrowedFd<'_>> {
        self.node.shared().check()?;
        if let Some((fd, _)) = self.interrupt.get() {
            return Ok(fd.as_fd());
        }
        let made = eventfd().map_err(|error| Error::Invalid {
            what: format!("could not make an eventfd for a reception FIFO ({error}); raise the limit of open files"),
        })?;
        let made = Arc::new(made);
        if self.interrupt.set((made.clone(), Begun::new(self.node.shared()))).is_ok() {
            let mut state = self.fifo.state();
            if !state.packets.is_empty() {
                let _ = rustix::io::write(&made, &1_u64.to_ne_bytes());
            }
            state.interrupt = Some(made);
        }
        self.interrupt.get().map(|(fd, _)| fd.as_fd()).ok_or(Error::Closed)
    }
}

impl Drop for ReceptionFifo {
    fn drop(&mut self) {
        if !doorbell_shm::space::forked() {
            let (number, fifo) = (self.number, self.fifo.clone());
            self.node.shared().have_done(Token::current(), move |engine| {
                if let Some(dma) = engine.find_service::<Dma>() {
                    dma.close_reception(number, &fifo);
                }
            });
        }
    }
}

impl fmt::Debug for ReceptionFifo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceptionFifo").field("key", &self.key()).field("depth", &self.depth()).finish_non_exhaustive()
    }
}
