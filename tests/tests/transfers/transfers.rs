//! The method by which large messages move, between real processes: which node executes which step, which share goes which way, and
//! that nothing lands in memory that was given back.

use doorbell::mode::{ModeRequest, Protocol};
use doorbell::transfer::thread_number;
use doorbell::transfer::{Descriptor, Side};
use doorbell::{Error, Match, Metric, Node, NodeId, Priority, TransferReport};
use doorbell_tests::Turn;
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, briefly, eventually, soon, take_back, until};
use doorbell_tests::pattern;
use doorbell_tests::process::{Process, told, told_as};
use doorbell_tests::words::Words;
use nix::sys::resource::{UsageWho, getrusage};
use rustix::process::Signal;
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

const MIB: usize = 1 << 20;
const LONG: usize = 64 * MIB;

/// The shared words.
mod at {
    /// Bytes sent by memory FIFO so far.
    pub const FIFO: usize = 0;
    /// The other may go on.
    pub const GO: usize = 1;
    /// Threads of an application, from here on.
    pub const THREADS: usize = 2;
    /// The origin's report: fifo, put, pulled, zeroes, then the threads that executed RTS, memory FIFO and direct put.
    pub const REPORT: usize = 4;
    pub const COUNT: usize = 16;
}

fn thread_of(report: &TransferReport, descriptor: Descriptor) -> u64 {
    report.of(descriptor).map_or(0, |executed| executed.thread as u64)
}

/// The one report of a side, when its transfer is over.
#[track_caller]
fn report(node: &Node, side: Side, tag: u64) -> TransferReport {
    until("a transfer is over", || node.transfers().unwrap().into_iter().find(|report| report.side == side && report.tag == tag))
}

fn tell(words: &Words, report: &TransferReport) {
    let threads = [Descriptor::Rts, Descriptor::MemoryFifo, Descriptor::DirectPut].map(|what| thread_of(report, what));
    let moved = [report.fifo.bytes, report.put.bytes, report.pulled.bytes, u64::from(report.zeroes)];
    for (index, value) in moved.into_iter().chain(threads).enumerate() {
        words[at::REPORT + index].store(value, SeqCst);
    }
    words[at::GO].store(2, SeqCst);
}

/// The report of the origin, once it has one.
#[track_caller]
fn told_by_origin(words: &Words) -> [u64; 7] {
    eventually("the origin's report", || words[at::GO].load(SeqCst) == 2);
    std::array::from_fn(|index| words[at::REPORT + index].load(SeqCst))
}

fn start(role: &str, domain: &Domain, progress: &str, words: &Words) -> Process {
    let start = Process::start(role).tell("DOORBELL_DOMAIN", domain.name()).tell("DOORBELL_NODE", "1").words(words);
    start.tell("DOORBELL_PROGRESS", progress).tell("HIGH", if progress == "poller" { "1" } else { "" }).go()
}

/// A node whose messages move from both ends, even where that is not the faster way.
fn join() -> Node {
    let builder = doorbell::NodeBuilder::from_env().unwrap().copy(doorbell::CopySide::Both);
    builder.fifo_from_high(!told("HIGH").is_empty()).join().unwrap()
}

/// Sends one long message, blocking.
pub fn waits_for_its_receive() {
    let (node, words) = (join(), Words::inherited());
    let bytes = pattern::bytes(LONG, 1);
    node.send(NodeId(0), 1, &bytes).unwrap();
    tell(&words, &report(&node, Side::Origin, 1));
    node.leave().unwrap();
}

/// How often this process had to make room for another on its processor.
fn switches() -> i64 {
    getrusage(UsageWho::RUSAGE_SELF).unwrap().involuntary_context_switches()
}

