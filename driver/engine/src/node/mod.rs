//! The interface for programs: [`Node`], [`Peer`], [`Operation`].

mod builder;
mod clerked;
mod handle;
mod many;
mod name;
pub mod operation;
pub(crate) mod owned;
mod peer;
mod receive;
mod send;
mod service;

pub use crate::drive::{Shared, Stats};
pub use crate::turn::events::{self, Event};
pub use builder::NodeBuilder;
pub use handle::Node;
pub use name::NodeName;
pub use operation::Operation;
pub use owned::{Completion, Received};
pub use peer::Peer;
pub(crate) use send::ToSend;
pub use service::ServiceHandle;

use std::sync::Arc;

/// The state that a node's threads share with its engine. Services need it: their calls enter the engine there.
#[inline]
pub fn shared_of(node: &Node) -> &Arc<Shared> {
    node.shared()
}
