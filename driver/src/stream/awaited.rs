//! An operation that a task awaits.

use crate::engine::op::Op;
use crate::node::Shared;
use std::sync::Arc;

/// As long as it lives somebody drives.
pub struct Awaited {
    shared: Arc<Shared>,
    pub op: Arc<Op>,
}

impl Awaited {
    pub fn new(shared: &Arc<Shared>, op: Arc<Op>) -> Self {
        shared.began();
        Self { shared: shared.clone(), op }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.shared.poller().ended();
    }
}
