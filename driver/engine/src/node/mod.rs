//! The interface for programs: [`Node`], [`Peer`], [`Request`].

mod builder;
mod clerked;
mod handle;
mod name;
mod peer;
mod receive;
mod request;
mod send;
mod service;

pub use crate::drive::{Shared, Stats};
pub use crate::turn::events::{self, Event};
pub use builder::NodeBuilder;
pub use handle::Node;
pub use name::NodeName;
pub use peer::Peer;
pub use request::{Completion, Done, Request};
pub use service::ServiceHandle;

use std::sync::Arc;

/// The state that a node's threads share with its engine. Services need it: their calls enter the engine there.
#[inline]
pub fn shared_of(node: &Node) -> &Arc<Shared> {
    node.shared()
}
