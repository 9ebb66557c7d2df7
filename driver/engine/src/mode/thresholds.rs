//! The policy that comes with Doorbell: limits for queues and memory, and measured lengths.

use super::means::{Kind, Mean, Means, Verdict};
use super::{Call, Decision, Dma, Fabric, LinkView, Links, Mode, Policy, Protocol, Question, Reason, Receipt};
use crate::tune::Tune;
use std::time::Duration;

/// Bits of a link's word: too many packets; too much memory in use; too many transfers; the latest chosen link of its kind; a
/// link that moves long messages.
const QUEUE: u64 = 1;
const MEMORY: u64 = 2;
const TRANSFERS: u64 = 4;
const LATEST: u64 = 8;
const AT_WORK: u64 = 16;

/// An RTS takes less room in a lane than a message of this length.
const LARGE: u64 = (32 << 10) + 1;
/// The thousandths of a shared-memory lane that may have been read without notice: a limit below would never be reached again.
const UNSEEN: u16 = 250;
/// Observations change the choice only within this factor of the length at which DMA becomes faster.
const NEAR: u64 = 4;
/// A shorter message has passed one link before a second one is worth its packets.
const STRIPE_LEAST: u64 = 1 << 20;
/// The order in which DMA protocols are tried if the driver advises none.
const DMAS: [Protocol; 3] = [Protocol::Both, Protocol::Get, Protocol::Put];

/// Follows a request unless the link has too much to do. Otherwise looks for another protocol, another link, another fabric.
///
/// A link has too much to do when more packets wait than `depth_high`, or more of its memory is in use than `occupancy_high`,
/// and the target has taken nothing for `stalled_after`. It stays so until both have fallen to `depth_low` and `occupancy_low`.
/// For DMA protocols, the number of incomplete transfers counts in the same way. The policy then chooses, only among modes that
/// do not have too much to do themselves:
///
/// 1. Another protocol on the same link that uses less of the scarce resource. A large message goes by DMA if a lane is full,
///    and through the lane if too many transfers are pending, provided that it fits. A put or get that the calling thread
///    copies is in no queue and stays as it is: every other mode would wait for the target.
/// 2. Another link of the same kind.
/// 3. Another fabric.
/// 4. The requested mode all the same.
///
/// A [long](Self::stripe_least) message that is put over a network goes over all its links at once, unless a link was requested
/// by number.
///
/// A message above 32 KiB also goes by DMA if another link to that node has several pending transfers, until that link has
/// none, but not below a length set with [`dma`](Self::dma). Both processors then have other bytes to copy, and DMA copies this
/// message only once.
///
/// If no link is requested by number, messages stay on the link that was used last until another has clearly less to do. If no
/// protocol is requested, the driver's advice is followed, with two exceptions: [tuned](Self::tuned) lengths, and a protocol
/// that was observed to be faster. Near the length at which DMA becomes faster (a quarter to four times), one message of 64
/// takes the other protocol as a trial.
///
/// Several nodes may share the policy. It judges each node by that node's own figures, and combines the observed durations of
/// all.
#[derive(Debug)]
pub struct Thresholds {
    depth: Band<u32>,
    transfers: Band<u32>,
    occupancy: Band<u16>,
    balance: u64,
    stalled: u32,
    strict: bool,
    stripe_least: u64,
    every: u32,
    /// By fabric, and whether it is for regions.
    dma: [[Option<Dma>; 2]; 2],
    means: Means,
}

/// A figure above `high` is too much, until it has fallen to `low`.
#[derive(Clone, Copy, Debug)]
struct Band<T> {
    high: T,
    low: T,
}

impl<T: Ord + Copy> Band<T> {
    /// The limit for a figure, which depends on whether it was too much before.
    fn in_force(&self, was: bool) -> T {
        if was { self.low.min(self.high) } else { self.high }
    }

    fn is_too_much(&self, was: bool, metric: T) -> bool {
        metric > self.in_force(was)
    }

    /// The limit that a figure exceeds that is too much.
    fn limit(&self, metric: T) -> T {
        self.in_force(metric <= self.high)
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        Self::new()
    }
}

impl Thresholds {
    /// A policy with the driver's own lengths, and with limits that a link reaches only if its target can't keep up.
    pub fn new() -> Self {
        Self {
            depth: Band { high: 768, low: 384 },
            transfers: Band { high: 16, low: 8 },
            occupancy: Band { high: 750, low: 400 },
            balance: 64 << 10,
            stalled: 50_000,
            strict: false,
            stripe_least: STRIPE_LEAST,
            every: 64,
            dma: [[None; 2]; 2],
            means: Means::new(),
        }
    }

