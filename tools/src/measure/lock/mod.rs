//! `doorbell lock`: what it takes to lock a key of the registry, alone and while others want it, too.
//!
//! Each section is a [`Task`] of [`worker`]s of its own, and gives [`report::Row`]s: [`alone`] or, over a network, [`remote`]; and [`contended`].

pub mod report;
pub mod worker;

use super::args::{crowded, words};
use super::net::{Fabric, UdpArgs};
use super::plan::{Recorded, unpack};
use crate::environment::Domain;
use crate::exit::Failure;
use crate::experiment::place::Place;
use crate::experiment::report::{Format, Report};
use crate::experiment::setting::Setting;
use crate::experiment::workers::requested_end;
use crate::experiment::{Experiment, Outcome, Trouble, measure};
use crate::text::{counted, print};
use doorbell::{Progress, Wait};
use doorbell_benches::clock::Clock;
use report::{Row, Section, What};
use serde::{Deserialize, Serialize};
use worker::{Alone, Found, PAIRS, ROUNDS, Remote, Seen};

/// Measure what it takes to lock a key, alone and while other processes want it
///
/// First one process locks a key and unlocks it, in turns with two compare-and-swaps on a cache line of its own, without which no lock can
/// be had. Then several processes want one key for some seconds, in turns with the C library's robust mutex. Whoever has
/// the key raises two counters; at the end both must be as many as there were locks, or the command fails.
///
/// With --fabric udp the processes share no memory in which a key could lie: the first of them is its home, and the others ask there. The key that
/// nobody else wants is locked by another process than the home, in turns with a message there and back.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  doorbell lock --pin 0,1                       four processes on two processors, for three seconds
  doorbell lock --pin 0,1 --nodes 2             a processor for each
  doorbell lock --pin 0 --nodes 8 --seconds 10  eight on one
  doorbell lock --pin 0,1 --wait park           who finds the key locked sleeps until it is free
  doorbell lock --pin 0,1 --fabric udp          over UDP: a lock in round trips of a message
  doorbell lock --format json | jq 'select(.section == \"contended\" and .what == \"key\").fairness'

Uncontended, `ns each` is the median of short sections, each of which is divided by its
locks; `ratio` is the key's median over that of the two compare-and-swaps.

Contended, every process takes the key, raises the counters, gives the key up, and wants it
again at once. It asks first without waiting (`try_lock`): a call that finds the key free is
no wait. One that finds it locked is a wait, from the call until the key is its own.
`waited` is how many there were, `mean wait` and `longest wait` how long they took, and
`longest/mean` is the figure of fairness: with 1 all wait equally long, and a process that
is passed over again and again makes it large. `least` and `most` are the locks of the
process that had the key least and most often. `ratio` is the key's locks a second over
the mutex's. Waits may be few and long, or many and short: read them with the locks.

Over UDP `lock` waits for the home's answer, as a message of 8 bytes waits for its echo, and so
does `unlock`; a guard that is dropped waits for nothing. `round trips` is the median over that
of the messages. The home locks in its own memory, as fast as over shared memory, and between the
turns of the others: contended, `most` is what it had, and nearly all. The mutex needs shared memory,
and is left out.

Believe ratios rather than nanoseconds: the processors of a virtual machine move, and
every time with them.")]
pub struct LockArgs {
    /// Processes that want the same key
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=64))]
    nodes: u16,
    /// How long they do, and for as long again they want the mutex, in turns of a second; over UDP, also how long one process locks alone at most
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Processors on which the processes run, in turn: with 0,1 every other one runs on each
    #[arg(long, value_name = "CPU,…", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Who turns the engine: the threads that call, a thread of the node, or whoever waits
    #[arg(long, value_name = "WHO", default_value_t = Progress::default(), value_parser = words::<Progress>(&["inline", "poller", "adaptive"]))]
    progress: Progress,
    /// How threads wait: auto spins, then yields, then sleeps
    #[arg(long, value_name = "HOW", default_value_t = Wait::default(), value_parser = words::<Wait>(&["auto", "spin", "yield", "park"]))]
    wait: Wait,
    /// Measure the driver alone
    #[arg(long)]
    no_floor: bool,
    /// Form of the output
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Format::Table)]
    format: Format,
    /// The domain that the processes join [default: one of their own]
    #[arg(long, value_name = "NAME")]
    domain: Option<Domain>,
    /// What keys are reached by
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
    /// How many contend.
    pub nodes: usize,
    /// For how many seconds.
    pub seconds: u32,
    /// Measure the floor, too.
    pub floor: bool,
}

/// A section of it, by processes of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// All measurements.
    pub plan: Plan,
    /// The measurement of these.
    pub kind: Kind,
}

