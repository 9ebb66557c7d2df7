//! The observations and decisions of a policy over time. A policy around it keeps notes, in memory that is allocated beforehand.

use crate::clock::now;
use doorbell::mode::{Decision, LINKS_MAX, LinkView, Mode, Policy, Protocol, Question, Reason, Receipt};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Spans of time of a timeline. When all are used, each two become one.
pub const SPANS: usize = 128;
/// The first width of a span, in nanoseconds.
const NARROWEST: u64 = 100_000;
/// The most changes that are kept.
const CHANGES: usize = 4096;
/// The most kinds of messages whose last decision is kept.
const KINDS: usize = 256;
const PROTOCOLS: usize = Protocol::ALL.len();

/// A link in a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// How often the policy was asked while this link was up.
    pub asked: u64,
    /// The most packets that waited.
    pub depth: u32,
    /// The sum over all questions.
    pub depth_sum: u64,
    /// The largest part of its memory in use, in thousandths.
    pub occupancy: u16,
    /// The sum over all questions.
    pub occupancy_sum: u64,
    /// The most DMA transfers under way.
    pub transfers: u32,
}

impl Seen {
    fn add(&mut self, link: &LinkView) {
        let (metrics, occupancy) = (&link.metrics, link.metrics.occupancy());
        self.merge(&Self {
            asked: 1,
            depth: metrics.depth,
            depth_sum: metrics.depth.into(),
            occupancy,
            occupancy_sum: occupancy.into(),
            transfers: metrics.transfers,
        });
    }

    fn merge(&mut self, other: &Self) {
        self.asked += other.asked;
        self.depth = self.depth.max(other.depth);
        self.depth_sum += other.depth_sum;
        self.occupancy = self.occupancy.max(other.occupancy);
        self.occupancy_sum += other.occupancy_sum;
        self.transfers = self.transfers.max(other.transfers);
    }
}

/// A span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The links.
    pub links: [Seen; LINKS_MAX],
    /// Messages by each link and protocol.
    pub modes: [[u64; PROTOCOLS]; LINKS_MAX],
}

impl Span {
    fn merge(&mut self, other: &Self) {
        self.links.iter_mut().zip(&other.links).for_each(|(into, from)| into.merge(from));
        for (into, from) in self.modes.iter_mut().flatten().zip(other.modes.iter().flatten()) {
            *into += from;
        }
    }
}

/// A message that took another mode than the last one of its kind: of alike length, and with the same request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// When it was sent, in nanoseconds from the beginning.
    pub at: u64,
    /// The length of the message.
    pub len: u64,
    /// The requested mode.
    pub asked: String,
    /// The decided mode.
    pub used: String,
    /// The reason, with its figures.
    pub why: String,
}

/// The whole timeline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// The width of a span in nanoseconds.
    pub width: u64,
    /// The links, in the order of the spans' figures.
    pub links: Vec<String>,
    /// The spans, without empty ones at the end.
    pub spans: Vec<Span>,
    /// The changes.
    pub changes: Vec<Change>,
    /// The number of changes, also of those that were not kept.
    pub changed: u64,
    /// Messages that tried another mode, which are no changes.
    pub trials: u64,
}

/// A change, before it becomes text.
#[derive(Clone, Copy)]
struct Raw {
    at: u64,
    len: u64,
    asked: doorbell::mode::ModeRequest,
    decision: Decision,
}

/// A kind of messages, and the decision for the last one.
#[derive(Clone, Copy)]
struct Last {
    asked: doorbell::mode::ModeRequest,
    class: u32,
    mode: Mode,
    why: std::mem::Discriminant<Reason>,
}

struct Notes {
    /// When the timeline began; 0 before that.
    start: u64,
    /// Whether the load is being sent now.
    is_on: bool,
    width: u64,
    links: Vec<(doorbell::mode::Fabric, u8)>,
    spans: Vec<Span>,
    changes: Vec<Raw>,
    changed: u64,
    trials: u64,
    kinds: Vec<Last>,
}

