//! Connections to other nodes: shared memory where two nodes share some, and the network where they do not.
//!
//! When two nodes meet on the network, each announces a number that is in its inbox. A node that can read the number there
//! shares memory with the other. Everything for that incarnation then goes through shared memory, unless a [mode](crate::mode)
//! that takes the network is requested or chosen.

#[cfg(not(feature = "udp"))]
mod bell_port;
mod link;
// Without the feature, the same names for a network that no node can have.
#[cfg_attr(not(feature = "udp"), path = "no_net.rs")]
mod net;
#[cfg(feature = "udp")]
mod network;

pub use doorbell_fabric::{BytesIn, BytesOut};
pub use link::{AnyLink, PACKET_MOST, WHOLE_MOST};
pub use net::{AnyPort, Net, Network, port_of_bell, watch};

use doorbell_fabric::{Fabric, Incarnation, NodeId, Priority, Sink};
use doorbell_shm::board::LatencyHistogram;
use doorbell_shm::domain::{Member, Membership, PeerInbox};
use doorbell_shm::doorbell::Bell;
use doorbell_shm::error::ShmError;
use doorbell_shm::fabric::{Change, Hot, ShmFabric};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Which fabrics a node uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FabricKind {
    /// Shared memory where both nodes share it, and the network otherwise.
    #[default]
    Auto,
    /// Only shared memory.
    Shm,
    /// Only the network, even to nodes of the same machine. The node has nothing in `/dev/shm`.
    Udp,
}

impl FabricKind {
    const WORDS: [(FabricKind, &str); 3] = [(FabricKind::Auto, "auto"), (FabricKind::Shm, "shm"), (FabricKind::Udp, "udp")];
}

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::WORDS.iter().find(|(kind, _)| kind == self).map_or("", |(_, word)| word))
    }
}

impl FromStr for FabricKind {
    type Err = doorbell_fabric::ParseIdError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let expected = "a choice of fabrics: auto, shm or udp";
        let found = Self::WORDS.iter().find(|(_, known)| *known == word);
        found.map(|(kind, _)| *kind).ok_or_else(|| doorbell_fabric::ParseIdError { word: word.into(), expected })
    }
}

/// The bell of this node.
pub fn own_bell(membership: &Membership) -> &Bell {
    // SAFETY: the inbox begins with the header page and is mapped as long as the membership.
    unsafe { Bell::at(membership.inbox().ptr()) }
}

/// All fabrics of a node.
pub struct Fabrics {
    shm: ShmFabric,
    net: Option<Net>,
}

impl Fabrics {
    /// Sends the packets that links of the network hold: see [`AnyLink::push_held`].
    pub fn release(&self) {
        if let Some(net) = &self.net {
            net.release();
        }
    }

    /// The fabrics of a node that shares memory with others, and may be on a network.
    pub fn new(mut shm: ShmFabric, net: Option<Net>) -> Self {
        if net.is_some() {
            shm.set_networked();
        }
        Self { shm, net }
    }

    /// This node's membership of its domain.
    pub fn membership(&self) -> &Arc<Membership> {
        self.shm.membership()
    }

    /// The durations of sampled messages.
    pub fn latencies(&self) -> &LatencyHistogram {
        self.shm.latencies()
    }

    /// This node's own bell.
    pub fn bell(&self) -> &Bell {
        self.shm.bell()
    }

    /// Hands at most `budget` packets to `sink`, and returns the work done.
    #[inline(always)]
    pub fn poll<S: Sink>(&mut self, sink: &mut S, budget: usize) -> usize {
        let taken = self.shm.poll(sink, budget);
        match &mut self.net {
            None => taken,
            Some(net) => {
                let more = net.poll(&mut self.shm, sink, budget, taken > 0);
                if more > 0 && self.shm.has_later() {
                    // The packets of the network may be what held others back.
                    self.shm.try_again();
                }
                taken + more
            }
        }
    }

    /// The links to an incarnation of a node: whether shared memory is one of them, which is then the first, and how many the
    /// network has.
    pub fn links(&self, node: NodeId, incarnation: Incarnation) -> (bool, usize) {
        (self.shm.live(node) == Some(incarnation), self.net.as_ref().map_or(0, |net| net.links(node, incarnation)))
    }

    /// Opens one of the network's links to an incarnation of a node. `None`: not now.
    pub fn connect_by(&mut self, target: NodeId, incarnation: Incarnation, link: u8, priority: Priority) -> Option<AnyLink> {
        self.net.as_ref()?.connect_by(target, incarnation, link, priority)
    }

