//! Domains in a directory of files, and processes that are killed.

use super::*;
use crate::space::{Permission, PosixSpace};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU32;

/// A directory for one test, removed with it.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new() -> Self {
        Self::within(std::env::temp_dir())
    }

    /// A directory in memory, where segments belong.
    pub fn in_memory() -> Self {
        Self::within("/dev/shm".into())
    }

    fn within(directory: PathBuf) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("doorbell-test-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn space(&self) -> Space {
        Space::posix_at(&self.0)
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(&self.0).unwrap().next().is_none()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts another process that runs [`in_another_process`] in the same directory.
fn another_process(directory: &Directory, what: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "domain::tests::posix::in_another_process", "--nocapture", "--test-threads=1"]);
    command.env("DOORBELL_TEST_DIRECTORY", &directory.0).env("DOORBELL_TEST_PART", what);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Process {
    fn start(directory: &Directory, what: &str) -> Self {
        let mut child = another_process(directory, what).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The rest of the next line that contains this word.
    fn said(&mut self, word: &str) -> String {
        let line = self.lines.find_map(|line| Some(line.unwrap().split_once(word)?.1.trim().to_owned()));
        line.expect("the other process printed no such line")
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn in_another_process() {
    let (Ok(directory), Ok(part)) = (std::env::var("DOORBELL_TEST_DIRECTORY"), std::env::var("DOORBELL_TEST_PART")) else {
        return;
    };
    let space = Space::posix_at(directory);
    let space = match part.as_str() {
        "named" => Space::Posix(crate::space::PosixSpace::without_nameless_files(
            std::env::var_os("DOORBELL_TEST_DIRECTORY").unwrap().into(),
        )),
        _ => space,
    };
    let say = |line: String| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{line}").and_then(|()| out.flush()).unwrap();
    };
    let node = join(&space);
    let word = 0x0123_4567_89ab_cdef_u64;
    let region = node.create_region(7, 64 << 10).unwrap();
    // SAFETY: the region's first word.
    unsafe { region.ptr().cast::<u64>().write_volatile(word) };
    if part == "word" {
        say(format!("word {}", (&raw const word).expose_provenance()));
    }
    if part == "fork" {
        say(format!("forked {}", fork_and_look(&node)));
        // SAFETY: the child only sleeps.
        match unsafe { nix::unistd::fork() }.unwrap() {
            nix::unistd::ForkResult::Child => loop {
                thread::sleep(Duration::from_secs(1));
            },
            nix::unistd::ForkResult::Parent { child } => say(format!("sleeper {child}")),
        }
    }
    say(format!("joined {}", node.id()));
    // Wait until the pipe closes or a line arrives.
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(node);
}

/// Checks in a forked child; returns 0 if everything is as it should be.
fn fork_and_look(node: &Membership) -> i32 {
    let peer = node.open_peer(node.id()).unwrap();
    let own = node.create_region(1, 100).unwrap();
    let seen = node.open_region(node.id(), node.incarnation(), 1, true).unwrap();
    let permission = Permission::to_this_process();
    assert!(permission.is_granted());
    // SAFETY: the child takes no lock that another thread may hold, and ends by `_exit`.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            let right = [
                forked(),
                node.members().is_empty(),
                node.member(node.id()).is_none(),
                node.generation() != 0,
                !peer.is_alive(),
                matches!(node.open_peer(node.id()), Err(ShmError::Forked { .. })),
                matches!(node.leave(), Err(ShmError::Forked { .. })),
                matches!(node.create_region(2, 1), Err(ShmError::Forked { .. })),
                matches!(node.open_region(node.id(), node.incarnation(), 1, false), Err(ShmError::Forked { .. })),
                matches!(own.withdraw(), Err(ShmError::Forked { .. })),
                !own.is_live() && !seen.is_live(),
                peer.reach().is_none(),
                !permission.is_granted(),
            ];
            drop((own, seen));
            // SAFETY: the process ends without dropping the originals.
            drop(unsafe { std::ptr::read(&raw const *node) });
            let wrong = right.iter().position(|right| !right).map_or(0, |at| at as i32 + 1);
            // SAFETY: ends the process.
            unsafe { libc::_exit(wrong) }
        }
        nix::unistd::ForkResult::Parent { child } => match nix::sys::wait::waitpid(child, None).unwrap() {
            nix::sys::wait::WaitStatus::Exited(_, code) if peer.is_alive() && !forked() && own.is_live() && seen.is_live() => {
                assert!(permission.is_granted());
                permission.end();
                assert!(!permission.is_granted());
                code
            }
            other => panic!("{other:?}"),
        },
    }
}

