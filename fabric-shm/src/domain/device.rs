//! Devices: segments that belong to no node. The first process that attaches creates the device, and the last one removes it. The
//! leftovers of dead processes are removed when another process attaches, joins or cleans.

use super::Membership;
use super::census::Census;
use super::directory::Directory;
use crate::device::{DeviceFacts, DeviceGeometry, View, facts, has_ended, has_no_thread, head_bytes_most};
use crate::error::ShmError;
use crate::keys::OwnerId;
use crate::layout::{PAGE, SegmentHeader, SegmentKind};
use crate::segment::Segment;
use crate::space::{DomainLock, Names, OpenFile, Space, forked, valid_device_name};
use doorbell_fabric::world;
use doorbell_fabric::{Incarnation, NodeId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The timeout for the domain's lock when attaching.
const PATIENCE: Duration = Duration::from_secs(1);
/// The offset of the geometry in a device's first page.
const GEOMETRY_OFFSET: usize = 1024;
/// The most devices that a domain may have. Each has a file.
const DEVICES_MAX: usize = 4096;

/// A device, mapped. `Send` and `Sync`.
#[derive(Debug)]
pub struct DeviceSegment {
    name: String,
    segment: Segment,
    geometry: DeviceGeometry,
    nonce: u64,
}

impl DeviceSegment {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its dimensions.
    pub fn geometry(&self) -> DeviceGeometry {
        self.geometry
    }

    /// A number that no other segment has.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// Its shared words. They are not mapped in a forked child: check `forked` first.
    #[inline(always)]
    pub fn view(&self) -> View<'_> {
        // SAFETY: the segment is as long as this geometry needs (checked on open), page-aligned, and mapped as long as `self`.
        unsafe { View::at(self.segment.ptr(), &self.geometry) }
    }

    /// Whether another process truncated it and this process touched a missing page. One load.
    #[inline]
    pub fn is_cut(&self) -> bool {
        self.segment.is_cut()
    }

    fn check(name: &str, file: &OpenFile) -> Result<Self, ShmError> {
        let damaged = |reason: String| ShmError::Damaged { operation: "open a device", segment: name.to_owned(), reason };
        let fault = |error| ShmError::os("map segment", name, error);
        let found = usize::try_from(file.len()).unwrap_or(usize::MAX).min(usize::try_from(file.reserved()).unwrap_or(usize::MAX));
        if found <= PAGE {
            return Err(damaged(format!("it has only {found} bytes")));
        }
        let first = file.map_read(0, PAGE).map_err(fault)?;
        let (geometry, nonce) = geometry_of(name, &first, found)?;
        let bytes = View::bytes(&geometry);
        if bytes > found {
            return Err(damaged(format!("it has {found} bytes, and should have {bytes}")));
        }
        let segment = file.map(0, bytes).map_err(fault)?;
        Ok(Self { name: name.to_owned(), segment, geometry, nonce })
    }
}

/// The dimensions and the nonce in a device's first page; `found` is the size of its file.
fn geometry_of(name: &str, first: &Segment, found: usize) -> Result<(DeviceGeometry, u64), ShmError> {
    let damaged = |reason: String| ShmError::Damaged { operation: "open a device", segment: name.to_owned(), reason };
    if first.len() < PAGE {
        return Err(damaged(format!("it has only {found} bytes")));
    }
    // SAFETY: page-aligned, and mapped for its length.
    let facts = unsafe { SegmentHeader::check(first.ptr(), first.len(), found, SegmentKind::Device) }
        .map_err(|fault| damaged(fault.to_string()))?;
    let [threads, senders, lane_bytes] =
        geometry_words(first).each_ref().map(|word| usize::try_from(word.load(Ordering::Relaxed)).unwrap_or(usize::MAX));
    let geometry = DeviceGeometry { threads, senders, lane_bytes };
    geometry.validate().map_err(|rule| damaged(rule.to_owned()))?;
    Ok((geometry, facts.nonce))
}

