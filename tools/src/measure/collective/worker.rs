//! One of the processes of a team: pins itself, joins the domain, forms the team with the others, and does section after section.

use super::super::lock::worker::LANES;
use super::super::net;
use super::super::plan::Reply;
use super::super::worker::{WorkerArgs, answer, meet, obey, pin, read, unable};
use super::{ELEMENT, Leg, Op, Plan};
use crate::exit::Failure;
use crate::log;
use doorbell::collective::reduction::Sum;
use doorbell::collective::{ChannelStats, Team};
use doorbell::{Error, Node, NodeId};
use doorbell_benches::clock::ticks;
use doorbell_benches::floor::{Mapping, Patience, Shape, Stopped};
use doorbell_fabric::ParseIdError;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tracing_subscriber::filter::LevelFilter;

/// The name under which the command runs itself.
pub const COMMAND: &str = "collective-worker";
/// How long forming a team may take.
const FORM: Duration = Duration::from_secs(20);
/// How long a section is, where nothing is said of its calls.
const SECTION_NS: f64 = 20e6;
/// The most calls of such a section.
const CALLS_MOST: u64 = 1 << 20;
const ROOT: usize = 0;

/// What one process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// What all are told.
    pub plan: Plan,
    /// Which of them it is: its rank, too.
    pub node: usize,
    /// The descriptor of the memory that all share, in which the floor is.
    pub memory: i32,
    /// The process that started it.
    pub parent: i32,
    /// Nanoseconds in a tick.
    pub ns_per_tick: f64,
}

/// What one process found of a leg.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    /// For each way of synchronisation.
    pub ways: Vec<Sections>,
    /// Of the bare counter barrier, if it was measured.
    pub floor: Option<Sections>,
}

/// What one process saw of its own calls.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sections {
    /// Calls of a section.
    pub calls: u64,
    /// Ticks of each section.
    pub ticks: Vec<u64>,
    /// What became of its team's channels in these.
    pub stats: Stats,
}

/// What became of channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Stats {
    pub operations: u64,
    pub acquired: u64,
    pub queued: u64,
    pub synchronised: u64,
    pub foreseen: u64,
}

impl Stats {
    /// Adds what came between two looks.
    fn add(&mut self, before: ChannelStats, after: ChannelStats) {
        self.operations += after.operations - before.operations;
        self.acquired += after.acquired - before.acquired;
        self.queued += after.queued - before.queued;
        self.synchronised += after.synchronised - before.synchronised;
        self.foreseen += after.foreseen - before.foreseen;
    }

    /// Those of two processes.
    pub fn and(self, other: Stats) -> Self {
        Self {
            operations: self.operations + other.operations,
            acquired: self.acquired + other.acquired,
            queued: self.queued + other.queued,
            synchronised: self.synchronised + other.synchronised,
            foreseen: self.foreseen + other.foreseen,
        }
    }
}

/// Why a task was not done.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Stopped(#[from] Stopped),
    #[error(transparent)]
    Driver(#[from] Error),
    #[error("{op} of {bytes} bytes gave rank {rank} {found} in element {at}, where {expected} was expected")]
    Wrong { op: &'static str, bytes: usize, rank: usize, at: usize, found: f32, expected: f32 },
}

/// Does what it was ordered to and answers on stdout.
pub fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let order: Order = read(&args.order)?;
    // What befalls one of them befalls all, and one line is enough.
    log::install(if order.node == 0 { LevelFilter::WARN } else { LevelFilter::OFF })?;
    answer(&serve(&order))
}

fn serve(order: &Order) -> Reply<Vec<Found>> {
    let prepared = match Prepared::new(order) {
        Ok(prepared) => prepared,
        Err(reply) => return reply,
    };
    let done = prepared.work();
    let Prepared { node, teams, patience, .. } = prepared;
    drop(teams);
    let left = node.leave().map_err(Trouble::from);
    match done.and_then(|found| left.map(|()| found)) {
        Ok(found) => Reply::Done(found),
        Err(Trouble::Stopped(_)) => Reply::Stopped,
        // The others were told as well, and one of them has left before this one looked.
        Err(_) if patience.stopped() => Reply::Stopped,
        Err(trouble) => Reply::Failed(trouble.to_string()),
    }
}

/// All that must be there before the first section.
struct Prepared<'a> {
    order: &'a Order,
    node: Node,
    /// One for each way of synchronisation.
    teams: Vec<Team>,
    mapping: Mapping,
    patience: Patience,
}

