//! All lanes of one node: the shared-memory [`Fabric`].
//!
//! A poll costs about the same with one peer as with sixty. It looks at the recently busy lanes every time, and at a few of the
//! others in turn.

mod callers;
mod hot;
mod link;
mod pace;
mod peers;

use crate::board::LatencyHistogram;
use crate::domain::{Membership, Pair, PeerInbox};
use crate::doorbell::Bell;
use crate::error::ShmError;
use crate::faults::Faults;
use crate::lane::{LaneMemory, Peek, Producer, age, packet_bytes};
use crate::layout::FLAG_FENCE;
use callers::Blank;
use doorbell_fabric::sync::Barriers;
use doorbell_fabric::{Fabric, Incarnation, NodeId, PRIORITIES, Priority, Sink, Verdict};
pub use hot::Hot;
use hot::Lane;
use link::Larger;
pub use link::ShmLink;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The most lanes that every poll looks at.
const BUSY_MAX: usize = 8;
/// The number of empty looks after which a busy lane counts as idle.
const BUSY_LOOKS: u32 = 4096;
/// The number of idle lanes in one poll.
const IDLE_PER_LOOK: usize = 2;
/// The most packets to take from one lane before the others have their turn.
const BURST: usize = 32;
/// The same in bytes of payloads. Copying so many takes some tens of microseconds.
const BURST_BYTES: usize = 512 << 10;
/// So many packets of one look count as a further look.
const PACKETS_PER_LOOK: usize = 8;
/// The number of polls after which the idle lanes and the directory get a turn even if the busy lanes always had packets.
const IDLE_LOOKS: u32 = 128;

/// A change of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It attached.
    Joined(NodeId, Incarnation),
    /// It left in good order. Its messages may still be waiting to be delivered.
    Left(NodeId, Incarnation),
    /// It died. Messages that it published before may still be waiting to be delivered.
    Died(NodeId, Incarnation),
    /// Everything that a node published before it left or died has been delivered.
    Drained(NodeId, Incarnation),
    /// The other fabric that the node also sends by is gone although the node lives. Messages on that fabric may be lost.
    Parted(NodeId, Incarnation),
    /// The node's inbox was truncated under our mapping, so its lanes are no longer read.
    Cut(NodeId),
    /// This node's own inbox was truncated, so no lane is read any more.
    Severed,
    /// Another segment of this node was truncated. Messages do not depend on it.
    Truncated(&'static str),
}

enum Slot {
    Vacant,
    Live(Arc<PeerInbox>),
    /// The node is gone, but its published packets are still being read.
    Closing(Incarnation),
}

/// The lanes of one node.
pub struct ShmFabric {
    // Declared before `membership`, which owns the segments that they point into.
    lanes: Vec<Lane>,
    /// The files of the lanes, by their sender, once there are any.
    pairs: Vec<Option<Arc<Pair>>>,
    /// The node from which the next search for unannounced lanes begins.
    next_unseen: usize,
    /// The node from which the next search for truncated lanes begins.
    next_checked: usize,
    /// The memory of all lanes that have no file.
    blank: Arc<Blank>,
    slots: Vec<Slot>,
    /// The latest incarnation of each node that was reported.
    told: Vec<Incarnation>,
    busy: Vec<usize>,
    /// Lanes of living or closing nodes, busy or idle.
    open: Vec<usize>,
    next_busy: usize,
    next_idle: usize,
    /// The number of looks until one is due at all lanes.
    left: u32,
    /// The lane that [`hot`](Self::hot) looked at last.
    hottest: usize,
    generation: u32,
    closing: usize,
    /// For each node, the incarnation that also sends by another fabric.
    beside: Vec<Option<Incarnation>>,
    /// Lanes whose first message waits for one that comes by another link.
    later: Vec<usize>,
    networked: bool,
    /// This node's inbox was truncated, and that was reported.
    severed: bool,
    /// The other truncated segment of this node that was reported.
    truncated: Option<&'static str>,
    changes: VecDeque<Change>,
    faults: Option<Faults>,
    latencies: Arc<LatencyHistogram>,
    membership: Arc<Membership>,
}