    /// As [`new`](Self::new), with the lengths that `doorbell tune` measured on this machine, if it has run. Reads
    /// small files, so don't call it on the path of messages.
    pub fn tuned() -> Self {
        Tune::load().map_or_else(Self::new, |tune| Self::new().with(&tune))
    }

    /// Sets the lengths of a measurement.
    pub(super) fn with(self, tune: &Tune) -> Self {
        tune.found.iter().fold(self, |policy, found| policy.dma(found.fabric, found.in_region, found.dma))
    }

    /// Sets how many untaken packets a link may have; more are too many. The default is 768. For shared memory, at least a
    /// quarter of the lane is used, since the target may have taken so many without notice.
    pub fn depth_high(self, packets: u32) -> Self {
        Self { depth: Band { high: packets, ..self.depth }, ..self }
    }

    /// Sets the number of untaken packets at which a link no longer has too many. The default is 384; at most `depth_high`.
    pub fn depth_low(self, packets: u32) -> Self {
        Self { depth: Band { low: packets, ..self.depth }, ..self }
    }

    /// Sets how many incomplete DMA transfers a link may have; more are too many. The default is 16.
    pub fn transfers_high(self, transfers: u32) -> Self {
        Self { transfers: Band { high: transfers, ..self.transfers }, ..self }
    }

    /// Sets the number of incomplete transfers at which a link no longer has too many. The default is 8; at most
    /// `transfers_high`.
    pub fn transfers_low(self, transfers: u32) -> Self {
        Self { transfers: Band { low: transfers, ..self.transfers }, ..self }
    }

    /// Sets how full a link's memory may be, in thousandths; above it, the memory is too full. The default is 750 and the
    /// minimum 251, since a quarter of a lane may have been read without notice.
    pub fn occupancy_high(self, permille: u16) -> Self {
        Self { occupancy: Band { high: permille.clamp(UNSEEN + 1, 1000), ..self.occupancy }, ..self }
    }

    /// Sets the occupancy, in thousandths, at which memory is no longer too full. The default is 400, the minimum 251, and the
    /// maximum `occupancy_high`.
    pub fn occupancy_low(self, permille: u16) -> Self {
        Self { occupancy: Band { low: permille.clamp(UNSEEN + 1, 1000), ..self.occupancy }, ..self }
    }

    /// Sets when messages change to another link of the same kind: when the latest link has more than twice the waiting bytes
    /// of the other, plus this many. The default is 64 KiB.
    pub fn balance(self, bytes: u64) -> Self {
        Self { balance: bytes, ..self }
    }

    /// Sets how long the target must have taken nothing before packets, memory or transfers count as too much. The default is
    /// 50 ms. A full lane alone is normal while its reader works.
    pub fn stalled_after(self, silence: Duration) -> Self {
        Self { stalled: silence.as_micros().min(u32::MAX.into()) as u32, ..self }
    }

    /// If true, a request by name is always followed, whatever the load. The default is false.
    pub fn strict(self, strict: bool) -> Self {
        Self { strict, ..self }
    }

    /// Sets the length in bytes from which a message that is put over a network goes over all its links at once, in equal
    /// parts. The default is 1 MiB. A message with a requested link number uses only that link, and links that have too much to
    /// do carry no part.
    pub fn stripe_least(self, bytes: u64) -> Self {
        Self { stripe_least: bytes, ..self }
    }

    /// Sets how often a message takes the other protocol as a trial: one of this many. The default is 64; 0 means never. Trials
    /// need durations from [`Policy::observe`].
    pub fn trial_every(self, messages: u32) -> Self {
        Self { every: messages, ..self }
    }

    /// Sets the length from which messages go by DMA, in place of the driver's own length.
    pub fn dma(mut self, fabric: Fabric, in_region: bool, dma: Dma) -> Self {
        self.dma[fabric as usize][usize::from(in_region)] = Some(dma);
        self
    }

    /// The mean durations of the observed messages. Messages that a full link diverted are left out, because their duration
    /// tells nothing about their protocol.
    pub fn means(&self) -> Vec<Mean> {
        self.means.all()
    }

