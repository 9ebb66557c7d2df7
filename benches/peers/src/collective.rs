//! Collectives: the timed loop and the bare barrier. `c/loops.h` has the same loop.

use crate::order::Work;
use crate::transport::{Fault, Result, Setup, Transport, unknown};
use crate::worker;
use doorbell::zerocopy::FromBytes;
use doorbell_benches::clock::ticks;
use doorbell_benches::exchange::{Part, Section};
use doorbell_benches::floor::{Mapping, Patience, Stopped};
use doorbell_benches::memory::Memory;
use doorbell_benches::stream::Flow;
use doorbell_benches::touch::LINE;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The member that broadcasts.
pub const ROOT: usize = 0;
/// The number of elements in a cache line.
const LINE_ELEMENTS: usize = LINE / size_of::<i64>();
/// The steps of work between two collectives: the minimum, and the range of the random rest. The same as in `c/loops.h`.
const STEPS: [u64; 2] = [1_000, 2_000];

/// A group of processes from the viewpoint of one member.
pub trait Members {
    /// Why a call failed.
    type Error: Into<Fault>;
    /// Waits for all members.
    fn barrier(&mut self) -> std::result::Result<(), Self::Error>;
    /// Replaces each vector by the sum of all vectors.
    fn allreduce(&mut self, vector: &mut [i64]) -> std::result::Result<(), Self::Error>;
    /// Replaces each vector by that of [`ROOT`].
    fn broadcast(&mut self, vector: &mut [i64]) -> std::result::Result<(), Self::Error>;
}

/// A section of collectives.
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    /// The operation.
    pub work: Work,
    /// The index of this member.
    pub rank: usize,
    /// The number of members.
    pub members: usize,
    /// The size of the vector in bytes, a multiple of eight.
    pub bytes: usize,
    /// The number of calls before the clock starts.
    pub warmup: usize,
    /// The number of timed calls.
    pub count: usize,
    /// Whether every line is written before and read after each call.
    pub touched: bool,
}

impl Calls {
    /// The common factor of all sums.
    fn shares(&self) -> i64 {
        let members = self.members as i64;
        if self.work == Work::Broadcast { 1 } else { members * (members + 1) / 2 }
    }

    /// The value at the start of every line after a call.
    fn expected(&self, call: usize) -> i64 {
        (call as i64 + 1) * self.shares()
    }

    /// Sets the vector to its value before the first call.
    pub fn prepare(&self, vector: &mut [i64]) {
        vector.fill(0);
    }

    /// Checks every element after the last call.
    ///
    /// # Errors
    /// An element is wrong.
    pub fn check(&self, vector: &[i64]) -> Result<()> {
        let last = if self.touched { self.expected(self.warmup + self.count - 1) } else { 0 };
        let expected = |at: usize| if at.is_multiple_of(LINE_ELEMENTS) { last } else { 0 };
        match vector.iter().enumerate().find(|(at, found)| **found != expected(*at)) {
            None => Ok(()),
            Some((at, found)) => {
                let (Self { work, bytes, rank, .. }, expected) = (self, expected(at));
                Err(format!(
                    "{work:?} of {bytes} bytes gave member {rank} {found} in element {at}, where {expected} was expected"
                )
                .into())
            }
        }
    }
}

/// The elements of a vector of `bytes` bytes.
///
/// # Errors
/// The memory is too short, or the length is not a whole number of elements.
pub fn elements(memory: &mut Memory, bytes: usize) -> Result<&mut [i64]> {
    let bytes = memory.get_mut(..bytes).ok_or("the vector is longer than its memory")?;
    <[i64]>::mut_from_bytes(bytes).map_err(|error| format!("a vector has no whole elements: {error}").into())
}

/// Takes part in a section. Returns the ticks of the timed calls.
///
/// # Errors
/// Those of the members, or a wrong result.
pub fn run<M: Members>(members: &mut M, calls: Calls, vector: &mut [i64]) -> Result<u64> {
    let Calls { work, rank, touched, .. } = calls;
    let lines = vector.len().div_ceil(LINE_ELEMENTS) as i64;
    let mut wrong = 0;
    let mut sum = |members: &mut M, call: usize| -> std::result::Result<(), M::Error> {
        if touched {
            write(vector, (call as i64 + 1) * (rank as i64 + 1));
        }
        members.allreduce(vector)?;
        if touched {
            wrong |= read(vector) ^ (lines * calls.expected(call));
        }
        Ok(())
    };
    let ticks = match work {
        Work::Barrier => timed(members, calls, |members, _| members.barrier()),
        Work::Allreduce => timed(members, calls, sum),
        Work::Computing => timed(members, calls, |members, call| {
            compute(call, rank);
            sum(members, call)
        }),
        Work::Broadcast => timed(members, calls, |members, call| {
            if touched && rank == ROOT {
                write(vector, call as i64 + 1);
            }
            members.broadcast(vector)?;
            if touched && rank != ROOT {
                wrong |= read(vector) ^ (lines * calls.expected(call));
            }
            Ok(())
        }),
        work => return Err(format!("{work:?} is not a collective").into()),
    }
    .map_err(Into::into)?;
    if wrong != 0 {
        let bytes = calls.bytes;
        return Err(format!("{work:?} of {bytes} bytes gave member {rank} a wrong result").into());
    }
    Ok(ticks)
}

