//! Injection FIFOs of a program, and the builder of all FIFOs.

use super::descriptor::{ANYWHERE, Descriptor, FifoKey, UNCHECKED, home_of};
use super::near::Span;
use super::reception::ReceptionFifo;
use super::service::Dma;
use crate::error::{Error, KeyFault, Result};
use crate::message::service::{Class, PeerId};
use crate::node::Node;
use crate::sync::baton::Token;
use doorbell_fabric::Priority;
use doorbell_shm::board::{FIFO_NAME_BYTES, FIFO_SLOTS, Fifo, FifoFacts, Injector};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

const OPERATION: &str = "wait for an injection FIFO";
/// The most faults that are kept for a program.
const FAULTS_MAX: usize = 64;
/// No descriptor has this home.
const NOWHERE: u64 = u64::MAX - 1;
/// The numbers of reception FIFOs that a node chooses itself begin here.
const CHOSEN: u16 = 0x8000;

/// An injection FIFO as its handle and the engine share it.
pub(super) struct Injection {
    pub fifo: Arc<Fifo>,
    /// The number of descriptors that are not over and have no slot any more.
    pub detached: AtomicUsize,
    faults: Mutex<VecDeque<(u64, Error)>>,
}

impl Injection {
    pub fn new(fifo: Arc<Fifo>) -> Self {
        Self { fifo, detached: AtomicUsize::new(0), faults: Mutex::default() }
    }

    /// The number of slots and descriptors that are not over.
    pub fn depth(&self) -> usize {
        self.detached.load(Ordering::Relaxed) + self.fifo.depth()
    }

    /// Keeps a fault for the program. Beyond the limit, the oldest is dropped; the board counts all.
    pub fn fault(&self, position: u64, error: Error) {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if faults.len() == FAULTS_MAX {
            faults.pop_front();
        }
        faults.push_back((position, error));
    }

    fn next_fault(&self) -> Option<(u64, Error)> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// The settings of a FIFO that is not open yet. [`InjectionFifo::builder`] and [`ReceptionFifo::builder`] make one.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before open()"]
pub struct FifoBuilder<F> {
    node: Node,
    facts: FifoFacts,
    number: Option<u16>,
    capacity: usize,
    _opens: PhantomData<fn() -> F>,
}

impl<F> FifoBuilder<F> {
    pub(super) fn new(node: &Node) -> Self {
        let facts = FifoFacts { name: String::new(), injector: Injector::Program, priority: Priority::Normal };
        Self { node: node.clone(), facts, number: None, capacity: 256 << 10, _opens: PhantomData }
    }
}

impl FifoBuilder<InjectionFifo> {
    /// A name for people, shown by `doorbell top` and `doorbell autopsy`: 16 bytes at most.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.facts.name = name.into();
        self
    }

    /// The priority of its descriptors, and of the lanes that their packets take. The default is normal.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.facts.priority = priority;
        self
    }

    /// Other nodes inject by remote gets, and this program does not. Without this, remote gets take
    /// [`Node::remote_get_fifo`].
    pub fn for_peers(mut self) -> Self {
        self.facts.injector = Injector::Peers;
        self
    }

    /// Opens the FIFO. Never waits.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the node's board has no room for another FIFO, or the name is too long; [`Error::Closed`],
    /// [`Error::Forked`], [`Error::Reentrant`].
    pub fn open(self) -> Result<InjectionFifo> {
        let Self { node, facts, .. } = self;
        if facts.name.len() > FIFO_NAME_BYTES {
            let what = format!("the name '{}' of an injection FIFO has more than {FIFO_NAME_BYTES} bytes", facts.name);
            return Err(Error::Invalid { what });
        }
        let opened = node.shared().call("open an injection FIFO", |dma: &mut Dma| dma.open(facts))?;
        let shared = opened.ok_or_else(|| Error::Invalid {
            what: "all injection FIFOs of this node are open; drop some, or ask for more with NodeBuilder::injection_fifos"
                .into(),
        })?;
        let me = (node.id(), node.incarnation()).into();
        let fifo = shared.fifo.clone();
        // Other nodes alone inject into a FIFO for peers.
        let homes = if fifo.facts().injector == Injector::Program { [home_of(me), ANYWHERE] } else { [NOWHERE; 2] };
        Ok(InjectionFifo { node, me, fifo, shared, homes, _one_thread: PhantomData })
    }
}

