//! Storms over one device: many threads of several processes and several senders; and threads, processes and senders that die at random
//! moments.
//!
//! `DOORBELL_STORM_SECONDS` says for how long the first goes on, `DOORBELL_KILLS` how many die in the second, `DOORBELL_SEED` seeds the
//! choices.

use doorbell::Device;
use doorbell::DeviceSender;
use doorbell::{DeviceError, DeviceThread, Error, FabricKind, Node, NodeBuilder};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, briefly, running, soon};
use doorbell_tests::process::{Process, told, told_as};
use doorbell_tests::random::{Random, seed};
use doorbell_tests::words::Words;
use doorbell_tests::{LOOPBACK, Turn, number, pattern};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const LONG: usize = 20_000;
const THREADS_MAX: usize = 16;
/// The most incarnations of a sender.
const LIVES: usize = 1024;
const END: u64 = u64::MAX;

/// The builder of a process of a storm: all of them share memory.
fn builder(domain: &str) -> NodeBuilder {
    Node::builder(domain).max_nodes(32)
}

/// The tag of a message: its sender, and its number among the messages of this sender to its thread.
fn tag(sender: usize, sequence: u64) -> u64 {
    (sender as u64) << 48 | sequence
}

fn untag(tag: u64) -> (usize, u64) {
    ((tag >> 48) as usize, tag & ((1 << 48) - 1))
}

fn pattern_of(thread: u32, tag: u64) -> u64 {
    tag ^ u64::from(thread).rotate_left(40)
}

fn length(random: &mut Random) -> usize {
    match random.below(8) {
        0 => *random.pick(&[0, 1, 8, 31, 32, 33, 64, 65, LONG]),
        1 => random.below(LONG + 1),
        2 | 3 => random.below(2000),
        _ => random.below(64),
    }
}

fn send_one(sender: &doorbell::DeviceSender, thread: u32, tag: u64, random: &mut Random) {
    let bytes = pattern::bytes(length(random), pattern_of(thread, tag));
    match random.below(3) {
        0 => sender.send_until(thread, tag, &bytes, soon()).unwrap(),
        1 => {
            let (one, other) = bytes.split_at(random.below(bytes.len() + 1));
            sender.send_vectored(thread, tag, &[one, other]).unwrap();
        }
        _ => {
            while !sender.try_send(thread, tag, &bytes).unwrap() {
                std::thread::yield_now();
            }
        }
    }
}

/// Receives one message in a random way.
fn receive_one(thread: &mut DeviceThread, buf: &mut [u8], random: &mut Random, deadline: Instant) -> Option<(usize, u64)> {
    let room = if random.below(32) == 0 { random.below(100) } else { buf.len() };
    let received = match random.below(4) {
        0 => thread.try_receive(&mut buf[..room]),
        _ => thread.receive_until(&mut buf[..room], deadline).map(Some),
    };
    match received {
        Ok(Some(envelope)) => {
            assert_eq!(envelope.thread, thread.id());
            pattern::check(&buf[..envelope.len], pattern_of(envelope.thread, envelope.tag));
            Some(untag(envelope.tag))
        }
        // A process that leaves does not wait for all its threads.
        Ok(None) | Err(Error::Timeout { .. } | Error::Closed) => None,
        Err(error) => match error.downcast_ref() {
            // It is there still.
            Some(DeviceError::TooSmall { len, capacity }) if *capacity == room && *len > room => None,
            _ => panic!("{error}"),
        },
    }
}

