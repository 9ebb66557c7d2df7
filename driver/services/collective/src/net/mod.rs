//! Collectives of teams in which some members share no memory: the messages between members, and how the bytes get there.
//!
//! 1. A [`Schedule`](schedule::Schedule) says, round by round, what one member does for one operation. It depends only on ranks, lengths, boxes and the
//!    algorithm, so that a result is the same from run to run.
//! 2. [`Streams`] carry the bytes between this member and each other member of the team, in packets that a lane delivers in order. No member has more
//!    bytes on the way to another member than that one keeps.
//! 3. A [`Run`] carries out a schedule over the streams, with the caller's [`Memory`](memory::Memory).
//!
//! Nothing here does I/O. The owner of the lanes asks [`Streams::next`] for packets, tells [`Streams::sent`] which one it pushed, gives
//! [`Streams::take`] the packets that came, and calls [`Run::step`] afterwards.

mod memory;
mod place;
mod run;
mod schedule;
mod streams;

pub use run::{Run, Stage};
pub use schedule::{Algorithm, Boxes, Operation, choose};
pub use streams::{Call, Failure, Streams, team_of};

#[cfg(test)]
mod tests;