    /// The lane that was busy last, for the fast path.
    #[inline(always)]
    pub fn hot(&mut self) -> Option<Hot<'_>> {
        self.shm.hot()
    }

    /// As [`hot`](Self::hot) for a caller that knows that nothing but messages was taken since it returned a lane, and
    /// that has [counted](Self::count_look) its look.
    #[inline(always)]
    pub fn same_hot(&mut self) -> Option<Hot<'_>> {
        self.shm.same_hot()
    }

    /// Counts a look at the lane that was busy last. False if the idle lanes are due for a look first.
    #[inline(always)]
    pub fn count_look(&mut self) -> bool {
        self.shm.count_look()
    }

    /// The look that is due. False if [`poll`](Self::poll) has something to do: with a network it always has.
    pub fn look_around(&mut self) -> bool {
        self.net.is_none() && self.shm.look_around()
    }

    /// Notes that packets were taken by one look at the lane that was busy last.
    #[inline(always)]
    pub fn took(&mut self, packets: usize) {
        self.shm.took(packets);
    }

    /// Looks up to `rounds` times at the lanes that were busy lately. True as soon as one has something.
    pub fn spin(&self, rounds: u32) -> bool {
        self.shm.spin(rounds)
    }

    /// The next change of another node, oldest first.
    #[inline]
    pub fn next_change(&mut self) -> Option<Change> {
        let Some(net) = &mut self.net else { return self.shm.next_change() };
        net.next_change(&mut self.shm)
    }

    /// The incarnation of a node that is attached now.
    #[inline]
    pub fn live(&self, node: NodeId) -> Option<Incarnation> {
        self.shm.live(node).or_else(|| self.net.as_ref()?.live(node))
    }

    /// The inbox of a node that is attached now and shares memory with this one.
    pub fn peer(&self, node: NodeId) -> Option<&Arc<PeerInbox>> {
        self.shm.peer(node)
    }

    /// Whether a node that is attached now is reached by the network.
    pub fn is_remote(&self, node: NodeId) -> bool {
        self.net.as_ref().is_some_and(|net| net.live(node).is_some())
    }

    /// Nodes that are attached now and reached by the network.
    pub fn remote_members(&self) -> Vec<Member> {
        self.net.as_ref().map_or_else(Vec::new, Net::members)
    }

    /// Opens a link to an incarnation of a node. `None`: not now.
    ///
    /// # Errors
    /// This process has no memory or no descriptor for lanes to the node. The node itself is as it was.
    pub fn connect(&mut self, target: NodeId, incarnation: Incarnation, priority: Priority) -> Result<Option<AnyLink>, ShmError> {
        if let Some(net) = &self.net
            && net.live(target) == Some(incarnation)
        {
            return Ok(net.connect(target, incarnation, priority));
        }
        match self.shm.connect(target, incarnation, priority) {
            Ok(link) => Ok(Some(AnyLink::Shm(link))),
            // One that has just died is not gone before its end is noticed.
            Err(error) if error.is_retryable() || matches!(error, ShmError::NodeDead { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Has a message stored that an incarnation of a node will send over this link, and returns the session's name for it.
    /// `None`: there is no session.
    pub fn expect(&self, node: NodeId, incarnation: Incarnation, link: u8, len: u64, into: &Arc<dyn BytesIn>) -> Option<u64> {
        self.net.as_ref()?.expect(node, incarnation, link, len, into)
    }

    /// Whether everything that this incarnation of a node sent has been delivered, and no more can come.
    pub fn drained(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.shm.drained(node, incarnation) && self.net.as_ref().is_none_or(|net| net.live(node) != Some(incarnation))
    }

    /// Reads nothing more from the present incarnation of the node, which broke the rules.
    pub fn close_lanes(&mut self, node: NodeId) {
        self.shm.close_lanes(node);
        if let Some(net) = &mut self.net {
            net.expel(node);
        }
    }

    /// The node leaves. The thread that closes the network handles the last packets of its peers.
    pub fn end_network(&mut self) {
        if let Some(net) = &mut self.net {
            net.end();
        }
    }

    /// Refreshes the peers, where that costs little.
    pub fn refresh_peers(&mut self) {
        self.shm.refresh_peers();
        if let Some(net) = &mut self.net {
            net.look(&mut self.shm);
        }
    }

    /// Checks of every known node that it lives.
    pub fn check_peers(&mut self) {
        self.shm.check_peers();
        if let Some(net) = &mut self.net {
            net.look(&mut self.shm);
            if self.shm.has_later() {
                self.shm.judge_later();
            }
        }
    }

    /// Whether something waits that was not refused.
    pub fn has_news(&self) -> bool {
        self.shm.has_news() || self.net.as_ref().is_some_and(Net::has_news)
    }

    /// Arms the bell for the sleeper with this number, and looks once more. Returns how long it may sleep, `timeout` at most,
    /// or `None` if something was found.
    pub fn arm(&mut self, sleeper: u32, timeout: Duration) -> Option<Duration> {
        let timeout = self.shm.arm(sleeper, timeout)?;
        let Some(net) = &self.net else { return Some(timeout) };
        if net.has_news() {
            self.bell().disarm();
            return None;
        }
        Some(net.timeout(timeout))
    }

    /// Whether the last poll of the network found nothing for this node's messages.
    #[inline(always)]
    pub fn was_chatter(&self) -> bool {
        self.net.as_ref().is_some_and(Net::was_chatter)
    }

    /// Whether all other nodes are reached by the network, which reports their deaths by itself.
    pub fn is_remote_only(&self) -> bool {
        // This node's own lanes are open, too.
        let mut others =
            (0..self.membership().max_nodes()).map(|id| NodeId(id as u16)).filter(|id| *id != self.membership().id());
        self.net.is_some() && others.all(|id| self.shm.peer(id).is_none())
    }

    /// Whether a sender was told that its messages are refused for now.
    pub fn refusing(&self) -> bool {
        self.shm.refusing() || self.net.as_ref().is_some_and(Net::refusing)
    }
}