#[test]
fn both_ways_carry_their_share_and_both_ends_agree() {
    let _turn = Turn::take();
    for progress in ["inline", "adaptive"] {
        let (mut best, mut undisturbed, tenth) = (0, 0, LONG as u64 / 10);
        // The memory FIFO gets nowhere while one of the two processes is kept from running, so it has several tries.
        for late in [[0; 8].as_slice(), &[LONG / 2]].concat() {
            if late == 0 && best >= tenth {
                continue;
            }
            let switches = switches();
            let domain = Domain::new("shares");
            let words = Words::new(at::COUNT);
            let node = Node::builder(domain.name()).id(0).pool_bytes(2 * LONG).join().unwrap();
            let mut buf = vec![0; LONG];
            let process = start("waits for its receive", &domain, progress, &words);
            if late > 0 {
                // Packets that come before the receive is posted go to temporary storage.
                let mut packets = 0;
                eventually("half of it came", || {
                    packets += node.progress().unwrap();
                    packets >= late / (16 << 10)
                });
            }
            let envelope = node.recv(Match::any(), &mut buf).unwrap();
            assert_eq!(envelope.len, LONG);
            pattern::check(&buf, 1);
            let [fifo, put, pulled, zeroes, ..] = told_by_origin(&words);
            let here = report(&node, Side::Target, 1);
            assert_eq!((here.fifo.bytes, here.put.bytes, here.pulled.bytes), (fifo, put, pulled));
            assert_eq!((fifo + put + pulled, zeroes, here.zeroes), (LONG as u64, 1, 1));
            println!("{progress}, {late}: fifo {fifo}, put {put}, pulled {pulled}");
            if late == 0 {
                undisturbed += usize::from(self::switches() == switches);
                assert!(fifo > 0 && put + pulled >= tenth, "{progress}: fifo {fifo}, put {put}, pulled {pulled}");
            }
            if late > 0 {
                assert!(best >= tenth || undisturbed == 0, "{progress}: the memory FIFO carried {best} bytes at best");
                assert!(fifo > best, "{progress}: a late receive left the memory FIFO no more: {fifo}, {best} before");
            }
            best = best.max(fifo);
            process.end_well(PATIENCE);
            node.leave().unwrap();
        }
    }
}

/// Begins to send, and then sleeps until the other end has everything.
pub fn sends_and_sleeps() {
    let (node, words) = (join(), Words::inherited());
    let len = told_as("LEN");
    words[at::THREADS].store(thread_number() as u64, SeqCst);
    let send = node.start_send(NodeId(0), 1, pattern::bytes(len, 1)).unwrap();
    // No call of this node from here on.
    eventually("the other end has it", || {
        std::thread::park_timeout(std::time::Duration::from_millis(1));
        words[at::GO].load(SeqCst) == 1
    });
    assert!(matches!(send.wait_until(soon()).map(|completion| completion.result), Ok(Ok(()))));
    tell(&words, &report(&node, Side::Origin, 1));
    node.leave().unwrap();
}

#[test]
fn the_engine_moves_what_its_application_sleeps_over() {
    let _turn = Turn::take();
    for progress in ["poller", "adaptive"] {
        let domain = Domain::new("asleep");
        let words = Words::new(at::COUNT);
        let node = Node::builder(domain.name()).id(0).copy(doorbell::CopySide::Origin).join().unwrap();
        let mut buf = vec![0; LONG];
        let sleeper = Process::start("sends and sleeps").tell("DOORBELL_DOMAIN", domain.name()).tell("DOORBELL_NODE", "1");
        let sleeper = sleeper.tell("DOORBELL_PROGRESS", progress).tell("HIGH", "1").tell("LEN", LONG.to_string());
        let process = sleeper.words(&words).go();
        node.recv(Match::any(), &mut buf).unwrap();
        words[at::GO].store(1, SeqCst);
        pattern::check(&buf, 1);
        let [fifo, put, pulled, zeroes, _, by_fifo, by_put] = told_by_origin(&words);
        let here = report(&node, Side::Target, 1);
        let steps: Vec<_> = here.executed.iter().map(|executed| executed.descriptor).collect();
        assert_eq!(steps, [Descriptor::RemoteGet], "the target asks, and copies nothing");
        assert_eq!((here.fifo.bytes, here.put.bytes, here.pulled.bytes, zeroes), (fifo, put, pulled, 1));
        assert!(here.from_high && fifo > 0 && put > 0 && pulled == 0);
        let application = words[at::THREADS].load(SeqCst);
        assert!(by_put != 0 && by_put != application, "{progress}: put by thread {by_put} of {application}");
        assert!(by_fifo != 0 && by_fifo != application, "{progress}: memory FIFO by thread {by_fifo} of {application}");
        process.end_well(PATIENCE);
        node.leave().unwrap();
    }
}

