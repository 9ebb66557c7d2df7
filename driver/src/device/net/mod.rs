//! Devices over the network. A sender asks all nodes that it does not share memory with who feeds the device of a name. Of the processes that are
//! attached to it one holds its port, and says that it does: its engine puts what comes into a lane of the device. When it dies the
//! sender asks again; another takes the port, finds in the lane how many messages of that sender are there, and the rest comes again.

mod far;
mod feed;
mod wire;

use super::Inner;
use doorbell_fabric::{Incarnation, NodeId, PRIORITIES, Payload, Priority, Verdict};
pub(super) use far::Far;
use far::Say;
use feed::Feed;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use wire::Kind;

/// At which priority it goes.
pub(crate) const PRIORITY: Priority = Priority::Low;
/// Questions who feeds a device that are kept until the engine looks at them.
const QUESTIONS_MAX: usize = 1024;
/// How long a sender that is dropped may take to bring all into the device.
const CLOSING: Duration = Duration::from_secs(5);

type Life = (NodeId, Incarnation);

/// A packet that is to go.
pub(crate) struct Word {
    pub to: Life,
    pub tag: u64,
    pub bytes: Vec<u8>,
}

/// What a node has to do with devices of other machines, and they with its own.
#[derive(Default)]
pub struct Devices {
    attached: Vec<Weak<Inner>>,
    feeds: Vec<Feed>,
    fars: Vec<Far>,
    questions: VecDeque<(Life, u32, Vec<u8>)>,
    /// What is to go, in this order for each node.
    pub(crate) out: VecDeque<Word>,
    streams: u32,
    room: Vec<u8>,
}

