//! The names that a service of this workspace uses from the engine, in one place.

pub use crate::drive::install::Install;
pub use crate::drive::poller::Progress;
pub use crate::drive::{Begun, Moment, Shared, Updating, Work};
pub use crate::error::{Certainty, Error, KeyFault, Result, ServiceError};
pub use crate::memory::table::RegionTable;
pub use crate::message::locality::Locality;
pub use crate::message::queue::{Packet, SendQueue};
pub use crate::message::service::{Class, CloseReason, Gone, Outbox, PeerId, Pushed, Service, Wants};
pub use crate::message::words;
pub use crate::node::{Node, Peer, shared_of};
pub use crate::region::{Key, Plain, ReadWrite, Region, elements_of};
pub use crate::sync::baton::Token;
pub use crate::sync::op::{Op, Outcome};
pub use crate::sync::pool::{BlockingPool, Customer};
pub use crate::sync::wait::{Backoff, CHECK_EVERY, Step, Wait};
pub use crate::turn::Engine;
pub use doorbell_fabric::{Incarnation, NodeId, PacketKind, Payload, Priority, Role, Verdict, world};
