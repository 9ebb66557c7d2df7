//! Messages: sent with tags, waited for, refused, counted and timed.

use super::{FIRST, SECOND, Stage, patience, told, unlike};
use crate::demo::{FLOOD_BYTES, Order, Report, decode, encode, now, processor_time, tag};
use crate::exit::Failure;
use crate::measure::bars;
use crate::text::{Table, bytes};
use doorbell::{Error, Match, Progress, Wait};
use doorbell_benches::{Clock, Samples, ticks};
use std::time::{Duration, Instant};

const VALUES: usize = 1000;

/// Messages with tags, there and back, which the receiver takes in an order of its own.
pub fn messages(stage: &mut Stage<'_>) -> Result<(), Failure> {
    work(stage)?;
    choose(stage)
}

/// The host hands out work and collects results.
fn work(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("Work goes out, results come back");
    let vector: Vec<f64> = (0..VALUES).map(|i| i as f64).collect();
    for (node, factor) in [(FIRST, 2.0), (SECOND, 3.0)] {
        let message = encode(&[&[factor], &vector[..]].concat());
        stage.send(node, tag::SCALE, &message)?;
        let size = bytes(message.len() as u64);
        stage.line(format_args!("0 -> {node}  tag {:<3}  {size:>8}  scale this vector by {factor}", tag::SCALE));
    }
    for _ in 0..2 {
        let (envelope, message) = stage.recv(Match::any().tag(tag::RESULT))?;
        let factor = f64::from(envelope.source.0) + 1.0;
        let size = bytes(envelope.len as u64);
        let right = decode(message).iter().zip(&vector).filter(|(scaled, value)| **scaled == **value * factor).count();
        if right != VALUES {
            return Err(unlike(format_args!("{right} of {VALUES} values are right")));
        }
        stage.line(format_args!(
            "{} -> 0  tag {:<3}  {size:>8}  {right} values, all of them right",
            envelope.source, envelope.tag
        ));
    }
    Ok(())
}

/// Six messages come. The host takes them in an order of its own.
fn choose(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("The receiver chooses: by tag, by node, or the next message");
    stage.order(FIRST, &Order::Paint)?;
    stage.order(SECOND, &Order::Paint)?;
    stage.line("nodes 1 and 2 each send red (tag 111), green (112) and blue (113), in this order");
    let (_, blue) = tag::COLOURS[2];
    take(stage, Match::any().tag(tag::COLOURS[2].0), "any().tag(113)", |_, word| word == blue)?;
    take(stage, Match::from(SECOND), "from(2)", |source, _| source == SECOND.0)?;
    let stats = stage.done(stage.cast.node.stats())?;
    stage.line(format_args!(
        "(meanwhile {} wait in the pool, which holds messages that no receive has asked for yet)",
        stats.pooled
    ));
    for _ in 0..4 {
        take(stage, Match::any(), "any()", |_, _| true)?;
    }
    stage.line("the remaining messages of each sender come in the order in which they were sent");
    Ok(())
}

fn take(stage: &mut Stage<'_>, accepts: Match, spelled: &str, right: impl Fn(u16, &str) -> bool) -> Result<(), Failure> {
    let (envelope, message) = stage.recv(accepts)?;
    let word = String::from_utf8_lossy(message).into_owned();
    if !right(envelope.source.0, &word) {
        return Err(unlike(format_args!("{spelled} gave '{word}' of node {}", envelope.source)));
    }
    let call = format!("recv({spelled})");
    stage.line(format_args!("{call:<20}  =>  {word:<5} of node {}", envelope.source));
    Ok(())
}

const TIMES: usize = 5;
/// Shorter than the 50 ms after which a sleeping thread wakes by itself.
const PAUSE_MS: u64 = 40;

/// A receiver sleeps, and is woken.
pub fn sleep(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("A receiver sleeps until the doorbell wakes it");
    let parks = stage.done(stage.cast.node.stats())?.parks;
    let (busy, start) = (processor_time(), Instant::now());
    let mut wakes = Vec::new();
    for _ in 0..TIMES {
        let sent: u64 = stage.ask(FIRST, &Order::Sleep(PAUSE_MS))?;
        wakes.push(Duration::from_nanos(now().saturating_sub(sent)));
    }
    let (busy, waited) = (processor_time() - busy, start.elapsed());
    let slept = stage.done(stage.cast.node.stats())?.parks - parks;
    stage.line(format_args!("node 0 waits in recv; node 1 sends after {PAUSE_MS} ms, {TIMES} times"));
    let wait = stage.cast.wait;
    let how = match (slept, wait) {
        (0, Wait::Spin | Wait::Yield) => format!("with --wait {wait} node 0 did not sleep"),
        (0, _) => "node 0 did not sleep: something else kept it awake".into(),
        _ => {
            let sleeper = if stage.cast.progress == Progress::Poller { "the poller of node 0" } else { "node 0" };
            format!("{sleeper} slept {slept} times (stats.parks: {parks} -> {})", parks + slept)
        }
    };
    stage.line(format_args!("{how}, and used {} of processor time in {}", told(busy), told(waited)));
    let wakes: Vec<String> = wakes.into_iter().map(told).collect();
    stage.line(format_args!("from send to the return of recv: {}", wakes.join(", ")));
    stage.say.word("arm, park");
    stage.say.word("doorbell");
    Ok(())
}

