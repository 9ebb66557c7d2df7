//! The engine's state from one turn to the next, beside messages.

use crate::error::Error;
use crate::message::service::Gone;
use crate::transfer::descriptor::WORD_BYTES;
use doorbell_fabric::{Incarnation, NodeId, Priority};

/// A notice for another engine, to be sent as soon as there is room.
pub(super) struct Notice {
    pub to: (NodeId, Incarnation),
    pub priority: Priority,
    pub word: [u8; WORD_BYTES],
}

/// How the latest incarnation of a node ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub incarnation: Incarnation,
    pub why: Gone,
}

impl End {
    pub fn error(self, node: NodeId) -> Error {
        self.why.error((node, self.incarnation).into())
    }
}
