//! A team, and what its members do together.

use super::apart::Apart;
use super::core::{Core, Fellow, Kept, Sync, Way, check_outside};
use super::exchange::{Kind, Lengths};
use super::formation::{Agreement, Next, Note, Stage, lineage_number, team_number};
use super::memory::{Layout, Memory, Span};
use super::net::Algorithm;
use super::pending::Collective;
use super::reduction::Reduction;
use super::table::Teams;
use super::watch::{ChannelEvent, ChannelStats, Watch};
use super::what::{What, part, whole};
use doorbell_engine::error::{Error, TeamFault};
use doorbell_engine::node::shared_of;
use doorbell_engine::region::Plain;
use doorbell_engine::sync::op::Op;
use doorbell_engine::{Node, NodeId, Result};
use doorbell_fabric::world;
use doorbell_shm::domain::PeerInbox;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The most members of a team.
pub const MEMBERS_MAX: usize = 256;
/// The most channels of a team.
pub const CHANNELS_MAX: usize = 64;
/// The smallest slot of a member in a channel, and the largest; bytes.
pub const SLOT_MIN: usize = 4096;
/// See [`SLOT_MIN`].
pub const SLOT_MAX: usize = 64 << 20;

/// What can go through a collective.
pub trait Value: Plain + Copy + Send + 'static {}

impl<T: Plain + Copy + Send + 'static> Value for T {}

/// How a team is to be: see [`Team::builder`].
#[derive(Clone, Debug)]
pub struct TeamBuilder {
    node: Node,
    members: Option<Vec<NodeId>>,
    label: String,
    channels: usize,
    slot: usize,
    sync: Sync,
    patience: Option<Duration>,
    algorithm: Option<Algorithm>,
    watch: Option<Watch>,
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
        TeamBuilder {
            node: node.clone(),
            members: None,
            label: String::new(),
            channels: 4,
            slot: 512 << 10,
            sync: Sync::Background,
            patience: None,
            algorithm: None,
            watch: None,
        }
    }
}

impl TeamBuilder {
    /// Who is in it, in the order of ranks. All members say the same.
    pub fn members(mut self, members: &[NodeId]) -> Self {
        self.members = Some(members.to_vec());
        self
    }

    /// Tells teams of the same members apart that are formed at the same time, by different threads.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// How many channels it has: 1 to [`CHANNELS_MAX`], 4 by default. As many operations can be under way, and as many may be ahead of the slowest member.
    pub fn channels(mut self, channels: usize) -> Self {
        self.channels = channels;
        self
    }

    /// Bytes that each member has in each channel: from [`SLOT_MIN`] to [`SLOT_MAX`], a multiple of 128; 512 KiB by default. The team takes
    /// this times channels times members of shared memory.
    pub fn slot_bytes(mut self, bytes: usize) -> Self {
        self.slot = bytes;
        self
    }

    /// When channels are synchronised: in the background by default.
    pub fn sync(mut self, sync: Sync) -> Self {
        self.sync = sync;
        self
    }

    /// How long an operation of the team may take; without end by default. One that takes longer is [`Error::Timeout`], and the team is of no use then but to
    /// be shrunk.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// By which algorithm operations go where some members share no memory, as far as they can: others go by that which is chosen by operation, length
    /// and team, as all do by default. All members say the same. A team of which all share memory does not ask.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// Calls `watch` at each step of this member with a turn of a channel. For tests and for who wants to see; without it nothing is called. Teams that are split off
    /// or shrunk are watched by the same.
    ///
    /// It is called right before others can see the step, in the order of this member's steps, by whichever thread does them: one that calls a collective,
    /// or one that drives the engine, so at no certain thread. All of the team waits meanwhile. It may not block, nor call anything of
    /// its node but [`Team::stats`]: calls of teams are refused ([`Error::Reentrant`]), others may wait for themselves. A panic in it is dropped.
    ///
    /// ```
    /// # use doorbell::{Node, Space};
    /// # use std::sync::{Arc, Mutex};
    /// use doorbell::collective::{ChannelStep, Team};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let node = Node::builder("watch").space(Space::heap()).join()?;
    /// let seen = Arc::new(Mutex::new(Vec::new()));
    /// let sees = seen.clone();
    /// let team = Team::builder(&node).watch(move |event| sees.lock().unwrap().push(event.step)).form()?;
    /// team.barrier()?;
    /// let last = seen.lock().unwrap().last().copied();
    /// assert_eq!(last, Some(ChannelStep::SynchronisationPosted));
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(mut self, watch: impl Fn(ChannelEvent) + Send + std::marker::Sync + 'static) -> Self {
        self.watch = Some(Watch::new(watch));
        self
    }

