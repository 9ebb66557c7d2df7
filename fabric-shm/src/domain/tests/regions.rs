//! Regions, and the memory of nodes in the same process.

use super::*;
use crate::layout::HeaderFault;
use crate::region::{DATA_OFFSET, HEAD_OFFSET, OwnRegion, PeerRegion, RegionFault};

fn open(node: &Membership, owner: &Membership, number: u32) -> Result<PeerRegion, RegionFault> {
    node.open_region(owner.id(), owner.incarnation(), number, true).map_err(|error| match error {
        ShmError::Region { node, number: n, fault, .. } if node == owner.id() && n == number => fault,
        other => panic!("{other}"),
    })
}

fn put(region: &PeerRegion, at: usize, byte: u8) {
    assert!(at < region.len());
    // SAFETY: within the region, and nothing else reads it now.
    unsafe { region.ptr().add(at).write(byte) };
}

fn look(region: &OwnRegion, at: usize) -> u8 {
    assert!(at < region.len());
    // SAFETY: within the region, and nothing else writes it now.
    unsafe { region.ptr().add(at).read() }
}

#[test]
fn what_a_peer_writes_is_there() {
    each_space(|space| {
        let (a, b) = (join(space), join(space));
        for (number, bytes) in [(0, 1), (1, PAGE), (2, PAGE + 1), (u32::MAX, 100_000)] {
            let own = b.create_region(number, bytes).unwrap();
            let seen = open(&a, &b, number).unwrap();
            assert_eq!((seen.len(), own.len(), seen.number(), seen.secret()), (bytes, bytes, number, own.secret()));
            assert!(seen.is_live() && own.is_live() && seen.is_writable());
            assert_eq!((own.ptr().addr() % PAGE, seen.ptr().addr() % PAGE, look(&own, bytes - 1)), (0, 0, 0));
            put(&seen, bytes - 1, 7);
            assert_eq!(look(&own, bytes - 1), 7);
            let twice = b.create_region(number, bytes).unwrap_err();
            assert!(matches!(twice, ShmError::Os { .. }), "{twice}");
            assert_eq!(look(&own, bytes - 1), 7);
        }
        assert!(matches!(b.create_region(3, 0), Err(ShmError::InvalidRegion { .. })));
        assert!(matches!(b.create_region(3, usize::MAX), Err(ShmError::InvalidRegion { .. })));
    });
}

#[test]
fn a_withdrawn_region_is_written_in_vain() {
    each_space(|space| {
        let (a, b) = (join(space), join(space));
        let own = b.create_region(1, 100).unwrap();
        let seen = open(&a, &b, 1).unwrap();
        own.withdraw().unwrap();
        own.withdraw().unwrap();
        assert!(!seen.is_live() && !own.is_live());
        assert_eq!(open(&a, &b, 1).unwrap_err(), RegionFault::Absent);
        assert!(names(space).iter().all(|name| !name.ends_with(".r1")));
        drop(own);
        // The next region has the same number, name and length, but its own memory.
        let next = b.create_region(1, 100).unwrap();
        (0..100).for_each(|at| put(&seen, at, 0xff));
        assert!((0..100).all(|at| look(&next, at) == 0));
        assert!(!seen.is_live() && open(&a, &b, 1).unwrap().secret() != seen.secret());
    });
}

#[test]
fn leaving_removes_regions_and_dying_does_not() {
    each_space(|space| {
        let (a, b, c) = (join(space), join(space), join(space));
        let regions = [(&b, 1), (&b, 2), (&c, 1)].map(|(node, number)| node.create_region(number, 10).unwrap());
        let seen = [(&b, 1), (&b, 2), (&c, 1)].map(|(node, number)| open(&a, node, number).unwrap());
        b.leave().unwrap();
        assert!(!seen[0].is_live() && !seen[1].is_live() && seen[2].is_live());
        assert!(names(space).iter().all(|name| !name.contains(".1.")));
        assert!(matches!(b.create_region(5, 10), Err(ShmError::Left { .. })));
        assert!(matches!(b.open_region(c.id(), c.incarnation(), 1, true), Err(ShmError::Left { .. })));
        c.abandon();
        drop(regions);
        assert!(seen[2].is_live() && open(&a, &c, 1).is_ok());
        // A joining node finds the leftovers of the dead one.
        let next = join(space);
        assert_eq!((next.id(), open(&a, &c, 1).unwrap_err()), (NodeId(1), RegionFault::Absent));
    });
}

#[test]
fn a_region_of_another_life_is_told_apart() {
    each_space(|space| {
        let (a, b) = (join(space), join(space));
        let _own = b.create_region(1, 10).unwrap();
        let other = Incarnation(b.incarnation().0 + 9);
        let fault = a.open_region(b.id(), other, 1, true).unwrap_err();
        let found = b.incarnation();
        assert!(matches!(fault, ShmError::Region { fault: RegionFault::OtherLife { found: f }, .. } if f == found), "{fault}");
    });
}

