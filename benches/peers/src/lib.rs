//! Doorbell beside other transports: the parts that all of them share.
//!
//! A peer is a [`transport::Transport`]. Two processes of each run [`worker::main`] and follow an [`order::Order`]. The loops are
//! those of `doorbell_benches::exchange` and `stream`; `c/loops.h` has the same loops for peers with a C interface.

pub mod batch;
pub mod collective;
pub mod foreign;
pub mod native;
pub mod order;
pub mod overlap;
pub mod place;
pub mod transport;
pub mod worker;
