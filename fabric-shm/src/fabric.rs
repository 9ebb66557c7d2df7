//! All lanes of one node: the shared-memory [`Fabric`].
//!
//! A look costs about the same with one peer as with sixty: lanes that were busy lately are looked at every time, the
//! others a few at a time, in turn.

use crate::board::LatencyHistogram;
use crate::domain::{Membership, PeerInbox};
use crate::doorbell::Bell;
use crate::error::ShmError;
use crate::faults::Faults;
use crate::lane::{Consumer, FirstWord, Peek, Producer, RawMemory, Seen, age};
use crate::layout::{FLAG_FENCE, block_offset};
use doorbell_fabric::sync::Barriers;
use doorbell_fabric::{
    Envelope, Fabric, Incarnation, Link, NodeId, PRIORITIES, PacketHead, PacketKind, Payload, Priority, Push, Sink, Verdict,
};
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
/// Looks for the next packet of a message before its reader lets others in: some microseconds.
const REST_LOOKS: u32 = 256;
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
    /// Somebody truncated this node's inbox, and that was told.
    severed: bool,
    /// What else of this node was truncated, and told.
    truncated: Option<&'static str>,
    changes: VecDeque<Change>,
    faults: Option<Faults>,
    latencies: Arc<LatencyHistogram>,
    membership: Arc<Membership>,
}

struct Lane {
    consumer: Consumer<RawMemory>,
    source: NodeId,
    incarnation: Incarnation,
    priority: Priority,
    /// The node that produces here.
    producer: Option<Arc<PeerInbox>>,
    idle_looks: u32,
    busy: bool,
    /// Read no further.
    damaged: bool,
    /// It is damaged for what its node did elsewhere: its life may never have claimed it.
    by_association: bool,
    latencies: Arc<LatencyHistogram>,
}

/// The lane that was busy last, for one packet.
pub struct Hot<'a> {
    lane: &'a mut Lane,
    index: usize,
}

impl Hot<'_> {
    /// Which lane: node times priorities, plus priority.
    #[inline(always)]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Which life of which node sends here.
    #[inline(always)]
    pub fn source(&self) -> (NodeId, Incarnation) {
        (self.lane.source, self.lane.incarnation)
    }

    /// Looks up to `rounds` times for a packet.
    #[inline(always)]
    pub fn watch(&self, rounds: u32) -> Option<FirstWord> {
        let expected = self.lane.consumer.expected_line();
        self.lane.consumer.watch(rounds, || {
            if let Some(line) = expected {
                crate::hint::prefetch(line);
            }
            doorbell_fabric::sync::spin_hint();
        })
    }

    /// Takes the first packet if it is a whole message that `buf` holds, with this number, no time stamp, and an accepted tag.
    /// What only other messages need is left out: this is the way of most.
    #[inline(always)]
    pub fn take_whole(
        &mut self,
        first: FirstWord,
        sequence: u32,
        accepts: impl FnOnce(u64) -> bool,
        buf: &mut [u8],
    ) -> Option<Envelope> {
        let len = first.len();
        let consumer = &mut self.lane.consumer;
        if !first.is_whole() || len > buf.len() || consumer.unstamped_sequence() != Some(sequence) {
            return None;
        }
        let tag = consumer.tag();
        let place = if accepts(tag) { consumer.place(len, false)? } else { return None };
        // SAFETY: its place, and nothing is taken before.
        unsafe { consumer.payload_at(place, len) }.copy_to(buf);
        if consumer.take_from(place, len) {
            self.lane.ring_producer();
        }
        let Lane { source, incarnation, priority, .. } = *self.lane;
        Some(Envelope { source, incarnation, tag, len, sequence, priority })
    }

    /// The first packet, whose first word was seen.
    #[inline(always)]
    pub fn examine(&self, first: FirstWord) -> Option<Seen> {
        match self.lane.consumer.examine(first) {
            Peek::Packet(seen) => Some(seen),
            _ => None,
        }
    }

    /// What it says of itself.
    #[inline(always)]
    pub fn envelope(&self, seen: &Seen) -> Envelope {
        Envelope {
            source: self.lane.source,
            incarnation: self.lane.incarnation,
            tag: seen.head.tag,
            len: usize::try_from(seen.head.total).unwrap_or(usize::MAX),
            sequence: seen.head.sequence,
            priority: self.lane.priority,
        }
    }

    /// Its payload, in place.
    #[inline(always)]
    pub fn payload(&self, seen: &Seen) -> Payload<'_> {
        // SAFETY: `seen` comes from `first`, and nothing is taken while `self` is borrowed.
        unsafe { self.lane.consumer.payload(seen) }
    }

    /// Takes it: copies as much of it as `buf` holds, and gives its place back.
    #[inline(always)]
    pub fn take_into(&mut self, seen: &Seen, buf: &mut [u8]) {
        if seen.stamp != 0 {
            self.lane.sample(age(seen.stamp));
        }
        // SAFETY: `seen` comes from `first`, and nothing was taken since, as this is the only handle to the lane.
        unsafe { self.lane.consumer.payload(seen) }.copy_to(buf);
        self.lane.take(seen);
    }

    /// Takes the packets that follow a first one, for as long as they keep coming. Returns how much of the message there
    /// is then.
    pub fn take_rest(&mut self, mut received: usize, total: usize, buf: &mut [u8]) -> usize {
        let mut looks = 0;
        while received < total && looks < REST_LOOKS {
            match self.watch(1).and_then(|first| self.examine(first)) {
                Some(seen) if seen.head.kind == PacketKind::Next && seen.len > 0 && seen.len <= total - received => {
                    self.take_into(&seen, &mut buf[received..]);
                    received += seen.len;
                    looks = 0;
                }
                // Something else: the long way will deal with it.
                Some(_) => break,
                None => {
                    doorbell_fabric::sync::spin_hint();
                    looks += 1;
                }
            }
        }
        received
    }
}

