//! The sending half of one connection to a node, over any fabric.

use super::net::UdpLink;
use crate::mode::LinkMetrics;
use doorbell_fabric::{BytesOut, Link, PacketHead, PacketKind, Push, TransferId};
use doorbell_shm::fabric::ShmLink;
use doorbell_shm::lane::BULK_LEAST;
use doorbell_shm::region::OwnRegion;
use std::ops::Range;
use std::sync::Arc;

/// The least length of the packets in shared memory of a message that takes several. The target copies a packet while the next is written.
/// Smaller packets would overlap more, but each needs two more transfers of a cache line, which between processors without a
/// common cache take as long as copying 8 KiB.
const PACKET_BYTES: usize = 16 << 10;
/// The same in a stream, whose target reads earlier messages meanwhile.
const STREAM_BYTES: usize = 32 << 10;
/// A message that takes more than so many of these packets has longer ones: at most [`PACKET_MOST`] bytes each.
const PACKETS: usize = 16;
/// The longest packet in shared memory.
pub const PACKET_MOST: usize = 64 << 10;
/// The longest message that is one packet in shared memory, of which a waiting target copies a piece while the next is written. A
/// target that does not wait copies it when all of it is written, so this is a compromise.
pub const WHOLE_MOST: usize = 32 << 10;

/// The length of the packets of a message of `len` bytes in shared memory.
#[inline]
fn packet_of(len: usize, is_stream: bool) -> usize {
    let least = if is_stream { STREAM_BYTES } else { PACKET_BYTES };
    (len / PACKETS).next_multiple_of(64).clamp(least, PACKET_MOST)
}

/// The sending half of one connection to a node. Not boxed, because the path of every small message uses the larger variant.
#[allow(clippy::large_enum_variant)]
pub enum AnyLink {
    /// A lane in shared memory.
    Shm(ShmLink),
    /// A lane of a session.
    Udp(UdpLink),
}

impl AnyLink {
    /// The bytes that one packet of several carries, or more if the message is long or part of a stream.
    #[inline]
    pub fn packet_bytes(&self) -> usize {
        match self {
            AnyLink::Shm(link) => PACKET_BYTES.min(link.packet_bytes()),
            AnyLink::Udp(link) => link.packet_bytes(),
        }
    }

    /// The longest message that goes in one packet.
    #[inline]
    pub fn whole_bytes(&self) -> usize {
        match self {
            AnyLink::Shm(link) => WHOLE_MOST.min(link.packet_bytes()),
            AnyLink::Udp(link) => link.packet_bytes(),
        }
    }

    /// The length of each packet of a message of `len` bytes, except the last. Datagrams have about the same length, since a
    /// short one costs as many calls as a long one.
    #[inline]
    pub fn piece_bytes(&self, len: usize) -> usize {
        match self {
            AnyLink::Shm(link) => packet_of(len, link.is_stream()).min(link.packet_bytes()),
            AnyLink::Udp(link) => len.div_ceil(len.div_ceil(link.packet_bytes()).max(1)),
        }
    }

    /// Whether the target shares no memory with this node.
    #[inline]
    pub fn is_remote(&self) -> bool {
        matches!(self, AnyLink::Udp(_))
    }

    /// Puts one packet on the link, as [`Link::push`].
    ///
    /// # Safety
    /// As [`Link::push`].
    #[inline]
    pub unsafe fn push(&mut self, head: &PacketHead, bytes: *const u8, len: usize) -> Push {
        debug_assert!(head.kind != PacketKind::Loan || !self.is_remote(), "a loan to a node that shares no memory");
        match self {
            // SAFETY: caller.
            AnyLink::Shm(link) => unsafe { link.push(head, bytes, len) },
            // SAFETY: caller.
            AnyLink::Udp(link) => unsafe { link.push(head, bytes, len) },
        }
    }

    /// As [`push`](Self::push), for a packet that is sent together with later ones, at
    /// [`Fabrics::release`](super::Fabrics::release).
    #[inline]
    pub fn push_held(&mut self, head: &PacketHead, bytes: &[u8]) -> Push {
        match self {
            // SAFETY: a slice; the caller keeps to `packet_bytes`.
            AnyLink::Shm(link) => unsafe { link.push(head, bytes.as_ptr(), bytes.len()) },
            AnyLink::Udp(link) => link.push_held(head, bytes),
        }
    }