    /// The link's word, updated by its present figures.
    fn look(&self, link: &LinkView) -> u64 {
        let bit = |bit: u64, is_set: bool| if is_set { bit } else { 0 };
        let had = |bit: u64| link.word & bit != 0;
        let metrics = &link.metrics;
        let occupancy = self.occupancy.in_force(had(MEMORY));
        // The same comparison as `LinkMetrics::occupancy`, without its divisions.
        let is_above =
            |used: u64, all: u64| all != 0 && used.min(all).saturating_mul(1000) >= all.saturating_mul(u64::from(occupancy) + 1);
        let is_full = is_above(metrics.bytes, metrics.room) || is_above(metrics.depth.into(), metrics.places.into());
        // A slow reader takes what it can. Another link helps only if the reader has stopped.
        let may = |bit: u64| had(bit) || metrics.still >= self.stalled;
        (link.word & LATEST)
            | bit(QUEUE, may(QUEUE) && self.depth_of(link).is_too_much(had(QUEUE), metrics.depth))
            | bit(MEMORY, may(MEMORY) && is_full)
            | bit(AT_WORK, metrics.transfers > u32::from(!had(AT_WORK)))
            | bit(TRANSFERS, may(TRANSFERS) && self.transfers.is_too_much(had(TRANSFERS), metrics.transfers))
    }

    /// The limits for packets, raised above the number that may have been read without notice.
    fn depth_of(&self, link: &LinkView) -> Band<u32> {
        let unseen = if link.fabric == Fabric::Shm { link.metrics.places / 4 + 1 } else { 0 };
        Band { high: self.depth.high.max(unseen), low: self.depth.low.max(unseen) }
    }

    /// Why a protocol has too much to do on a link, if it has.
    fn crowded(&self, call: Call, link: &LinkView, protocol: Protocol) -> Option<Reason> {
        let metrics = &link.metrics;
        let had = |bit: u64| link.word & bit != 0;
        match protocol {
            Protocol::Transfer if had(QUEUE) => {
                Some(Reason::Queue { depth: metrics.depth, limit: self.depth_of(link).limit(metrics.depth) })
            }
            Protocol::Transfer if had(MEMORY) => {
                let occupancy = metrics.occupancy();
                Some(Reason::Occupancy { occupancy, limit: self.occupancy.limit(occupancy) })
            }
            Protocol::Transfer => None,
            // The calling thread copies, so no queue is involved. Using the lane would wait for the target's engine.
            _ if call != Call::Send && link.fabric == Fabric::Shm && protocol == usual(call) => None,
            _ if had(TRANSFERS) => {
                Some(Reason::Queue { depth: metrics.transfers, limit: self.transfers.limit(metrics.transfers) })
            }
            _ => None,
        }
    }

    /// The mode of a message on an idle link: the request, else by its length. `may_try`: the message may be a trial.
    fn plan(&self, question: &Question<'_>, link: &LinkView, may_try: bool) -> Option<Decision> {
        let is_default = question.asked == Default::default();
        let asked = |mode: Mode| Decision::new(mode, if is_default { Reason::Default } else { Reason::Requested });
        if let Some(mode) = question.asked.protocol.and_then(|protocol| link.mode(protocol)) {
            return Some(asked(mode));
        }
        let (transfer, dma) = (link.mode(Protocol::Transfer), dma_of(link));
        let (Some(transfer), Some(dma)) = (transfer, dma) else {
            let only = transfer.or(dma)?;
            let is_default = question.requested.protocol.is_none_or(|protocol| protocol == only.protocol);
            let why = Reason::Unavailable("the message can't take the call's protocol here");
            return Some(if is_default { asked(only) } else { Decision::new(only, why) });
        };
        let is_other_at_work =
            |other: &LinkView| (other.fabric, other.link) != (link.fabric, link.link) && other.word & AT_WORK != 0;
        let (usual, limit) = match (question.call, self.dma[link.fabric as usize][usize::from(question.in_region)]) {
            (Call::Send, Some(Dma::Never)) => (transfer, u64::MAX),
            (Call::Send, Some(Dma::From(limit))) if question.len < limit => (transfer, limit),
            (Call::Send, _)
                if question.len >= LARGE && link.fabric == Fabric::Shm && question.links.iter().any(is_other_at_work) =>
            {
                let is_default = question.requested.protocol.is_none_or(|protocol| protocol == dma.protocol);
                return Some(if is_default { asked(dma) } else { Decision::new(dma, Reason::AtWork) });
            }
            // Above its own length, the driver's advice depends on more than the length.
            (Call::Send, Some(Dma::From(limit))) if question.len < link.large => (dma, limit),
            (call, found) => {
                let limit = match (call, found) {
                    (Call::Send, Some(Dma::From(limit))) => limit,
                    _ => link.large,
                };
                (if link.advice == Protocol::Transfer { transfer } else { dma }, limit)
            }
        };
        let other = if usual == transfer { dma } else { transfer };
        let is_default = question.requested.protocol.is_none_or(|protocol| protocol == usual.protocol);
        let by_length = if is_default { asked(usual) } else { Decision::new(usual, Reason::Size { limit }) };
        let is_near = question.len >= limit / NEAR && question.len <= limit.saturating_mul(NEAR);
        if question.call != Call::Send || !is_near {
            return Some(by_length);
        }
        let kind = Kind { fabric: link.fabric, in_region: question.in_region, len: question.len };
        let every = if may_try && self.crowded(question.call, link, other.protocol).is_none() { self.every } else { 0 };
        Some(match self.means.weigh(&kind, usual.protocol, other.protocol, every) {
            Verdict::Usual => by_length,
            Verdict::Other { usual: asked, other: instead } => Decision::new(other, Reason::Latency { asked, instead }),
            Verdict::Trial { is_other } => Decision::new(if is_other { other } else { usual }, Reason::Trial { every }),
        })
    }