const BULK: usize = 256 * MIB;
const HASTE: u64 = 2;

pub fn sends_in_bulk_and_in_haste() {
    let (node, words) = (join(), Words::inherited());
    let urgent = node.peer_with_priority(NodeId(0), Priority::High).unwrap();
    let bulk = node.start_send(NodeId(0), 1, vec![7; BULK]).unwrap();
    let before = node.metrics().unwrap()[Metric::BytesFifo];
    let mut sent = 0_u64;
    while !bulk.test() {
        if node.metrics().unwrap()[Metric::BytesFifo] > before {
            sent += 1;
            urgent.send_until(HASTE, &sent.to_le_bytes(), soon()).unwrap();
        }
    }
    words[at::FIFO].store(sent, SeqCst);
    urgent.send_until(HASTE + 1, b"", soon()).unwrap();
    node.leave().unwrap();
}

#[test]
fn urgent_messages_overtake_a_bulk_transfer_which_ends_all_the_same() {
    let _turn = Turn::take();
    let domain = Domain::new("haste");
    let words = Words::new(at::COUNT);
    let node = Node::builder(domain.name()).id(0).join().unwrap();
    let bulk = node.start_recv(Match::any().tag(1), vec![0; BULK]).unwrap();
    let process = start("sends in bulk and in haste", &domain, "inline", &words);
    let mut overtook = 0_u64;
    loop {
        let envelope = node.recv_until(Match::any(), &mut [0; 8], soon()).unwrap();
        if envelope.tag != HASTE {
            break;
        }
        overtook += u64::from(!bulk.test());
    }
    assert!(overtook > 0, "none of {} urgent messages came before the end", words[at::FIFO].load(SeqCst));
    let completion = bulk.wait_until(soon()).unwrap_or_else(|_| panic!("the bulk transfer starves"));
    assert!(completion.result.is_ok() && completion.buffer.unwrap().iter().all(|byte| *byte == 7));
    process.end_well(PATIENCE);
    node.leave().unwrap();
}

