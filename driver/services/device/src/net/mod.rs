//! Devices over the network. A sender asks all nodes that share no memory with it which of them serves the device of a name. Of
//! the processes attached to a device, one holds its port and serves it: its engine puts arriving messages into a lane of the
//! device. When it dies, the sender asks again. Another process takes the port and finds in the lane how many messages of that
//! sender arrived; the sender then repeats the rest.

mod far;
mod feed;
mod wire;

use super::attachment::Inner;
use doorbell_engine::kit::{Class, CloseReason, Gone, Install, Outbox, PacketKind, Payload, PeerId, Priority, Pushed};
use doorbell_engine::kit::{SendQueue, Service, Verdict, Wants, world};
use doorbell_shm::domain::{DeviceSegment, Membership};
pub(super) use far::Far;
use feed::Feed;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use wire::Kind;

/// The priority of all packets of devices.
pub(crate) const PRIORITY: Priority = Priority::Low;
/// How many answers may wait for room on the lane to one node. A node that gets none asks again.
const ANSWERS_MAX: usize = 256;
/// How many packets of any kind may wait for one node.
const WORDS_MAX: usize = 4096;
/// How long a dropped sender may take to get its messages into the device.
const CLOSING: Duration = Duration::from_secs(5);

/// Senders that were dropped inside a callback of the engine.
pub(crate) type Dropped = Arc<Mutex<Vec<u32>>>;

/// A device that this process is attached to. The engine keeps no strong reference to the attachment, since ending it may take
/// a while.
struct Attached {
    inner: Weak<Inner>,
    segment: Arc<DeviceSegment>,
    membership: Arc<Membership>,
}

impl Attached {
    fn is_there(&self) -> bool {
        self.inner.strong_count() > 0
    }

    /// Whether this process serves the device to the network. Takes the port if its holder is gone.
    fn holds_port(&self) -> bool {
        let (view, membership) = (self.segment.view(), &self.membership);
        let me = PeerId::from(&**membership).into();
        let is_its = match view.port() {
            Some(holder) if holder == me => true,
            Some(holder) if membership.is_living(holder.0, holder.1) => false,
            former => view.take_port(former, me),
        };
        if is_its && !self.is_there() {
            // The attachment ended meanwhile, and the port would have no holder.
            view.leave_port(me);
            return false;
        }
        is_its
    }
}

/// A node's part in devices over the network: its senders, and the senders that it serves.
#[derive(Default)]
pub struct Devices {
    attached: Vec<Attached>,
    feeds: Vec<Feed>,
    fars: Vec<Far>,
    dropped: Dropped,
    /// Packets to be sent, in this order for each node.
    pub(crate) out: SendQueue,
    streams: u32,
    room: Vec<u8>,
}

impl Devices {
    /// Releases the memory of devices that this process is no longer attached to.
    pub(crate) fn leave(&mut self) {
        self.attached.retain(Attached::is_there);
    }

    /// Adds a device that this process is attached to.
    pub(crate) fn enter(&mut self, inner: &Arc<Inner>) {
        self.attached.retain(Attached::is_there);
        let (segment, membership) = (inner.segment.clone(), inner.shared.membership_arc());
        self.attached.push(Attached { inner: Arc::downgrade(inner), segment, membership });
    }

    /// Begins to look for a device on another machine. Returns the stream's number, and the list for senders that are dropped
    /// inside a callback.
    pub(crate) fn open(&mut self, name: &str) -> (u32, Dropped) {
        self.streams = self.streams.wrapping_add(1).max(1);
        self.fars.push(Far::new(self.streams, name));
        (self.streams, self.dropped.clone())
    }

    /// A sender, by the number of its stream.
    pub(crate) fn far(&mut self, stream: u32) -> Option<&mut Far> {
        self.fars.iter_mut().find(|far| far.stream == stream)
    }

    /// A sender was dropped. Its stream ends when all messages are in the device, or can't get there.
    pub(crate) fn close(&mut self, stream: u32) {
        if let Some(far) = self.far(stream) {
            far.closing = Some(world::now());
        }
    }

    /// Tells a sender how many of its messages are in the device, if it is to know now.
    fn tell_news(&mut self, at: usize) {
        let feed = &mut self.feeds[at];
        let (client, stream) = (feed.client, feed.stream);
        if let Some(bytes) = feed.news() {
            self.say(client, Kind::Ack, stream, bytes);
        }
    }

