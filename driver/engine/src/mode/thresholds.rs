//! The policy that there is: thresholds for queues and for shared memory, and what was measured.

use super::means::{Kind, Mean, Means, Verdict};
use super::{Call, Decision, Dma, Fabric, LinkView, Links, Mode, Policy, Protocol, Question, Reason, Receipt, Tune};
use std::time::Duration;

/// Bits of a link's word: too many packets, too much memory in use, too many transfers; the link that was last chosen of its kind; one that moves
/// long messages.
const QUEUE: u64 = 1;
const MEMORY: u64 = 2;
const TRANSFERS: u64 = 4;
const LATEST: u64 = 8;
const AT_WORK: u64 = 16;

/// What an RTS takes of a lane is less than what a message of so many bytes takes.
const LARGE: u64 = (32 << 10) + 1;
/// Thousandths of a lane of shared memory that may have been read since: a limit below them would never be reached again.
const UNSEEN: u16 = 250;
/// Observations change what is done within this factor of the length at which a DMA begins to be faster.
const NEAR: u64 = 4;
/// A shorter message is through one link before a second one is worth its words.
const STRIPE_LEAST: u64 = 1 << 20;
/// DMA protocols in the order in which they are tried where the driver advises none.
const DMAS: [Protocol; 3] = [Protocol::Both, Protocol::Get, Protocol::Put];

/// Honours what is asked for unless the link has too much to do, and otherwise looks for another protocol, another link, another fabric.
///
/// A link has too much to do when more packets wait than `depth_high`, or more of its memory is in use than `occupancy_high`, and the target has
/// taken none for `stalled_after`; and until both have fallen to `depth_low` and `occupancy_low`; for DMA protocols, in the same way, by
/// transfers that are not complete. What is done then, and only by ways that have not too much to do themselves:
///
/// 1. Another protocol on the same link that takes less of what is scarce: a large message goes by DMA where a lane is full, and through
///    the lane where transfers stand in a queue, if it fits. A put or get that the calling thread copies stands in no queue, and stays: any
///    other way would wait for the target.
/// 2. Another link of the same kind.
/// 3. Another fabric.
/// 4. As asked for, all the same.
///
/// A message that is put by a network goes by all its links at once if it is [long](Self::stripe_least), and no link was asked for by number.
///
/// A message above 32 KiB goes by DMA also while another link to that node has several transfers under way, and until it has none, but not below a length of [`dma`](Self::dma):
/// then both processors have other bytes to copy, and these are copied once.
///
/// Where no link is asked for by number, messages stay with the one that was taken last until another has clearly less to do. Where no
/// protocol is asked for, the driver's advice is followed, but for the lengths that were [tuned](Self::tuned), and but for what was seen
/// to be faster: near the length at which DMA begins to be faster (a quarter to four times), one message of 64 goes the other way.
///
/// Shared by several nodes it judges each by its own figures, and counts what is observed of all of them together.
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

/// Too much above the one, and no longer too much at the other.
#[derive(Clone, Copy, Debug)]
struct Band<T> {
    high: T,
    low: T,
}

impl<T: Ord + Copy> Band<T> {
    /// The limit for a figure that was, or was not, too much before.
    fn in_force(&self, was: bool) -> T {
        if was { self.low.min(self.high) } else { self.high }
    }

    fn is_too_much(&self, was: bool, figure: T) -> bool {
        figure > self.in_force(was)
    }

    /// The limit that a figure is above that is too much.
    fn limit(&self, figure: T) -> T {
        self.in_force(figure <= self.high)
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        Self::new()
    }
}

impl Thresholds {
    /// The driver's own lengths, and limits that a link reaches only when its target can't keep up.
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

    /// The same, with the lengths that `doorbell tune` found on this machine, if it was there. Reads a file: see [`Tune::load`].
    pub fn tuned() -> Self {
        Tune::load().map_or_else(Self::new, |tune| Self::new().with(&tune))
    }

    /// With the lengths of a measurement.
    pub fn with(self, tune: &Tune) -> Self {
        tune.found.iter().fold(self, |policy, found| policy.dma(found.fabric, found.in_region, found.dma))
    }

    /// More packets than these that the target has not taken are too many: 768 if nothing is said. Of shared memory no fewer than what may
    /// have been taken without a word, which is a quarter of the lane.
    pub fn depth_high(self, packets: u32) -> Self {
        Self { depth: Band { high: packets, ..self.depth }, ..self }
    }

    /// That they are too many no longer at so many: 384 if nothing is said, and `depth_high` at most.
    pub fn depth_low(self, packets: u32) -> Self {
        Self { depth: Band { low: packets, ..self.depth }, ..self }
    }

