//! The protocol on simulated networks.

mod basics;
mod conditions;
mod hostile;
mod lanes;
mod programs;
mod sessions;
mod talker;
mod transfers;

pub(crate) use talker::*;
