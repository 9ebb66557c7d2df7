//! Real processes: a host and its accelerators, forks, a full `/dev/shm`, another layout.

use doorbell::{Device, DeviceSender, DeviceThread, Error, Event, Lock, Match, Node, NodeId, Peer, Resource, Role, Space, Value};
use doorbell_shm::domain::{DomainLayout, JoinOptions, Membership, clean, list_domains};
use doorbell_shm::error::ShmError;
use doorbell_shm::layout::{FIRST_BYTES, INBOX_BYTES, board_bytes};
use doorbell_tests::Turn;
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, briefly, eventually, soon, until};
use doorbell_tests::pattern;
use doorbell_tests::process::{Process, told};
use doorbell_tests::words::{Words, now};
use std::fs::File;
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

// ---- a host and three accelerators

const ACCELERATORS: u16 = 3;
const WORK: u64 = 1;
const RESULT: u64 = 2;
const RING: u64 = 3;
const END: u64 = 4;

/// Doubles what the host sends, after each piece has gone once round the ring of accelerators.
pub fn accelerator() {
    let node = Node::from_env().unwrap();
    assert_eq!(node.role(), Role::Accelerator);
    node.wait_for(1 + ACCELERATORS as usize, soon()).unwrap();
    let host = node.peer(NodeId(0)).unwrap();
    let next = node.peer(NodeId(node.id().0 % ACCELERATORS + 1)).unwrap();
    let previous = Match::from(NodeId((node.id().0 + ACCELERATORS - 2) % ACCELERATORS + 1));
    let mut buf = vec![0; 300_000];
    loop {
        let envelope = host.recv_until(Match::any(), &mut buf, soon()).unwrap();
        if envelope.tag == END {
            break;
        }
        let mut piece = buf[..envelope.len].to_vec();
        for _ in 0..ACCELERATORS {
            // All send before any receives.
            let sending = next.start_send(RING, piece).unwrap();
            let envelope = node.recv_until(previous.tag(RING), &mut buf, soon()).unwrap();
            let completion = sending.wait_until(soon()).unwrap_or_else(|_| panic!("the ring stands still"));
            completion.result.unwrap();
            piece = buf[..envelope.len].to_vec();
        }
        piece.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(2));
        host.send_until(RESULT, &piece, soon()).unwrap();
    }
    node.leave().unwrap();
}

#[test]
fn a_host_and_its_accelerators_exchange_messages() {
    let _turn = Turn::take();
    let domain = Domain::new("host");
    let host = Node::builder(domain.name()).role(Role::Host).id(0).join().unwrap();
    let ways = [("inline", "auto"), ("poller", "auto"), ("adaptive", "park")];
    let start = |(index, (progress, wait)): (usize, (&str, &str))| {
        let start = Process::start("accelerator").tell("DOORBELL_DOMAIN", domain.name());
        let start = start.tell("DOORBELL_NODE", (index + 1).to_string()).tell("DOORBELL_ROLE", "accelerator");
        start.tell("DOORBELL_PROGRESS", progress).tell("DOORBELL_WAIT", wait).go()
    };
    let processes: Vec<_> = ways.into_iter().enumerate().map(start).collect();
    let members = host.wait_for(1 + ACCELERATORS as usize, soon()).unwrap();
    assert_eq!(members.iter().filter(|member| member.role == Role::Accelerator).count(), ACCELERATORS as usize);
    let pids: Vec<_> = members[1..].iter().map(|member| member.pid).collect();
    assert_eq!(pids, processes.iter().map(Process::pid).collect::<Vec<_>>());
    let peers: Vec<Peer> = (1..=ACCELERATORS).map(|id| host.peer(NodeId(id)).unwrap()).collect();
    let mut buf = vec![0; 300_000];
    for (round, len) in [0, 1, 40, 41, 4000, 70_000, 300_000].into_iter().enumerate() {
        for peer in &peers {
            let bytes = pattern::bytes(len, round as u64 + peer.id().0 as u64);
            peer.send_until(WORK, &bytes, soon()).unwrap();
        }
        for peer in &peers {
            let envelope = peer.recv_until(Match::any(), &mut buf, soon()).unwrap();
            assert_eq!((envelope.tag, envelope.len, envelope.sequence), (RESULT, len, round as u32));
            // Once round the ring is back where it began.
            let expected = pattern::bytes(len, round as u64 + peer.id().0 as u64);
            assert!(expected.iter().zip(&buf).all(|(sent, got)| sent.wrapping_mul(2) == *got));
        }
    }
    for peer in &peers {
        peer.send_until(END, b"", soon()).unwrap();
    }
    processes.into_iter().for_each(|process| process.end_well(PATIENCE));
    for _ in &peers {
        until("an accelerator leaves", || match host.event(soon()).unwrap() {
            Event::Left { .. } => Some(()),
            Event::Joined { .. } => None,
            other => panic!("{other}"),
        });
    }
    host.leave().unwrap();
    domain.assert_empty();
}