    fn drop_feed(&mut self, at: usize) {
        let feed = self.feeds.swap_remove(at);
        // Messages that are in the device need not be repeated.
        self.say(feed.client, Kind::Ack, feed.stream, feed.last_words());
        self.say(feed.client, Kind::Gone, feed.stream, Vec::new());
    }

    /// Queues a packet. A packet of the same kind for the same stream replaces one that has not left yet, so that little is
    /// kept for a node that takes nothing.
    fn say(&mut self, to: PeerId, kind: Kind, stream: u32, bytes: Vec<u8>) {
        let tag = wire::tag(kind, stream);
        let (mut waiting, mut latest) = (0, None);
        for word in self.out.to_mut(to) {
            waiting += 1;
            if word.tag as u32 == stream {
                latest = Some(word);
            }
        }
        match latest {
            Some(word) if word.tag == tag => word.bytes = bytes,
            _ if waiting >= ANSWERS_MAX && matches!(kind, Kind::Opened | Kind::Refused | Kind::Open) => {}
            // More than all streams of an honest node need.
            _ if waiting >= WORDS_MAX => {}
            _ => self.out.push(to, tag, bytes),
        }
    }

    /// Does the work of a turn, except sending. `others` are the nodes that could serve a device.
    pub(crate) fn step(&mut self, others: impl Fn() -> Vec<PeerId>) -> usize {
        let dropped = std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        dropped.into_iter().for_each(|stream| self.close(stream));
        let mut at = 0;
        while at < self.feeds.len() {
            if !self.feeds[at].is_attached() {
                self.drop_feed(at);
                continue;
            }
            self.tell_news(at);
            at += 1;
        }
        if self.fars.iter().any(Far::is_active) { self.step_fars(&others) } else { 0 }
    }

    fn step_fars(&mut self, others: &impl Fn() -> Vec<PeerId>) -> usize {
        let (now, mut said, mut ended) = (world::now(), Vec::new(), 0);
        self.fars.retain_mut(|far| {
            let could = !far.has_failed();
            if far.asks_all(now, others) {
                said.extend(others().into_iter().map(|to| (to, Kind::Open, far.stream, far.name.as_bytes().to_vec())));
            } else if let Some(to) = far.asks() {
                said.push((to, Kind::Ask, far.stream, Vec::new()));
            }
            ended += usize::from(could && far.has_failed());
            let Some(since) = far.closing else { return true };
            if !(far.is_in() || far.has_failed() || now - since > CLOSING) {
                return true;
            }
            if !far.is_in() {
                tracing::warn!(device = far.name, "messages to a device were lost: no node serves it any more");
            }
            if let Some(to) = far.feeder {
                said.push((to, Kind::Close, far.stream, Vec::new()));
            }
            ended += 1;
            false
        });
        let work = said.len() + ended;
        said.into_iter().for_each(|(to, kind, stream, bytes)| self.say(to, kind, stream, bytes));
        work
    }

    /// Answers a node that asks for a device.
    fn answer(&mut self, client: PeerId, stream: u32, name: &[u8]) {
        let attached = self.attached.iter().find(|attached| attached.is_there() && attached.segment.name().as_bytes() == name);
        let Some(attached) = attached.filter(|attached| attached.holds_port()) else {
            return self.say(client, Kind::Refused, stream, wire::words(&[wire::NOT_HERE, 0]));
        };
        let former = self.feeds.iter().position(|feed| (feed.client, feed.stream) == (client, stream));
        let former = former.map(|at| self.feeds.swap_remove(at)).filter(|feed| feed.is_of(&attached.inner));
        let (inner, segment) = (attached.inner.clone(), attached.segment.clone());
        match former.or_else(|| Feed::open(inner, segment, &attached.membership, client, stream)) {
            Some(mut feed) => {
                let bytes = feed.welcome();
                self.feeds.push(feed);
                self.say(client, Kind::Opened, stream, bytes);
            }
            None => {
                let senders = attached.segment.geometry().senders as u64;
                self.say(client, Kind::Refused, stream, wire::words(&[wire::NO_LANE, senders]));
            }
        }
    }

