//! One of the two processes of a pair: pins itself, joins the domain, and plays its part in section after section.

use super::carrier::{CarrierError, LANDING_BYTES, Landing, OnLoan, PutStream, Puts, Requests, ThroughNode, ThroughPeer};
use super::plan::{Finding, Leg, Order, Over, Place, Plan, Reply, Test, pack};
use crate::exit::Failure;
use doorbell::{Error, Match, Node, NodeId, Peer, Recipient, Region, Role};
use doorbell_benches::clock::ticks;
use doorbell_benches::exchange::{self, Buffers, Part, Section, Side};
use doorbell_benches::floor::{Finish, Floor, HopProbe, Mapping, Patience, Stopped};
use doorbell_benches::memory::Memory;
use doorbell_benches::stats::Samples;
use doorbell_benches::stream::{self, Flow, Messages};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The name under which the command runs itself.
pub const COMMAND: &str = "measure-worker";

/// How long the other processes may take to start.
const START: Duration = Duration::from_secs(20);

#[derive(Debug, clap::Args)]
pub struct WorkerArgs {
    /// What to do, in JSON.
    order: String,
}

/// Does what it was ordered to and answers on stdout.
pub fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let order: Order = serde_json::from_str(&args.order).map_err(|error| {
        Failure::usage(format!("the order is malformed: {error}"), "this command is started by `doorbell latency`")
    })?;
    let reply = serve(&order);
    let line = serde_json::to_string(&reply).map_err(|error| Failure::failed(error, ""))?;
    // Nobody listens any more if the command is gone; then nobody misses the answer either.
    let _ = writeln!(std::io::stdout(), "{line}");
    Ok(())
}

fn serve(order: &Order) -> Reply {
    let stop = Arc::new(AtomicBool::new(false));
    let prepared = match Prepared::new(order, &stop) {
        Ok(prepared) => prepared,
        Err(reply) => return reply,
    };
    // By the time of the answer the node has left its domain.
    match prepared.work(order) {
        Ok(findings) => Reply::Done(findings),
        Err(CarrierError::Stopped(_)) => Reply::Stopped,
        Err(error) => Reply::Failed(error.to_string()),
    }
}

fn id(node: usize) -> NodeId {
    NodeId(node as u16)
}

fn unable(what: &str, error: impl std::fmt::Display) -> Reply {
    Reply::Unable(format!("{what}: {error}"))
}

/// All that must be there before the first section.
struct Prepared {
    node: Node,
    /// None if messages go through the node.
    peer: Option<Peer>,
    mapping: Mapping,
    patience: Patience,
    stop: Arc<AtomicBool>,
    buffers: Buffers,
    messages: Vec<Messages>,
    /// Where puts go, if it is by puts.
    landing: Option<Landing>,
}

impl Prepared {
    fn new(order: &Order, stop: &Arc<AtomicBool>) -> Result<Self, Reply> {
        let plan = &order.plan;
        // A worker whose command is gone has nobody to answer to.
        set_pdeathsig(Signal::SIGTERM).map_err(|error| unable("could not ask for a signal when the command ends", error))?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, stop.clone()).map_err(|error| unable("could not set a signal handler", error))?;
        }
        if getppid() != Pid::from_raw(order.parent) {
            return Err(Reply::Stopped);
        }
        if let Some(processor) = plan.processor(order.node) {
            let mut set = CpuSet::new();
            set.set(processor)
                .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
                .map_err(|error| unable(&format!("could not move to processor {processor}"), error))?;
        }
        // SAFETY: the descriptor was made for this process, and nothing has used it yet.
        let mapping = unsafe { Mapping::inherit(order.memory, plan.shape()) }
            .map_err(|error| unable("could not map the memory that the processes of a measurement share", error))?;
        let patience = Patience::new(stop.clone(), plan.crowded);
        let (node, peer) = join(order, &patience)?;
        let (buffers, messages, landing) = if plan.put {
            let (buffers, region) = landing(plan, &node)?;
            let landing = Landing::exchange(region, &node, id(order.node ^ 1), &patience).map_err(|error| match error {
                CarrierError::Stopped(_) => Reply::Stopped,
                error => unable("could not exchange the keys of the regions", error),
            })?;
            (buffers, Vec::new(), Some(landing))
        } else {
            let (buffers, messages) = room(plan, &node)?;
            (buffers, messages, None)
        };
        Ok(Self { node, peer, mapping, patience, stop: stop.clone(), buffers, messages, landing })
    }

    fn work(self, order: &Order) -> Result<Vec<Finding>, CarrierError> {
        let Self { node, peer, mapping, patience, stop, buffers, messages, landing } = self;
        // The probe spins however crowded the processors are: all others sleep meanwhile.
        let probing = Patience::new(stop, false);
        let pair = mapping.pair(order.node / 2);
        let side = order.side();
        let worker = Worker {
            order,
            mapping: &mapping,
            driver: Driver {
                node: &node,
                peer: peer.as_ref(),
                to: id(order.node ^ 1),
                patience: &patience,
                landing,
                loan: order.plan.loan,
            },
            floor: Floor::new(&pair, side, &patience),
            finish: Finish::new(&pair, &patience),
            probe: HopProbe::new(&pair, side, &probing),
            patience: &patience,
            buffers,
            messages,
            refused: None,
        };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if order.plan.shared {
                scope.spawn(|| glance_now_and_then(&node, &done));
            }
            let findings = worker.work();
            done.store(true, Ordering::Relaxed);
            findings
        })
    }
}

