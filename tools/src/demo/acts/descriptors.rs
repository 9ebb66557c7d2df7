//! Descriptors: one node has the engine of another put into a third, and watches the counters of both.

use super::{FIRST, HOST, SECOND, Stage, patience, told, unlike};
use crate::demo::offers::{ARRIVING, OF_HOST, Offer, PACKET_BYTES, PACKET_TAG, PUT_BYTES};
use crate::demo::{BULK_BYTES, Order, PATIENCE, PAUSE_MS, now, tag};
use crate::environment::space;
use crate::exit::Failure;
use crate::ls::fifos;
use crate::text::{Table, bytes};
use doorbell::dma::{Descriptor, FifoKey, InjectionFifo};
use doorbell::{CounterKey, Key, NodeId, Priority, Progress, ReadOnly, ReadWrite};
use doorbell_shm::board::{BoardCopy, FifoShown, Injector};
use doorbell_shm::domain::list_domains;
use std::time::{Duration, Instant};

/// The number of remote gets.
const GETS: usize = 4;
/// The name of the host's FIFO.
const NAME: &str = "walk";
/// The most values of the counters to show.
const SHOWN: usize = 6;

/// The board of a node, as any process of this user may read it.
fn board(stage: &Stage<'_>, node: NodeId) -> Result<BoardCopy, Failure> {
    let domains = list_domains(&space()).map_err(unlike)?;
    let nodes = domains.into_iter().filter(|found| found.name == stage.cast.domain).flat_map(|found| found.nodes);
    let board = nodes.into_iter().find(|found| found.id == node).and_then(|found| found.board);
    board.ok_or_else(|| unlike(format_args!("node {node} shows no board")))
}

/// The bytes that messages between both ends have moved, as the FIFOs on a node's board show: by memory FIFO at normal priority, and by direct put.
pub fn moved_by_messages(stage: &Stage<'_>, node: NodeId) -> Result<[u64; 2], Failure> {
    let fifos = board(stage, node)?.board().fifos();
    let is_its = |fifo: &&FifoShown, priority| fifo.facts.injector == Injector::Engine && fifo.facts.priority == priority;
    Ok([Priority::Normal, Priority::High]
        .map(|priority| fifos.iter().find(|fifo| is_its(fifo, priority)).map_or(0, |fifo| fifo.bytes)))
}

/// The engine of a node whose application sleeps puts into a third node.
pub fn descriptors(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("Node 0 has node 1 put into node 2, and node 1's application sleeps");
    let wanted: Offer = stage.ask(SECOND, &Order::Want)?;
    let owned: Offer = stage.ask(FIRST, &Order::Own(PAUSE_MS))?;
    stage.note();
    let counters = [counter(&owned)?, counter(&wanted)?];
    let size = bytes(BULK_BYTES as u64);
    stage.line(format_args!("node 1 owns {size}, sets counter {} to them, and sleeps for {PAUSE_MS} ms", counters[0].index));
    stage.line(format_args!(
        "node 2 has room for them, sets counter {} to {}, and waits for that",
        counters[1].index,
        bytes(ARRIVING as u64)
    ));

    let node = stage.cast.node.clone();
    let own = stage.done(node.region::<u8>(PUT_BYTES + PACKET_BYTES))?;
    stage.done(own.fill(OF_HOST))?;
    let sent = stage.done(node.counter())?;
    stage.done(sent.init((PUT_BYTES + PACKET_BYTES) as u64))?;
    let source = stage.done(Key::<u8, ReadOnly>::from_bytes(&owned.memory))?;
    let target = stage.done(Key::<u8, ReadWrite>::from_bytes(&wanted.memory))?;
    let (gets, packets) = (FifoKey::from_bytes(owned.fifo), FifoKey::from_bytes(wanted.fifo));
    let before = board(stage, FIRST)?.board().fifos().into_iter().next();
    let before = before.ok_or_else(|| unlike("node 1 has no FIFO for remote gets"))?;

    let mut all = Vec::new();
    for piece in (0..BULK_BYTES).step_by(BULK_BYTES / GETS).map(|at| at..at + BULK_BYTES / GETS) {
        let put = stage.done(Descriptor::put(source.range(piece.clone()), target.range(piece)))?;
        let put = put.send_counter(counters[0]).receive_counter(counters[1]);
        all.push((stage.done(Descriptor::remote_get(gets, put))?, FIRST, counters[0]));
    }
    let put = Descriptor::put(own.key().range(..PUT_BYTES), target.range(BULK_BYTES..));
    let packet = Descriptor::packet(own.key().range(PUT_BYTES..), packets, PACKET_TAG);
    for descriptor in [put, packet] {
        let descriptor = stage.done(descriptor)?.send_counter(sent.key()).receive_counter(counters[1]);
        all.push((descriptor, HOST, sent.key()));
    }

    let builder = InjectionFifo::builder(&node).name(NAME).priority(Priority::High);
    let fifo = stage.done(builder.open())?;
    let start = Instant::now();
    for (descriptor, ..) in &all {
        if !stage.done(fifo.inject(descriptor))? {
            return Err(unlike("an injection FIFO has no room for a few descriptors"));
        }
    }
    let (values, zero) = watch(stage, start, counters, before.bytes + BULK_BYTES as u64)?;
    stage.done(fifo.wait_until(patience()))?;
    stage.note();

    stage.line(format_args!(
        "node 0: InjectionFifo::builder(&node).name(\"{NAME}\").priority(Priority::High).open(), and injects:"
    ));
    let mut table = Table::new(&["descriptor", ">bytes", ">from node", ">to node", "send counter", "receive counter"]);
    for (descriptor, from, send) in &all {
        let kind = format!("{descriptor:?}");
        let kind = kind.split(' ').next().unwrap_or_default().to_owned();
        let [send, receive] = [*send, counters[1]].map(|key| format!("{} of node {}", key.index, key.node));
        table.row([kind, bytes(descriptor.len()), from.to_string(), SECOND.to_string(), send, receive]);
    }
    stage.say.table(&table);
    stage.line("");
    stage.line("the counters on the boards of nodes 1 and 2, which node 0 reads meanwhile:");
    show(stage, &values);

    let woke: u64 = stage.answer(FIRST)?;
    let is_right: bool = stage.answer(SECOND)?;
    if let Some((position, fault)) = fifo.next_fault() {
        return Err(unlike(format_args!("descriptor {position} failed: {fault}")));
    }
    if !is_right || !sent.is_zero() {
        return Err(unlike(format_args!(
            "all counters but one are at zero, which is at {}, and bytes are missing",
            sent.value()
        )));
    }
    let early = if zero < woke { "before node 1's application woke" } else { "when node 1's application was awake again" };
    let mover = match stage.cast.progress {
        Progress::Inline => "with --progress inline only calls of node 1 turn its engine",
        Progress::Adaptive => "its poller turns its engine",
        Progress::Poller => "its poller is its engine",
    };
    stage.line(format_args!("node 2 has every byte, {early}: {mover}"));

    stage.line("");
    stage.line("the injection FIFOs as node 2 reads them on the boards of all nodes, like `doorbell ls --fifos`:");
    stage.send(SECOND, tag::SEEN, &[])?;
    stage.send(FIRST, tag::SEEN, &[])?;
    let rows: Vec<Vec<String>> = stage.answer(SECOND)?;
    let mut table = Table::new(&fifos::NAMES[1..]);
    rows.iter().for_each(|row| table.row(row.iter().cloned()));
    stage.say.table(&table);
    // Its number among the node's FIFOs is free. A remote get takes two places.
    let places = (all.len() + GETS).to_string();
    let ours = ["0", NAME, "high", "program", &places, "0", "0", &bytes((PUT_BYTES + PACKET_BYTES) as u64)].map(str::to_owned);
    let theirs = (before.injected + GETS as u64).to_string();
    let moved = bytes(before.bytes + BULK_BYTES as u64);
    let theirs = ["1", "remote gets", "high", "peers", &theirs, "0", "0", &moved].map(str::to_owned);
    for expected in [ours, theirs] {
        let is_it = |row: &&Vec<String>| row.iter().take(1).chain(row.iter().skip(2)).take(expected.len()).eq(&expected);
        if !rows.iter().any(|row| is_it(&row)) {
            return Err(unlike(format_args!("no FIFO is as expected ({}): {rows:?}", expected.join(", "))));
        }
    }
    stage.line(format_args!("'{NAME}' is node 0's, 'remote gets' has what it had node 1 do, and 'messages' the long messages"));
    stage.say.word("injection FIFO");
    stage.say.word("descriptor");
    Ok(())
}