#[test]
fn a_program_joins_as_its_environment_says() {
    let _turn = Turn::take();
    let domain = Domain::new("environment");
    let good = || Process::start("joins by environment").tell("DOORBELL_DOMAIN", domain.name()).tell("EXPECT", "");
    good().end_soon();
    good().tell("DOORBELL_NODE", "3").tell("DOORBELL_ROLE", "io").tell("DOORBELL_WAIT", "yield").end_soon();
    for (variable, word) in [
        ("DOORBELL_NODE", "many"),
        ("DOORBELL_NODE", "-1"),
        ("DOORBELL_NODE", "1024"),
        ("DOORBELL_ROLE", "guest"),
        ("DOORBELL_PROGRESS", "Inline"),
        ("DOORBELL_WAIT", ""),
    ] {
        good().tell(variable, word).tell("EXPECT", variable).end_soon();
    }
    good().tell("DOORBELL_DOMAIN", "a.b").tell("EXPECT", "a.b").end_soon();
    domain.assert_empty();
}

pub fn joins_by_environment() {
    let expected = told("EXPECT");
    match Node::from_env() {
        Ok(node) => assert!(expected.is_empty(), "{node:?} joined in spite of {expected}"),
        Err(error) => assert!(!expected.is_empty() && error.to_string().contains(&expected), "{error}"),
    }
}

trait EndSoon {
    fn end_soon(self);
}

impl EndSoon for doorbell_tests::process::Start {
    #[track_caller]
    fn end_soon(self) {
        self.go().end_well(PATIENCE);
    }
}

// ---- forks

/// Forks, with what the C library does at a fork, or as the bare system call. Returns the child's number, or 0 in the child.
fn fork(how: &str) -> libc::pid_t {
    match how {
        // SAFETY: the child does nothing that another thread's locks could stop for long, and ends by _exit or a signal.
        "fork" => unsafe { libc::fork() },
        // SAFETY: as above; without a stack of its own the child goes on like a forked one.
        "clone" => unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t },
        other => panic!("no way to fork is called {other}"),
    }
}

const GO_ON: u64 = 7;

/// Forks. The child tries every call, each of which must fail because it is a fork; the parent goes on undisturbed.
pub fn forks_and_goes_on() {
    let node = Node::from_env().unwrap();
    let peer = node.peer(NodeId(0)).unwrap();
    let pending = node.start_recv(Match::any().tag(GO_ON), vec![0; 8]).unwrap();
    let mut sending = Some(peer.start_send(1, vec![1; 8 << 20]).unwrap());
    let key = Lock::open(&node, "key", Resource::Unnamed).unwrap();
    let guard = key.lock().unwrap();
    let device = Device::builder(&node, "net").attach().unwrap();
    let to_device = DeviceSender::open(&node, "net").unwrap();
    let mut thread = device.thread(1).unwrap();
    to_device.send(1, 0, b"one").unwrap();
    thread.receive_until(&mut [0; 8], soon()).unwrap();
    let child = fork(&told("HOW"));
    if child == 0 {
        let wrong = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut wrong = what_does_not_say_forked(&node, &peer);
            wrong.extend(which_call_on_a_key_does_not_say_forked(&node, &key));
            wrong.extend(which_call_on_a_device_does_not_say_forked(&device, &mut thread, &to_device));
            // Unless the poller had sent all of it before the fork.
            let sending = sending.take().filter(|sending| !sending.test()).map(|sending| sending.wait().result.map(drop));
            wrong
                .extend(sending.filter(|result| !matches!(result, Err(Error::Forked))).map(|result| format!("wait: {result:?}")));
            // The child's copies go without touching what belongs to the parent.
            drop((node, peer, pending, guard, to_device, thread, device));
            wrong
        }));
        let code = match wrong {
            Ok(wrong) if wrong.is_empty() => 0,
            Ok(wrong) => {
                eprintln!("in a forked child: {wrong:#?}");
                1
            }
            Err(_) => 2,
        };
        // SAFETY: ends the child without running the test harness's exit handlers.
        unsafe { libc::_exit(code) };
    }
    assert!(child > 0, "{}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: waits for our own child; the status is a local.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child failed: {status:#x}");
    assert_eq!(key.get().unwrap(), Value::Owner(guard.owner()), "the child unlocked it");
    guard.unlock().unwrap();
    to_device.send(1, 0, b"two").unwrap();
    thread.receive_until(&mut [0; 8], soon()).unwrap();
    assert_eq!(device.counts().received, 2);
    let sending = sending.take().map(|sending| sending.wait_until(soon()));
    assert!(matches!(sending, Some(Ok(completion)) if completion.result.is_ok()));
    assert!(matches!(pending.wait_until(soon()), Ok(completion) if completion.result.is_ok()));
    node.leave().unwrap();
}

