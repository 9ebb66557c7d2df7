//! How a team is made: formed from a list of nodes, shrunk to the living members, or split.

use super::apart::Apart;
use super::builder::{MEMBERS_MAX, TeamBuilder};
use super::core::{Core, Way, check_outside};
use super::error::TeamError;
use super::formation::{Agreement, Next, Note, Stage, lineage_number, team_number};
use super::memory::{Layout, Memory};
use super::net::Boxes;
use super::table::Teams;
use super::team::{Lineage, Team};
use doorbell_engine::drive::Shared;
use doorbell_engine::error::Error;
use doorbell_engine::message::service::PeerId;
use doorbell_engine::node::shared_of;
use doorbell_engine::sync::baton::Token;
use doorbell_engine::sync::op::Op;
use doorbell_engine::{Node, NodeId, Result};
use doorbell_fabric::world;
use doorbell_shm::domain::PeerInbox;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const OPERATION: &str = "form a team";

impl TeamBuilder {
    /// Forms the team: waits until all members do, without a deadline.
    ///
    /// # Errors
    /// As [`form_until`](Self::form_until).
    pub fn form(self) -> Result<Team> {
        self.build(None)
    }

    /// Forms the team: waits until all members do, until `deadline` at most. Turns this node's engine meanwhile.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::PeerDied`] and [`Error::PeerLeft`] of a member that is gone; [`Error::NoSuchNode`]; [`TeamError`] if another member
    /// divides the memory differently; [`Error::Invalid`] for a list without this node, with a node twice, or numbers out of range;
    /// [`Error::Shm`] if there is no room; [`Error::Closed`],
    /// [`Error::Forked`], [`Error::Severed`], [`Error::Reentrant`].
    pub fn form_until(self, deadline: Instant) -> Result<Team> {
        self.build(Some(deadline))
    }

    fn build(self, deadline: Option<Instant>) -> Result<Team> {
        check_outside(OPERATION)?;
        self.check()?;
        let shared = shared_of(&self.node);
        let me = shared.check()?;
        let known = shared.living_members(me);
        let ids = self.members.clone().unwrap_or_else(|| known.iter().map(|member| member.id).collect());
        let invalid = |what: String| Err(Error::Invalid { what });
        if ids.is_empty() || ids.len() > MEMBERS_MAX {
            return invalid(format!("a team has 1 to {MEMBERS_MAX} members, not {}", ids.len()));
        }
        let mut list: Vec<PeerId> = Vec::with_capacity(ids.len());
        for &node in &ids {
            let Some(member) = known.iter().find(|member| member.id == node) else { return Err(Error::NoSuchNode { node }) };
            if list.iter().any(|member| member.node == node) {
                return invalid(format!("node {node} is in the team's list of members twice"));
            }
            list.push(PeerId { node, incarnation: member.incarnation });
        }
        if !ids.contains(&self.node.id()) {
            return invalid(format!("this node, {}, is not in the team's list of members", self.node.id()));
        }
        let id = lineage_number(&self.label, list.iter().copied());
        let (attempt, used) = shared.enter(me, OPERATION)?.service::<Teams>().next_attempt(id);
        let set = vec![true; list.len()];
        Team::agree(self, Lineage { id, list, _used: used }, set, attempt, deadline, false)
    }
}

impl Team {
    /// Begins to form a team, of all nodes of the domain unless [`members`](TeamBuilder::members) says otherwise.
    ///
    /// ```
    /// # use doorbell::{Node, Space};
    /// use doorbell::collective::{Team, reduction::Sum};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let space = Space::heap();
    /// # let node = || Node::builder("team").space(space.clone()).join();
    /// # let (a, b) = (node()?, node()?);
    /// # let ids = [a.id(), b.id()];
    /// # let other = std::thread::spawn(move || Team::builder(&b).members(&ids).form()?.allreduce(Sum, &mut [2.0]));
    /// # let node = a;
    /// let team = Team::builder(&node).members(&ids).form()?; // all of them call this
    /// let mut xs = [1.0];
    /// team.allreduce(Sum, &mut xs)?;
    /// assert_eq!(xs, [3.0]);
    /// # other.join().unwrap()
    /// # }
    /// ```
    pub fn builder(node: &Node) -> TeamBuilder {
        TeamBuilder::new(node)
    }