fn counter(offer: &Offer) -> Result<CounterKey, Failure> {
    CounterKey::from_bytes(&offer.counter).ok_or_else(|| unlike("the key of a counter has another length"))
}

/// The values of two counters at a time.
type Sample = (Duration, [u64; 2]);

/// Watches two counters on the boards of their nodes until both are at zero, and the first node's FIFO for remote gets has moved that many bytes.
/// Returns the values that were seen, and the time of zero on the clock of all processes.
fn watch(stage: &Stage<'_>, start: Instant, counters: [CounterKey; 2], moved: u64) -> Result<(Vec<Sample>, u64), Failure> {
    let mut values: Vec<Sample> = vec![(Duration::ZERO, [BULK_BYTES as u64, ARRIVING as u64])];
    let mut zero = None;
    loop {
        stage.cast.check()?;
        // With `inline`, no other thread turns this node's engine.
        stage.done(stage.cast.node.progress())?;
        let boards = [board(stage, FIRST)?, board(stage, SECOND)?];
        let mut now_left = [0; 2];
        for ((left, board), key) in now_left.iter_mut().zip(&boards).zip(counters) {
            let shown = board.board().counters().into_iter().find(|shown| shown.index == usize::from(key.index));
            *left = shown.ok_or_else(|| unlike(format_args!("node {} does not show its counter", key.node)))?.value;
        }
        let (_, before) = values[values.len() - 1];
        if now_left.iter().zip(before).any(|(now, before)| *now > before) {
            return Err(unlike(format_args!("a counter rose: {before:?}, then {now_left:?}")));
        }
        if now_left != before {
            values.push((start.elapsed(), now_left));
        }
        if now_left == [0, 0] {
            let zero = *zero.get_or_insert_with(now);
            if boards[0].board().fifos().first().is_some_and(|gets| gets.bytes >= moved) {
                return Ok((values, zero));
            }
        }
        if start.elapsed() > PATIENCE {
            return Err(unlike(format_args!("the counters stay at {now_left:?}")));
        }
        // The nodes that move the bytes may need this processor.
        std::thread::yield_now();
    }
}

/// A few of the values: the first, the last, and some between.
fn show(stage: &Stage<'_>, values: &[Sample]) {
    let mut table = Table::new(&[">after", ">left at node 1", ">missing at node 2"]);
    let last = values.len() - 1;
    let mut at: Vec<usize> = (0..SHOWN).map(|step| step * last / (SHOWN - 1)).collect();
    at.dedup();
    for (time, [left, missing]) in at.into_iter().map(|at| values[at]) {
        let after = if time.is_zero() { "0".into() } else { told(time) };
        table.row([after, bytes(left), bytes(missing)]);
    }
    stage.say.table(&table);
}
