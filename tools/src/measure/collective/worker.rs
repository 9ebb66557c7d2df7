//! One of the processes of a team. It joins the domain, forms the team with the others, and does the sections.

use super::{ELEMENT, Leg, Op, Plan};
use crate::exit::Failure;
use crate::experiment::{Place, Trouble, leave, unless_stopped};
use crate::measure::lock::LANES;
use crate::text::word;
use doorbell::collective::reduction::Sum;
use doorbell::collective::{ChannelStats, Team};
use doorbell::{Error, Node, NodeId};
use doorbell_benches::{Stopped, ticks};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long forming a team may take.
const FORM: Duration = Duration::from_secs(20);
/// How long a section takes, unless the number of calls is given.
const SECTION_NS: f64 = 20e6;
/// The most calls of such a section.
const CALLS_MOST: u64 = 1 << 20;
const ROOT: usize = 0;

/// The findings of one process for a leg.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    /// The sections by each way of synchronisation.
    pub ways: Vec<Sections>,
    /// The sections of the bare counter barrier, if it was measured.
    pub floor: Option<Sections>,
}

/// The calls of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sections {
    /// Calls of a section.
    pub calls: u64,
    /// Ticks of each section.
    pub ticks: Vec<u64>,
    /// The counts of its team's channels in these sections.
    pub stats: Stats,
}

/// The counts of a team's channels: operations, and turns that were acquired, queued, synchronised and foreseen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats(pub [u64; 5]);

impl Stats {
    fn of(team: &Team) -> Self {
        let ChannelStats { operations, acquired, queued, synchronised, foreseen, .. } = team.stats();
        Self([operations, acquired, queued, synchronised, foreseen])
    }

    /// The counts between an earlier look and this one.
    fn since(self, before: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] - before.0[at]))
    }

    /// The counts of two processes.
    pub fn and(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] + other.0[at]))
    }
}

/// Joins the domain, forms the teams, and goes through the legs.
pub fn work(plan: &Plan, place: &Place) -> Result<Vec<Found>, Trouble> {
    let builder = plan.setting.builder("collective").map(|builder| builder.lanes(LANES));
    let node = place.join(&plan.setting, builder, plan.nodes, plan.nodes)?;
    let teams = form(plan, place, &node)?;
    let done = Member { plan, place, teams }.work();
    leave(node, done)
}

/// A team for each way of synchronisation.
fn form(plan: &Plan, place: &Place, node: &Node) -> Result<Vec<Team>, Trouble> {
    let ids: Vec<NodeId> = (0..plan.nodes).map(|node| NodeId(node as u16)).collect();
    let form = |way: &super::Way| {
        let team = Team::builder(node).members(&ids).label(word(way)).channels(plan.channels).slot_bytes(plan.slot);
        team.sync(way.sync()).form_until(Instant::now() + FORM)
    };
    plan.ways.iter().map(form).collect::<Result<_, Error>>().map_err(|error| {
        let what = format!("could not form a team of {} with {} channels", plan.nodes, plan.channels);
        if place.patience.stopped() {
            return Stopped.into();
        }
        Failure::usage(format!("{what}: {error}"), "").see(&error).into()
    })
}

/// A member of the teams.
struct Member<'a> {
    plan: &'a Plan,
    place: &'a Place,
    teams: Vec<Team>,
}

impl Member<'_> {
    /// Goes through the legs.
    fn work(&self) -> Result<Vec<Found>, Trouble> {
        let plan = self.plan;
        let found = plan.legs.iter().map(|leg| self.leg(*leg)).collect::<Result<_, _>>()?;
        // No process leaves while another may still use its node.
        self.place.gate(plan.nodes)?;
        Ok(found)
    }

    fn leg(&self, leg: Leg) -> Result<Found, Trouble> {
        let (plan, Place { mapping, patience, .. }) = (self.plan, self.place);
        let mut vectors = Vectors::new(leg, plan.nodes);
        let mut ways = Vec::new();
        for team in &self.teams {
            vectors.check(team)?;
            let calls = self.calls(|| vectors.call(team))?;
            ways.push(Sections { calls, ..Sections::default() });
        }
        let barrier = || Ok(mapping.common().barrier.pass(plan.nodes, patience)?);
        let mut floor = None;
        if plan.floor && leg.op == Op::Barrier {
            floor = Some(Sections { calls: self.calls(barrier)?, ..Sections::default() });
        }
        for round in 0..plan.rounds {
            for turn in 0..self.teams.len() {
                // The first way of a round changes from round to round.
                let way = (turn + round) % self.teams.len();
                let (team, seen) = (&self.teams[way], &mut ways[way]);
                team.barrier()?;
                let before = Stats::of(team);
                seen.ticks.push(self.section(seen.calls, || vectors.call(team))?);
                seen.stats = seen.stats.and(Stats::of(team).since(before));
            }
            if let Some(seen) = &mut floor {
                barrier()?;
                seen.ticks.push(self.section(seen.calls, barrier)?);
            }
        }
        Ok(Found { ways, floor })
    }

    /// The ticks of `calls` calls.
    #[inline(always)]
    fn section(&self, calls: u64, mut call: impl FnMut() -> Result<(), Trouble>) -> Result<u64, Trouble> {
        let began = ticks();
        for _ in 0..calls {
            unless_stopped(&self.place.patience)?;
            call()?;
        }
        Ok(ticks() - began)
    }

    /// The calls of a section: the number that was given, or as many as fit. Rank 0 measures that, and tells the others.
    fn calls(&self, mut call: impl FnMut() -> Result<(), Trouble>) -> Result<u64, Trouble> {
        if let Some(iterations) = self.plan.iterations {
            return Ok(iterations);
        }
        let mut calls = 1;
        loop {
            let mut ns = [(self.section(calls, &mut call)? as f64 * self.place.ns_per_tick).max(1.0)];
            self.teams[0].broadcast(ROOT, &mut ns)?;
            let fit = (calls as f64 * SECTION_NS / ns[0]) as u64;
            if fit <= 4 * calls || calls >= CALLS_MOST {
                return Ok(fit.clamp(1, CALLS_MOST));
            }
            calls *= 4;
        }
    }
}

/// The vectors of a process.
struct Vectors {
    leg: Leg,
    /// The vector that the process contributes. Some operations leave their result here.
    mine: Vec<f32>,
    /// The vectors of the others, if the operation has a second buffer.
    theirs: Vec<f32>,
    /// The state of the random amount of work.
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

    /// Takes part in the operation, and works meanwhile if there is work.
    #[inline(always)]
    fn call(&mut self, team: &Team) -> Result<(), Trouble> {
        if let Some(of) = self.leg.work {
            let under_way = team.start_allreduce(Sum, std::mem::take(&mut self.mine))?;
            // Each member gets other numbers, and all ways of synchronisation get the same.
            self.chance =
                (self.chance.wrapping_add(team.rank() as u64 + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.chance >> 29;
            compute(((self.chance >> 32) * 2 * of.steps) >> 32);
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

    /// Takes part once and checks the result. Afterwards all vectors are zero, so that repeated sums stay zero, and all their pages are in memory.
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
            return Err(Trouble::wrong(format_args!(
                "{} of {bytes} bytes gave rank {rank} {found} in element {at}, where {} was expected",
                word(&op),
                expected(at)
            )));
        }
        self.mine.fill(0.0);
        self.theirs.fill(0.0);
        Ok(())
    }
}

/// Does `steps` steps of work. Each step needs the result of the one before.
#[inline(never)]
pub fn compute(steps: u64) {
    let mut x = 1_u64;
    for _ in 0..steps {
        x = black_box(x.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 1);
    }
}
