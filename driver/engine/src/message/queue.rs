//! The packets of a service that wait for room.

use super::service::{Outbox, PeerId, Pushed};
use doorbell_fabric::Priority;
use std::collections::VecDeque;

/// A packet to be sent.
#[derive(Debug)]
pub struct Packet {
    /// The receiver.
    pub to: PeerId,
    /// Its tag.
    pub tag: u64,
    /// Its payload.
    pub bytes: Vec<u8>,
}

/// Packets to be sent, in this order for each peer.
#[derive(Debug, Default)]
pub struct SendQueue(VecDeque<Packet>);

impl SendQueue {
    /// Whether no packet waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of packets.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a packet.
    pub fn push(&mut self, to: PeerId, tag: u64, bytes: Vec<u8>) {
        self.0.push_back(Packet { to, tag, bytes });
    }

    /// The packets to a peer.
    pub fn to(&self, peer: PeerId) -> impl DoubleEndedIterator<Item = &Packet> {
        self.0.iter().filter(move |packet| packet.to == peer)
    }

    /// The packets to a peer, which may be changed.
    pub fn to_mut(&mut self, peer: PeerId) -> impl DoubleEndedIterator<Item = &mut Packet> {
        self.0.iter_mut().filter(move |packet| packet.to == peer)
    }

    /// Keeps the packets for which `stays` returns true. Returns how many others there were.
    pub fn retain(&mut self, stays: impl FnMut(&Packet) -> bool) -> usize {
        let before = self.len();
        self.0.retain(stays);
        before - self.len()
    }

    /// Removes all packets.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Sends the packets that find room. `left` gets each packet that left the queue: it was sent, or its peer is gone. Returns how many
    /// those are.
    pub fn send(&mut self, out: &mut Outbox<'_>, priority: Priority, mut left: impl FnMut(&Packet)) -> usize {
        self.retain(|packet| {
            let stays = out.push(packet.to, priority, packet.tag, &packet.bytes) == Pushed::Full;
            if !stays {
                left(packet);
            }
            stays
        })
    }

    /// Takes the first packet out, as if it had been sent.
    pub fn pop(&mut self) -> Option<Packet> {
        self.0.pop_front()
    }
}
