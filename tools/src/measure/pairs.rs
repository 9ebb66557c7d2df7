//! Starts the workers of a measurement, waits for what they find, and leaves nothing behind however it ends.

use super::plan::{Finding, Order, Plan};
use super::worker;
use super::workers::{Crew, Workers, requested_end};
use crate::exit::Failure;
use doorbell_benches::clock::Clock;
use doorbell_benches::floor::{Mapping, UdpEnd};
use std::io;

/// Bytes that may wait in a socket of the floor, where the system allows as many.
const SOCKET_BYTES: usize = 64 << 20;

/// What a measurement found.
#[derive(Debug)]
pub struct Outcome {
    /// For each pair, for each leg of the plan.
    pub pairs: Vec<Vec<Finding>>,
    /// How long a tick was.
    pub clock: Clock,
}

/// Carries out a plan.
pub fn carry_out(plan: &Plan) -> Result<Outcome, Failure> {
    let signal = requested_end()?;
    let mapping = Mapping::create(plan.shape()).map_err(|error| {
        let what = format!("could not get memory for messages of {} bytes: {error}", plan.shape().bytes);
        Failure::usage(what, "measure smaller sizes, or fewer pairs")
    })?;
    let clock = Clock::calibrate();
    let sockets: Vec<[UdpEnd; 2]> = if plan.floor && plan.net.is_some() {
        let pairs = (0..plan.pairs).map(|_| UdpEnd::pair(SOCKET_BYTES));
        let unable = |error| Failure::usage(format!("could not open sockets for the floor: {error}"), "leave out --floor");
        pairs.collect::<io::Result<_>>().map_err(unable)?
    } else {
        Vec::new()
    };
    let order = |node: usize| Order {
        plan: plan.clone(),
        node,
        memory: mapping.descriptor(),
        socket: sockets.get(node / 2).map(|pair| pair[node % 2].descriptor()),
        parent: std::process::id() as i32,
        ns_per_tick: clock.ns_per_tick,
    };
    let role = |node: usize| {
        if node.is_multiple_of(2) { "the process that sends and measures" } else { "the process that answers" }
    };
    let crew = Crew { command: worker::COMMAND, domain: &plan.domain, role: &role };
    let workers = Workers::start(crew, 2 * plan.pairs, order)?;
    // They have theirs.
    drop(sockets);
    let findings = workers.wait(&signal)?;
    Ok(Outcome { pairs: pairs_of(findings), clock })
}

/// What both sides of each pair found, together.
fn pairs_of(mut findings: Vec<Vec<Finding>>) -> Vec<Vec<Finding>> {
    let join = |pair: &mut [Vec<Finding>]| {
        let [ping, pong] = [0, 1].map(|side| std::mem::take(&mut pair[side]));
        ping.into_iter().zip(pong).map(|(ping, pong)| ping.joined(pong)).collect()
    };
    findings.chunks_exact_mut(2).map(join).collect()
}
