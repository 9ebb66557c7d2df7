//! One of the two processes of a pair: pins itself, joins the domain, and plays its part in section after section.

use super::carrier::{CarrierError, LANDING_BYTES, Landing};
use super::net;
use super::plan::{Finding, Order, Place, Plan, Reply, Test};
use super::sections::{Driver, Floors, Sections};
use super::together::Together;
use crate::exit::Failure;
use crate::log;
use crate::processes::requests_to_end;
use doorbell::{Error, Match, Node, NodeBuilder, NodeId, Peer, Region, Role};
use doorbell_benches::exchange::{Buffers, Side};
use doorbell_benches::floor::{Finish, Floor, HopProbe, Mapping, Patience, UdpEnd};
use doorbell_benches::memory::Memory;
use doorbell_benches::stream::Messages;
use doorbell_fabric::ParseIdError;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tracing_subscriber::filter::LevelFilter;

/// The name under which the command runs itself.
pub const COMMAND: &str = "measure-worker";

/// How long the other processes may take to start.
const START: Duration = Duration::from_secs(20);

#[derive(Debug, clap::Args)]
pub struct WorkerArgs {
    /// What to do, in JSON.
    pub order: String,
}

/// Does what it was ordered to and answers on stdout.
pub fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let order: Order = read(&args.order)?;
    // What befalls one of them befalls all, and one line is enough.
    log::install(if order.node == 0 { LevelFilter::WARN } else { LevelFilter::OFF })?;
    answer(&serve(&order))
}

/// An order, as it was given.
pub fn read<O: DeserializeOwned>(order: &str) -> Result<O, Failure> {
    serde_json::from_str(order).map_err(|error| {
        Failure::usage(format!("the order is malformed: {error}"), "this command is started by those that measure")
    })
}

/// Answers on stdout.
pub fn answer<F: Serialize>(reply: &Reply<F>) -> Result<(), Failure> {
    let line = serde_json::to_string(reply).map_err(|error| Failure::failed(error, ""))?;
    // Nobody listens any more if the command is gone; then nobody misses the answer either.
    let _ = writeln!(std::io::stdout(), "{line}");
    Ok(())
}

/// Has this process stop when it is told to, or when its command is gone.
pub fn obey<F>(parent: i32, stop: &Arc<AtomicBool>) -> Result<(), Reply<F>> {
    // A worker whose command is gone has nobody to answer to.
    set_pdeathsig(Signal::SIGTERM)
        .map_err(|error| Reply::Unable(unable("could not ask for a signal when the command ends", error)))?;
    for signal in requests_to_end() {
        signal_hook::flag::register(signal as i32, stop.clone())
            .map_err(|error| Reply::Unable(unable("could not set a signal handler", error)))?;
    }
    if getppid() == Pid::from_raw(parent) { Ok(()) } else { Err(Reply::Stopped) }
}

fn serve(order: &Order) -> Reply<Vec<Finding>> {
    let stop = Arc::new(AtomicBool::new(false));
    let prepared = match Prepared::new(order, &stop) {
        Ok(prepared) => prepared,
        Err(reply) => return reply,
    };
    // By the time of the answer the node has left its domain.
    match prepared.work(order) {
        Ok(findings) => Reply::Done(findings),
        Err(CarrierError::Stopped(_)) => Reply::Stopped,
        Err(CarrierError::Driver(Error::Invalid { what })) if order.plan.mode.is_some() => {
            Reply::Unable(Failure::usage(what, ""))
        }
        Err(error) => Reply::Failed(error.to_string()),
    }
}

fn id(node: usize) -> NodeId {
    NodeId(node as u16)
}

pub fn unable(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("{what}: {error}"), "")
}

/// All that must be there before the first section.
struct Prepared {
    node: Node,
    /// None if messages go through the node.
    peer: Option<Peer>,
    mapping: Mapping,
    socket: Option<UdpEnd>,
    patience: Patience,
    stop: Arc<AtomicBool>,
    buffers: Buffers,
    messages: Vec<Messages>,
    /// Where puts go, if it is by puts.
    landing: Option<Landing>,
}

impl Prepared {
    fn new(order: &Order, stop: &Arc<AtomicBool>) -> Result<Self, Reply<Vec<Finding>>> {
        let plan = &order.plan;
        obey(order.parent, stop)?;
        pin(plan.processor(order.node)).map_err(Reply::Unable)?;
        // SAFETY: the descriptor was made for this process, and nothing has used it yet.
        let mapping = unsafe { Mapping::inherit(order.memory, plan.shape()) }.map_err(|error| {
            Reply::Unable(unable("could not map the memory that the processes of a measurement share", error))
        })?;
        // SAFETY: as above.
        let socket = order.socket.map(|socket| unsafe { UdpEnd::inherit(socket) });
        let patience = Patience::new(stop.clone(), plan.crowded);
        let (node, peer) = join(order, &mapping, &patience)?;
        let (buffers, messages, landing) = if plan.put {
            let (buffers, region) = landing(plan, &node).map_err(Reply::Unable)?;
            let landing =
                Landing::exchange(region, &node, id(order.node ^ 1), plan.arrival(), &patience).map_err(|error| match error {
                    CarrierError::Stopped(_) => Reply::Stopped,
                    error => Reply::Unable(unable("could not exchange the keys of the regions", error)),
                })?;
            (buffers, Vec::new(), Some(landing))
        } else {
            let (buffers, messages) = room(plan, &node).map_err(Reply::Unable)?;
            (buffers, messages, None)
        };
        Ok(Self { node, peer, mapping, socket, patience, stop: stop.clone(), buffers, messages, landing })
    }

