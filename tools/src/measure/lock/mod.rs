//! `doorbell lock`: how long it takes to lock a lock of the registry, alone and while other processes want it.
//!
//! Each section is a [`Task`] of [`worker`]s of its own. Its findings become [`report::Row`]s: [`alone`] or, over a network, [`remote`]; and [`contended`].

pub mod report;
pub mod worker;

pub use report::{Row, What};
pub use worker::{Found, LANES, PAIRS, ROUNDS};

use super::{Fabric, UdpArgs};
use crate::exit::Failure;
use crate::experiment::{Experiment, Outcome, Place, ProcessArgs, Setting, Trouble, measure};
use crate::processes::EndRequest;
use crate::text::{RowArgs, counted, print};
use doorbell_benches::{Clock, Contended, Samples};
use serde::{Deserialize, Serialize};

/// Measure how long it takes to lock a lock, alone and while other processes want it
///
/// First one process locks and unlocks a lock, in turns with two compare-and-swaps on a cache line of its own, the least that any lock
/// needs. Then several processes want one lock for some seconds, in turns with the C library's robust mutex. The process that holds
/// the lock raises two counters. At the end both counters must equal the number of locks, or the command fails.
///
/// With --fabric udp the processes share no memory for the lock. The first process is the coordinator of the lock, and the others ask it. In the
/// uncontended part another process than the coordinator locks, in turns with a message there and back.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../../help/lock.txt"))]
pub struct LockArgs {
    /// Processes that want the same lock
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=64))]
    nodes: u16,
    /// How long they want the lock, in turns of a second with the mutex, for as long again; over UDP, also the most time that one process locks alone
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    #[command(flatten)]
    processes: ProcessArgs,
    /// Measure the driver alone
    #[arg(long)]
    no_floor: bool,
    #[command(flatten)]
    form: RowArgs,
    /// The fabric over which processes reach the lock
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Fabric::Shm, help_heading = "Over the network")]
    fabric: Fabric,
    #[command(flatten)]
    udp: UdpArgs,
}

/// The measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// How the processes run.
    pub setting: Setting,
    /// The number of processes that contend.
    pub nodes: usize,
    /// How many seconds they contend.
    pub seconds: u32,
    /// Whether the floor is measured, too.
    pub floor: bool,
}

/// A section of the measurement, by processes of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// The plan of all sections.
    pub plan: Plan,
    /// Which section this is.
    pub kind: Kind,
}

/// The kind of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// One process locks a lock that no other process wants.
    Alone,
    /// The same by another node than the coordinator of the lock.
    Remote,
    /// All processes want the same lock.
    Contended,
}

impl Experiment for Task {
    const NAME: &'static str = "lock";
    type Found = Found;
    type Row = Row;

    fn setting(&self) -> &Setting {
        &self.plan.setting
    }

    fn processes(&self) -> usize {
        match self.kind {
            Kind::Alone => 1,
            Kind::Remote => 2,
            Kind::Contended => self.plan.nodes,
        }
    }

    fn role(&self, _: usize) -> &'static str {
        "one of the processes that lock"
    }

    fn work(self, place: Place) -> Result<Found, Trouble> {
        worker::work(&self, &place)
    }

    fn rows(&self, outcome: Outcome<Found>) -> Result<Vec<Row>, Failure> {
        let found = &outcome.found;
        match self.kind {
            Kind::Alone => Ok(found.iter().flat_map(|found| alone(found, outcome.clock)).collect()),
            Kind::Remote => Ok(found.iter().flat_map(|found| remote(found, outcome.clock)).collect()),
            Kind::Contended => contended(&self.plan, &outcome),
        }
    }
}

