//! Memory: regions and their keys, DMA counters, and long messages.

use super::descriptors::moved_by_messages;
use super::{FIRST, HOST, SECOND, Stage, patience, told, unlike};
use crate::demo::{BULK_BYTES, LATE, Moves, Order, PAUSE_MS, check_bulk, fill_bulk, tag};
use crate::exit::Failure;
use crate::text::{Table, bytes};
use doorbell::transfer::Side;
use doorbell::{Error, KEY_BYTES, Key, KeyFault, Match, NodeId, Progress, ReadOnly, ReadWrite};
use std::thread;
use std::time::{Duration, Instant};

/// The values that the host puts, and their place.
const VALUES: [u64; 3] = [7, 11, 13];
const AT: usize = 2;

/// Memory of one node that another node writes and reads, and keys that are refused.
pub fn regions(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("A node puts into the memory of another, which does nothing");
    let (full, only_read): (Vec<u8>, Vec<u8>) = stage.ask(FIRST, &Order::Lend)?;
    let key = stage.done(Key::<u64, ReadWrite>::from_bytes(&full))?;
    stage.line(format_args!(
        "node 1 makes a region of {} words, and sends two keys of {KEY_BYTES} bytes: one to read and write, one to read",
        key.len()
    ));
    let peer = stage.done(stage.cast.node.peer(FIRST))?;
    stage.done(peer.put(&VALUES, key.at(AT)))?;
    let call = format!("node 0: put({VALUES:?}, key.at({AT}))");
    stage.line(format_args!("{call:<37}  =>  done: one copy by node 0's thread"));
    let mut got = vec![0; key.len()];
    stage.done(peer.get(stage.done(Key::<u64, ReadOnly>::from_bytes(&only_read))?, &mut got))?;
    stage.line(format_args!("node 0: get(key to read)               =>  {got:?}"));
    let seen: Vec<u64> = stage.ask(FIRST, &Order::Show)?;
    if seen != got || got[AT..][..VALUES.len()] != VALUES {
        return Err(unlike(format_args!("node 0 got {got:?}, node 1 has {seen:?}")));
    }
    stage.line(format_args!("node 1: region.read                    =>  {seen:?}: the same memory"));

    stage.line("");
    let refused = refusal(Key::<u64, ReadWrite>::from_bytes(&only_read), KeyFault::ReadOnly)?;
    stage.line(format_args!("node 0: puts with the key to read      =>  {refused}"));
    stage.ask::<()>(FIRST, &Order::Withdraw)?;
    let refused = refusal(peer.put(&VALUES, key.at(AT)), KeyFault::Stale)?;
    stage.line(format_args!("node 0: puts when it was withdrawn     =>  {refused}"));
    stage.say.word("region, key");
    Ok(())
}

/// The error of a call that must fail for this reason.
fn refusal<T>(result: Result<T, Error>, expected: KeyFault) -> Result<Error, Failure> {
    match result {
        Err(error @ Error::Key { why, .. }) if why == expected => Ok(error),
        Err(error) => Err(unlike(format_args!("refused for another reason: {error}"))),
        Ok(_) => Err(unlike("an invalid key was accepted")),
    }
}

const WORDS: usize = 4096;

/// A DMA counter tells when all bytes have arrived, from any node.
pub fn counters(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("A counter tells when all bytes have arrived");
    let region = stage.done(stage.cast.node.region::<u64>(WORDS))?;
    let counter = stage.done(stage.cast.node.counter())?;
    let total = (WORDS * size_of::<u64>()) as u64;
    stage.done(counter.init(total))?;
    let index = counter.index();
    let before = stage.cast.node.counter_status()[index / 64];
    stage.line(format_args!(
        "node 0 sets counter {index} to {}; its bit in the counter status register is {}",
        bytes(total),
        bit(before, index)
    ));
    let halves = [(FIRST, 0..WORDS / 2), (SECOND, WORDS / 2..WORDS)];
    for (node, half) in halves.clone() {
        let (memory, counter) = (region.key().range(half).to_bytes().into(), counter.key().to_bytes().into());
        stage.order(node, &Order::Fill { memory, counter })?;
    }
    stage.line("nodes 1 and 2 get a key to one half of a region each, and the counter's: put_notify, in four pieces each");
    stage.done(counter.wait_until(patience()))?;
    let after = stage.cast.node.counter_status()[index / 64];
    let mut all = vec![0; WORDS];
    stage.done(region.read(0, &mut all))?;
    if bit(after, index) != 1 || halves.iter().any(|(node, half)| all[half.clone()].iter().any(|word| *word != u64::from(node.0)))
    {
        return Err(unlike(format_args!("the counter is at zero, and the bytes are not there (status {after:#x})")));
    }
    stage.line(format_args!(
        "node 0: counter.wait()  =>  all {} are there, the counter is at {}, its bit is {}",
        bytes(total),
        counter.value(),
        bit(after, index)
    ));
    stage.done(counter.clear())?;
    let cleared = stage.cast.node.counter_status()[index / 64];
    stage.line(format_args!("node 0: counter.clear() =>  its bit is {} again: each use reaches zero once", bit(cleared, index)));
    stage.say.word("DMA counter");
    Ok(())
}

fn bit(word: u64, index: usize) -> u64 {
    word >> (index % 64) & 1
}

/// A long message is moved from both ends.
pub fn transfer(stage: &mut Stage<'_>) -> Result<(), Failure> {
    both_wait(stage)?;
    stage.note();
    one_sleeps(stage)
}

/// The host sends, and both processes wait.
fn both_wait(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("A long message is moved from both ends");
    let mut message = vec![0; BULK_BYTES];
    fill_bulk(&mut message);
    let before = moved_by_messages(stage, HOST)?;
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
    tell(stage, (HOST, &ours), (FIRST, &theirs))?;
    let after = moved_by_messages(stage, HOST)?;
    let [by_fifo, by_put] = [0, 1].map(|way| after[way] - before[way]);
    if [by_fifo, by_put] != ours.ways[..2] {
        return Err(unlike(format_args!("the FIFOs of node 0 moved {by_fifo} and {by_put} bytes of {:?}", ours.ways)));
    }
    stage.line(format_args!(
        "on node 0's board: {} moved from its injection FIFO of normal priority, {} by the put in that of high priority",
        bytes(by_fifo),
        bytes(by_put)
    ));
    Ok(())
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
    stage.say.word("memory FIFO");
    stage.say.word("direct put");
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