impl<'a> Prepared<'a> {
    fn new(order: &'a Order) -> Result<Self, Reply<Vec<Found>>> {
        let Order { plan, node, memory, parent, .. } = order;
        let stop = Arc::new(AtomicBool::new(false));
        obey(*parent, &stop)?;
        pin(plan.processor(*node)).map_err(Reply::Unable)?;
        // SAFETY: the descriptor was made for this process, and nothing has used it yet.
        let mapping = unsafe { Mapping::inherit(*memory, Shape { pairs: 0, bytes: 0 }) }.map_err(|error| {
            Reply::Unable(unable("could not map the memory that the processes of a measurement share", error))
        })?;
        let patience = Patience::new(stop, plan.crowded);
        let what = format!("could not join the domain '{}' as node {node}", plan.domain);
        let joined = join(plan, *node).map_err(|error| Reply::Unable(net::failure(error).of(&what)))?;
        if !meet(&joined, plan.nodes, &patience).map_err(|error| Reply::Unable(net::failure(error).of(&what)))? {
            return Err(Reply::Stopped);
        }
        let ids: Vec<NodeId> = (0..plan.nodes).map(|node| NodeId(node as u16)).collect();
        let form = |way: &super::Way| {
            let team = joined.team().members(&ids).label(way.name()).channels(plan.channels).slot_bytes(plan.slot);
            team.sync(way.sync()).form_by(Instant::now() + FORM)
        };
        let teams = plan.ways.iter().map(form).collect::<Result<Vec<Team>, Error>>().map_err(|error| {
            let what = format!("could not form a team of {} with {} channels", plan.nodes, plan.channels);
            if patience.stopped() { Reply::Stopped } else { Reply::Unable(unable(&what, error)) }
        })?;
        Ok(Self { order, node: joined, teams, mapping, patience })
    }

    /// Leg after leg, each in rounds.
    fn work(&self) -> Result<Vec<Found>, Trouble> {
        let plan = &self.order.plan;
        let found = plan.legs.iter().map(|leg| self.leg(*leg)).collect::<Result<_, _>>()?;
        // Nobody leaves while somebody may still be looking.
        self.mapping.gate().pass(plan.nodes, &self.patience)?;
        Ok(found)
    }

    fn leg(&self, leg: Leg) -> Result<Found, Trouble> {
        let plan = &self.order.plan;
        let mut vectors = Vectors::new(leg, plan.nodes);
        let mut ways = Vec::new();
        for team in &self.teams {
            vectors.check(team)?;
            let calls = self.calls(|| vectors.call(team))?;
            ways.push(Sections { calls, ..Sections::default() });
        }
        let barrier = || Ok(self.mapping.common().barrier.pass(plan.nodes, &self.patience)?);
        let mut floor = None;
        if plan.floor && leg.op == Op::Barrier {
            floor = Some(Sections { calls: self.calls(barrier)?, ..Sections::default() });
        }
        for round in 0..plan.rounds {
            for turn in 0..self.teams.len() {
                // Each way is the first in every other round.
                let way = (turn + round) % self.teams.len();
                let (team, seen) = (&self.teams[way], &mut ways[way]);
                team.barrier()?;
                let before = team.stats();
                seen.ticks.push(self.section(seen.calls, || vectors.call(team))?);
                seen.stats.add(before, team.stats());
            }
            if let Some(seen) = &mut floor {
                barrier()?;
                seen.ticks.push(self.section(seen.calls, barrier)?);
            }
        }
        Ok(Found { ways, floor })
    }

    /// Ticks of so many calls.
    #[inline(always)]
    fn section(&self, calls: u64, mut call: impl FnMut() -> Result<(), Trouble>) -> Result<u64, Trouble> {
        let began = ticks();
        for _ in 0..calls {
            if self.patience.stopped() {
                return Err(Stopped.into());
            }
            call()?;
        }
        Ok(ticks() - began)
    }

    /// How many calls a section has: as was said, or as many as fit. Rank 0 counts, and the others hear it of it.
    fn calls(&self, mut call: impl FnMut() -> Result<(), Trouble>) -> Result<u64, Trouble> {
        if let Some(iterations) = self.order.plan.iterations {
            return Ok(iterations);
        }
        let mut calls = 1;
        loop {
            let mut ns = [(self.section(calls, &mut call)? as f64 * self.order.ns_per_tick).max(1.0)];
            self.teams[0].broadcast(ROOT, &mut ns)?;
            let fit = (calls as f64 * SECTION_NS / ns[0]) as u64;
            if fit <= 4 * calls || calls >= CALLS_MOST {
                return Ok(fit.clamp(1, CALLS_MOST));
            }
            calls *= 4;
        }
    }
}

