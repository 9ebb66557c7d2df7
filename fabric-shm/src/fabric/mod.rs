//! All lanes of one node: the shared-memory [`Fabric`].
//!
//! A look costs about the same with one peer as with sixty: lanes that were busy lately are looked at every time, the
//! others a few at a time, in turn.

mod hot;
mod link;
mod peers;

use crate::board::LatencyHistogram;
use crate::domain::{Membership, PeerInbox};
use crate::doorbell::Bell;
use crate::error::ShmError;
use crate::faults::Faults;
use crate::lane::{Consumer, Peek, Producer, RawMemory, age};
use crate::layout::{FLAG_FENCE, block_offset};
use doorbell_fabric::sync::Barriers;
use doorbell_fabric::{Fabric, Incarnation, NodeId, PRIORITIES, Priority, Sink, Verdict};
pub use hot::Hot;
use hot::Lane;
pub use link::ShmLink;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Lanes that are looked at every time.
const BUSY_MAX: usize = 8;
/// Looks that may find nothing before a busy lane counts as idle.
const BUSY_LOOKS: u32 = 4096;
/// Idle lanes looked at in one look.
const IDLE_PER_LOOK: usize = 2;
/// Packets taken from one lane before the others have their turn.
const BURST: usize = 32;
/// Looks after which the idle lanes and the directory have a turn even if the busy lanes had something each time.
const IDLE_LOOKS: u32 = 128;

/// What happened to a node of the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It attached.
    Joined(NodeId, Incarnation),
    /// It left in good order. Messages it sent may still be on their way up.
    Left(NodeId, Incarnation),
    /// It died. Messages it published before may still be on their way up.
    Died(NodeId, Incarnation),
    /// Everything that a node which left or died had published has been delivered.
    Drained(NodeId, Incarnation),
    /// The other fabric by which it sends as well is gone, though it lives: what went by it may be lost.
    Parted(NodeId, Incarnation),
    /// Its inbox was truncated under our mapping: its lanes are read no more.
    Cut(NodeId),
    /// This node's own inbox was truncated, by whomever: no lane is read any more.
    Severed,
    /// Something else of this node was truncated, on which no messages depend.
    Truncated(&'static str),
}

enum Slot {
    Vacant,
    Live(Arc<PeerInbox>),
    /// Gone; what it published is still being read.
    Closing(Incarnation),
}

/// The lanes of one node.
pub struct ShmFabric {
    // Declared before `membership`, whose segments they point into.
    lanes: Vec<Lane>,
    slots: Vec<Slot>,
    /// The latest life of each node that was told of.
    told: Vec<Incarnation>,
    busy: Vec<usize>,
    /// Lanes of live or closing nodes, busy or not.
    open: Vec<usize>,
    next_busy: usize,
    next_idle: usize,
    looks: u32,
    generation: u32,
    closing: usize,
    /// The life of each node that sends by another fabric as well.
    beside: Vec<Option<Incarnation>>,
    /// Lanes of which the first message waits for one that comes by another link.
    later: Vec<usize>,
    networked: bool,
    /// Somebody truncated this node's inbox, and that was told.
    severed: bool,
    /// What else of this node was truncated, and told.
    truncated: Option<&'static str>,
    changes: VecDeque<Change>,
    faults: Option<Faults>,
    latencies: Arc<LatencyHistogram>,
    membership: Arc<Membership>,
}

