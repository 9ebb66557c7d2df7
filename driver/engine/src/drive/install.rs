//! Services that each node has.

use super::Shared;
use crate::Result;
use std::sync::Arc;

/// How a service joins the engine of each node of this program. A crate that has a service submits one; to link the crate is to have the service.
pub struct Install {
    /// Services are installed in this order, which is the same in all runs: by the numbers of their classes.
    pub order: u8,
    /// Registers the service.
    pub install: fn(&Arc<Shared>) -> Result<()>,
}

inventory::collect!(Install);

impl Install {
    /// The order of an addition to what the engine itself has.
    pub const AFTER_ENGINE: u8 = u8::MAX;
}

/// Installs the services of this program in a node.
pub(crate) fn all(shared: &Arc<Shared>) -> Result<()> {
    let mut all: Vec<&Install> = inventory::iter::<Install>.into_iter().collect();
    all.sort_by_key(|service| service.order);
    all.into_iter().try_for_each(|service| (service.install)(shared))
}
