//! Peers that join, end or break the rules, and the connections to living ones.

use super::Engine;
use super::state::End;
use crate::error::Error;
use crate::message::Match;
use crate::message::outbound::{OutState, Outbound};
use crate::message::service::{CloseReason, Gone, PeerId};
use crate::sync::baton::Token;
use crate::sync::wait::CHECK_EVERY;
use crate::transfer::incoming::Look;
use crate::turn::events::Event;
use doorbell_fabric::world;
use doorbell_fabric::{Incarnation, NodeId, PRIORITIES, Priority};
use doorbell_shm::board::{Metric, Record, RecordKind};
use doorbell_shm::fabric::Change;

/// The most events kept for the program. Beyond that, the oldest are dropped and counted.
const EVENTS_MAX: usize = 1024;

impl Engine {
    /// Checks that the peers live, and fails operations that wait for one that does not.
    pub fn check_peers(&mut self) {
        self.checked = world::now();
        self.fabric.check_peers();
        self.on_changes();
        self.inbound.sweep();
        if self.severed {
            self.resign();
        }
    }

    /// The same, if that was not done lately.
    pub fn check_peers_now_and_then(&mut self) {
        if world::since(self.checked) >= CHECK_EVERY {
            self.check_peers();
        }
    }

    /// Refreshes the peers, if the directory changed.
    pub fn refresh_peers(&mut self) {
        self.fabric.refresh_peers();
        self.on_changes();
    }

    fn on_changes(&mut self) {
        while let Some(change) = self.fabric.next_change() {
            self.on_change(change);
        }
        if self.parked.is_some() {
            self.wake_parked();
        }
    }

    /// Makes sure that a send queue leads to the wanted incarnation of its target. An error if that incarnation has ended.
    /// Without an error the queue may still have no lane, because the messages of the lane's former owner have not been read
    /// yet.
    pub fn connect(&mut self, outbound: &Outbound, state: &mut OutState, wanted: Incarnation) -> Result<(), Error> {
        if state.link.is_some() && state.incarnation == wanted {
            return Ok(());
        }
        self.refresh_peers();
        if self.severed {
            state.fail(|| self.severed());
            return Err(self.severed());
        }
        let incarnation = state.incarnation;
        if self.fabric.live(outbound.target) != Some(incarnation) {
            // The caller holds this queue, so it was passed over when that incarnation's end was noticed.
            state.fail(|| self.unreachable(outbound.target, Some(incarnation)));
        }
        if self.fabric.live(outbound.target) != Some(wanted) {
            return Err(self.unreachable(outbound.target, Some(wanted)));
        }
        if self.is_damaged(outbound.target, wanted) {
            // The caller holds this queue, so it was passed over when the damage was noticed.
            state.fail(|| Error::Damaged { node: outbound.target });
            return Err(Error::Damaged { node: outbound.target });
        }
        match self.fabric.connect(outbound.target, wanted, outbound.priority) {
            Ok(link) => state.connect(link, wanted),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The error of a receive that can never complete: it is bound to one node, which is gone, and all its messages were
    /// delivered.
    pub fn never(&mut self, accepts: &Match) -> Option<Error> {
        self.never_as_seen(accepts)?;
        // It may have joined just now.
        self.refresh_peers();
        self.never_as_seen(accepts)
    }

    fn never_as_seen(&self, accepts: &Match) -> Option<Error> {
        if self.severed {
            return Some(self.severed());
        }
        let node = accepts.bound_to()?;
        let incarnation = accepts.bound_to_life();
        if node.index() >= self.ends.len() {
            return Some(Error::NoSuchNode { node });
        }
        if let Some(live) = self.fabric.live(node)
            && incarnation.is_none_or(|wanted| wanted == live)
        {
            if self.is_damaged(node, live) {
                return Some(Error::Damaged { node });
            }
            return None;
        }
        match self.ends[node.index()] {
            Some(end) if incarnation.is_none_or(|wanted| wanted == end.incarnation) => {
                self.fabric.drained(node, end.incarnation).then(|| end.error(node))
            }
            // The receive wants an earlier incarnation than the latest one that ended.
            Some(end) if incarnation.is_some_and(|wanted| wanted < end.incarnation) => {
                Some(Error::PeerDied { node, incarnation: incarnation.unwrap_or_default() })
            }
            _ if self.fabric.live(node).is_some() => Some(Error::PeerDied { node, incarnation: incarnation.unwrap_or_default() }),
            _ => Some(Error::NoSuchNode { node }),
        }
    }

    /// Whether this incarnation of a node is known to have ended.
    pub fn has_ended(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.ends.get(node.index()).copied().flatten().is_some_and(|end| end.incarnation == incarnation)
    }

    /// The error for a node that can't be reached.
    pub fn unreachable(&self, node: NodeId, incarnation: Option<Incarnation>) -> Error {
        match self.ends.get(node.index()).copied().flatten() {
            Some(end) if incarnation.is_none_or(|wanted| wanted == end.incarnation) => end.error(node),
            _ => match incarnation {
                Some(incarnation) => Error::PeerDied { node, incarnation },
                None => Error::NoSuchNode { node },
            },
        }
    }

    /// The number of joins and ends so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The next event of another node, oldest first.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
            self.events_dropped += 1;
        }
        self.events.push_back(event);
    }

