//! The protocol on simulated networks.

mod basics;
mod beside;
mod beside_foe;
mod conditions;
mod hostile;
mod lanes;
mod paths;
mod programs;
mod sessions;
mod strands;
mod talker;
mod transfers;
mod wire;

pub(crate) use talker::*;