fn geometry_words(segment: &Segment) -> &[AtomicU64; 3] {
    // SAFETY: inside the first page of a segment, aligned, and mapped as long as the segment; atomics need no exclusive access.
    unsafe { &*segment.ptr().add(GEOMETRY_OFFSET).cast() }
}

impl Membership {
    /// Attaches this process to a device. Creates it if no living process is attached; an existing device keeps its dimensions.
    ///
    /// This is a control path: it makes system calls, and blocks on the domain's lock for up to a second.
    pub fn attach_device(&self, name: &str, geometry: DeviceGeometry) -> Result<DeviceSegment, ShmError> {
        const OPERATION: &str = "attach to a device of";
        let invalid =
            |value: String, rule| ShmError::InvalidOption { domain: self.domain().to_owned(), option: "device", value, rule };
        if !valid_device_name(name) {
            return Err(invalid(name.to_owned(), "use 1 to 64 of the characters A-Z a-z 0-9 _ - ."));
        }
        geometry.validate().map_err(|rule| invalid(format!("{geometry:?}"), rule))?;
        // A node that leaves later must find no entry of this process that would keep a device.
        let lock = self.lock_domain(OPERATION, OPERATION, world::now() + PATIENCE)?;
        let file_name = self.names().device(name);
        let (me, lives) = ((self.id(), self.incarnation()), |node, incarnation| self.is_living(node, incarnation));
        if let Some(file) = self.space().open(&file_name)? {
            match DeviceSegment::check(name, &file) {
                Ok(device) if device.view().attached().any(|(node, incarnation)| lives(node, incarnation)) => {
                    if !device.view().enter(me, lives) {
                        return Err(invalid(name.to_owned(), "64 processes are attached to it, and no more can be"));
                    }
                    return Ok(device);
                }
                Ok(device) => device.view().end(),
                Err(error @ ShmError::Damaged { .. }) => {
                    tracing::info!(%error, device = name, "an unusable device is created anew");
                }
                // Other processes may be using a device that this one cannot map now.
                Err(error) => return Err(error),
            }
            lock.remove(&file_name, None)?;
        }
        if self.devices()? >= DEVICES_MAX {
            return Err(invalid(name.to_owned(), "a domain has up to 4096 devices"));
        }
        let init = |segment: &Segment| {
            // SAFETY: page-aligned, longer than a page, writable, and alive as long as the reference is used here.
            let header = unsafe { SegmentHeader::init(segment.ptr(), SegmentKind::Device, NodeId(0), 0, segment.len(), 0) };
            let words = [geometry.threads, geometry.senders, geometry.lane_bytes];
            geometry_words(segment).iter().zip(words).for_each(|(word, value)| word.store(value as u64, Ordering::Relaxed));
            // SAFETY: the segment is as long as the geometry needs (`View::bytes` below).
            unsafe { View::at(segment.ptr(), &geometry) }.enter(me, |_, _| true);
            header.publish();
        };
        let created = lock.create(&file_name, View::bytes(&geometry), false, &init)?;
        fault_point!("device.named");
        // SAFETY: page-aligned; its header was initialised above.
        let nonce = unsafe { SegmentHeader::at(created.segment.ptr()) }.nonce();
        Ok(DeviceSegment { name: name.to_owned(), segment: created.segment, geometry, nonce })
    }

    /// Opens a device to send to it. Returns `None` if this machine has no such device with a living process attached. Control
    /// path.
    pub fn open_device(&self, name: &str) -> Result<Option<DeviceSegment>, ShmError> {
        if !valid_device_name(name) {
            return Ok(None);
        }
        if forked() {
            return Err(ShmError::Forked { operation: "open a device" });
        }
        let Some(file) = self.space().open(&self.names().device(name))? else { return Ok(None) };
        let device = DeviceSegment::check(name, &file)?;
        let is_used = device.view().attached().any(|(node, incarnation)| self.is_living(node, incarnation));
        Ok(is_used.then_some(device))
    }

