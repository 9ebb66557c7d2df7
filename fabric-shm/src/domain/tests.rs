//! The lifecycle of domains, in the heap and in a directory of files.

#[cfg(not(miri))]
mod keys;
#[cfg(not(miri))]
mod posix;
mod regions;

use super::layout::DIRECTORY_HASH;
use super::*;
use crate::layout::{CALLERS_OFFSET, FIRST_BYTES, HEADER_BYTES, INBOX_BYTES, LAYOUT_HASH, PAGE};
use crate::space::HeapSpace;
use doorbell_fabric::Priority;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const SMALL: LaneGeometry = LaneGeometry { cells: [16; 3], data_bytes: [16 << 10; 3] };

fn options(space: &Space) -> JoinOptions {
    JoinOptions { max_nodes: 4, lanes: SMALL, ..JoinOptions::new("grid", space.clone()) }
}

fn join(space: &Space) -> Membership {
    Membership::join(options(space)).unwrap()
}

fn names(space: &Space) -> Vec<String> {
    space.list().unwrap()
}

/// Makes all segments of a space look as if another build had made them.
fn make_foreign(space: &Space, name: &str) {
    let file = space.open(name).unwrap().unwrap();
    let segment = file.map(0, PAGE).unwrap();
    // SAFETY: the third word of a mapped page, which is the layout hash of the header.
    unsafe { (*segment.ptr().cast::<AtomicU64>().add(2)).fetch_xor(1, Ordering::Relaxed) };
}

fn each_space(check: impl Fn(&Space)) {
    check(&Space::heap());
    #[cfg(not(miri))]
    {
        let files = posix::Directory::new();
        check(&Space::posix_at(&files.0));
        assert!(std::fs::read_dir(&files.0).unwrap().next().is_none(), "something was left behind");
        let files = posix::Directory::new();
        check(&Space::Posix(crate::space::PosixSpace::without_nameless_files(files.0.clone())));
        assert!(std::fs::read_dir(&files.0).unwrap().next().is_none(), "something was left behind");
    }
}

#[test]
fn who_leaves_leaves_nothing() {
    each_space(|space| {
        let first = join(space);
        let second = join(space);
        assert_eq!((first.inbox().len(), first.board().len()), (INBOX_BYTES, board_bytes(32)));
        for (from, to) in [(&first, &second), (&second, &first)] {
            from.open_peer(to.id()).unwrap().pair().unwrap();
        }
        assert_eq!(names(space).iter().filter(|name| name.contains("-from-")).count(), 2);
        assert_eq!((first.max_nodes(), first.lanes()), (4, SMALL));
        let generation = first.generation();
        second.leave().unwrap();
        second.leave().unwrap();
        assert_ne!(first.generation(), generation);
        assert!(names(space).iter().all(|name| !name.contains(".1.")));
        assert!(matches!(second.open_peer(NodeId(0)), Err(ShmError::Left { .. })));
        drop(second);
        drop(first);
        assert_eq!(names(space), [""; 0]);
    });
}

#[test]
fn ids_are_dense_and_incarnations_never_come_back() {
    each_space(|space| {
        let mut seen = BTreeSet::new();
        let nodes: Vec<_> = (0..4).map(|_| join(space)).collect();
        for (id, node) in nodes.iter().enumerate() {
            assert_eq!(node.id().index(), id);
            assert!(seen.insert(node.incarnation()) && node.incarnation().0 != 0);
        }
        assert!(matches!(Membership::join(options(space)), Err(ShmError::DomainFull { max_nodes: 4, .. })));
        nodes[2].leave().unwrap();
        let again = join(space);
        assert_eq!(again.id(), NodeId(2));
        assert!(seen.insert(again.incarnation()));
        let taken = Membership::join(JoinOptions { id: Some(NodeId(1)), ..options(space) }).unwrap_err();
        assert!(matches!(taken, ShmError::IdTaken { pid, .. } if pid == std::process::id()), "{taken}");
        nodes[1].abandon();
        let heir = Membership::join(JoinOptions { id: Some(NodeId(1)), ..options(space) }).unwrap();
        assert!(seen.insert(heir.incarnation()));
        let outside = Membership::join(JoinOptions { id: Some(NodeId(4)), ..options(space) }).unwrap_err();
        assert!(matches!(outside, ShmError::InvalidOption { option: "id", .. }), "{outside}");
    });
}

