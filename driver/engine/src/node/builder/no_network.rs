//! How a node joins in a build without the feature `udp`.

use super::{NodeBuilder, env};
use crate::Result;
use crate::error::Error;
use crate::links::{FabricKind, Network};
use doorbell_fabric::Incarnation;
use doorbell_shm::domain::Membership;
use doorbell_shm::layout::LaneGeometry;
use std::time::Instant;

/// The variables that name addresses of a network.
const ADDRESSES: [&str; 3] = ["DOORBELL_LISTEN", "DOORBELL_CONNECT", "DOORBELL_SEEK"];

/// There is nothing to set.
#[derive(Clone, Debug, Default)]
pub struct NetworkOptions {}

impl NetworkOptions {
    /// Refuses an environment that asks for a network.
    pub fn from_env() -> Result<Self> {
        let is_asked = match env::<FabricKind>("DOORBELL_FABRIC")?.unwrap_or_default() {
            FabricKind::Udp => true,
            FabricKind::Auto => ADDRESSES.iter().any(|name| std::env::var_os(name).is_some()),
            FabricKind::Shm => false,
        };
        if is_asked {
            let what = "the environment asks for a network, and this program was built without one: build it with the feature udp of the crate doorbell, or set DOORBELL_FABRIC to shm";
            return Err(Error::Invalid { what: what.into() });
        }
        Ok(Self {})
    }

    /// Does nothing: lanes of a network have a size of their own.
    pub fn set_lanes(&mut self, _: &LaneGeometry) {}
}

impl NodeBuilder {
    /// Joins the domain.
    pub(super) fn enter(&mut self, deadline: Instant) -> Result<(Membership, Option<Network>)> {
        Ok((self.join_here(false, Incarnation(0), deadline)?, None))
    }
}
