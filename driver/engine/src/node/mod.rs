//! What a program calls: [`Node`], [`Peer`], [`Request`].

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

/// What the threads of a node share with its engine: for services, whose calls enter the engine there.
#[inline]
pub fn shared_of(node: &Node) -> &Arc<Shared> {
    node.shared()
}