#[test]
fn the_directory_tells_who_is_there() {
    each_space(|space| {
        let first = Membership::join(JoinOptions { role: Role::Io, label: "a\nb ü".into(), ..options(space) }).unwrap();
        let second = Membership::join(JoinOptions { id: Some(NodeId(3)), role: Role::Service, ..options(space) }).unwrap();
        let members = second.members();
        assert_eq!(members, first.members());
        assert_eq!(members.iter().map(|member| member.id.0).collect::<Vec<_>>(), [0, 3]);
        assert_eq!(members[0].role, Role::Io);
        assert_eq!(members[0].label, "a\u{fffd}b ü");
        assert_eq!(members[0].pid, std::process::id());
        assert_eq!(second.member(NodeId(3)).unwrap().incarnation, second.incarnation());
        for absent in [1, 4, 1023, u16::MAX] {
            assert_eq!(first.member(NodeId(absent)), None);
            assert!(matches!(first.open_peer(NodeId(absent)), Err(ShmError::NoSuchNode { .. })));
        }
    });
}

#[test]
fn options_out_of_range_are_refused() {
    let space = Space::heap();
    for name in ["", "a/b", "a.b", &"x".repeat(65)] {
        let refused = Membership::join(JoinOptions { domain: name.into(), ..options(&space) });
        assert!(matches!(refused, Err(ShmError::InvalidDomainName { .. })));
    }
    for bad in [
        JoinOptions { label: "x".repeat(32), ..options(&space) },
        JoinOptions { max_nodes: 1, ..options(&space) },
        JoinOptions { max_nodes: 1025, ..options(&space) },
        JoinOptions { lanes: LaneGeometry { cells: [17; 3], ..SMALL }, ..options(&space) },
    ] {
        assert!(matches!(Membership::join(bad), Err(ShmError::InvalidOption { .. })));
    }
    assert_eq!(names(&space), [""; 0]);
}

#[test]
fn a_peer_is_reached_through_its_header_and_the_lanes_of_the_pair() {
    each_space(|space| {
        let (first, second) = (join(space), join(space));
        let peer = second.open_peer(first.id()).unwrap();
        assert_eq!((peer.id(), peer.incarnation()), (first.id(), first.incarnation()));
        let word = |ptr: *mut u8, offset: usize| {
            // SAFETY: within a mapped page or pair, and aligned.
            unsafe { &*ptr.add(offset).cast::<AtomicU64>() }
        };
        word(peer.header(), HEADER_BYTES - 8).store(17, Ordering::Relaxed);
        assert_eq!(word(first.inbox().ptr(), HEADER_BYTES - 8).load(Ordering::Relaxed), 17);

        // A pair that has not talked has no lanes; each end can make them.
        assert!(
            matches!(first.existing_pair_from(second.id()), Ok(None))
                && matches!(second.existing_pair_from(first.id()), Ok(None))
        );
        let announced = || word(first.inbox().ptr(), CALLERS_OFFSET).load(Ordering::Relaxed);
        assert_eq!(announced(), 0);
        let ours = peer.pair().unwrap();
        assert_eq!(announced(), 1 << second.id().0);
        let theirs = first.existing_pair_from(second.id()).unwrap().unwrap();
        word(ours.ptr(), FIRST_BYTES - 8).store(18, Ordering::Relaxed);
        assert_eq!(word(theirs.ptr(), FIRST_BYTES - 8).load(Ordering::Relaxed), 18);
        // Either end makes it longer, and then both see the new part.
        let (end, lanes) = (SMALL.lane(Priority::Normal).end(), [(first.id(), &second), (second.id(), &first)]);
        ours.grow(end).unwrap();
        theirs.rely_on(end);
        word(ours.ptr(), end - 8).store(19, Ordering::Relaxed);
        assert_eq!(word(theirs.ptr(), end - 8).load(Ordering::Relaxed), 19);
        assert!(ours.is_whole() && theirs.is_whole());
        for (from, to) in lanes {
            to.pair_from(from).unwrap().grow(SMALL.pair_bytes()).unwrap();
        }
        assert!(matches!(first.pair_from(second.id()), Ok(pair) if Arc::ptr_eq(&pair, &theirs)));

        assert!(second.open_peer(second.id()).unwrap().is_alive());
        assert!(peer.is_alive());
        first.leave().unwrap();
        assert!(!peer.is_alive());
        assert!(matches!(second.open_peer(NodeId(0)), Err(ShmError::NoSuchNode { .. })));
    });
}

