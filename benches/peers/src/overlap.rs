//! How much a process can compute during a transfer. One loop for all peers: a transfer of this length lasts much longer than the
//! two calls that start and finish it.

use crate::order::Work;
use crate::transport::{Result, Transport};
use doorbell_benches::clock::ticks;
use doorbell_benches::exchange::Section;
use doorbell_benches::touch;
use std::hint::black_box;

/// Steps of computing by which the time of one is found, and how often that is done.
const STEPS: u64 = 50_000;
const TRIES: usize = 16;

/// The findings of a section.
#[derive(Clone, Copy, Debug)]
pub struct Overlap {
    /// Ticks of a transfer during which the process only waits.
    pub alone: u64,
    /// The share of that time that is hidden when the process computes for as long.
    pub share: f64,
}

/// The number of transfers in a section.
pub fn transfers(section: Section) -> usize {
    section.warmup + 2 * section.count
}

/// Transfers, alone and while it computes, in turns. `started` is called after the start of each.
///
/// # Errors
/// Those of the peer.
pub fn run<T: Transport>(peer: &mut T, work: Work, section: Section, mut started: impl FnMut()) -> Result<Overlap> {
    let Section { warmup, count, touched, .. } = section;
    let mut turn = 0;
    let mut transfer = |steps: Option<u64>| -> Result<u64> {
        turn += 1;
        if touched && work != Work::ReceiveOverlap {
            touch::write(peer.memory()?, turn);
        }
        let begin = ticks();
        peer.start()?;
        started();
        if let Some(steps) = steps {
            compute(turn, steps);
        }
        peer.finish()?;
        let taken = ticks() - begin;
        if touched && work == Work::ReceiveOverlap {
            touch::read(peer.memory()?);
        }
        Ok(taken)
    };
    let step = median((0..TRIES as u64).map(computing).collect()) as f64 / STEPS as f64;
    let length = median((0..warmup).map(|_| transfer(None)).collect::<Result<_>>()?);
    // The work is fixed before, so that a transfer that takes the processor from it counts as not hidden.
    let steps = (length as f64 / step).max(1.0).round();
    let (mut alone, mut both) = (Vec::new(), Vec::new());
    for _ in 0..count {
        alone.push(transfer(None)?);
        both.push(transfer(Some(steps as u64))?);
    }
    let alone = median(alone);
    Ok(Overlap { alone, share: share(alone as f64, steps * step, median(both) as f64) })
}

/// The share of a transfer that was hidden, from its time alone, the time of the work, and the time of both together.
fn share(alone: f64, work: f64, both: f64) -> f64 {
    (1.0 - (both - work) / alone).clamp(0.0, 1.0)
}

/// The ticks of [`STEPS`] steps.
fn computing(seed: u64) -> u64 {
    let begin = ticks();
    compute(seed, STEPS);
    ticks() - begin
}

/// Computes without memory.
#[inline(never)]
fn compute(seed: u64, steps: u64) {
    black_box((0..steps).fold(seed, |x, _| x.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 1));
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_work_does_not_hide_is_left() {
        assert_eq!((share(100.0, 100.0, 100.0), share(100.0, 100.0, 200.0), share(100.0, 100.0, 125.0)), (1.0, 0.0, 0.75));
        assert_eq!((share(100.0, 100.0, 90.0), share(100.0, 100.0, 300.0)), (1.0, 0.0));
    }
}
