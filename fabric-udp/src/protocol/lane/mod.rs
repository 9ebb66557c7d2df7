//! Lanes: packets in order, one lane for each priority and direction of a session.

mod incoming;
mod outgoing;

pub(crate) use incoming::{Arrival, LaneIn, Source};
pub(crate) use outgoing::LaneOut;

/// What a packet counts beside its payload, so that a flood of empty packets is bounded, too.
const CHARGE: u64 = 64;

/// What a packet with so much payload takes of a lane's window.
fn charge(payload: usize) -> u64 {
    payload as u64 + CHARGE
}

/// The most payload of one packet on a lane with this window: two fit, so that credits flow while one is read.
pub(crate) fn payload_max(window: u64) -> usize {
    (window / 2 - 2 * CHARGE) as usize
}
