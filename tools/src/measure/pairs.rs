//! Pairs of processes that exchange or send messages.

use super::{Finding, Plan, worker};
use crate::exit::{Explain, Failure};
use crate::experiment::{self, Experiment, Place, Setting, Trouble, measure};
use crate::processes::EndRequest;
use doorbell_benches::{Clock, Shape, UdpEnd};
use serde::{Deserialize, Serialize};
use std::io;

/// Bytes that may wait in a socket of the floor, unless the system allows fewer.
const SOCKET_BYTES: usize = 64 << 20;

/// The findings of a measurement.
#[derive(Debug)]
pub struct Outcome {
    /// For each pair, for each leg of the plan.
    pub pairs: Vec<Vec<Finding>>,
    /// Turns ticks into nanoseconds.
    pub clock: Clock,
}

/// A plan, and the descriptors that its processes inherit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pairs {
    /// The measurement.
    pub plan: Plan,
    /// For each pair the descriptors of two connected UDP sockets, if those are the floor.
    pub sockets: Vec<[i32; 2]>,
}

impl Experiment for Pairs {
    const NAME: &'static str = "pairs";
    type Found = Vec<Finding>;
    /// The findings of a pair.
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

    /// Joins the findings of both sides of each pair.
    fn rows(&self, outcome: experiment::Outcome<Vec<Finding>>) -> Result<Vec<Vec<Finding>>, Failure> {
        let join = |pair: &[Vec<Finding>]| {
            let both = pair[0].iter().cloned().zip(&pair[1]);
            both.map(|(ping, pong)| ping.joined(pong)).collect()
        };
        Ok(outcome.found.chunks_exact(2).map(join).collect())
    }
}

/// Carries out a plan, until a signal asks for the end.
pub fn carry_out(plan: &Plan) -> Result<Outcome, Failure> {
    let (request, clock) = (EndRequest::listen()?, Clock::calibrate());
    let sockets: Vec<[UdpEnd; 2]> = if plan.floor && plan.setting.net.is_some() {
        let pairs = (0..plan.pairs).map(|_| UdpEnd::pair(SOCKET_BYTES));
        pairs.collect::<io::Result<_>>().or_usage("could not open sockets for the floor", "leave out --floor")?
    } else {
        Vec::new()
    };
    let descriptors = sockets.iter().map(|ends| ends.each_ref().map(UdpEnd::descriptor)).collect();
    let pairs = measure(&Pairs { plan: plan.clone(), sockets: descriptors }, clock, &request)?;
    Ok(Outcome { pairs, clock })
}
