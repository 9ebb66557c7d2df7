//! Memory that other nodes reach: keys, the regions that this node has mapped, and copying.

pub mod cache;
pub mod copy;
pub mod key;
pub mod table;