    /// More DMA transfers than these that are not complete are too many: 16 if nothing is said.
    pub fn transfers_high(self, transfers: u32) -> Self {
        Self { transfers: Band { high: transfers, ..self.transfers }, ..self }
    }

    /// That they are too many no longer at so many: 8 if nothing is said, and `transfers_high` at most.
    pub fn transfers_low(self, transfers: u32) -> Self {
        Self { transfers: Band { low: transfers, ..self.transfers }, ..self }
    }

    /// Memory of which more is in use is too full, in thousandths: 750 if nothing is said. No less than 251 is taken, as a quarter of a lane
    /// may have been read without a word.
    pub fn occupancy_high(self, permille: u16) -> Self {
        Self { occupancy: Band { high: permille.clamp(UNSEEN + 1, 1000), ..self.occupancy }, ..self }
    }

    /// That it is too full no longer at so much: 400 if nothing is said, no less than 251 and no more than `occupancy_high`.
    pub fn occupancy_low(self, permille: u16) -> Self {
        Self { occupancy: Band { low: permille.clamp(UNSEEN + 1, 1000), ..self.occupancy }, ..self }
    }

    /// Messages go by another link of the same kind when the latest has twice the bytes of it to do and so many more: 64 KiB if nothing is
    /// said.
    pub fn balance(self, bytes: u64) -> Self {
        Self { balance: bytes, ..self }
    }

    /// Packets, memory and transfers are too much only when the target was not seen to take any for so long: 50 ms if nothing is said. A lane that is full is
    /// nothing unusual while its reader is at work.
    pub fn stalled_after(self, silence: Duration) -> Self {
        Self { stalled: silence.as_micros().min(u32::MAX.into()) as u32, ..self }
    }

    /// Whether what the caller asked for by name is never left, whatever it has to do. If nothing is said it may be.
    pub fn strict(self, strict: bool) -> Self {
        Self { strict, ..self }
    }

    /// Messages of so many bytes and more that are put by a network go by all of its links at once, in equal parts: 1 MiB if nothing is said. Those
    /// for which a link is asked for by number do not, and links that have too much to do carry no part.
    pub fn stripe_least(self, bytes: u64) -> Self {
        Self { stripe_least: bytes, ..self }
    }

    /// One of so many messages goes the other way, to know how long it takes: 64 if nothing is said, none if 0. Only while
    /// [`Policy::observe`] is told how long messages take.
    pub fn trial_every(self, messages: u32) -> Self {
        Self { every: messages, ..self }
    }

    /// From which length on messages go by DMA, in place of the driver's own length.
    pub fn dma(mut self, fabric: Fabric, in_region: bool, dma: Dma) -> Self {
        self.dma[fabric as usize][usize::from(in_region)] = Some(dma);
        self
    }

    /// How long messages took, as far as was observed. Of those that a full link sent another way nothing is kept: what they took says
    /// nothing of their protocol.
    pub fn means(&self) -> Vec<Mean> {
        self.means.all()
    }

    /// What is too much of a link now.
    fn look(&self, link: &LinkView) -> u64 {
        let bit = |bit: u64, is_set: bool| if is_set { bit } else { 0 };
        let had = |bit: u64| link.word & bit != 0;
        let figures = &link.figures;
        let occupancy = self.occupancy.in_force(had(MEMORY));
        // As `LinkFigures::occupancy` has it, without its divisions.
        let is_above =
            |used: u64, all: u64| all != 0 && used.min(all).saturating_mul(1000) >= all.saturating_mul(u64::from(occupancy) + 1);
        let is_full = is_above(figures.bytes, figures.room) || is_above(figures.depth.into(), figures.places.into());
        // A reader that is behind takes what it can: to go elsewhere helps only where it stands still.
        let may = |bit: u64| had(bit) || figures.still >= self.stalled;
        (link.word & LATEST)
            | bit(QUEUE, may(QUEUE) && self.depth_of(link).is_too_much(had(QUEUE), figures.depth))
            | bit(MEMORY, may(MEMORY) && is_full)
            | bit(AT_WORK, figures.transfers > u32::from(!had(AT_WORK)))
            | bit(TRANSFERS, may(TRANSFERS) && self.transfers.is_too_much(had(TRANSFERS), figures.transfers))
    }

    /// The limits for packets, above what may have been read since.
    fn depth_of(&self, link: &LinkView) -> Band<u32> {
        let unseen = if link.fabric == Fabric::Shm { link.figures.places / 4 + 1 } else { 0 };
        Band { high: self.depth.high.max(unseen), low: self.depth.low.max(unseen) }
    }