fn which_call_on_a_device_does_not_say_forked(device: &Device, thread: &mut DeviceThread, sender: &DeviceSender) -> Vec<String> {
    let mut buf = [0; 8];
    let results: [(&str, doorbell::Result<()>); 7] = [
        ("thread", device.thread(2).map(drop)),
        ("receive", thread.receive(&mut buf).map(drop)),
        ("receive_by", thread.receive_until(&mut buf, briefly()).map(drop)),
        ("try_receive", thread.try_receive(&mut buf).map(drop)),
        ("send to a device", sender.send(1, 0, b"x")),
        ("try_send to a device", sender.try_send(1, 0, b"x").map(drop)),
        ("flush", sender.flush_until(soon())),
    ];
    let counted = device.counts() != Default::default();
    let wrong = results.into_iter().filter(|(_, result)| !matches!(result, Err(Error::Forked)));
    wrong.map(|(call, result)| format!("{call}: {result:?}")).chain(counted.then(|| "counts".to_owned())).collect()
}

fn what_does_not_say_forked(node: &Node, peer: &Peer) -> Vec<String> {
    let mut buf = [0; 8];
    let (id, pieces) = (NodeId(0), [IoSlice::new(b"piece")]);
    let results: [(&str, doorbell::Result<()>); 27] = [
        ("send", node.send(id, 1, b"x")),
        ("long send", node.send(id, 1, &[0; 9000])),
        ("try_send", node.try_send(id, 1, b"x")),
        ("send_by", node.send_until(id, 1, b"x", briefly())),
        ("send_vectored", node.send_vectored(id, 1, &pieces)),
        ("start_send", node.start_send(id, 1, [0; 8]).map(drop)),
        ("recv", node.recv(Match::any(), &mut buf).map(drop)),
        ("try_recv", node.try_recv(Match::any(), &mut buf).map(drop)),
        ("recv_by", node.recv_until(Match::any(), &mut buf, briefly()).map(drop)),
        ("recv_with", node.recv_with(Match::any(), |_, _| ())),
        ("recv_with_by", node.recv_with_until(Match::any(), briefly(), |_, _| ())),
        ("start_recv", node.start_recv(Match::any(), [0; 8]).map(drop)),
        ("probe", node.probe(Match::any()).map(drop)),
        ("members", node.members().map(drop)),
        ("wait_for", node.wait_for(1, briefly()).map(drop)),
        ("try_event", node.try_event().map(drop)),
        ("event", node.event(briefly()).map(drop)),
        ("peer", node.peer(id).map(drop)),
        ("progress", node.progress().map(drop)),
        ("stats", node.stats().map(drop)),
        ("Peer::send", peer.send(1, b"x")),
        ("Peer::try_send", peer.try_send(1, b"x")),
        ("Peer::send_by", peer.send_until(1, b"x", briefly())),
        ("Peer::send_vectored", peer.send_vectored(1, &pieces)),
        ("Peer::start_send", peer.start_send(1, [0; 8]).map(drop)),
        ("Peer::recv", peer.recv(Match::any(), &mut buf).map(drop)),
        ("Peer::try_recv", peer.try_recv(Match::any(), &mut buf).map(drop)),
    ];
    let wrong = results.into_iter().filter(|(_, result)| !matches!(result, Err(Error::Forked)));
    wrong.map(|(call, result)| format!("{call}: {result:?}")).collect()
}