impl ShmFabric {
    /// The lanes of a node that has joined.
    pub fn new(membership: Arc<Membership>, faults: Option<Faults>) -> Self {
        let geometry = membership.lanes();
        let inbox = membership.inbox().ptr();
        let latencies = Arc::<LatencyHistogram>::default();
        let lane_of = |index: usize| {
            let (source, priority) = (NodeId((index / PRIORITIES) as u16), Priority::ALL[index % PRIORITIES]);
            // SAFETY: the membership made its inbox `inbox_bytes(max_nodes, geometry)` long; `self.membership` keeps it mapped.
            let memory = unsafe { RawMemory::new(inbox.add(block_offset(source, &geometry)), geometry.lane(priority)) };
            let consumer = Consumer::new(memory);
            Lane {
                consumer,
                source,
                incarnation: Incarnation(0),
                priority,
                producer: None,
                idle_looks: 0,
                busy: false,
                damaged: false,
                by_association: false,
                later: false,
                judged: false,
                asked_before: false,
                latencies: latencies.clone(),
                bulk: None,
            }
        };
        let count = membership.max_nodes();
        let mut fabric = Self {
            lanes: (0..count * PRIORITIES).map(lane_of).collect(),
            slots: (0..count).map(|_| Slot::Vacant).collect(),
            told: vec![Incarnation(0); count],
            busy: Vec::with_capacity(BUSY_MAX),
            open: Vec::new(),
            next_busy: 0,
            next_idle: 0,
            looks: 0,
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
        fabric.glance();
        fabric
    }

    /// The membership whose lanes these are.
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    /// How long sampled messages took from being published to being taken.
    pub fn latencies(&self) -> &LatencyHistogram {
        &self.latencies
    }

    /// This node's own bell.
    pub fn bell(&self) -> &Bell {
        // SAFETY: the inbox begins with the header page and is mapped as long as the membership.
        unsafe { Bell::at(self.membership.inbox().ptr()) }
    }

    /// What happened to other nodes, oldest first.
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
        let mut taken = 0;
        if !lane.is_of_known_life() || lane.later {
            return (0, false);
        }
        while taken < budget && !lane.damaged {
            match lane.consumer.peek() {
                Peek::Empty => break,
                Peek::Packet(seen) => {
                    // Before it is used, which may be a callback of the application.
                    let age = if seen.stamp != 0 { age(seen.stamp) } else { None };
                    // SAFETY: from the latest peek; the payload is gone before the packet is taken.
                    let payload = unsafe { lane.consumer.payload(&seen) };
                    match sink.packet(lane.source, lane.incarnation, lane.priority, &seen.head, payload) {
                        Verdict::Taken => {
                            lane.asked_before = false;
                            if age.is_some() {
                                lane.sample(age);
                            }
                            lane.take(&seen);
                            taken += 1;
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
                            // Once, and not at every look: the producer would be woken again and again for nothing.
                            let news = !lane.consumer.refusing() || lane.consumer.has_untold();
                            lane.consumer.refuse(true);
                            if news && lane.consumer.tell() {
                                lane.ring_producer();
                            }
                            return (taken, false);
                        }
                        Verdict::Later => {
                            let is_beside = self.beside[lane.source.index()] == Some(lane.incarnation);
                            let is_live = matches!(self.slots[lane.source.index()], Slot::Live(_));
                            if is_beside || (is_live && self.networked && !lane.judged) {
                                lane.later = true;
                                self.later.push(index);
                            } else {
                                // What comes before it never will. Of a life that is over it was lost with it.
                                lane.damaged = true;
                                if is_live {
                                    sink.damaged(lane.source, lane.priority, "a message out of sequence");
                                }
                            }
                            return (taken, false);
                        }
                        Verdict::Broken(reason) => {
                            lane.damaged = true;
                            sink.damaged(lane.source, lane.priority, reason);
                            return (taken, false);
                        }
                    }
                }
                Peek::Damaged(reason) => {
                    lane.damaged = true;
                    sink.damaged(lane.source, lane.priority, reason);
                    break;
                }
            }
        }
        if taken > 0 {
            lane.consumer.refuse(false);
        }
        (taken, false)
    }

    /// A life of a node sends by another fabric as well, or (`false`) does so no more, and all that came by it was delivered. Until then what it
    /// published is not [drained](Change::Drained).
    pub fn set_beside(&mut self, node: NodeId, life: Incarnation, is_beside: bool) {
        let beside = &mut self.beside[node.index()];
        if is_beside {
            *beside = Some(life);
        } else if *beside == Some(life) {
            *beside = None;
            self.try_again();
        }
    }

    /// This node is on a network: who shares memory with it may send by that as well, before this end knows.
    pub fn set_networked(&mut self) {
        self.networked = true;
    }

    /// What waits for something of a node that sends by no other link is waited for no longer: for the network had the time to bring it.
    pub fn judge_later(&mut self) {
        for &index in &self.later {
            let lane = &mut self.lanes[index];
            if self.beside[lane.source.index()] != Some(lane.incarnation) {
                (lane.judged, lane.later) = (std::mem::replace(&mut lane.asked_before, true), false);
            }
        }
        let lanes = &self.lanes;
        self.later.retain(|index| lanes[*index].later);
    }

    /// Whether messages wait for some that come by another link.
    #[inline(always)]
    pub fn has_later(&self) -> bool {
        !self.later.is_empty()
    }

    /// Whether what a life of a node that is gone had published is still being read.
    pub fn is_closing(&self, node: NodeId) -> bool {
        matches!(self.slots.get(node.index()), Some(Slot::Closing(_)))
    }

    /// Whether all that is left of a node waits for something that comes by another link.
    pub fn is_put_off(&self, node: NodeId) -> bool {
        let lanes = &self.lanes[node.index() * PRIORITIES..][..PRIORITIES];
        let is_over = |lane: &Lane| {
            lane.later || lane.damaged || !lane.is_of_known_life() || !matches!(lane.consumer.peek(), Peek::Packet(_))
        };
        lanes.iter().all(is_over)
    }