#[test]
fn a_damaged_region_is_refused_by_name() {
    let space = Space::heap();
    let (a, b) = (join(&space), join(&space));
    let _own = b.create_region(1, 10).unwrap();
    let name = b.names.region(b.id(), 1);
    let file = space.open(&name).unwrap().unwrap();
    let segment = file.map(0, file.len() as usize).unwrap();
    let word = |at: usize| {
        // SAFETY: an aligned word of the first page.
        unsafe { &*segment.ptr().add(at).cast::<AtomicU64>() }
    };
    for (at, value) in [
        (0, 0),
        (24, 2),
        (40, 77),
        (48, 1 << 40),
        (HEAD_OFFSET, 0),
        (HEAD_OFFSET, 2),
        (HEAD_OFFSET + 8, 2),
        (HEAD_OFFSET + 16, 0),
        (HEAD_OFFSET + 16, PAGE as u64 + 1),
        (HEAD_OFFSET + 16, u64::MAX),
    ] {
        let before = word(at).swap(value, Ordering::Relaxed);
        let fault = open(&a, &b, 1).unwrap_err();
        assert_ne!(fault, RegionFault::Absent, "{at} {value}");
        assert!(!fault.to_string().is_empty());
        word(at).store(before, Ordering::Relaxed);
    }
    assert!(open(&a, &b, 1).is_ok());
    let Space::Heap(heap) = &space else { return };
    for len in [1, 128, PAGE, DATA_OFFSET] {
        heap.plant(&name, &vec![0; len]);
        assert!(matches!(open(&a, &b, 1).unwrap_err(), RegionFault::Header(HeaderFault::TooShort { .. })), "{len}");
    }
}

#[test]
fn memory_in_the_same_process_is_in_reach() {
    each_space(|space| {
        let (a, b) = (join(space), join(space));
        let peer = a.open_peer(b.id()).unwrap();
        let Some(reach) = peer.reach() else {
            assert!(matches!(space, Space::Posix(_)), "a copy within a process cannot be refused");
            return;
        };
        let mut theirs = vec![3_u8; 5000];
        let mut ours = vec![0_u8; 5000];
        let at = theirs.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: both have 5000 bytes, and nothing else uses them.
        unsafe { reach.read(at, ours.as_mut_ptr(), 5000) }.unwrap();
        assert_eq!(ours, theirs);
        ours.fill(9);
        // SAFETY: as above.
        unsafe { reach.write(at + 1, ours.as_ptr(), 4000) }.unwrap();
        assert!(theirs[0] == 3 && theirs[1..4001].iter().all(|byte| *byte == 9) && theirs[4001] == 3);
        b.abandon();
        // The owner is checked only once a millisecond.
        let refused = loop {
            // SAFETY: as above.
            match unsafe { reach.read(at, ours.as_mut_ptr(), 1) } {
                Ok(()) => std::thread::yield_now(),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.raw_os_error(), Some(libc::ESRCH));
    });
}

#[test]
fn an_inbox_that_promises_what_is_not_there_is_out_of_reach() {
    each_space(|space| {
        if matches!(space, Space::Heap(_)) {
            return;
        }
        let (a, b) = (join(space), join(space));
        // SAFETY: the nonce in the header page of b's inbox.
        let nonce = unsafe { &*b.inbox().ptr().add(crate::layout::REACH_OFFSET + 8).cast::<AtomicU64>() };
        let right = nonce.fetch_add(1, Ordering::Relaxed);
        assert!(a.open_peer(b.id()).unwrap().reach().is_none());
        nonce.store(0, Ordering::Relaxed);
        assert!(a.open_peer(b.id()).unwrap().reach().is_none());
        nonce.store(right, Ordering::Relaxed);
        // SAFETY: as above, the address.
        unsafe { &*b.inbox().ptr().add(crate::layout::REACH_OFFSET).cast::<AtomicU64>() }.store(8, Ordering::Relaxed);
        assert!(a.open_peer(b.id()).unwrap().reach().is_none());
    });
}

/// Opens a region that claims to be as long as its file, most of which is a hole.
#[cfg(not(miri))]
fn open_with_holes(directory: &posix::Directory) -> Result<PeerRegion, RegionFault> {
    let space = Space::posix_at(&directory.0);
    let (a, b) = (join(&space), join(&space));
    let own = b.create_region(0, PAGE).unwrap();
    assert!(open(&a, &b, 0).is_ok());
    let file = std::fs::File::options().write(true).open(directory.0.join(b.names().region(b.id(), 0))).unwrap();
    file.set_len(1 << 36).unwrap();
    for (at, bytes) in [(48, 1_u64 << 36), (HEAD_OFFSET + 16, (1 << 36) - PAGE as u64)] {
        // SAFETY: within the first page of the region, which lies before its data.
        unsafe { own.ptr().sub(DATA_OFFSET - at).cast::<u64>().write(bytes) };
    }
    open(&a, &b, 0)
}

/// Reading a hole of a file in memory allocates pages, as many as the peer claims and at this node's expense. On a disk it does
/// not, and a file there may have fewer blocks than bytes for other reasons.
#[test]
// The test needs files, which Miri does not have.
#[cfg(not(miri))]
fn a_region_with_holes_is_none_in_memory() {
    let refused = open_with_holes(&posix::Directory::in_memory());
    assert!(matches!(refused, Err(RegionFault::Header(HeaderFault::Damaged { what: "region length" }))));
    let elsewhere = posix::Directory::new();
    let system = nix::sys::statfs::statfs(&elsewhere.0).unwrap().filesystem_type();
    if system != nix::sys::statfs::TMPFS_MAGIC {
        assert_eq!(open_with_holes(&elsewhere).unwrap().len(), (1 << 36) - PAGE);
    }
}