/// A buffer that says when it is dropped.
struct Lent(&'static mut [u8], Arc<AtomicBool>);

impl AsMut<[u8]> for Lent {
    fn as_mut(&mut self) -> &mut [u8] {
        self.0
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.1.store(true, SeqCst);
    }
}

/// The receive ends while its origin is stopped. A buffer that came back is not written when the origin goes on.
#[test]
fn nothing_lands_in_a_buffer_that_came_back_from_a_stopped_origin() {
    let _turn = Turn::take();
    for registered in [false, true] {
        for how in ["cancel", "deadline", "drop"] {
            let domain = Domain::new("stopped");
            let words = Words::new(at::COUNT);
            let node = Node::builder(domain.name()).id(0).copy(doorbell::CopySide::Origin).pool_bytes(2 * LONG).join().unwrap();
            let region = node.region::<u8>(LONG).unwrap();
            let start = Process::start("sends and sleeps").tell("DOORBELL_DOMAIN", domain.name()).tell("DOORBELL_NODE", "1");
            let start = start.tell("DOORBELL_PROGRESS", "poller").tell("HIGH", "").tell("LEN", LONG.to_string());
            let process = start.words(&words).go();
            let mut private = vec![0; LONG];
            // SAFETY: nobody has a key of this region, and `private` or this is used, one at a time.
            let buf = if registered { unsafe { region.as_mut_slice() } } else { &mut private[..] };
            let (ptr, len) = (buf.as_mut_ptr() as usize, buf.len());
            // SAFETY: `buf` outlives the request, whose end is awaited below in any case.
            let lent = unsafe { std::slice::from_raw_parts_mut(ptr as *mut u8, len) };
            let back = Arc::new(AtomicBool::new(false));
            let came = |node: &Node| node.metrics().unwrap()[Metric::RemoteGets] > 0;
            if how == "deadline" {
                eventually("it is being sent", || {
                    node.progress().unwrap();
                    node.metrics().unwrap()[Metric::PooledBytes] > 0
                });
                process.signal(Signal::STOP);
                let error = node.recv_until(Match::any(), lent, briefly()).unwrap_err();
                assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
            } else {
                let receive = node.start_recv(Match::any(), Lent(lent, back.clone())).unwrap();
                eventually("it was asked for", || {
                    node.progress().unwrap();
                    came(&node)
                });
                process.signal(Signal::STOP);
                assert!(!receive.test(), "64 MiB went through a lane at once");
                if how == "drop" {
                    drop(receive)
                } else if let Err(done) = take_back(receive) {
                    let is_kept = matches!(done.result, Err(Error::BufferKept { node: NodeId(1) })) && done.buffer.is_none();
                    assert!(is_kept, "{:?}", done.result);
                }
            }
            // The origin may have been stopped in the middle of a chunk. Then the engine keeps the buffer.
            let is_back = how == "deadline" || back.load(SeqCst);
            if is_back {
                buf.fill(0xa5);
            }
            process.signal(Signal::CONT);
            // The message is not lost: the next receive has it whole.
            let mut next = vec![0; LONG];
            assert_eq!(node.recv_until(Match::any(), &mut next, soon()).unwrap().len, LONG);
            pattern::check(&next, 1);
            words[at::GO].store(1, SeqCst);
            process.end_well(PATIENCE);
            let is_whole = !is_back || buf.iter().all(|byte| *byte == 0xa5);
            assert!(is_whole, "{how}, registered {registered}: written after it came back");
            eventually("the engine lets go of it", || how == "deadline" || back.load(SeqCst));
            node.leave().unwrap();
        }
    }
}

#[test]
fn without_a_reach_into_private_memory_everything_arrives() {
    let _turn = Turn::take();
    let domain = Domain::new("lanes");
    let words = Words::new(at::COUNT);
    let node = Node::builder(domain.name()).id(0).join().unwrap();
    let start = Process::start("sends and sleeps").tell("DOORBELL_DOMAIN", domain.name()).tell("DOORBELL_NODE", "1");
    let start = start.tell("DOORBELL_CMA", "off").tell("DOORBELL_PROGRESS", "adaptive").tell("HIGH", "");
    let process = start.tell("LEN", (5 * MIB + 1).to_string()).words(&words).go();
    let mut buf = vec![0; 5 * MIB + 1];
    node.recv_until(Match::any(), &mut buf, soon()).unwrap();
    pattern::check(&buf, 1);
    assert!(node.transfers().unwrap().is_empty(), "an origin that reaches nothing moved it from both ends");
    process.kill();
    assert!(process.ended_by(soon()));
    drop(process);
    node.leave().unwrap();
}

const SECRET: usize = 5 * MIB;

/// Memory of which this part can be read by this process alone; `None` where the system has no such memory.
fn secret_memory(part: std::ops::Range<usize>) -> Option<&'static mut [u8]> {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous};
    use std::num::NonZeroUsize;
    let nonzero = |len| NonZeroUsize::new(len).unwrap();
    let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: new memory, which nobody else knows of.
    let whole = unsafe { mmap_anonymous(None, nonzero(SECRET), rights, MapFlags::MAP_PRIVATE) }.unwrap();
    // SAFETY: no arguments but flags.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: new, and nobody else's.
    let fd = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    fd.set_len(part.len() as u64).ok()?;
    let at = nonzero(whole.addr().get() + part.start);
    // SAFETY: in the midst of the memory above, of which nobody has a reference yet.
    unsafe { mmap(Some(at), nonzero(part.len()), rights, MapFlags::MAP_SHARED | MapFlags::MAP_FIXED, &fd, 0) }.ok()?;
    // SAFETY: mapped for good.
    Some(unsafe { std::slice::from_raw_parts_mut(whole.as_ptr().cast(), SECRET) })
}