impl ShmFabric {
    /// The lanes of a node that has joined.
    pub fn new(membership: Arc<Membership>, faults: Option<Faults>) -> Self {
        let latencies = Arc::<LatencyHistogram>::default();
        let blank = Arc::new(Blank::default());
        let lane_of = |index: usize| {
            let (node, priority) = (NodeId((index / PRIORITIES) as u16), Priority::ALL[index % PRIORITIES]);
            Lane::new(blank.consumer(), node, priority, latencies.clone())
        };
        let count = membership.max_nodes();
        let mut fabric = Self {
            lanes: (0..count * PRIORITIES).map(lane_of).collect(),
            pairs: (0..count).map(|_| None).collect(),
            next_unseen: 0,
            next_checked: 0,
            blank,
            slots: (0..count).map(|_| Slot::Vacant).collect(),
            told: vec![Incarnation(0); count],
            busy: Vec::with_capacity(BUSY_MAX),
            open: Vec::new(),
            next_busy: 0,
            next_idle: 0,
            left: IDLE_LOOKS - 1,
            hottest: 0,
            generation: membership.generation().wrapping_sub(1),
            closing: 0,
            beside: vec![None; count],
            later: Vec::new(),
            networked: false,
            severed: false,
            truncated: None,
            changes: VecDeque::new(),
            faults,
            latencies,
            membership,
        };
        fabric.refresh_peers();
        fabric
    }

    /// The membership that the lanes belong to.
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    /// The latencies of sampled messages, from publishing to taking.
    pub fn latencies(&self) -> &LatencyHistogram {
        &self.latencies
    }

    /// This node's own bell.
    pub fn bell(&self) -> &Bell {
        // SAFETY: the inbox begins with the header page and is mapped as long as the membership.
        unsafe { Bell::at(self.membership.inbox().ptr()) }
    }

    /// The next change of another node, oldest first.
    #[inline]
    pub fn next_change(&mut self) -> Option<Change> {
        if self.changes.is_empty() { None } else { self.changes.pop_front() }
    }

    /// The incarnation of a node that is attached now.
    pub fn live(&self, node: NodeId) -> Option<Incarnation> {
        match self.slots.get(node.index()) {
            Some(Slot::Live(inbox)) => Some(inbox.incarnation()),
            _ => None,
        }
    }

    /// The inbox of a node that is attached now.
    pub fn peer(&self, node: NodeId) -> Option<&Arc<PeerInbox>> {
        match self.slots.get(node.index()) {
            Some(Slot::Live(inbox)) => Some(inbox),
            _ => None,
        }
    }

    /// Takes up to `budget` packets from one lane.
    #[inline(always)]
    fn poll_lane<S: Sink>(&mut self, index: usize, sink: &mut S, budget: usize) -> (usize, bool) {
        if self.lanes[index].consumer.offered().is_some() {
            self.take_bulk_ring(index);
        }
        let lane = &mut self.lanes[index];
        let (mut taken, mut bytes) = (0, 0);
        if !lane.is_of_known_life() || lane.later {
            return (0, false);
        }
        while taken < budget && bytes < BURST_BYTES && !lane.damaged {
            match lane.consumer.peek() {
                Peek::Empty => break,
                Peek::Moved => lane.consumer.follow(),
                Peek::Opened(first) => {
                    if let Some(stop) = lane.copy_opened(first, sink) {
                        lane.consumer.refuse(false);
                        return (taken + 1, stop);
                    }
                    // Its sender may be slow, so one such message is enough for one look.
                    break;
                }
                Peek::Packet(seen) => {
                    // Read the clock before the packet is used, because its use may call the application.
                    let age = if seen.stamp != 0 { age(seen.stamp) } else { None };
                    // SAFETY: from the latest peek; the payload is dropped before the packet is taken.
                    let payload = unsafe { lane.consumer.payload(&seen) };
                    match sink.packet(lane.source(), lane.incarnation(), lane.priority, &seen.head, payload) {
                        Verdict::Taken => {
                            lane.asked_before = false;
                            if age.is_some() {
                                lane.sample(age);
                            }
                            lane.take(&seen);
                            (taken, bytes) = (taken + 1, bytes + seen.len);
                        }
                        Verdict::TakenAndStop => {
                            if age.is_some() {
                                lane.sample(age);
                            }
                            lane.take(&seen);
                            lane.consumer.refuse(false);
                            return (taken + 1, true);
                        }
                        Verdict::Refused => {
                            if lane.consumer.skip_given_up() {
                                if lane.consumer.tell() {
                                    lane.ring_producer();
                                }
                                taken += 1;
                                continue;
                            }
                            // Refuse once and not at every look, or the producer would wake again and again for nothing.
                            let news = !lane.consumer.refusing() || lane.consumer.has_untold();
                            lane.consumer.refuse(true);
                            if news && lane.consumer.tell() {
                                lane.ring_producer();
                            }
                            return (taken, false);
                        }
                        Verdict::Later => {
                            let is_beside = self.beside[lane.source().index()] == Some(lane.incarnation());
                            let is_live = matches!(self.slots[lane.source().index()], Slot::Live(_));
                            if is_beside || (is_live && self.networked && !lane.judged) {
                                lane.later = true;
                                self.later.push(index);
                            } else {
                                // The missing message will never come. If this incarnation has ended, the message was lost with
                                // it.
                                lane.damaged = true;
                                if is_live {
                                    sink.damaged(lane.source(), lane.priority, "a message out of sequence");
                                }
                            }
                            return (taken, false);
                        }
                        Verdict::Broken(reason) => {
                            lane.damaged = true;
                            sink.damaged(lane.source(), lane.priority, reason);
                            return (taken, false);
                        }
                    }
                }
                Peek::Damaged(reason) => {
                    lane.damaged = true;
                    sink.damaged(lane.source(), lane.priority, reason);
                    break;
                }
            }
        }
        if taken > 0 {
            lane.consumer.refuse(false);
        }
        (taken, false)
    }

