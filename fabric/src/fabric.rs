//! The contract between the driver and a fabric.
//!
//! A fabric brings packets from other nodes: the driver calls [`Fabric::poll`] under its baton, so one thread at a time,
//! and the fabric hands each packet to a [`Sink`]. It leads to other nodes: [`Fabric::connect`] opens a [`Link`] for one
//! target and priority, and [`Link::push`] puts one packet on it. Neither ever blocks. Packets of one link arrive in
//! the order they were pushed, each once, or the link goes down.

use crate::id::{Incarnation, NodeId, Priority};
use crate::packet::{PacketHead, Payload};

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Push {
    /// The target can see the packet.
    Done,
    /// No room just now. Nothing happened; try again later.
    Full,
    /// The link can't be used any more. Nothing happened.
    Down(LinkDown),
}

/// Why a link can't be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDown {
    /// The target wrote something into the link's shared words that no target would.
    Damaged,
}

/// One way to one target, for one priority. Used by one thread at a time.
pub trait Link: Send {
    /// Puts one packet on the link: `head` and then the `len` bytes at `bytes`. Never blocks. A `GivenUp` packet without
    /// bytes, after a `First`, always finds room.
    ///
    /// # Safety
    /// `len` bytes must be readable at `bytes`, and `len` at most [`packet_bytes`](Self::packet_bytes).
    unsafe fn push(&mut self, head: &PacketHead, bytes: *const u8, len: usize) -> Push;

    /// The most bytes that one packet carries.
    fn packet_bytes(&self) -> usize;

    /// Whether the target said that it takes no more messages from here until it asks for some: its pool of unexpected
    /// messages is full.
    fn refused(&self) -> bool;
}

/// What the driver says to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Taken; the fabric may reuse its place. Go on.
    Taken,
    /// Taken; and the driver has what it wanted, so come back.
    TakenAndStop,
    /// Not taken: the packet stays first on its link, and the fabric goes on with other links.
    Refused,
    /// Not taken, and its sender need not be told: what comes before it is on its way by another link. The packet stays first on its
    /// link; asked again after something else was taken.
    Later,
    /// Not taken, and nothing from this link ever will be: its sender broke the rules.
    Broken(&'static str),
}

/// Where a fabric puts the packets that arrive.
pub trait Sink {
    /// One packet from `source`, the first that was not yet taken on its link. Called under the baton; must not block.
    fn packet(
        &mut self,
        source: NodeId,
        incarnation: Incarnation,
        priority: Priority,
        head: &PacketHead,
        payload: Payload<'_>,
    ) -> Verdict;

    /// The link from `source` broke the rules and is read no further: what it held is lost.
    fn damaged(&mut self, source: NodeId, priority: Priority, reason: &'static str);
}

/// A way to reach nodes.
pub trait Fabric {
    /// The sending half of one connection.
    type Link: Link;
    /// Why a target can't be reached.
    type Error;

    /// Opens the link to a node. Control path: may make system calls and allocate; does not block on the target.
    fn connect(&mut self, target: NodeId, incarnation: Incarnation, priority: Priority) -> Result<Self::Link, Self::Error>;

    /// Hands at most `budget` packets to `sink`, and returns how many it took.
    fn poll<S: Sink>(&mut self, sink: &mut S, budget: usize) -> usize;
}
