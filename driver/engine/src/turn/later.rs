//! Deferred operations: work that a thread within the engine can't do itself. A waker that the engine runs may drop a stream,
//! for example, or the closure of a receive may drop a request. The next turn does the work.

use super::Engine;
use crate::sync::baton::Token;
use doorbell_fabric::sync::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

type Deed = Box<dyn FnOnce(&mut Engine, Token) + Send>;

/// The deferred operations.
#[derive(Default)]
pub struct Later {
    any: AtomicBool,
    deeds: Mutex<Vec<Deed>>,
}

impl Later {
    /// Defers an operation to the next turn.
    pub fn add(&self, deed: Deed) {
        let mut deeds = self.deeds.lock().unwrap_or_else(PoisonError::into_inner);
        deeds.push(deed);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Whether there are any. Read by the thread that is within the engine, or with the baton.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Takes all deferred operations.
    pub fn take(&self) -> Vec<Deed> {
        let mut deeds = self.deeds.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *deeds)
    }
}