    /// Records that an incarnation of a node also sends by another fabric, or (`false`) that it no longer does and everything
    /// from there was delivered. Until then the fabric does not report its lanes as [drained](Change::Drained).
    pub fn set_beside(&mut self, node: NodeId, incarnation: Incarnation, is_beside: bool) {
        let beside = &mut self.beside[node.index()];
        if is_beside {
            *beside = Some(incarnation);
        } else if *beside == Some(incarnation) {
            *beside = None;
            self.try_again();
        }
    }

    /// Records that this node is on a network. A node that shares memory may then also send over the network before this end
    /// knows.
    pub fn set_networked(&mut self) {
        self.networked = true;
    }

    /// Stops waiting for missing messages of nodes that send by no other link: the network had time to bring them.
    pub fn judge_later(&mut self) {
        for &index in &self.later {
            let lane = &mut self.lanes[index];
            if self.beside[lane.source().index()] != Some(lane.incarnation()) {
                (lane.judged, lane.later) = (std::mem::replace(&mut lane.asked_before, true), false);
            }
        }
        let lanes = &self.lanes;
        self.later.retain(|index| lanes[*index].later);
    }

    /// Whether messages wait for earlier ones that come by another link.
    #[inline(always)]
    pub fn has_later(&self) -> bool {
        !self.later.is_empty()
    }

    /// Whether packets of a departed incarnation of a node are still being read.
    pub fn is_closing(&self, node: NodeId) -> bool {
        matches!(self.slots.get(node.index()), Some(Slot::Closing(_)))
    }

    /// Whether everything left of a node waits for messages that come by another link.
    pub fn is_put_off(&self, node: NodeId) -> bool {
        let lanes = &self.lanes[node.index() * PRIORITIES..][..PRIORITIES];
        let is_over = |lane: &Lane| lane.later || lane.damaged || !lane.is_of_known_life() || !lane.consumer.has_packet();
        lanes.iter().all(is_over)
    }

    /// A message came by another link, so the lanes that waited for it are polled again.
    pub fn try_again(&mut self) {
        for index in self.later.drain(..) {
            self.lanes[index].later = false;
        }
    }

    fn make_busy(&mut self, index: usize) {
        if self.lanes[index].busy {
            return;
        }
        if self.busy.len() == BUSY_MAX {
            let coldest = (0..BUSY_MAX).max_by_key(|&at| self.lanes[self.busy[at]].idle_looks).unwrap_or(0);
            let out = self.busy.swap_remove(coldest);
            self.lanes[out].busy = false;
        }
        self.lanes[index].busy = true;
        self.lanes[index].idle_looks = 0;
        self.busy.push(index);
    }

