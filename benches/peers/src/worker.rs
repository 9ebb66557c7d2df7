//! One of the processes of a measurement.

use crate::collective::Calls;
use crate::order::{Answer, Leg, Order, Seen, TRIP_UNIT, Work};
use crate::overlap;
use crate::place::Place;
use crate::transport::{Result, Setup, Transport};
use doorbell_benches::clock::{Clock, ticks};
use doorbell_benches::exchange::{Part, Section, Side};
use doorbell_benches::floor::{Finish, HopProbe, Mapping, Patience, Shape};
use doorbell_benches::stats::Samples;
use doorbell_benches::stream::Flow;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, alarm};
use std::fs::OpenOptions;
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The command that runs a program as a worker.
pub const COMMAND: &str = "worker";
/// The variables in which the launchers of the MPIs number the processes.
const RANKS: [&str; 2] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"];

/// Runs as a worker: `worker ORDER [NODE]`. Without a node, the launcher's rank counts.
pub fn main<T: Transport>() -> ExitCode {
    match arguments() {
        Ok((order, node)) => run::<T>(&order, node),
        Err(error) => {
            eprintln!("error: {error}\n  hint: `doorbell-peers` starts this program");
            ExitCode::from(2)
        }
    }
}

/// Follows the order, and leaves the answer in its place.
pub fn run<T: Transport>(order: &Order, node: usize) -> ExitCode {
    let answer = serve::<T>(order, node).unwrap_or_else(|error| Answer { error: Some(error.to_string()), ..Answer::default() });
    let failed = answer.error.is_some();
    let left = serde_json::to_vec(&answer).map_err(Into::into);
    let left = left.and_then(|bytes| Place::new(order.dir.clone(), node).leave("answer", &bytes));
    if failed || left.is_err() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The order and the number of this process.
///
/// # Errors
/// They are missing.
pub fn arguments() -> Result<(Order, usize)> {
    let mut arguments = std::env::args().skip_while(|argument| argument != COMMAND).skip(1);
    let path = arguments.next().ok_or("the argument with the order is missing")?;
    let node = arguments
        .next()
        .or_else(|| RANKS.iter().find_map(|name| std::env::var(name).ok()))
        .ok_or("the number of this process is missing")?;
    let order = std::fs::read(&path).map_err(|error| format!("could not read {path}: {error}"))?;
    Ok((serde_json::from_slice(&order)?, node.parse()?))
}

fn serve<T: Transport>(order: &Order, node: usize) -> Result<Answer> {
    // Whatever happens, no process runs forever or outlives its parent.
    alarm::set(order.limit);
    set_pdeathsig(Signal::SIGKILL)?;
    let processor = order.pin[node % 2];
    let computes = order.work.is_overlap() && node == 0;
    // Threads that the peer starts run on the other processor, where the other process waits.
    pin(if computes { order.pin[1] } else { processor })?;
    let mapping = mapping(order)?;
    let place = Place::new(order.dir.clone(), node);
    let stop = Arc::new(AtomicBool::new(false));
    let patience = Patience::new(stop.clone(), order.crowded());
    // The probe spins even on crowded processors, because all other processes sleep meanwhile.
    let probing = Patience::new(stop, false);
    let memory = mapping.pair(node / 2);
    let setup = Setup { order, node, place: &place };
    let side = setup.side();
    let transport = T::open(&setup)?;
    pin(processor)?;
    let mut worker = Worker {
        order,
        node,
        side,
        place: &place,
        mapping: &mapping,
        patience: &patience,
        finish: Finish::new(&memory, &patience),
        clock: Clock::calibrate(),
        transport,
    };
    let mut probe = HopProbe::new(&memory, side, &probing);
    let mut answer = Answer { version: worker.transport.version(), ..Answer::default() };
    for leg in &order.legs {
        answer.legs.push(worker.leg(*leg, &mut probe)?);
    }
    // No process leaves while another may still be polling.
    worker.gate()?;
    Ok(answer)
}

/// Moves this thread to a processor.
fn pin(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|error| format!("could not move to processor {processor}: {error}").into())
}

/// The memory for synchronisation. It is the floor's memory, of which only the barrier is used here.
pub(crate) fn mapping(order: &Order) -> Result<Mapping> {
    let (process, descriptor) = order.memory;
    let path = format!("/proc/{process}/fd/{descriptor}");
    let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
    let file = open(Path::new(&path)).map_err(|error| format!("could not open {path}: {error}"))?;
    // SAFETY: the descriptor was just created, and ownership passes on.
    Ok(unsafe { Mapping::inherit(file.into_raw_fd(), shape(order.pairs)) }?)
}

/// The shape of that memory.
pub fn shape(pairs: usize) -> Shape {
    Shape { pairs, bytes: 64 }
}

struct Worker<'a, T> {
    order: &'a Order,
    node: usize,
    side: Side,
    place: &'a Place,
    mapping: &'a Mapping,
    patience: &'a Patience,
    finish: Finish<'a>,
    clock: Clock,
    transport: T,
}

