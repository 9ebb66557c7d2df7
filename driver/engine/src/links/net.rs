//! The network as one node's engine sees it.

pub use super::network::{AnyPort, Network, port_of_bell, watch};
pub use doorbell_udp::UdpLink;

use super::AnyLink;
use doorbell_fabric::world;
use doorbell_fabric::{BytesIn, Incarnation, NodeId, Priority, Sink};
use doorbell_shm::domain::Member;
use doorbell_shm::fabric::{Change, ShmFabric};
use doorbell_udp::UdpFabric;
use doorbell_udp::fabric::{Ask, Change as UdpChange};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the socket is read while lanes in shared memory always have something: a read costs a third of a microsecond.
const LOOK_EVERY: Duration = Duration::from_micros(2);
/// How soon to try again after the kernel had no room for a datagram.
const STUCK: Duration = Duration::from_micros(200);

/// The network as one node's engine sees it.
pub struct Net {
    udp: Arc<Mutex<UdpFabric>>,
    /// By id: the nodes that are reached by it.
    lives: Vec<Option<Member>>,
    /// By id: nodes that share memory with this one and are also reached by the network.
    beside: Vec<Option<Incarnation>>,
    /// Of these, the ones that are gone; what arrived from them is still being taken.
    gone: Vec<(NodeId, Incarnation)>,
    /// Nodes that were met and share memory with this node, which has not opened their inboxes yet.
    pending: Vec<(NodeId, Incarnation)>,
    changes: VecDeque<Change>,
    looked: Instant,
    /// The last poll did not read the socket.
    skipped: bool,
    /// The last poll found nothing but keep-alives and acknowledgements.
    chatter: bool,
    /// The node leaves: nothing is for it any more.
    ended: bool,
}