    /// Lets a session send a part of what its target expects under this name, which has `total` bytes in all. `None`: not now.
    /// `Some(false)`: it never can.
    pub fn begin_transfer(&self, name: u64, part: Range<u64>, total: u64, from: Arc<dyn BytesOut>) -> Option<bool> {
        match self {
            AnyLink::Shm(_) => Some(false),
            AnyLink::Udp(link) => link.begin_transfer(TransferId(name), part, total, from),
        }
    }

    /// What the target has not taken yet, as far as is known. `None`: it can't be read now.
    #[inline]
    pub fn metrics(&mut self) -> Option<LinkMetrics> {
        match self {
            AnyLink::Shm(link) => {
                let seen = link.outstanding()?;
                let (depth, places) = (seen.packets as u32, seen.places as u32);
                Some(LinkMetrics { depth, bytes: seen.bytes, room: seen.room, places, ..LinkMetrics::default() })
            }
            AnyLink::Udp(link) => {
                let seen = link.outstanding()?;
                Some(LinkMetrics {
                    depth: seen.packets.min(u32::MAX.into()) as u32,
                    bytes: seen.bytes,
                    room: seen.room,
                    ..LinkMetrics::default()
                })
            }
        }
    }

    /// Whether the target refuses messages until it requests some.
    pub fn refused(&self) -> bool {
        match self {
            AnyLink::Shm(link) => link.refused(),
            AnyLink::Udp(link) => link.refused(),
        }
    }

    /// The longest message that finds room on an idle link, whatever came before it.
    pub fn most_at_once(&self) -> usize {
        match self {
            AnyLink::Shm(link) => link.most_at_once(),
            AnyLink::Udp(link) => link.most_at_once(),
        }
    }

    /// Whether a message of `len` bytes in packets of `packet` bytes fits now, as a whole.
    pub fn has_room(&mut self, len: usize, packet: usize) -> bool {
        match self {
            AnyLink::Shm(link) => link.has_room(len, packet),
            AnyLink::Udp(link) => link.has_room(len, packet),
        }
    }

    /// Tells the target whether sends wait for room on this link.
    #[inline]
    pub fn wait_for_room(&mut self, waits: bool) {
        if let AnyLink::Shm(link) = self {
            link.wait_for_room(waits);
        }
    }

    /// Prepares for a message like the last one.
    #[inline(always)]
    pub fn own_ahead(&self) {
        if let AnyLink::Shm(link) = self {
            link.own_ahead();
        }
    }

    /// Whether a bulk ring would help: the link's packets are long enough to go to one.
    pub fn has_use_for_bulk(&self) -> bool {
        matches!(self, AnyLink::Shm(_)) && self.packet_bytes() >= BULK_LEAST
    }

    /// Offers a region as a bulk ring, of which a conversation uses `lap` bytes. Returns it if the link can't use it.
    pub fn offer_bulk(&mut self, region: OwnRegion, lap: usize) -> Option<OwnRegion> {
        match self {
            AnyLink::Shm(link) => link.offer_bulk(region, lap),
            AnyLink::Udp(_) => Some(region),
        }
    }

    /// Ends the link, and returns its bulk ring.
    pub fn into_bulk(self) -> Option<OwnRegion> {
        match self {
            AnyLink::Shm(link) => link.into_bulk(),
            AnyLink::Udp(_) => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn long_messages_have_longer_packets_of_whole_lines() {
        assert_eq!([1, 40_000, 256 << 10].map(|len| packet_of(len, false)), [PACKET_BYTES; 3]);
        assert_eq!([1, 40_000, 512 << 10, 1 << 20].map(|len| packet_of(len, true)), [32 << 10, 32 << 10, 32 << 10, 64 << 10]);
        assert_eq!([512 << 10, 1 << 20, 1 << 40].map(|len| packet_of(len, false)), [32 << 10, 64 << 10, 64 << 10]);
        for len in (0..2 << 20).step_by(4099) {
            let [alone, stream] = [false, true].map(|is_stream| [len, len + 4099].map(|len| packet_of(len, is_stream)));
            assert!(alone[0].is_multiple_of(64) && alone[0] <= alone[1] && alone[0] <= stream[0], "{len}");
        }
    }
}