fn join(plan: &Plan, node: usize) -> Result<Node, Error> {
    let malformed = |error: ParseIdError| Error::Invalid { what: error.to_string() };
    let builder = Node::builder(&plan.domain).id(NodeId(node as u16)).label("collective").max_nodes(plan.nodes).lanes(LANES);
    builder.progress(plan.progress.parse().map_err(malformed)?).wait(plan.wait.parse().map_err(malformed)?).join()
}

/// What a process contributes, and where it gets what the others do.
struct Vectors {
    leg: Leg,
    /// Read; of operations that leave their result in place, written.
    mine: Vec<f32>,
    /// Written by the others, if there are two vectors.
    theirs: Vec<f32>,
    /// Of how much work comes next.
    chance: u64,
}

impl Vectors {
    fn new(leg: Leg, nodes: usize) -> Self {
        let elements = leg.bytes / ELEMENT;
        let (mine, theirs) = match leg.op {
            Op::Barrier => (0, 0),
            Op::Broadcast | Op::Reduce | Op::Allreduce => (elements, 0),
            Op::Allgather => (elements, nodes * elements),
            Op::Alltoall => (nodes * elements, nodes * elements),
        };
        Self { leg, mine: vec![0.0; mine], theirs: vec![0.0; theirs], chance: 0 }
    }

    /// Takes part in the operation; works while it is under way, if there is work to do.
    #[inline(always)]
    fn call(&mut self, team: &Team) -> Result<(), Trouble> {
        if let Some(of) = self.leg.work {
            let under_way = team.start_allreduce(Sum, std::mem::take(&mut self.mine))?;
            // Other members, other numbers; the same for all ways of synchronisation.
            self.chance =
                (self.chance.wrapping_add(team.rank() as u64 + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.chance >> 29;
            work(((self.chance >> 32) * 2 * of.steps) >> 32);
            self.mine = under_way.wait()?;
            return Ok(());
        }
        Ok(match self.leg.op {
            Op::Barrier => team.barrier(),
            Op::Broadcast => team.broadcast(ROOT, &mut self.mine),
            Op::Reduce => team.reduce(ROOT, Sum, &mut self.mine),
            Op::Allreduce => team.allreduce(Sum, &mut self.mine),
            Op::Allgather => team.allgather(&self.mine, &mut self.theirs),
            Op::Alltoall => team.alltoall(&self.mine, &mut self.theirs),
        }?)
    }

    /// Takes part once and looks whether the result is right. Afterwards all vectors are zero, so that sums stay what they are however often they are added up;
    /// and all their pages are there.
    fn check(&mut self, team: &Team) -> Result<(), Trouble> {
        let (rank, nodes) = (team.rank(), team.len());
        let of = |rank: usize| (rank + 1) as f32;
        self.mine.fill(of(rank));
        self.theirs.fill(-1.0);
        self.call(team)?;
        let sum = (0..nodes).map(of).sum::<f32>();
        let elements = (self.leg.bytes / ELEMENT).max(1);
        let (result, expected): (&[f32], &dyn Fn(usize) -> f32) = match self.leg.op {
            Op::Barrier => (&[], &|_| 0.0),
            Op::Broadcast => (&self.mine, &|_| of(ROOT)),
            Op::Reduce => (&self.mine, &|_| if rank == ROOT { sum } else { of(rank) }),
            Op::Allreduce => (&self.mine, &|_| sum),
            Op::Allgather | Op::Alltoall => (&self.theirs, &|at| of(at / elements)),
        };
        if let Some((at, found)) = result.iter().enumerate().find(|(at, found)| **found != expected(*at)) {
            let Leg { op, bytes, .. } = self.leg;
            return Err(Trouble::Wrong { op: op.name(), bytes, rank, at, found: *found, expected: expected(at) });
        }
        self.mine.fill(0.0);
        self.theirs.fill(0.0);
        Ok(())
    }
}

/// So many steps of work, each of which needs the one before.
#[inline(never)]
pub fn work(steps: u64) {
    let mut x = 1_u64;
    for _ in 0..steps {
        x = black_box(x.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 1);
    }
}