fn wait_until(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(20), "it never came");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_killed_process_is_noticed_and_cleaned_up_after() {
    let directory = Directory::new();
    let space = directory.space();
    let node = join(&space);
    let mut other = Process::start(&directory, "plain");
    assert_eq!(other.said("joined"), "1");
    let peer = node.open_peer(NodeId(1)).unwrap();
    assert!(peer.is_alive() && peer.process().is_some());
    other.kill();
    wait_until(|| !peer.is_alive());
    assert!(matches!(node.open_peer(NodeId(1)), Err(ShmError::NodeDead { .. })));
    let removed = clean(&space, None, false).unwrap().removed;
    assert!(removed.len() == 3 && removed[2].ends_with(".1.inbox"), "{removed:?}");
    assert_eq!(node.members().len(), 1);
    drop(node);
    assert!(directory.is_empty());
}

#[test]
fn a_process_that_ends_its_work_leaves() {
    let directory = Directory::new();
    let node = join(&directory.space());
    let mut other = Process::start(&directory, "named");
    assert_eq!(other.said("joined"), "1");
    let peer = node.open_peer(NodeId(1)).unwrap();
    drop(other.child.stdin.take());
    wait_until(|| node.members().len() == 1);
    wait_until(|| !peer.is_alive());
}

#[test]
fn a_forked_child_is_no_node_and_keeps_no_node_alive() {
    let directory = Directory::new();
    let node = join(&directory.space());
    let mut other = Process::start(&directory, "fork");
    assert_eq!(other.said("forked"), "0");
    let sleeper = nix::unistd::Pid::from_raw(other.said("sleeper").parse().unwrap());
    other.said("joined");
    let peer = node.open_peer(NodeId(1)).unwrap();
    assert!(peer.is_alive());
    other.kill();
    wait_until(|| !peer.is_alive());
    // The child may not have run yet. When it does, it gives up what it inherited.
    let inbox = node.space.open(&node.names.inbox(NodeId(1))).unwrap().unwrap();
    wait_until(|| !inbox.is_held().unwrap());
    nix::sys::signal::kill(sleeper, nix::sys::signal::Signal::SIGKILL).expect("the child outlives its parent");
}

#[test]
fn an_absurd_size_is_an_error_with_sizes_in_it() {
    let directory = Directory::new();
    let node = join(&directory.space());
    let free = nix::sys::statvfs::statvfs(&directory.0).unwrap();
    let absurd = (free.blocks_available() * free.fragment_size() + (1 << 30)) as usize;
    let error = node.open_peer(node.id()).unwrap().pair().unwrap().grow(absurd).unwrap_err();
    assert!(matches!(error, ShmError::NoSpace { .. }), "{error}");
    assert!(error.to_string().contains(&(absurd - FIRST_BYTES).to_string()), "{error}");
    drop(node);
    assert!(directory.is_empty());
}

#[test]
fn the_lock_of_a_file_without_a_name_locks_nobody_out() {
    let directory = Directory::new();
    let space = directory.space();
    let names = Names::new(space.uid(), "grid");
    let old = space.lock("test", &names, Instant::now()).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| space.lock("test", &names, Instant::now() + Duration::from_millis(200)).map(drop));
        thread::sleep(Duration::from_millis(20));
        old.remove(&names.lock(), None).unwrap();
        let new = space.lock("test", &names, Instant::now()).unwrap();
        drop(old);
        assert!(matches!(waiting.join().unwrap(), Err(ShmError::LockTimeout { .. })), "two processes hold the lock");
        drop(new);
    });
}

