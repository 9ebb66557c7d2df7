//! `doorbell dma`: what a program pays that hands a transfer to the DMA engine and goes on computing.
//!
//! The origin's poller is the DMA engine. It runs on the other processor, and the target sleeps. First the two processes send a message back and
//! forth, as the measure of a round trip on the same processors.

use super::{Size, time};
use crate::exit::Failure;
use crate::experiment::report::render;
use crate::experiment::{
    Experiment, Field, Fields, Outcome, Place, ProcessArgs, Setting, Trouble, leave, measure, pin, unless_stopped,
};
use crate::measure::receive;
use crate::processes::EndRequest;
use crate::text::{RowArgs, print};
use doorbell::dma::{Descriptor, InjectionFifo};
use doorbell::{KEY_BYTES, Key, LaneGeometry, Match, Node, NodeId, Progress, ReadWrite, Wait};
use doorbell_benches::{Clock, Samples, ticks};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::sync::atomic::{Ordering, fence};

/// Measure transfers that the DMA engine executes while the program computes
///
/// A thread injects a put of a region into a FIFO, and looks at its send counter until that is at zero. The node's poller executes the put on
/// another processor, and the target sleeps. The command also measures how much of the time the thread can compute, and the round trip of a
/// message of 8 bytes on the same two processors.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/dma.txt"))]
pub struct DmaArgs {
    /// Sizes of the puts: 8, 64KiB, 1MB
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "8,4KiB,64KiB,1MiB,4MiB")]
    sizes: Vec<Size>,
    /// Puts of each size
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    iterations: u32,
    #[command(flatten)]
    processes: ProcessArgs,
    #[command(flatten)]
    form: RowArgs,
}

/// The measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    setting: Setting,
    sizes: Vec<usize>,
    iterations: u32,
}

/// The findings of the origin; none of the target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    /// Ticks of a message there and back.
    round_trip: Option<Samples>,
    sizes: Vec<OfSize>,
}

/// The findings for one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct OfSize {
    /// Ticks of the call that injects.
    inject: Samples,
    /// Ticks from the beginning of that call to a counter at zero.
    transfer: Samples,
    /// The share of each transfer in which the thread computed.
    overlap: Vec<f64>,
}

/// The figures of one size.
#[derive(Clone, Debug)]
pub struct Row {
    bytes: usize,
    inject_ns: f64,
    p50_ns: f64,
    p99_ns: f64,
    round_trip_ns: f64,
    overlap: f64,
}

/// The smallest lanes: these processes send next to no messages.
const LANES: LaneGeometry = LaneGeometry { cells: [16; 3], data_bytes: [16 << 10; 3] };
const ORIGIN: NodeId = NodeId(0);
const TARGET: NodeId = NodeId(1);
const TAG: u64 = 1;
/// Messages there and back that do not count, and those that do.
const WARMUP: usize = 2000;
const ROUND_TRIPS: usize = 20_000;
/// Steps of a unit of computing.
const UNIT: u64 = 32;
/// The thread looks for a fault once in so many looks at the counter.
const FAULT_LOOK: u32 = 1 << 16;
/// How often the time is taken that the thread computes while nothing is transferred.
const ALONE: u32 = 500;
/// Units by which the time of one is found.
const UNITS: u32 = 100_000;
/// Units of a microsecond or so: the pause between two puts.
const GAP: u32 = 16;

impl Experiment for Plan {
    const NAME: &'static str = "dma";
    type Found = Found;
    type Row = Row;

    fn setting(&self) -> &Setting {
        &self.setting
    }

    fn processes(&self) -> usize {
        2
    }

