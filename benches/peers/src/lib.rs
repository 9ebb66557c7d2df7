//! Doorbell beside other transports: what all of them have in common.
//!
//! A peer is a [`transport::Transport`]. Two processes run each, [`worker::main`], and do what an [`order::Order`] says. The loops
//! are those of `doorbell_benches::exchange` and `stream`; `c/loops.h` has the same for peers that are spoken to in C.

pub mod collective;
pub mod foreign;
pub mod native;
pub mod order;
pub mod place;
pub mod transport;
pub mod worker;