    fn poll_idle<S: Sink>(&mut self, sink: &mut S, budget: usize) -> (usize, bool) {
        self.refresh_peers();
        self.close_drained();
        if !self.changes.is_empty() {
            return (0, true);
        }
        let mut taken = 0;
        for _ in 0..IDLE_PER_LOOK.min(self.open.len()) {
            self.next_idle = self.following_idle();
            let index = self.open[self.next_idle];
            let lane = &self.lanes[index];
            if lane.is_ready_and_idle() {
                let (more, stop) = self.poll_lane(index, sink, BURST.min(budget - taken));
                taken += more;
                self.make_busy(index);
                if stop || taken >= budget {
                    return (taken, stop);
                }
            }
        }
        (taken, false)
    }

    /// The fast path from a published word to its reader: returns the lane that was busy last. Now and then it returns `None`, so
    /// that the caller polls all lanes.
    #[inline(always)]
    pub fn hot(&mut self) -> Option<Hot<'_>> {
        let &index = self.busy.get(self.next_busy)?;
        // Return `None` whenever a look at all lanes is due, so that `poll` does it.
        if self.left == 0 || self.busy.len() > 1 || self.faults.is_some() || !self.changes.is_empty() {
            return None;
        }
        self.left -= 1;
        self.hottest = index;
        let lane = &mut self.lanes[index];
        // The same conditions as in `is_news`; none of them changes while the caller watches the lane.
        let is_open = !lane.damaged && !lane.later && !lane.consumer.refusing() && lane.consumer.taken() != 0;
        is_open.then_some(Hot { lane, index })
    }

    /// Counts a look at the lane that was busy last. False if the idle lanes are due for a look first: then that one did not count.
    #[inline(always)]
    pub fn count_look(&mut self) -> bool {
        let (left, is_due) = self.left.overflowing_sub(1);
        self.left = left;
        if is_due {
            self.left = 0;
        }
        !is_due
    }

    /// As [`hot`](Self::hot) for a caller that knows that nothing but packets was taken since it returned a lane, so that the
    /// other conditions still hold. The caller has [counted](Self::count_look) its look, or has made the look at the idle lanes that was
    /// due. Otherwise no idle lane is ever looked at.
    #[inline(always)]
    pub fn same_hot(&mut self) -> Option<Hot<'_>> {
        let index = self.hottest;
        debug_assert_eq!(self.busy.get(self.next_busy), Some(&index));
        self.lanes.get_mut(index).map(|lane| Hot { lane, index })
    }

    /// The look that is due, for a caller of [`same_hot`](Self::same_hot). False if [`poll`](Fabric::poll) has something to do in
    /// another lane or in the directory.
    pub fn look_around(&mut self) -> bool {
        let is_same = !self.has_callers() && self.membership.generation() == self.generation && self.closing == 0;
        if !is_same || self.faults.is_some() || self.lanes[self.hottest].consumer.offered().is_some() {
            return false;
        }
        for _ in 0..IDLE_PER_LOOK.min(self.open.len()) {
            let next = self.following_idle();
            if self.lanes[self.open[next]].is_ready_and_idle() {
                return false;
            }
            self.next_idle = next;
        }
        self.left = IDLE_LOOKS;
        true
    }

    /// The place of the next open lane, in turn.
    fn following_idle(&self) -> usize {
        if self.next_idle + 1 < self.open.len() { self.next_idle + 1 } else { 0 }
    }

    /// Notes that packets were taken by one look, so that the idle lanes get their look in time.
    #[inline(always)]
    pub fn took(&mut self, packets: usize) {
        self.left = self.left.saturating_sub((packets / PACKETS_PER_LOOK) as u32);
    }

    /// Looks at the recently busy lanes up to `rounds` times. Returns true as soon as one has a packet, or
    /// one that its producer is still writing.
    pub fn spin(&self, rounds: u32) -> bool {
        !self.busy.is_empty()
            && (0..rounds).any(|_| {
                doorbell_fabric::sync::spin_hint();
                self.busy.iter().any(|&lane| self.lanes[lane].is_news() || self.lanes[lane].is_opened())
            })
    }

    /// Whether a packet waits in any lane, or the directory changed. For the last look before sleeping. Lanes that the driver
    /// refused do not count, because the driver cannot take their packets however often it looks.
    pub fn has_news(&self) -> bool {
        self.membership.generation() != self.generation
            || self.has_callers()
            || self.open.iter().any(|&lane| self.lanes[lane].is_news())
    }

    /// Arms the bell for the sleeper of this number and looks at every lane once more. If it finds nothing, returns how long the
    /// caller may sleep on the bell, `timeout` at most. Disarm the bell after the sleep.
    pub fn arm(&mut self, sleeper: u32, timeout: Duration) -> Option<Duration> {
        let timeout = if self.bell().arm_as(sleeper) { timeout } else { timeout.min(Duration::from_millis(1)) };
        if self.has_news() {
            self.bell().disarm();
            return None;
        }
        Some(timeout)
    }

    /// Whether any sender was told to stop sending for now.
    pub fn refusing(&self) -> bool {
        self.open.iter().any(|&lane| self.lanes[lane].consumer.refusing())
    }
}