const STALL_MS: u64 = 120;
/// More messages than any lane and pool of the demo hold.
const MOST: u64 = 100_000;

/// A lane is full, and nothing is lost.
pub fn full(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("Full is an answer");
    stage.order(FIRST, &Order::Stall(STALL_MS))?;
    stage.line(format_args!("node 1 reads nothing for {STALL_MS} ms; node 0 sends it 1 KiB again and again with try_send"));
    let message = [7; FLOOD_BYTES];
    let mut sent = 0;
    let full = loop {
        match stage.cast.node.try_send(FIRST, tag::FLOOD, &message) {
            Ok(()) if sent < MOST => sent += 1,
            Ok(()) => return Err(unlike(format_args!("{sent} messages found room"))),
            Err(error @ Error::Full { .. }) => break error,
            Err(error) => return Err(stage.cast.explain(error)),
        }
    };
    stage.line(format_args!("{sent} found room, then: {full}"));
    let start = Instant::now();
    stage.done(stage.cast.node.send_until(FIRST, tag::FLOOD, &message, patience()))?;
    stage.line(format_args!("send_by waits for room instead: {}", told(start.elapsed())));
    stage.send(FIRST, tag::FLOOD_ENDS, &[])?;
    let (sent, counted) = (sent + 2, stage.answer::<u64>(FIRST)?);
    if counted != sent {
        return Err(unlike(format_args!("node 1 counted {counted} messages of {sent}")));
    }
    stage.line(format_args!("node 1 counts {counted} messages, with one to end them: none was lost"));
    Ok(())
}

/// The name that a node's poller has.
const POLLER: &str = "doorbell-poller";

/// The threads that carried the messages.
pub fn threads(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let progress = stage.cast.progress;
    stage.say.title(format_args!("The threads that carried the messages (--progress {progress})"));
    let own = Report::new(&stage.done(stage.cast.node.stats())?);
    for node in [FIRST, SECOND] {
        stage.order(node, &Order::Report)?;
    }
    let reports = stage.gather(own, &[FIRST, SECOND])?;
    let mut table = Table::new(&[">node", "thread", ">number", ">took from lanes", ">parks of the node"]);
    for (node, report) in &reports {
        for (at, (number, name)) in report.threads.iter().enumerate() {
            let (thread, took) = match name.as_str() {
                POLLER => (name.clone(), report.by_poller),
                _ if at == 0 => ("the application's".into(), report.by_application),
                // The thread that waits for signals.
                _ => continue,
            };
            let parks = if at == 0 { report.parks.to_string() } else { String::new() };
            table.row([node.to_string(), thread, number.to_string(), took.to_string(), parks]);
        }
    }
    stage.say.table(&table);
    let (application, poller) =
        reports.iter().fold((0, 0), |sum, (_, report)| (sum.0 + report.by_application, sum.1 + report.by_poller));
    stage.line(match progress {
        Progress::Poller => {
            format!("the poller of each node is its engine: of {} messages it carried {poller}", application + poller)
        }
        Progress::Inline => "there is no poller: the threads that call carry everything themselves".into(),
        Progress::Adaptive => {
            "a waiting thread carries messages; the poller sleeps unless work is pending that no thread waits for".into()
        }
    });
    stage.say.word("engine");
    stage.say.word("baton");
    Ok(())
}

const TIME: Duration = Duration::from_millis(800);
const WARM_UP: usize = 1000;
const ROUNDS: usize = 10_000_000;

/// The latency of a message.
pub fn latency(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("How long a message takes");
    let clock = Clock::calibrate();
    let peer = stage.done(stage.cast.node.peer(FIRST))?;
    let accepts = Match::any().tag(tag::PONG);
    let mut samples = Samples::new();
    let mut buf = [0; 8];
    let end = Instant::now() + TIME;
    for round in 0..ROUNDS {
        let start = ticks();
        stage.done(peer.send(tag::PING, &buf))?;
        stage.done(peer.recv(accepts, &mut buf))?;
        let trip = ticks() - start;
        if Instant::now() > end && samples.count() > 0 {
            break;
        }
        if round >= WARM_UP || Instant::now() > end {
            samples.record(trip);
        }
    }
    let per_unit = clock.ns_per_tick / 2.0;
    let found = samples.summary(per_unit);
    let median = crate::measure::table::time(found.p50);
    stage.line(format_args!("8 bytes there and back, {} times; half of each: median {median}", samples.count()));
    bars::draw(&samples, per_unit).into_iter().for_each(|line| stage.line(line));
    stage.line(
        "with a processor for each process, and beside the best that the machine can do: doorbell latency --pin 0,1 --floor",
    );
    Ok(())
}
