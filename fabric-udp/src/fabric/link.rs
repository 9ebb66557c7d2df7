//! The sending half of one connection to a peer.

use super::{BytesOut, Outstanding, UdpFabric};
use crate::protocol::TransferId;
use doorbell_fabric::{Incarnation, Link, NodeId, PacketHead, PacketKind, Priority, Push};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// The number of attempts to enter a fabric that another thread holds before the link counts as full; and the number for a packet
/// that must always find room.
const TRIES: u32 = 128;
const TRIES_MOST: u32 = 100_000;

/// The sending half of one connection to a peer, for one priority.
///
/// It shares the fabric with the thread that polls. That thread may be in a callback of the application, so a push does not wait
/// for it and reports that there is no room.
pub struct UdpLink {
    fabric: Arc<Mutex<UdpFabric>>,
    session: crate::protocol::SessionId,
    priority: Priority,
    /// As reported by the session last.
    packet_bytes: usize,
    most_at_once: usize,
}

impl UdpLink {
    /// The connection to an incarnation of a node that was accepted, or is reached beside; `None` if there is no such incarnation
    /// any more.
    pub fn new(fabric: &Arc<Mutex<UdpFabric>>, node: NodeId, incarnation: Incarnation, priority: Priority) -> Option<Self> {
        Self::by(fabric, node, incarnation, 0, priority)
    }

    /// Like [`new`](Self::new), over one of several sessions with it. `strand` 0 is the session that always exists; each further
    /// one begins at its own link. Also `None` if there is no session of that number now.
    pub fn by(
        fabric: &Arc<Mutex<UdpFabric>>,
        node: NodeId,
        incarnation: Incarnation,
        strand: u8,
        priority: Priority,
    ) -> Option<Self> {
        let entered = fabric.lock().unwrap_or_else(PoisonError::into_inner);
        let session = entered.session_by(node, incarnation, strand)?;
        let packet_bytes = entered.endpoint().packet_bytes(session).max(1);
        let most_at_once = entered.endpoint().lane_bytes(session) / 2;
        Some(Self { fabric: fabric.clone(), session, priority, packet_bytes, most_at_once })
    }

    #[inline]
    fn enter(&self, tries: u32) -> Option<MutexGuard<'_, UdpFabric>> {
        for _ in 0..tries {
            match self.fabric.try_lock() {
                Ok(fabric) => return Some(fabric),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }

    /// Sends a part of a transfer that the peer expects, of `total` bytes in all, from `from` without an intermediate copy.
    /// `None`: try again later.
    pub fn begin_transfer(&self, transfer: TransferId, part: Range<u64>, total: u64, from: Arc<dyn BytesOut>) -> Option<bool> {
        let mut fabric = self.enter(TRIES)?;
        Some(fabric.begin_transfer((self.session, transfer), (part, total), self.priority, from))
    }

    /// Like [`push`](Link::push), for a packet that may wait for the ones that follow. [`UdpFabric::release`] sends them all;
    /// without it they are delayed.
    pub fn push_held(&mut self, head: &PacketHead, bytes: &[u8]) -> Push {
        let Some(mut fabric) = self.enter(TRIES) else { return Push::Full };
        or_full(fabric.push_held(self.session, self.priority, head, bytes))
    }

    /// The traffic under way on this link, and the UDP link it uses. `None`: another thread has the fabric now, or the session
    /// has ended.
    pub fn outstanding(&self) -> Option<Outstanding> {
        self.enter(TRIES)?.endpoint().outstanding(self.session, self.priority)
    }

    /// The longest message that always fits into an idle link.
    pub fn most_at_once(&self) -> usize {
        self.most_at_once
    }

    /// Whether a message of `len` bytes in packets of `packet` bytes fits now, as a whole.
    pub fn has_room(&self, len: usize, packet: usize) -> bool {
        self.enter(TRIES).is_some_and(|fabric| fabric.endpoint().has_room(self.session, self.priority, len, packet))
    }
}

/// If the session has ended, its end will be reported soon. Nothing was damaged.
fn or_full(push: Push) -> Push {
    if matches!(push, Push::Down(_)) { Push::Full } else { push }
}

impl Link for UdpLink {
    #[inline]
    unsafe fn push(&mut self, head: &PacketHead, bytes: *const u8, len: usize) -> Push {
        // SAFETY: caller; an empty slice may have no address.
        let bytes = if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(bytes, len) } };
        let tries = if head.kind == PacketKind::GivenUp { TRIES_MOST } else { TRIES };
        let Some(mut fabric) = self.enter(tries) else { return Push::Full };
        let push = fabric.push(self.session, self.priority, head, bytes);
        let packet_bytes = fabric.endpoint().packet_bytes(self.session);
        drop(fabric);
        if packet_bytes > 0 {
            self.packet_bytes = packet_bytes;
        }
        or_full(push)
    }

    #[inline]
    fn packet_bytes(&self) -> usize {
        self.packet_bytes
    }

    fn refused(&self) -> bool {
        self.enter(TRIES).is_some_and(|fabric| fabric.endpoint().refused(self.session, self.priority))
    }
}