    fn role(&self, process: usize) -> &'static str {
        ["the process that injects", "the process that sleeps"][process]
    }

    fn work(self, place: Place) -> Result<Found, Trouble> {
        let round_trip = self.exchange(&place)?;
        place.gate(2)?;
        if place.process > 0 {
            return self.sleep(&place).map(|()| Found::default());
        }
        Ok(Found { round_trip: Some(round_trip), sizes: self.inject(&place)? })
    }

    fn rows(&self, outcome: Outcome<Found>) -> Result<Vec<Row>, Failure> {
        let found = &outcome.found[0];
        let summary = |samples: &Samples| samples.summary(outcome.clock.ns_per_tick);
        let round_trip_ns = found.round_trip.as_ref().map_or(f64::NAN, |samples| summary(samples).p50);
        let row = |(bytes, of): (&usize, &OfSize)| {
            let transfer = summary(&of.transfer);
            let overlap = median(&mut of.overlap.clone());
            let (p50_ns, p99_ns) = (transfer.p50, transfer.p99);
            Row { bytes: *bytes, inject_ns: summary(&of.inject).p50, p50_ns, p99_ns, round_trip_ns, overlap }
        };
        Ok(self.sizes.iter().zip(&found.sizes).map(row).collect())
    }
}

/// Measures and prints.
pub fn run(args: &DmaArgs) -> Result<(), Failure> {
    let setting = Setting { progress: Progress::Poller, ..args.processes.setting("dma", 2, None)? };
    let plan = Plan { setting, sizes: args.sizes.iter().map(|size| size.0).collect(), iterations: args.iterations };
    let rows = measure(&plan, Clock::calibrate(), &EndRequest::listen()?)?;
    let fields: Vec<Fields> = rows.iter().map(Row::fields).collect();
    let title = "A put into the memory of a sleeping process, executed by the poller of the process that injects it.";
    print(&render(args.form.format, title, &fields));
    plan.setting.doubt("processes");
    Ok(())
}

impl Row {
    fn fields(&self) -> Fields {
        let ratio = self.p50_ns / self.round_trip_ns;
        let bytes_per_s = self.bytes as f64 / self.p50_ns * 1e9;
        Fields(vec![
            Field::of("test", "dma"),
            Field::bytes("size_bytes", self.bytes).under(">size"),
            Field::ns("inject_ns", self.inject_ns).under(">inject"),
            Field::ns("p50_ns", self.p50_ns).under(">to zero"),
            Field::ns("p99_ns", self.p99_ns).under(">p99"),
            Field::ns("round_trip_ns", self.round_trip_ns).text(time(self.round_trip_ns)).under(">round trip"),
            Field::figure("round_trips", ratio, 2).under(">ratio"),
            Field::of("bytes_per_s", bytes_per_s.round()).text(format!("{:.2}", bytes_per_s / 1e9)).under(">GB/s"),
            Field::figure("overlap", self.overlap, 3).text(format!("{:.1} %", self.overlap * 100.0)).under(">computing"),
        ])
    }
}