    /// Forms the team: waits until all members do. Without a deadline.
    ///
    /// # Errors
    /// As [`form_by`](Self::form_by).
    pub fn form(self) -> Result<Team> {
        self.build(None)
    }

    /// Forms the team: waits until all members do, until `deadline` at most. Drives this node's engine meanwhile.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::PeerDied`] and [`Error::PeerLeft`] of a member that is gone; [`Error::NoSuchNode`]; [`Error::Team`] if another member
    /// divides the memory in another way; [`Error::Invalid`] for a list without this node, with a node twice, or figures out of range;
    /// [`Error::Shm`] if there is no room; [`Error::Closed`],
    /// [`Error::Forked`], [`Error::Severed`], [`Error::Reentrant`].
    pub fn form_by(self, deadline: Instant) -> Result<Team> {
        self.build(Some(deadline))
    }

    fn check(&self) -> Result<()> {
        let invalid = |what: String| Err(Error::Invalid { what });
        if !(1..=CHANNELS_MAX).contains(&self.channels) {
            return invalid(format!("a team has 1 to {CHANNELS_MAX} channels, not {}", self.channels));
        }
        if !(SLOT_MIN..=SLOT_MAX).contains(&self.slot) || !self.slot.is_multiple_of(128) {
            return invalid(format!("a slot has {SLOT_MIN} to {SLOT_MAX} bytes, a multiple of 128, not {}", self.slot));
        }
        Ok(())
    }

    fn build(self, deadline: Option<Instant>) -> Result<Team> {
        check_outside("form a team")?;
        self.check()?;
        let shared = shared_of(&self.node);
        let me = shared.check()?;
        let known = shared.living_members(me);
        let ids = self.members.clone().unwrap_or_else(|| known.iter().map(|member| member.id).collect());
        if ids.is_empty() || ids.len() > MEMBERS_MAX {
            return Err(Error::Invalid { what: format!("a team has 1 to {MEMBERS_MAX} members, not {}", ids.len()) });
        }
        let mut fellows = Vec::with_capacity(ids.len());
        for &node in &ids {
            let Some(member) = known.iter().find(|member| member.id == node) else { return Err(Error::NoSuchNode { node }) };
            let fellow = Fellow { node, life: member.incarnation };
            if fellows.contains(&fellow) {
                return Err(Error::Invalid { what: format!("node {node} is in the team's list of members twice") });
            }
            fellows.push(fellow);
        }
        if !ids.contains(&self.node.id()) {
            let what = format!("this node, {}, is not in the team's list of members", self.node.id());
            return Err(Error::Invalid { what });
        }
        let id = lineage_number(&self.label, fellows.iter().map(|fellow| (fellow.node, fellow.life)));
        let (attempt, used) = shared.enter(me, "form a team")?.service::<Teams>().next_attempt(id);
        let lineage = Lineage { id, list: fellows, _used: used };
        let set = vec![true; lineage.list.len()];
        Team::agree(self, lineage, set, attempt, deadline, false)
    }
}

/// Where a team comes from: the list of members of the first one.
#[derive(Clone)]
struct Lineage {
    id: u64,
    list: Vec<Fellow>,
    /// As long as it is there the node knows its latest attempt.
    _used: Arc<()>,
}

/// Nodes that do something together: each is a member, with a rank.
///
/// A collective is called by all members, in the same order, with the same root, reduction and number of elements. Several threads of a node may use different
/// teams at once; of one team one thread at a time (others wait).
///
/// Calls without `start_` come back when this member has its result, which may be before the others have theirs. They drive this node's engine meanwhile.
/// [`STARTED_MAX`](super::STARTED_MAX) operations may be under way at a member.
///
/// Elements that are combined have 4096 bytes at most, and are aligned to 128 at most.
///
/// # Errors
/// Of all collectives: [`Error::PeerDied`] and [`Error::PeerLeft`], with the member, when one is gone: then every member that is left gets it, at the latest from its next
/// operation, and the team is of no more use, but to [`shrink`](Self::shrink). [`Error::Team`] if members called different things, or are out of step as one
/// gave up, or if as many operations are under way as may be ([`TeamFault::Full`]). [`Error::Timeout`] if the team has [`patience`](TeamBuilder::patience). [`Error::Invalid`] for a root that is no rank, lengths that don't fit, or elements
/// that can't be combined.
/// [`Error::Damaged`] if the team's memory was truncated. [`Error::Closed`], [`Error::Forked`], [`Error::Severed`]; [`Error::Reentrant`] within a reduction, as within any
/// callback. After an error the vectors have unspecified, valid elements.
pub struct Team {
    node: Node,
    pub(super) core: Arc<Core>,
    builder: TeamBuilder,
    lineage: Lineage,
    attempt: u32,
    /// How often it was split.
    splits: AtomicU64,
}

