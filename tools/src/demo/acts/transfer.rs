//! A long message is moved from both ends.

use super::{FIRST, HOST, Stage, patience, told, unlike};
use crate::demo::{BULK_BYTES, LATE, Moves, Order, PAUSE_MS, check_bulk, fill_bulk, tag};
use crate::exit::Failure;
use crate::text::{Table, bytes};
use doorbell::transfer::Side;
use doorbell::{Match, NodeId, Progress};
use std::thread;
use std::time::{Duration, Instant};

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    both_wait(stage)?;
    stage.note();
    one_sleeps(stage)
}

/// The host sends, and both processes wait.
fn both_wait(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("A long message is moved from both ends");
    let mut message = vec![0; BULK_BYTES];
    fill_bulk(&mut message);
    stage.ask::<()>(FIRST, &Order::Take)?;
    let start = Instant::now();
    stage.send(FIRST, tag::BULK, &message)?;
    let took = start.elapsed();
    let theirs: Moves = stage.answer(FIRST)?;
    let ours = stage.done(Moves::of(&stage.cast.node, Side::Origin, patience()))?;
    let size = bytes(BULK_BYTES as u64);
    stage.line(format_args!(
        "node 0 sends {size} to node 1, which asks for it {} ms later; then both wait: {}",
        LATE.as_millis(),
        told(took)
    ));
    tell(stage, (HOST, &ours), (FIRST, &theirs))
}

/// The accelerator begins to send, and then sleeps without waiting for anything.
fn one_sleeps(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let mut message = vec![0; BULK_BYTES];
    // Brings its pages into memory before the clock starts.
    message.fill(1);
    let pause = PAUSE_MS;
    // Long enough for a poller that takes over after a millisecond. With `poller` the host's poller would meanwhile take the whole message
    // into the pool.
    let late = if stage.cast.progress == Progress::Poller { Duration::ZERO } else { 10 * LATE };
    stage.line("");
    let when = if late.is_zero() { "at once".into() } else { format!("{} ms later", late.as_millis()) };
    stage.line(format_args!(
        "back again: node 1 says start_send, then its application sleeps for {pause} ms; node 0 asks for it {when}"
    ));
    stage.ask::<()>(FIRST, &Order::Give(pause))?;
    let begun = Instant::now();
    thread::sleep(late);
    // Without a deadline, so that node 1 may put into the buffer. If node 1 dies, this fails.
    stage.done(stage.cast.node.recv(Match::from(FIRST).tag(tag::BULK), &mut message))?;
    let took = begun.elapsed();
    if !check_bulk(&message) {
        return Err(unlike("a long message differs from the sent one"));
    }
    let theirs: Moves = stage.answer(FIRST)?;
    let ours = stage.done(Moves::of(&stage.cast.node, Side::Target, patience()))?;
    tell(stage, (FIRST, &theirs), (HOST, &ours))?;
    let early = if took < Duration::from_millis(pause) { "long before it woke" } else { "when it was awake again" };
    let mover = match stage.cast.progress {
        Progress::Inline => "with --progress inline only node 0 moved it until then",
        Progress::Adaptive => "its poller takes over when no thread drives for a millisecond",
        Progress::Poller => "its poller is its engine",
    };
    stage.line(format_args!("node 0 had all of it after {}, {early}: {mover}", told(took)));
    stage.say.word("memory FIFO", "chunks from the first end, through a lane, before the receiver has told its buffer");
    stage.say.word("direct put", "chunks from the last end, into the receiver's buffer; pull: the receiver fetches such chunks");
    Ok(())
}

/// The ways of the bytes, and the threads that executed the descriptors.
fn tell(stage: &Stage<'_>, origin: (NodeId, &Moves), target: (NodeId, &Moves)) -> Result<(), Failure> {
    let [fifo, put, pulled] = origin.1.ways;
    if !target.1.whole || fifo + put + pulled != BULK_BYTES as u64 || (origin.1.zeroes, target.1.zeroes) != (1, 1) {
        return Err(unlike(format_args!("a transfer of {BULK_BYTES} bytes: {:?}, {:?}", origin.1, target.1)));
    }
    let executed = [origin, target].into_iter().flat_map(|(node, moves)| moves.executed.iter().map(move |step| (node, step)));
    let mut executed: Vec<_> = executed.collect();
    executed.sort_by_key(|(_, step)| step.place);
    let mut table = Table::new(&["descriptor", ">of node", "executed by", ">bytes"]);
    for (node, step) in executed {
        let moved = if step.bytes > 0 { bytes(step.bytes) } else { String::new() };
        table.row([step.descriptor.clone(), node.to_string(), step.thread.clone(), moved]);
    }
    stage.say.table(&table);
    let share = |bytes: u64| format!("{:.0} %", 100.0 * bytes as f64 / BULK_BYTES as f64);
    stage.line(format_args!(
        "memory FIFO {}, direct put {}, pulled {}: the ends met, and both counters reached zero once",
        share(fifo),
        share(put),
        share(pulled)
    ));
    Ok(())
}