    /// Gives packets of all senders to this node to `push`, until it takes no more. Returns how many it took.
    pub(crate) fn push(&mut self, to: PeerId, packet: usize, mut push: impl FnMut(u64, &[u8]) -> bool) -> usize {
        let (mut pushed, room) = (0, &mut self.room);
        for far in self.fars.iter_mut().filter(|far| far.feeder == Some(to)) {
            while let Some(tag) = far.next(packet, room) {
                if !push(tag, room) {
                    return pushed;
                }
                far.sent(room.len());
                pushed += 1;
            }
        }
        pushed
    }

    /// The nodes that senders have packets for.
    pub(crate) fn wanted(&self) -> Vec<PeerId> {
        let mut to: Vec<PeerId> = self.fars.iter().filter(|far| !far.has_gone()).filter_map(|far| far.feeder).collect();
        to.dedup();
        to
    }
}

inventory::submit!(Install { order: Devices::CLASS as u8, install: |shared| shared.register(Devices::default()) });

impl Class for Devices {
    const CLASS: PacketKind = PacketKind::Device;
}

impl Service for Devices {
    #[cold]
    fn receive(&mut self, from: PeerId, _: Priority, tag: u64, payload: Payload<'_>) -> Verdict {
        let Some((kind, stream)) = wire::parse(tag) else { return Verdict::Broken("a device packet with an unknown tag") };
        const SHORT: Verdict = Verdict::Broken("a device packet that is too short");
        let fed = self.feeds.iter().position(|feed| (feed.client, feed.stream) == (from, stream));
        let far = self.fars.iter_mut().find(|far| far.stream == stream);
        match (kind, fed, far) {
            // Answered at once: the packets behind it belong to the stream that it opens.
            (Kind::Open, ..) => self.answer(from, stream, &payload.to_vec()),
            (Kind::First | Kind::Next, Some(at), _) => {
                if !self.feeds[at].take(kind, payload) {
                    tracing::debug!(
                        node = from.node.0,
                        "a sender to a device is no longer served: its lane is damaged, or its packets break the rules"
                    );
                    self.drop_feed(at);
                }
            }
            (Kind::Ask, Some(at), _) => {
                self.feeds[at].asked = true;
                self.tell_news(at);
            }
            (Kind::Close, Some(at), _) => self.feeds.swap_remove(at).close(),
            // The sender was dropped, or another node serves it.
            (Kind::Opened, _, far) => {
                let Some(said) = wire::read(&payload) else { return SHORT };
                if !far.is_some_and(|far| far.opened(from, said)) {
                    self.say(from, Kind::Close, stream, Vec::new());
                }
            }
            (Kind::Gone, _, Some(far)) => far.gone(from),
            (Kind::Refused, _, Some(far)) => {
                let Some([reason, senders]) = wire::read(&payload) else { return SHORT };
                far.refused(from, reason, senders);
            }
            (Kind::Ack, _, Some(far)) => {
                let Some(said) = wire::read(&payload) else { return SHORT };
                far.acknowledged(from, said);
            }
            // A sender that is not served any more has been told so.
            (_, _, _) => {}
        }
        Verdict::Taken
    }

    fn progress(&mut self, out: &mut Outbox<'_>) -> usize {
        let mut work = self.step(|| out.apart()) + self.out.send(out, PRIORITY, |_| ());
        for to in self.wanted() {
            if let Ok(packet) = out.packet_bytes(to, PRIORITY) {
                work += self.push(to, packet, |tag, bytes| out.push(to, PRIORITY, tag, bytes) == Pushed::Done);
            }
        }
        work
    }

    fn wants(&self) -> Wants {
        if !self.out.is_empty() || self.fars.iter().any(Far::is_active) || self.feeds.iter().any(|feed| feed.asked) {
            Wants::Soon
        } else if !(self.fars.is_empty() && self.feeds.is_empty()) {
            Wants::Look
        } else {
            Wants::Nothing
        }
    }

    fn peer_gone(&mut self, gone: PeerId, _: Gone) {
        self.feeds.extract_if(.., |feed| feed.client == gone).for_each(Feed::close);
        self.fars.iter_mut().for_each(|far| far.gone(gone));
        self.out.retain(|packet| packet.to != gone);
    }

    fn close(&mut self, _: CloseReason) {
        self.feeds.clear();
        self.fars.clear();
        self.out.clear();
        self.attached.clear();
    }
}
