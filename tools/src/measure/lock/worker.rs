//! One of the processes that lock: pins itself, joins the domain, and does its task.

use super::super::carrier::CarrierError;
use super::super::net;
use super::super::plan::{Recorded, Reply, pack};
use super::super::together::receive;
use super::super::worker::{WorkerArgs, answer, meet, obey, pin, read, unable};
use super::Plan;
use crate::exit::Failure;
use crate::log;
use doorbell::{Error, LaneGeometry, LockKey, Match, Node, NodeBuilder, NodeId, Resource};
use doorbell_benches::clock::ticks;
use doorbell_benches::contention::{self, Exclusive, contend};
use doorbell_benches::floor::{Mapping, Patience, PrivateWord, Shape, Stopped};
use doorbell_benches::stats::Samples;
use doorbell_fabric::ParseIdError;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tracing_subscriber::filter::LevelFilter;

/// The name under which the command runs itself.
pub const COMMAND: &str = "lock-worker";
/// Sections of each kind, uncontended.
pub const ROUNDS: u64 = 200;
/// Locks of a section.
pub const PAIRS: u64 = 20_000;
/// Turns over a network that do not count, and those that do at most.
const WARMUP: usize = 500;
const TURNS: usize = 20_000;
/// The home of the key over a network, and who locks it while nobody else wants it.
const HOME: NodeId = NodeId(0);
const OTHER: NodeId = NodeId(1);
/// Of messages there and back.
const TAG: u64 = 1;
/// The key that all want.
const KEY: &str = "contended";
/// Smaller ones there are not, and nobody sends messages here.
pub const LANES: LaneGeometry = LaneGeometry { cells: [16; 3], data_bytes: [16 << 10; 3] };

/// What there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// Lock a key that nobody else wants.
    Alone,
    /// The same from another node than the one that is the home of the key.
    Remote,
    /// Lock one that all want.
    Contended,
}

impl Task {
    /// How many processes it takes.
    pub fn nodes(self, plan: &Plan) -> usize {
        match self {
            Task::Alone => 1,
            Task::Remote => 2,
            Task::Contended => plan.nodes,
        }
    }
}

/// What one process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// What all are told.
    pub plan: Plan,
    /// What they do.
    pub task: Task,
    /// Which of them it is.
    pub node: usize,
    /// The descriptor of the memory that all share.
    pub memory: i32,
    /// The process that started it.
    pub parent: i32,
    /// Nanoseconds in a tick.
    pub ns_per_tick: f64,
}

impl Order {
    /// How many do it.
    fn nodes(&self) -> usize {
        self.task.nodes(&self.plan)
    }
}

/// What was found uncontended: ticks of sections.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Alone {
    /// Of locking and unlocking a key.
    pub key: Recorded,
    /// Of two compare-and-swaps, if they were measured.
    pub swaps: Option<Recorded>,
}

/// What was found of a key whose home is another node: ticks of each.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Remote {
    /// A message there and back.
    pub message: Recorded,
    /// From `lock` until it is had.
    pub lock: Recorded,
    /// From `unlock` until the home has said so.
    pub unlock: Recorded,
}

/// What one process found while others wanted the same.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Contended {
    /// With a key.
    pub key: Seen,
    /// With the C library's mutex, if it was measured.
    pub mutex: Option<Seen>,
}

/// What one process saw of a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// How often it had it.
    pub locks: u64,
    /// How often it waited for it.
    pub waited: u64,
    /// How long it did, in all.
    pub wait_ns: f64,
    /// The longest wait.
    pub longest_ns: f64,
    /// How long all took.
    pub ns: f64,
}

impl Seen {
    fn new(seen: contention::Contended, ns_per_tick: f64) -> Self {
        let ns = |ticks| ticks as f64 * ns_per_tick;
        let contention::Contended { locks, waited, wait_ticks, longest_ticks, ticks } = seen;
        Self { locks, waited, wait_ns: ns(wait_ticks), longest_ns: ns(longest_ticks), ns: ns(ticks) }
    }
}

