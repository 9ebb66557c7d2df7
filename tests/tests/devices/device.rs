//! A shared device compared with the published method that it follows: each lettered step, in the order in which a thread takes it, in both modes.
//!
//! | step of the method | steps that a watched thread reports |
//! |---|---|
//! | (a) obtaining a lock on the network device | `Locked` |
//! | (b) checking a shared storage location for a header with its thread id | `Checked` |
//! | (c) if there is one: receiving the rest into the user's buffer, unlocking, returning | `FromStorage`, `Unlocked` |
//! | (d) if there is none: receiving a header from the device | `Header` |
//! | (e) if it is its own: receiving the rest into the user's buffer, unlocking, returning | `FromDevice`, `Unlocked` |
//! | (f) if it is another's: updating the storage, unlocking, waiting for a time-out, locking, repeating from (b) | `Stored`, `Unlocked`, `Waited`, `Locked`, … |
//!
//! The compute processes are real ones: in SMP mode one, whose main thread made two others; in dual mode two, whose main threads made one each.
//! The I/O node is the process of the test.

use doorbell::Device;
use doorbell::device::DeviceStep::{self, Checked, FromDevice, FromStorage, Header, Locked, Stored, Unlocked, Waited};
use doorbell::{DeviceError, DeviceSender, DeviceThread};
use doorbell::{Error, Node};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, briefly, eventually, running, soon, until};
use doorbell_tests::process::{Process, told};
use doorbell_tests::words::Words;
use doorbell_tests::{Turn, pattern};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// The words of each of the two threads: its task, how many tasks it has done, the result, and all its steps.
mod at {
    pub const THREADS: usize = 2;
    const LOG: usize = 1 << 16;
    const EACH: usize = LOG + 4;
    pub const COUNT: usize = EACH * THREADS;

    pub fn task(thread: u32) -> usize {
        (thread as usize - 1) * EACH
    }
    pub fn done(thread: u32) -> usize {
        task(thread) + 1
    }
    pub fn result(thread: u32) -> usize {
        task(thread) + 2
    }
    pub fn steps(thread: u32) -> usize {
        task(thread) + 3
    }
    pub fn step(thread: u32, number: u64) -> usize {
        task(thread) + 4 + (number as usize).min(LOG - 1)
    }
}

/// The tasks of a thread.
const TRY: u64 = 1;
const TRY_SHORT: u64 = 2;
const RECEIVE: u64 = 3;
const GIVE_UP: u64 = 4;
const TASKS: u64 = 8;

/// The result of a task without a message. With a message it is the tag.
const NOTHING: u64 = u64::MAX;
const TOO_SMALL: u64 = u64::MAX - 1;

const LEN: usize = 300;

fn to_word(step: DeviceStep) -> u64 {
    match step {
        Locked => 1,
        Checked(found) => 2 | u64::from(found) << 8,
        FromStorage => 3,
        Header(None) => 4,
        Header(Some(thread)) => 5 | u64::from(thread) << 8,
        FromDevice => 6,
        Stored(thread) => 7 | u64::from(thread) << 8,
        Unlocked => 8,
        Waited => 9,
        other => panic!("{other:?}"),
    }
}

fn from_word(word: u64) -> DeviceStep {
    let rest = (word >> 8) as u32;
    match word & 0xff {
        1 => Locked,
        2 => Checked(rest != 0),
        3 => FromStorage,
        4 => Header(None),
        5 => Header(Some(rest)),
        6 => FromDevice,
        7 => Stored(rest),
        8 => Unlocked,
        9 => Waited,
        other => panic!("{other}"),
    }
}