/// The network, locked.
pub fn lock(udp: &Mutex<UdpFabric>) -> MutexGuard<'_, UdpFabric> {
    udp.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Net {
    /// Sends the packets that links hold.
    pub fn release(&self) {
        lock(&self.udp).release();
    }

    /// The network of a domain for `nodes` nodes.
    pub fn new(udp: Arc<Mutex<UdpFabric>>, nodes: usize) -> Self {
        let lives = (0..nodes).map(|_| None).collect();
        let (beside, gone, pending) = (vec![None; nodes], Vec::new(), Vec::new());
        Self {
            udp,
            lives,
            beside,
            gone,
            pending,
            changes: VecDeque::new(),
            looked: world::now(),
            skipped: false,
            chatter: false,
            ended: false,
        }
    }

    /// The node leaves: nothing is taken from now on. It forgets incomplete messages, whose rest would look like a breach of
    /// the rules.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// As [`Fabrics::poll`](super::Fabrics::poll). `busy`: shared memory had something.
    #[inline(never)]
    pub fn poll<S: Sink>(&mut self, shm: &mut ShmFabric, sink: &mut S, budget: usize, busy: bool) -> usize {
        self.chatter = false;
        if self.ended || !self.changes.is_empty() {
            return 0;
        }
        if busy {
            let now = world::now();
            self.skipped = now - self.looked < LOOK_EVERY;
            if self.skipped {
                return 0;
            }
            self.looked = now;
        } else {
            self.skipped = false;
        }
        let (taken, has_news) = {
            let mut udp = lock(&self.udp);
            let taken = udp.poll(sink, budget);
            self.chatter = udp.was_chatter();
            if taken > 0 || busy {
                udp.try_again();
            }
            (taken, udp.has_news())
        };
        if !self.gone.is_empty() {
            self.bury(shm, taken > 0);
        }
        if has_news || !self.pending.is_empty() {
            let udp = self.udp.clone();
            self.learn(&mut lock(&udp), shm);
        }
        taken
    }

    /// Reports nodes that are gone to shared memory, too, once nothing more can come from them.
    #[cold]
    fn bury(&mut self, shm: &mut ShmFabric, taken: bool) {
        let mut udp = lock(&self.udp);
        // The rest waits for something that never comes: it was lost with its sender.
        let is_stuck = |udp: &UdpFabric, node| !taken && udp.is_put_off(node) && shm.is_put_off(node);
        self.gone.retain(|(node, incarnation)| {
            if udp.has(*node, *incarnation) && is_stuck(&udp, *node) {
                udp.forget(*node, *incarnation);
            }
            udp.has(*node, *incarnation)
        });
        for (node, incarnation) in
            self.beside.iter_mut().enumerate().map(|(node, incarnation)| (NodeId(node as u16), incarnation))
        {
            if let Some(was) = *incarnation
                && !udp.has(node, was)
            {
                *incarnation = None;
                shm.set_beside(node, was, false);
            }
        }
    }

    /// Whether the last poll found nothing but keep-alives and acknowledgements.
    pub fn was_chatter(&self) -> bool {
        self.chatter
    }

    /// Takes in what arrived, and notices nodes that joined or ended.
    pub fn look(&mut self, shm: &mut ShmFabric) {
        if self.ended {
            return;
        }
        let udp = self.udp.clone();
        let mut udp = lock(&udp);
        udp.look();
        self.learn(&mut udp, shm);
    }

    fn learn(&mut self, udp: &mut UdpFabric, shm: &mut ShmFabric) {
        for (node, incarnation) in std::mem::take(&mut self.pending) {
            if udp.has(node, incarnation) {
                self.meet(udp, shm, node, incarnation);
            }
        }
        if !udp.has_news() {
            return;
        }
        while let Some(change) = udp.next_change() {
            match change {
                UdpChange::Met(node, incarnation) => self.meet(udp, shm, node, incarnation),
                UdpChange::Left(node, incarnation) => {
                    self.part(shm, node, incarnation);
                    self.lose(node, incarnation, Change::Left(node, incarnation));
                }
                UdpChange::Died(node, incarnation) => {
                    if self.part(shm, node, incarnation) && shm.live(node) == Some(incarnation) {
                        self.changes.push_back(Change::Parted(node, incarnation));
                    }
                    self.lose(node, incarnation, Change::Died(node, incarnation));
                }
                // What it carried may be lost.
                UdpChange::StrandLost(node, incarnation, _) => self.changes.push_back(Change::Parted(node, incarnation)),
            }
        }
        while let Some(ask) = udp.next_ask() {
            let given = self.id_for(udp, shm, &ask);
            udp.welcome(&ask, given);
        }
    }

    /// Handles a node that appeared on the network. If the directory has it, too, and its inbox has the announced number, it is
    /// reached by shared memory.
    fn meet(&mut self, udp: &mut UdpFabric, shm: &mut ShmFabric, node: NodeId, incarnation: Incarnation) {
        shm.refresh_peers();
        let Some(about) = udp.about(node).cloned() else { return };
        let is_listed = shm.membership().member(node).is_some_and(|member| member.incarnation == incarnation);
        match shm.peer(node) {
            Some(inbox) if inbox.incarnation() == incarnation && inbox.nonce() == about.nonce => {
                self.beside[node.index()] = Some(incarnation);
                shm.set_beside(node, incarnation, true);
                udp.beside(node);
            }
            // The former incarnation has unread messages, or its end was not noticed yet.
            Some(inbox) if is_listed && inbox.incarnation() != incarnation => self.pending.push((node, incarnation)),
            None if is_listed || shm.is_closing(node) => self.pending.push((node, incarnation)),
            Some(_) => {
                tracing::warn!(
                    node = node.0,
                    label = about.label,
                    "a node of the network has the id of a node in shared memory; it is refused"
                );
                udp.expel(node);
            }
            None => {
                self.lives[node.index()] = Some(Member::remote(node, incarnation, about.role, about.pid, about.label));
                udp.accept(node);
                self.changes.push_back(Change::Joined(node, incarnation));
            }
        }
    }

    /// Ends a session beside shared memory, after all that came over it was taken. False if there was none.
    fn part(&mut self, shm: &mut ShmFabric, node: NodeId, incarnation: Incarnation) -> bool {
        let was_beside = self.beside[node.index()].take_if(|beside| *beside == incarnation).is_some();
        if was_beside {
            shm.set_beside(node, incarnation, false);
        }
        was_beside
    }

    /// Shared memory reports that an incarnation is over.
    fn gone(&mut self, node: NodeId, incarnation: Incarnation) {
        if self.beside[node.index()] == Some(incarnation) {
            let mut udp = lock(&self.udp);
            // Reads what has already arrived in the sockets.
            udp.look();
            udp.gone(node, incarnation);
            self.gone.push((node, incarnation));
        }
    }

    fn lose(&mut self, node: NodeId, incarnation: Incarnation, change: Change) {
        if self.lives[node.index()].take_if(|member| member.incarnation == incarnation).is_some() {
            self.changes.extend([change, Change::Drained(node, incarnation)]);
        }
    }

    /// The id for a joining node: from the highest down, because nodes that join by shared memory take the lowest.
    fn id_for(&self, udp: &mut UdpFabric, shm: &ShmFabric, ask: &Ask) -> Option<NodeId> {
        let membership = shm.membership();
        let mut ids = (0..membership.max_nodes() as u16).rev().map(NodeId);
        ids.find(|id| !ask.avoid.contains(id) && !udp.is_taken(*id) && membership.member(*id).is_none())
    }

    /// As [`Fabrics::next_change`](super::Fabrics::next_change).
    #[inline]
    pub fn next_change(&mut self, shm: &mut ShmFabric) -> Option<Change> {
        if let Some(change) = self.changes.pop_front() {
            return Some(change);
        }
        let change = shm.next_change()?;
        if let Change::Left(node, incarnation) | Change::Died(node, incarnation) = change {
            self.gone(node, incarnation);
        }
        // Shared memory takes precedence: the network reports no node that shared memory reaches.
        if let Change::Joined(node, _) = change
            && let Some(member) = self.lives.get(node.index()).and_then(Option::as_ref)
        {
            tracing::warn!(
                node = node.0,
                "a node in shared memory has the id of a node of the network, which is no longer reached"
            );
            let incarnation = member.incarnation;
            self.expel(node);
            self.lose(node, incarnation, Change::Died(node, incarnation));
            self.changes.push_back(change);
            return self.changes.pop_front();
        }
        Some(change)
    }

    /// The incarnation of a node that is reached by the network.
    #[inline]
    pub fn live(&self, node: NodeId) -> Option<Incarnation> {
        self.lives.get(node.index())?.as_ref().map(|member| member.incarnation)
    }

    /// The nodes that are reached by the network.
    pub fn members(&self) -> Vec<Member> {
        self.lives.iter().flatten().cloned().collect()
    }

    /// Opens a link to an incarnation that is reached by the network.
    pub fn connect(&self, target: NodeId, incarnation: Incarnation, priority: Priority) -> Option<AnyLink> {
        UdpLink::new(&self.udp, target, incarnation, priority).map(AnyLink::Udp)
    }

    /// The number of links to this incarnation.
    pub fn links(&self, node: NodeId, incarnation: Incarnation) -> usize {
        if self.live(node) != Some(incarnation) && self.beside.get(node.index()) != Some(&Some(incarnation)) {
            return 0;
        }
        lock(&self.udp).strands(node, incarnation)
    }

    /// Opens one of these links.
    pub fn connect_by(&self, target: NodeId, incarnation: Incarnation, link: u8, priority: Priority) -> Option<AnyLink> {
        UdpLink::by(&self.udp, target, incarnation, link, priority).map(AnyLink::Udp)
    }

    /// As [`Fabrics::expect`](super::Fabrics::expect).
    pub fn expect(&self, node: NodeId, incarnation: Incarnation, link: u8, len: u64, into: &Arc<dyn BytesIn>) -> Option<u64> {
        lock(&self.udp).expect_by(node, incarnation, link, len, into).map(|transfer| transfer.0)
    }

    /// Ends all conversation with a node.
    pub fn expel(&mut self, node: NodeId) {
        if self.live(node).is_some() || self.beside.get(node.index()).is_some_and(Option::is_some) {
            lock(&self.udp).expel(node);
        }
    }

    /// Whether something waits that was not refused.
    pub fn has_news(&self) -> bool {
        if self.ended {
            return false;
        }
        self.skipped || !self.changes.is_empty() || {
            let udp = lock(&self.udp);
            udp.has_news() || udp.has_ready()
        }
    }

    /// How long to sleep, `most` at most.
    pub fn timeout(&self, most: Duration) -> Duration {
        let mut udp = lock(&self.udp);
        let most = if udp.is_stuck() { most.min(STUCK) } else { most };
        udp.timeout().map_or(most, |due| most.min(due))
    }

    /// Whether a sender was told that its messages are refused for now.
    pub fn refusing(&self) -> bool {
        lock(&self.udp).refusing()
    }
}