impl Team {
    fn agree(
        builder: TeamBuilder,
        lineage: Lineage,
        set: Vec<bool>,
        attempt: u32,
        deadline: Option<Instant>,
        shrinks: bool,
    ) -> Result<Team> {
        const OPERATION: &str = "form a team";
        if !Agreement::may_begin_by(attempt) {
            return Err(Error::Team { operation: OPERATION, why: TeamFault::OutOfStep });
        }
        let node = builder.node.clone();
        let shared = shared_of(&node);
        let me = shared.check()?;
        let own = Fellow { node: node.id(), life: node.incarnation() };
        let rank = lineage.list.iter().position(|fellow| *fellow == own).ok_or(Error::Closed)?;
        let layout = (builder.channels as u64) << 32 | builder.slot as u64;
        let near = {
            let engine = shared.enter(me, OPERATION)?;
            lineage.list.iter().map(|fellow| !engine.is_remote(fellow.node, fellow.life)).collect()
        };
        let (first_attempt, stage) = (attempt, Stage::Ready);
        let mut agreement = Agreement { lineage: lineage.id, attempt, first_attempt, me: rank, set, near, layout, stage };
        let mut region = None;
        let mut made = 0;
        let mut memory = None;
        let mut core: Option<Arc<Core>> = None;
        let mut say = true;
        let gives_up = GivesUp { node: &node, lineage: &lineage, over: std::cell::Cell::new(false) };
        loop {
            let count = agreement.set.iter().filter(|is_in| **is_in).count();
            let divided = Layout { members: count, channels: builder.channels, slot: builder.slot };
            let place = agreement.set[..rank].iter().filter(|is_in| **is_in).count();
            if agreement.first() == rank && !agreement.is_apart() && (region.is_none() || made != agreement.attempt) {
                let number = shared.regions().next_number();
                let own = shared.membership().create_region(number, divided.bytes())?;
                region = Some((number, own.secret()));
                memory = Some(Memory::own(own, divided, place));
                made = agreement.attempt;
            }
            let mut engine = shared.enter(me, OPERATION)?;
            let others = || lineage.list.iter().enumerate().filter(|(at, _)| *at != rank);
            if others().any(|(at, fellow)| agreement.set[at] && engine.is_remote(fellow.node, fellow.life)) {
                say |= !agreement.is_apart();
                agreement.go_apart();
            }
            if say {
                let offered = region.filter(|_| agreement.first() == rank);
                let bytes = agreement.note(offered).encode();
                for (at, fellow) in lineage.list.iter().enumerate() {
                    if agreement.set[at] && at != rank {
                        engine.service::<Teams>().inform((fellow.node, fellow.life).into(), bytes.clone());
                    }
                }
                engine.push(me);
            }
            let gone = |(at, fellow): (usize, &Fellow)| Some((at, *fellow, engine.gone(fellow.node, fellow.life)?));
            if let Some((at, Fellow { node, life }, why)) = others().filter(|(at, _)| agreement.set[*at]).find_map(gone) {
                if !shrinks {
                    return Err(why.error((node, life).into()));
                }
                agreement.without(at);
                say = true;
                continue;
            }
            let teams = engine.service::<Teams>();
            let seen = teams.heard().version;
            let said = |at: usize| teams.said(lineage.list[at].node, lineage.list[at].life, lineage.id);
            let next = agreement.look(said);
            let boxes = (agreement.is_apart() && matches!(next, Next::Map { .. })).then(|| agreement.boxes(said));
            drop(engine);
            say = true;
            match next {
                Next::Say => continue,
                Next::Map { owner, region: (number, secret) } => {
                    let fellows = || -> Vec<Fellow> {
                        let all = lineage.list.iter().zip(&agreement.set);
                        all.filter(|(_, is_in)| **is_in).map(|(fellow, _)| *fellow).collect()
                    };
                    if let Some(boxes) = boxes {
                        // Before it is said: others may have the team, and send, before this member does.
                        let number = team_number(lineage.id, agreement.attempt);
                        let way = Apart::new(number, place, boxes, builder.algorithm);
                        let way = Way::Apart(Box::new(way));
                        let watch = builder.watch.clone();
                        let made = Core::new(shared.clone(), way, fellows(), place, Vec::new(), builder.sync, watch);
                        let made = Arc::new(made);
                        shared.enter(me, OPERATION)?.service::<Teams>().enter(&made, lineage.id, agreement.attempt);
                        core = Some(made);
                    } else {
                        if owner != rank {
                            let Fellow { node, life } = lineage.list[owner];
                            let opened = shared.regions().open(shared.membership(), node, life, number, true, divided.bytes());
                            memory = match opened {
                                Ok(region) if region.secret() == secret => Memory::peer(region, divided, place),
                                _ => None,
                            };
                        }
                        if let Some(memory) = memory.take() {
                            let inboxes = fellows().into_iter().filter(|fellow| *fellow != own).map(|fellow| {
                                let inbox = shared.regions().inbox(shared.membership(), fellow.node, fellow.life);
                                inbox.map_err(|_| Error::PeerDied { node: fellow.node, incarnation: fellow.life })
                            });
                            // One that is gone is heard of soon.
                            if let Ok(inboxes) = inboxes.collect::<Result<Vec<Arc<PeerInbox>>>>() {
                                let way = Way::Shared(memory);
                                core = Some(Arc::new(Core::new(
                                    shared.clone(),
                                    way,
                                    fellows(),
                                    place,
                                    inboxes,
                                    builder.sync,
                                    builder.watch.clone(),
                                )));
                            }
                        }
                    }
                    if core.is_some() {
                        agreement.stage = Stage::Mapped;
                        continue;
                    }
                    // It is of an attempt that is over, or its owner is gone: that is heard soon.
                    say = false;
                }
                Next::Done => {
                    let Some(core) = core.take() else { return Err(Error::Cancelled) };
                    let mut engine = shared.enter(me, OPERATION)?;
                    engine.service::<Teams>().enter(&core, lineage.id, agreement.attempt);
                    // Whoever went since is not heard of by its end.
                    for fellow in &core.fellows {
                        if let Some(why) = engine.gone(fellow.node, fellow.life) {
                            core.gone(fellow.node, fellow.life, why);
                        }
                    }
                    if core.apart().is_some_and(Apart::wants) {
                        engine.service::<Teams>().keep(&core);
                    }
                    drop(engine);
                    gives_up.over.set(true);
                    let attempt = agreement.attempt;
                    drop(gives_up);
                    return Ok(Team { node, core, builder, lineage, attempt, splits: AtomicU64::new(0) });
                }
                Next::Layout(at) => {
                    let node = lineage.list[at].node;
                    return Err(Error::Team { operation: OPERATION, why: TeamFault::Mismatch { node } });
                }
                Next::Out => return Err(Error::Team { operation: OPERATION, why: TeamFault::OutOfStep }),
                Next::Wait => say = false,
            }
            let most = world::now() + Duration::from_millis(25);
            let until = deadline.map_or(most, |deadline| deadline.min(most));
            shared.drive(me, &Op::new(), Some(until), |engine| engine.service::<Teams>().heard().version != seen)?;
            shared.check_peers(me);
            if deadline.is_some_and(|deadline| world::now() >= deadline) {
                return Err(Error::Timeout { operation: OPERATION, node: None });
            }
        }
    }

