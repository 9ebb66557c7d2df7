//! A barrier made of a counter and a generation: the simplest one between processes. It is not the fastest possible: a barrier of
//! flags needs no addition.

use super::patience::{Patience, Stopped};
use super::ring::Line;
use std::sync::atomic::Ordering::*;

/// Two words in memory that processes share, each on its own line. All zero is a barrier at which no process has arrived. The
/// barrier does not know its members: if one dies, the others wait until they are told to stop.
#[repr(C)]
#[derive(Debug)]
pub struct CounterBarrier {
    arrived: Line,
    generation: Line,
}

impl CounterBarrier {
    /// Waits until all `parties` have arrived. Arriving is one addition; then a process polls the generation, which the last one
    /// raises.
    ///
    /// # Errors
    /// It was told to stop. Then the barrier cannot be used any more.
    #[inline(always)]
    pub fn pass(&self, parties: usize, patience: &Patience) -> Result<(), Stopped> {
        // The orderings are those of the C program that measures the same.
        let before = self.generation.0.load(SeqCst);
        if self.arrived.0.fetch_add(1, SeqCst) + 1 == parties as u64 {
            self.arrived.0.store(0, SeqCst);
            self.generation.0.store(before.wrapping_add(1), SeqCst);
            return Ok(());
        }
        patience.until(|| self.generation.0.load(SeqCst) != before)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Mapping, Shape};
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    #[test]
    fn nobody_passes_before_all_have_arrived() {
        const PARTIES: u64 = 3;
        const TIMES: u64 = 300;
        let mapping = Mapping::create(Shape { pairs: 0, bytes: 0 }).unwrap();
        let (barrier, came) = (&mapping.common().barrier, AtomicU64::new(0));
        let patience = Patience::new(Arc::new(AtomicBool::new(false)), true);
        std::thread::scope(|scope| {
            for _ in 0..PARTIES {
                scope.spawn(|| {
                    for time in 1..=TIMES {
                        came.fetch_add(1, SeqCst);
                        barrier.pass(PARTIES as usize, &patience).unwrap();
                        let came = came.load(SeqCst);
                        // The fastest process may be one barrier ahead.
                        assert!((PARTIES * time..PARTIES * (time + 1)).contains(&came), "{came} after barrier {time}");
                    }
                });
            }
        });
    }

    #[test]
    fn who_waits_alone_can_be_told_to_stop() {
        let mapping = Mapping::create(Shape { pairs: 0, bytes: 0 }).unwrap();
        let patience = Patience::new(Arc::new(AtomicBool::new(true)), true);
        assert_eq!(mapping.common().barrier.pass(2, &patience), Err(Stopped));
    }
}