fn which_call_on_a_key_does_not_say_forked(node: &Node, key: &Lock) -> Vec<String> {
    let results: [(&str, doorbell::Result<()>); 13] = [
        ("init_key", Lock::init(node, "new", Resource::Unnamed).map(drop)),
        ("find_key", Lock::find(node, "key").map(drop)),
        ("key", Lock::open(node, "key", Resource::Unnamed).map(drop)),
        ("get", key.get().map(drop)),
        ("set", key.set(None, None)),
        ("facts", key.facts().map(drop)),
        ("try_lock", key.try_lock().map(drop)),
        ("lock", key.lock().map(drop)),
        ("lock_every", key.lock_every(Duration::from_millis(1), briefly()).map(drop)),
        ("unlock", key.unlock()),
        ("lock_all", key.lock_all(briefly())),
        ("unlock_all", key.unlock_all()),
        ("destroy", key.clone().destroy(briefly())),
    ];
    let wrong = results.into_iter().filter(|(_, result)| !matches!(result, Err(Error::Forked)));
    wrong.map(|(call, result)| format!("{call}: {result:?}")).collect()
}

#[test]
fn a_forked_child_is_told_so_and_harms_nobody() {
    let _turn = Turn::take();
    for how in ["fork", "clone"] {
        for progress in ["inline", "adaptive"] {
            let domain = Domain::new("forked");
            let node = Node::builder(domain.name()).id(0).join().unwrap();
            let start = Process::start("forks and goes on").tell("DOORBELL_DOMAIN", domain.name()).tell("HOW", how);
            let process = start.tell("DOORBELL_PROGRESS", progress).go();
            let mut buf = vec![0; 8 << 20];
            // Nothing of what the child tried arrives: only what the parent sent before and after.
            let envelope = node.recv_until(Match::any(), &mut buf, soon()).unwrap();
            assert_eq!((envelope.tag, envelope.len), (1, 8 << 20));
            assert!(buf.iter().all(|byte| *byte == 1));
            node.send_until(envelope.source, GO_ON, b"go on", soon()).unwrap();
            process.end_well(PATIENCE);
            let error = node.recv_until(Match::from(envelope.source), &mut buf, soon()).unwrap_err();
            assert!(matches!(error, Error::PeerLeft { .. }), "{how}: {error}");
        }
    }
}

/// Forks a child that sleeps, and then waits to be killed.
pub fn forks_a_sleeper() {
    let node = Node::from_env().unwrap();
    let words = Words::inherited();
    let child = fork(&told("HOW"));
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: an alarm whose handler nobody set ends the child even if the test can't.
        unsafe {
            libc::alarm(60);
            loop {
                libc::pause();
            }
        }
    }
    node.send_until(NodeId(0), 1, b"ready", soon()).unwrap();
    words[0].store(child as u64, Ordering::SeqCst);
    loop {
        std::thread::park();
    }
}

/// Kills an orphaned process when it goes out of scope.
struct Orphan(libc::pid_t);

