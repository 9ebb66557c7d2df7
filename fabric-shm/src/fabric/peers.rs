//! Tracks nodes that join and leave, and opens and closes their lanes.

use super::hot::Lane;
use super::{Change, ShmFabric, Slot};
use crate::domain::PeerInbox;
use crate::doorbell::Bell;
use crate::error::ShmError;
use crate::lane::BulkMemory;
use crate::region::PeerRegion;
use doorbell_fabric::{Incarnation, NodeId, PRIORITIES, PeerWord};
use std::sync::Arc;

impl ShmFabric {
    /// Stops reading packets of a node's current incarnation, which broke the rules.
    pub fn close_lanes(&mut self, node: NodeId) {
        if self.slots.get(node.index()).is_some_and(|slot| !matches!(slot, Slot::Vacant)) {
            for lane in self.lanes[node.index() * PRIORITIES..][..PRIORITIES].iter_mut() {
                lane.by_association |= !lane.damaged;
                lane.damaged = true;
            }
        }
    }

    /// Whether everything that this incarnation published has been delivered and no more can come.
    pub fn drained(&self, node: NodeId, incarnation: Incarnation) -> bool {
        match self.slots.get(node.index()) {
            Some(Slot::Live(inbox)) => inbox.incarnation() != incarnation,
            Some(Slot::Closing(closing)) => *closing != incarnation,
            _ => true,
        }
    }

    /// Reads the directory if it changed. Costs one load if it did not.
    #[inline]
    pub fn refresh_peers(&mut self) {
        if self.has_callers() {
            self.see_callers();
        }
        if self.membership.generation() != self.generation {
            self.read_directory();
        }
    }

    /// Checks for every known peer whether it lives, and for some in turn whether the lanes of both were truncated. Costs some 500 ns
    /// for each.
    pub fn check_peers(&mut self) {
        self.refresh_peers();
        self.see_unannounced();
        if !self.severed && self.membership.is_severed() {
            self.severed = true;
            self.reopen();
            self.changes.push_back(Change::Severed);
        }
        let truncated = self.membership.truncated();
        if self.truncated != truncated {
            self.truncated = truncated;
            self.changes.extend(truncated.map(Change::Truncated));
        }
        let truncated = self.truncated_pairs();
        for index in 0..self.slots.len() {
            let Slot::Live(inbox) = &self.slots[index] else { continue };
            let inbox = inbox.clone();
            let lanes = &self.lanes[index * PRIORITIES..][..PRIORITIES];
            let is_cut = inbox.is_cut()
                || truncated.contains(&index)
                || self.pairs[index].as_ref().is_some_and(|pair| pair.is_cut())
                || lanes.iter().any(|lane| lane.bulk.as_ref().is_some_and(PeerRegion::is_cut));
            if is_cut && !lanes[0].damaged && inbox.id() != self.membership.id() {
                self.changes.push_back(Change::Cut(inbox.id()));
                self.close_lanes(inbox.id());
            }
            if !inbox.is_alive() {
                let (node, incarnation) = (inbox.id(), inbox.incarnation());
                // SAFETY: the peer's header page is mapped as long as `inbox`.
                let departed = unsafe { Bell::at(inbox.header()) }.departed();
                self.slots[index] = Slot::Closing(incarnation);
                self.closing += 1;
                self.changes.push_back(if departed { Change::Left(node, incarnation) } else { Change::Died(node, incarnation) });
            }
        }
        self.close_drained();
    }

    /// Answers a producer's offer of a bulk ring. Declines a region that is no ring or cannot be mapped; messages then use
    /// the lane's own data ring.
    #[cold]
    pub(super) fn take_bulk_ring(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        let Some(number) = lane.consumer.offered() else { return };
        let open = |writable| self.membership.open_region(lane.source(), lane.incarnation(), number, writable);
        // Writable, although nothing is written here: on an AMD processor near streams of 64 KiB are a quarter faster, probably because a
        // reader that may write takes a line over. Otherwise both ends have it, and the producer's next store waits.
        let region = open(true).or_else(|_| open(false));
        let region = region.inspect_err(|error| tracing::debug!(node = lane.source().0, %error, "declined a bulk ring")).ok();
        // SAFETY: the lane keeps the region until it is reset.
        let ring = region.as_ref().and_then(|region| unsafe { BulkMemory::new(region.ptr(), region.len()) });
        // SAFETY: the lane keeps the region until it is reset.
        unsafe { lane.consumer.answer(ring) };
        lane.bulk = region;
    }

    #[cold]
    fn read_directory(&mut self) {
        // Read the generation first: a change during the rest of this function brings the reader here again.
        self.generation = self.membership.generation();
        let members = self.membership.members();
        // A known node that the directory no longer names may have left. Ask the kernel and not the directory.
        if (0..self.slots.len()).any(|index| match &self.slots[index] {
            Slot::Live(inbox) => !members.iter().any(|m| m.id.index() == index && m.incarnation == inbox.incarnation()),
            _ => false,
        }) {
            self.check_peers();
        }
        // An earlier incarnation may have sent and ended before this node saw it. Its lanes must be read, and freed, before those of the
        // next. They exist if a later one is listed, whether or not their announcement does.
        self.see_callers();
        for member in &members {
            self.see_caller(member.id.index());
        }
        for index in 0..self.slots.len() {
            if matches!(self.slots[index], Slot::Vacant) {
                self.close_unseen(index);
            }
        }
        for member in members {
            let index = member.id.index();
            if index >= self.slots.len() || !matches!(self.slots[index], Slot::Vacant) {
                continue;
            }
            match self.membership.open_peer(member.id) {
                Ok(inbox) if inbox.incarnation() == member.incarnation => self.open_slot(index, inbox),
                Ok(_) => {}
                // The node died before this look. Report it once, although it stays listed until the next node joins.
                Err(ShmError::NodeDead { incarnation, .. }) => {
                    if self.told[index] != incarnation {
                        self.close_slot(index, incarnation, true);
                    }
                }
                Err(error) => tracing::debug!(node = member.id.0, %error, "could not open the inbox of a listed node"),
            }
        }
        self.reopen();
    }