/// The role: its threads receive all messages of all senders.
pub fn receive_all() {
    let senders = number("SENDERS", 0) as usize;
    let builder = builder(&told("DOMAIN")).progress(told_as("PROGRESS"));
    let node = match told("ADDRESS").parse::<std::net::SocketAddr>() {
        Ok(address) => builder.connect(address).join().unwrap(),
        Err(_) => builder.join().unwrap(),
    };
    let device = Device::builder(&node, "net").threads(THREADS_MAX).message_max(LONG).fetch_within(PATIENCE).attach().unwrap();
    let words = Arc::new(Words::inherited());
    let ids: Vec<u32> = told("THREADS").split(',').map(|id| id.parse().unwrap()).collect();
    let threads = ids.into_iter().map(|id| {
        let (mut thread, words) = (device.thread(id).unwrap(), words.clone());
        std::thread::spawn(move || {
            let (mut random, mut buf) = (Random::new(seed() ^ u64::from(id)), vec![0; LONG]);
            let mut next = vec![0_u64; senders];
            let mut through = 0;
            words[0].fetch_add(1, SeqCst);
            while through < senders {
                let Some((sender, sequence)) = receive_one(&mut thread, &mut buf, &mut random, soon()) else { continue };
                words[1].fetch_add(1, SeqCst);
                if sequence == untag(END).1 {
                    through += 1;
                    continue;
                }
                assert_eq!(sequence, next[sender], "thread {id}: of sender {sender}");
                next[sender] += 1;
                // Now and then it computes, and the others store for it.
                if random.below(400) == 0 {
                    std::thread::sleep(Duration::from_micros(random.below(3000) as u64));
                }
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    drop(device);
    node.leave().unwrap();
}

#[test]
fn each_message_reaches_its_thread_once() {
    let _turn = Turn::take();
    let (seconds, seed) = (number("DOORBELL_STORM_SECONDS", 3), seed());
    println!("device storm: DOORBELL_SEED={seed} DOORBELL_STORM_SECONDS={seconds}");
    let mut random = Random::new(seed);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut messages = BTreeMap::new();
    for round in 0.. {
        if round >= 6 && Instant::now() >= until {
            break;
        }
        let processes = [1, 2, 4][round % 3];
        // Every other time the senders have the network alone.
        let is_apart = round % 6 >= 3;
        let threads = processes.max(2) + random.below(THREADS_MAX + 1 - processes.max(2));
        let senders = 1 + random.below(4);
        let seconds = seconds.clamp(1, 5);
        *messages.entry((is_apart, processes)).or_insert(0) += storm(&mut random, is_apart, processes, threads, senders, seconds);
    }
    println!("messages, by whether they came by the network, and processes: {messages:?}");
}

/// One storm. Returns the number of messages.
fn storm(random: &mut Random, is_apart: bool, processes: usize, threads: usize, senders: usize, seconds: u64) -> u64 {
    let domain = Domain::new("device-storm");
    let words = Arc::new(Words::new(2));
    let builder = builder(domain.name());
    let node = if is_apart {
        builder.fabric(FabricKind::Udp).listen(LOOPBACK).dead_after(PATIENCE).join().unwrap()
    } else {
        builder.join().unwrap()
    };
    let address = node.address().map_or("none".to_owned(), |address| address.to_string());
    // The senders' process is attached as well if it can be, so that it can ask what was counted when all others have left.
    let attach = || Device::builder(&node, "net").threads(THREADS_MAX).message_max(LONG).attach().unwrap();
    let device = (!is_apart).then(attach);
    let receivers: Vec<_> = (0..processes)
        .map(|process| {
            let ids: Vec<String> = (process..threads).step_by(processes).map(|id| id.to_string()).collect();
            let progress = *random.pick(&["adaptive", "inline", "poller"]);
            let start =
                Process::start("device storm: receiver").words(&words).tell("DOMAIN", domain.name()).tell("PROGRESS", progress);
            let start = start.tell("ADDRESS", &address);
            start.tell("THREADS", ids.join(",")).tell("SENDERS", senders.to_string()).go()
        })
        .collect();
    let lives = || {
        let ended = receivers.iter().any(|process| process.ended_by(Instant::now()));
        assert!(!ended, "a receiver ended");
    };
    let deadline = soon();
    while words[0].load(SeqCst) < threads as u64 {
        lives();
        assert!(Instant::now() < deadline, "the receivers do not begin");
        std::thread::yield_now();
    }
    let over = Instant::now() + Duration::from_millis(seconds * 1000 / 5);
    let send = |number: usize| {
        let (node, mut random) = (node.clone(), Random::new(random.next()));
        running("a sender", move || {
            let sender = DeviceSender::open(&node, "net").unwrap();
            let mut next = vec![0_u64; threads];
            while Instant::now() < over {
                let thread = random.below(threads);
                send_one(&sender, thread as u32, tag(number, next[thread]), &mut random);
                next[thread] += 1;
            }
            for thread in 0..threads {
                sender.send_until(thread as u32, END, &pattern::bytes(9, pattern_of(thread as u32, END)), soon()).unwrap();
            }
            next.iter().map(|sent| sent + 1).sum::<u64>()
        })
    };
    let sending: Vec<_> = (0..senders).map(send).collect();
    let sent: u64 = sending.into_iter().map(|sender| sender.join()).sum();
    receivers.into_iter().for_each(|process| process.end_well(PATIENCE));
    assert_eq!(words[1].load(SeqCst), sent);
    if let Some(device) = device {
        let counts = device.counts();
        assert_eq!((counts.received, counts.dropped, counts.broken, counts.inherited), (sent, 0, 0, 0));
    }
    node.leave().unwrap();
    domain.assert_empty();
    sent
}

/// The allocator of the system, which also records the threads inside it: a thread that is killed there would block the others of its process.
struct Careful;

thread_local! {
    static ALLOCATING: Cell<bool> = const { Cell::new(false) };
    static CONDEMNED: Cell<bool> = const { Cell::new(false) };
}

fn carefully<T>(run: impl FnOnce() -> T) -> T {
    let was = ALLOCATING.replace(true);
    let result = run();
    ALLOCATING.set(was);
    if !was && CONDEMNED.get() {
        end_this_thread();
    }
    result
}

// SAFETY: all is the system's.
unsafe impl GlobalAlloc for Careful {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: caller.
        carefully(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: caller.
        carefully(|| unsafe { System.dealloc(ptr, layout) })
    }
}

#[global_allocator]
static CAREFUL: Careful = Careful;

/// Ends a thread without unwinding, so that it gives nothing up.
fn end_this_thread() -> ! {
    loop {
        // SAFETY: ends this thread and touches no memory; what it has is lost, as these tests want it.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

extern "C" fn condemned(_: libc::c_int) {
    if ALLOCATING.get() {
        CONDEMNED.set(true);
    } else {
        end_this_thread();
    }
}

/// The words of the second storm.
mod at {
    use super::LIVES;

    pub const THREADS: usize = 6;
    pub const STOP: usize = 0;
    /// The number of messages received without the one before.
    pub const GAPS: usize = 1;
    pub const RECEIVED: usize = 2;
    /// The system thread of this device thread: pid and tid.
    pub fn tid(thread: usize) -> usize {
        3 + thread
    }
    /// The last probe that it received.
    pub fn probe(thread: usize) -> usize {
        tid(THREADS) + thread
    }
    /// How many threads have taken this id so far.
    pub fn incarnation(thread: usize) -> usize {
        probe(THREADS) + thread
    }
    /// How many messages an incarnation of a sender began to send to a thread.
    pub fn sent(incarnation: usize, thread: usize) -> usize {
        self::incarnation(THREADS) + incarnation * THREADS + thread
    }
    /// ... and the number of the last that was received, plus one.
    pub fn got(incarnation: usize, thread: usize) -> usize {
        sent(LIVES, 0) + incarnation * THREADS + thread
    }
    pub const COUNT: usize = 3 + 3 * THREADS + 2 * LIVES * THREADS;
}

/// The longest time for which a message to a dead thread may delay others.
const LIMIT: Duration = Duration::from_millis(400);

/// The role: its threads receive, and others take their ids when they are killed.
pub fn receive_until_death() {
    let words = Arc::new(Words::inherited());
    // Of a node that has its own thread for its engine, so that no thread that is killed can have it.
    let node = builder(&told("DOMAIN")).progress("poller".parse().unwrap()).join().unwrap();
    let device = Device::builder(&node, "net").threads(THREADS_MAX).message_max(LONG).fetch_within(LIMIT).attach().unwrap();
    // SAFETY: the handler touches thread-locals without destructors, and ends the thread.
    unsafe { libc::signal(libc::SIGUSR1, condemned as *const () as libc::sighandler_t) };
    let ids: Vec<usize> = told("THREADS").split(',').map(|id| id.parse().unwrap()).collect();
    let start = |id: usize| {
        let (device, words) = (device.clone(), words.clone());
        let begun = Arc::new(AtomicBool::new(false));
        let begins = begun.clone();
        std::thread::spawn(move || {
            // The dead one may have the lock.
            let mut thread = device.thread(id as u32).unwrap();
            // SAFETY: asks for a number.
            let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u64;
            words[at::tid(id)].store(u64::from(std::process::id()) << 32 | tid, SeqCst);
            words[at::incarnation(id)].fetch_add(1, SeqCst);
            begins.store(true, SeqCst);
            let (mut random, mut buf) = (Random::new(tid), vec![0; LONG]);
            while words[at::STOP].load(SeqCst) < 2 {
                let Some((incarnation, sequence)) = receive_one(&mut thread, &mut buf, &mut random, briefly()) else { continue };
                if incarnation == PROBE {
                    words[at::probe(id)].store(sequence, SeqCst);
                    continue;
                }
                // Never twice, and never late; those between that are missing are counted.
                let last = words[at::got(incarnation, id)].swap(sequence + 1, SeqCst);
                assert!(sequence >= last, "thread {id}: {sequence} of sender {incarnation} after {last}");
                words[at::GAPS].fetch_add(sequence - last, SeqCst);
                words[at::RECEIVED].fetch_add(1, SeqCst);
            }
        });
        begun
    };
    let mut begun: Vec<_> = ids.iter().map(|id| start(*id)).collect();
    while words[at::STOP].load(SeqCst) < 2 {
        std::thread::sleep(Duration::from_millis(1));
        for (id, begun) in ids.iter().zip(&mut begun) {
            let task = format!("/proc/self/task/{}", words[at::tid(*id)].load(SeqCst) as u32);
            if begun.load(SeqCst) && !std::path::Path::new(&task).exists() && words[at::STOP].load(SeqCst) < 2 {
                *begun = start(*id);
            }
        }
    }
    // What its dead threads had is never dropped; with the node's life it is nobody's.
    let _ = node.leave();
}

/// The probes are of the test itself.
const PROBE: usize = LIVES;

/// The role: sends to all threads, living or not.
pub fn send_until_death() {
    let words = Words::inherited();
    let incarnation = number("LIFE", 0) as usize;
    let node = builder(&told("DOMAIN")).join().unwrap();
    let sender = DeviceSender::open(&node, "net").unwrap();
    let mut random = Random::new(incarnation as u64);
    while words[at::STOP].load(SeqCst) == 0 {
        let thread = random.below(at::THREADS);
        let sequence = words[at::sent(incarnation, thread)].fetch_add(1, SeqCst);
        send_one(&sender, thread as u32, tag(incarnation, sequence), &mut random);
        if random.below(50) == 0 {
            std::thread::sleep(Duration::from_micros(random.below(1000) as u64));
        }
    }
    drop(sender);
    node.leave().unwrap();
}

/// The fault points at which a process dies: with the device's lock, in each state in which the next owner may find the device.
const PLACES: [&str; 6] =
    ["device.locked", "device.stored", "device.copied", "device.scanned", "device.cleared", "device.unlocking"];

const PROCESSES: usize = 3;
const SENDERS: usize = 2;

struct Killing {
    domain: Domain,
    words: Words,
    random: Random,
    receivers: Vec<Process>,
    senders: Vec<Process>,
    lives: usize,
    probes: u64,
}

impl Killing {
    /// Each process has every third thread.
    fn receiver(&self, process: usize, fault: Option<String>) -> Process {
        let ids: Vec<String> = (process..at::THREADS).step_by(PROCESSES).map(|id| id.to_string()).collect();
        let start = Process::start("mortal").words(&self.words).tell("DOMAIN", self.domain.name());
        let start = start.tell("THREADS", ids.join(","));
        match fault {
            Some(fault) => start.tell("DOORBELL_FAULT", fault).go(),
            None => start.go(),
        }
    }

    fn sender(&mut self) -> Process {
        self.lives += 1;
        // Some die by themselves, behind a message that they did not count.
        let fault = if self.lives % 4 == 3 { format!("device.published:{}", 1 + self.random.below(500)) } else { String::new() };
        let start = Process::start("device storm: sender").words(&self.words).tell("DOMAIN", self.domain.name());
        start.tell("LIFE", (self.lives % LIVES).to_string()).tell("DOORBELL_FAULT", fault).go()
    }

    /// Sends one message to each of these threads, waits until all have arrived, and returns how long that took.
    #[track_caller]
    fn probe(&mut self, sender: &doorbell::DeviceSender, threads: &[usize], what: &str) -> Duration {
        let began = Instant::now();
        let deadline = soon();
        self.probes += 1;
        let probe = tag(PROBE, self.probes);
        for thread in threads {
            let bytes = pattern::bytes(self.random.below(200), pattern_of(*thread as u32, probe));
            sender.send_until(*thread as u32, probe, &bytes, deadline).unwrap();
        }
        for thread in threads {
            while self.words[at::probe(*thread)].load(SeqCst) < self.probes {
                let ended = self.receivers.iter().filter(|process| process.ended_by(Instant::now())).count();
                assert!(ended <= usize::from(what.starts_with("a process")), "{what} was killed, and {ended} receivers ended");
                assert!(Instant::now() < deadline, "{what} was killed, and thread {thread} is blocked");
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        began.elapsed()
    }

    fn wait_for_life(&self, threads: &[usize], before: &[u64]) {
        let deadline = soon();
        for thread in threads {
            while self.words[at::incarnation(*thread)].load(SeqCst) <= before[*thread] {
                assert!(Instant::now() < deadline, "nobody becomes thread {thread} anew");
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
}

#[test]
fn a_device_survives_its_threads_processes_and_senders() {
    let _turn = Turn::take();
    let (kills, seed) = (number("DOORBELL_KILLS", 20) as usize, seed());
    println!("device storm with deaths: DOORBELL_SEED={seed} DOORBELL_KILLS={kills}");
    let mut storm = Killing {
        domain: Domain::new("device-deaths"),
        words: Words::new(at::COUNT),
        random: Random::new(seed),
        receivers: Vec::new(),
        senders: Vec::new(),
        lives: 0,
        probes: 0,
    };
    let node = builder(storm.domain.name()).join().unwrap();
    let device = Device::builder(&node, "net").threads(THREADS_MAX).message_max(LONG).fetch_within(LIMIT).attach().unwrap();
    let sender = DeviceSender::open(&node, "net").unwrap();
    for process in 0..PROCESSES {
        let receiver = storm.receiver(process, None);
        storm.receivers.push(receiver);
    }
    let all: Vec<usize> = (0..at::THREADS).collect();
    storm.wait_for_life(&all, &[0; at::THREADS]);
    for _ in 0..SENDERS {
        let sender = storm.sender();
        storm.senders.push(sender);
    }
    let mut deaths = 0;
    let mut times: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for _ in 0..kills {
        storm.probe(&sender, &all, "nobody");
        let moment = Instant::now() + Duration::from_micros(storm.random.below(5000) as u64);
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
        let mut before: Vec<u64> = all.iter().map(|thread| storm.words[at::incarnation(*thread)].load(SeqCst)).collect();
        let (what, dead) = match storm.random.below(6) {
            0 | 1 => {
                let victim = storm.random.below(at::THREADS);
                let tid = storm.words[at::tid(victim)].load(SeqCst);
                // SAFETY: a signal to a thread of a child of this process.
                unsafe { libc::syscall(libc::SYS_tgkill, (tid >> 32) as i32, tid as u32 as i32, libc::SIGUSR1) };
                ("a thread", vec![victim])
            }
            2 | 3 => {
                let victim = storm.random.below(PROCESSES);
                storm.receivers[victim].kill();
                assert!(storm.receivers[victim].ended_by(soon()));
                ("a process", (victim..at::THREADS).step_by(PROCESSES).collect())
            }
            4 => {
                let victim = storm.random.below(PROCESSES);
                storm.receivers[victim].kill();
                assert!(storm.receivers[victim].ended_by(soon()));
                let fault = format!("{}:{}", storm.random.pick(&PLACES), 1 + storm.random.below(300));
                storm.receivers[victim] = storm.receiver(victim, Some(fault));
                let at_its_place = storm.receivers[victim].ended_by(Instant::now() + Duration::from_millis(300));
                storm.receivers[victim].kill();
                assert!(storm.receivers[victim].ended_by(soon()));
                before = all.iter().map(|thread| storm.words[at::incarnation(*thread)].load(SeqCst)).collect();
                let what = if at_its_place { "a process with the lock" } else { "a process" };
                (what, (victim..at::THREADS).step_by(PROCESSES).collect())
            }
            _ => {
                let victim = storm.random.below(SENDERS);
                storm.senders[victim].kill();
                assert!(storm.senders[victim].ended_by(soon()));
                storm.senders[victim] = storm.sender();
                ("a sender", Vec::new())
            }
        };
        // One that dies at its place follows another that was killed.
        deaths += 2 * dead.len();
        let others: Vec<usize> = all.iter().copied().filter(|thread| !dead.contains(thread)).collect();
        times.entry(what).or_default().push(storm.probe(&sender, &others, what));
        if what.starts_with("a process") {
            storm.receivers[dead[0]] = storm.receiver(dead[0], None);
        }
        storm.wait_for_life(&dead, &before);
        storm.probe(&sender, &dead, "nobody");
    }
    storm.probe(&sender, &all, "nobody");
    let Killing { domain, words, receivers, senders, .. } = storm;
    // Senders first: one that waits for room would have it from nobody else.
    words[at::STOP].store(1, SeqCst);
    senders.into_iter().for_each(|process| _ = process.end(PATIENCE));
    words[at::STOP].store(2, SeqCst);
    receivers.into_iter().for_each(|process| process.end_well(PATIENCE));
    let (counts, gaps) = (device.counts(), words[at::GAPS].load(SeqCst));
    for (what, times) in &mut times {
        times.sort_unstable();
        let longest = times[times.len() - 1];
        println!(
            "{what}, {} times: the others went on within {:?} (median), {longest:?} (longest)",
            times.len(),
            times[times.len() / 2]
        );
    }
    println!("{} received; {gaps} missing in between; {counts:?}", words[at::RECEIVED].load(SeqCst));
    // Each thread that died may have taken one message of which it told nobody.
    assert!(gaps <= counts.dropped + deaths as u64, "{gaps} are missing, {deaths} threads died, and {counts:?}");
    assert_eq!(counts.broken, 0);
    drop((sender, device));
    node.leave().unwrap();
    doorbell_shm::domain::clean(domain.space(), Some(domain.name()), false).unwrap();
    domain.assert_empty();
}
