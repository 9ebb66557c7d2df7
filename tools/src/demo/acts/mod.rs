//! The acts, in the order in which they are played.

mod attach;
mod counters;
mod death;
mod full;
mod latency;
mod locks;
mod messages;
mod modes;
mod regions;
mod sleep;
mod team;
mod threads;
mod transfer;

use super::cast::{Cast, PATIENCE};
use super::say::Say;
use super::script::LONGEST;
use super::trace::Trace;
use crate::exit::Failure;
use doorbell::{Envelope, Error, Match, NodeId};
use std::time::{Duration, Instant};

const HOST: NodeId = NodeId(0);
const FIRST: NodeId = NodeId(1);
const SECOND: NodeId = NodeId(2);

/// Plays all of them.
pub fn play(cast: &mut Cast, say: &mut Say, trace: Option<&mut Trace>) -> Result<(), Failure> {
    let mut stage = Stage { cast, say, trace, buf: vec![0; LONGEST] };
    let acts = [
        attach::play,
        messages::play,
        sleep::play,
        full::play,
        threads::play,
        regions::play,
        counters::play,
        transfer::play,
        modes::play,
        locks::play,
        death::play,
        latency::play,
        team::play,
        attach::leave,
    ];
    for act in acts {
        stage.cast.check()?;
        act(&mut stage)?;
        stage.note();
    }
    stage.cast.check()
}

/// What an act has at hand.
struct Stage<'a> {
    cast: &'a mut Cast,
    say: &'a mut Say,
    trace: Option<&'a mut Trace>,
    buf: Vec<u8>,
}

impl Stage<'_> {
    /// Keeps what the flight recorders hold, before newer records take its place or a node is gone.
    fn note(&mut self) {
        if let Some(trace) = &mut self.trace {
            trace.gather(&self.cast.domain);
        }
    }

    /// The host sends.
    fn send(&self, to: NodeId, tag: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.cast.node.send_by(to, tag, bytes, patience()).map_err(|error| self.cast.explain(error))
    }

    /// The host receives.
    fn recv(&mut self, accepts: Match) -> Result<(Envelope, &[u8]), Failure> {
        let received = self.cast.node.recv_by(accepts, &mut self.buf, patience());
        let envelope = received.map_err(|error| self.cast.explain(error))?;
        Ok((envelope, &self.buf[..envelope.len]))
    }

    /// What a call of the host came to.
    fn done<T>(&self, result: Result<T, Error>) -> Result<T, Failure> {
        result.map_err(|error| self.cast.explain(error))
    }
}

fn patience() -> Instant {
    Instant::now() + PATIENCE
}

/// A time as people read it.
fn told(time: Duration) -> String {
    crate::measure::table::time(time.as_nanos() as f64)
}

/// Something went another way than the script says.
fn unlike(what: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("the demo went wrong: {what}"), "run it again; if it happens again, it is a bug of Doorbell")
}
