//! Schedules, runs and streams, without a fabric.

pub mod case;
mod hostile;
mod lanes;
#[cfg(not(miri))]
mod network;
