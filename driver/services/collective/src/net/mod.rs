//! Collectives of members of whom some share no memory: who sends what to whom, and how it gets there.
//!
//! 1. A [`Schedule`](schedule::Schedule) says what one member does for one operation, round by round. It depends on ranks, lengths, boxes and the algorithm only,
//!    so that a result is the same from run to run.
//! 2. [`Streams`] carry the bytes, between this member and each other one of the team, in packets that a lane delivers in order. No
//!    member has more on the way to another than that one keeps.
//! 3. A [`Run`] carries out a schedule over the streams, with the caller's [`Memory`](memory::Memory).
//!
//! Nothing here does I/O. Who has the lanes asks [`Streams::next`] for packets, tells [`Streams::sent`] what was pushed, gives to
//! [`Streams::take`] what came, and calls [`Run::step`] afterwards.

mod memory;
mod run;
mod schedule;
mod streams;

pub use memory::LINE;
pub use run::{Fold, Run, Stage};
pub use schedule::{Algorithm, Boxes, Operation, choose};
pub use streams::{Call, Failure, Streams, team_of};

#[cfg(test)]
mod tests;
