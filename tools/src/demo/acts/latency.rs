//! The latency of a message.

use super::{FIRST, Stage};
use crate::demo::tag;
use crate::exit::Failure;
use crate::measure::bars;
use doorbell::Match;
use doorbell_benches::{Clock, Samples, ticks};
use std::time::{Duration, Instant};

const TIME: Duration = Duration::from_millis(800);
const WARM_UP: usize = 1000;
const MOST: usize = 10_000_000;

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("How long a message takes");
    let clock = Clock::calibrate();
    let peer = stage.done(stage.cast.node.peer(FIRST))?;
    let accepts = Match::any().tag(tag::PONG);
    let mut samples = Samples::new();
    let mut buf = [0; 8];
    let end = Instant::now() + TIME;
    for round in 0..MOST {
        let start = ticks();
        stage.done(peer.send(tag::PING, &buf))?;
        stage.done(peer.recv(accepts, &mut buf))?;
        let trip = ticks() - start;
        if Instant::now() > end && samples.count() > 0 {
            break;
        }
        if round >= WARM_UP || Instant::now() > end {
            samples.record(trip);
        }
    }
    let per_unit = clock.ns_per_tick / 2.0;
    let found = samples.summary(per_unit);
    let median = crate::measure::table::time(found.p50);
    stage.line(format_args!("8 bytes there and back, {} times; half of each: median {median}", samples.count()));
    bars::draw(&samples, per_unit).into_iter().for_each(|line| stage.line(line));
    stage.line(
        "with a processor for each process, and beside the best that the machine can do: doorbell latency --pin 0,1 --floor",
    );
    Ok(())
}
