//! A device seen from outside.

use super::held::{Counts, Held};
use super::words::{Root, View, is_behind, life_of, offsets};
use super::{DeviceGeometry, PACKET};
use crate::keys::OwnerId;
use crate::layout::PAGE;
use doorbell_fabric::sync::Ordering;
use doorbell_fabric::{Incarnation, NodeId};

/// A snapshot of a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// The name of the device.
    pub name: String,
    /// The size of the device.
    pub geometry: DeviceGeometry,
    /// The length of its segment, in bytes.
    pub bytes: u64,
    /// The attached incarnations of nodes, once for each attachment.
    pub attached: Vec<(NodeId, Incarnation)>,
    /// The process that serves it to the network, if there is one.
    pub port: Option<(NodeId, Incarnation)>,
    /// The owner of its lock.
    pub lock: Option<OwnerId>,
    /// The thread ids that a thread has, or that messages wait for.
    pub threads: Vec<ThreadFacts>,
    /// The lanes with a sender, or with messages.
    pub lanes: Vec<LaneFacts>,
    /// The counts.
    pub counts: Counts,
}

/// A thread id of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadFacts {
    /// The thread id.
    pub thread: u32,
    /// The node whose thread has the id, if there is one.
    pub receiver: Option<(NodeId, Incarnation)>,
    /// How many stored headers wait for it.
    pub stored: u64,
}

/// A lane of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneFacts {
    /// The node that writes into it.
    pub owner: Option<(NodeId, Incarnation)>,
    /// The node that it writes for, if that one has only the network.
    pub client: Option<(NodeId, Incarnation)>,
    /// How many bytes were not received yet, headers included.
    pub waiting: u64,
    /// The lane was given up since it held words that no honest sender writes.
    pub broken: bool,
}

/// The length of a device's segment before its rings, in bytes, for any geometry.
pub(crate) fn head_bytes_most() -> usize {
    offsets(&DeviceGeometry { threads: super::MOST, senders: super::MOST, lane_bytes: 4096 })[2]
}

/// Reads the head of a device.
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
        let receiver = OwnerId::from_bits(slot.owner.load(Ordering::Relaxed)).map(|owner| (owner.node(), owner.incarnation()));
        let [head, tail] = [&slot.head, &slot.tail].map(|word| word.load(Ordering::Relaxed));
        // Read at different moments, so they may not match.
        let stored = tail.wrapping_sub(head).min(super::STORED_MOST as u64);
        Some(ThreadFacts { thread, receiver, stored })
    });
    let most = geometry.lane_bytes as u64;
    let lanes = view.lanes.iter().filter_map(|words| {
        let [owner, client] = [&words.owner, &words.client].map(|word| life_of(word.load(Ordering::Relaxed)));
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