/// The role: its main thread attaches, and makes a thread for each id that the parent passes.
pub fn compute() {
    let words = Arc::new(Words::inherited());
    let node = Node::builder(told("DOMAIN")).join().unwrap();
    let log = words.clone();
    let watch = move |event: doorbell::device::DeviceEvent| {
        let count = log[at::steps(event.thread)].load(SeqCst);
        log[at::step(event.thread, count)].store(to_word(event.step), SeqCst);
        log[at::steps(event.thread)].store(count + 1, SeqCst);
    };
    let device = Device::builder(&node, "net").message_max(LEN).watch(watch).attach().unwrap();
    let work = |id: u32| {
        let (device, words) = (device.clone(), words.clone());
        std::thread::spawn(move || obey(&words, device.thread(id).unwrap()))
    };
    let threads: Vec<_> = told("THREADS").split(',').map(|id| work(id.parse().unwrap())).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    drop(device);
    node.leave().unwrap();
}

fn obey(words: &Words, mut thread: DeviceThread) {
    let id = thread.id();
    words[at::done(id)].store(1, SeqCst);
    let mut buf = [0; LEN];
    for number in 1.. {
        // The test tells the next task with its number.
        let task = until_told(&words[at::task(id)], number);
        let room = if task == TRY_SHORT { 10 } else { LEN };
        let received = match task {
            RECEIVE => thread.receive_until(&mut buf, soon()).map(Some),
            GIVE_UP => break,
            _ => thread.try_receive(&mut buf[..room]),
        };
        let result = match received {
            Ok(Some(envelope)) => {
                assert_eq!((envelope.thread, envelope.len), (id, LEN));
                pattern::check(&buf, envelope.tag);
                envelope.tag
            }
            Ok(None) => NOTHING,
            Err(error) => match error.downcast_ref() {
                Some(DeviceError::TooSmall { len: LEN, capacity: 10 }) => TOO_SMALL,
                _ => panic!("{error}"),
            },
        };
        words[at::result(id)].store(result, SeqCst);
        words[at::done(id)].store(number + 1, SeqCst);
    }
}