    /// A team of the members that live, in the same order: called by all of them, as after an error. They agree on who that is. The old team is of no use
    /// from then on.
    ///
    /// # Errors
    /// As [`TeamBuilder::form_by`].
    pub fn shrink(&self) -> Result<Team> {
        self.shrink_within(None)
    }

    /// As [`shrink`](Self::shrink), until `deadline` at most.
    ///
    /// # Errors
    /// As [`TeamBuilder::form_by`].
    pub fn shrink_by(&self, deadline: Instant) -> Result<Team> {
        self.shrink_within(Some(deadline))
    }

    fn shrink_within(&self, deadline: Option<Instant>) -> Result<Team> {
        check_outside("shrink a team")?;
        self.core.shared.usable()?;
        self.core.break_off();
        let set = self.lineage.list.iter().map(|fellow| self.core.fellows.contains(fellow)).collect();
        Team::agree(self.builder.clone(), self.lineage.clone(), set, self.attempt.saturating_add(1), deadline, true)
    }

    /// Teams of those members that say the same `color`, in the order of `order` and, where that is the same, of their ranks here; none for who says none. Called by all members; they wait
    /// for each other.
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
        let members: Vec<NodeId> = ranks.into_iter().map(|rank| self.core.fellows[rank].node).collect();
        let label = format!("{} {:x} {} {splits} {color}", self.builder.label, self.lineage.id, self.attempt);
        let deadline = self.deadline();
        self.builder.clone().members(&members).label(label).build(deadline).map(Some)
    }

    /// This member's rank: its place in the list, from 0.
    pub fn rank(&self) -> usize {
        self.core.me
    }

    /// How many members there are.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.core.fellows.len()
    }

    /// The members, in the order of ranks.
    pub fn members(&self) -> Vec<NodeId> {
        self.core.fellows.iter().map(|fellow| fellow.node).collect()
    }

    /// The members that share memory with each other: ranks, by box. One box if all do. Each member for itself if they do not agree on it.
    pub fn boxes(&self) -> Vec<Vec<usize>> {
        self.core.apart().map_or_else(|| vec![(0..self.len()).collect()], |apart| apart.boxes.ranks().to_vec())
    }

    /// By which algorithm the operation goes, or went, that this member began last. `None` if there was none, and if all members share memory.
    pub fn algorithm(&self) -> Option<Algorithm> {
        self.core.apart().and_then(Apart::algorithm)
    }

    /// What became of its channels so far.
    pub fn stats(&self) -> ChannelStats {
        self.core.stats()
    }

    fn deadline(&self) -> Option<Instant> {
        self.builder.patience.map(|patience| world::now() + patience)
    }

    fn is_rank(&self, root: usize) -> Result<()> {
        if root < self.len() {
            return Ok(());
        }
        Err(Error::Invalid { what: format!("rank {root} is none of a team of {}", self.len()) })
    }

    fn run(&self, operation: &'static str, what: What) -> Result<()> {
        let deadline = self.deadline();
        self.core.run(operation, deadline, what)
    }

    /// Waits until all members have called it.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn barrier(&self) -> Result<()> {
        self.run("barrier", What::of(Kind::Barrier, Span::NONE, Span::NONE, Lengths::Each(0)))
    }

    /// Gives all members what the root has.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn broadcast<T: Value>(&self, root: usize, xs: &mut [T]) -> Result<()> {
        self.is_rank(root)?;
        let span = whole(xs);
        self.run("broadcast", What::of(Kind::Broadcast { root }, span, span, Lengths::Each(size_of_val(xs))))
    }

    /// Combines the vectors of all members, in the order of ranks, into the root's. The others' stay as they are.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn reduce<T: Value, R: Reduction<T>>(&self, root: usize, reduction: R, xs: &mut [T]) -> Result<()> {
        self.is_rank(root)?;
        let span = whole(xs);
        self.run("reduce", What::of(Kind::Reduce { root }, span, span, Lengths::Each(size_of_val(xs))).folding(reduction)?)
    }

    /// Combines the vectors of all members, in the order of ranks, into that of each.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn allreduce<T: Value, R: Reduction<T>>(&self, reduction: R, xs: &mut [T]) -> Result<()> {
        let span = whole(xs);
        self.run("allreduce", What::of(Kind::AllReduce, span, span, Lengths::Each(size_of_val(xs))).folding(reduction)?)
    }

    /// Combines the vectors of the ranks up to each member's own, in their order, into its own.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn scan<T: Value, R: Reduction<T>>(&self, reduction: R, xs: &mut [T]) -> Result<()> {
        let span = whole(xs);
        self.run("scan", What::of(Kind::Scan, span, span, Lengths::Each(size_of_val(xs))).folding(reduction)?)
    }

    /// Gives the root the vectors of all members, one after the other in the order of ranks. The root says where to: `all` is as long as all of them.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn gather<T: Value>(&self, root: usize, mine: &[T], all: Option<&mut [T]>) -> Result<()> {
        self.is_rank(root)?;
        let all = self.at_root(root, all, mine.len() * self.len())?;
        self.run("gather", What::of(Kind::Gather { root }, part(mine), whole(all), Lengths::Each(size_of_val(mine))))
    }

    /// As [`gather`](Self::gather), of vectors of different lengths: the root says how many elements it gets of each.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn gather_v<T: Value>(&self, root: usize, mine: &[T], all: Option<(&mut [T], &[usize])>) -> Result<()> {
        self.is_rank(root)?;
        let (all, counts) = all.map_or((None, None), |(all, counts)| (Some(all), Some(counts)));
        let mut get = vec![0; self.len()];
        if let Some(counts) = counts.filter(|_| root == self.rank()) {
            get = self.bytes_of::<T>(counts)?;
        }
        let all = self.at_root(root, all, get.iter().sum::<usize>() / size_of::<T>().max(1))?;
        let send = vec![size_of_val(mine); self.len()];
        let lengths = Lengths::Of { send: send.into(), get: get.into() };
        self.run("gather_v", What::of(Kind::Gather { root }, part(mine), whole(all), lengths))
    }

    /// Gives each member its part of what the root has, in the order of ranks: `all` is the root's, as long as all parts.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn scatter<T: Value>(&self, root: usize, all: Option<&[T]>, mine: &mut [T]) -> Result<()> {
        self.is_rank(root)?;
        let all = self.of_root(root, all, mine.len() * self.len())?;
        let lengths = Lengths::Each(size_of_val(mine));
        self.run("scatter", What::of(Kind::Scatter { root }, part(all), whole(mine), lengths))
    }

    /// As [`scatter`](Self::scatter), in parts of different lengths: the root says how many elements each gets.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn scatter_v<T: Value>(&self, root: usize, all: Option<(&[T], &[usize])>, mine: &mut [T]) -> Result<()> {
        self.is_rank(root)?;
        let (all, counts) = all.map_or((None, None), |(all, counts)| (Some(all), Some(counts)));
        let mut send = vec![0; self.len()];
        if let Some(counts) = counts.filter(|_| root == self.rank()) {
            send = self.bytes_of::<T>(counts)?;
        }
        let all = self.of_root(root, all, send.iter().sum::<usize>() / size_of::<T>().max(1))?;
        let get = vec![size_of_val(mine); self.len()];
        let lengths = Lengths::Of { send: send.into(), get: get.into() };
        self.run("scatter_v", What::of(Kind::Scatter { root }, part(all), whole(mine), lengths))
    }

    /// Gives all members the vectors of all, one after the other in the order of ranks.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn allgather<T: Value>(&self, mine: &[T], all: &mut [T]) -> Result<()> {
        self.fits(all.len(), mine.len() * self.len())?;
        self.run("allgather", What::of(Kind::AllGather, part(mine), whole(all), Lengths::Each(size_of_val(mine))))
    }

    /// As [`allgather`](Self::allgather), of vectors of different lengths: all say how many elements there are of each.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn allgather_v<T: Value>(&self, mine: &[T], all: &mut [T], counts: &[usize]) -> Result<()> {
        let get = self.bytes_of::<T>(counts)?;
        self.fits(all.len(), counts.iter().sum())?;
        self.fits(mine.len(), counts[self.rank()])?;
        let send = vec![size_of_val(mine); self.len()];
        let lengths = Lengths::Of { send: send.into(), get: get.into() };
        self.run("allgather_v", What::of(Kind::AllGather, part(mine), whole(all), lengths))
    }

    /// Gives each member its part of what each has: the part of `from` that has the place of its rank, to the place of this one's rank in its `into`.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn alltoall<T: Value>(&self, from: &[T], into: &mut [T]) -> Result<()> {
        let each = from.len() / self.len();
        self.fits(from.len(), each * self.len())?;
        self.fits(into.len(), from.len())?;
        let lengths = Lengths::Each(each * size_of::<T>());
        self.run("alltoall", What::of(Kind::AllToAll, part(from), whole(into), lengths))
    }

    /// As [`alltoall`](Self::alltoall), in parts of different lengths: how many elements go to each, and how many come of each.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn alltoall_v<T: Value>(&self, from: &[T], send: &[usize], into: &mut [T], get: &[usize]) -> Result<()> {
        let (to, of) = (self.bytes_of::<T>(send)?, self.bytes_of::<T>(get)?);
        self.fits(from.len(), send.iter().sum())?;
        self.fits(into.len(), get.iter().sum())?;
        self.fits(send[self.rank()], get[self.rank()])?;
        let lengths = Lengths::Of { send: to.into(), get: of.into() };
        self.run("alltoall_v", What::of(Kind::AllToAll, part(from), whole(into), lengths))
    }

    /// Combines the vectors of all members, in the order of ranks, and gives each the part that has the place of its rank.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn reduce_scatter<T: Value, R: Reduction<T>>(&self, reduction: R, all: &[T], mine: &mut [T]) -> Result<()> {
        self.fits(all.len(), mine.len() * self.len())?;
        let lengths = Lengths::Each(size_of_val(mine));
        let what = What::of(Kind::ReduceScatter, part(all), whole(mine), lengths);
        self.run("reduce_scatter", what.folding(reduction)?)
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), in parts of different lengths: all say how many elements each gets.
    ///
    /// # Errors
    /// See [`Team`].
    pub fn reduce_scatter_v<T: Value, R: Reduction<T>>(
        &self,
        reduction: R,
        all: &[T],
        counts: &[usize],
        mine: &mut [T],
    ) -> Result<()> {
        let send = self.bytes_of::<T>(counts)?;
        self.fits(all.len(), counts.iter().sum())?;
        self.fits(mine.len(), counts[self.rank()])?;
        let get = vec![size_of_val(mine); self.len()];
        let lengths = Lengths::Of { send: send.into(), get: get.into() };
        let what = What::of(Kind::ReduceScatter, part(all), whole(mine), lengths);
        self.run("reduce_scatter_v", what.folding(reduction)?)
    }

    /// Begins a [`barrier`](Self::barrier).
    ///
    /// # Errors
    /// See [`Team`].
    pub fn start_barrier(&self) -> Result<Collective<()>> {
        self.start(false, Vec::<u8>::new(), What::of(Kind::Barrier, Span::NONE, Span::NONE, Lengths::Each(0)))
            .map(Collective::empty)
    }

    /// Begins a [`broadcast`](Self::broadcast).
    ///
    /// # Errors
    /// See [`Team`].
    pub fn start_broadcast<T: Value>(&self, root: usize, xs: Vec<T>) -> Result<Collective<T>> {
        self.start_broadcast_in(false, root, xs)
    }

    fn start_broadcast_in<T: Value>(&self, open: bool, root: usize, mut xs: Vec<T>) -> Result<Collective<T>> {
        self.is_rank(root)?;
        let span = whole(&mut xs);
        let lengths = Lengths::Each(span.len());
        self.start(open, xs, What::of(Kind::Broadcast { root }, span, span, lengths))
    }

    /// Begins a [`reduce`](Self::reduce).
    ///
    /// # Errors
    /// See [`Team`].
    pub fn start_reduce<T: Value, R: Reduction<T>>(&self, root: usize, reduction: R, xs: Vec<T>) -> Result<Collective<T>> {
        self.start_reduce_in(false, root, reduction, xs)
    }

    fn start_reduce_in<T: Value, R: Reduction<T>>(
        &self,
        open: bool,
        root: usize,
        reduction: R,
        mut xs: Vec<T>,
    ) -> Result<Collective<T>> {
        self.is_rank(root)?;
        let span = whole(&mut xs);
        let lengths = Lengths::Each(span.len());
        self.start(open, xs, What::of(Kind::Reduce { root }, span, span, lengths).folding(reduction)?)
    }

    /// Begins an [`allreduce`](Self::allreduce).
    ///
    /// # Errors
    /// See [`Team`].
    pub fn start_allreduce<T: Value, R: Reduction<T>>(&self, reduction: R, xs: Vec<T>) -> Result<Collective<T>> {
        self.start_allreduce_in(false, reduction, xs)
    }

    fn start_allreduce_in<T: Value, R: Reduction<T>>(&self, open: bool, reduction: R, mut xs: Vec<T>) -> Result<Collective<T>> {
        let span = whole(&mut xs);
        let lengths = Lengths::Each(span.len());
        self.start(open, xs, What::of(Kind::AllReduce, span, span, lengths).folding(reduction)?)
    }

    /// Begins several collectives that go through one channel, with one synchronisation point behind the last. All members make the same batch.
    ///
    /// Nothing else of the team may be called before the batch is dropped.
    pub fn batch(&self) -> Batch<'_> {
        Batch { team: self }
    }

    fn start<T: Value>(&self, open: bool, xs: Vec<T>, what: What) -> Result<Collective<T>> {
        let kept = Arc::new(Mutex::new(xs));
        let clone: Kept = Box::new(kept.clone());
        let op = self.core.start(open, Some(clone), what)?;
        Ok(Collective::new(self.node.clone(), self.core.clone(), op, kept))
    }

    fn fits(&self, found: usize, expected: usize) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        let what = format!("a vector of {expected} elements is needed here, for a team of {}, not one of {found}", self.len());
        Err(Error::Invalid { what })
    }

    fn bytes_of<T>(&self, counts: &[usize]) -> Result<Vec<usize>> {
        if counts.len() != self.len() {
            let what = format!("there are {} counts for a team of {}; one for each member is needed", counts.len(), self.len());
            return Err(Error::Invalid { what });
        }
        let bytes = |count: &usize| count.checked_mul(size_of::<T>()).filter(|bytes| *bytes < 1 << 48);
        let bytes = counts.iter().map(bytes).collect::<Option<Vec<usize>>>();
        bytes.ok_or_else(|| Error::Invalid { what: "a count of elements is beyond all memory".into() })
    }

    /// What only the root has.
    fn at_root<'a, T>(&self, root: usize, all: Option<&'a mut [T]>, expected: usize) -> Result<&'a mut [T]> {
        match all.filter(|_| root == self.rank()) {
            Some(all) => self.fits(all.len(), expected).map(|()| all),
            None if root == self.rank() && expected > 0 => Err(Error::Invalid { what: "the root has to say where to".into() }),
            None => Ok(&mut []),
        }
    }

    fn of_root<'a, T>(&self, root: usize, all: Option<&'a [T]>, expected: usize) -> Result<&'a [T]> {
        match all.filter(|_| root == self.rank()) {
            Some(all) => self.fits(all.len(), expected).map(|()| all),
            None if root == self.rank() && expected > 0 => Err(Error::Invalid { what: "the root has to say of what".into() }),
            None => Ok(&[]),
        }
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut team = f.debug_struct("Team");
        team.field("rank", &self.rank()).field("members", &self.members());
        team.field("boxes", &self.boxes()).field("algorithm", &self.algorithm()).finish_non_exhaustive()
    }
}