impl Fabric for ShmFabric {
    type Link = ShmLink;
    type Error = ShmError;

    fn connect(&mut self, target: NodeId, incarnation: Incarnation, priority: Priority) -> Result<ShmLink, ShmError> {
        self.refresh_peers();
        let domain = || self.membership.domain().to_owned();
        let inbox = match self.slots.get(target.index()) {
            Some(Slot::Live(inbox)) if inbox.incarnation() == incarnation => inbox.clone(),
            _ => return Err(ShmError::NoSuchNode { operation: "connect", domain: domain(), id: target }),
        };
        let pair = inbox.pair()?.clone();
        // SAFETY: the link keeps the pair.
        let (first, full) = unsafe { pair.rings(priority) };
        let larger = Larger::new(full, self.membership.lanes().lane(priority).end());
        let mut producer = Producer::claim(first, self.membership.incarnation().0)
            .ok_or_else(|| ShmError::LaneBusy { domain: domain(), id: target })?;
        producer.limit(packet_bytes(first.data_bytes()));
        let fenced = inbox.flags() & FLAG_FENCE != 0 || !Barriers::join().machine;
        let faults = self.faults.as_mut().map(Faults::fork);
        // SAFETY: the link keeps the inbox, whose header page stays mapped with it.
        let bell = unsafe { Bell::at(inbox.header()) };
        Ok(ShmLink { producer, bulk: None, bell, fenced, faults, last_len: 0, larger, pair, _inbox: inbox })
    }

    #[inline]
    fn poll<S: Sink>(&mut self, sink: &mut S, budget: usize) -> usize {
        if let Some(faults) = &mut self.faults
            && faults.delay()
        {
            return 0;
        }
        let mut taken = 0;
        if !self.changes.is_empty() {
            // The caller must first learn which incarnation sent these packets: a new one starts its sequence numbers from 0.
            return 0;
        }
        let idle_first = self.left == 0;
        self.left = if idle_first { IDLE_LOOKS - 1 } else { self.left - 1 };
        if idle_first {
            // A lane that always has packets must not starve the idle ones.
            let (more, stop) = self.poll_idle(sink, budget);
            if stop || more >= budget {
                return more;
            }
            taken = more;
        }
        for _ in 0..self.busy.len() {
            self.next_busy = if self.next_busy + 1 < self.busy.len() { self.next_busy + 1 } else { 0 };
            let Some(&index) = self.busy.get(self.next_busy) else { break };
            let (more, stop) = self.poll_lane(index, sink, BURST.min(budget - taken));
            taken += more;
            let lane = &mut self.lanes[index];
            if more > 0 {
                lane.idle_looks = 0;
            } else {
                lane.idle_looks += 1;
                if lane.idle_looks > BUSY_LOOKS && self.busy.len() > 1 {
                    lane.busy = false;
                    self.busy.swap_remove(self.next_busy);
                }
            }
            if stop || taken >= budget {
                return taken;
            }
        }
        // At most once a call: between a node's end and its next incarnation the driver must have seen the changes.
        if taken == 0 && !idle_first {
            taken = self.poll_idle(sink, budget).0;
        }
        taken
    }
}