/// A policy, and the notes about it.
pub struct Watch {
    policy: Box<dyn Policy>,
    notes: Mutex<Notes>,
}

/// A watched policy, for a node.
#[derive(Debug)]
pub struct Watched(pub Arc<Watch>);

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Watch {
    /// A watch around a policy.
    pub fn new(policy: Box<dyn Policy>) -> Arc<Self> {
        let notes = Notes {
            start: 0,
            is_on: false,
            width: NARROWEST,
            links: Vec::with_capacity(LINKS_MAX),
            spans: vec![Span::default(); SPANS],
            changes: Vec::with_capacity(CHANGES),
            changed: 0,
            trials: 0,
            kinds: Vec::with_capacity(KINDS),
        };
        Arc::new(Self { policy, notes: Mutex::new(notes) })
    }

    /// The load is sent from this moment on. The first call starts the clock.
    pub fn go_on(&self, moment: u64) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.is_on = true;
        if notes.start == 0 {
            notes.start = moment;
        }
    }

    /// The load is not sent from now on.
    pub fn pause(&self) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).is_on = false;
    }

    /// The timeline so far.
    pub fn timeline(&self) -> Timeline {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let used = notes.spans.iter().rposition(|span| *span != Span::default()).map_or(0, |last| last + 1);
        let told = |raw: &Raw| Change {
            at: raw.at,
            len: raw.len,
            asked: raw.asked.to_string(),
            used: raw.decision.mode.to_string(),
            why: raw.decision.reason.to_string(),
        };
        Timeline {
            width: notes.width,
            links: notes.links.iter().map(|(fabric, link)| format!("{fabric}/{link}")).collect(),
            spans: notes.spans[..used].to_vec(),
            changes: notes.changes.iter().map(told).collect(),
            changed: notes.changed,
            trials: notes.trials,
        }
    }
}

impl Notes {
    fn note(&mut self, at: u64, question: &Question<'_>, decision: &Decision) {
        let mut span = (at / self.width) as usize;
        while span >= SPANS {
            self.halve();
            span = (at / self.width) as usize;
        }
        for link in question.links.iter() {
            let place = self.place(link.fabric, link.link);
            self.spans[span].links[place].add(link);
        }
        let place = self.place(decision.mode.fabric, decision.mode.link);
        self.spans[span].modes[place][decision.mode.protocol as usize] += 1;
        self.compare(at, question, decision);
    }

    /// The index of a link. A link beyond the limit counts as the last one.
    fn place(&mut self, fabric: doorbell::mode::Fabric, link: u8) -> usize {
        let known = self.links.iter().position(|known| *known == (fabric, link));
        known.unwrap_or_else(|| {
            if self.links.len() < LINKS_MAX {
                self.links.push((fabric, link));
            }
            self.links.len() - 1
        })
    }

    /// Joins each two spans into one.
    fn halve(&mut self) {
        for at in 0..SPANS / 2 {
            let mut both = self.spans[2 * at];
            both.merge(&self.spans[2 * at + 1]);
            self.spans[at] = both;
        }
        self.spans[SPANS / 2..].fill(Span::default());
        self.width *= 2;
    }

    fn compare(&mut self, at: u64, question: &Question<'_>, decision: &Decision) {
        if matches!(decision.reason, Reason::Trial { .. }) {
            self.trials += 1;
            return;
        }
        let class = question.len.max(1).ilog2();
        let (mode, why) = (decision.mode, std::mem::discriminant(&decision.reason));
        let new = Last { asked: question.asked, class, mode, why };
        match self.kinds.iter().position(|last| last.class == class && last.asked == question.asked) {
            Some(at) if self.kinds[at].mode == mode && self.kinds[at].why == why => return,
            Some(at) => self.kinds[at] = new,
            None if self.kinds.len() < KINDS => self.kinds.push(new),
            None => return,
        }
        self.changed += 1;
        if self.changes.len() < CHANGES {
            self.changes.push(Raw { at, len: question.len, asked: question.asked, decision: *decision });
        }
    }
}