#[test]
fn a_node_that_leaves_leaves_no_lock_file_to_its_other_threads() {
    let directory = Directory::new();
    let space = directory.space();
    let names = Names::new(space.uid(), "grid");
    assert!(space.lock_if_any("test", &names, Instant::now()).unwrap().is_none() && directory.is_empty());
    let node = join(&space);
    assert!(space.lock_if_any("test", &names, Instant::now()).unwrap().is_some());
    node.leave().unwrap();
    // Threads give a region up, make one, and make a lock while the last node leaves.
    for _ in 0..50 {
        let node = join(&space);
        let region = node.create_region(0, 100).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| drop(region));
            scope.spawn(|| {
                let made = node.create_region(1, 100).map(drop);
                assert!(matches!(made, Ok(()) | Err(ShmError::Left { .. })), "{made:?}");
            });
            scope.spawn(|| {
                let made = node.init_key("a lock", crate::keys::Resource::Unnamed, Instant::now() + Duration::from_secs(60));
                assert!(matches!(made, Ok(_) | Err(ShmError::Left { .. })), "{made:?}");
            });
            node.leave().unwrap();
        });
        assert!(directory.is_empty(), "something is left");
    }
}

#[test]
fn segments_are_for_one_user_only() {
    let directory = Directory::new();
    let node = join(&directory.space());
    for name in names(&node.space) {
        assert_eq!(fs::metadata(directory.0.join(&name)).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
    }
}

#[test]
fn what_is_left_lying_about_is_cleaned_up() {
    let directory = Directory::new();
    let space = directory.space();
    let names = Names::new(space.uid(), "grid");
    let leftovers = [names.lock(), names.inbox(NodeId(0)), names.board(NodeId(3)), names.inbox(NodeId(900)), names.unfinished(1)];
    for domain_segment in [None, Some(0), Some(5), Some(9000)] {
        for cleaned in [true, false] {
            for name in &leftovers {
                fs::write(directory.0.join(name), "rubbish").unwrap();
            }
            if let Some(len) = domain_segment {
                fs::write(directory.0.join(names.domain()), vec![0x5a; len]).unwrap();
            }
            let status = list_domains(&space).unwrap();
            assert!(status[0].nodes.iter().all(|node| !node.alive));
            assert_eq!(matches!(status[0].layout, DomainLayout::Damaged { .. }), domain_segment.is_some());
            if cleaned {
                let report = clean(&space, None, false).unwrap();
                assert_eq!(report.removed.len(), leftovers.len() + usize::from(domain_segment.is_some()), "{report:?}");
            } else {
                assert_eq!(join(&space).id(), NodeId(0));
            }
            assert!(directory.is_empty());
        }
    }
}

#[test]
fn a_truncated_inbox_is_refused() {
    let directory = Directory::new();
    let (first, second) = (join(&directory.space()), join(&directory.space()));
    let inbox = directory.0.join(first.names.inbox(second.id()));
    for len in [INBOX_BYTES as u64 - 1, 100, 0] {
        fs::OpenOptions::new().write(true).open(&inbox).unwrap().set_len(len).unwrap();
        assert!(matches!(first.open_peer(second.id()), Err(ShmError::Damaged { .. })), "{len}");
    }
}

#[test]
fn files_that_are_not_plain_are_not_opened() {
    let directory = Directory::new();
    let space = directory.space();
    let names = Names::new(space.uid(), "grid");
    let target = directory.0.join("precious");
    fs::write(&target, "data").unwrap();
    for name in [names.lock(), names.domain()] {
        let path = directory.0.join(&name);
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let refused = Membership::join(options(&space)).unwrap_err();
        assert!(matches!(refused, ShmError::NotOurs { .. }), "{refused}");
        let _ = fs::remove_file(&path);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let refused = Membership::join(options(&space)).unwrap_err();
        assert!(matches!(refused, ShmError::NotOurs { .. }), "{refused}");
        let _ = fs::remove_file(&path);
    }
    assert_eq!(fs::read_to_string(&target).unwrap(), "data");
    assert!(list_domains(&space).unwrap().is_empty());
}

#[test]
#[cfg(feature = "fault-points")]
fn a_process_killed_anywhere_leaves_nothing_that_the_next_cannot_repair() {
    let rooms = ["join.", "segment.", "reap.", "domain.", "leave."];
    let is_here = |point: &&str| rooms.iter().any(|room| point.starts_with(room));
    let points: Vec<_> = crate::fault::PLACES.into_iter().filter(is_here).collect();
    for (part, alone, leftover) in
        ["plain", "named"].into_iter().flat_map(|p| [(p, true, true), (p, true, false), (p, false, true), (p, false, false)])
    {
        for (point, times) in points.iter().flat_map(|point| [(point, 1), (point, 2), (point, 3)]) {
            let directory = Directory::new();
            let space = directory.space();
            let living = (!alone).then(|| join(&space));
            if leftover {
                join(&space).abandon();
            }
            let mut command = another_process(&directory, part);
            let mut child = command.env("DOORBELL_FAULT", format!("{point}:{times}")).stdin(Stdio::null()).spawn().unwrap();
            child.wait().unwrap();
            let heir = join(&space);
            assert_eq!(heir.id().0, u16::from(!alone), "{part} {point}:{times}");
            assert_eq!(heir.members().len(), 1 + usize::from(!alone), "{part} {point}:{times}");
            drop(heir);
            drop(living);
            assert!(directory.is_empty(), "{part} {point}:{times}");
        }
    }
}

#[test]
fn regions_and_private_memory_of_another_process() {
    let directory = Directory::new();
    let space = directory.space();
    let node = join(&space);
    let mut other = Process::start(&directory, "word");
    let at: u64 = other.said("word").parse().unwrap();
    let peer = node.open_peer(NodeId(1)).unwrap();
    let region = node.open_region(NodeId(1), peer.incarnation(), 7, false).unwrap();
    // SAFETY: the region's first word.
    assert_eq!(unsafe { region.ptr().cast::<u64>().read_volatile() }, 0x0123_4567_89ab_cdef);
    let Some(reach) = peer.reach() else {
        println!("this system refuses access to the memory of other processes: the test checked only the refusal");
        return;
    };
    let mut found = 0_u64;
    // SAFETY: a word of this process; the other process keeps its own until it is killed.
    unsafe { reach.read(at, (&raw mut found).cast(), 8) }.unwrap();
    assert_eq!(found, 0x0123_4567_89ab_cdef);
    // SAFETY: as above; the other process does not read its word again.
    unsafe { reach.write(at, (&raw const at).cast(), 8) }.unwrap();
    // SAFETY: as above.
    unsafe { reach.read(at, (&raw mut found).cast(), 8) }.unwrap();
    assert_eq!(found, at);
    for nowhere in [0, 8, u64::MAX - 4] {
        // SAFETY: as above; the kernel refuses such addresses.
        let refused = unsafe { reach.read(nowhere, (&raw mut found).cast(), 8) };
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EFAULT));
    }
    other.kill();
    // SAFETY: as above.
    let refused = unsafe { reach.read(at, (&raw mut found).cast(), 8) };
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ESRCH));
    assert!(peer.is_known_dead() && region.is_live());
    // SAFETY: still mapped, although the owner died.
    assert_eq!(unsafe { region.ptr().cast::<u64>().read_volatile() }, 0x0123_4567_89ab_cdef);
    drop(node);
    assert!(directory.is_empty());
}