impl Lane {
    #[inline(always)]
    fn take(&mut self, seen: &Seen) {
        if self.consumer.take(seen) {
            self.ring_producer();
        }
    }

    /// A packet with a time stamp was taken.
    #[cold]
    fn sample(&self, age: Option<u32>) {
        age.into_iter().for_each(|ns| self.latencies.add(ns));
    }

    /// The producer waits for room, and may be asleep.
    #[cold]
    fn ring_producer(&self) {
        if let Some(inbox) = &self.producer {
            inbox.ring();
        }
    }

    fn reset(&mut self) {
        self.consumer.reset();
        self.producer = None;
        self.damaged = false;
    }

    #[inline(always)]
    fn is_news(&self) -> bool {
        self.consumer.is_news() && !self.damaged && self.is_of_known_life()
    }

    /// Whether what lies here comes from the life that we take it for. A later one may have claimed the lane already, if the
    /// earlier one never did. Only the first packet can tell: after that the lane stays claimed until it is reset.
    #[inline(always)]
    fn is_of_known_life(&self) -> bool {
        self.consumer.taken() != 0 || self.consumer.owner() == self.incarnation.0 as u64
    }
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
                latencies: latencies.clone(),
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

    /// Reads nothing more of what the present life of a node publishes: it broke the rules.
    pub fn close_lanes(&mut self, node: NodeId) {
        if self.slots.get(node.index()).is_some_and(|slot| !matches!(slot, Slot::Vacant)) {
            for lane in self.lanes[node.index() * PRIORITIES..][..PRIORITIES].iter_mut() {
                lane.by_association |= !lane.damaged;
                lane.damaged = true;
            }
        }
    }

    /// Whether everything that this life of a node published has been delivered, and no more can come.
    pub fn drained(&self, node: NodeId, incarnation: Incarnation) -> bool {
        match self.slots.get(node.index()) {
            Some(Slot::Live(inbox)) => inbox.incarnation() != incarnation,
            Some(Slot::Closing(closing)) => *closing != incarnation,
            _ => true,
        }
    }

    /// Looks at the directory if it changed. A load where it did not.
    #[inline]
    pub fn glance(&mut self) {
        if self.membership.generation() != self.generation {
            self.read_directory();
        }
    }

