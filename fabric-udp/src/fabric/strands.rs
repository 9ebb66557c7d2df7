//! Further sessions with a peer if both nodes have several links: one session for each link.
//!
//! The node with the lower number asks for them once its driver uses the network to reach that peer. A further session that ended
//! alone is opened again. All further sessions end with the first one.

use super::{BytesIn, CODE_LEFT, CODE_UNWANTED, Change, Peer, Stage, UdpFabric};
use crate::protocol::{CloseReason, Path, SessionId, Time, TransferId};
use doorbell_fabric::{Incarnation, NodeId};
use std::sync::Arc;
use std::time::Duration;

/// The first pause before a further session that failed or ended is requested again. The pause doubles each time, up to the limit
/// below.
const AGAIN_FIRST: Duration = Duration::from_millis(100);
const AGAIN_MOST: Duration = Duration::from_secs(60);

/// One further session with a peer, or the attempt to open it.
#[derive(Clone, Copy, Default)]
pub(super) struct Further {
    session: Option<SessionId>,
    /// The session can be used.
    is_up: bool,
    /// The time of the next request, if this node is the one that asks.
    next: Option<Time>,
    tries: u32,
}

impl Further {
    /// Schedules the next request.
    fn again(&mut self, now: Time) {
        let pause = AGAIN_FIRST * (1 << self.tries.min(16));
        self.next = Some(now + pause.min(AGAIN_MOST));
        self.tries += 1;
    }
}

impl Peer {
    /// The session with this number, if it can be used.
    fn session_by(&self, strand: u8) -> Option<SessionId> {
        match usize::from(strand).checked_sub(1) {
            None => Some(self.session),
            Some(at) => self.further.get(at).filter(|further| further.is_up)?.session,
        }
    }

    /// All sessions with the peer that can be used.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        (0..=self.further.len() as u8).filter_map(|strand| self.session_by(strand))
    }
}

impl UdpFabric {
    /// The driver uses the network to reach this node, so there should be as many sessions as the end with fewer links has links.
    pub(super) fn want_strands(&mut self, node: NodeId) {
        let now = self.now();
        let Some(Some(peer)) = self.peers.get_mut(node.index()) else { return };
        if !self.wants_strands || self.me.0 > node {
            return;
        }
        let most = self.endpoint.strands(peer.session).clamp(1, peer.further.len() + 1);
        for further in peer.further[..most - 1].iter_mut().filter(|further| further.session.is_none()) {
            further.next = Some(now);
            self.strands_due = Some(now);
        }
    }

    /// Requests the sessions whose time has come.
    pub(super) fn attend_strands(&mut self, now: Time) {
        if self.strands_due.is_none_or(|due| due > now) {
            return;
        }
        self.strands_due = None;
        let Self { peers, endpoint, strands_due, .. } = self;
        for peer in peers.iter_mut().flatten() {
            for (strand, further) in (1..).zip(&mut peer.further) {
                let Some(next) = further.next else { continue };
                if next <= now {
                    further.session = endpoint.connect_further(now, peer.session, strand, further.tries as usize);
                    match further.session {
                        Some(_) => further.next = None,
                        None => further.again(now),
                    }
                }
                *strands_due = strands_due.iter().copied().chain(further.next).min();
            }
        }
    }

    /// Records that a further session was established.
    pub(super) fn on_strand(&mut self, now: Time, session: SessionId, (node, incarnation): (NodeId, Incarnation), strand: u8) {
        let Self { peers, next, endpoint, .. } = self;
        let known = peers.get_mut(node.index()).into_iter().flatten();
        let new = next.iter_mut().filter(|(other, _)| *other == node).map(|(_, peer)| peer);
        let peer = known.chain(new).find(|peer| peer.incarnation == incarnation);
        let place = usize::from(strand).wrapping_sub(1);
        let Some((standing, further)) = peer.and_then(|peer| Some((peer.standing, peer.further.get_mut(place)?))) else {
            return endpoint.close(now, session, CODE_UNWANTED);
        };
        *further = Further { session: Some(session), is_up: true, ..Further::default() };
        if standing == Stage::Beside {
            endpoint.vouch(session);
        }
    }

    /// Records the end of a session or an attempt. Returns whether it was a further session.
    pub(super) fn on_strand_closed(&mut self, now: Time, session: SessionId, reason: CloseReason) -> bool {
        let peers = self.peers.iter_mut().enumerate().filter_map(|(index, peer)| Some((NodeId(index as u16), peer.as_mut()?)));
        let all = peers.chain(self.next.iter_mut().map(|(node, peer)| (*node, peer)));
        let found = all.into_iter().find_map(|(node, peer)| {
            let at = peer.further.iter().position(|further| further.session == Some(session))?;
            Some((node, peer, at))
        });
        let Some((node, peer, at)) = found else { return false };
        let further = &mut peer.further[at];
        let was_up = further.is_up;
        (further.session, further.is_up) = (None, false);
        // The session ended with the first one, or before it because its peer leaves. That end will be reported soon.
        let ends_along = matches!(reason, CloseReason::NoFirst | CloseReason::Local)
            || matches!(reason, CloseReason::ByPeer(code) if code == CODE_LEFT || code == CODE_UNWANTED);
        if ends_along && was_up {
            return true;
        }
        if self.wants_strands && self.me.0 < node && peer.standing.is_reached() {
            further.again(now);
            self.strands_due = self.strands_due.into_iter().chain(further.next).min();
        }
        // The driver may soon use a node that has just been met.
        if was_up && (peer.standing.is_reached() || peer.standing == Stage::Met) {
            tracing::debug!(node = node.0, strand = at + 1, ?reason, "one of several sessions with a node ended");
            self.changes.push_back(Change::StrandLost(node, peer.incarnation, at as u8 + 1));
        }
        true
    }