/// Memory for messages: for those of one by one, or for each leg of streams.
fn room(plan: &Plan, node: &Node) -> Result<(Buffers, Vec<Messages>), Reply> {
    let make = |bytes: usize| match plan.buffers {
        Place::Private => Memory::private(bytes).map_err(|error| unable("could not allocate buffers", error)),
        Place::Registered => {
            let region = node.region::<u8>(bytes.max(1)).map_err(|error| unable("could not make a region for buffers", error))?;
            // SAFETY: the only slice of the region, which the clone keeps; peers touch it on behalf of sends and receives alone.
            let start = unsafe { region.as_mut_slice() }.as_mut_ptr();
            // SAFETY: as above.
            Ok(unsafe { Memory::lent(start, bytes, Box::new(region)) })
        }
    };
    if plan.test != Test::Bandwidth {
        let bytes = plan.shape().bytes;
        return Ok((Buffers::new(make(bytes)?, make(bytes)?), Vec::new()));
    }
    let messages = plan.legs.iter().map(|leg| Messages::new(plan.window, || make(leg.bytes))).collect::<Result<_, _>>()?;
    let none = || Memory::private(0).map_err(|error| unable("could not allocate buffers", error));
    Ok((Buffers::new(none()?, none()?), messages))
}

/// Memory for puts: what is sent is private, what arrives lies in a region.
fn landing(plan: &Plan, node: &Node) -> Result<(Buffers, Region<u64>), Reply> {
    let bytes = plan.shape().bytes;
    let source = Memory::private(bytes).map_err(|error| unable("could not allocate buffers", error))?;
    let room = if plan.test == Test::Rate { bytes.max(LANDING_BYTES) } else { bytes };
    let region =
        node.region::<u64>(room.div_ceil(size_of::<u64>())).map_err(|error| unable("could not make a region for puts", error))?;
    // SAFETY: the only slice of the region, which the clone keeps.
    let start = unsafe { region.as_mut_slice() }.as_mut_ptr();
    // SAFETY: as long as the region; the peer, which gets the key later, writes while this process waits for it, and it reads
    // nothing but the last word of a message until that says that all is there.
    let target = unsafe { Memory::lent(start.cast(), bytes, Box::new(region.clone())) };
    Ok((Buffers::new(source, target), region))
}