/// Several collectives with one synchronisation point: see [`Team::batch`].
#[derive(Debug)]
pub struct Batch<'a> {
    team: &'a Team,
}

impl Batch<'_> {
    /// As [`Team::start_broadcast`].
    ///
    /// # Errors
    /// See [`Team`].
    pub fn broadcast<T: Value>(&self, root: usize, xs: Vec<T>) -> Result<Collective<T>> {
        self.team.start_broadcast_in(true, root, xs)
    }

    /// As [`Team::start_reduce`].
    ///
    /// # Errors
    /// See [`Team`].
    pub fn reduce<T: Value, R: Reduction<T>>(&self, root: usize, reduction: R, xs: Vec<T>) -> Result<Collective<T>> {
        self.team.start_reduce_in(true, root, reduction, xs)
    }

    /// As [`Team::start_allreduce`].
    ///
    /// # Errors
    /// See [`Team`].
    pub fn allreduce<T: Value, R: Reduction<T>>(&self, reduction: R, xs: Vec<T>) -> Result<Collective<T>> {
        self.team.start_allreduce_in(true, reduction, xs)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.team.core.close_batch();
    }
}

/// Tells the others that this member waits no longer, unless it is over.
struct GivesUp<'a> {
    node: &'a Node,
    lineage: &'a Lineage,
    over: std::cell::Cell<bool>,
}

impl Drop for GivesUp<'_> {
    fn drop(&mut self) {
        if self.over.get() {
            return;
        }
        let shared = shared_of(self.node);
        let Ok(me) = shared.check() else { return };
        let Ok(mut engine) = shared.enter(me, "form a team") else { return };
        let note = Note {
            lineage: self.lineage.id,
            attempt: 0,
            stage: Stage::Gone,
            layout: 0,
            region: None,
            set: vec![true; self.lineage.list.len()],
            near: vec![true; self.lineage.list.len()],
        };
        for fellow in self.lineage.list.iter().filter(|fellow| fellow.node != self.node.id()) {
            engine.service::<Teams>().inform((fellow.node, fellow.life).into(), note.encode());
        }
        engine.push(me);
    }
}
