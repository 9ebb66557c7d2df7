//! The contract between the driver and a fabric.
//!
//! A fabric brings packets from other nodes. The driver calls [`Fabric::poll`] under its baton, so only one thread polls at a
//! time, and the fabric hands each packet to a [`Sink`]. A fabric also leads to other nodes: [`Fabric::connect`] opens a [`Link`]
//! for one target and one priority, and [`Link::push`] puts one packet on it. Neither call ever blocks. Packets of one link
//! arrive once each and in the order of the pushes, or the link goes down.

use crate::id::{Incarnation, NodeId, Priority};
use crate::packet::{PacketHead, Payload};

/// The result of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Push {
    /// The target can see the packet.
    Done,
    /// The link has no room now. Nothing happened; the caller can try again later.
    Full,
    /// The link cannot be used any more. Nothing happened.
    Down(LinkDown),
}

/// Why a link cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDown {
    /// The target wrote a value into the link's shared words that a correct target never writes.
    Damaged,
}

/// A connection to one target at one priority. One thread at a time uses it.
pub trait Link: Send {
    /// Puts one packet on the link: `head`, then the `len` bytes at `bytes`. Never blocks. There is always room for a `GivenUp`
    /// packet without bytes that follows a `First`.
    ///
    /// # Safety
    /// `len` bytes must be readable at `bytes`, and `len` must be at most [`packet_bytes`](Self::packet_bytes).
    unsafe fn push(&mut self, head: &PacketHead, bytes: *const u8, len: usize) -> Push;

    /// The most bytes that one packet carries.
    fn packet_bytes(&self) -> usize;

    /// Whether the target has refused further messages until it asks for more, because its pool of unexpected messages is full.
    fn refused(&self) -> bool;
}

/// The driver's answer to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The driver took the packet. The fabric may reuse its memory and go on.
    Taken,
    /// The driver took the packet and needs no more now, so the fabric returns to it.
    TakenAndStop,
    /// The driver did not take the packet. It stays first on its link, and the fabric goes on with other links.
    Refused,
    /// The driver did not take the packet, and the fabric need not tell the sender: an earlier message is still on its way by
    /// another link. The packet stays first on its link. The fabric offers it again after the driver has taken another packet.
    Later,
    /// The driver did not take the packet and will take nothing more from this link: the sender broke the rules.
    Broken(&'static str),
}

/// The receiver of the packets that a fabric polls.
pub trait Sink {
    /// Takes one packet from `source`: the first one on its link that was not taken yet. Called under the baton; must not block.
    fn packet(
        &mut self,
        source: NodeId,
        incarnation: Incarnation,
        priority: Priority,
        head: &PacketHead,
        payload: Payload<'_>,
    ) -> Verdict;

    /// Returns a buffer of at least `head.total` bytes for a message that its sender is still writing. Returns `None` if the program has
    /// none, or if the message is not the next one of this sender. The fabric calls it under the baton. It may write into the buffer
    /// although the message does not arrive.
    fn buffer_for(
        &mut self,
        _source: NodeId,
        _incarnation: Incarnation,
        _priority: Priority,
        _head: &PacketHead,
    ) -> Option<&mut [u8]> {
        None
    }

    /// The message has arrived in the buffer. The fabric calls this right after [`buffer_for`](Self::buffer_for), with the same arguments.
    /// Returns whether the fabric should stop and take nothing more.
    fn copied(&mut self, _source: NodeId, _incarnation: Incarnation, _priority: Priority, _head: &PacketHead) -> bool {
        true
    }

    /// Reports that the link from `source` broke the rules. The fabric reads no more of it, and its remaining packets are lost.
    fn damaged(&mut self, source: NodeId, priority: Priority, reason: &'static str);
}

/// A transport that reaches nodes.
pub trait Fabric {
    /// The sending half of one connection.
    type Link: Link;
    /// Why a target cannot be reached.
    type Error;

    /// Opens the link to a node. This is a control path: it may make system calls and allocate, but it does not wait for the
    /// target.
    fn connect(&mut self, target: NodeId, incarnation: Incarnation, priority: Priority) -> Result<Self::Link, Self::Error>;

    /// Hands at most `budget` packets to `sink`, and returns how many the sink took.
    fn poll<S: Sink>(&mut self, sink: &mut S, budget: usize) -> usize;
}