    /// A peer broke the rules: its lanes are not read any more, and all services are told.
    #[cold]
    pub fn on_broken(&mut self, node: NodeId, reason: &'static str) {
        tracing::warn!(node = node.0, reason, "a peer broke the rules of the shared memory");
        self.monitor.record_peer(RecordKind::Damaged, node, self.fabric.live(node).unwrap_or_default());
        self.damaged[node.index()] = self.fabric.live(node);
        // All its lanes are closed: it may break the rules elsewhere, too.
        self.fabric.close_lanes(node);
        self.tell(Event::Damaged { node, reason });
        if let Some(incarnation) = self.fabric.live(node) {
            // Its acknowledgements are not trusted any more, so nothing may continue to wait for them.
            self.peer_gone((node, incarnation).into(), Gone::Damaged);
        }
        self.drop_inbound_of(node);
        self.fail_posted(|receive| (receive.accepts.bound_to() == Some(node)).then_some(Error::Damaged { node }));
    }

    #[cold]
    pub(super) fn on_change(&mut self, change: Change) {
        self.changes += 1;
        match change {
            Change::Cut(node) => self.on_broken(node, "its inbox was truncated"),
            Change::Truncated(reason) => self.on_own_damage(reason),
            Change::Severed => {
                self.severed = true;
                self.on_own_damage("its inbox was truncated");
                self.resign();
            }
            Change::Joined(node, incarnation) => {
                self.monitor.record_peer(RecordKind::Joined, node, incarnation);
                self.tell(Event::Joined { node, incarnation });
            }
            Change::Left(node, incarnation) | Change::Died(node, incarnation) => {
                let died = matches!(change, Change::Died(..));
                let why = if died { Gone::Died } else { Gone::Left };
                self.monitor.record_peer(if died { RecordKind::PeerDied } else { RecordKind::Left }, node, incarnation);
                self.monitor.tallies.add(Metric::PeersDied, died.into());
                self.ends[node.index()] = Some(End { incarnation, why });
                self.peer_gone((node, incarnation).into(), why);
                self.tell(if died { Event::Died { node, incarnation } } else { Event::Left { node, incarnation } });
            }
            Change::Parted(node, incarnation) => {
                // Neither end knows whether the other one sent something over this session that is lost.
                let used = Priority::ALL.into_iter().filter_map(|priority| self.ways.known(node, priority).cloned());
                let mut used = used.filter_map(|way| {
                    let mut state = way.state.enter(Token::current())?;
                    let used = state.used_further();
                    if !used {
                        state.drop_further();
                    }
                    Some(used)
                });
                // The other end may be sending data to a name that only the lost session knew.
                let is_fed =
                    self.inbound.incoming.iter().any(|incoming| incoming.envelope.source == node && incoming.comes_apart());
                if (is_fed || used.any(|used| used)) && self.fabric.live(node) == Some(incarnation) {
                    self.on_broken(node, "its network session failed while it carried messages in addition to shared memory");
                }
            }
            Change::Drained(node, incarnation) => {
                self.drop_inbound_of(node);
                self.inbound.lenders.forget(node, incarnation);
                self.local.let_go(node, incarnation);
                for assembly in &mut self.inbound.assemblies[node.index() * PRIORITIES..][..PRIORITIES] {
                    assembly.expected = 0;
                }
                let end = self.ends[node.index()];
                if let Some(end) = end.filter(|end| end.incarnation == incarnation) {
                    // Packets that the peer published before its end came until now.
                    self.inbound.services.peer_gone((node, incarnation).into(), end.why);
                }
                // The next incarnation may have joined already. Receives bound to the node id wait for it.
                self.fabric.refresh_peers();
                let is_succeeded = self.fabric.live(node).is_some();
                self.fail_posted(|receive| {
                    let ended = receive.accepts.bound_to_life().map_or(!is_succeeded, |wanted| wanted == incarnation);
                    let bound = receive.accepts.bound_to() == Some(node) && ended;
                    bound.then(|| end.map_or(Error::NoSuchNode { node }, |end| end.error(node)))
                });
            }
        }
    }