impl FifoBuilder<ReceptionFifo> {
    /// The number of the FIFO, by which descriptors name it, below 32768. The default is a free number.
    pub fn number(mut self, number: u16) -> Self {
        self.number = Some(number);
        self
    }

    /// The most bytes that the FIFO keeps for each node. The default is 256 KiB. A single packet finds room in any case.
    pub fn capacity(mut self, bytes: usize) -> Self {
        self.capacity = bytes;
        self
    }

    /// Opens the FIFO. Never waits.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the node has a reception FIFO of that number already, or the number is too large;
    /// [`Error::Closed`], [`Error::Forked`], [`Error::Reentrant`].
    pub fn open(self) -> Result<ReceptionFifo> {
        let Self { node, number, capacity, .. } = self;
        if number.is_some_and(|number| number >= CHOSEN) {
            return Err(Error::Invalid { what: format!("the number of a reception FIFO is below {CHOSEN}") });
        }
        let open = |dma: &mut Dma| dma.open_reception(number, CHOSEN, capacity);
        let opened = node.shared().call("open a reception FIFO", open)?;
        let (number, fifo) = opened.ok_or_else(|| Error::Invalid {
            what: format!("this node has a reception FIFO {} already; choose another number", number.unwrap_or(CHOSEN)),
        })?;
        Ok(ReceptionFifo::opened(node, number, fifo))
    }
}

/// A ring of descriptors on this node's board, which the engine executes: see [`dma`](crate::dma).
///
/// One thread at a time injects; several threads open several FIFOs. Dropping it closes it after the engine has executed all
/// that was injected. It keeps the node attached until it is dropped.
pub struct InjectionFifo {
    node: Node,
    me: PeerId,
    fifo: Arc<Fifo>,
    shared: Arc<Injection>,
    /// The homes of descriptors that may be injected.
    homes: [u64; 2],
    _one_thread: PhantomData<Cell<()>>,
}

impl InjectionFifo {
    /// The settings of an injection FIFO, which [`open`](FifoBuilder::<InjectionFifo>::open) opens.
    pub fn builder(node: &Node) -> FifoBuilder<Self> {
        FifoBuilder::new(node)
    }

    /// The number of descriptors that it holds: 64. A remote get takes two places.
    pub const SLOTS: usize = FIFO_SLOTS;

    /// Injects a descriptor. False: the FIFO is full, and nothing was injected. Never waits, and moves nothing itself: with
    /// `Progress::Inline` the engine executes the descriptor when the program next calls the node.
    ///
    /// What the descriptor names must stay as it is until the engine has executed it.
    ///
    /// # Errors
    /// [`Error::Key`] if the source of the descriptor is not in this node; [`Error::Invalid`] if this FIFO is for peers;
    /// [`Error::Closed`], [`Error::Forked`].
    #[inline]
    pub fn inject(&self, descriptor: &Descriptor) -> Result<bool> {
        let shared = self.node.shared();
        let is_plain = descriptor.home == self.homes[0] && shared.only_rings();
        // Whatever is not plain comes out of line, so that the common case needs no stack.
        if !is_plain || !self.fifo.push_if_room_is_known(descriptor.first()) {
            return self.inject_any(descriptor);
        }
        shared.ring_for_injected();
        Ok(true)
    }

    #[inline(never)]
    fn inject_any(&self, descriptor: &Descriptor) -> Result<bool> {
        self.node.shared().usable()?;
        if descriptor.home != self.homes[0] {
            self.check_home(descriptor)?;
        }
        if !descriptor.push_to(&self.fifo) {
            return Ok(false);
        }
        self.node.shared().injected(Dma::CLASS);
        Ok(true)
    }

    /// Injects descriptors until the FIFO is full, and returns how many it took. As [`inject`](Self::inject).
    ///
    /// # Errors
    /// As [`inject`](Self::inject): the descriptors before the faulty one were injected.
    pub fn inject_all(&self, descriptors: &[Descriptor]) -> Result<usize> {
        for (taken, descriptor) in descriptors.iter().enumerate() {
            if !self.inject(descriptor)? {
                return Ok(taken);
            }
        }
        Ok(descriptors.len())
    }