fn join(order: &Order, patience: &Patience) -> Result<(Node, Option<Peer>), Reply> {
    let plan = &order.plan;
    let nodes = 2 * plan.pairs;
    let why = |error: &dyn std::fmt::Display| {
        unable(&format!("could not join the domain '{}' as node {}", plan.domain, order.node), error)
    };
    let node = Node::builder(&plan.domain)
        .id(id(order.node))
        .role(if order.side() == Side::Ping { Role::Host } else { Role::Accelerator })
        .label(plan.test.name())
        .max_nodes(nodes)
        .loan_bytes((16 * plan.shape().bytes).max(64 << 20))
        .progress(plan.progress.parse().map_err(|error| why(&error))?)
        .wait(plan.wait.parse().map_err(|error| why(&error))?)
        .copy(std::env::var("DOORBELL_COPY").unwrap_or_else(|_| "auto".into()).parse().map_err(|error| why(&error))?)
        .join()
        .map_err(|error| why(&error))?;
    let deadline = Instant::now() + START;
    loop {
        if patience.stopped() {
            return Err(Reply::Stopped);
        }
        match node.wait_for(nodes, deadline.min(Instant::now() + Duration::from_millis(100))) {
            Ok(_) => break,
            Err(Error::Timeout { .. }) if Instant::now() < deadline => {}
            Err(error) => return Err(why(&error)),
        }
    }
    let peer = if plan.shared { None } else { Some(node.peer(id(order.node ^ 1)).map_err(|error| why(&error))?) };
    Ok((node, peer))
}

/// Another thread that has the node and uses it, though rarely.
fn glance_now_and_then(node: &Node, done: &AtomicBool) {
    let node = node.clone();
    while !done.load(Ordering::Relaxed) {
        // What can fail here fails the measuring thread as well, and that one tells.
        let _ = node.probe(Match::any());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The driver's end of a pair.
struct Driver<'a> {
    node: &'a Node,
    peer: Option<&'a Peer>,
    to: NodeId,
    patience: &'a Patience,
    landing: Option<Landing>,
    loan: bool,
}

impl Driver<'_> {
    fn play(&mut self, part: Part<'_>, section: Section, buffers: &mut Buffers) -> Result<(), CarrierError> {
        let Self { node, peer, to, patience, loan, .. } = *self;
        if let Some(landing) = &mut self.landing {
            let puts = Puts::new(node, peer, landing, section.bytes, patience);
            if matches!(part, Part::Pour | Part::Drain) {
                return exchange::play(PutStream::new(puts), part, section, buffers)?.finish();
            }
            let counts = exchange::play(puts, part, section, buffers)?.counts();
            landing.go_on(counts);
            return Ok(());
        }
        if loan {
            let to = peer.map_or(Recipient::Node(to), Recipient::Peer);
            let carrier = OnLoan { node, to, touched: section.touched, count: 0, patience };
            return exchange::play(carrier, part, Section { touched: false, ..section }, buffers).map(drop);
        }
        // Streams are received through the node: whoever is sent a stream takes it from anybody.
        match peer.filter(|_| !matches!(part, Part::Drain)) {
            Some(peer) => exchange::play(ThroughPeer { peer, patience }, part, section, buffers).map(drop),
            None => exchange::play(ThroughNode { node, to, patience }, part, section, buffers).map(drop),
        }
    }
}

impl Driver<'_> {
    fn stream(&self, flow: Flow, messages: &mut Messages) -> Result<(), CarrierError> {
        let Self { node, peer, to, patience, .. } = *self;
        stream::run(&mut Requests { node, peer, to, patience }, flow, messages)
    }
}

/// What one leg has seen so far.
#[derive(Default)]
struct Seen {
    driver: Samples,
    floor: Samples,
    chunked: BTreeMap<usize, Samples>,
    pulled: Samples,
}

impl Seen {
    fn over(&mut self, over: Over) -> &mut Samples {
        match over {
            Over::Driver => &mut self.driver,
            Over::Floor => &mut self.floor,
            Over::Chunked(bytes) => self.chunked.entry(bytes).or_default(),
            Over::Pulled => &mut self.pulled,
        }
    }
}

struct Worker<'a> {
    order: &'a Order,
    mapping: &'a Mapping,
    driver: Driver<'a>,
    floor: Floor<'a>,
    finish: Finish<'a>,
    probe: HopProbe<'a>,
    patience: &'a Patience,
    buffers: Buffers,
    /// For each leg, of streams.
    messages: Vec<Messages>,
    /// Why the kernel will not copy between the two processes.
    refused: Option<String>,
}