/// Waits for ever: the parent ends the process.
fn until_told(word: &std::sync::atomic::AtomicU64, number: u64) -> u64 {
    loop {
        let task = word.load(SeqCst);
        if task / TASKS == number {
            return task % TASKS;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Smp,
    Dual,
}

/// The compute node, as the I/O node sees it.
struct Compute {
    words: Words,
    processes: Vec<Process>,
    /// The number of tasks that each thread got.
    told: [u64; at::THREADS],
    /// The number of its steps that the test has read.
    seen: [u64; at::THREADS],
}

impl Compute {
    fn start(domain: &Domain, mode: Mode) -> Self {
        let words = Words::new(at::COUNT);
        let threads: &[&str] = match mode {
            Mode::Smp => &["1,2"],
            Mode::Dual => &["1", "2"],
        };
        let start = |threads: &&str| {
            let start = Process::start("compute").words(&words).tell("DOMAIN", domain.name());
            start.tell("THREADS", threads).go()
        };
        let processes = threads.iter().map(start).collect();
        let compute = Self { words, processes, told: [0; at::THREADS], seen: [0; at::THREADS] };
        [1, 2].into_iter().for_each(|thread| {
            compute.wait(thread);
        });
        compute
    }

    fn tell(&mut self, thread: u32, task: u64) {
        let told = &mut self.told[thread as usize - 1];
        *told += 1;
        self.words[at::task(thread)].store(*told * TASKS + task, SeqCst);
    }

    /// Waits until a thread has done all its tasks, and returns the last result.
    #[track_caller]
    fn wait(&self, thread: u32) -> u64 {
        let told = self.told[thread as usize - 1];
        eventually("a thread does what it was told", || {
            let ended = self.processes.iter().any(|process| process.ended_by(std::time::Instant::now()));
            assert!(!ended, "a process ended");
            self.words[at::done(thread)].load(SeqCst) > told
        });
        self.words[at::result(thread)].load(SeqCst)
    }

    #[track_caller]
    fn run(&mut self, thread: u32, task: u64) -> u64 {
        self.tell(thread, task);
        self.wait(thread)
    }

    /// The steps of a thread since the last call.
    fn steps(&mut self, thread: u32) -> Vec<DeviceStep> {
        let count = self.words[at::steps(thread)].load(SeqCst);
        let seen = std::mem::replace(&mut self.seen[thread as usize - 1], count);
        (seen..count).map(|number| from_word(self.words[at::step(thread, number)].load(SeqCst))).collect()
    }

    /// Waits until a thread takes a step since the last call of [`steps`](Self::steps).
    #[track_caller]
    fn until_it(&self, thread: u32, step: DeviceStep) {
        let seen = self.seen[thread as usize - 1];
        eventually("a thread takes a step", || {
            let count = self.words[at::steps(thread)].load(SeqCst);
            (seen..count).any(|number| from_word(self.words[at::step(thread, number)].load(SeqCst)) == step)
        });
    }

    fn end(mut self) {
        [1, 2].into_iter().for_each(|thread| self.tell(thread, GIVE_UP));
        self.processes.drain(..).for_each(|process| process.end_well(PATIENCE));
    }
}

const NONE: [DeviceStep; 4] = [Locked, Checked(false), Header(None), Unlocked];
const OWN_1: [DeviceStep; 5] = [Locked, Checked(false), Header(Some(1)), FromDevice, Unlocked];
const OTHERS_2: [DeviceStep; 5] = [Locked, Checked(false), Header(Some(2)), Stored(2), Unlocked];
const STORED: [DeviceStep; 4] = [Locked, Checked(true), FromStorage, Unlocked];

/// Steps without idle rounds. Successive waits count as one.
fn without_idle(steps: &[DeviceStep]) -> Vec<DeviceStep> {
    let mut kept: Vec<DeviceStep> = Vec::new();
    for step in steps {
        kept.push(*step);
        if kept.ends_with(&NONE) {
            kept.truncate(kept.len() - NONE.len());
        }
        if kept.ends_with(&[Waited, Waited]) {
            kept.pop();
        }
    }
    kept
}

fn each_step_is_taken_in_its_order(mode: Mode) {
    let _turn = Turn::take();
    let domain = Domain::new("device-steps");
    let mut compute = Compute::start(&domain, mode);
    let io = Node::builder(domain.name()).join().unwrap();
    let daemon = DeviceSender::open(&io, "net").unwrap();
    let send = |thread: u32, tag: u64| daemon.send_until(thread, tag, &pattern::bytes(LEN, tag), soon()).unwrap();
    // (a) (b) (d): there is none.
    assert_eq!((compute.run(1, TRY), compute.steps(1)), (NOTHING, NONE.to_vec()));
    // (a) (b) (d) (e): its own.
    send(1, 10);
    assert_eq!((compute.run(1, TRY), compute.steps(1)), (10, OWN_1.to_vec()));
    // (a) (b) (d) (f): another's, and from (a) again, where there is none.
    send(2, 20);
    assert_eq!((compute.run(1, TRY), compute.steps(1)), (NOTHING, [&OTHERS_2[..], &NONE].concat()));
    assert_eq!(compute.steps(2), [], "its message was received without it");
    // (a) (b) (c): its receiver finds it in the storage.
    assert_eq!((compute.run(2, TRY), compute.steps(2)), (20, STORED.to_vec()));
    // Two of another's before its own; they stay in their order.
    [(2, 21), (2, 22), (1, 11)].into_iter().for_each(|(thread, tag)| send(thread, tag));
    assert_eq!((compute.run(1, TRY), compute.steps(1)), (11, [&OTHERS_2[..], &OTHERS_2, &OWN_1].concat()));
    send(2, 23);
    for (tag, way) in [(21, &STORED[..]), (22, &STORED), (23, &[Locked, Checked(false), Header(Some(2)), FromDevice, Unlocked])] {
        assert_eq!((compute.run(2, TRY), compute.steps(2)), (tag, way.to_vec()));
    }
    // A buffer that is too short: the message waits in the storage, and nothing is received into the buffer.
    send(1, 12);
    assert_eq!(
        (compute.run(1, TRY_SHORT), compute.steps(1)),
        (TOO_SMALL, vec![Locked, Checked(false), Header(Some(1)), Unlocked])
    );
    assert_eq!((compute.run(1, TRY_SHORT), compute.steps(1)), (TOO_SMALL, vec![Locked, Checked(true), Unlocked]));
    assert_eq!((compute.run(1, TRY), compute.steps(1)), (12, STORED.to_vec()));
    // (f) with its wait: the first thread waits, another's message comes, and then its own.
    compute.tell(1, RECEIVE);
    compute.until_it(1, Waited);
    send(2, 24);
    compute.until_it(1, Stored(2));
    let waits = compute.steps(1);
    assert_eq!(waits[..NONE.len()], NONE);
    compute.until_it(1, Waited);
    send(1, 13);
    assert_eq!(compute.wait(1), 13);
    let steps = without_idle(&[waits, compute.steps(1)].concat());
    assert_eq!(steps, [&[Waited], &OTHERS_2[..], &[Waited], &OWN_1].concat());
    assert_eq!((compute.run(2, RECEIVE), compute.steps(2)), (24, STORED.to_vec()));
    // Both wait. Whichever looks first, each gets its own message: by (c) if the other one took the header, else by (e).
    for round in 0..50 {
        [1, 2].into_iter().for_each(|thread| compute.tell(thread, RECEIVE));
        let order = if round % 2 == 0 { [1, 2] } else { [2, 1] };
        order.into_iter().for_each(|thread| send(thread, 100 + u64::from(thread)));
        let results = [1, 2].map(|thread| compute.wait(thread));
        assert_eq!(results, [101, 102]);
        let steps = [1, 2].map(|thread| compute.steps(thread));
        for (thread, other) in [(0, 1), (1, 0)] {
            let id = thread as u32 + 1;
            let by_storage = steps[thread].ends_with(&STORED);
            assert!(by_storage || steps[thread].ends_with(&[Locked, Checked(false), Header(Some(id)), FromDevice, Unlocked]));
            let was_stored = steps[other].windows(2).any(|pair| pair == [Header(Some(id)), Stored(id)]);
            assert_eq!(by_storage, was_stored, "{steps:?}");
        }
    }
    drop(daemon);
    compute.end();
    io.leave().unwrap();
    doorbell_shm::domain::clean(domain.space(), Some(domain.name()), false).unwrap();
    domain.assert_empty();
}

#[test]
fn smp_mode_takes_each_step_in_its_order() {
    each_step_is_taken_in_its_order(Mode::Smp);
}

#[test]
fn dual_mode_takes_each_step_in_its_order() {
    each_step_is_taken_in_its_order(Mode::Dual);
}

fn fault<T: std::fmt::Debug>(result: Result<T, Error>) -> DeviceError {
    let error = result.unwrap_err();
    *error.downcast_ref().unwrap_or_else(|| panic!("{error}"))
}

fn devices(domain: &Domain) -> usize {
    domain.files().iter().filter(|name| name.contains(".device-")).count()
}

#[test]
fn a_thread_id_is_one_threads_at_a_time() {
    let _turn = Turn::take();
    let domain = Domain::new("device-ids");
    let compute = Compute::start(&domain, Mode::Dual);
    let node = Node::builder(domain.name()).join().unwrap();
    let device = Device::builder(&node, "net").attach().unwrap();
    for thread in [1, 2] {
        let DeviceError::Taken { thread: taken, owner } = fault(device.thread(thread)) else { panic!("an id that is taken") };
        assert!(taken == thread && owner.node() != node.id());
    }
    // Its process dies: the id is free, and what was sent to it in between is there.
    let sender = DeviceSender::open(&node, "net").unwrap();
    compute.processes[0].kill();
    assert!(compute.processes[0].ended_by(soon()));
    sender.send(1, 7, &[7]).unwrap();
    let mut heir = device.thread(1).unwrap();
    assert!(matches!(fault(device.thread(2)), DeviceError::Taken { .. }));
    let mut buf = [0; 8];
    assert_eq!(heir.receive_until(&mut buf, soon()).unwrap().tag, 7);
    drop((sender, heir, device, compute));
    node.leave().unwrap();
    doorbell_shm::domain::clean(domain.space(), Some(domain.name()), false).unwrap();
    domain.assert_empty();
}

#[test]
fn what_is_seen_of_a_device_from_outside() {
    let domain = Domain::new("device-seen");
    let node = Node::builder(domain.name()).join().unwrap();
    let device = Device::builder(&node, "net").threads(3).attach().unwrap();
    let sender = DeviceSender::open(&node, "net").unwrap();
    let mut one = device.thread(1).unwrap();
    // One that somebody looked at, for an id that nobody has; and one in the lane.
    sender.send(77, 0, &[1; 40]).unwrap();
    assert!(one.try_receive(&mut [0; 8]).unwrap().is_none());
    sender.send(1, 0, b"one").unwrap();
    one.receive_until(&mut [0; 8], soon()).unwrap();
    sender.send(1, 0, b"two").unwrap();
    let seen = doorbell_shm::domain::list_domains(domain.space()).unwrap();
    let seen = &seen.iter().find(|status| status.name == domain.name()).unwrap().devices[0];
    let me = (node.id(), node.incarnation());
    assert_eq!((&*seen.name, seen.geometry.threads, &seen.attached[..], seen.lock), ("net", 3, &[me][..], None));
    let mut threads: Vec<_> = seen.threads.iter().map(|thread| (thread.thread, thread.receiver, thread.stored)).collect();
    threads.sort_unstable_by_key(|thread| thread.0);
    assert_eq!(threads, [(1, Some(me), 0), (77, None, 1)]);
    let [lane] = seen.lanes[..] else { panic!("{:?}", seen.lanes) };
    // Its own is read, but not the first, behind which nothing can be given back: two packets, one, and one.
    assert_eq!((lane.owner, lane.client, lane.waiting, lane.broken), (Some(me), None, 4 * 64, false));
    assert_eq!((seen.counts.received, seen.counts.dropped), (1, 0));
    drop((sender, one, device));
    node.leave().unwrap();
}

#[test]
fn ids_that_are_given_up_make_room_for_others() {
    let domain = Domain::new("device-room");
    let node = Node::builder(domain.name()).join().unwrap();
    let device = Device::builder(&node, "net").threads(2).attach().unwrap();
    let [one, two] = [1, 2].map(|id| device.thread(id).unwrap());
    assert_eq!(fault(device.thread(3)), DeviceError::Crowded { threads: 2 });
    drop(one);
    let three = device.thread(3).unwrap();
    assert_eq!(fault(device.thread(1)), DeviceError::Crowded { threads: 2 });
    drop((two, three));
    for id in 10..100 {
        drop(device.thread(id).unwrap());
    }
    drop(device);
    node.leave().unwrap();
}

/// A thread id moves from a thread that ends to one that lives, while others look for dead threads.
#[test]
fn a_thread_id_goes_from_thread_to_thread() {
    let domain = Domain::new("device-moves");
    let node = Node::builder(domain.name()).join().unwrap();
    let device = Device::builder(&node, "net").threads(3).attach().unwrap();
    let sender = DeviceSender::open(&node, "net").unwrap();
    let mut buf = [0; 8];
    let mut other = device.thread(9).unwrap();
    for round in 0..3 {
        let made = device.clone();
        let mut moved = running("a thread takes ids and ends", move || [1, 2].map(|id| made.thread(id).unwrap())).join();
        // Long enough for it to look for dead threads.
        for _ in 0..2 {
            let late = other.receive_until(&mut buf, std::time::Instant::now() + Duration::from_millis(60));
            assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
        }
        [(2, 5), (1, 6)].into_iter().for_each(|(thread, tag)| sender.send(thread, tag + round, &[]).unwrap());
        for (thread, tag) in [(0, 6), (1, 5)] {
            let envelope = moved[thread].receive_until(&mut buf, soon()).unwrap();
            assert_eq!((envelope.thread, envelope.tag), (thread as u32 + 1, tag + round));
        }
        assert!(matches!(fault(device.thread(1)), DeviceError::Taken { .. }));
        drop(moved);
        device.thread(1).unwrap();
    }
    drop((sender, other, device));
    node.leave().unwrap();
}

#[test]
fn what_nobody_fetches_is_dropped_after_the_limit() {
    let domain = Domain::new("device-limit");
    let node = Node::builder(domain.name()).join().unwrap();
    let device = Device::builder(&node, "net").threads(2).fetch_within(Duration::from_millis(200)).attach().unwrap();
    let sender = DeviceSender::open(&node, "net").unwrap();
    let mut thread = device.thread(1).unwrap();
    let mut buf = [0; 64];
    // Nobody is 77; more of them than the storage has room for, and one of a thread for which there is no slot then.
    for _ in 0..100 {
        sender.send(77, 0, &[1; 40]).unwrap();
    }
    sender.send(88, 0, &[1; 40]).unwrap();
    sender.send(1, 1, &[]).unwrap();
    assert_eq!(thread.receive_until(&mut buf, soon()).unwrap().tag, 1);
    let counts = until("all are dropped", || {
        let _ = thread.receive_until(&mut buf, briefly());
        let counts = device.counts();
        (counts.dropped == 101).then_some(counts)
    });
    assert_eq!((counts.dropped_bytes, counts.received, counts.broken), (4040, 1, 0));
    // The others go on, and so does the thread that takes the id next.
    let mut late = until("a slot is free", || {
        let _ = thread.receive_until(&mut buf, briefly());
        device.thread(77).ok()
    });
    [(77, 2), (1, 3)].into_iter().for_each(|(thread, tag)| sender.send(thread, tag, &[]).unwrap());
    assert_eq!(late.receive_until(&mut buf, soon()).unwrap().tag, 2);
    assert_eq!(thread.receive_until(&mut buf, soon()).unwrap().tag, 3);
    drop((sender, thread, late, device));
    node.leave().unwrap();
}

#[test]
fn a_device_goes_with_the_last_process() {
    let _turn = Turn::take();
    let domain = Domain::new("device-last");
    let node = Node::builder(domain.name()).join().unwrap();
    assert_eq!(fault(DeviceSender::open(&node, "net")), DeviceError::Absent);
    let compute = Compute::start(&domain, Mode::Dual);
    assert_eq!(devices(&domain), 1);
    let device = Device::builder(&node, "net").attach().unwrap();
    let sender = DeviceSender::open(&node, "net").unwrap();
    compute.end();
    assert_eq!(devices(&domain), 1);
    drop(device);
    assert_eq!(devices(&domain), 0);
    // Its sender is told, at the latest when there is no more room.
    let bytes = [0; LEN];
    assert_eq!(
        until("an error", || sender.send_until(1, 0, &bytes, soon()).err().map(|error| fault::<()>(Err(error)))),
        DeviceError::Absent
    );
    assert_eq!(fault(DeviceSender::open(&node, "net")), DeviceError::Absent);
    drop(sender);
    node.leave().unwrap();
}

#[test]
fn a_device_of_which_all_processes_were_killed_is_removed_or_made_anew() {
    let _turn = Turn::take();
    for anew in [false, true] {
        let domain = Domain::new("device-killed");
        let node = Node::builder(domain.name()).join().unwrap();
        let compute = Compute::start(&domain, Mode::Dual);
        let sender = DeviceSender::open(&node, "net").unwrap();
        sender.send(1, 1, b"to one who dies").unwrap();
        compute.processes.iter().for_each(Process::kill);
        assert!(compute.processes.iter().all(|process| process.ended_by(soon())));
        assert_eq!(fault(DeviceSender::open(&node, "net")), DeviceError::Absent);
        if anew {
            let device = Device::builder(&node, "net").threads(5).attach().unwrap();
            assert_eq!(devices(&domain), 1);
            let mut thread = device.thread(1).unwrap();
            assert_eq!(thread.try_receive(&mut [0; 64]).unwrap(), None);
            let other = DeviceSender::open(&node, "net").unwrap();
            other.send(1, 2, &[]).unwrap();
            assert_eq!(thread.receive_until(&mut [0; 64], soon()).unwrap().tag, 2);
            drop((other, thread, device));
        } else {
            doorbell_shm::domain::clean(domain.space(), Some(domain.name()), false).unwrap();
        }
        assert_eq!(devices(&domain), 0);
        drop((sender, compute));
        node.leave().unwrap();
        doorbell_shm::domain::clean(domain.space(), Some(domain.name()), false).unwrap();
        domain.assert_empty();
    }
}

/// The role: sends until it is killed.
pub fn send_for_ever() {
    let words = Words::inherited();
    let node = Node::builder(told("DOMAIN")).join().unwrap();
    let sender: DeviceSender = DeviceSender::open(&node, "net").unwrap();
    for tag in 0.. {
        sender.send(1, tag, &pattern::bytes(LEN, tag)).unwrap();
        words[0].store(tag + 1, SeqCst);
    }
}

#[test]
fn each_sender_has_a_lane_and_a_dead_ones_is_free() {
    let _turn = Turn::take();
    let domain = Domain::new("device-lanes");
    let node = Node::builder(domain.name()).join().unwrap();
    let device = Device::builder(&node, "net").senders(3).message_max(LEN).attach().unwrap();
    let sender = DeviceSender::open(&node, "net").unwrap();
    let max = sender.message_max();
    assert_eq!(fault(sender.send(1, 0, &vec![0; max + 1])), DeviceError::TooLong { len: max + 1, max });
    let words = Words::new(1);
    let other = Process::start("device: sender").words(&words).tell("DOMAIN", domain.name()).go();
    // It fills its lane, and waits.
    let full = AtomicUsize::new(0);
    eventually("its lane is full", || {
        let sent = words[0].load(SeqCst) as usize;
        std::thread::sleep(Duration::from_millis(20));
        sent > 5 && full.swap(sent, SeqCst) == sent
    });
    // One is free, and this node has one already.
    assert_eq!(fault(DeviceSender::open(&node, "net")), DeviceError::NoLane { senders: 3 });
    other.kill();
    assert!(other.ended_by(soon()));
    let heir = DeviceSender::open(&node, "net").unwrap();
    assert_eq!(fault(DeviceSender::open(&node, "net")), DeviceError::NoLane { senders: 3 });
    // What the dead one sent is there, whole and in order, and what its heir sends comes behind it.
    let mut thread = device.thread(1).unwrap();
    let mut buf = [0; LEN];
    let sent = words[0].load(SeqCst);
    for tag in 0..sent {
        let envelope = thread.receive_until(&mut buf, soon()).unwrap();
        assert_eq!((envelope.tag, envelope.len), (tag, LEN));
        pattern::check(&buf, tag);
    }
    heir.send_until(1, u64::MAX, &[], soon()).unwrap();
    // One may have been sent that was not counted any more.
    let mut next = thread.receive_until(&mut buf, soon()).unwrap();
    if next.tag == sent {
        next = thread.receive_until(&mut buf, soon()).unwrap();
    }
    assert_eq!(next.tag, u64::MAX);
    drop(heir);
    drop(DeviceSender::open(&node, "net").unwrap());
    drop((sender, thread, device, other));
    node.leave().unwrap();
    doorbell_shm::domain::clean(domain.space(), Some(domain.name()), false).unwrap();
    domain.assert_empty();
}
