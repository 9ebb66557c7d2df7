//! What a thread that is within the engine wants of it: a stream may be dropped by a waker that the engine runs, a request by the closure of a receive. The next turn does it.

use super::Engine;
use crate::sync::baton::Token;
use doorbell_fabric::sync::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

type Deed = Box<dyn FnOnce(&mut Engine, Token) + Send>;

/// What is to be done.
#[derive(Default)]
pub struct Later {
    any: AtomicBool,
    deeds: Mutex<Vec<Deed>>,
}

impl Later {
    /// Has the next turn do it.
    pub fn add(&self, deed: Deed) {
        let mut deeds = self.deeds.lock().unwrap_or_else(PoisonError::into_inner);
        deeds.push(deed);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Whether there is anything. Told of by the thread that is within the engine to itself, or with the baton.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// What there is.
    pub fn take(&self) -> Vec<Deed> {
        let mut deeds = self.deeds.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *deeds)
    }
}