#[test]
fn the_dead_are_noticed_and_reaped_by_the_next() {
    each_space(|space| {
        let first = join(space);
        let second = join(space);
        let peer = first.open_peer(second.id()).unwrap();
        let dead = second.incarnation();
        second.abandon();
        assert!(!peer.is_alive());
        assert!(first.member(NodeId(1)).is_some());
        assert!(matches!(first.open_peer(NodeId(1)), Err(ShmError::NodeDead { incarnation, .. }) if incarnation == dead));
        let generation = first.generation();
        let heir = join(space);
        assert_eq!(heir.id(), NodeId(1));
        assert_ne!(heir.incarnation(), dead);
        assert_ne!(first.generation(), generation);
        assert!(!peer.is_alive(), "a new incarnation does not revive the old one");
        assert!(first.open_peer(NodeId(1)).unwrap().is_alive());
        drop(second);
        assert!(first.open_peer(NodeId(1)).unwrap().is_alive(), "a dead node removes nothing of its successor");
    });
}

#[test]
fn a_domain_without_the_living_is_made_anew() {
    each_space(|space| {
        let old = join(space);
        old.abandon();
        let new = Membership::join(JoinOptions { max_nodes: 2, ..options(space) }).unwrap();
        assert_eq!((new.id(), new.max_nodes()), (NodeId(0), 2));
        assert_ne!(new.incarnation(), old.incarnation());
        drop(old);
        assert_eq!(new.members().len(), 1);
    });
}

#[test]
fn two_layouts_refuse_each_other() {
    each_space(|space| {
        let first = join(space);
        make_foreign(space, &first.names.domain());
        let refused = Membership::join(options(space)).unwrap_err();
        let ShmError::OtherLayout { their_hash, our_hash, living: 1, .. } = refused else { panic!("{refused}") };
        assert_eq!((their_hash, our_hash), (LAYOUT_HASH ^ 1, LAYOUT_HASH));
        assert_eq!(
            list_domains(space).unwrap()[0].layout,
            DomainLayout::Other { version: u64::from(crate::layout::LAYOUT_VERSION), hash: LAYOUT_HASH ^ 1 }
        );
        for force in [false, true] {
            let report = clean(space, None, force).unwrap();
            assert!(report.removed.is_empty() && report.kept[0].living == 1, "{report:?}");
        }
        first.abandon();
        let report = clean(space, Some("grid"), false).unwrap();
        assert!(report.removed.is_empty() && report.kept[0].living == 0, "{report:?}");
        let heir = join(space);
        assert_eq!(heir.members().len(), 1);
        make_foreign(space, &heir.names.domain());
        heir.abandon();
        assert!(clean(space, None, true).unwrap().kept.is_empty());
        assert_eq!(names(space), [""; 0]);
    });
    assert_ne!(DIRECTORY_HASH, LAYOUT_HASH);
}

#[test]
fn a_living_domain_that_lost_its_segment_is_not_joined() {
    each_space(|space| {
        let first = join(space);
        let lock = space.lock("test", &first.names, Instant::now()).unwrap();
        assert!(lock.remove(&first.names.domain(), None).unwrap());
        drop(lock);
        assert!(matches!(Membership::join(options(space)), Err(ShmError::DomainLost { living: 1, .. })));
        let report = clean(space, None, true).unwrap();
        assert!(report.removed.is_empty() && report.kept.len() == 1, "{report:?}");
        assert_eq!(list_domains(space).unwrap()[0].layout, DomainLayout::Missing);
    });
}

#[test]
fn a_full_space_is_an_error_that_leaves_nothing() {
    let needed = domain_bytes(4) + INBOX_BYTES + board_bytes(32);
    for capacity in [0, domain_bytes(4), needed - board_bytes(32), needed - 1] {
        let space = Space::Heap(Arc::new(HeapSpace::with_capacity(capacity)));
        let full = Membership::join(options(&space)).unwrap_err();
        assert!(matches!(full, ShmError::NoSpace { wanted, free, .. } if free < wanted), "{full}");
        assert_eq!(names(&space), [""; 0]);
    }
    let space = Space::Heap(Arc::new(HeapSpace::with_capacity(2 * needed - domain_bytes(4) - 1)));
    let first = join(&space);
    let (before, generation) = (names(&space), first.generation());
    assert!(matches!(Membership::join(options(&space)), Err(ShmError::NoSpace { .. })));
    assert_eq!((names(&space), first.generation()), (before, generation));
}

#[test]
fn whoever_waits_for_a_change_gets_it() {
    each_space(|space| {
        let first = join(space);
        let seen = first.generation();
        thread::scope(|scope| {
            scope.spawn(|| join(space));
            while first.generation() == seen {
                first.wait_change(seen, Duration::from_secs(10));
            }
        });
        let seen = first.generation();
        first.wait_change(seen.wrapping_sub(1), Duration::from_secs(3600));
        first.wait_change(seen, Duration::from_millis(1));
    });
}