impl Worker<'_> {
    fn work(mut self) -> Result<Vec<Finding>, CarrierError> {
        let plan = &self.order.plan;
        let mut findings = Vec::new();
        if plan.test == Test::Bandwidth && plan.floor {
            self.refused = self.floor.may_pull()?.map(|error| error.to_string());
        }
        for (number, leg) in plan.legs.iter().enumerate() {
            let mut hops = Vec::from_iter(self.probe()?);
            let mut seen = Seen::default();
            for round in 0..leg.rounds {
                for over in plan.sections(leg, round) {
                    self.section(number, over, seen.over(over))?;
                }
            }
            hops.extend(self.probe()?);
            findings.push(Finding {
                driver: pack(&seen.driver),
                floor: pack(&seen.floor),
                chunked: seen.chunked.iter().map(|(bytes, samples)| (*bytes, pack(samples))).collect(),
                pulled: pack(&seen.pulled),
                refused: self.refused.clone(),
                hops,
            });
        }
        // Nobody leaves while somebody may still be looking.
        self.gate()?;
        Ok(findings)
    }

    fn gate(&self) -> Result<(), Stopped> {
        self.mapping.gate().pass(2 * self.order.plan.pairs, self.patience)
    }

    /// How far apart the processors of the first pair are, while all others sleep.
    fn probe(&mut self) -> Result<Option<(f64, bool)>, Stopped> {
        self.gate()?;
        if self.order.node > 1 || !self.order.plan.is_spread() {
            return Ok(None);
        }
        Ok(self.probe.probe(self.order.ns_per_tick)?.map(|hop| (hop.ns, hop.shared_core)))
    }

    fn section(&mut self, number: usize, over: Over, samples: &mut Samples) -> Result<(), CarrierError> {
        let plan = &self.order.plan;
        let leg = &plan.legs[number];
        let section = Section { bytes: leg.bytes, warmup: leg.warmup, count: leg.count, touched: plan.touched };
        self.gate()?;
        match (plan.test, self.order.side()) {
            (Test::Latency, Side::Ping) => {
                let mut ticks = Vec::new();
                self.play(over, Part::Ping(&mut ticks), section)?;
                ticks.into_iter().for_each(|ticks| samples.record(ticks));
            }
            (Test::Latency, Side::Pong) => self.play(over, Part::Pong, section)?,
            (Test::Rate, Side::Ping) => {
                let start = ticks();
                self.play(over, Part::Pour, section)?;
                // The other process has no part in puts: nobody waits for it.
                if !plan.put {
                    self.finish.wait()?;
                }
                samples.record(ticks() - start);
            }
            (Test::Rate, Side::Pong) if plan.put => {}
            (Test::Rate, Side::Pong) => {
                self.play(over, Part::Drain, section)?;
                self.finish.tell();
            }
            // Both sides of the pair know that it is refused.
            (Test::Bandwidth, _) if over == Over::Pulled && self.refused.is_some() => {}
            (Test::Bandwidth, side) => {
                let start = ticks();
                self.stream(number, over, side)?;
                match side {
                    Side::Ping => {
                        self.finish.wait()?;
                        samples.record(ticks() - start);
                    }
                    Side::Pong => self.finish.tell(),
                }
            }
        }
        Ok(())
    }

    fn stream(&mut self, number: usize, over: Over, side: Side) -> Result<(), CarrierError> {
        let plan = &self.order.plan;
        let Leg { bytes, count, .. } = plan.legs[number];
        let turns = |sends: bool| if sends || plan.both_ways { count } else { 0 };
        let flow = Flow { sends: turns(side == Side::Ping), receives: turns(side == Side::Pong), touched: plan.touched };
        let messages = &mut self.messages[number];
        match over {
            Over::Driver => self.driver.stream(flow, messages),
            Over::Pulled => Ok(self.floor.stream_pulled(flow, messages)?),
            Over::Floor | Over::Chunked(_) => Ok(self.floor.stream_copied(bytes, flow, messages)?),
        }
    }

    fn play(&mut self, over: Over, part: Part<'_>, section: Section) -> Result<(), CarrierError> {
        match over {
            Over::Driver => self.driver.play(part, section, &mut self.buffers),
            Over::Chunked(chunk) => Ok(self.floor.play_chunked(chunk, part, section, &mut self.buffers)?),
            Over::Floor | Over::Pulled => Ok(self.floor.play(part, section, &mut self.buffers)?),
        }
    }
}