    /// Something came by another link: what waited for it is asked for again.
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
        self.glance();
        self.close_drained();
        if !self.changes.is_empty() {
            return (0, true);
        }
        let mut taken = 0;
        for _ in 0..IDLE_PER_LOOK.min(self.open.len()) {
            self.next_idle = if self.next_idle + 1 < self.open.len() { self.next_idle + 1 } else { 0 };
            let index = self.open[self.next_idle];
            let lane = &self.lanes[index];
            if !lane.busy && lane.consumer.is_ready() && !lane.damaged && lane.is_of_known_life() {
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

    /// Looks up to `rounds` times at the lane that was busy last, and returns it if it has something: the shortest way from
    /// a published word to its reader. Now and then it says `None` unasked, so that the caller polls all lanes.
    #[inline(always)]
    pub fn hot(&mut self) -> Option<Hot<'_>> {
        let &index = self.busy.get(self.next_busy)?;
        // Before every look of all lanes that is due, so that `poll` does it.
        if self.looks + 1 >= IDLE_LOOKS || self.busy.len() > 1 || self.faults.is_some() || !self.changes.is_empty() {
            return None;
        }
        self.looks += 1;
        let lane = &mut self.lanes[index];
        // As `is_news` asks; nothing of it changes while this is watched.
        let is_open = !lane.damaged && !lane.later && !lane.consumer.refusing() && lane.consumer.taken() != 0;
        is_open.then_some(Hot { lane, index })
    }

    /// Looks up to `rounds` times at the lanes that were busy lately. True as soon as one has something.
    pub fn spin(&self, rounds: u32) -> bool {
        !self.busy.is_empty()
            && (0..rounds).any(|_| {
                doorbell_fabric::sync::spin_hint();
                self.busy.iter().any(|&lane| self.lanes[lane].is_news())
            })
    }

    /// Whether anything waits in any lane, or the directory changed. For the last look before sleeping; lanes that the
    /// driver refused don't count, as it can't take them however often it looks.
    pub fn has_news(&self) -> bool {
        self.membership.generation() != self.generation || self.open.iter().any(|&lane| self.lanes[lane].is_news())
    }

    /// Arms the bell and looks at every lane once more. If that found nothing: how long the caller may sleep on the
    /// bell, `timeout` at most. Disarm the bell after the sleep.
    pub fn arm(&mut self, timeout: Duration) -> Option<Duration> {
        let timeout = if self.bell().arm() { timeout } else { timeout.min(Duration::from_millis(1)) };
        if self.has_news() {
            self.bell().disarm();
            return None;
        }
        Some(timeout)
    }

    /// Whether some sender was told that its messages are not taken for now.
    pub fn refusing(&self) -> bool {
        self.open.iter().any(|&lane| self.lanes[lane].consumer.refusing())
    }
}

impl Fabric for ShmFabric {
    type Link = ShmLink;
    type Error = ShmError;

    fn connect(&mut self, target: NodeId, incarnation: Incarnation, priority: Priority) -> Result<ShmLink, ShmError> {
        self.glance();
        let inbox = match self.slots.get(target.index()) {
            Some(Slot::Live(inbox)) if inbox.incarnation() == incarnation => inbox.clone(),
            _ => return Err(ShmError::no_such_node(self.membership.domain(), target)),
        };
        let (block, len) = inbox.block();
        let place = self.membership.lanes().lane(priority);
        debug_assert!(place.data + place.data_bytes <= len);
        // SAFETY: open_peer mapped a whole block of this geometry; `inbox` in the link keeps it mapped.
        let memory = unsafe { RawMemory::new(block, place) };
        let producer = Producer::claim(memory, self.membership.incarnation().0)
            .ok_or_else(|| ShmError::lane_busy(self.membership.domain(), target))?;
        let fenced = inbox.flags() & FLAG_FENCE != 0 || !Barriers::join().machine;
        let faults = self.faults.as_mut().map(Faults::fork);
        Ok(ShmLink { producer, bulk: None, bell: inbox.header(), fenced, faults, last_len: 0, _inbox: inbox })
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
            // First the caller has to know whose packets these are: the numbers of a new life begin anew.
            return 0;
        }
        self.looks = (self.looks + 1) % IDLE_LOOKS;
        let idle_first = self.looks == 0;
        if idle_first {
            // A lane that always has something must not keep the idle ones waiting for ever.
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
        // Once a call at most: between a node's end and its next life the driver must have seen the changes.
        if taken == 0 && !idle_first {
            taken = self.poll_idle(sink, budget).0;
        }
        taken
    }
}
