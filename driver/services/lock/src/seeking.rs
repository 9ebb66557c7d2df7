//! A search for the coordinator that is under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Marks that a thread is looking for a coordinator. Dropping it clears the mark, also after a failure.
pub struct Seeking(pub Arc<AtomicBool>);

impl Seeking {
    /// `None` if a thread is looking already.
    pub fn begin(is_seeking: &Arc<AtomicBool>) -> Option<Self> {
        (!is_seeking.swap(true, Ordering::AcqRel)).then(|| Self(is_seeking.clone()))
    }
}

impl Drop for Seeking {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