    /// A team of the living members, in the same order. All of them call it, as after an error, and agree on which members live. The old team can't be used after that.
    ///
    /// # Errors
    /// As [`TeamBuilder::form_until`].
    pub fn shrink(&self) -> Result<Team> {
        self.shrink_within(None)
    }

    /// As [`shrink`](Self::shrink), until `deadline` at most.
    ///
    /// # Errors
    /// As [`TeamBuilder::form_until`].
    pub fn shrink_until(&self, deadline: Instant) -> Result<Team> {
        self.shrink_within(Some(deadline))
    }

    fn shrink_within(&self, deadline: Option<Instant>) -> Result<Team> {
        check_outside("shrink a team")?;
        self.core.shared.usable()?;
        self.core.break_off();
        let set = self.lineage.list.iter().map(|member| self.core.members.contains(member)).collect();
        Team::agree(self.builder.clone(), self.lineage.clone(), set, self.attempt.saturating_add(1), deadline, true)
    }

    /// Divides the team: members that give the same `color` form a team, in the order of `order`, and of their ranks here where that is the same. A member without a color
    /// gets none. All members call it, and wait for each other.
    ///
    /// ```
    /// # use doorbell::collective::Team;
    /// # use doorbell::{Node, Space};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let node = Node::builder("split").space(Space::heap()).join()?;
    /// # let team = Team::builder(&node).form()?;
    /// let halves = team.split(Some(team.rank() as u64 % 2), 0)?;
    /// # assert_eq!(halves.unwrap().len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`Team`], and [`TeamBuilder::form`].
    pub fn split(&self, color: Option<u64>, order: u64) -> Result<Option<Team>> {
        let mut all = vec![[0; 3]; self.len()];
        self.allgather(&[[u64::from(color.is_some()), color.unwrap_or(0), order]], &mut all)?;
        let splits = self.splits.fetch_add(1, Ordering::Relaxed);
        let Some(color) = color else { return Ok(None) };
        let mut ranks: Vec<usize> = (0..self.len()).filter(|rank| all[*rank][..2] == [1, color]).collect();
        ranks.sort_by_key(|rank| (all[*rank][2], *rank));
        let members: Vec<NodeId> = ranks.into_iter().map(|rank| self.core.members[rank].node).collect();
        let label = format!("{} {:x} {} {splits} {color}", self.builder.label, self.lineage.id, self.attempt);
        self.builder.clone().members(&members).label(label).build(self.deadline()).map(Some)
    }

    /// Agrees with the nodes in `set` on the members, and makes the team. If it `shrinks` a team, members that are gone are left out.
    fn agree(
        builder: TeamBuilder,
        lineage: Lineage,
        set: Vec<bool>,
        attempt: u32,
        deadline: Option<Instant>,
        shrinks: bool,
    ) -> Result<Team> {
        if !Agreement::may_begin_by(attempt) {
            return Err(Error::cannot(OPERATION, TeamError::OutOfStep));
        }
        let node = builder.node.clone();
        let shared = shared_of(&node);
        let me = shared.check()?;
        let own = PeerId { node: node.id(), incarnation: node.incarnation() };
        let rank = lineage.list.iter().position(|member| *member == own).ok_or(Error::Closed)?;
        let layout = (builder.channels as u64) << 32 | builder.slot as u64;
        let near = {
            let engine = shared.enter(me, OPERATION)?;
            lineage.list.iter().map(|member| !engine.is_remote(member.node, member.incarnation)).collect()
        };
        let (first_attempt, stage) = (attempt, Stage::Ready);
        let agreement = Agreement { lineage: lineage.id, attempt, first_attempt, me: rank, set, near, layout, stage };
        let mut forming = Forming { shared, me, builder, lineage, rank, agreement, own: None, core: None, is_over: false };
        let core = forming.agree(deadline, shrinks)?;
        forming.is_over = true;
        let (builder, lineage, attempt) = (forming.builder.clone(), forming.lineage.clone(), forming.agreement.attempt);
        Ok(Team { core, builder, lineage, attempt, splits: AtomicU64::new(0) })
    }
}

