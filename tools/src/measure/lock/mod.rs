//! `doorbell lock`: what it takes to lock a key of the registry, alone and while others want it, too.
//!
//! Each section has [`worker`]s of its own, which find something, and gives [`report::Row`]s of that: [`alone`] or, over a network, [`remote`];
//! and [`contended`]. A section more is a [`worker::Task`] more.

pub mod report;
pub mod worker;

use super::args::{crowded, words};
use super::net::{Fabric, Net, UdpArgs};
use super::plan::{Recorded, unpack};
use super::workers::{Crew, Workers, requested_end};
use crate::environment::Domain;
use crate::exit::{Failure, warn};
use crate::text::{counted, print};
use doorbell::{Progress, Wait};
use doorbell_benches::clock::Clock;
use doorbell_benches::floor::{Mapping, Shape};
use report::{Format, Row, Section, What};
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicUsize;
use worker::{Alone, Contended, Order, PAIRS, ROUNDS, Remote, Seen, Task};

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

/// What all processes of the measurement are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The name of the domain.
    pub domain: String,
    /// Over the network, and how; through shared memory if nothing is said.
    pub net: Option<Net>,
    /// How many contend.
    pub nodes: usize,
    /// For how many seconds.
    pub seconds: u32,
    /// Measure the floor, too.
    pub floor: bool,
    /// Who turns the engine.
    pub progress: String,
    /// How threads wait.
    pub wait: String,
    /// The processors on which they run in turn; wherever they like if there are none.
    pub pin: Vec<usize>,
    /// There are more of them than processors.
    pub crowded: bool,
}

impl Plan {
    /// The name of the fabric.
    pub fn fabric(&self) -> &'static str {
        if self.net.is_some() { "udp" } else { "shm" }
    }

    /// The processor of a node.
    pub fn processor(&self, node: usize) -> Option<usize> {
        if self.pin.is_empty() { None } else { Some(self.pin[node % self.pin.len()]) }
    }
}

/// Measures and prints.
pub fn run(args: &LockArgs) -> Result<(), Failure> {
    let nodes = usize::from(args.nodes);
    // The key has to live as long as the workers.
    let (net, _key) = args.udp.net(args.fabric, &[])?.unzip();
    let plan = Plan {
        domain: args.domain.as_ref().map_or_else(|| format!("lock-{}", std::process::id()), |Domain(name)| name.clone()),
        // No mutex is where memory is not shared, and what a message takes is no floor.
        floor: !args.no_floor && net.is_none(),
        net,
        nodes,
        seconds: args.seconds,
        progress: args.progress.to_string(),
        wait: args.wait.to_string(),
        pin: args.pin.clone(),
        crowded: crowded(&args.pin, nodes)?,
    };
    let (signal, clock) = (requested_end()?, Clock::calibrate());
    let alone = if plan.net.is_some() { remote } else { alone };
    let rows = [alone(&plan, clock, &signal)?, contended(&plan, clock, &signal)?].concat();
    print(&report::render(args.format, &plan, &rows));
    if plan.pin.is_empty() {
        warn("the processes were free to change processors: --pin 0,1 gives steadier figures");
    }
    if args.wait == Wait::Spin && plan.crowded {
        warn("there are more processes than processors, and who waits keeps the one it has: that is what --wait spin says");
    }
    Ok(())
}

/// One process, and nobody else wants the key.
fn alone(plan: &Plan, clock: Clock, signal: &AtomicUsize) -> Result<Vec<Row>, Failure> {
    let found: Vec<Alone> = carry_out(plan, Task::Alone, &memory()?, clock, signal)?;
    let medians = |recorded: &Recorded| unpack(recorded).summary(clock.ns_per_tick / PAIRS as f64);
    let locks = ROUNDS * PAIRS;
    let rows = |Alone { key, swaps }: &Alone| {
        let (key, swaps) = (medians(key), swaps.as_ref().map(medians));
        let ratio = swaps.map(|swaps| key.p50 / swaps.p50);
        let floor = swaps.map(|swaps| Row::alone(What::Swaps, locks, swaps, None));
        [Some(Row::alone(What::Key, locks, key, ratio)), floor].into_iter().flatten().collect::<Vec<_>>()
    };
    Ok(found.iter().flat_map(rows).collect())
}

/// One process and the home of the key, and nobody else wants it.
fn remote(plan: &Plan, clock: Clock, signal: &AtomicUsize) -> Result<Vec<Row>, Failure> {
    let found: Vec<Option<Remote>> = carry_out(plan, Task::Remote, &memory()?, clock, signal)?;
    let rows = |Remote { message, lock, unlock }: Remote| {
        let [message, lock, unlock] = [message, lock, unlock].map(|recorded| unpack(&recorded).summary(clock.ns_per_tick));
        [(What::Message, message), (What::Lock, lock), (What::Unlock, unlock)]
            .map(|(what, each)| Row::remote(what, each, message.p50))
    };
    Ok(found.into_iter().flatten().flat_map(rows).collect())
}

/// Several processes that all want the key.
fn contended(plan: &Plan, clock: Clock, signal: &AtomicUsize) -> Result<Vec<Row>, Failure> {
    let memory = memory()?;
    let found: Vec<Contended> = carry_out(plan, Task::Contended, &memory, clock, signal)?;
    let of_key: Vec<Seen> = found.iter().map(|found| found.key).collect();
    let of_mutex: Vec<Seen> = found.iter().filter_map(|found| found.mutex).collect();
    check("the key", memory.common().under_key.get(), &of_key)?;
    check("the C library's mutex", memory.common().under_mutex.get(), &of_mutex)?;
    let mut key = Row::contended(Section::Contended, What::Key, &of_key);
    if !plan.floor {
        return Ok(vec![key]);
    }
    let mutex = Row::contended(Section::Contended, What::Mutex, &of_mutex);
    key.ratio = Some(key.locks_per_s / mutex.locks_per_s);
    Ok(vec![key, mutex])
}

fn memory() -> Result<Mapping, Failure> {
    Mapping::create(Shape { pairs: 0, bytes: 0 })
        .map_err(|error| Failure::usage(format!("could not get memory for the processes of a measurement: {error}"), ""))
}

/// Starts processes for a task, and gives what they found.
fn carry_out<F: serde::de::DeserializeOwned>(
    plan: &Plan,
    task: Task,
    memory: &Mapping,
    clock: Clock,
    signal: &AtomicUsize,
) -> Result<Vec<F>, Failure> {
    let order = |node| Order {
        plan: plan.clone(),
        task,
        node,
        memory: memory.descriptor(),
        parent: std::process::id() as i32,
        ns_per_tick: clock.ns_per_tick,
    };
    let role = |_| "one of the processes that lock";
    Workers::start(Crew { command: worker::COMMAND, domain: &plan.domain, role: &role }, task.nodes(plan), order)?.wait(signal)
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
