//! Events of sessions, and the notices by which nodes tell each other of further nodes.

use super::notice::{Greeting, MEMBERS_MAX, Member, Notice};
use super::{Ask, CODE_LEFT, CODE_UNWANTED, Change, GUESTS, NOTICE_TAG, Peer, Stage, UdpFabric};
use crate::port::{Direct, TroubleKind, is_loopback_only};
use crate::protocol::{CloseReason, Event, Path, Rejection, SessionId, Time};
use doorbell_fabric::{Incarnation, NodeId, PacketHead, PacketKind, Priority, Push};
use std::net::{IpAddr, SocketAddr};

impl UdpFabric {
    /// Handles the consequences of what arrived and of time passing.
    pub(super) fn attend(&mut self, now: Time) {
        (self.attended, self.later) = (now, false);
        while let Some(event) = self.endpoint.poll_event() {
            self.on_event(now, event);
        }
        for (source, bytes) in std::mem::take(&mut self.heard) {
            self.on_notice(now, source, &bytes);
        }
        while let Some(trouble) = self.links.iter().find_map(Direct::trouble) {
            if trouble.kind == TroubleKind::Refused {
                self.contacts.nobody(trouble.peer);
            }
        }
        self.contacts.attend(now, &mut self.endpoint);
        self.attend_strands(now);
        for _ in 0..self.owed.len() {
            if let Some((session, notice)) = self.owed.pop_front() {
                self.tell(now, session, notice);
            }
        }
        self.flush(now);
    }

    fn on_event(&mut self, now: Time, event: Event) {
        match event {
            Event::Connected { session, peer, strand: strand @ 1.., .. } => {
                self.on_strand(now, session, (peer.node, peer.incarnation), strand);
            }
            Event::Connected { session, peer, path, greeting, asked, .. } => {
                self.contacts.connected(session, asked);
                let Some(Greeting { about, asks }) = Greeting::decode(&greeting) else {
                    tracing::warn!(address = %path.peer, "a node's greeting is malformed; it is not admitted");
                    return self.endpoint.close(now, session, CODE_UNWANTED);
                };
                if peer.node.0 >= GUESTS {
                    match asks {
                        Some(avoid) => self.asks.push_back(Ask { session, avoid }),
                        None => self.endpoint.close(now, session, CODE_UNWANTED),
                    }
                    return;
                }
                if peer.node.index() >= self.peers.len() || peer.node == self.me.0 {
                    tracing::warn!(address = %path.peer, node = peer.node.0, most = self.peers.len(), "a node's id is out of range for this domain; it is not admitted");
                    return self.endpoint.close(now, session, CODE_UNWANTED);
                }
                let incarnation = peer.incarnation;
                let further = Default::default();
                let is_several = self.endpoint.strands(session) > 1;
                let met = Peer { session, further, is_several, incarnation, about, address: path.peer, standing: Stage::Met };
                if !asked {
                    self.introduce(now, session, peer.node, path);
                }
                self.contacts.met(peer.node, incarnation, path.peer);
                self.given.retain(|(node, _)| *node != peer.node);
                let place = &mut self.peers[peer.node.index()];
                if place.is_some() {
                    self.next.push((peer.node, met));
                } else {
                    *place = Some(met);
                    self.changes.push_back(Change::Met(peer.node, incarnation));
                }
            }
            Event::Closed { session, peer, reason } => {
                self.transfers.end_session(session);
                if self.on_strand_closed(now, session, reason) {
                    return;
                }
                self.contacts.closed(now, session, reason);
                self.next.retain(|(_, peer)| peer.session != session);
                let Some(node) = peer.map(|peer| peer.node).filter(|node| node.index() < self.peers.len()) else { return };
                let place = &mut self.peers[node.index()];
                let Some(gone) = place.take_if(|peer| peer.session == session) else { return };
                if gone.standing.is_reached() {
                    tracing::debug!(node = node.0, ?reason, "a conversation ended");
                    let left = matches!(reason, CloseReason::ByPeer(CODE_LEFT));
                    let change = if left { Change::Left } else { Change::Died };
                    self.changes.push_back(change(node, gone.incarnation));
                } else {
                    // The driver never heard of the node, or not as one that this fabric reaches.
                    self.changes.retain(|change| match change {
                        Change::Met(other, life) | Change::StrandLost(other, life, _) => {
                            (*other, *life) != (node, gone.incarnation)
                        }
                        _ => true,
                    });
                }
                if let Some(at) = self.next.iter().position(|(other, _)| *other == node) {
                    let (_, met) = self.next.remove(at);
                    self.changes.push_back(Change::Met(node, met.incarnation));
                    self.peers[node.index()] = Some(met);
                }
            }
            // A peer was told two addresses of this node, or asks for a further session before the first one was used.
            Event::Refused { path, why: why @ (Rejection::AlreadyConnected(..) | Rejection::NoFirst) } => {
                tracing::debug!(address = %path.peer, ?why, "a peer asked for a second session");
            }
            Event::Refused { path, why } => {
                tracing::warn!(address = %path.peer, ?why, "refused a request for a session");
            }
            Event::Moved { session, path } => {
                let met = self.peers.iter_mut().flatten().chain(self.next.iter_mut().map(|(_, peer)| peer));
                for peer in met.filter(|peer| peer.session == session) {
                    tracing::info!(from = %peer.address, to = %path.peer, link = path.link.0, "a session moved to another path");
                    peer.address = path.peer;
                }
            }
            Event::Sent { session, transfer } => self.transfers.ended(session, transfer, true),
            Event::Cancelled { session, transfer, outgoing: true } => self.transfers.ended(session, transfer, false),
            // The caller that expects the transfer counts the bytes itself, and the peer tells it when it gives up.
            Event::Arrived { .. } | Event::Cancelled { .. } => {}
        }
    }

