//! The acts, in their order.

mod descriptors;
mod members;
mod memory;
mod messages;
mod modes;

use super::{Cast, LONGEST, Order, PATIENCE, Say, Trace, tag};
use crate::exit::Failure;
use doorbell::{Envelope, Error, Match, NodeId};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::time::{Duration, Instant};

const HOST: NodeId = NodeId(0);
const FIRST: NodeId = NodeId(1);
const SECOND: NodeId = NodeId(2);

/// Plays all acts.
pub fn play(cast: &mut Cast, say: &mut Say, trace: Option<&mut Trace>) -> Result<(), Failure> {
    let mut stage = Stage { cast, say, trace, buf: vec![0; LONGEST] };
    let acts = [
        members::attach,
        messages::messages,
        messages::sleep,
        messages::full,
        messages::threads,
        memory::regions,
        memory::counters,
        memory::transfer,
        descriptors::descriptors,
        modes::play,
        members::locks,
        members::death,
        messages::latency,
        members::team,
        members::leave,
    ];
    for act in acts {
        stage.cast.check()?;
        // After a signal the node leaves in the middle of an act, which may then miss something of it.
        act(&mut stage).or_else(|error| stage.cast.check().and(Err(error)))?;
        stage.note();
    }
    stage.cast.check()
}

/// Everything that an act uses.
struct Stage<'a> {
    cast: &'a mut Cast,
    say: &'a mut Say,
    trace: Option<&'a mut Trace>,
    buf: Vec<u8>,
}

impl Stage<'_> {
    /// Keeps the flight records for the trace, before newer records replace them or a node is gone.
    fn note(&mut self) {
        if let Some(trace) = &mut self.trace {
            trace.gather(&self.cast.domain);
        }
    }

    /// Prints a line.
    fn line(&self, line: impl std::fmt::Display) {
        self.say.line(line);
    }

    /// The host sends.
    fn send(&self, to: NodeId, tag: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.cast.node.send_until(to, tag, bytes, patience()).map_err(|error| self.cast.explain(error))
    }

    /// Gives an order to a node.
    fn order(&self, node: NodeId, order: &Order) -> Result<(), Failure> {
        self.send(node, tag::ORDER, json!(order).to_string().as_bytes())
    }

    /// A node's answer to an order.
    fn answer<T: DeserializeOwned>(&mut self, node: NodeId) -> Result<T, Failure> {
        let (_, message) = self.recv(Match::from(node).tag(tag::ANSWER))?;
        serde_json::from_slice(message).map_err(|error| unlike(format_args!("the answer of node {node}: {error}")))
    }

    /// Gives an order to a node, and returns the answer.
    fn ask<T: DeserializeOwned>(&mut self, node: NodeId, order: &Order) -> Result<T, Failure> {
        self.order(node, order)?;
        self.answer(node)
    }

    /// The answers of nodes, with the host's own in front.
    fn gather<T: DeserializeOwned>(&mut self, own: T, nodes: &[NodeId]) -> Result<Vec<(NodeId, T)>, Failure> {
        let others = nodes.iter().map(|node| Ok((*node, self.answer(*node)?)));
        [Ok((HOST, own))].into_iter().chain(others).collect()
    }

    /// The host receives.
    fn recv(&mut self, accepts: Match) -> Result<(Envelope, &[u8]), Failure> {
        let received = self.cast.node.recv_until(accepts, &mut self.buf, patience());
        let envelope = received.map_err(|error| self.cast.explain(error))?;
        Ok((envelope, &self.buf[..envelope.len]))
    }

    /// The result of a call of the host.
    fn done<T>(&self, result: Result<T, Error>) -> Result<T, Failure> {
        result.map_err(|error| self.cast.explain(error))
    }
}

fn patience() -> Instant {
    Instant::now() + PATIENCE
}

/// A time in a unit that suits it.
fn told(time: Duration) -> String {
    crate::measure::table::time(time.as_nanos() as f64)
}

/// The failure of a demo that went another way than the script says.
fn unlike(what: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("the demo went wrong: {what}"), "run it again; if it happens again, it is a bug of Doorbell")
}
