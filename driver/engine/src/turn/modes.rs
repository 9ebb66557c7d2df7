//! Chooses the link and protocol of a message.

use super::Engine;
use crate::error::Error;
use crate::links::WHOLE_MOST;
use crate::message::order::{Begun, Order};
use crate::message::outbound::{OutState, Outbound, Plan, WHOLE_BYTES};
use crate::mode::{
    Call, Decision, Fabric, LINKS_MAX, LinkView, Links, Mode, ModeRequest, Modes, Protocol, Question, Reason, Receipt,
};
use crate::transfer::memory::Local;
use crate::transfer::outgoing::{Outgoing, Route};
use crate::transfer::way::KERNEL_LEAST;
use crate::transfer::{APART_LEAST, CopySide, IN_REGION_LEAST, RENDEZVOUS_BYTES};
use doorbell_fabric::NodeId;
use doorbell_fabric::sync::Ordering;
use doorbell_shm::domain::PeerInbox;
use doorbell_shm::lane::BULK_LEAST;
use std::sync::Arc;

/// The mode of a message without a request.
const LANE: Mode = Mode { fabric: Fabric::Shm, link: 0, protocol: Protocol::Transfer };

/// The inputs for choosing a message's mode.
pub(super) struct Planner<'a> {
    pub outgoing: &'a mut Outgoing,
    /// The target, if it shares memory with this node.
    pub peer: Option<&'a Arc<PeerInbox>>,
    pub local: &'a Local,
    pub modes: &'a Modes,
}

impl Engine {
    /// Opens further links to the target of a send queue, if something may be sent over them.
    pub fn open_links(&mut self, outbound: &Outbound, state: &mut OutState) {
        let incarnation = state.incarnation;
        let (is_near, remote) = self.fabric.links(outbound.target, incarnation);
        // With several links of a network, each of them may be used.
        let most = if remote > 1 { LINKS_MAX } else { usize::from(is_near) + remote };
        for by in 1..most as u8 {
            if !state.has(by)
                && let Some(link) =
                    self.fabric.connect_by(outbound.target, incarnation, by - u8::from(is_near), outbound.priority)
            {
                state.add(by, link);
            }
        }
    }

    /// The number of transfers to a node on one link, and how many have ended.
    pub fn transfers_by(&self, node: NodeId, by: u8) -> (u32, u32) {
        self.outgoing.count_by(node, by)
    }

    /// Chooses the mode of a message, and begins to move it if it does not go through a lane. The caller holds the send queue,
    /// which has no send before this message.
    pub fn plan(&mut self, outbound: &Arc<Outbound>, state: &mut OutState, order: &Order<'_>) -> Plan {
        if order.asks.is_some() || (self.settings.modes.steer_all() && state.looks()) {
            self.open_links(outbound, state);
        }
        let peer = self.fabric.peer(outbound.target);
        Planner { outgoing: &mut self.outgoing, peer, local: &self.local, modes: &self.settings.modes }
            .plan(outbound, state, order)
    }
}

