//! Newcomers. To find the way to one over the network takes a while, to make its memory may, and so may the end of both: threads of their own do
//! that, so that nobody else waits.

use super::clients::Name;
use super::way::Outlet;
use crate::{Node, Region};
use rustix::io::Errno;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

/// How many are seen to at a time. Whoever is one too many asks again.
const MOST: usize = 8;

/// Somebody who is to be answered.
pub(super) struct Newcomer {
    pub name: Name,
    pub tag: u64,
    /// With so much staging memory, which is set aside for it, or that it is refused.
    pub answer: Result<usize, Errno>,
    /// The way there, once there is one.
    pub outlet: Option<Rc<Outlet>>,
    /// Its memory, once it is made.
    pub staging: Option<Region<u8>>,
    /// It gave up meanwhile.
    pub gave_up: bool,
}

/// What a thread found and made for a newcomer.
struct Found {
    name: Name,
    outlet: Option<Outlet>,
    staging: Option<Region<u8>>,
}

/// Those that are seen to.
pub(super) struct Introductions {
    node: Node,
    waiting: Vec<Newcomer>,
    /// Nobody else waits any more.
    over: bool,
    tell: Sender<Found>,
    told: Receiver<Found>,
}

impl Introductions {
    pub(super) fn new(node: &Node) -> Self {
        let (tell, told) = channel();
        Self { node: node.clone(), waiting: Vec::new(), over: false, tell, told }
    }

    /// Whether one more can be seen to, which is not yet.
    pub(super) fn has_room_for(&self, name: Name) -> bool {
        self.waiting.len() < MOST && self.waiting.iter().all(|newcomer| newcomer.name != name)
    }

    /// Whether nobody is seen to.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many of them are to be clients.
    pub(super) fn clients(&self) -> usize {
        self.waiting.iter().filter(|newcomer| newcomer.answer.is_ok()).count()
    }

    /// Sees to one: finds the way there if that is not known, and makes its memory.
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
        if std::thread::Builder::new().name("doorbell-io-new".into()).spawn(see_to).is_err() {
            // It asks again.
            let _ = self.tell.send(Found { name, outlet: None, staging: None });
        }
    }

    /// One that gave up before it was answered.
    pub(super) fn forget(&mut self, name: Name) {
        self.waiting.iter_mut().filter(|newcomer| newcomer.name == name).for_each(|newcomer| newcomer.gave_up = true);
    }

    /// The next one that was seen to.
    pub(super) fn next(&mut self) -> Option<Newcomer> {
        if self.waiting.is_empty() { None } else { self.told.try_recv().ok().and_then(|found| self.take(found)) }
    }

    /// Sees to nobody any more: waits for what is under way, and drops it.
    pub(super) fn end(&mut self, until: Instant) {
        self.over = true;
        while !self.waiting.is_empty()
            && let Ok(found) = self.told.recv_timeout(until.saturating_duration_since(Instant::now()))
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

    /// Ends what was for a client.
    pub(super) fn dismiss(&self, outlet: Option<Rc<Outlet>>, staging: Option<Region<u8>>) {
        let outlet = outlet.and_then(|outlet| Rc::try_unwrap(outlet).ok());
        let staging = staging.filter(|_| !self.over);
        let takes_long = staging.is_some() || outlet.as_ref().is_some_and(|outlet| outlet.is_far(&self.node));
        if takes_long {
            // Where there is no thread to be had all is dropped here, at the worst after some waiting.
            let _ = std::thread::Builder::new().name("doorbell-io-end".into()).spawn(move || drop((outlet, staging)));
        }
    }
}

fn staging(node: &Node, bytes: usize) -> Option<Region<u8>> {
    match node.region::<u8>(bytes) {
        Ok(region) => Some(region),
        Err(error) => {
            tracing::warn!(%error, "no staging memory for a client, which reads and writes in messages");
            None
        }
    }
}