    /// Another mode for a message whose first choice has too much to do.
    fn relieve(&self, question: &mut Question<'_>, home: usize, mode: Mode) -> Option<Mode> {
        let may = |question: &Question<'_>, mode: Mode| !self.strict || question.asked.allows(mode);
        let link = &question.links[home];
        let other = if mode.protocol == Protocol::Transfer {
            dma_of(link).filter(|_| question.len >= LARGE)
        } else {
            link.mode(Protocol::Transfer).filter(|_| self.fits(link, question.len))
        };
        let call = question.call;
        let is_free = |link: &LinkView, mode: Mode| self.crowded(call, link, mode.protocol).is_none();
        if let Some(other) = other.filter(|other| is_free(link, *other) && may(question, *other)) {
            return Some(other);
        }
        let fabric = link.fabric;
        for is_same in [true, false] {
            let way = |question: &Question<'_>, at: usize| {
                let link = &question.links[at];
                let mode = self.plan(question, link, false)?.mode;
                let is_other = at != home && (link.fabric == fabric) == is_same;
                (is_other && is_free(link, mode) && may(question, mode)).then_some(mode)
            };
            if let Some(at) = self.pick(question, |question, at| way(question, at).is_some()) {
                take(question, at);
                return way(question, at);
            }
        }
        None
    }

    /// Whether a message fits into a link's memory at any occupancy that is permitted. It does not use the present occupancy,
    /// since the choice would change with every packet.
    fn fits(&self, link: &LinkView, len: u64) -> bool {
        let room = link.metrics.room;
        room == 0 || len <= room / 1000 * u64::from(1000 - self.occupancy.high.min(1000))
    }

    /// Picks among the links that `will_do`: the latest one, unless another has clearly less to do.
    fn pick(&self, question: &Question<'_>, will_do: impl Fn(&Question<'_>, usize) -> bool) -> Option<usize> {
        let links = &question.links;
        let (mut latest, mut least): (Option<usize>, Option<usize>) = (None, None);
        for at in (0..links.len()).filter(|at| will_do(question, *at)) {
            if links[at].word & LATEST != 0 && latest.is_none() {
                latest = Some(at);
            }
            if least.is_none_or(|least| links[at].metrics.bytes < links[least].metrics.bytes) {
                least = Some(at);
            }
        }
        let (latest, least) = (latest.or(least)?, least?);
        let [more, less] = [latest, least].map(|at| links[at].metrics.bytes);
        let is_clear = more > less.saturating_mul(2).saturating_add(self.balance);
        Some(if is_clear { least } else { latest })
    }

    /// Adds the other links of the network for a message that is long enough, if no link was requested.
    fn stripe(&self, question: &Question<'_>, decision: Decision) -> Decision {
        let Mode { fabric, link, protocol } = decision.mode;
        let is_long = question.call == Call::Send && question.len >= self.stripe_least;
        if !is_long || (fabric, protocol) != (Fabric::Udp, Protocol::Put) || question.asked.link.is_some() {
            return decision;
        }
        let can = |other: &&LinkView| {
            other.fabric == fabric && other.mode(protocol).is_some() && self.crowded(question.call, other, protocol).is_none()
        };
        let links: Links = question.links.iter().filter(can).map(|other| other.link).collect();
        decision.also_by(links.without(link))
    }

    /// The decision if the request is impossible.
    fn instead(&self, question: &Question<'_>) -> Decision {
        let allowed = question.links.iter().find(|link| link.is_allowed(&question.asked));
        let reason = Reason::Unavailable(match allowed {
            None => "there is no such link",
            Some(_) => "the message can't take this protocol here",
        });
        let possible = |link: &LinkView| self.plan(question, link, false).map(|plan| plan.mode);
        let free = |link: &LinkView| possible(link).filter(|mode| self.crowded(question.call, link, mode.protocol).is_none());
        let found = if self.strict {
            None
        } else {
            let allowed = || question.links.iter().filter(|link| link.is_allowed(&question.asked));
            allowed().find_map(free).or_else(|| question.links.iter().find_map(free))
        };
        let mode = found.or_else(|| if self.strict { None } else { question.links.iter().find_map(possible) });
        // An impossible decision, for which the driver returns an error.
        let refused = || Mode {
            fabric: question.asked.fabric.unwrap_or(question.links.first().map_or(Fabric::Shm, |link| link.fabric)),
            link: question.asked.link.unwrap_or(0),
            protocol: question.asked.protocol.unwrap_or(Protocol::Transfer),
        };
        Decision::new(mode.unwrap_or_else(refused), reason)
    }
}

