//! The protocol: a state machine without sockets and clocks.