/// A team in the making. When it is dropped before its end, it tells the others that this node has given up.
struct Forming<'a> {
    shared: &'a Arc<Shared>,
    me: Token,
    builder: TeamBuilder,
    lineage: Lineage,
    /// The place of this node in the lineage's list.
    rank: usize,
    agreement: Agreement,
    /// The region that this node has made as the first member, and for which attempt.
    own: Option<Own>,
    core: Option<Arc<Core>>,
    is_over: bool,
}

struct Own {
    attempt: u32,
    /// Number and secret.
    region: (u32, u64),
    /// `None` once it is used.
    memory: Option<Memory>,
}

impl Forming<'_> {
    /// The nodes in the set, with their places in the list.
    fn members(&self) -> impl Iterator<Item = (usize, PeerId)> {
        self.lineage.list.iter().copied().enumerate().filter(|(at, _)| self.agreement.set[*at])
    }

    fn others(&self) -> impl Iterator<Item = (usize, PeerId)> {
        self.members().filter(|(at, _)| *at != self.rank)
    }

    /// How the memory is divided, and the rank of this node in the team.
    fn layout(&self) -> (Layout, usize) {
        let layout = Layout { members: self.members().count(), channels: self.builder.channels, slot: self.builder.slot };
        (layout, self.members().take_while(|(at, _)| *at < self.rank).count())
    }

    fn agree(&mut self, deadline: Option<Instant>, shrinks: bool) -> Result<Arc<Core>> {
        let mut say = true;
        loop {
            self.make_region()?;
            let mut engine = self.shared.enter(self.me, OPERATION)?;
            if self.others().any(|(_, peer)| engine.is_remote(peer.node, peer.incarnation)) {
                say |= !self.agreement.is_apart();
                self.agreement.go_apart();
            }
            if say {
                let own = self.own.as_ref().filter(|_| self.agreement.first() == self.rank);
                let note = self.agreement.note(own.map(|own| own.region)).encode();
                for (_, peer) in self.others() {
                    engine.service::<Teams>().inform(peer, note.clone());
                }
                engine.push(self.me);
            }
            let gone = |(at, peer): (usize, PeerId)| Some((at, peer, engine.gone(peer.node, peer.incarnation)?));
            let gone = self.others().find_map(gone);
            if let Some((at, peer, why)) = gone {
                if !shrinks {
                    return Err(why.error(peer));
                }
                self.agreement.without(at);
                say = true;
                continue;
            }
            let heard = &engine.service::<Teams>().heard;
            let seen = heard.version;
            let lineage = &self.lineage;
            let said = |at: usize| heard.of(lineage.list[at], lineage.id);
            let next = self.agreement.look(said);
            let boxes = (self.agreement.is_apart() && matches!(next, Next::Map { .. })).then(|| self.agreement.boxes(said));
            drop(engine);
            say = false;
            match next {
                Next::Wait => {}
                Next::Say => {
                    say = true;
                    continue;
                }
                Next::Map { owner, region } => {
                    self.core = match boxes {
                        Some(boxes) => Some(self.map_apart(boxes)?),
                        None => self.map_shared(owner, region),
                    };
                    if self.core.is_some() {
                        self.agreement.stage = Stage::Mapped;
                        say = true;
                        continue;
                    }
                    // The region is of an earlier attempt, or its owner is gone. This node will hear of that soon.
                }
                Next::Done => return self.finish(),
                Next::Layout(at) => {
                    let node = self.lineage.list[at].node;
                    return Err(Error::cannot(OPERATION, TeamError::Mismatch { node }));
                }
                Next::Out => return Err(Error::cannot(OPERATION, TeamError::OutOfStep)),
            }
            let most = world::now() + Duration::from_millis(25);
            let until = deadline.map_or(most, |deadline| deadline.min(most));
            self.shared.drive(self.me, &Op::new(), Some(until), |engine| engine.service::<Teams>().heard.version != seen)?;
            self.shared.check_peers(self.me);
            if deadline.is_some_and(|deadline| world::now() >= deadline) {
                return Err(Error::Timeout { operation: OPERATION, node: None });
            }
        }
    }

    /// Makes the team's region for this attempt, if this node is the first member and all share memory.
    fn make_region(&mut self) -> Result<()> {
        let attempt = self.agreement.attempt;
        let is_made = self.own.as_ref().is_some_and(|own| own.attempt == attempt);
        if is_made || self.agreement.first() != self.rank || self.agreement.is_apart() {
            return Ok(());
        }
        let (layout, me) = self.layout();
        let number = self.shared.regions().next_number();
        let region = self.shared.membership().create_region(number, layout.bytes())?;
        let secret = region.secret();
        self.own = Some(Own { attempt, region: (number, secret), memory: Some(Memory::own(region, layout, me)) });
        Ok(())
    }

    fn core(&self, way: Way, inboxes: Vec<Arc<PeerInbox>>) -> Arc<Core> {
        let members = self.members().map(|(_, peer)| peer).collect();
        let TeamBuilder { sync, watch, .. } = &self.builder;
        Arc::new(Core::new(self.shared.clone(), way, members, self.layout().1, inboxes, *sync, watch.clone()))
    }

    fn map_apart(&self, boxes: Boxes) -> Result<Arc<Core>> {
        let attempt = self.agreement.attempt;
        let number = team_number(self.lineage.id, attempt);
        let apart = Apart::new(number, self.layout().1, boxes, self.builder.algorithm);
        let core = self.core(Way::Apart(Box::new(apart)), Vec::new());
        // The node has to know the team before it says that it does: others may have the team, and send, before this member has it.
        self.shared.enter(self.me, OPERATION)?.service::<Teams>().enter(&core, self.lineage.id, attempt);
        Ok(core)
    }

    /// `None` if the region cannot be mapped, or a member is gone.
    fn map_shared(&mut self, owner: usize, (number, secret): (u32, u64)) -> Option<Arc<Core>> {
        let (shared, (layout, me)) = (self.shared, self.layout());
        let memory = if owner == self.rank {
            self.own.as_mut()?.memory.take()?
        } else {
            let PeerId { node, incarnation } = self.lineage.list[owner];
            let region = shared.regions().open(shared.membership(), node, incarnation, number, true, layout.bytes()).ok()?;
            Some(region).filter(|region| region.secret() == secret).and_then(|region| Memory::peer(region, layout, me))?
        };
        let inbox = |(_, peer): (usize, PeerId)| shared.regions().inbox(shared.membership(), peer.node, peer.incarnation).ok();
        let inboxes = self.others().map(inbox).collect::<Option<_>>()?;
        Some(self.core(Way::Shared(memory), inboxes))
    }

    /// All members have mapped the team.
    fn finish(&mut self) -> Result<Arc<Core>> {
        let core = self.core.take().ok_or(Error::Cancelled)?;
        let mut engine = self.shared.enter(self.me, OPERATION)?;
        engine.service::<Teams>().enter(&core, self.lineage.id, self.agreement.attempt);
        // Peers that went before the team was entered are reported to no team.
        for &peer in &core.members {
            if let Some(why) = engine.gone(peer.node, peer.incarnation) {
                core.gone(peer, why);
            }
        }
        if core.apart().is_some_and(Apart::wants) {
            engine.service::<Teams>().keep(&core);
        }
        Ok(core.clone())
    }
}

impl Drop for Forming<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let Ok(me) = self.shared.check() else { return };
        let Ok(mut engine) = self.shared.enter(me, OPERATION) else { return };
        let all = vec![true; self.lineage.list.len()];
        let (lineage, stage) = (self.lineage.id, Stage::Gone);
        let note = Note { lineage, attempt: 0, stage, layout: 0, region: None, set: all.clone(), near: all };
        for (at, &peer) in self.lineage.list.iter().enumerate() {
            if at != self.rank {
                engine.service::<Teams>().inform(peer, note.encode());
            }
        }
        engine.push(me);
    }
}