    fn open_slot(&mut self, index: usize, inbox: PeerInbox) {
        let inbox = Arc::new(inbox);
        for lane in &mut self.lanes[index * PRIORITIES..][..PRIORITIES] {
            lane.peer = PeerWord::new(inbox.id(), inbox.incarnation());
            lane.producer = Some(inbox.clone());
        }
        self.changes.push_back(Change::Joined(inbox.id(), inbox.incarnation()));
        self.told[index] = inbox.incarnation();
        self.slots[index] = Slot::Live(inbox);
    }

    /// Handles an incarnation that joined, sent and ended between two looks: its published packets are still in its lanes.
    fn close_unseen(&mut self, index: usize) {
        let lanes = &self.lanes[index * PRIORITIES..][..PRIORITIES];
        let owners: [u64; PRIORITIES] = std::array::from_fn(|priority| lanes[priority].consumer.owner());
        if owners == [0; PRIORITIES] {
            return;
        }
        // Read the directory after the owners: by then every incarnation that claimed a lane is listed or has gone. One lane may
        // already belong to the next incarnation while another still holds packets of the former.
        let listed = self.membership.member(NodeId(index as u16)).map(|member| member.incarnation.0 as u64);
        let Some(owner) = owners.into_iter().find(|owner| *owner != 0 && Some(*owner) != listed) else { return };
        match u32::try_from(owner) {
            Ok(owner) => self.close_slot(index, Incarnation(owner), false),
            // No correct node writes such an owner.
            Err(_) => self.lanes[index * PRIORITIES..][..PRIORITIES].iter_mut().for_each(Lane::reset),
        }
    }

    /// Closes the slot of an incarnation that ended before this node saw it. Its lanes are still to be read.
    fn close_slot(&mut self, index: usize, incarnation: Incarnation, died: bool) {
        let node = NodeId(index as u16);
        for lane in &mut self.lanes[index * PRIORITIES..][..PRIORITIES] {
            lane.peer = PeerWord::new(node, incarnation);
        }
        self.changes.push_back(Change::Joined(node, incarnation));
        self.changes.push_back(if died { Change::Died(node, incarnation) } else { Change::Left(node, incarnation) });
        self.told[index] = incarnation;
        self.slots[index] = Slot::Closing(incarnation);
        self.closing += 1;
    }

    /// Rebuilds the list of lanes to poll. Small and rare.
    fn reopen(&mut self) {
        self.open.clear();
        for (index, slot) in self.slots.iter().enumerate() {
            // After this node's inbox was cut off, nothing in its lanes is valid.
            if !matches!(slot, Slot::Vacant) && !self.severed {
                self.open.extend((0..PRIORITIES).map(|p| index * PRIORITIES + p));
            }
        }
        self.busy.retain(|lane| self.open.contains(lane));
        for lane in &mut self.lanes {
            lane.busy = false;
        }
        for &lane in &self.busy {
            self.lanes[lane].busy = true;
        }
    }

    /// Frees the lanes of departed nodes once everything published there was taken.
    #[cold]
    pub(super) fn close_drained(&mut self) {
        if self.closing == 0 {
            return;
        }
        // A node may have announced its lanes just before it ended.
        self.see_callers();
        let mut changed = false;
        for index in 0..self.slots.len() {
            let Slot::Closing(incarnation) = self.slots[index] else { continue };
            // Its lanes may exist, and this process have no descriptor to open them.
            if self.beside[index] == Some(incarnation) || !self.see_caller(index) {
                continue;
            }
            let lanes = &mut self.lanes[index * PRIORITIES..][..PRIORITIES];
            let is_drained = |lane: &Lane| lane.damaged || !lane.is_of_known_life() || !lane.consumer.has_packet();
            if lanes.iter().all(is_drained) {
                for lane in lanes {
                    // The next incarnation may already have claimed a lane that this one never claimed.
                    let was_its = lane.consumer.taken() != 0 || lane.consumer.owner() == incarnation.0 as u64;
                    if was_its || (lane.damaged && !lane.by_association) {
                        lane.reset();
                    }
                    (lane.damaged, lane.by_association, lane.later) = (false, false, false);
                    (lane.judged, lane.asked_before) = (false, false);
                    lane.producer = None;
                }
                self.forget_truncated(index);
                self.slots[index] = Slot::Vacant;
                self.closing -= 1;
                self.changes.push_back(Change::Drained(NodeId(index as u16), incarnation));
                changed = true;
            }
        }
        if changed {
            // The next incarnation may be listed already.
            self.generation = self.generation.wrapping_sub(1);
            self.reopen();
        }
    }
}
