//! Newcomers: nodes that want to become clients. Finding the way to a node over the network takes a while. So may creating its
//! memory, and ending both. Threads of a pool do this, so that no client waits for it.

use super::clients::Name;
use super::way::Outlet;
use doorbell_engine::kit::{BlockingPool, Node, NodeId, Region, world};
use rustix::io::Errno;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How many newcomers are handled at a time, at most half of them of one node. A node that is turned away asks again.
const MOST: usize = 8;
/// How often a server that ends looks whether its newcomers are ready.
const LOOK: Duration = Duration::from_millis(1);

/// A node that is to get a reply.
pub(super) struct Newcomer {
    pub name: Name,
    pub tag: u64,
    /// The staging memory reserved for it, in bytes, or why it is refused.
    pub answer: Result<usize, Errno>,
    /// The way to it, once found.
    pub outlet: Option<Rc<Outlet>>,
    /// Its memory, once created.
    pub staging: Option<Region<u8>>,
    /// It gave up meanwhile.
    pub gave_up: bool,
}

/// The way and the memory that a thread finds and creates for a newcomer. The result is complete when the thread has dropped its reference.
type Found = Arc<Mutex<(Option<Outlet>, Option<Region<u8>>)>>;

/// The newcomers that are being handled.
pub(super) struct Introductions {
    node: Node,
    waiting: Vec<(Newcomer, Found)>,
    /// The threads that handle newcomers and end former clients.
    blocking: Arc<BlockingPool>,
    /// The nodes for which something still has to be dropped.
    ending: Vec<(NodeId, Weak<()>)>,
    /// The server ends, and no client waits any more.
    over: bool,
}

impl Introductions {
    pub(super) fn new(node: &Node) -> Self {
        Self { node: node.clone(), waiting: Vec::new(), blocking: Arc::default(), ending: Vec::new(), over: false }
    }

    /// Whether one more newcomer can be handled. A node may have as many underway as it leaves for others. What still has to be
    /// dropped for its former clients counts, too: otherwise memory would pile up for a node that comes and goes.
    pub(super) fn has_room_for(&self, name: Name) -> bool {
        let node = name.who.node;
        let ending = self.ending.iter().filter(|(of, token)| *of == node && token.strong_count() > 0).count();
        let of_node = self.of_node(node).count() + ending;
        of_node < MOST.saturating_sub(self.waiting.len()) && self.waiting.iter().all(|(newcomer, _)| newcomer.name != name)
    }

    fn of_node(&self, node: NodeId) -> impl Iterator<Item = &Newcomer> {
        self.waiting.iter().map(|(newcomer, _)| newcomer).filter(move |newcomer| newcomer.name.who.node == node)
    }

    /// Whether no newcomer is being handled.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many of them will be clients: of a node, and in all.
    pub(super) fn clients(&self, node: NodeId) -> [usize; 2] {
        let is_to_be = |newcomer: &&Newcomer| newcomer.answer.is_ok();
        [self.of_node(node).filter(is_to_be).count(), self.waiting.iter().filter(|(newcomer, _)| is_to_be(&newcomer)).count()]
    }

    /// The staging memory reserved for newcomers of a node, in bytes.
    pub(super) fn staging(&self, node: NodeId) -> usize {
        self.of_node(node).map(|newcomer| newcomer.answer.unwrap_or(0)).sum()
    }

    /// Handles a newcomer: finds the way to it if that is unknown, and creates its memory.
    #[cold]
    pub(super) fn introduce(&mut self, newcomer: Newcomer) {
        let (node, found) = (self.node.clone(), Found::default());
        let (name, bytes, has_way) = (newcomer.name, newcomer.answer.unwrap_or(0), newcomer.outlet.is_some());
        self.waiting.push((newcomer, found.clone()));
        // If no thread can be started, nothing is found, and the newcomer asks again.
        self.blocking.submit(Box::new(move || {
            let outlet = if has_way { None } else { Outlet::to_client(&node, name.who).ok() };
            let staging = if bytes > 0 && (has_way || outlet.is_some()) { staging(&node, bytes) } else { None };
            *found.lock().unwrap_or_else(PoisonError::into_inner) = (outlet, staging);
        }));
    }

    /// Marks a newcomer that gave up.
    pub(super) fn forget(&mut self, name: Name) {
        self.waiting.iter_mut().filter(|(one, _)| one.name == name).for_each(|(newcomer, _)| newcomer.gave_up = true);
    }

    /// The next newcomer that is ready.
    pub(super) fn next(&mut self) -> Option<Newcomer> {
        let at = self.waiting.iter_mut().position(|(_, found)| Arc::get_mut(found).is_some())?;
        let (newcomer, found) = self.waiting.swap_remove(at);
        let (outlet, staging) = Arc::into_inner(found)?.into_inner().unwrap_or_else(PoisonError::into_inner);
        Some(Newcomer { outlet: newcomer.outlet.or(outlet.map(Rc::new)), staging, ..newcomer })
    }

    /// Ends: waits for the newcomers being handled, and drops them.
    pub(super) fn end(&mut self, until: Instant) {
        self.over = true;
        while !self.is_idle() && world::now() < until {
            if self.next().is_none() {
                world::sleep(LOOK);
            }
        }
    }

    /// Drops the way and the memory of a client, on a thread of the pool if that takes long.
    pub(super) fn dismiss(&mut self, name: Name, outlet: Option<Rc<Outlet>>, staging: Option<Region<u8>>) {
        let outlet = outlet.and_then(|outlet| Rc::try_unwrap(outlet).ok());
        let staging = staging.filter(|_| !self.over);
        let takes_long = staging.is_some() || outlet.as_ref().is_some_and(|outlet| outlet.is_far(&self.node));
        if !takes_long {
            return;
        }
        let token = Arc::new(());
        self.ending.retain(|(_, token)| token.strong_count() > 0);
        self.ending.push((name.who.node, Arc::downgrade(&token)));
        // The token is dropped last. If no thread can be started, everything is dropped here, which may take a while.
        self.blocking.submit(Box::new(move || drop((outlet, staging, token))));
    }
}

fn staging(node: &Node, bytes: usize) -> Option<Region<u8>> {
    match node.region::<u8>(bytes) {
        Ok(region) => Some(region),
        Err(error) => {
            tracing::warn!(%error, "no staging memory for a client; it reads and writes in messages");
            None
        }
    }
}