    /// Tells a newcomer of all other nodes.
    fn introduce(&mut self, now: Time, session: SessionId, newcomer: NodeId, path: Path) {
        let here = self.links.get(usize::from(path.link.0)).and_then(|link| link.local_towards(path.peer));
        let known = self.peers.iter().enumerate().filter_map(|(index, peer)| Some((NodeId(index as u16), peer.as_ref()?)));
        let members: Vec<_> = known
            .filter(|(node, _)| *node != newcomer)
            .flat_map(|(node, peer)| {
                // Tell all known addresses, because the newcomer may be on another network.
                let (node, incarnation) = (node.0.into(), peer.incarnation.0.into());
                let member = move |address: SocketAddr| Member { node, incarnation, address: address.into() };
                let is_everywhere = self.endpoint.is_everywhere(peer.session);
                let addresses = self.endpoint.addresses(peer.session).into_iter();
                addresses.map(move |address| as_seen_from(path.peer, here, address, is_everywhere)).map(member)
            })
            .collect();
        let mut rest = &members[..];
        loop {
            let (some, more) = rest.split_at(rest.len().min(MEMBERS_MAX));
            rest = more;
            self.tell(now, session, Notice::Members { members: some.to_vec(), last: rest.is_empty() }.encode());
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Sends a notice now, or once there is room.
    pub(super) fn tell(&mut self, now: Time, session: SessionId, notice: Vec<u8>) {
        let head = PacketHead { kind: PacketKind::Control, tag: NOTICE_TAG, sequence: 0, total: notice.len() as u64 };
        if self.endpoint.push(now, session, Priority::High, &head, &notice) == Push::Full {
            self.owed.push_back((session, notice));
        }
    }

    fn on_notice(&mut self, now: Time, source: NodeId, bytes: &[u8]) {
        let Some(Notice::Members { members, last }) = Notice::decode(bytes) else { return };
        // A guest is told of members but may not tell of any.
        if source.index() >= self.peers.len() {
            return;
        }
        for Member { node, incarnation, address } in members {
            let (node, incarnation) = (NodeId(node.get()), Incarnation(incarnation.get()));
            let Some(place) = self.peers.get(node.index()) else { continue };
            let is_known = place.as_ref().is_some_and(|peer| peer.incarnation == incarnation);
            if !is_known && node != self.me.0 {
                self.contacts.tell(now, source, node, incarnation, address.get());
            }
        }
        if last && let Some(session) = self.peer(source).map(|peer| peer.session) {
            self.contacts.told(session);
        }
    }
}

/// The address of a node as a newcomer reaches it. A node at a loopback address is on this machine. If it listens at all addresses, a
/// newcomer of another machine reaches it at the address `here` of this machine to which the newcomer wrote.
fn as_seen_from(newcomer: SocketAddr, here: Option<IpAddr>, address: SocketAddr, is_everywhere: bool) -> SocketAddr {
    match here {
        Some(here) if is_everywhere && is_loopback_only(address) && !is_loopback_only(newcomer) => {
            SocketAddr::new(here, address.port())
        }
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_this_machine_is_told_by_the_address_that_the_newcomer_used() {
        let at = |address: &str| address.parse::<SocketAddr>().unwrap();
        let here = Some(IpAddr::from([10, 0, 0, 1]));
        let (away, beside, near) = (at("10.0.0.2:9"), at("127.0.0.1:9"), at("127.0.0.1:7001"));
        assert_eq!(as_seen_from(away, here, near, true), at("10.0.0.1:7001"));
        // A newcomer of this machine reaches it as it is, and so does everybody who has its real address.
        assert_eq!(as_seen_from(beside, Some(IpAddr::from([127, 0, 0, 1])), near, true), near);
        assert_eq!(as_seen_from(away, here, at("10.0.0.3:7001"), true), at("10.0.0.3:7001"));
        // Nobody of another machine reaches it, or nobody knows how.
        assert_eq!((as_seen_from(away, here, near, false), as_seen_from(away, None, near, true)), (near, near));
    }
}