    /// Asks of every known peer whether it lives: some 500 ns each.
    pub fn check_peers(&mut self) {
        self.glance();
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
        for index in 0..self.slots.len() {
            let Slot::Live(inbox) = &self.slots[index] else { continue };
            let inbox = inbox.clone();
            if inbox.is_cut() && !self.lanes[index * PRIORITIES].damaged && inbox.id() != self.membership.id() {
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

    #[cold]
    fn read_directory(&mut self) {
        // The generation first: what changes while we read brings us here again.
        self.generation = self.membership.generation();
        let members = self.membership.members();
        // Whoever we know and the directory no longer names may have left: ask the kernel, not the directory.
        if (0..self.slots.len()).any(|index| match &self.slots[index] {
            Slot::Live(inbox) => !members.iter().any(|m| m.id.index() == index && m.incarnation == inbox.incarnation()),
            _ => false,
        }) {
            self.check_peers();
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
                // It died before we looked. It is told of once, though it stays listed until the next node joins.
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
            lane.incarnation = inbox.incarnation();
            lane.producer = Some(inbox.clone());
        }
        self.changes.push_back(Change::Joined(inbox.id(), inbox.incarnation()));
        self.told[index] = inbox.incarnation();
        self.slots[index] = Slot::Live(inbox);
    }

    /// A life that came, sent and went between two looks is heard all the same: what it published lies in its lanes.
    fn close_unseen(&mut self, index: usize) {
        let lanes = &self.lanes[index * PRIORITIES..][..PRIORITIES];
        let owners: [u64; PRIORITIES] = std::array::from_fn(|priority| lanes[priority].consumer.owner());
        if owners == [0; PRIORITIES] {
            return;
        }
        // After the owners: whoever has claimed a lane is listed by then, or has gone. One lane may be the next life's already
        // while another still holds what the former sent.
        let listed = self.membership.member(NodeId(index as u16)).map(|member| member.incarnation.0 as u64);
        let Some(owner) = owners.into_iter().find(|owner| *owner != 0 && Some(*owner) != listed) else { return };
        match u32::try_from(owner) {
            Ok(owner) => self.close_slot(index, Incarnation(owner), false),
            // Nobody of ours writes that.
            Err(_) => self.lanes[index * PRIORITIES..][..PRIORITIES].iter_mut().for_each(Lane::reset),
        }
    }

    /// A life that nobody here has seen is gone, and its lanes are to be read.
    fn close_slot(&mut self, index: usize, incarnation: Incarnation, died: bool) {
        let node = NodeId(index as u16);
        for lane in &mut self.lanes[index * PRIORITIES..][..PRIORITIES] {
            lane.incarnation = incarnation;
        }
        self.changes.push_back(Change::Joined(node, incarnation));
        self.changes.push_back(if died { Change::Died(node, incarnation) } else { Change::Left(node, incarnation) });
        self.told[index] = incarnation;
        self.slots[index] = Slot::Closing(incarnation);
        self.closing += 1;
    }

    /// Makes the list of lanes to look at anew. Small and rare.
    fn reopen(&mut self) {
        self.open.clear();
        for (index, slot) in self.slots.iter().enumerate() {
            // What is in one's own lanes is nobody's any more once they were cut off.
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

    /// Frees the lanes of nodes that are gone once all they published was taken.
    #[cold]
    fn close_drained(&mut self) {
        if self.closing == 0 {
            return;
        }
        let mut changed = false;
        for index in 0..self.slots.len() {
            let Slot::Closing(incarnation) = self.slots[index] else { continue };
            let lanes = &mut self.lanes[index * PRIORITIES..][..PRIORITIES];
            let is_drained =
                |lane: &Lane| lane.damaged || !lane.is_of_known_life() || !matches!(lane.consumer.peek(), Peek::Packet(_));
            if lanes.iter().all(is_drained) {
                for lane in lanes {
                    // A lane that this life never claimed may by now be claimed by the next.
                    let was_its = lane.consumer.taken() != 0 || lane.consumer.owner() == incarnation.0 as u64;
                    if was_its || (lane.damaged && !lane.by_association) {
                        lane.reset();
                    }
                    (lane.damaged, lane.by_association) = (false, false);
                    lane.producer = None;
                }
                self.slots[index] = Slot::Vacant;
                self.closing -= 1;
                self.changes.push_back(Change::Drained(NodeId(index as u16), incarnation));
                changed = true;
            }
        }
        if changed {
            // The next life may be listed already.
            self.generation = self.generation.wrapping_sub(1);
            self.reopen();
        }
    }

    /// Takes up to `budget` packets from one lane.
    #[inline(always)]
    fn poll_lane<S: Sink>(&mut self, index: usize, sink: &mut S, budget: usize) -> (usize, bool) {
        let lane = &mut self.lanes[index];
        let mut taken = 0;
        if !lane.is_of_known_life() {
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
        let is_open = !lane.damaged && !lane.consumer.refusing() && lane.consumer.taken() != 0;
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
        Ok(ShmLink { producer, bell: inbox.header(), fenced, faults, last_len: 0, _inbox: inbox })
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

/// The sending half of one lane.
pub struct ShmLink {
    producer: Producer<RawMemory>,
    /// The header page of the target's inbox.
    bell: *mut u8,
    fenced: bool,
    faults: Option<Faults>,
    last_len: usize,
    _inbox: Arc<PeerInbox>,
}

// SAFETY: `bell` points into the mapping that `_inbox` keeps; it is reached through atomics only.
unsafe impl Send for ShmLink {}

impl ShmLink {
    /// The longest message that finds room in an idle lane whatever came before it.
    #[inline]
    pub fn most_at_once(&self) -> usize {
        self.producer.data_bytes() / 2
    }

    /// Whether a message of `len` bytes in packets of `packet` bytes fits now, as a whole.
    pub fn has_room(&mut self, len: usize, packet: usize) -> bool {
        self.producer.has_room(len, packet)
    }

    /// Says whether messages wait for room on this link: see [`Producer::wait_for_room`].
    #[inline]
    pub fn wait_for_room(&mut self, waits: bool) {
        self.producer.wait_for_room(waits);
    }

    /// Makes the processor own the lines that a message like the last would fill, while the caller waits for an answer.
    #[inline]
    pub fn own_ahead(&self) {
        self.producer.own_ahead(self.last_len);
    }
}

impl ShmLink {
    /// A whole message, if there is room as far as is known. False if not: then push it.
    ///
    /// # Safety
    /// It is at most as long as [`packet_bytes`](Link::packet_bytes).
    #[inline(always)]
    pub unsafe fn push_whole(&mut self, tag: u64, sequence: u32, bytes: &[u8]) -> bool {
        // SAFETY: a slice; its length: caller.
        let done = self.faults.is_none() && unsafe { self.producer.push_whole(tag, sequence, bytes.as_ptr(), bytes.len()) };
        if done {
            self.last_len = bytes.len();
            // SAFETY: `_inbox` keeps the header page mapped.
            unsafe { Bell::at(self.bell) }.ring(self.fenced);
        }
        done
    }
}

impl Link for ShmLink {
    #[inline]
    unsafe fn push(&mut self, head: &PacketHead, bytes: *const u8, len: usize) -> Push {
        // The producer keeps room for it, and whoever gives up does not come again.
        if head.kind != PacketKind::GivenUp
            && let Some(faults) = &mut self.faults
            && faults.full()
        {
            return Push::Full;
        }
        // SAFETY: caller.
        let push = unsafe { self.producer.push(head, bytes, len) };
        if push == Push::Done {
            self.last_len = len;
            // SAFETY: `_inbox` keeps the header page mapped.
            unsafe { Bell::at(self.bell) }.ring(self.fenced);
        }
        push
    }

    #[inline]
    fn packet_bytes(&self) -> usize {
        self.producer.packet_bytes()
    }

    #[inline]
    fn refused(&self) -> bool {
        self.producer.refused()
    }
}
