//! Services that are installed in each node.

use super::Shared;
use crate::Result;
use std::sync::Arc;

/// Installs a service in each node of this program. A crate with a service submits one of these, so linking the crate installs
/// the service.
pub struct Install {
    /// Services are installed in this order, by the numbers of their classes. The order is the same in all runs.
    pub order: u8,
    /// Registers the service.
    pub install: fn(&Arc<Shared>) -> Result<()>,
}

inventory::collect!(Install);

impl Install {
    /// The order of a service that extends the engine's own ones.
    pub const AFTER_ENGINE: u8 = u8::MAX;
}

/// Installs the services of this program in a node.
pub(crate) fn all(shared: &Arc<Shared>) -> Result<()> {
    let mut all: Vec<&Install> = inventory::iter::<Install>.into_iter().collect();
    all.sort_by_key(|service| service.order);
    all.into_iter().try_for_each(|service| (service.install)(shared))
}
