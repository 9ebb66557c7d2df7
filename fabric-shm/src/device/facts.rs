//! A device seen from outside.

use super::held::{Counts, Held};
use super::words::{Root, View, is_behind, offsets};
use super::{DeviceGeometry, PACKET};
use crate::keys::OwnerId;
use crate::layout::PAGE;
use doorbell_fabric::sync::Ordering;
use doorbell_fabric::{Incarnation, NodeId};

/// A device as it was a moment ago.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// What it is called.
    pub name: String,
    /// How large it is.
    pub geometry: DeviceGeometry,
    /// Bytes of its segment.
    pub bytes: u64,
    /// The lives of nodes that are attached, each as often as it is.
    pub attached: Vec<(NodeId, Incarnation)>,
    /// Who feeds it from the network, if somebody has to.
    pub port: Option<(NodeId, Incarnation)>,
    /// Who has its lock now.
    pub lock: Option<OwnerId>,
    /// The ids that somebody has, or that something waits for.
    pub threads: Vec<ThreadFacts>,
    /// The lanes that somebody has, or in which something is.
    pub lanes: Vec<LaneFacts>,
    /// What it counted.
    pub counts: Counts,
}

/// An id of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadFacts {
    /// The id.
    pub thread: u32,
    /// Whose it is.
    pub receiver: Option<(NodeId, Incarnation)>,
    /// Headers that others stored for it, and that it has not fetched.
    pub stored: u64,
}

/// A lane of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneFacts {
    /// Who writes into it.
    pub owner: Option<(NodeId, Incarnation)>,
    /// For whom, if that is another, which has the network alone.
    pub client: Option<(NodeId, Incarnation)>,
    /// Bytes that are not received yet, with their headers.
    pub waiting: u64,
    /// It was given up, as something in it was not as senders write it.
    pub broken: bool,
}

/// Bytes of a device's segment before its rings, for any geometry.
pub(crate) fn head_bytes_most() -> usize {
    offsets(&DeviceGeometry { threads: super::MOST, senders: super::MOST, lane_bytes: 4096 })[2]
}

/// What the head of a device says.
///
/// # Safety
/// At `base` are `len` readable and writable bytes, page-aligned.
pub(crate) unsafe fn facts(base: *mut u8, len: usize, geometry: DeviceGeometry, name: String, bytes: u64) -> Option<DeviceFacts> {
    if len < offsets(&geometry)[2] || len < PAGE + size_of::<Root>() {
        return None;
    }
    // SAFETY: caller, and the check above.
    let view = unsafe { View::head_at(base, &geometry) };
    let threads = view.slots.iter().enumerate().filter_map(|(at, slot)| {
        let thread = u32::try_from(view.root.names.0[at].load(Ordering::Relaxed).checked_sub(1)?).ok()?;
        let receiver = OwnerId::from_bits(slot.owner.load(Ordering::Relaxed)).map(|owner| (owner.node(), owner.life()));
        let [head, tail] = [&slot.head, &slot.tail].map(|word| word.load(Ordering::Relaxed));
        // One moment for the one, another for the other: they may not fit together.
        let stored = tail.wrapping_sub(head).min(super::STORED_MOST as u64);
        Some(ThreadFacts { thread, receiver, stored })
    });
    let most = geometry.lane_bytes as u64;
    let lanes = view.lanes.iter().filter_map(|words| {
        let [owner, client] = [&words.owner, &words.client].map(|word| life(word.load(Ordering::Relaxed)));
        let (written, read) = (words.written(), words.read.load(Ordering::Relaxed));
        let waiting =
            if is_behind(read, written) { written.wrapping_sub(read).saturating_mul(PACKET as u64).min(most) } else { 0 };
        let broken = words.broken.load(Ordering::Relaxed) != 0;
        (owner.is_some() || waiting > 0 || broken).then_some(LaneFacts { owner, client, waiting, broken })
    });
    Some(DeviceFacts {
        attached: view.attached().collect(),
        port: view.port(),
        lock: view.lock_seen().owner(),
        threads: threads.collect(),
        lanes: lanes.collect(),
        counts: Held::counts(view),
        name,
        geometry,
        bytes,
    })
}

fn life(word: u64) -> Option<(NodeId, Incarnation)> {
    (word != 0).then_some((NodeId((word >> 32) as u16), Incarnation(word as u32)))
}