/// Why a task was not done.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Stopped(#[from] Stopped),
    #[error(transparent)]
    Driver(#[from] Error),
    #[error(transparent)]
    Message(CarrierError),
    #[error("the C library's mutex failed: {0}")]
    Mutex(#[from] nix::errno::Errno),
}

impl From<CarrierError> for Trouble {
    fn from(error: CarrierError) -> Self {
        match error {
            CarrierError::Stopped(stopped) => stopped.into(),
            error => Self::Message(error),
        }
    }
}

/// Does what it was ordered to and answers on stdout.
pub fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let order: Order = read(&args.order)?;
    // What befalls one of them befalls all, and one line is enough.
    log::install(if order.node == 0 { LevelFilter::WARN } else { LevelFilter::OFF })?;
    match order.task {
        Task::Alone => answer(&serve(&order, alone)),
        Task::Remote => answer(&serve(&order, remote)),
        Task::Contended => answer(&serve(&order, contended)),
    }
}

/// What a task has at hand.
struct Prepared {
    node: Node,
    key: LockKey,
    mapping: Mapping,
    patience: Patience,
}

fn serve<F>(order: &Order, task: impl FnOnce(&Order, &Prepared) -> Result<F, Trouble>) -> Reply<F> {
    let prepared = match prepare(order) {
        Ok(prepared) => prepared,
        Err(reply) => return reply,
    };
    let done = task(order, &prepared);
    let left = prepared.node.clone().leave().map_err(Trouble::from);
    match done.and_then(|found| left.map(|()| found)) {
        Ok(found) => Reply::Done(found),
        Err(Trouble::Stopped(_)) => Reply::Stopped,
        Err(trouble) => Reply::Failed(trouble.to_string()),
    }
}

/// All that must be there before the first section.
fn prepare<F>(order: &Order) -> Result<Prepared, Reply<F>> {
    let Order { plan, node, memory, parent, .. } = order;
    let stop = Arc::new(AtomicBool::new(false));
    obey(*parent, &stop)?;
    pin(plan.processor(*node)).map_err(Reply::Unable)?;
    // SAFETY: the descriptor was made for this process, and nothing has used it yet.
    let mapping = unsafe { Mapping::inherit(*memory, Shape { pairs: 0, bytes: 0 }) }
        .map_err(|error| Reply::Unable(unable("could not map the memory that the processes of a measurement share", error)))?;
    let patience = Patience::new(stop, plan.crowded);
    let what = format!("could not join the domain '{}' as node {node}", plan.domain);
    let why = |error: Error| Reply::Unable(net::failure(error).of(&what));
    let mut builder = builder(plan, NodeId(*node as u16)).map_err(why)?;
    if plan.net.is_some() {
        let at = |port: u64| SocketAddr::from((Ipv4Addr::LOCALHOST, port as u16));
        builder = match *node {
            0 => builder.listen(at(0)),
            _ => builder.connect(at(mapping.gate().read_note(&patience).map_err(|_| Reply::Stopped)?)),
        };
    }
    let joined = builder.join().map_err(why)?;
    if let Some(address) = joined.address().filter(|_| *node == 0) {
        mapping.gate().leave_note(address.port().into());
    }
    if !meet(&joined, order.nodes(), &patience).map_err(why)? {
        return Err(Reply::Stopped);
    }
    // Who makes the first key is its home, and all have met by then: see there.
    let first = || mapping.gate().pass(order.nodes(), &patience).map_err(|_| Reply::Stopped);
    if *node > 0 {
        first()?;
    }
    let key = joined.key(KEY, Resource::Unnamed).map_err(|error| Reply::Unable(unable("could not make a key", error)))?;
    if *node == 0 {
        first()?;
    }
    Ok(Prepared { node: joined, key, mapping, patience })
}

fn builder(plan: &Plan, id: NodeId) -> Result<NodeBuilder, Error> {
    let malformed = |error: ParseIdError| Error::Invalid { what: error.to_string() };
    let builder = Node::builder(&plan.domain).id(id).label("lock").max_nodes(plan.nodes).lanes(LANES);
    let builder = builder.progress(plan.progress.parse().map_err(malformed)?).wait(plan.wait.parse().map_err(malformed)?);
    match &plan.net {
        Some(net) => net.apply(builder),
        None => Ok(builder),
    }
}

