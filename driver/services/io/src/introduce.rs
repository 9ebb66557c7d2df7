//! Newcomers: nodes that want to become clients. Finding the way to a node over the network takes a while. So may creating its
//! memory, and ending both. Other threads do this, so that no client waits for it: one thread for each newcomer, and one for
//! everything that ends.

use super::clients::Name;
use super::way::Outlet;
use doorbell_engine::{Node, NodeId, Region};
use doorbell_fabric::world;
use rustix::io::Errno;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// How many newcomers are handled at a time, at most half of them of one node. A node that is turned away asks again.
const MOST: usize = 8;

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

/// What a thread found and created for a newcomer.
struct Found {
    name: Name,
    outlet: Option<Outlet>,
    staging: Option<Region<u8>>,
}

/// A way and memory to be dropped, and a token that is dropped after them.
type End = (Option<Outlet>, Option<Region<u8>>, Arc<()>);

/// The newcomers that are being handled.
pub(super) struct Introductions {
    node: Node,
    waiting: Vec<Newcomer>,
    /// The thread that drops what takes long.
    ends: Option<Sender<End>>,
    /// The nodes for which something still has to be dropped.
    ending: Vec<(NodeId, Weak<()>)>,
    /// The server ends, and no client waits any more.
    over: bool,
    tell: Sender<Found>,
    told: Receiver<Found>,
}

impl Introductions {
    pub(super) fn new(node: &Node) -> Self {
        let (tell, told) = channel();
        Self { node: node.clone(), waiting: Vec::new(), ends: None, ending: Vec::new(), over: false, tell, told }
    }

    /// Whether one more newcomer can be handled. A node may have as many underway as it leaves for others. What still has to be
    /// dropped for its former clients counts, too: otherwise memory would pile up for a node that comes and goes.
    pub(super) fn has_room_for(&self, name: Name) -> bool {
        let node = name.who.0;
        let ending = self.ending.iter().filter(|(of, token)| *of == node && token.strong_count() > 0).count();
        let of_node = self.of_node(node).count() + ending;
        of_node < MOST.saturating_sub(self.waiting.len()) && self.waiting.iter().all(|newcomer| newcomer.name != name)
    }

    fn of_node(&self, node: NodeId) -> impl Iterator<Item = &Newcomer> {
        self.waiting.iter().filter(move |newcomer| newcomer.name.who.0 == node)
    }

    /// Whether no newcomer is being handled.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many of them will be clients: of a node, and in all.
    pub(super) fn clients(&self, node: NodeId) -> [usize; 2] {
        let is_to_be = |newcomer: &&Newcomer| newcomer.answer.is_ok();
        [self.of_node(node).filter(is_to_be).count(), self.waiting.iter().filter(is_to_be).count()]
    }

    /// The staging memory reserved for newcomers of a node, in bytes.
    pub(super) fn staging(&self, node: NodeId) -> usize {
        self.of_node(node).map(|newcomer| newcomer.answer.unwrap_or(0)).sum()
    }

    /// Handles a newcomer: finds the way to it if that is unknown, and creates its memory.
    #[cold]
    pub(super) fn introduce(&mut self, newcomer: Newcomer) {
        let (node, tell) = (self.node.clone(), self.tell.clone());
        let (name, bytes, has_way) = (newcomer.name, newcomer.answer.unwrap_or(0), newcomer.outlet.is_some());
        self.waiting.push(newcomer);
        let see_to = move || {
            let (who, life) = name.who;
            let outlet = if has_way { None } else { Outlet::to_client(&node, who, life).ok() };
            let staging = if bytes > 0 && (has_way || outlet.is_some()) { staging(&node, bytes) } else { None };
            let _ = tell.send(Found { name, outlet, staging });
        };
        if world::spawn("doorbell-io-new", see_to).is_err() {
            // The newcomer asks again.
            let _ = self.tell.send(Found { name, outlet: None, staging: None });
        }
    }

    /// Marks a newcomer that gave up.
    pub(super) fn forget(&mut self, name: Name) {
        self.waiting.iter_mut().filter(|newcomer| newcomer.name == name).for_each(|newcomer| newcomer.gave_up = true);
    }

    /// The next newcomer that is ready.
    pub(super) fn next(&mut self) -> Option<Newcomer> {
        if self.waiting.is_empty() { None } else { self.told.try_recv().ok().and_then(|found| self.take(found)) }
    }

    /// Ends: waits for the newcomers being handled, and drops them.
    pub(super) fn end(&mut self, until: Instant) {
        self.over = true;
        while !self.waiting.is_empty()
            && let Ok(found) = self.told.recv_timeout(until.saturating_duration_since(world::now()))
        {
            drop(self.take(found));
        }
    }

    fn take(&mut self, found: Found) -> Option<Newcomer> {
        let Found { name, outlet, staging } = found;
        let at = self.waiting.iter().position(|newcomer| newcomer.name == name)?;
        let newcomer = self.waiting.swap_remove(at);
        Some(Newcomer { outlet: newcomer.outlet.or(outlet.map(Rc::new)), staging, ..newcomer })
    }

    /// Drops the way and the memory of a client, on a thread of its own if that takes long.
    pub(super) fn dismiss(&mut self, name: Name, outlet: Option<Rc<Outlet>>, staging: Option<Region<u8>>) {
        let outlet = outlet.and_then(|outlet| Rc::try_unwrap(outlet).ok());
        let staging = staging.filter(|_| !self.over);
        let takes_long = staging.is_some() || outlet.as_ref().is_some_and(|outlet| outlet.is_far(&self.node));
        if !takes_long {
            return;
        }
        let token = Arc::new(());
        self.ending.retain(|(_, token)| token.strong_count() > 0);
        self.ending.push((name.who.0, Arc::downgrade(&token)));
        if self.ends.is_none() {
            let (ends, ended) = channel::<End>();
            self.ends = world::spawn("doorbell-io-end", move || ended.into_iter().for_each(drop)).is_ok().then_some(ends);
        }
        // If no thread can be started, everything is dropped here, which may take a while.
        if let Some(ends) = &self.ends {
            let _ = ends.send((outlet, staging, token));
        }
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
