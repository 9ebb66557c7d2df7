//! The peers: the stage of each, and the calls by which the driver decides it.

use super::strands::Further;
use super::{About, CODE_LEFT, CODE_UNWANTED, LINKS_MAX, UdpFabric};
use crate::protocol::SessionId;
use doorbell_fabric::{Incarnation, NodeId};
use std::net::SocketAddr;

/// One other node.
pub(super) struct Peer {
    pub session: SessionId,
    /// The sessions with numbers from 1 on.
    pub further: [Further; LINKS_MAX - 1],
    /// There can be several sessions with it, so packets of one may have to wait for packets of another.
    pub is_several: bool,
    pub incarnation: Incarnation,
    pub about: About,
    pub address: SocketAddr,
    pub standing: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The driver has not yet said how the node is reached.
    Met,
    /// This fabric reaches it.
    Accepted,
    /// Another fabric reaches it and says whether it lives. This fabric reaches it beside that.
    Beside,
    /// The driver knows that it is gone. Its packets that had arrived are still handed over.
    Gone,
    /// Its remaining packets are discarded.
    Forgotten,
}

impl Stage {
    /// Whether its packets go to the driver.
    pub fn is_open(self) -> bool {
        matches!(self, Stage::Accepted | Stage::Beside | Stage::Gone)
    }

    /// Whether packets can be sent to it.
    pub fn is_reached(self) -> bool {
        matches!(self, Stage::Accepted | Stage::Beside)
    }
}

impl UdpFabric {
    /// Declares that this fabric reaches a node that was met.
    pub fn accept(&mut self, node: NodeId) {
        self.settle(node, Stage::Accepted);
    }

    /// Declares that another fabric reaches a node that was met, and that this one reaches it too. The other fabric says whether
    /// the node lives. Silence here ends nothing: unanswered data is asked about once every quarter of the dead-peer time,
    /// forever. Call [`gone`](Self::gone) when the node is gone.
    pub fn beside(&mut self, node: NodeId) {
        self.settle(node, Stage::Beside);
    }

    /// Another fabric says that this incarnation of a node, which was accepted or is reached beside, is gone.
    /// [`poll`](Self::poll) still hands over what had arrived from it; no [`Change`](super::Change) reports its end. Does nothing
    /// if there is no such incarnation any more.
    pub fn gone(&mut self, node: NodeId, incarnation: Incarnation) {
        let now = self.now();
        if let Some(Some(peer)) = self.peers.get_mut(node.index())
            && peer.incarnation == incarnation
            && peer.standing.is_reached()
        {
            peer.standing = Stage::Gone;
            self.endpoint.give_up(now, peer.session, CODE_LEFT);
            self.attend(now);
        }
    }

    /// Discards the remaining packets of an incarnation that is [gone](Self::gone).
    pub fn forget(&mut self, node: NodeId, incarnation: Incarnation) {
        if let Some(Some(peer)) = self.peers.get_mut(node.index())
            && peer.incarnation == incarnation
            && peer.standing == Stage::Gone
        {
            peer.standing = Stage::Forgotten;
        }
    }

    fn settle(&mut self, node: NodeId, stage: Stage) {
        let Some(Some(peer)) = self.peers.get_mut(node.index()) else { return };
        peer.standing = stage;
        if stage == Stage::Beside {
            peer.sessions().for_each(|session| self.endpoint.vouch(session));
        }
        self.want_strands(node);
    }

    /// The other node with this id.
    pub(super) fn peer(&self, node: NodeId) -> Option<&Peer> {
        self.peers.get(node.index())?.as_ref()
    }

    /// Ends the session with a node that broke the rules, or whose id belongs to another node.
    pub fn expel(&mut self, node: NodeId) {
        let now = self.now();
        if let Some(session) = self.peer(node).map(|peer| peer.session) {
            self.endpoint.close(now, session, CODE_UNWANTED);
            self.flush(now);
        }
    }

    /// Whether this incarnation of a node is known here, or has packets that are still to be handed over.
    pub fn has(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.peer(node).is_some_and(|peer| peer.incarnation == incarnation)
    }

    /// Whether the driver put off everything that waits of a node, so that it refused nothing and was asked about all.
    pub fn is_put_off(&self, node: NodeId) -> bool {
        self.peer(node).is_none_or(|peer| peer.sessions().all(|session| self.endpoint.is_put_off(session)))
    }

    /// A node's description of itself.
    pub fn about(&self, node: NodeId) -> Option<&About> {
        self.peer(node).map(|peer| &peer.about)
    }

    /// The node at this address that was accepted, or is reached beside.
    pub fn node_at(&self, address: SocketAddr) -> Option<NodeId> {
        let is_there = |peer: &Peer| {
            peer.standing.is_reached() && (peer.address == address || self.endpoint.addresses(peer.session).contains(&address))
        };
        let at = self.peers.iter().position(|peer| peer.as_ref().is_some_and(is_there))?;
        Some(NodeId(at as u16))
    }
}
