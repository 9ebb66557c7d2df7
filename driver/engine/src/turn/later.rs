//! Deferred operations: work that a thread within the engine can't do itself. A waker that the engine runs may drop a stream,
//! for example, or the closure of a receive may drop a request. The next turn does the work.

use super::Engine;
use crate::sync::baton::Token;
use doorbell_fabric::PacketKind;
use doorbell_fabric::sync::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// A deferred operation.
pub type Deed = Box<dyn FnOnce(&mut Engine, Token) + Send>;

/// No class of packets has this number.
const DEEDS: u32 = 1;

/// The deferred operations.
#[derive(Default)]
pub struct Later {
    /// One bit for each class of packets whose service was poked, and `DEEDS` if there are operations.
    any: AtomicU32,
    deeds: Mutex<Vec<Deed>>,
}

impl Later {
    /// Defers an operation to the next turn.
    pub fn add(&self, deed: Deed) {
        let mut deeds = self.deeds.lock().unwrap_or_else(PoisonError::into_inner);
        deeds.push(deed);
        self.any.fetch_or(DEEDS, Ordering::Relaxed);
    }

    /// Has the service of a class called at the next turn. True if it was not to be called anyway: then a thread that sleeps
    /// may have to be woken. The work of the service is published before.
    #[inline]
    pub fn poke(&self, class: PacketKind) -> bool {
        let bit = 1 << class as u32;
        // A thread that clears the bit looks for work after that. A plain load first would not do: it might see the bit of earlier
        // work before this thread's work is visible to the thread that clears it. In one order with the sleep of the poller.
        self.any.fetch_or(bit, Ordering::SeqCst) & bit == 0
    }

    /// Whether there are any. Read by the thread that is within the engine, or with the baton.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed) != 0
    }

    /// Takes all deferred operations, and one bit for each class whose service was poked.
    pub fn take(&self) -> (Vec<Deed>, u32) {
        // Before the look at the work: later work sets it again.
        let any = self.any.swap(0, Ordering::SeqCst);
        if any & DEEDS == 0 {
            return (Vec::new(), any);
        }
        let mut deeds = self.deeds.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut *deeds), any & !DEEDS)
    }
}
