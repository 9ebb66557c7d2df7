//! Two nodes of one process: near ones share memory, far ones have only a network in common, and a [`Pair`] has both.

use crate::LOOPBACK;
use crate::patience::{eventually, soon};
use doorbell::mode::{Fabric, ModeRequest};
use doorbell::{CopySide, FabricKind, Match, Node, NodeBuilder, Role, Space};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Nodes 0 and 1 that share memory.
pub fn near() -> [Node; 2] {
    near_with(|_, builder| builder)
}

/// The same, with settings for each id.
pub fn near_with(set: impl Fn(u16, NodeBuilder) -> NodeBuilder) -> [Node; 2] {
    let space = Space::heap();
    [0, 1].map(|id| set(id, Node::builder("near").space(space.clone()).id(id)).join().unwrap())
}

/// A host and an accelerator that have only a network in common.
pub fn far() -> [Node; 2] {
    let builder = |role| Node::builder("far").fabric(FabricKind::Udp).role(role);
    let host = builder(Role::Host).listen(LOOPBACK).join().unwrap();
    let accelerator = builder(Role::Accelerator).connect(host.address().unwrap()).join().unwrap();
    [host, accelerator]
}

/// A pair of nodes that share memory and have several links of a network as well.
pub struct Pair {
    /// The memory that both share.
    pub space: Space,
    /// Of node 0 and node 1, for each link.
    pub addresses: [Vec<SocketAddr>; 2],
}

impl Pair {
    /// With two links.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self::with_links(2)
    }

    /// With up to four links, at addresses that no other pair has.
    pub fn with_links(links: u8) -> Self {
        static NUMBER: AtomicU16 = AtomicU16::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let address = |link: u8, id: u16| {
            SocketAddr::from(([127, 3 + link, (process >> 8) as u8, process as u8], 21_000 + 2 * number + id))
        };
        Self { space: Space::heap(), addresses: [0, 1].map(|id| (0..links).map(|link| address(link, id)).collect()) }
    }

    /// Node 0 or 1, about to join.
    pub fn builder(&self, id: u16) -> NodeBuilder {
        let [own, other] = [id, 1 - id].map(|id| &self.addresses[usize::from(id)]);
        let builder = Node::builder("modes").space(self.space.clone()).id(id).copy(CopySide::Auto);
        own.iter().copied().fold(builder, NodeBuilder::listen).seek(other[0])
    }

    /// Joins both, and waits until every link can be used.
    pub fn join(&self, a: NodeBuilder, b: NodeBuilder) -> [Node; 2] {
        let nodes = [a, b].map(|builder| builder.join().unwrap());
        let [a, b] = &nodes;
        for (from, to) in [(a, b), (b, a)] {
            eventually("all links", || {
                let by = |link: u8| ModeRequest::fabric(Fabric::Udp).link(link);
                let links = 0..self.addresses[0].len() as u8;
                // A policy sends by another link as long as this one is not open.
                let sent = links.filter_map(|link| Some(by(link).allows(from.send_as(to.id(), 99, b"", by(link)).ok()?.used)));
                let sent: Vec<_> = sent.collect();
                for _ in &sent {
                    to.recv_until(Match::any().tag(99), &mut [], soon()).unwrap();
                }
                sent.len() == self.addresses[0].len() && sent.into_iter().all(|is_it| is_it)
            });
        }
        nodes
    }

    /// The same with default settings.
    pub fn nodes(&self) -> [Node; 2] {
        self.join(self.builder(0), self.builder(1))
    }
}

/// A mode, parsed.
pub fn mode(words: &str) -> ModeRequest {
    words.parse().unwrap()
}

/// Turns the engine of a node until it is dropped.
pub fn serving(node: &Node) -> impl Drop {
    struct Serving(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);
    impl Drop for Serving {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
            if let Some(thread) = self.1.take() {
                let _ = thread.join();
            }
        }
    }
    let (stop, node) = (Arc::new(AtomicBool::new(false)), node.clone());
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            let patience = Instant::now() + Duration::from_millis(2);
            let _ = node.recv_until(Match::any().tag(u64::MAX), &mut [], patience);
        }
    });
    Serving(stop, Some(thread))
}