#[inline(always)]
fn timed<M: Members>(
    members: &mut M,
    calls: Calls,
    mut call: impl FnMut(&mut M, usize) -> std::result::Result<(), M::Error>,
) -> std::result::Result<u64, M::Error> {
    for at in 0..calls.warmup {
        call(members, at)?;
    }
    members.barrier()?;
    let start = ticks();
    for at in calls.warmup..calls.warmup + calls.count {
        call(members, at)?;
    }
    Ok(ticks() - start)
}

/// Writes one element of every line.
#[inline(always)]
fn write(vector: &mut [i64], value: i64) {
    vector.iter_mut().step_by(LINE_ELEMENTS).for_each(|element| *element = value);
}

/// The sum of one element of every line.
#[inline(always)]
fn read(vector: &[i64]) -> i64 {
    vector.iter().step_by(LINE_ELEMENTS).sum()
}

/// Simulated work: a pseudo-random amount for this call and member, the same for every peer.
#[inline(always)]
fn compute(call: usize, rank: usize) {
    let mut x = ((call as u64) << 8 | rank as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    // Each step depends on the one before.
    for _ in 0..STEPS[0] + (x >> 32) % STEPS[1] {
        x = x.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 1;
    }
    black_box(x);
}

/// The simplest possible barrier, as a peer.
#[derive(Debug)]
pub struct Floor {
    mapping: Mapping,
    patience: Patience,
    parties: usize,
}

impl Transport for Floor {
    fn open(setup: &Setup<'_>) -> Result<Self> {
        let order = setup.order;
        let patience = Patience::new(Arc::new(AtomicBool::new(false)), order.crowded());
        Ok(Self { mapping: worker::mapping(order)?, patience, parties: order.processes() })
    }

    fn version(&self) -> String {
        "one atomic addition to arrive, and a word that the last one raises; without any library".into()
    }

    fn play(&mut self, _: Part<'_>, _: Section) -> Result<()> {
        Err("the floor exists for barriers only".into())
    }

    fn stream(&mut self, _: usize, _: Flow) -> Result<()> {
        Err("the floor exists for barriers only".into())
    }

    fn collect(&mut self, calls: Calls) -> Result<u64> {
        run(self, calls, &mut [])
    }
}

impl Members for Floor {
    type Error = Fault;

    #[inline(always)]
    fn barrier(&mut self) -> Result<()> {
        let passed: std::result::Result<(), Stopped> = self.mapping.common().barrier.pass(self.parties, &self.patience);
        Ok(passed?)
    }

    fn allreduce(&mut self, _: &mut [i64]) -> Result<()> {
        Err(unknown("the floor", Work::Allreduce, crate::order::Over::Memory))
    }

    fn broadcast(&mut self, _: &mut [i64]) -> Result<()> {
        Err(unknown("the floor", Work::Broadcast, crate::order::Over::Memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members of a team of two. The other one contributes the right value, or a wrong one.
    struct Played {
        calls: i64,
        off: i64,
    }

    impl Members for Played {
        type Error = Fault;

        fn barrier(&mut self) -> Result<()> {
            Ok(())
        }

        fn allreduce(&mut self, vector: &mut [i64]) -> Result<()> {
            self.calls += 1;
            let theirs = 2 * self.calls + self.off;
            vector.iter_mut().step_by(LINE_ELEMENTS).for_each(|element| *element += theirs);
            Ok(())
        }

        fn broadcast(&mut self, vector: &mut [i64]) -> Result<()> {
            self.calls += 1;
            vector.fill(0);
            write(vector, self.calls + self.off);
            Ok(())
        }
    }

    #[test]
    fn a_wrong_result_is_noticed() {
        for (work, rank) in [(Work::Allreduce, 0), (Work::Computing, 0), (Work::Broadcast, 1)] {
            for off in [0, 1] {
                let calls = Calls { work, rank, members: 2, bytes: 136, warmup: 1, count: 3, touched: true };
                let mut vector = [7; 17];
                calls.prepare(&mut vector);
                let ran = run(&mut Played { calls: 0, off }, calls, &mut vector);
                assert_eq!((ran.is_ok(), calls.check(&vector).is_ok()), (off == 0, off == 0), "{work:?} {off}");
            }
        }
    }
}