    fn work(self, order: &Order) -> Result<Vec<Finding>, CarrierError> {
        let Self { node, peer, mapping, socket, patience, stop, buffers, messages, landing } = self;
        let plan = &order.plan;
        let mode = plan.mode.as_deref().map(str::parse).transpose();
        let mode = mode.map_err(|error: ParseIdError| Error::Invalid { what: error.to_string() })?;
        // The probe spins however crowded the processors are: all others sleep meanwhile.
        let probing = Patience::new(stop, false);
        let (pair, side) = (mapping.pair(order.node / 2), order.side());
        let probes = order.node <= 1 && plan.is_spread();
        let sections = Sections {
            plan,
            side,
            together: Together::Here {
                mapping: &mapping,
                parties: 2 * plan.pairs,
                finish: Finish::new(&pair, &patience),
                probe: probes.then(|| (HopProbe::new(&pair, side, &probing), order.ns_per_tick)),
                patience: &patience,
            },
            driver: Driver {
                node: &node,
                peer: peer.as_ref(),
                to: id(order.node ^ 1),
                // Whoever is sent a stream takes it from anybody.
                from: Match::any(),
                patience: &patience,
                landing,
                loan: plan.loan,
                mode,
            },
            floors: socket.map_or_else(|| Floors::Memory(Floor::new(&pair, side, &patience)), Floors::Udp),
            patience: &patience,
            buffers,
            messages,
        };
        sections.work()
    }
}

/// Moves this process to its processor, if it has one.
pub fn pin(processor: Option<usize>) -> Result<(), Failure> {
    let Some(processor) = processor else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(processor)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|error| unable(&format!("could not move to processor {processor}"), error))
}

/// Memory for messages: for those of one by one, or for each leg of streams.
pub fn room(plan: &Plan, node: &Node) -> Result<(Buffers, Vec<Messages>), Failure> {
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
pub fn landing(plan: &Plan, node: &Node) -> Result<(Buffers, Region<u64>), Failure> {
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

fn join(order: &Order, mapping: &Mapping, patience: &Patience) -> Result<(Node, Option<Peer>), Reply<Vec<Finding>>> {
    let plan = &order.plan;
    let nodes = 2 * plan.pairs;
    let what = || format!("could not join the domain '{}' as node {}", plan.domain, order.node);
    let why = |error: Error| Reply::Unable(net::failure(error).of(what()));
    let role = if order.side() == Side::Ping { Role::Host } else { Role::Accelerator };
    let mut builder = builder(plan, role).map_err(why)?.id(id(order.node)).max_nodes(nodes);
    if plan.net.is_some() {
        let port = match order.node {
            0 => 0,
            _ => mapping.gate().read_note(patience).map_err(|_| Reply::Stopped)?,
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port as u16));
        builder = if order.node == 0 { builder.listen(address) } else { builder.connect(address) };
    }
    let node = builder.join().map_err(why)?;
    if let Some(address) = node.address().filter(|_| order.node == 0) {
        mapping.gate().leave_note(address.port().into());
    }
    if !meet(&node, nodes, patience).map_err(why)? {
        return Err(Reply::Stopped);
    }
    let peer = if plan.shared { None } else { Some(node.peer(id(order.node ^ 1)).map_err(why)?) };
    Ok((node, peer))
}

/// Waits until all nodes of a measurement are there. False if it was told to stop.
pub fn meet(node: &Node, nodes: usize, patience: &Patience) -> Result<bool, Error> {
    let deadline = Instant::now() + START;
    loop {
        if patience.stopped() {
            return Ok(false);
        }
        match node.wait_for(nodes, deadline.min(Instant::now() + Duration::from_millis(100))) {
            Ok(_) => return Ok(true),
            Err(Error::Timeout { .. }) if Instant::now() < deadline => {}
            Err(error) => return Err(error),
        }
    }
}

/// A node as the plan says, but for who it is.
pub fn builder(plan: &Plan, role: Role) -> Result<NodeBuilder, Error> {
    let malformed = |error: ParseIdError| Error::Invalid { what: error.to_string() };
    let builder = Node::builder(&plan.domain)
        .role(role)
        .label(plan.test.name())
        .loan_bytes((16 * plan.shape().bytes).max(64 << 20))
        .progress(plan.progress.parse().map_err(malformed)?)
        .wait(plan.wait.parse().map_err(malformed)?)
        .copy(plan.copy.name().parse().map_err(malformed)?);
    match &plan.net {
        Some(net) => net.apply(builder),
        None => Ok(builder),
    }
}
