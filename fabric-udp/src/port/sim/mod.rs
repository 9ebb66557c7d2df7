//! What tests put between real sockets.

pub mod relay;