impl Policy for Watched {
    fn is_settled(&self, link: &LinkView, len: u64) -> bool {
        self.0.policy.is_settled(link, len)
    }

    fn choose(&self, question: &mut Question<'_>) -> Decision {
        let decision = self.0.policy.choose(question);
        let mut notes = self.0.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.is_on {
            let at = now().saturating_sub(notes.start);
            notes.note(at, question, &decision);
        }
        decision
    }

    fn observe(&self, receipt: &Receipt, took: Duration) {
        self.0.policy.observe(receipt, took);
    }
}

/// Honours every request, as without a policy.
#[derive(Debug)]
pub struct AsAsked;

impl Policy for AsAsked {
    fn choose(&self, question: &mut Question<'_>) -> Decision {
        question.honoured().unwrap_or_else(|| {
            let link = &question.links[0];
            let mode = Mode { fabric: link.fabric, link: link.link, protocol: link.advice };
            Decision::new(mode, Reason::Unavailable("it is no way for this message"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell::NodeId;
    use doorbell::mode::{Call, Fabric, LinkMetrics, ModeRequest};

    fn link(depth: u32) -> LinkView {
        LinkView {
            fabric: Fabric::Shm,
            link: 0,
            protocols: [true; 4],
            advice: Protocol::Transfer,
            large: 1 << 15,
            metrics: LinkMetrics { depth, places: 100, ..LinkMetrics::default() },
            word: 0,
        }
    }

    fn asked(notes: &mut Notes, at: u64, depth: u32, len: u64, reason: Reason) {
        let mut links = [link(depth)];
        let asked = ModeRequest::default();
        let question =
            Question { to: NodeId(1), call: Call::Send, len, in_region: false, asked, requested: asked, links: &mut links };
        let mode = Mode { fabric: Fabric::Shm, link: 0, protocol: Protocol::Transfer };
        notes.note(at, &question, &Decision::new(mode, reason));
    }

    #[test]
    fn spans_become_wider_and_nothing_is_lost() {
        let watch = Watch::new(Box::new(AsAsked));
        {
            let mut notes = watch.notes.lock().unwrap();
            for at in 0..1000 {
                asked(&mut notes, at * NARROWEST, at as u32 % 100, 64, Reason::Default);
            }
        }
        let found = watch.timeline();
        assert_eq!((found.width, found.spans.len()), (8 * NARROWEST, 125));
        let sum = |of: fn(&Span) -> u64| found.spans.iter().map(of).sum::<u64>();
        assert_eq!((sum(|span| span.links[0].asked), sum(|span| span.modes[0][0])), (1000, 1000));
        assert_eq!(found.spans[0].links[0].depth, 7);
        assert_eq!((found.spans[0].links[0].depth_sum, found.spans[0].links[0].occupancy_sum), (28, 280));
    }

    #[test]
    fn what_changes_is_told_once_and_a_trial_is_no_change() {
        let watch = Watch::new(Box::new(AsAsked));
        let full = Reason::Queue { depth: 7, limit: 5 };
        {
            let mut notes = watch.notes.lock().unwrap();
            let reasons = [Reason::Default, Reason::Default, Reason::Trial { every: 64 }, full, full, Reason::Default];
            for (at, reason) in reasons.into_iter().enumerate() {
                asked(&mut notes, at as u64, 7, 64, reason);
            }
            // Of another length.
            asked(&mut notes, 9, 7, 1 << 20, full);
        }
        let found = watch.timeline();
        let changes: Vec<_> = found.changes.iter().map(|change| (change.at, &change.why[..])).collect();
        let queue = "queue: 7 wait, 5 may";
        assert_eq!(changes, [(0, "the call's default"), (3, queue), (5, "the call's default"), (9, queue)]);
        assert_eq!((found.changed, found.trials), (4, 1));
    }
}