#[test]
fn a_lock_that_is_held_is_waited_for_until_the_deadline() {
    each_space(|space| {
        let names = Names::new(space.uid(), "grid");
        let lock = space.lock("test", &names, Instant::now()).unwrap();
        let soon = Instant::now() + Duration::from_millis(20);
        let refused = Membership::join(JoinOptions { deadline: soon, ..options(space) }).unwrap_err();
        assert!(refused.is_retryable() && matches!(refused, ShmError::LockTimeout { .. }), "{refused}");
        thread::scope(|scope| {
            let joined = scope.spawn(|| join(space));
            thread::sleep(Duration::from_millis(10));
            // Remove the lock file, as a leaving node does: the other must not mistake the lock of a file without a name for the
            // domain's.
            lock.dissolve().unwrap();
            joined.join().unwrap();
        });
    });
}

#[test]
fn joins_at_once_get_distinct_ids() {
    each_space(|space| {
        let count = if cfg!(miri) { 3 } else { 8 };
        let start = std::sync::Barrier::new(count);
        for _ in 0..if cfg!(miri) { 1 } else { 10 } {
            let nodes: Vec<_> = thread::scope(|scope| {
                let join = || {
                    start.wait();
                    Membership::join(JoinOptions { max_nodes: 8, ..options(space) }).unwrap()
                };
                let threads: Vec<_> = (0..count).map(|_| scope.spawn(join)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let distinct = |facts: Vec<u32>| facts.into_iter().collect::<BTreeSet<_>>().len() == count;
            assert!(distinct(nodes.iter().map(|node| node.id().0.into()).collect()));
            assert!(distinct(nodes.iter().map(|node| node.incarnation().0).collect()));
            assert_eq!(nodes[0].members().len(), count);
            thread::scope(|scope| {
                for node in &nodes {
                    scope.spawn(|| {
                        start.wait();
                        node.leave().unwrap();
                    });
                }
            });
            assert_eq!(names(space), [""; 0]);
        }
    });
}

#[test]
fn a_listing_shows_the_living_and_the_dead_and_cleaning_removes_the_dead() {
    each_space(|space| {
        assert!(list_domains(space).unwrap().is_empty());
        assert!(clean(space, Some("nowhere"), false).unwrap().removed.is_empty());
        assert!(matches!(clean(space, Some("no.where"), false), Err(ShmError::InvalidDomainName { .. })));
        let (first, second) = (join(space), join(space));
        let lone = Membership::join(JoinOptions { domain: "other".into(), ..options(space) }).unwrap();
        second.abandon();
        lone.abandon();
        let domains = list_domains(space).unwrap();
        assert_eq!(domains.iter().map(|domain| domain.name.as_str()).collect::<Vec<_>>(), ["grid", "other"]);
        assert_eq!((&domains[0].layout, domains[0].max_nodes), (&DomainLayout::Ours, Some(4)));
        assert_eq!(domains[0].nodes.iter().map(|node| node.alive).collect::<Vec<_>>(), [true, false]);
        assert_eq!(domains[0].nodes[1].member.as_ref().unwrap().incarnation, second.incarnation());
        assert_eq!(domains[0].nodes[0].bytes as usize, INBOX_BYTES + board_bytes(32));
        assert!(domains[0].bytes as usize >= 2 * (INBOX_BYTES + board_bytes(32)) + domain_bytes(4));

        let generation = first.generation();
        let report = clean(space, None, false).unwrap();
        assert_eq!(report.kept.iter().map(|kept| (kept.domain.as_str(), kept.living)).collect::<Vec<_>>(), [("grid", 1)]);
        assert!(report.removed.len() >= 5, "{report:?}");
        assert!(report.bytes as usize >= 2 * (INBOX_BYTES + board_bytes(32)) + domain_bytes(4));
        assert_ne!(first.generation(), generation);
        assert_eq!(first.members().len(), 1);
        assert_eq!(list_domains(space).unwrap().len(), 1);
    });
}

#[test]
fn errors_say_what_to_do() {
    let error = ShmError::os("lock", "doorbell.0.grid.lock", std::io::Error::from_raw_os_error(libc::EMFILE));
    assert!(error.to_string().contains("ulimit -n") && !error.is_retryable());
    assert_eq!(std::io::Error::from(error).kind(), std::io::Error::from_raw_os_error(libc::EMFILE).kind());
    let domain = || "grid".to_owned();
    let held = ShmError::LockTimeout { operation: "join", domain: domain(), holder: Some(77) };
    assert!(held.to_string().contains("last taken by process 77"));
    assert_eq!(std::io::Error::from(held).kind(), std::io::ErrorKind::TimedOut);
}

/// A directory made of the bytes of a test, with no owner behind it.
fn directory(bytes: &[u8]) -> Result<Directory, DirectoryFault> {
    let space = HeapSpace::with_capacity(usize::MAX);
    space.plant("x", bytes);
    let file = Space::Heap(Arc::new(space)).open("x").unwrap().unwrap();
    Directory::check(file.map(0, bytes.len()).unwrap())
}

fn valid_directory() -> Vec<u8> {
    let space = Space::heap();
    let node = join(&space);
    let file = space.open(&node.names.domain()).unwrap().unwrap();
    let segment = file.map(0, domain_bytes(4)).unwrap();
    let words = (0..segment.len() / 8).map(|i| {
        // SAFETY: within the segment, and aligned; nothing else uses it.
        unsafe { segment.ptr().cast::<u64>().add(i).read_volatile() }
    });
    words.flat_map(u64::to_ne_bytes).collect()
}

fn use_all_of(directory: &Directory) {
    for member in directory.members() {
        assert!(member.label.len() <= 3 * MAX_LABEL && member.incarnation.0 != 0);
        assert!(member.id.index() < directory.facts().max_nodes);
    }
    assert_ne!(directory.take_incarnation(0, |number| number % 3 == 0).0, 0);
    for id in [0, 3, 4, 1023, u16::MAX].map(NodeId) {
        directory.clear(id, Some(Incarnation(1)));
        directory.clear(id, None);
    }
}

#[test]
fn a_directory_cut_short_is_no_directory() {
    let valid = valid_directory();
    use_all_of(&directory(&valid).unwrap());
    for len in [1, 8, 127, 128, 512, 1024, 4095, 4096, valid.len() - 1] {
        assert!(matches!(directory(&valid[..len]), Err(DirectoryFault::Damaged(_))), "{len}");
    }
    for (offset, value) in
        [(520, 0), (520, 1), (520, 17), (520, 1024), (520, 1025), (520, u32::MAX), (524, 0), (524, 17), (536, 1), (536, u32::MAX)]
    {
        let mut bytes = valid.clone();
        bytes[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
        assert!(matches!(directory(&bytes), Err(DirectoryFault::Damaged(_))), "{offset} {value}");
    }
    let mut bytes = valid;
    bytes[512] ^= 1;
    let ours = DIRECTORY_HASH;
    assert_eq!(
        directory(&bytes).err(),
        Some(DirectoryFault::OtherLayout { version: u64::from(crate::layout::LAYOUT_VERSION), hash: ours ^ 1, ours })
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 256 }, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_directory_of_garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 1..6000)) {
        if let Ok(directory) = directory(&bytes) {
            use_all_of(&directory);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes it minutes; one that is cut short is read in the same way")]
    fn a_damaged_directory_never_panics(changes in proptest::collection::vec((0usize..5120, any::<u8>()), 1..400)) {
        let mut bytes = valid_directory();
        for (offset, byte) in changes {
            // Mostly change bytes behind the header and the facts, or the check would reject almost every case early.
            let offset = if offset % 64 == 0 { offset } else { 1024 + offset % 4096 };
            bytes[offset] = byte;
        }
        if let Ok(directory) = directory(&bytes) {
            use_all_of(&directory);
        }
    }

    #[test]
    fn entries_of_garbage_harm_no_node(words in proptest::collection::vec(any::<u64>(), 1024 / 8), small in any::<bool>()) {
        let space = Space::heap();
        let node = join(&space);
        let file = space.open(&node.names.domain()).unwrap().unwrap();
        let entries = file.map(layout::ENTRIES_OFFSET, 1024).unwrap();
        for (i, word) in words.iter().enumerate() {
            let word = if small { word % 5 } else { *word };
            // SAFETY: within the entries, and aligned.
            unsafe { entries.ptr().cast::<u64>().add(i).write_volatile(word) };
        }
        for member in node.members() {
            let _ = node.open_peer(member.id);
        }
        list_domains(&space).unwrap();
        let next = join(&space);
        prop_assert_eq!(next.id(), NodeId(1));
        prop_assert!(next.members().iter().all(|member| member.id.0 < 2));
    }
}