impl Orphan {
    fn is_there(&self) -> bool {
        // SAFETY: signal 0 only asks.
        unsafe { libc::kill(self.0, 0) == 0 }
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        // SAFETY: a signal to a process that a child of ours made, and that waits for nothing else.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

#[test]
fn the_death_of_a_parent_is_noticed_though_its_child_sleeps_on() {
    let _turn = Turn::take();
    for how in ["fork", "clone"] {
        let domain = Domain::new("sleeper");
        let words = Words::new(1);
        let node = Node::builder(domain.name()).id(0).join().unwrap();
        let start = || Process::start("forks a sleeper").tell("DOORBELL_DOMAIN", domain.name()).tell("DOORBELL_NODE", "1");
        let parent = start().tell("HOW", how).words(&words).go();
        let envelope = node.recv_until(Match::any(), &mut [0; 8], soon()).unwrap();
        let child = until("the child's number", || Some(words[0].load(Ordering::SeqCst)).filter(|pid| *pid != 0));
        let orphan = Orphan(libc::pid_t::try_from(child).unwrap());
        let pending = node.start_recv(Match::from(envelope.source), [0; 8]).unwrap();
        parent.kill();
        assert!(parent.ended_by(soon()));
        let ended = now();
        let event = until("the news", || match node.event(soon()).unwrap() {
            Event::Joined { .. } => None,
            event => Some(event),
        });
        let told = Duration::from_nanos(now() - ended);
        assert_eq!(event, Event::Died { node: envelope.source, incarnation: envelope.incarnation });
        println!("{how}: told {told:?} after the death of a parent");
        assert!(told < Duration::from_secs(1), "{how}: told {told:?} after the death");
        let Ok(completion) = pending.wait_until(soon()) else { panic!("{how}: a receive from the dead waits on") };
        assert!(matches!(completion.result, Err(Error::PeerDied { node, .. }) if node == envelope.source));
        assert!(orphan.is_there(), "the child does not sleep any more");
        if how == "fork" {
            // A bare clone keeps its parent's lock, so there the id is free only when it ends. A forked child lets go of the lock when
            // it runs for the first time, which may be after the death of its parent.
            let heir = until("its id is free", || Node::builder(domain.name()).id(1).join().ok());
            heir.send_until(node.id(), 2, b"heir", soon()).unwrap();
            assert_eq!(node.recv_until(Match::from(heir.id()), &mut [0; 8], soon()).unwrap().incarnation, heir.incarnation());
        }
        drop(orphan);
        node.leave().unwrap();
        eventually("all is cleaned", || {
            clean(domain.space(), Some(domain.name()), true).unwrap();
            domain.files().is_empty()
        });
    }
}

// ---- a full file system

const TMPFS_BYTES: usize = 8 << 20;

/// In a mount namespace of its own, where `/dev/shm` is small.
pub fn has_little_room() {
    let directory = Path::new("/dev/shm");
    let join = || Node::builder("cramped").max_nodes(16).join();
    let names = || -> Vec<_> {
        let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "ballast").collect()
    };
    let ballast = File::create(directory.join("ballast")).unwrap();
    // Leaves this many bytes, in pages.
    let leave = |bytes: usize| {
        ballast.set_len(0).unwrap();
        let found = nix::sys::statvfs::statvfs(directory).unwrap();
        let free = (found.blocks_available() * found.fragment_size()) as usize;
        nix::fcntl::posix_fallocate(&ballast, 0, (free - bytes) as i64).unwrap();
    };
    let is_full = |error: &Error| matches!(error, Error::Shm(shm) if matches!(**shm, ShmError::NoSpace { .. }));
    let first = join().unwrap();
    let segment = names().into_iter().find(|name| name.ends_with(".cramped")).unwrap();
    let domain = directory.join(segment).metadata().unwrap().len() as usize;
    drop(first);
    // Too little for the domain segment, for the inbox, for the board.
    for room in [4096, domain - 4096, domain + INBOX_BYTES / 2, domain + INBOX_BYTES + board_bytes(32) / 2] {
        leave(room);
        let error = join().unwrap_err();
        assert!(is_full(&error), "with {room} bytes free: {error:?}");
        let text = error.to_string();
        for word in ["/dev/shm", "bytes", "free", "cramped", "doorbell clean"] {
            assert!(text.contains(word), "'{word}' is not in: {text}");
        }
        assert!(names().is_empty(), "with {room} bytes free, a join left {:?}", names());
        println!("{text}");
    }
    ballast.set_len(0).unwrap();
    // With room it works, until there is none for another; and that one disturbs nobody.
    let first = join().unwrap();
    let second = join().unwrap();
    leave(board_bytes(32) / 2);
    let before = names();
    assert!(is_full(&join().unwrap_err()));
    assert_eq!(names(), before);
    // Nor for the lanes of a pair: the send says so, and works once there is.
    leave(FIRST_BYTES / 2);
    let error = first.send_until(second.id(), 1, &[1; 8], soon()).unwrap_err();
    assert!(is_full(&error), "{error:?}");
    assert_eq!(names(), before);
    // Both directions, and no room for either to grow: everything goes through the small rings.
    leave(2 * FIRST_BYTES);
    for len in [8, 300, 2000, 4096, 5000, 16 << 10, 50_000, 300_000] {
        for (from, to) in [(&first, &second), (&second, &first)] {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 256) as u8).collect();
            let receive = to.start_recv(Match::any(), vec![0; len]).unwrap();
            from.send_until(to.id(), 1, &bytes, soon()).unwrap_or_else(|error| panic!("{len} bytes: {error}"));
            let done = receive.wait_until(soon()).unwrap_or_else(|_| panic!("{len} bytes do not arrive"));
            assert_eq!(done.result.unwrap().len, len);
            assert!(done.buffer.unwrap() == bytes, "{len} bytes");
        }
    }
    assert!(names().len() == before.len() + 2 && length_of_lanes(directory) == [FIRST_BYTES; 2]);
    // With room they grow. An attempt that failed a moment ago is not repeated at once.
    ballast.set_len(0).unwrap();
    eventually("a lane grows", || {
        let sends: Vec<_> = (0..100).map(|_| first.start_send(second.id(), 2, vec![2; 1000]).unwrap()).collect();
        (0..100).for_each(|_| _ = second.take_until::<[u8]>(Match::any().tag(2), soon()).unwrap());
        sends.into_iter().for_each(|send| send.wait().result.unwrap());
        length_of_lanes(directory).into_iter().any(|len| len > FIRST_BYTES)
    });
    std::fs::remove_file(directory.join("ballast")).unwrap();
    drop((first, second));
    assert!(names().is_empty());
}