impl Planner<'_> {
    /// As [`Engine::plan`], when all links are open.
    pub fn plan(&mut self, outbound: &Arc<Outbound>, state: &mut OutState, order: &Order<'_>) -> Plan {
        let peer = self.peer.filter(|_| !state.is_remote());
        if peer.is_some_and(|peer| peer.incarnation() != state.incarnation) || state.link.is_none() {
            return Plan::Lane(state.bound().unwrap_or(0));
        }
        if self.modes.steers(order.asks) {
            return match self.settled(outbound, state, order) {
                Ok(plan) => plan,
                Err(first) => self.steer(outbound, state, order, first),
            };
        }
        if !order.waits {
            return Plan::Lane(state.bound().unwrap_or(0));
        }
        if let Some(peer) = peer
            && let Some((len, messages)) = state.take_streak()
        {
            self.outgoing.count_streak(peer, len, messages);
        }
        let advice = self.advice(state, 0, order, true);
        if advice == Protocol::Transfer || state.bound().is_some_and(|by| by != 0) {
            if order.len >= BULK_LEAST && state.is_without_bulk() {
                outbound.wants_bulk.store(true, Ordering::Relaxed);
            }
            if (WHOLE_MOST + 1..KERNEL_LEAST).contains(&order.len)
                && let Some(peer) = peer
                && !self.local.is_in_region(order.bytes, order.len)
            {
                state.set_streak(order.len, self.outgoing.streak(peer, order.len));
            }
            return Plan::Lane(state.bound().unwrap_or(0));
        }
        let has_engine = self.modes.has_engine;
        let route = Route { has_engine, patient: !has_engine, ..self.outgoing.usual(state.is_remote().then_some(0)) };
        Plan::Transfer(self.outgoing.begin(route, peer, outbound, state, self.local, order))
    }

    /// The protocol for a message without a request. `compares`: the message takes the advice, and its time may be compared with those of
    /// others.
    fn advice(&mut self, state: &mut OutState, by: u8, order: &Order<'_>, compares: bool) -> Protocol {
        let is_near = by == 0 && !state.is_remote();
        let least = if compares && self.outgoing.copy() == CopySide::Auto { IN_REGION_LEAST } else { RENDEZVOUS_BYTES };
        if order.len < least || !order.waits {
            return Protocol::Transfer;
        }
        match self.peer.filter(|_| is_near) {
            None if self.modes.has_engine && self.outgoing.is_worth_apart(order.len) => Protocol::Put,
            Some(peer) if self.outgoing.is_worth(peer, self.local, order, state.is_idle(), compares) => {
                match self.outgoing.copy() {
                    _ if !self.modes.has_engine => Protocol::Get,
                    CopySide::Origin => Protocol::Put,
                    CopySide::Target => Protocol::Get,
                    // With several messages, the target copies one while this end writes the next.
                    CopySide::Auto if self.outgoing.has_any(peer.id()) => Protocol::Get,
                    CopySide::Auto | CopySide::Both => Protocol::Both,
                }
            }
            _ => Protocol::Transfer,
        }
    }

    /// The length below which the advice is always transfer.
    fn large(&self, is_near: bool, order: &Order<'_>) -> usize {
        match self.outgoing.copy() {
            CopySide::Auto if !is_near => APART_LEAST,
            CopySide::Auto if !self.local.is_in_region(order.bytes, order.len) => KERNEL_LEAST,
            _ => RENDEZVOUS_BYTES,
        }
    }

    /// A link that could carry a message.
    fn view(&mut self, outbound: &Outbound, state: &mut OutState, by: u8, order: &Order<'_>) -> Option<LinkView> {
        let is_near_first = !state.is_remote();
        let is_near = by == 0 && is_near_first;
        let advice = self.advice(state, by, order, false);
        let word = state.words[usize::from(by)];
        let metrics = state.metrics(by, self.outgoing.count_by(outbound.target, by))?;
        let can_move = order.len > 0 && order.waits;
        let is_reached = can_move
            && is_near
            && (self.local.is_in_region(order.bytes, order.len) || self.peer.is_some_and(|peer| peer.reach().is_some()));
        let mut protocols = [true, false, false, false];
        protocols[Protocol::Put as usize] = can_move && self.modes.has_engine && (!is_near || is_reached);
        protocols[Protocol::Get as usize] = is_reached;
        protocols[Protocol::Both as usize] = is_reached && self.modes.has_engine;
        Some(LinkView {
            fabric: if is_near { Fabric::Shm } else { Fabric::Udp },
            link: if is_near || !is_near_first { by } else { by - 1 },
            protocols,
            advice,
            large: self.large(is_near, order) as u64,
            metrics,
            word,
        })
    }

    /// Sends a message through the lane if the policy always lets it go there, as it mostly does for a small message without a
    /// request. Otherwise returns the first link, if it was looked at.
    fn settled(&mut self, outbound: &Outbound, state: &mut OutState, order: &Order<'_>) -> Result<Plan, Option<LinkView>> {
        if order.asks.is_some() || order.len > WHOLE_BYTES || state.is_remote() || state.bound().is_some() {
            return Err(None);
        }
        let link = self.view(outbound, state, 0, order).ok_or(None)?;
        if !self.modes.is_settled(&link, order.len as u64) {
            return Err(Some(link));
        }
        let receipt = Receipt {
            to: outbound.target,
            call: Call::Send,
            len: order.len as u64,
            in_region: self.local.is_in_region(order.bytes, order.len),
            requested: ModeRequest::default().protocol(Protocol::Transfer),
            decided: LANE,
            used: LANE,
            moved: None,
            beside: Links::NONE,
            reason: Reason::Default,
        };
        self.modes.note_instead(order.op.set_receipt(receipt).as_ref(), &receipt);
        Ok(Plan::Lane(0))
    }

    /// Asks the policy, or follows the request. `first`: the first link, if it was looked at.
    fn steer(&mut self, outbound: &Arc<Outbound>, state: &mut OutState, order: &Order<'_>, mut first: Option<LinkView>) -> Plan {
        let mut links = [const { None }; LINKS_MAX];
        let mut count = 0;
        let mut numbers = [0; LINKS_MAX];
        for by in 0..LINKS_MAX as u8 {
            // A link that can't be read now is left out, except the first.
            if state.bound().is_none_or(|bound| bound == by)
                && let Some(view) = first.take().or_else(|| self.view(outbound, state, by, order))
            {
                (links[count], numbers[count]) = (Some(view), by);
                count += 1;
            }
        }
        let Some(mut links) = collect(links, count) else { return Plan::Lane(state.bound().unwrap_or(0)) };
        // The links as the policy sees them: the policy can change the slice.
        let all = links;
        let (offered, links) = (&all[..count], &mut links[..count]);
        let asked = order.asks.unwrap_or_default().or(self.modes.asked_by(Call::Send));
        let requested = asked.or(ModeRequest::default().protocol(Protocol::Transfer));
        let in_region = self.local.is_in_region(order.bytes, order.len);
        let (to, call, len) = (outbound.target, Call::Send, order.len as u64);
        let mut question = Question { to, call, len, in_region, asked, requested, links };
        let decision = self.modes.choose(&mut question);
        let usual = || offered[0].mode(offered[0].advice);
        let found = |decision: Decision| {
            let place = |link: &&LinkView| link.mode(decision.mode.protocol) == Some(decision.mode);
            offered.iter().position(|link| place(&link)).map(|at| (decision, at))
        };
        let bound = state.bound();
        let chosen = decision.and_then(found).or_else(|| {
            // The policy's choice is impossible, or only one link can be used.
            let may = self.modes.policy.is_some() || bound.is_some();
            let why = Reason::Unavailable("the chosen mode can't carry this message");
            usual().filter(|_| may).and_then(|mode| found(Decision::new(mode, why)))
        });
        let Some((Decision { mode, beside, reason }, at)) = chosen else {
            self.modes.note_refused(&requested);
            return Plan::Refused(unavailable(outbound, &asked, offered));
        };
        for (view, by) in question.links.iter().zip(numbers) {
            state.words[usize::from(by)] = view.word;
        }
        let by = numbers[at];
        // Links that do not exist, or can't put the message, carry nothing.
        let is_put = (mode.fabric, mode.protocol) == (Fabric::Udp, Protocol::Put);
        let can = |link: &&LinkView| {
            is_put && link.fabric == mode.fabric && beside.without(mode.link).has(link.link) && link.mode(mode.protocol).is_some()
        };
        let beside = offered.iter().filter(can).map(|link| link.link).collect();
        let receipt = Receipt { to, call, len, in_region, requested, decided: mode, used: mode, moved: None, beside, reason };
        self.modes.note_instead(order.op.set_receipt(receipt).as_ref(), &receipt);
        self.go(outbound, state, order, by, mode, receipt)
    }

    /// Carries out a decision.
    fn go(
        &mut self,
        outbound: &Arc<Outbound>,
        state: &mut OutState,
        order: &Order<'_>,
        by: u8,
        mode: Mode,
        receipt: Receipt,
    ) -> Plan {
        let (copy, patient) = match mode.protocol {
            Protocol::Transfer => {
                if by == 0 && order.len >= BULK_LEAST && state.is_without_bulk() {
                    outbound.wants_bulk.store(true, Ordering::Relaxed);
                }
                return Plan::Lane(by);
            }
            // A put requested by name gives the target time to answer where to.
            Protocol::Put => (CopySide::Origin, receipt.requested.protocol == Some(Protocol::Put) && mode.fabric == Fabric::Shm),
            Protocol::Get => (CopySide::Target, true),
            Protocol::Both => (CopySide::Both, false),
        };
        let apart = (mode.fabric == Fabric::Udp).then_some(mode.link);
        let route = Route { by, apart, beside: receipt.beside, copy, patient, has_engine: self.modes.has_engine };
        let peer = self.peer.filter(|_| apart.is_none());
        let begun = self.outgoing.begin(route, peer, outbound, state, self.local, order);
        if matches!(begun, Begun::NoSlot) {
            let used = Mode { protocol: Protocol::Transfer, ..mode };
            let reason = Reason::Unavailable("the most transfers to that node are already pending");
            let receipt = Receipt { decided: used, used, beside: Links::NONE, reason, ..receipt };
            self.modes.note_instead(order.op.set_receipt(receipt).as_ref(), &receipt);
            return Plan::Lane(by);
        }
        Plan::Transfer(begun)
    }
}

/// The first `count` links, which exist. `None` if there are none.
fn collect(links: [Option<LinkView>; LINKS_MAX], count: usize) -> Option<[LinkView; LINKS_MAX]> {
    let first = links[0]?;
    let mut all = [first; LINKS_MAX];
    for (link, into) in links.into_iter().flatten().zip(&mut all[..count]) {
        *into = link;
    }
    Some(all)
}

#[cold]
fn unavailable(outbound: &Outbound, asked: &ModeRequest, links: &[LinkView]) -> Error {
    let list = |link: &LinkView| {
        let modes: Vec<_> =
            Protocol::ALL.into_iter().filter_map(|protocol| link.mode(protocol)).map(|mode| mode.to_string()).collect();
        modes.join(", ")
    };
    let there: Vec<_> = links.iter().map(list).collect();
    let node = outbound.target;
    let what =
        format!("the mode {asked} was requested, but this message to node {node} can't use it; it can use {}", there.join(", "));
    Error::Invalid { what }
}
