//! The server, or the client, of a measurement.

use super::{Engine, Op, Plan};
use crate::exit::Failure;
use crate::log;
use crate::measure::net;
use crate::measure::plan::Reply;
use crate::measure::worker::{WorkerArgs, answer, obey, pin, read, unable};
use doorbell::io::{IoClient, IoEngine, IoFile, IoServer};
use doorbell::{Error, Event, FabricKind, Node, Role};
use doorbell_benches::clock::ticks;
use doorbell_benches::stats::{Samples, Summary};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tracing_subscriber::filter::LevelFilter;

/// The name under which the command runs itself.
pub const COMMAND: &str = "io-worker";
/// How long the other process may take to be there.
const START: Duration = Duration::from_secs(20);
/// How long a turn is, where nothing is said of its calls.
const TURN_NS: f64 = 10e6;
/// The seed of what is in the file.
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// What one process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// What both are told.
    pub plan: Plan,
    /// Or the server.
    pub is_client: bool,
    /// The process that started it.
    pub parent: i32,
    /// Nanoseconds in a tick.
    pub ns_per_tick: f64,
}

/// Times of calls, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Times {
    pub calls: u64,
    pub min: f64,
    pub p50: f64,
    pub p99: f64,
}

impl From<Summary> for Times {
    fn from(summary: Summary) -> Self {
        let Summary { count, min, p50, p99, .. } = summary;
        Self { calls: count, min, p50, p99 }
    }
}

/// What the client found of one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    pub op: Op,
    pub bytes: usize,
    /// By the server.
    pub io: Times,
    /// By itself.
    pub local: Times,
}

#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("told to stop")]
    Stopped,
    #[error("{0}: {1}")]
    Io(&'static str, io::Error),
    #[error(transparent)]
    Driver(#[from] Error),
    #[error("byte {at} of the file is not what was written there")]
    Wrong { at: usize },
}

/// Does what it was ordered to and answers on stdout.
pub fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let order: Order = read(&args.order)?;
    log::install(if order.is_client { LevelFilter::OFF } else { LevelFilter::WARN })?;
    answer(&carry_out(&order))
}

fn carry_out(order: &Order) -> Reply<Vec<Found>> {
    let stop = Arc::new(AtomicBool::new(false));
    if let Err(reply) = obey(order.parent, &stop) {
        return reply;
    }
    if let Err(failure) = pin(order.plan.processor(usize::from(order.is_client))) {
        return Reply::Unable(failure);
    }
    let node = match join(order) {
        Ok(node) => node,
        Err(error) => return Reply::Unable(net::failure(error).of("could not join the domain")),
    };
    let done = if order.is_client { measure(order, &node, &stop) } else { serve(order, &node, &stop).map(|()| Vec::new()) };
    let left = node.leave().map_err(Trouble::from);
    match done.and_then(|found| left.map(|()| found)) {
        Ok(found) => Reply::Done(found),
        Err(_) if stop.load(Ordering::SeqCst) => Reply::Stopped,
        Err(Trouble::Io(what, error)) if !order.is_client => Reply::Unable(unable(what, error)),
        Err(trouble) => Reply::Failed(trouble.to_string()),
    }
}

fn join(order: &Order) -> Result<Node, Error> {
    let Order { plan, is_client, .. } = order;
    let role = if *is_client { Role::Host } else { Role::Io };
    let wait = plan.wait.parse().map_err(|error: doorbell_fabric::ParseIdError| Error::Invalid { what: error.to_string() })?;
    let builder = Node::builder(&plan.domain).role(role).label("io bench").wait(wait);
    match plan.address {
        None => builder.join(),
        Some(at) if *is_client => builder.fabric(FabricKind::Udp).connect(at).dead_after(Duration::from_secs(5)).join(),
        Some(at) => builder.fabric(FabricKind::Udp).listen(at).dead_after(Duration::from_secs(5)).join(),
    }
}