    /// The number of usable sessions with an incarnation of a node that was accepted, or is reached beside. There is one for each
    /// link where both ends have several, and fewer while they are being opened. Zero if there is no such incarnation. The usable
    /// sessions need not have the lowest numbers.
    pub fn strands(&self, node: NodeId, incarnation: Incarnation) -> usize {
        self.reached(node, incarnation).map_or(0, |peer| peer.sessions().count())
    }

    /// Expects `len` bytes by one of the sessions with an incarnation of a node that was accepted, or is reached beside, and
    /// returns the transfer's id. The caller must tell the peer that id. Bytes are stored as long as `into` lives. `None`: there
    /// is no such incarnation or session now.
    pub fn expect_by(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        strand: u8,
        len: u64,
        into: &Arc<dyn BytesIn>,
    ) -> Option<TransferId> {
        let session = self.session_by(node, incarnation, strand)?;
        self.transfers.expect(&mut self.endpoint, session, len, into)
    }

    /// One of the sessions with an incarnation of a node that was accepted, or is reached beside.
    pub(crate) fn session_by(&self, node: NodeId, incarnation: Incarnation, strand: u8) -> Option<SessionId> {
        self.reached(node, incarnation)?.session_by(strand)
    }

    /// Whether a session with a node uses this path.
    pub(super) fn is_of_a_peer(&self, path: Path) -> bool {
        let mut sessions = self.peers.iter().flatten().flat_map(Peer::sessions);
        sessions.any(|session| self.endpoint.path(session).is_some_and(|used| used.peer == path.peer))
    }

    fn reached(&self, node: NodeId, incarnation: Incarnation) -> Option<&Peer> {
        self.peer(node).filter(|peer| peer.incarnation == incarnation && peer.standing.is_reached())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::receiving::Always;
    use crate::fabric::{About, UdpOptions};
    use doorbell_fabric::{Role, Verdict};
    use std::time::Instant;

    fn open(node: u16, options: &UdpOptions) -> UdpFabric {
        let about = About { role: Role::Host, pid: 1, label: "a node".into(), nonce: 0 };
        let me = (NodeId(node), Incarnation(u32::from(node) + 100));
        UdpFabric::open("strands", me, about, 8, options, Instant::now() + Duration::from_secs(20)).unwrap().0
    }

    fn poll(fabric: &mut UdpFabric, lost: &mut Vec<Change>) {
        fabric.poll(&mut Always(Verdict::Taken), 64);
        while let Some(change) = fabric.next_change() {
            match change {
                Change::Met(node, _) => fabric.accept(node),
                change => lost.push(change),
            }
        }
    }

    #[test]
    fn one_that_ends_alone_is_told_and_comes_about_again() {
        let options = UdpOptions { listen: vec![([127, 0, 0, 1], 0).into(); 2], ..UdpOptions::default() };
        let mut home = open(0, &options);
        let joined = UdpOptions { connect: vec![home.address()], ..options };
        let joining = std::thread::spawn(move || open(1, &joined));
        let mut lost = [Vec::new(), Vec::new()];
        while !joining.is_finished() {
            poll(&mut home, &mut lost[0]);
        }
        let mut guest = joining.join().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let [here, there] = [0, 1].map(|node| (NodeId(node), Incarnation(u32::from(node) + 100)));
        let all = |home: &UdpFabric, guest: &UdpFabric| home.strands(there.0, there.1) == 2 && guest.strands(here.0, here.1) == 2;
        for round in 1..=2 {
            while !all(&home, &guest) || lost.iter().any(|lost| lost.len() < round - 1) {
                assert!(Instant::now() < deadline, "both sessions, in round {round}");
                poll(&mut home, &mut lost[0]);
                poll(&mut guest, &mut lost[1]);
            }
            if round == 1 {
                let session = guest.session_by(here.0, here.1, 1).unwrap();
                let now = guest.now();
                guest.endpoint.give_up(now, session, 9);
                guest.attend(now);
                assert_eq!(guest.strands(here.0, here.1), 1);
                assert!(guest.session_by(here.0, here.1, 0).is_some() && guest.session_by(here.0, here.1, 1).is_none());
            }
        }
        let told = |(node, life): (NodeId, Incarnation)| vec![Change::StrandLost(node, life, 1)];
        assert_eq!(lost, [told(there), told(here)]);
    }
}