#[test]
fn a_region_that_may_only_be_read_is_mapped_so() {
    let directory = Directory::new();
    let node = join(&directory.space());
    let own = node.create_region(1, 100).unwrap();
    let open = |writable| node.open_region(node.id(), node.incarnation(), 1, writable).unwrap();
    let rights = |ptr: *mut u8| {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let start = format!("{:x}-", ptr.addr());
        maps.lines().find(|line| line.trim_start_matches('0').starts_with(&start)).unwrap().split(' ').nth(1).unwrap().to_owned()
    };
    let (read, write) = (open(false), open(true));
    assert_eq!((rights(read.ptr()).as_str(), rights(write.ptr()).as_str()), ("r--s", "rw-s"));
    assert!(!read.is_writable() && write.is_writable());
    drop(own);
}

#[test]
fn a_region_that_does_not_fit_leaves_nothing() {
    let directory = Directory::new();
    let node = join(&directory.space());
    let before = names(&directory.space());
    assert!(matches!(node.create_region(1, 1 << 50), Err(ShmError::NoSpace { .. })));
    assert_eq!(names(&directory.space()), before);
}

/// A node may claim to be any process. The system tells which process holds the lock.
#[test]
fn whose_an_inbox_is_the_system_says() {
    let space = Space::posix();
    let [a, b] =
        [(); 2].map(|()| Membership::join(JoinOptions::new(format!("held-{}", std::process::id()), space.clone())).unwrap());
    let pid = i32::try_from(std::process::id()).unwrap();
    let holders = |node: &Membership| {
        let file = space.open(&node.names().inbox(node.id())).unwrap().unwrap();
        assert!(!(0..256).any(|fd| file.is_held_by(1, fd) || file.is_held_by(0, fd)));
        (0..256).filter(|fd| file.is_held_by(pid, *fd)).collect::<Vec<_>>()
    };
    let (of_a, of_b) = (holders(&a), holders(&b));
    assert!(of_a.len() == 1 && of_b.len() == 1 && of_a != of_b, "{of_a:?} {of_b:?}");
}