impl<T: Transport> Worker<'_, T> {
    fn gate(&self) -> Result<()> {
        Ok(self.mapping.gate().pass(self.order.processes(), self.patience)?)
    }

    /// The distance of the first pair's processors, measured while all others sleep, and whether they seem to share a core. 0 if they are one,
    /// and negative if the machine was too busy.
    fn probe(&self, probe: &mut HopProbe<'_>) -> Result<(f64, bool)> {
        self.gate()?;
        if self.node > 1 || self.order.pin[0] == self.order.pin[1] {
            return Ok((0.0, false));
        }
        // The other side never gets an answer.
        let none = if self.node == 0 { -1.0 } else { 0.0 };
        Ok(probe.probe(self.clock.ns_per_tick)?.map_or((none, false), |hop| (hop.ns, hop.shared_core)))
    }

    /// The results of the sections if this side has the clock; for collectives every side has one.
    fn leg(&mut self, leg: Leg, probe: &mut HopProbe<'_>) -> Result<Vec<Seen>> {
        let mut found = Vec::new();
        let mut before = (0.0, false);
        for section in 0..leg.sections {
            let (ticks, overlap) = self.section(leg, section)?;
            let after = self.probe(probe)?;
            if section > 0 && (self.side == Side::Ping || self.order.work.is_collective()) {
                let trips = self.trips(&ticks);
                let ns = self.ns(leg, ticks);
                found.push(Seen { ns, trips, overlap, hops: [before.0, after.0], shared: before.1 || after.1 });
            }
            before = after;
        }
        Ok(found)
    }

    /// Half of each round trip, if that is what was timed.
    fn trips(&self, ticks: &[u64]) -> Samples {
        let mut trips = Samples::new();
        if self.order.work.is_exchange() {
            let units = self.clock.ns_per_tick / 2.0 / TRIP_UNIT;
            ticks.iter().for_each(|ticks| trips.record((*ticks as f64 * units).round() as u64));
        }
        trips
    }

    /// Nanoseconds for each message.
    fn ns(&self, leg: Leg, ticks: Vec<u64>) -> f64 {
        let mut samples = Samples::new();
        ticks.into_iter().for_each(|ticks| samples.record(ticks));
        let summary = samples.summary(self.clock.ns_per_tick);
        match self.order.work {
            Work::Latency | Work::Handler | Work::Loan | Work::Put => summary.p50 / 2.0,
            // Waits for a processor are rare and long, so the median would not show them.
            Work::Pairs => summary.mean / 2.0,
            Work::PutOverlap | Work::SendOverlap | Work::ReceiveOverlap => summary.p50,
            Work::Rate | Work::Batch | Work::OneWay | Work::Barrier | Work::Allreduce | Work::Broadcast | Work::Computing => {
                summary.p50 / leg.count as f64
            }
            Work::BothWays => summary.p50 / (2 * leg.count) as f64,
        }
    }

    /// Plays one section. Returns the ticks of each round trip, or of the whole section, and the share hidden by computing.
    fn section(&mut self, leg: Leg, number: usize) -> Result<(Vec<u64>, Option<f64>)> {
        let Leg { bytes, warmup, count, .. } = leg;
        let touched = self.order.touched;
        let section = Section { bytes, warmup, count, touched };
        let (mut seen, mut hidden) = (Vec::new(), None);
        self.gate()?;
        match (self.order.work, self.side) {
            (work, Side::Ping) if work.is_exchange() => self.transport.play(Part::Ping(&mut seen), section)?,
            (work, Side::Pong) if work.is_exchange() => self.transport.play(Part::Pong, section)?,
            (Work::Batch, side) => {
                let start = ticks();
                self.transport.batches(side, section)?;
                match side {
                    Side::Ping => {
                        self.finish.wait()?;
                        seen.push(ticks() - start);
                    }
                    Side::Pong => self.finish.tell(),
                }
            }
            (Work::Rate, Side::Ping) => {
                let start = ticks();
                self.transport.play(Part::Pour, section)?;
                self.finish.wait()?;
                seen.push(ticks() - start);
            }
            (Work::Rate, Side::Pong) => {
                self.transport.play(Part::Drain, section)?;
                self.finish.tell();
            }
            (work @ (Work::Barrier | Work::Allreduce | Work::Broadcast | Work::Computing), _) => {
                let (rank, members) = (self.node, self.order.processes());
                seen.push(self.transport.collect(Calls { work, rank, members, bytes, warmup, count, touched })?);
            }
            (work @ (Work::PutOverlap | Work::SendOverlap | Work::ReceiveOverlap), Side::Ping) => {
                // A sender waits until the receive is posted.
                let finish = &mut self.finish;
                let posted = || {
                    if work == Work::ReceiveOverlap {
                        finish.tell()
                    }
                };
                let found = overlap::run(&mut self.transport, work, section, posted)?;
                seen.push(found.alone);
                hidden = Some(found.share);
                self.place.leave(&format!("computed{bytes}-{number}"), &[])?;
            }
            (Work::PutOverlap, Side::Pong) => drop(self.place.find(&format!("computed{bytes}-{number}"), self.node ^ 1)?),
            (Work::SendOverlap, Side::Pong) => {
                let section = Section { warmup: 0, count: overlap::transfers(section), ..section };
                self.transport.play(Part::Drain, section)?;
            }
            (Work::ReceiveOverlap, Side::Pong) => {
                for _ in 0..overlap::transfers(section) {
                    self.finish.wait()?;
                    self.transport.play(Part::Pour, Section { warmup: 0, count: 1, ..section })?;
                }
            }
            (work, side) => {
                let turns = |mine: bool| if mine || work == Work::BothWays { count } else { 0 };
                let flow = Flow { sends: turns(side == Side::Ping), receives: turns(side == Side::Pong), touched };
                let start = ticks();
                self.transport.stream(bytes, flow)?;
                match side {
                    Side::Ping => {
                        self.finish.wait()?;
                        seen.push(ticks() - start);
                    }
                    Side::Pong => self.finish.tell(),
                }
            }
        }
        Ok((seen, hidden))
    }
}