fn length_of_lanes(directory: &Path) -> Vec<usize> {
    let files = std::fs::read_dir(directory).unwrap().flatten();
    let files = files.filter(|file| file.file_name().to_string_lossy().contains("-from-"));
    files.map(|file| file.metadata().unwrap().len() as usize).collect()
}

#[test]
fn a_full_file_system_is_a_clear_error() {
    let _turn = Turn::take();
    let options = format!("size={TMPFS_BYTES},mode=1777");
    let start = Process::start("has little room");
    let mount = move || {
        use nix::mount::{MsFlags, mount};
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
        mount(Some("doorbell-tests"), "/dev/shm", Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))?;
        Ok(())
    };
    // SAFETY: system calls; the short strings that nix copies for them live on its stack.
    match unsafe { start.before(mount) }.try_go() {
        Ok(process) => process.end_well(PATIENCE),
        Err(error) => println!("skipped: this process may not mount a small /dev/shm: {error}"),
    }
}

// ---- a region that was withdrawn under a writer

const OLD_MAPPING: u64 = 0xfeed_0bad_cafe_0bad;

/// Opens the first region of node 0, and writes all of it when it has long been withdrawn.
pub fn writes_where_nothing_is_offered() {
    let options = JoinOptions { id: Some(NodeId(1)), ..JoinOptions::new(told("DOMAIN"), Space::posix()) };
    let node = Membership::join(options).unwrap();
    let words = Words::inherited();
    let incarnation = node.member(NodeId(0)).unwrap().incarnation;
    let region = node.open_region(NodeId(0), incarnation, 0, true).unwrap();
    words[0].store(1, Ordering::Release);
    eventually("the region is withdrawn", || words[0].load(Ordering::Acquire) == 2);
    assert!(!region.is_live());
    for at in 0..region.len() / 8 {
        // SAFETY: a word of the region, which is mapped still, though nobody else has it any more.
        unsafe { region.ptr().cast::<u64>().add(at).write_volatile(OLD_MAPPING) };
    }
    words[0].store(3, Ordering::Release);
    eventually("the other has looked", || words[0].load(Ordering::Acquire) == 4);
}

#[test]
fn a_late_write_into_a_withdrawn_region_hurts_nobody() {
    let _turn = Turn::take();
    let domain = Domain::new("late");
    let node = Node::builder(domain.name()).id(0).max_nodes(32).join().unwrap();
    let words = Words::new(1);
    let region = node.region::<u64>(8192).unwrap();
    let process = Process::start("writes where nothing is offered").tell("DOMAIN", domain.name()).words(&words).go();
    eventually("it has the region", || words[0].load(Ordering::Acquire) == 1);
    drop(region);
    // As long as the one that was withdrawn, and so as likely as can be to get its memory.
    let others: Vec<_> = (0..4).map(|_| node.region::<u64>(8192).unwrap()).collect();
    let private = vec![0_u64; 8192];
    words[0].store(2, Ordering::Release);
    eventually("it has written", || words[0].load(Ordering::Acquire) == 3);
    let mut all = vec![1; 8192];
    for region in &others {
        region.read(0, &mut all).unwrap();
        assert!(all.iter().all(|word| *word == 0));
    }
    assert!(std::hint::black_box(&private).iter().all(|word| *word == 0));
    for name in domain.files() {
        let bytes = std::fs::read(domain.segment().with_file_name(&name)).unwrap();
        assert!(!bytes.chunks_exact(8).any(|word| word == OLD_MAPPING.to_ne_bytes()), "the late write shows up in {name}");
    }
    words[0].store(4, Ordering::Release);
    process.end_well(PATIENCE);
    drop(others);
    node.leave().unwrap();
    domain.assert_empty();
}