/// Two ends that make the same lanes at once get the same lanes, on file systems with and without nameless files.
#[test]
fn both_ends_at_once_make_one_file() {
    for nameless in [true, false] {
        let directory = Directory::new();
        let space =
            if nameless { directory.space() } else { Space::Posix(PosixSpace::without_nameless_files(directory.0.clone())) };
        let first = Arc::new(join(&space));
        for round in 0..20 {
            let second = Arc::new(join(&space));
            let start = std::sync::Barrier::new(2);
            let [ours, theirs] = thread::scope(|scope| {
                let ends: [Box<dyn FnOnce() -> *mut u8 + Send>; 2] = [
                    Box::new(|| second.pair_from(first.id()).unwrap().ptr()),
                    Box::new(|| {
                        let peer = first.open_peer(second.id()).unwrap();
                        let ptr = peer.pair().unwrap().ptr();
                        // The mapping stays for the rest of the test.
                        std::mem::forget(peer);
                        ptr
                    }),
                ];
                ends.map(|end| {
                    scope.spawn(|| {
                        start.wait();
                        end() as usize
                    })
                })
                .map(|thread| thread.join().unwrap() as *mut u8)
            });
            // SAFETY: both are mapped, page-aligned and longer than a word.
            let words = [ours, theirs].map(|ptr| unsafe { &*ptr.add(PAGE).cast::<AtomicU64>() });
            words[0].store(round + 1, Ordering::Relaxed);
            assert_eq!(words[1].load(Ordering::Relaxed), round + 1);
        }
        drop(first);
        assert!(directory.is_empty());
    }
}

/// A sender that makes lanes while their target goes leaves no file.
#[test]
fn lanes_to_a_node_that_has_gone_are_removed_or_refused() {
    for leaves in [true, false] {
        let directory = Directory::new();
        let (first, second) = (join(&directory.space()), join(&directory.space()));
        let peer = first.open_peer(second.id()).unwrap();
        if leaves {
            second.leave().unwrap()
        } else {
            second.abandon()
        }
        assert!(matches!(peer.pair(), Err(ShmError::NodeDead { .. })));
        assert!(names(&directory.space()).iter().all(|name| !name.contains("-from-")));
        // An heir gets lanes of its own.
        let heir = join(&directory.space());
        assert_eq!(heir.id(), second.id());
        assert!(first.open_peer(heir.id()).unwrap().pair().is_ok());
    }
}