fn alone(order: &Order, prepared: &Prepared) -> Result<Alone, Trouble> {
    let (key, word) = (&prepared.key, PrivateWord::default());
    let (mut of_key, mut of_swaps) = (Samples::new(), Samples::new());
    // Once for nothing.
    for round in 0..=ROUNDS {
        if prepared.patience.stopped() {
            return Err(Stopped.into());
        }
        let began = ticks();
        for _ in 0..PAIRS {
            drop(key.lock()?);
        }
        let locked = ticks();
        if order.plan.floor {
            black_box(word.swap_there_and_back(PAIRS));
        }
        let swapped = ticks();
        if round > 0 {
            of_key.record(locked - began);
            of_swaps.record(swapped - locked);
        }
    }
    Ok(Alone { key: pack(&of_key), swaps: order.plan.floor.then(|| pack(&of_swaps)) })
}

/// What the one that measures finds; the home of the key has nothing to tell.
fn remote(order: &Order, prepared: &Prepared) -> Result<Option<Remote>, Trouble> {
    let found = if order.node == 0 { echo(prepared).map(|()| None) } else { measure(order, prepared).map(Some) }?;
    prepared.mapping.gate().pass(order.nodes(), &prepared.patience)?;
    Ok(found)
}

/// Sends back what comes, until it is empty. The thread that waits for it turns the engine, which gives the key out, too.
fn echo(prepared: &Prepared) -> Result<(), Trouble> {
    let peer = prepared.node.peer(OTHER)?;
    let mut word = [0; 8];
    loop {
        let (_, len) = receive(&prepared.node, Match::from(OTHER), &mut word, None, &prepared.patience)?;
        if len == 0 {
            return Ok(());
        }
        peer.send(TAG, &word[..len])?;
    }
}

/// A message, a lock and an unlock in turns, so that a mood of the machine meets all alike.
fn measure(order: &Order, prepared: &Prepared) -> Result<Remote, Trouble> {
    let Prepared { node, key, patience, .. } = prepared;
    let span = (f64::from(order.plan.seconds) * 1e9 / order.ns_per_tick) as u64;
    let peer = node.peer(HOME)?;
    let (mut message, mut lock, mut unlock) = (Samples::new(), Samples::new(), Samples::new());
    let mut word = [0; 8];
    let start = ticks();
    for turn in 0..WARMUP + TURNS {
        let began = ticks();
        peer.send(TAG, &word)?;
        receive(node, Match::from(HOME), &mut word, None, patience)?;
        let returned = ticks();
        let guard = key.lock()?;
        let locked = ticks();
        guard.unlock()?;
        let unlocked = ticks();
        let is_over = unlocked - start >= span;
        // One at least, however slow it is.
        if turn >= WARMUP || is_over {
            message.record(returned - began);
            lock.record(locked - returned);
            unlock.record(unlocked - locked);
        }
        if is_over {
            break;
        }
    }
    peer.send(TAG, &[])?;
    Ok(Remote { message: pack(&message), lock: pack(&lock), unlock: pack(&unlock) })
}

/// A key, as what lets one in at a time.
struct ByKey<'a>(&'a LockKey);

impl Exclusive for ByKey<'_> {
    type Error = Error;

    #[inline(always)]
    fn try_with(&mut self, inside: impl FnOnce()) -> Result<bool, Error> {
        let Some(guard) = self.0.try_lock()?.guard() else { return Ok(false) };
        inside();
        drop(guard);
        Ok(true)
    }

    #[inline(always)]
    fn with(&mut self, inside: impl FnOnce()) -> Result<(), Error> {
        let guard = self.0.lock()?;
        inside();
        drop(guard);
        Ok(())
    }
}

fn contended(order: &Order, prepared: &Prepared) -> Result<Contended, Trouble> {
    let Prepared { key, mapping, patience, .. } = prepared;
    let (plan, common) = (&order.plan, mapping.common());
    let span = (1e9 / order.ns_per_tick) as u64;
    let (mut of_key, mut of_mutex) = (contention::Contended::default(), contention::Contended::default());
    for _ in 0..plan.seconds {
        mapping.gate().pass(plan.nodes, patience)?;
        of_key = of_key.and(contend(&mut ByKey(key), &common.under_key, span, patience)?);
        if plan.floor {
            mapping.gate().pass(plan.nodes, patience)?;
            of_mutex = of_mutex.and(contend(&mut &common.mutex, &common.under_mutex, span, patience)?);
        }
    }
    // Whoever leaves ends what it holds, and nobody else is to see that.
    mapping.gate().pass(plan.nodes, patience)?;
    let [key, mutex] = [of_key, of_mutex].map(|seen| Seen::new(seen, order.ns_per_tick));
    Ok(Contended { key, mutex: plan.floor.then_some(mutex) })
}