// ---- another layout

/// Where the layout hash is in the header of every segment.
const HASH_OFFSET: u64 = 16;

/// Turns the layout hash of a segment into another, as if another build had made it, until it goes out of scope.
struct OtherBuild {
    file: File,
    hash: [u8; 8],
}

impl OtherBuild {
    fn made(path: &Path) -> Self {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut hash = [0; 8];
        file.read_exact_at(&mut hash, HASH_OFFSET).unwrap();
        assert_eq!(u64::from_le_bytes(hash), doorbell_shm::layout::LAYOUT_HASH);
        file.write_all_at(&hash.map(|byte| !byte), HASH_OFFSET).unwrap();
        Self { file, hash }
    }

    fn hash(&self) -> u64 {
        !u64::from_le_bytes(self.hash)
    }
}

impl Drop for OtherBuild {
    fn drop(&mut self) {
        self.file.write_all_at(&self.hash, HASH_OFFSET).unwrap();
    }
}

#[test]
fn two_layouts_refuse_each_other_by_name() {
    let domain = Domain::new("layout");
    let [a, b] = [0, 1].map(|id: u16| Node::builder(domain.name()).id(id).join().unwrap());
    let exchange = || {
        a.send_until(b.id(), 1, b"on", soon()).unwrap();
        assert_eq!(b.recv_until(Match::from(a.id()), &mut [0; 8], soon()).unwrap().len, 2);
    };
    exchange();
    {
        let other = OtherBuild::made(&domain.segment());
        let error = Node::builder(domain.name()).join().unwrap_err();
        assert!(matches!(&error, Error::Shm(shm) if matches!(**shm, ShmError::OtherLayout { .. })), "{error:?}");
        let (theirs, ours) = (format!("{:016x}", other.hash()), format!("{:016x}", doorbell_shm::layout::LAYOUT_HASH));
        let text = error.to_string();
        for word in [domain.name(), theirs.as_str(), ours.as_str(), "2 of its nodes live"] {
            assert!(text.contains(word), "'{word}' is not in: {text}");
        }
        // From outside it is a domain of another layout, which `clean` must not remove; its members go on.
        let status = list_domains(&Space::posix()).unwrap().into_iter().find(|status| status.name == domain.name()).unwrap();
        assert!(matches!(status.layout, DomainLayout::Other { hash, .. } if hash == other.hash()), "{:?}", status.layout);
        let report = clean(domain.space(), Some(domain.name()), true).unwrap();
        assert!(report.removed.is_empty() && report.kept.len() == 1, "{report:?}");
        exchange();
    }
    // One node's inbox: a newcomer does not take it for a lane.
    {
        let inbox = domain.segment().with_file_name(format!("{}.1.inbox", domain.prefix()));
        let _other = OtherBuild::made(&inbox);
        let c = Node::builder(domain.name()).id(2).join().unwrap();
        let error = c.peer(b.id()).map(drop).unwrap_err();
        println!("a peer of another layout: {error}");
        assert_eq!(error.node().unwrap_or(b.id()), b.id());
        c.send_until(a.id(), 1, b"others", soon()).unwrap();
        assert_eq!(a.recv_until(Match::from(c.id()), &mut [0; 8], soon()).unwrap().len, 6);
        exchange();
    }
    let c = Node::builder(domain.name()).id(2).join().unwrap();
    c.send_until(b.id(), 1, b"again", soon()).unwrap();
    assert_eq!(b.recv_until(Match::from(c.id()), &mut [0; 8], Instant::now() + PATIENCE).unwrap().len, 5);
}
