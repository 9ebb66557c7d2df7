//! The server or the client of a measurement.

use super::{Op, Plan};
use crate::exit::Explain;
use crate::experiment::{Place, Trouble, leave, unless_stopped};
use crate::io::serve::engine;
use crate::measure::net;
use doorbell::io::{IoClient, IoFile, IoServer};
use doorbell::{Error, Event, Node, NodeBuilder, Role};
use doorbell_benches::{Samples, Stopped, Summary, ticks};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the other process may take to start.
const START: Duration = Duration::from_secs(20);
/// How long a turn takes, unless the number of calls is given.
const TURN_NS: f64 = 10e6;
/// The seed of the content of the file.
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// The findings of the client for one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    pub op: Op,
    pub bytes: usize,
    /// Calls by the server.
    pub io: Summary,
    /// Local calls.
    pub local: Summary,
}

/// Joins, and serves or measures.
pub fn work(plan: &Plan, place: &Place) -> Result<Vec<Found>, Trouble> {
    let is_client = plan.is_client(place.process);
    let role = if is_client { Role::Host } else { Role::Io };
    let builder = plan.setting.builder("io bench").map(|builder| builder.role(role));
    let node = if plan.serves_already {
        // With any id that is free there.
        let joined = builder.and_then(NodeBuilder::join);
        joined.map_err(|error| Trouble::Unable(net::failure(error).of("could not join the domain")))?
    } else {
        place.join(&plan.setting, builder, 2, 2)?
    };
    let done = if is_client { measure(plan, place, &node) } else { serve(plan, place, &node).map(|()| Vec::new()) };
    leave(node, done)
}

/// Serves until the client has left.
fn serve(plan: &Plan, place: &Place, node: &Node) -> Result<(), Trouble> {
    let server = IoServer::builder(node, &plan.directory).engine(engine(&plan.engine)).start();
    let server = server.or_usage("could not serve the directory", "")?;
    loop {
        unless_stopped(&place.patience)?;
        match node.event(Instant::now() + Duration::from_millis(50)) {
            Ok(Event::Left { .. } | Event::Died { .. }) => return Ok(server.stop()?),
            Ok(_) | Err(Error::Timeout { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A failed call, in words.
fn failed(what: &'static str) -> impl Fn(io::Error) -> Trouble {
    move |error| Trouble::wrong(format_args!("{what}: {error}"))
}

/// The file, opened by both ways.
struct Both {
    far: IoFile,
    near: File,
}

fn measure(plan: &Plan, place: &Place, node: &Node) -> Result<Vec<Found>, Trouble> {
    let deadline = Instant::now() + START;
    let client = loop {
        match IoClient::builder(node).connect() {
            Ok(client) => break client,
            Err(_) if place.patience.stopped() => return Err(Stopped.into()),
            // The server has not started yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(failed("could not become a client")(error)),
        }
    };
    let far = client.options().read(true).write(true).create_new(true).open(&plan.name);
    let far = far.map_err(failed("could not make the file"))?;
    let near = File::options().read(true).write(true).open(plan.directory.join(&plan.name));
    let removed = || client.remove_file(&plan.name);
    let near = near.map_err(|error| {
        let _ = removed();
        failed("could not open the file here: is it in the directory that --dir names?")(error)
    })?;
    let both = Both { far, near };
    let found = both.check(plan).and_then(|()| plan.legs.iter().map(|leg| both.leg(plan, place, *leg)).collect());
    removed().map_err(failed("could not remove the file"))?;
    found
}

impl Both {
    /// Writes the file by the server, and reads it by both ways.
    fn check(&self, plan: &Plan) -> Result<(), Trouble> {
        let written: Vec<u8> = (0..plan.file as u64).map(|at| (at.wrapping_mul(SEED) >> 56) as u8).collect();
        self.far.write_all_at(&written, 0).map_err(failed("could not write the file"))?;
        let compare = |read: &[u8]| match read.iter().zip(&written).position(|(read, written)| read != written) {
            Some(at) => Err(Trouble::wrong(format_args!("byte {at} of the file is not what was written there"))),
            None => Ok(()),
        };
        let mut read = vec![0; plan.file];
        self.near.read_exact_at(&mut read, 0).map_err(failed("could not read the file here"))?;
        compare(&read)?;
        read.fill(0);
        self.far.read_exact_at(&mut read, 0).map_err(failed("could not read the file"))?;
        compare(&read)
    }

    fn leg(&self, plan: &Plan, place: &Place, (op, bytes): (Op, usize)) -> Result<Found, Trouble> {
        let Place { ns_per_tick, stop, .. } = place;
        let mut memory = vec![1; bytes];
        let places = (plan.file / bytes) as u64;
        let place_of = |call: u64| call % places * bytes as u64;
        let far = |memory: &mut [u8], call: u64| match op {
            Op::Read => self.far.read_exact_at(memory, place_of(call)),
            Op::Write => self.far.write_all_at(memory, place_of(call)),
        };
        let near = |memory: &mut [u8], call: u64| match op {
            Op::Read => self.near.read_exact_at(memory, place_of(call)),
            Op::Write => self.near.write_all_at(memory, place_of(call)),
        };
        let (mut io, mut local) = (Samples::new(), Samples::new());
        // The calls that fit into a turn. The trial also brings all pages into memory.
        let fit = |ticks: u64, calls: u64| (TURN_NS / (ticks as f64 * ns_per_tick / calls as f64)).clamp(4.0, 1e6) as u64;
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
        Ok(Found { op, bytes, io: io.summary(*ns_per_tick), local: local.summary(*ns_per_tick) })
    }
}

/// Makes `calls` calls, and times each one. Returns the ticks of all.
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
            return Err(Stopped.into());
        }
        call(memory, number).map_err(failed("a call failed"))?;
        let now = ticks();
        samples.record(now - before);
        before = now;
    }
    Ok(before - began)
}