    /// Removes one entry of this process, and removes the device if no living process is attached any more. Blocks on the
    /// domain's lock for up to a second. If that fails, the device stays until another process cleans up.
    pub fn detach_device(&self, device: &DeviceSegment) -> Result<(), ShmError> {
        if forked() {
            return Err(ShmError::Forked { operation: "detach from a device" });
        }
        const OPERATION: &str = "detach from a device of";
        // Without a lock file nothing is left of the domain, and a lock file made here would stay.
        let lock = self.space().lock_if_any(OPERATION, self.names(), world::now() + PATIENCE)?;
        device.view().quit((self.id(), self.incarnation()));
        if device.view().attached().any(|(node, incarnation)| self.is_living(node, incarnation)) {
            return Ok(());
        }
        device.view().end();
        let Some(lock) = lock else { return Ok(()) };
        let name = self.names().device(&device.name);
        // Another device of that name may exist by now.
        let is_it = |file: &OpenFile| DeviceSegment::check(&device.name, file).is_ok_and(|found| found.nonce == device.nonce);
        match self.space().open(&name)? {
            Some(file) if is_it(&file) => lock.remove(&name, None).map(drop),
            _ => Ok(()),
        }
    }

    /// Whether the holder of a device's lock, or the receiver of one of its slots, lives. Checks the process, and the thread
    /// where the system shows it: thread `tid` for a slot, else the thread in the owner's number. Some system calls.
    pub fn is_receiver_living(&self, owner: OwnerId, tid: u64) -> bool {
        let (node, incarnation) = (owner.node(), owner.incarnation());
        if !self.is_living(node, incarnation) {
            return false;
        }
        match self.member(node).filter(|member| member.pid_namespace == self.pid_namespace()) {
            Some(member) if owner.is_users() => !has_no_thread(member.pid, owner.number()),
            Some(_) => !has_ended(tid),
            None => true,
        }
    }

    fn devices(&self) -> Result<usize, ShmError> {
        Ok(Census::take(self.space(), self.names())?.devices.len())
    }
}

/// The state of the devices at one moment. Skips devices that cannot be read.
pub(super) fn look(space: &Space, names: &Names, census: &Census) -> Vec<DeviceFacts> {
    let prefix = names.device("");
    let facts = |file_name: &String| {
        let name = file_name.strip_prefix(&prefix)?;
        let file = space.open(file_name).ok()??;
        // A copy of everything before the rings, so that a truncation cannot take it away meanwhile.
        let head = file.snapshot(head_bytes_most()).ok()??;
        let found = usize::try_from(file.len()).unwrap_or(usize::MAX);
        let (geometry, _) = geometry_of(name, &head, found).ok()?;
        // SAFETY: page-aligned, and as long as stated.
        unsafe { facts(head.ptr(), head.len(), geometry, name.to_owned(), file.len()) }
    };
    census.devices.iter().filter_map(facts).collect()
}

/// Removes devices without a living process attached, and returns their names.
pub(super) fn reap(lock: &DomainLock, census: &mut Census, directory: &Directory) -> Result<Vec<String>, ShmError> {
    let lives = |(node, incarnation): (NodeId, Incarnation)| {
        census.living.contains(&node) && directory.incarnation(node) == Some(incarnation)
    };
    let mut removed = Vec::new();
    let mut kept = Vec::new();
    for name in std::mem::take(&mut census.devices) {
        let device = match lock.space().open(&name).map(|file| file.map(|file| DeviceSegment::check(&name, &file))) {
            Ok(Some(Ok(device))) => Some(device),
            Ok(None | Some(Err(ShmError::Damaged { .. }))) => None,
            // Other processes may be using a device that this one cannot map now.
            Ok(Some(Err(_))) | Err(_) => {
                kept.push(name);
                continue;
            }
        };
        if device.as_ref().is_some_and(|device| device.view().attached().any(lives)) {
            kept.push(name);
            continue;
        }
        if let Some(device) = device {
            device.view().end();
        }
        if lock.remove(&name, None)? {
            removed.push(name);
        }
    }
    census.devices = kept;
    Ok(removed)
}
