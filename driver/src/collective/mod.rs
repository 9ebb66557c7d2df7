//! Groups of nodes that broadcast, reduce and synchronise.

mod net;
pub mod reduction;