    /// Whether this incarnation of a node broke the rules.
    fn is_damaged(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.damaged.get(node.index()).copied().flatten() == Some(incarnation)
    }

    /// Why this incarnation of a node is gone or no longer trusted, if so.
    pub fn gone(&self, node: NodeId, incarnation: Incarnation) -> Option<Gone> {
        let end = self.ends.get(node.index()).copied().flatten().filter(|end| end.incarnation == incarnation);
        end.map(|end| end.why).or_else(|| self.is_damaged(node, incarnation).then_some(Gone::Damaged))
    }

    /// Tells all services that a peer is gone, ends everything with it, and cuts the send queues to it. A queue that this
    /// thread holds is left to [`connect`](Self::connect).
    fn peer_gone(&mut self, peer: PeerId, why: Gone) {
        let (node, incarnation) = peer.into();
        let error = || why.error(peer);
        self.outgoing.fail(Some((node, incarnation)), error);
        for way in Priority::ALL.into_iter().filter_map(|priority| self.ways.known(node, priority)) {
            if let Some(mut state) = way.state.enter(Token::current())
                && state.incarnation == incarnation
            {
                state.fail(error);
            }
        }
        self.inbound.services.peer_gone(peer, why);
        if why == Gone::Damaged {
            // It lives, and may read what it was lent. Its loans come back when it has ended.
            return;
        }
        // After its send queues were cut, nothing more can be lent to it.
        let (loans, bytes) = self.lender.drop_holds(node, incarnation);
        if loans > 0 {
            let record = Record::new(RecordKind::LoanReturned).peer(node).incarnation(incarnation);
            self.monitor.record(&record.bytes(bytes));
        }
    }

    fn on_own_damage(&mut self, reason: &'static str) {
        let (node, incarnation) = self.me();
        tracing::warn!(node = node.0, reason, "another process truncated this node's shared memory");
        self.monitor.record_peer(RecordKind::Damaged, node, incarnation);
        self.tell(Event::Damaged { node, reason });
    }

    fn me(&self) -> (NodeId, Incarnation) {
        let membership = self.fabric.membership();
        (membership.id(), membership.incarnation())
    }

    fn severed(&self) -> Error {
        Error::Severed { node: self.me().0 }
    }

    /// Ends everything: the messages of other nodes are lost, and they do not know. From now on this node is dead to them,
    /// which they can handle. Repeated at every check of the peers, for operations begun since.
    #[cold]
    fn resign(&mut self) {
        let node = self.me().0;
        let cut = self.end_all(Token::current(), CloseReason::Severed(node));
        self.monitor.counters.end_waits(|| Error::Severed { node });
        if cut {
            self.fabric.membership().resign();
        }
    }

    /// Drops the incomplete messages of a node that is gone. A receive that had taken one waits for another message.
    fn drop_inbound_of(&mut self, node: NodeId) {
        for priority in 0..PRIORITIES {
            self.inbound.give_up(node.index() * PRIORITIES + priority);
        }
        self.inbound.given_up.forget(node);
        let mut at = 0;
        while let Some(incoming) = self.inbound.incoming.get_mut(at) {
            if incoming.envelope.source != node {
                at += 1;
            } else if incoming.look() == Look::Complete {
                self.inbound.complete_transfer(at, self.by_poller);
            } else {
                self.inbound.give_up_transfer(at, true);
            }
        }
    }
}