pub fn sends_what_nobody_else_may_read() {
    let (node, words) = (join(), Words::inherited());
    let parts = [(1, 0..SECRET), (2, SECRET - 2 * MIB / 8..SECRET - MIB / 8)];
    let memory = parts.map(|(tag, part)| secret_memory(part).map(|memory| (tag, memory)));
    words[at::GO].store(if memory.iter().all(Option::is_some) { 1 } else { 3 }, SeqCst);
    for (tag, memory) in memory.into_iter().flatten() {
        memory.copy_from_slice(&pattern::bytes(SECRET, tag));
        let sent = node.send(NodeId(0), tag, memory);
        match (tag, sent) {
            (1, sent) => sent.unwrap(),
            // A node that may not read it returns an error.
            (_, Err(error)) => assert!(error.to_string().contains("no other process"), "{error}"),
            (_, Ok(())) => panic!("a part of a message was lost, and its sender not told"),
        }
    }
    node.send(NodeId(0), 3, b"the next").unwrap();
    node.leave().unwrap();
}

/// The longest message that its target copies alone.
const ALONE: usize = 256 << 10;
/// The messages of the sender, which waits until the receive of each is posted: plain memory, memory with a secret part, plain memory for a buffer
/// that can't be written, and the last one.
const PLAIN: u64 = 1;
const SECRET_PART: u64 = 2;
const UNWRITABLE: u64 = 3;
const LAST: u64 = 4;

pub fn sends_what_one_end_copies_alone() {
    let (node, words) = (join(), Words::inherited());
    let peer = node.peer(NodeId(0)).unwrap();
    let get = ModeRequest::default().protocol(Protocol::Get);
    let plain = pattern::bytes(ALONE, PLAIN);
    let secret = secret_memory(SECRET - ALONE / 4 * 3..SECRET - ALONE / 4).map(|memory| &mut memory[SECRET - ALONE..]);
    words[at::THREADS].store(if secret.is_some() { 1 } else { 2 }, SeqCst);
    let secret = secret.map(|memory| {
        memory.copy_from_slice(&pattern::bytes(ALONE, SECRET_PART));
        &*memory
    });
    loop {
        let what = until("a receive", || Some(words[at::GO].swap(0, SeqCst)).filter(|what| *what > 0));
        match what {
            PLAIN => _ = peer.send_as(PLAIN, &plain, get).unwrap(),
            SECRET_PART => _ = peer.send_as(SECRET_PART, secret.unwrap(), get).unwrap(),
            UNWRITABLE => {
                let sent = peer.send_as(UNWRITABLE, &plain, get);
                if let Err(error) = &sent {
                    assert!(error.to_string().contains("into which node 0 receives it"), "{error}");
                }
                words[at::THREADS].store(if sent.is_err() { 3 } else { 4 }, SeqCst);
            }
            _ => break,
        }
    }
    node.send(NodeId(0), LAST, b"the last").unwrap();
    node.leave().unwrap();
}

/// The target answers with a remote get only if it can't copy the message. Whether the cause is its own memory or the other's, it finds out before it
/// has claimed anything.
#[test]
fn a_message_that_its_target_copies_alone() {
    let _turn = Turn::take();
    let domain = Domain::new("alone");
    let words = Words::new(at::COUNT);
    let node = Node::builder(domain.name()).id(0).join().unwrap();
    let process = start("sends what one end copies alone", &domain, "inline", &words);
    let other = until("the other is ready", || Some(words[at::THREADS].load(SeqCst)).filter(|word| *word > 0));
    let gets = || node.metrics().unwrap()[Metric::RemoteGets];
    // Returns the bytes copied by this end, and the remote gets.
    let receive = |what: u64| {
        let before = gets();
        let receive = node.start_recv(Match::any().tag(what), vec![0; ALONE]).unwrap();
        words[at::GO].store(what, SeqCst);
        let completion = receive.wait();
        completion.result.unwrap();
        pattern::check(&completion.buffer.unwrap(), what);
        (node.transfers().unwrap().pop().unwrap().pulled.bytes, gets() - before)
    };
    // A process that gets no processor for 10 ms finds a part of the message in the lane.
    let comes = |what: u64, wanted: (u64, u64)| (0..50).any(|_| receive(what) == wanted);
    if !comes(PLAIN, (ALONE as u64, 0)) {
        assert_eq!(receive(PLAIN).0, 0, "the target copied, and not alone");
        println!("the system lets no process read another's memory: not tested");
    } else {
        assert!(other == 2 || comes(SECRET_PART, (0, 1)), "what the target can't read did not go through the lane");
        let region = node.region::<u8>(ALONE).unwrap();
        let path = format!("/dev/shm/{}.0.r0", domain.prefix());
        File::options().write(true).open(path).unwrap().set_len(ALONE as u64 / 2).unwrap();
        // SAFETY: nobody has a key, and the slice is used by one receive only, which ends before the region.
        let buf: &'static mut [u8] = unsafe { &mut *std::ptr::from_mut(region.as_mut_slice()) };
        let receive = node.start_recv(Match::any().tag(UNWRITABLE), buf).unwrap();
        words[at::GO].store(UNWRITABLE, SeqCst);
        let received = receive.wait().result;
        let sent = until("the other's result", || Some(words[at::THREADS].load(SeqCst)).filter(|word| *word > 2));
        match received {
            Err(error) => assert!(error.to_string().contains("can't be received at") && sent == 3, "{error}"),
            Ok(_) => println!("the message was in the lane: {sent}"),
        }
    }
    words[at::GO].store(LAST, SeqCst);
    assert_eq!(node.recv_until(Match::any(), &mut vec![0; ALONE], soon()).unwrap().tag, LAST);
    process.end_well(PATIENCE);
    node.leave().unwrap();
}

