//! Pairs of processes that exchange messages, or send them.

use super::plan::{Finding, Plan};
use super::worker;
use crate::exit::Failure;
use crate::experiment::place::Place;
use crate::experiment::setting::Setting;
use crate::experiment::workers::requested_end;
use crate::experiment::{self, Experiment, Trouble, measure};
use doorbell_benches::clock::Clock;
use doorbell_benches::floor::{Shape, UdpEnd};
use serde::{Deserialize, Serialize};
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

/// A plan, and what its processes are handed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pairs {
    /// The measurement.
    pub plan: Plan,
    /// The descriptors of both ends of a plain UDP socket for each pair, if the floor is one.
    pub sockets: Vec<[i32; 2]>,
}

impl Experiment for Pairs {
    const NAME: &'static str = "pairs";
    type Found = Vec<Finding>;
    /// Of a pair.
    type Row = Vec<Finding>;

    fn setting(&self) -> &Setting {
        &self.plan.setting
    }

    fn processes(&self) -> usize {
        2 * self.plan.pairs
    }

    fn role(&self, process: usize) -> &'static str {
        if process.is_multiple_of(2) { "the process that sends and measures" } else { "the process that answers" }
    }

    fn shape(&self) -> Shape {
        self.plan.shape()
    }

    fn work(self, place: Place) -> Result<Vec<Finding>, Trouble> {
        worker::work(&self, &place)
    }

    /// What both sides of each pair found, together.
    fn rows(&self, outcome: experiment::Outcome<Vec<Finding>>) -> Result<Vec<Vec<Finding>>, Failure> {
        let join = |pair: &[Vec<Finding>]| {
            let both = pair[0].iter().cloned().zip(pair[1].iter().cloned());
            both.map(|(ping, pong)| ping.joined(pong)).collect()
        };
        Ok(outcome.found.chunks_exact(2).map(join).collect())
    }
}

/// Carries out a plan.
pub fn carry_out(plan: &Plan) -> Result<Outcome, Failure> {
    let (signal, clock) = (requested_end()?, Clock::calibrate());
    let sockets: Vec<[UdpEnd; 2]> = if plan.floor && plan.setting.net.is_some() {
        let pairs = (0..plan.pairs).map(|_| UdpEnd::pair(SOCKET_BYTES));
        let unable = |error| Failure::usage(format!("could not open sockets for the floor: {error}"), "leave out --floor");
        pairs.collect::<io::Result<_>>().map_err(unable)?
    } else {
        Vec::new()
    };
    let descriptors = sockets.iter().map(|ends| ends.each_ref().map(UdpEnd::descriptor)).collect();
    let pairs = measure(&Pairs { plan: plan.clone(), sockets: descriptors }, clock, &signal)?;
    Ok(Outcome { pairs, clock })
}