    /// Whether a descriptor whose source is elsewhere may be injected.
    fn check_home(&self, descriptor: &Descriptor) -> Result<()> {
        if descriptor.home == self.homes[1] {
            return Ok(());
        }
        if descriptor.home == UNCHECKED && home_of(descriptor.owner) == self.homes[0] {
            return self.check_keys(descriptor);
        }
        if self.shared.fifo.facts().injector == Injector::Program {
            return Err(Error::Key { operation: "inject", node: Some(descriptor.owner.node), why: KeyFault::OtherNode });
        }
        let what = "only other nodes inject into this FIFO, by remote gets; open one without for_peers".into();
        Err(Error::Invalid { what })
    }

    /// Whether the sender of a descriptor that came in a message had the keys of this node's memory and counter.
    fn check_keys(&self, descriptor: &Descriptor) -> Result<()> {
        let shared = self.node.shared();
        let (number, at, len, secret) = descriptor.source();
        if let Err(status) = Span::own(shared.regions(), number, at, len, Some((secret, false))) {
            return Err(status.error("inject", self.me, 0));
        }
        match descriptor.counted() {
            Some((index, secret)) if shared.monitor().counters.register().named(index.into(), secret).is_none() => {
                Err(Error::Key { operation: "inject", node: Some(self.me.node), why: KeyFault::Forged })
            }
            _ => Ok(()),
        }
    }

    /// The number of descriptors that are not over; a remote get counts twice.
    pub fn depth(&self) -> usize {
        self.shared.depth()
    }

    /// The position of the next descriptor: the number of places that were ever used.
    pub fn position(&self) -> u64 {
        self.shared.fifo.next_position()
    }

    /// The oldest fault that was not taken yet: the position of a descriptor, and why it was not executed, or not completely.
    /// The latest 64 are kept.
    pub fn next_fault(&self) -> Option<(u64, Error)> {
        self.shared.next_fault()
    }

    /// Waits until all that was injected is over: the bytes of a put are in place, packets and remote gets are on their way, or the
    /// descriptor failed. Look for faults afterwards ([`next_fault`](Self::next_fault)): a counter of a descriptor that failed
    /// does not come to zero. The thread turns the engine meanwhile.
    ///
    /// # Errors
    /// [`Error::Closed`] if the node leaves; [`Error::Reentrant`] from within a callback; [`Error::Forked`].
    pub fn wait(&self) -> Result<()> {
        self.wait_at_most(None)
    }

    /// Waits until all that was injected is over, until `deadline` at most.
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`wait`](Self::wait).
    pub fn wait_until(&self, deadline: Instant) -> Result<()> {
        self.wait_at_most(Some(deadline))
    }

    fn wait_at_most(&self, deadline: Option<Instant>) -> Result<()> {
        let is_over = |_: &mut Dma| (self.depth() == 0).then_some(());
        let done = self.node.shared().wait_for_service(OPERATION, deadline, is_over)?;
        done.ok_or(Error::Timeout { operation: OPERATION, node: None })
    }

    /// The name of this FIFO for [remote gets](Descriptor::remote_get) of other nodes.
    pub fn key(&self) -> FifoKey {
        FifoKey { node: self.me.node, incarnation: self.me.incarnation, number: self.shared.fifo.number() as u16 }
    }
}

impl Drop for InjectionFifo {
    fn drop(&mut self) {
        if !doorbell_shm::space::forked() {
            let number = self.shared.fifo.number();
            self.node.shared().have_done(Token::current(), move |engine| {
                if let Some(dma) = engine.find_service::<Dma>() {
                    dma.close_injection(number);
                }
            });
        }
    }
}

impl fmt::Debug for InjectionFifo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InjectionFifo").field("key", &self.key()).field("depth", &self.depth()).finish_non_exhaustive()
    }
}

impl Node {
    /// The name of this node's injection FIFO of high priority that takes [remote gets](Descriptor::remote_get) of any node.
    pub fn remote_get_fifo(&self) -> FifoKey {
        FifoKey { node: self.id(), incarnation: self.incarnation(), number: 0 }
    }
}

impl crate::Peer {
    /// As [`Node::remote_get_fifo`], of the node at the other end.
    pub fn remote_get_fifo(&self) -> FifoKey {
        FifoKey { node: self.id(), incarnation: self.incarnation(), number: 0 }
    }
}