    /// Why a protocol has too much to do on a link, if it has.
    fn crowded(&self, call: Call, link: &LinkView, protocol: Protocol) -> Option<Reason> {
        let figures = &link.figures;
        let had = |bit: u64| link.word & bit != 0;
        match protocol {
            Protocol::Transfer if had(QUEUE) => {
                Some(Reason::Queue { depth: figures.depth, limit: self.depth_of(link).limit(figures.depth) })
            }
            Protocol::Transfer if had(MEMORY) => {
                let occupancy = figures.occupancy();
                Some(Reason::Occupancy { occupancy, limit: self.occupancy.limit(occupancy) })
            }
            Protocol::Transfer => None,
            // The calling thread copies: it stands in no queue, and relief by the lane would wait for the target's engine.
            _ if call != Call::Send && link.fabric == Fabric::Shm && protocol == usual(call) => None,
            _ if had(TRANSFERS) => {
                Some(Reason::Queue { depth: figures.transfers, limit: self.transfers.limit(figures.transfers) })
            }
            _ => None,
        }
    }

    /// How a message would go by a link if nothing were in its way: as asked, else by its length. `may_try`: it may be a trial.
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
            // Above its own length the driver has looked at more than the length.
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

    /// The way of a message where the first one that was asked for has too much to do.
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

    /// Whether a message has room in a link's memory however much of it may be in use before that is too much. Not by how much is in use
    /// now: the choice would change with every packet.
    fn fits(&self, link: &LinkView, len: u64) -> bool {
        let room = link.figures.room;
        room == 0 || len <= room / 1000 * u64::from(1000 - self.occupancy.high.min(1000))
    }

    /// Of the links that will do: the latest, unless another has clearly less to do.
    fn pick(&self, question: &Question<'_>, will_do: impl Fn(&Question<'_>, usize) -> bool) -> Option<usize> {
        let links = &question.links;
        let (mut latest, mut least): (Option<usize>, Option<usize>) = (None, None);
        for at in (0..links.len()).filter(|at| will_do(question, *at)) {
            if links[at].word & LATEST != 0 && latest.is_none() {
                latest = Some(at);
            }
            if least.is_none_or(|least| links[at].figures.bytes < links[least].figures.bytes) {
                least = Some(at);
            }
        }
        let (latest, least) = (latest.or(least)?, least?);
        let [more, less] = [latest, least].map(|at| links[at].figures.bytes);
        let is_clear = more > less.saturating_mul(2).saturating_add(self.balance);
        Some(if is_clear { least } else { latest })
    }

    /// The same, with the other links of its network for a message that is long enough, if no link was asked for.
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

    /// What to do where nothing that was asked for can be done.
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
        // What can't be done: the driver says so.
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
        let figures = &link.figures;
        let dma = self.dma[link.fabric as usize].iter().map(|found| match found {
            Some(Dma::From(limit)) => *limit,
            Some(Dma::Never) => u64::MAX,
            None => link.large,
        });
        // Nothing is too much, nor may be: what is half full is looked at more closely.
        link.word & (QUEUE | MEMORY | TRANSFERS) == 0 && figures.still == 0 && dma.min().is_some_and(|least| len < least / NEAR)
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
            let [bytes, instead] = [latest.unwrap_or(first), home].map(|at| question.links[at].figures.bytes);
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
            // What it costs to decide so, whatever the target then made of it: that is what the next decision needs.
            let kind = Kind { fabric: receipt.decided.fabric, in_region: receipt.in_region, len: receipt.len };
            self.means.add(&kind, receipt.decided.protocol, took);
        }
    }
}

/// The protocol of a call that asks for none.
fn usual(call: Call) -> Protocol {
    match call {
        Call::Send => Protocol::Transfer,
        Call::Put => Protocol::Put,
        Call::Get => Protocol::Get,
    }
}

/// The DMA protocol that a message could take on a link: what the driver advises, else the usual one.
fn dma_of(link: &LinkView) -> Option<Mode> {
    let advised = Some(link.advice).filter(|advice| *advice != Protocol::Transfer).and_then(|advice| link.mode(advice));
    advised.or_else(|| DMAS.into_iter().find_map(|protocol| link.mode(protocol)))
}

/// Notes that a link is the latest of its kind.
fn take(question: &mut Question<'_>, taken: usize) {
    let fabric = question.links[taken].fabric;
    for (at, link) in question.links.iter_mut().enumerate().filter(|(_, link)| link.fabric == fabric) {
        link.word = if at == taken { link.word | LATEST } else { link.word & !LATEST };
    }
}

#[cfg(test)]
mod tests;