impl Policy for Thresholds {
    fn is_settled(&self, link: &LinkView, len: u64) -> bool {
        let metrics = &link.metrics;
        let dma = self.dma[link.fabric as usize].iter().map(|found| match found {
            Some(Dma::From(limit)) => *limit,
            Some(Dma::Never) => u64::MAX,
            None => link.large,
        });
        // Nothing is too much. A link that is at least half full is examined by `choose`.
        link.word & (QUEUE | MEMORY | TRANSFERS) == 0 && metrics.still == 0 && dma.min().is_some_and(|least| len < least / NEAR)
    }

    fn choose(&self, question: &mut Question<'_>) -> Decision {
        for link in question.links.iter_mut() {
            link.word = self.look(link);
        }
        let can = |question: &Question<'_>, at: usize| {
            let link = &question.links[at];
            let protocol = question.asked.protocol.map_or(link.protocols != [false; 4], |protocol| link.mode(protocol).is_some());
            protocol && link.is_allowed(&question.asked)
        };
        let Some(first) = (0..question.links.len()).find(|at| can(question, *at)) else {
            return self.stripe(question, self.instead(question));
        };
        let mut home = first;
        let mut balance = None;
        if question.asked.link.is_none() {
            let fabric = question.links[first].fabric;
            let of_kind = |question: &Question<'_>, at: usize| question.links[at].fabric == fabric && can(question, at);
            let latest =
                (first..question.links.len()).find(|at| of_kind(question, *at) && question.links[*at].word & LATEST != 0);
            home = self.pick(question, of_kind).unwrap_or(first);
            let [bytes, instead] = [latest.unwrap_or(first), home].map(|at| question.links[at].metrics.bytes);
            balance = (bytes > instead).then_some(Reason::Balance { bytes, instead });
            take(question, home);
        }
        let Some(plan) = self.plan(question, &question.links[home], true) else {
            return self.stripe(question, self.instead(question));
        };
        let Some(reason) = self.crowded(question.call, &question.links[home], plan.mode.protocol) else {
            return self.stripe(question, Decision::new(plan.mode, balance.unwrap_or(plan.reason)));
        };
        let decision = match self.relieve(question, home, plan.mode) {
            Some(mode) => Decision::new(mode, reason),
            None => Decision::new(plan.mode, Reason::AllBusy),
        };
        self.stripe(question, decision)
    }

    fn observe(&self, receipt: &Receipt, took: Duration) {
        let is_telling =
            !matches!(receipt.reason, Reason::Queue { .. } | Reason::Occupancy { .. } | Reason::AtWork | Reason::AllBusy);
        if receipt.call == Call::Send && is_telling {
            // The duration belongs to the decided mode, even if the target changed it: the next decision needs the cost of
            // deciding so.
            let kind = Kind { fabric: receipt.decided.fabric, in_region: receipt.in_region, len: receipt.len };
            self.means.add(&kind, receipt.decided.protocol, took);
        }
    }
}

/// The default protocol of a call.
fn usual(call: Call) -> Protocol {
    match call {
        Call::Send => Protocol::Transfer,
        Call::Put => Protocol::Put,
        Call::Get => Protocol::Get,
    }
}

/// The DMA protocol that a message could take on a link: the driver's advice, else the first possible one.
fn dma_of(link: &LinkView) -> Option<Mode> {
    let advised = Some(link.advice).filter(|advice| *advice != Protocol::Transfer).and_then(|advice| link.mode(advice));
    advised.or_else(|| DMAS.into_iter().find_map(|protocol| link.mode(protocol)))
}

/// Marks a link as the latest of its kind.
fn take(question: &mut Question<'_>, taken: usize) {
    let fabric = question.links[taken].fabric;
    for (at, link) in question.links.iter_mut().enumerate().filter(|(_, link)| link.fabric == fabric) {
        link.word = if at == taken { link.word | LATEST } else { link.word & !LATEST };
    }
}

#[cfg(test)]
mod tests;