const LATE: usize = 200_000;

pub fn copies_too_late() {
    let (node, words) = (doorbell::NodeBuilder::from_env().unwrap().join().unwrap(), Words::inherited());
    let mut buf = vec![0; LATE];
    for tag in 1..=30 {
        node.recv(Match::any().tag(tag), &mut buf).unwrap();
        pattern::check(&buf, tag);
        let report = node.transfers().unwrap().pop().unwrap();
        words[at::FIFO].fetch_add(u64::from(report.fifo.bytes == LATE as u64), SeqCst);
    }
    node.leave().unwrap();
}

/// A target is about to copy a message, and its origin sends all of it by memory FIFO meanwhile and uses the memory again: what the target then copies
/// does not count.
#[test]
fn what_a_target_copies_too_late_does_not_count() {
    let _turn = Turn::take();
    let domain = Domain::new("late");
    let words = Words::new(at::COUNT);
    let node = Node::builder(domain.name()).id(0).copy(doorbell::CopySide::Target).join().unwrap();
    let start = Process::start("copies too late").tell("DOORBELL_DOMAIN", domain.name()).tell("DOORBELL_NODE", "1").words(&words);
    let process = start.tell("DOORBELL_FAULT", "cma.copying:all:delay=2").go();
    node.wait_for(2, soon()).unwrap();
    let mut bytes = vec![0; LATE];
    for tag in 1..=30 {
        pattern::fill(&mut bytes, tag);
        node.send(NodeId(1), tag, &bytes).unwrap();
    }
    process.end_well(PATIENCE);
    println!("{} of 30 were sent before the copy", words[at::FIFO].load(SeqCst));
    node.leave().unwrap();
}

/// Memory that other processes cannot read goes through the lane if the sender sees that beforehand. Otherwise the send fails, and neither node is
/// reported as damaged.
#[test]
fn memory_that_only_its_owner_may_read() {
    let _turn = Turn::take();
    let domain = Domain::new("secret");
    let words = Words::new(at::COUNT);
    // The origin may read its memory, so it must not put.
    let node = Node::builder(domain.name()).id(0).copy(doorbell::CopySide::Target).join().unwrap();
    let process = start("sends what nobody else may read", &domain, "inline", &words);
    let mut buf = vec![0; SECRET];
    if until("the other has its memory", || Some(words[at::GO].load(SeqCst)).filter(|word| *word > 0)) == 3 {
        println!("this system has no secret memory: not tested");
        return;
    }
    assert_eq!(node.recv_until(Match::any(), &mut buf, soon()).unwrap().tag, 1);
    pattern::check(&buf, 1);
    let envelope = node.recv_until(Match::any(), &mut buf, soon()).unwrap();
    assert_eq!((envelope.tag, &buf[..envelope.len]), (3, &b"the next"[..]));
    process.end_well(PATIENCE);
    node.leave().unwrap();
}