impl Devices {
    /// Whether a turn has something to do here.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        !(self.fars.is_empty() && self.feeds.is_empty() && self.out.is_empty() && self.questions.is_empty())
    }

    /// Whether something goes on that nobody rings for.
    pub fn is_active(&self) -> bool {
        !(self.out.is_empty() && self.questions.is_empty())
            || self.fars.iter().any(Far::is_active)
            || self.feeds.iter().any(Feed::is_hungry)
    }

    /// This process is attached to a device.
    pub(crate) fn enter(&mut self, inner: &Arc<Inner>) {
        self.attached.retain(|known| known.strong_count() > 0);
        self.attached.push(Arc::downgrade(inner));
    }

    /// Begins to look for a device of another machine.
    pub(crate) fn open(&mut self, name: &str) -> u32 {
        self.streams = self.streams.wrapping_add(1).max(1);
        self.fars.push(Far::new(self.streams, name));
        self.streams
    }

    /// A sender.
    pub(crate) fn far(&mut self, stream: u32) -> Option<&mut Far> {
        self.fars.iter_mut().find(|far| far.stream == stream)
    }

    /// A sender is dropped. It goes when all is in the device, or can't be.
    pub(crate) fn close(&mut self, stream: u32) {
        if let Some(far) = self.far(stream) {
            far.closing = Some(Instant::now());
        }
    }

    /// A packet came, by a lane from this life of a node.
    #[cold]
    pub fn take(&mut self, lane: usize, life: Incarnation, tag: u64, payload: Payload<'_>) -> Verdict {
        let from = (NodeId((lane / PRIORITIES) as u16), life);
        let Some((kind, stream)) = wire::parse(tag) else { return Verdict::Broken("a packet about a device that says nothing") };
        let far = self.fars.iter_mut().find(|far| far.stream == stream);
        match kind {
            Kind::Open if self.questions.len() >= QUESTIONS_MAX => return Verdict::Refused,
            Kind::Open => self.questions.push_back((from, stream, payload.to_vec())),
            Kind::First | Kind::Next => {
                // One that is fed no longer has been told so.
                if let Some(at) = self.fed(from, stream)
                    && !self.feeds[at].take(kind, payload)
                {
                    tracing::debug!(
                        node = from.0.0,
                        "a sender to a device is fed no longer: its lane or its packets are no good"
                    );
                    self.drop_feed(at);
                }
            }
            Kind::Ask => {
                if let Some(at) = self.fed(from, stream)
                    && let Some(bytes) = self.feeds[at].ask()
                {
                    self.out.push_back(Word { to: from, tag: wire::tag(Kind::Ack, stream), bytes });
                }
            }
            Kind::Close => {
                if let Some(at) = self.fed(from, stream) {
                    self.feeds.swap_remove(at);
                }
            }
            Kind::Opened => {
                let Some(said) = wire::read(&payload) else { return Verdict::Broken("a short answer about a device") };
                // Of a sender that is dropped, or that another feeds.
                if !far.is_some_and(|far| far.opened(from, said)) {
                    self.out.push_back(Word { to: from, tag: wire::tag(Kind::Close, stream), bytes: Vec::new() });
                }
            }
            Kind::Refused | Kind::Ack | Kind::Gone => {
                let Some(far) = far else { return Verdict::Taken };
                match (kind, wire::read(&payload), wire::read(&payload)) {
                    (Kind::Gone, _, _) => far.gone(from),
                    (Kind::Refused, Some([reason]), _) => far.refused(from, reason),
                    (Kind::Ack, _, Some(said)) => far.acknowledged(from, said),
                    _ => return Verdict::Broken("a short answer about a device"),
                }
            }
        }
        Verdict::Taken
    }

    fn fed(&self, client: Life, stream: u32) -> Option<usize> {
        self.feeds.iter().position(|feed| (feed.client, feed.stream) == (client, stream))
    }

    fn drop_feed(&mut self, at: usize) {
        let feed = self.feeds.swap_remove(at);
        // What is in the device need not come again.
        let ack = Word { to: feed.client, tag: wire::tag(Kind::Ack, feed.stream), bytes: feed.last_words() };
        self.out.push_back(ack);
        self.out.push_back(Word { to: feed.client, tag: wire::tag(Kind::Gone, feed.stream), bytes: Vec::new() });
    }

    /// Goes on with all, but for what goes out. `others` are the nodes that could feed a device.
    pub(crate) fn step(&mut self, others: impl Fn() -> Vec<Life>) -> usize {
        let mut work = 0;
        while let Some((client, stream, name)) = self.questions.pop_front() {
            work += 1;
            self.answer(client, stream, &name);
        }
        let mut at = 0;
        while at < self.feeds.len() {
            if !self.feeds[at].is_attached() {
                self.drop_feed(at);
                continue;
            }
            let feed = &mut self.feeds[at];
            if let Some(bytes) = feed.news() {
                let word = Word { to: feed.client, tag: wire::tag(Kind::Ack, feed.stream), bytes };
                self.out.push_back(word);
            }
            at += 1;
        }
        if self.fars.iter().any(Far::is_active) {
            work += self.step_fars(&others);
        }
        work
    }

    fn step_fars(&mut self, others: &impl Fn() -> Vec<Life>) -> usize {
        let (now, before) = (Instant::now(), self.out.len());
        let out = &mut self.out;
        self.fars.retain_mut(|far| {
            match far.say(now, others) {
                None => {}
                Some(Say::Open) => {
                    let tag = wire::tag(Kind::Open, far.stream);
                    out.extend(others().into_iter().map(|to| Word { to, tag, bytes: far.name.clone().into_bytes() }));
                }
                Some(Say::Word(kind, to)) => {
                    out.push_back(Word { to, tag: wire::tag(kind, far.stream), bytes: Vec::new() });
                }
            }
            let Some(since) = far.closing else { return true };
            if !(far.is_in() || far.has_failed() || now - since > CLOSING) {
                return true;
            }
            if !far.is_in() {
                tracing::warn!(device = far.name, "messages to a device were lost: nobody feeds it any more");
            }
            if let Some(to) = far.feeder() {
                out.push_back(Word { to, tag: wire::tag(Kind::Close, far.stream), bytes: Vec::new() });
            }
            far.end();
            false
        });
        self.out.len() - before
    }

    /// Somebody asks who feeds a device.
    fn answer(&mut self, client: Life, stream: u32, name: &[u8]) {
        let mut say = |kind, bytes| self.out.push_back(Word { to: client, tag: wire::tag(kind, stream), bytes });
        let attached = self.attached.iter().filter_map(Weak::upgrade).find(|inner| inner.segment.name().as_bytes() == name);
        let Some(inner) = attached.filter(|inner| inner.holds_port()) else {
            return say(Kind::Refused, wire::words(&[wire::NOT_HERE]));
        };
        if let Some(feed) = self.feeds.iter_mut().find(|feed| (feed.client, feed.stream) == (client, stream))
            && feed.is_of(&inner)
        {
            feed.reopen();
            return say(Kind::Opened, feed.welcome());
        }
        self.feeds.retain(|feed| (feed.client, feed.stream) != (client, stream));
        match Feed::open(&inner, client, stream) {
            Some(mut feed) => {
                say(Kind::Opened, feed.welcome());
                self.feeds.push(feed);
            }
            None => say(Kind::Refused, wire::words(&[wire::NO_LANE])),
        }
    }

    /// Senders with packets for a node, and whether they had room: gives them to `push` as long as it takes them. Returns how many it took.
    pub(crate) fn push(&mut self, to: Life, packet: usize, mut push: impl FnMut(u64, &[u8]) -> bool) -> usize {
        let (mut pushed, room) = (0, &mut self.room);
        for far in self.fars.iter_mut().filter(|far| far.feeder() == Some(to)) {
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
    pub(crate) fn wanted(&self) -> Vec<Life> {
        let mut to: Vec<Life> = self.fars.iter().filter(|far| !far.has_gone()).filter_map(Far::feeder).collect();
        to.dedup();
        to
    }

    /// A life of a node is over.
    pub(crate) fn fail(&mut self, node: NodeId, life: Incarnation) {
        let gone = (node, life);
        self.feeds.retain(|feed| feed.client != gone);
        self.fars.iter_mut().for_each(|far| far.gone(gone));
        self.out.retain(|word| word.to != gone);
        self.questions.retain(|question| question.0 != gone);
    }

    /// Ends all: the node leaves, or can do nothing any more.
    pub(crate) fn end(&mut self) {
        self.feeds.clear();
        self.fars.iter_mut().for_each(Far::end);
        self.fars.clear();
        self.out.clear();
    }
}