/// Measures and prints.
pub fn run(args: &LockArgs) -> Result<(), Failure> {
    let nodes = usize::from(args.nodes);
    // `_key` has to live as long as the workers.
    let (net, _key) = args.udp.net(args.fabric, &[])?.unzip();
    // The mutex needs shared memory, and the time of a message is no floor.
    let floor = !args.no_floor && net.is_none();
    let first = if net.is_some() { Kind::Remote } else { Kind::Alone };
    let setting = args.processes.setting("lock", nodes, net)?;
    let plan = Plan { setting, nodes, seconds: args.seconds, floor };
    let (request, clock) = (EndRequest::listen()?, Clock::calibrate());
    let [first, second] = [first, Kind::Contended].map(|kind| Task { plan: plan.clone(), kind });
    let rows = [measure(&first, clock, &request)?, measure(&second, clock, &request)?].concat();
    print(&second.render(args.form.format, &rows));
    plan.setting.doubt("processes");
    Ok(())
}

/// The rows of one process that locks alone.
fn alone(found: &Found, clock: Clock) -> Vec<Row> {
    let each = |samples: &Samples| samples.summary(clock.ns_per_tick / PAIRS as f64);
    let floor = found.times.get(1).map(|(_, swaps)| each(swaps).p50);
    let row = |(what, samples): &(What, Samples)| {
        let (each, floor) = (each(samples), floor.filter(|_| *what == What::Key));
        Row::alone(*what, ROUNDS * PAIRS, each, floor.map(|floor| each.p50 / floor))
    };
    found.times.iter().map(row).collect()
}

/// The rows of one process that locks while the coordinator is another. The first times are those of a message there and back.
fn remote(found: &Found, clock: Clock) -> Vec<Row> {
    let each: Vec<_> = found.times.iter().map(|(what, samples)| (*what, samples.summary(clock.ns_per_tick))).collect();
    each.iter().map(|(what, summary)| Row::remote(*what, *summary, each[0].1.p50)).collect()
}

/// The rows of processes that all want the lock.
fn contended(plan: &Plan, outcome: &Outcome<Found>) -> Result<Vec<Row>, Failure> {
    let of = |wanted: What| -> Vec<Contended> {
        let seen = outcome.found.iter().flat_map(|found| &found.seen);
        seen.filter(|(what, _)| *what == wanted).map(|(_, seen)| *seen).collect()
    };
    let (of_key, of_mutex, common) = (of(What::Key), of(What::Mutex), outcome.memory.common());
    check("the lock", common.under_key.get(), &of_key)?;
    check("the C library's mutex", common.under_mutex.get(), &of_mutex)?;
    let mut key = Row::contended(What::Key, &of_key, outcome.clock);
    if !plan.floor {
        return Ok(vec![key]);
    }
    let mutex = Row::contended(What::Mutex, &of_mutex, outcome.clock);
    key.ratio = Some(key.locks_per_s / mutex.locks_per_s);
    Ok(vec![key, mutex])
}

/// Checks exclusion: if two processes were ever inside together, a step of the counters is lost.
fn check(lock: &str, counters: [u64; 2], seen: &[Contended]) -> Result<(), Failure> {
    let locks: u64 = seen.iter().map(|seen| seen.locks).sum();
    if counters == [locks; 2] {
        return Ok(());
    }
    let [one, other] = counters;
    let what = format!(
        "exclusion failed: {} held {lock} {locks} times, and the counters that it guards say {one} and {other}",
        counted(seen.len(), "process").replace("processs", "processes")
    );
    Err(Failure::failed(
        what,
        "no figure of this run is worth anything; run it again, and report it to the maintainers of Doorbell",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_step_is_a_failure() {
        let seen = [3, 4].map(|locks| Contended { locks, ..Contended::default() });
        assert!(check("the lock", [7, 7], &seen).is_ok());
        for counters in [[7, 6], [6, 7], [6, 6], [8, 8]] {
            let said = check("the lock", counters, &seen).unwrap_err().to_string();
            let figures = format!(
                "2 processes held the lock 7 times, and the counters that it guards say {} and {}",
                counters[0], counters[1]
            );
            assert!(said.contains("exclusion failed: ") && said.contains(&figures), "{said}");
        }
    }
}