/// What there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Lock a key that nobody else wants.
    Alone,
    /// The same from another node than the one that is the home of the key.
    Remote,
    /// Lock one that all want.
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
    // The key has to live as long as the workers.
    let (net, _key) = args.udp.net(args.fabric, &[])?.unzip();
    // No mutex is where memory is not shared, and what a message takes is no floor.
    let floor = !args.no_floor && net.is_none();
    let first = if net.is_some() { Kind::Remote } else { Kind::Alone };
    let setting = Setting {
        domain: args.domain.as_ref().map_or_else(|| format!("lock-{}", std::process::id()), |Domain(name)| name.clone()),
        net,
        progress: args.progress.to_string(),
        wait: args.wait.to_string(),
        pin: args.pin.clone(),
        crowded: crowded(&args.pin, nodes)?,
    };
    let plan = Plan { setting, nodes, seconds: args.seconds, floor };
    let (signal, clock) = (requested_end()?, Clock::calibrate());
    let [first, second] = [first, Kind::Contended].map(|kind| Task { plan: plan.clone(), kind });
    let rows = [measure(&first, clock, &signal)?, measure(&second, clock, &signal)?].concat();
    print(&second.render(args.format, &rows));
    plan.setting.doubt("processes");
    Ok(())
}

/// One process, and nobody else wants the key.
fn alone(found: &Found, clock: Clock) -> Vec<Row> {
    let Found::Alone(Alone { key, swaps }) = found else { return Vec::new() };
    let medians = |recorded: &Recorded| unpack(recorded).summary(clock.ns_per_tick / PAIRS as f64);
    let (locks, key, swaps) = (ROUNDS * PAIRS, medians(key), swaps.as_ref().map(medians));
    let ratio = swaps.map(|swaps| key.p50 / swaps.p50);
    let floor = swaps.map(|swaps| Row::alone(What::Swaps, locks, swaps, None));
    [Some(Row::alone(What::Key, locks, key, ratio)), floor].into_iter().flatten().collect()
}

/// One process and the home of the key, and nobody else wants it.
fn remote(found: &Found, clock: Clock) -> Vec<Row> {
    let Found::Remote(Remote { message, lock, unlock }) = found else { return Vec::new() };
    let [message, lock, unlock] = [message, lock, unlock].map(|recorded| unpack(recorded).summary(clock.ns_per_tick));
    let rows = [(What::Message, message), (What::Lock, lock), (What::Unlock, unlock)];
    rows.map(|(what, each)| Row::remote(what, each, message.p50)).into()
}

/// Several processes that all want the key.
fn contended(plan: &Plan, outcome: &Outcome<Found>) -> Result<Vec<Row>, Failure> {
    let both = outcome.found.iter().filter_map(|found| match found {
        Found::Contended(found) => Some(found),
        _ => None,
    });
    let (of_key, of_mutex): (Vec<Seen>, Vec<Option<Seen>>) = both.map(|found| (found.key, found.mutex)).unzip();
    let of_mutex: Vec<Seen> = of_mutex.into_iter().flatten().collect();
    let common = outcome.memory.common();
    check("the key", common.under_key.get(), &of_key)?;
    check("the C library's mutex", common.under_mutex.get(), &of_mutex)?;
    let mut key = Row::contended(Section::Contended, What::Key, &of_key);
    if !plan.floor {
        return Ok(vec![key]);
    }
    let mutex = Row::contended(Section::Contended, What::Mutex, &of_mutex);
    key.ratio = Some(key.locks_per_s / mutex.locks_per_s);
    Ok(vec![key, mutex])
}

/// Whether whoever was in was alone: then nobody's steps of the counters are lost.
fn check(lock: &str, counters: [u64; 2], seen: &[Seen]) -> Result<(), Failure> {
    let locks: u64 = seen.iter().map(|seen| seen.locks).sum();
    if counters == [locks; 2] {
        return Ok(());
    }
    let [one, other] = counters;
    let what = format!(
        "exclusion failed: {} had {lock} {locks} times, and the counters that it guards say {one} and {other}",
        counted(seen.len(), "process").replace("processs", "processes")
    );
    Err(Failure::failed(what, "no figure of this run is worth anything; run it again, and tell who maintains Doorbell"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_step_is_a_failure() {
        let seen = [3, 4].map(|locks| Seen { locks, ..Seen::default() });
        assert!(check("the key", [7, 7], &seen).is_ok());
        for counters in [[7, 6], [6, 7], [6, 6], [8, 8]] {
            let said = check("the key", counters, &seen).unwrap_err().to_string();
            let figures = format!(
                "2 processes had the key 7 times, and the counters that it guards say {} and {}",
                counters[0], counters[1]
            );
            assert!(said.contains("exclusion failed: ") && said.contains(&figures), "{said}");
        }
    }
}