/// Serves until the client has left.
fn serve(order: &Order, node: &Node, stop: &AtomicBool) -> Result<(), Trouble> {
    let engine = match order.plan.engine {
        Engine::Auto => IoEngine::Auto,
        Engine::Uring => IoEngine::Uring,
        Engine::Plain => IoEngine::Plain,
    };
    let server = IoServer::builder(node, &order.plan.directory).engine(engine).start();
    let server = server.map_err(|error| Trouble::Io("could not serve the directory", error))?;
    loop {
        if stop.load(Ordering::SeqCst) {
            return Err(Trouble::Stopped);
        }
        match node.event(Instant::now() + Duration::from_millis(50)) {
            Ok(Event::Left { .. } | Event::Died { .. }) => return Ok(server.stop()?),
            Ok(_) | Err(Error::Timeout { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The file, by both ways.
struct Both {
    far: IoFile,
    near: File,
}

fn measure(order: &Order, node: &Node, stop: &AtomicBool) -> Result<Vec<Found>, Trouble> {
    let plan = &order.plan;
    let deadline = Instant::now() + START;
    let client = loop {
        match IoClient::builder(node).connect() {
            Ok(client) => break client,
            Err(_) if stop.load(Ordering::SeqCst) => return Err(Trouble::Stopped),
            // It is not there yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(Trouble::Io("could not become a client", error)),
        }
    };
    let far = client.options().read(true).write(true).create_new(true).open(&plan.name);
    let far = far.map_err(|error| Trouble::Io("could not make the file", error))?;
    let near = File::options().read(true).write(true).open(plan.directory.join(&plan.name));
    let removed = || client.remove_file(&plan.name);
    let near = near.map_err(|error| {
        let _ = removed();
        Trouble::Io("could not open the file here: is it in the directory that --dir names?", error)
    })?;
    let both = Both { far, near };
    let found = both.check(plan).and_then(|()| plan.legs.iter().map(|leg| both.leg(order, *leg, stop)).collect());
    removed().map_err(|error| Trouble::Io("could not remove the file", error))?;
    found
}

impl Both {
    /// Writes the file there, and sees that it is here; and the other way round.
    fn check(&self, plan: &Plan) -> Result<(), Trouble> {
        let written: Vec<u8> = (0..plan.file as u64).map(|at| (at.wrapping_mul(SEED) >> 56) as u8).collect();
        self.far.write_all_at(&written, 0).map_err(|error| Trouble::Io("could not write the file", error))?;
        let compare = |read: &[u8]| match read.iter().zip(&written).position(|(read, written)| read != written) {
            Some(at) => Err(Trouble::Wrong { at }),
            None => Ok(()),
        };
        let mut read = vec![0; plan.file];
        self.near.read_exact_at(&mut read, 0).map_err(|error| Trouble::Io("could not read the file here", error))?;
        compare(&read)?;
        read.fill(0);
        self.far.read_exact_at(&mut read, 0).map_err(|error| Trouble::Io("could not read the file", error))?;
        compare(&read)
    }

    fn leg(&self, order: &Order, (op, bytes): (Op, usize), stop: &AtomicBool) -> Result<Found, Trouble> {
        let plan = &order.plan;
        let mut memory = vec![1; bytes];
        let places = (plan.file / bytes) as u64;
        let far = |memory: &mut [u8], call: u64| {
            let at = call % places * bytes as u64;
            match op {
                Op::Read => self.far.read_exact_at(memory, at),
                Op::Write => self.far.write_all_at(memory, at),
            }
        };
        let near = |memory: &mut [u8], call: u64| {
            let at = call % places * bytes as u64;
            match op {
                Op::Read => self.near.read_exact_at(memory, at),
                Op::Write => self.near.write_all_at(memory, at),
            }
        };
        let (mut io, mut local) = (Samples::new(), Samples::new());
        // How many fit; and all pages are there afterwards.
        let fit = |ticks: u64, calls: u64| (TURN_NS / (ticks as f64 * order.ns_per_tick / calls as f64)).clamp(4.0, 1e6) as u64;
        let trial = turn(&mut memory, &mut Samples::new(), 0, 8, far, stop)?;
        let calls = plan.iterations.unwrap_or_else(|| fit(trial, 8));
        turn(&mut memory, &mut Samples::new(), 0, calls / 4 + 1, far, stop)?;
        turn(&mut memory, &mut Samples::new(), 0, calls / 4 + 1, near, stop)?;
        for round in 0..plan.rounds as u64 {
            let first = round * calls;
            if round % 2 == 0 {
                turn(&mut memory, &mut io, first, calls, far, stop)?;
                turn(&mut memory, &mut local, first, calls, near, stop)?;
            } else {
                turn(&mut memory, &mut local, first, calls, near, stop)?;
                turn(&mut memory, &mut io, first, calls, far, stop)?;
            }
        }
        let times = |samples: &Samples| Times::from(samples.summary(order.ns_per_tick));
        Ok(Found { op, bytes, io: times(&io), local: times(&local) })
    }
}

/// So many calls, each timed for itself; the ticks of all.
#[inline(always)]
fn turn(
    memory: &mut [u8],
    samples: &mut Samples,
    first: u64,
    calls: u64,
    call: impl Fn(&mut [u8], u64) -> io::Result<()>,
    stop: &AtomicBool,
) -> Result<u64, Trouble> {
    let began = ticks();
    let mut before = began;
    for number in first..first + calls {
        if stop.load(Ordering::Relaxed) {
            return Err(Trouble::Stopped);
        }
        call(memory, number).map_err(|error| Trouble::Io("a call failed", error))?;
        let now = ticks();
        samples.record(now - before);
        before = now;
    }
    Ok(before - began)
}
