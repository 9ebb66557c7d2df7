//! Lanes: packets in order, one lane for each priority and direction of a session.

mod incoming;
mod outgoing;

pub(crate) use incoming::LaneIn;
pub(crate) use outgoing::LaneOut;

/// The charge of a packet beside its payload, so that a flood of empty packets is bounded too.
const CHARGE: u64 = 64;

/// The charge of a packet with this payload against a lane's window.
fn charge(payload: usize) -> u64 {
    payload as u64 + CHARGE
}

/// The longest payload of one packet on a lane with this window. Two fit, so that credits flow while one is read.
pub(crate) fn payload_max(window: u64) -> usize {
    (window / 2 - 2 * CHARGE) as usize
}