/// Computes so many units.
#[inline(never)]
fn compute(units: u32) {
    // The compiler may not know what is computed: it would move the call out of what is measured.
    let (seed, steps) = black_box((1, u64::from(units) * UNIT));
    black_box((0..steps).fold(seed, |x: u64, _| (x ^ (x << 13) ^ (x >> 7)).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
}

impl Plan {
    /// Sends a message back and forth. The node of the target sends back what comes.
    fn exchange(&self, place: &Place) -> Result<Samples, Trouble> {
        let setting = Setting { progress: Progress::Adaptive, ..self.setting.clone() };
        let node = place.join(&setting, setting.builder("round trips").map(|builder| builder.lanes(LANES)), 2, 2)?;
        let other = if place.process == 0 { TARGET } else { ORIGIN };
        let done = self.play(place, &node, other);
        let _ = place.gate(2);
        leave(node, done)
    }

    fn play(&self, place: &Place, node: &Node, other: NodeId) -> Result<Samples, Trouble> {
        let (peer, mut word, mut samples) = (node.peer(other)?, [0; 8], Samples::new());
        for turn in 0..WARMUP + ROUND_TRIPS {
            let began = ticks();
            if place.process == 0 {
                peer.send(TAG, &word)?;
            }
            receive(node, Match::from(other), &mut word, None, &place.patience)?;
            if place.process == 1 {
                peer.send(TAG, &word)?;
            } else if turn >= WARMUP {
                samples.record(ticks() - began);
            }
        }
        Ok(samples)
    }

    /// The target: gives its key away, and sleeps until the origin is done.
    fn sleep(&self, place: &Place) -> Result<(), Trouble> {
        let setting = Setting { progress: Progress::Inline, wait: Wait::Park, ..self.setting.clone() };
        let node = place.join(&setting, setting.builder("target").map(|builder| builder.lanes(LANES)), 2, 2)?;
        let region = node.region::<u8>(self.sizes.iter().copied().max().unwrap_or(0).max(1))?;
        node.send(ORIGIN, TAG, &region.key().to_bytes())?;
        let done = receive(&node, Match::from(ORIGIN), &mut [], None, &place.patience).map(drop);
        leave(node, done)
    }

    /// The origin. Its poller runs where the target would run, since that sleeps.
    fn inject(&self, place: &Place) -> Result<Vec<OfSize>, Trouble> {
        pin(self.setting.processor(1))?;
        let node = place.join(&self.setting, self.setting.builder("origin").map(|builder| builder.lanes(LANES)), 2, 2)?;
        pin(self.setting.processor(0))?;
        let done = self.sizes(place, &node);
        // An empty message ends the target, also after a failure.
        let sent = node.send(TARGET, TAG, &[]);
        let found = leave(node, done)?;
        sent?;
        Ok(found)
    }

    fn sizes(&self, place: &Place, node: &Node) -> Result<Vec<OfSize>, Trouble> {
        let mut bytes = [0; KEY_BYTES];
        receive(node, Match::from(TARGET), &mut bytes, None, &place.patience)?;
        let target = Key::<u8, ReadWrite>::from_bytes(&bytes)?;
        let source = node.region::<u8>(target.len())?;
        source.fill(1)?;
        let (fifo, sent) = (InjectionFifo::builder(node).name("dma").open()?, node.counter()?);
        let put = |size: usize| -> Result<u64, Trouble> {
            sent.init(size as u64)?;
            let put = Descriptor::put(source.key().range(..size), target.range(..size))?.send_counter(sent.key());
            // What this thread has written before must not count.
            fence(Ordering::SeqCst);
            let began = ticks();
            if !fifo.inject(&put)? {
                return Err(Trouble::wrong("the FIFO is full, although each put before was complete"));
            }
            Ok(began)
        };
        let wait = || -> Result<u64, Trouble> {
            let mut looks = 0_u32;
            while !sent.is_zero() {
                std::hint::spin_loop();
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(FAULT_LOOK)
                    && let Some((_, error)) = fifo.next_fault()
                {
                    return Err(error.into());
                }
            }
            Ok(ticks())
        };
        let unit_ticks = self.unit(place)?;
        let warmup = self.iterations / 10;
        self.sizes
            .iter()
            .map(|size| {
                let mut of = OfSize { inject: Samples::new(), transfer: Samples::new(), overlap: Vec::new() };
                for turn in 0..warmup + self.iterations {
                    unless_stopped(&place.patience)?;
                    // The engine ends the put before: its records and metrics.
                    compute(GAP);
                    let began = put(*size)?;
                    let injected = ticks();
                    let over = wait()?;
                    if turn >= warmup {
                        of.inject.record(injected - began);
                        of.transfer.record(over - began);
                    }
                }
                let transfer = of.transfer.summary(1.0).p50;
                let units = (transfer / unit_ticks).ceil() as u32;
                let mut alone = Samples::new();
                for _ in 0..ALONE.min(self.iterations) {
                    unless_stopped(&place.patience)?;
                    let began = ticks();
                    compute(units);
                    alone.record(ticks() - began);
                }
                let alone = alone.summary(1.0).p50;
                // In a loop of its own: the poller would go to sleep while the thread only computes.
                for turn in 0..warmup + self.iterations {
                    unless_stopped(&place.patience)?;
                    let began = put(*size)?;
                    compute(units);
                    let over = wait()?;
                    if turn >= warmup {
                        of.overlap.push((1.0 - ((over - began) as f64 - alone) / transfer).clamp(0.0, 1.0));
                    }
                }
                Ok(of)
            })
            .collect()
    }

    /// The ticks of a unit of computing while nothing is transferred: the shortest of some.
    fn unit(&self, place: &Place) -> Result<f64, Trouble> {
        let mut best = f64::INFINITY;
        for _ in 0..8 {
            unless_stopped(&place.patience)?;
            let began = ticks();
            compute(UNITS);
            best = best.min((ticks() - began) as f64 / f64::from(UNITS));
        }
        Ok(best)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
