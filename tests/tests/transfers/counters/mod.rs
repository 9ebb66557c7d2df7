//! Counters of transfers of any kind, size and mode that succeed, are cancelled, or lose a node in the middle.
//!
//! Whatever happens: a counter never rises above what it was set to and does not go below zero. It rises only where a message was given
//! up in the middle. It reaches zero once: one bit in the status register, one interrupt. When an operation is over, its bytes were
//! counted if it took place, and otherwise some of them at most. At zero, the bytes are in place, and every wait ends.
//!
//! `DOORBELL_CASES` says how many cases there are, `DOORBELL_KILLS` how many processes die.

mod kills;
mod watch;

pub use kills::moves_until_killed;

use doorbell::dma::{Descriptor, InjectionFifo, ReceptionFifo};
use doorbell::{CopySide, Error, Match, Node, Operation, Progress, Region, Wait};
use doorbell_tests::patience::{soon, until};
use doorbell_tests::pattern;
use doorbell_tests::world::{Ground, World};
use proptest::collection::vec;
use proptest::prelude::*;
use std::cell::Cell;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{ScopedJoinHandle, scope, yield_now};
use std::time::{Duration, Instant};
use watch::{Release, Threads, Use};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// `Counter::start_send` and `Counter::start_recv`.
    Message,
    /// Descriptors: a direct put, one that the target's remote get asks for, packets.
    Put,
    RemoteGet,
    Packet,
    /// `Counter::put` and `Node::notify`, `Counter::get`.
    CallPut,
    CallGet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    CancelSends,
    CancelReceives,
    /// The target's region.
    Withdraw,
    OriginLeaves,
    TargetLeaves,
    OriginDies,
    TargetDies,
}

#[derive(Clone, Debug)]
struct Case {
    ground: Ground,
    kind: Kind,
    /// The operations that share the two counters.
    lens: Vec<usize>,
    /// How many more bytes the counters are set to than the operations have.
    extra: [i64; 2],
    copy: [CopySide; 2],
    progress: [Progress; 2],
    wait: Wait,
    /// How often each end gives way before it begins.
    late: [u16; 2],
    /// For how long the hasty wait waits, in microseconds.
    pause: u64,
    /// What happens when the counter of that end has fallen to so many percent.
    stop: Option<(Stop, u64)>,
}

fn case() -> impl Strategy<Value = Case> {
    use {CopySide as C, Kind as K, Progress as P, Stop as S};
    let ground =
        prop_oneof![8 => Just(Ground::Heap), 4 => Just(Ground::Faulty), 1 => Just(Ground::UdpPlain), 1 => Just(Ground::Lots)];
    let kind = prop_oneof![6 => Just(K::Message), 3 => Just(K::Put), 2 => Just(K::RemoteGet), 2 => Just(K::Packet), 1 => Just(K::CallPut), 1 => Just(K::CallGet)];
    let len = prop_oneof![1 => Just(0), 2 => 1..100_usize, 2 => 100..9000_usize, 5 => 9000..300_000_usize, 2 => 300_000..3_000_000_usize];
    let extra = || prop_oneof![6 => Just(0_i64), 1 => Just(1), 1 => Just(-1), 1 => Just(1000)];
    let copy = || prop::sample::select(&[C::Both, C::Origin, C::Target, C::Auto][..]);
    let progress = || prop::sample::select(&[P::Adaptive, P::Inline, P::Poller][..]);
    let wait = prop_oneof![4 => Just(Wait::Auto), 2 => Just(Wait::Park), 1 => Just(Wait::Spin)];
    let stop = prop::option::weighted(0.6, (any::<prop::sample::Index>(), 0..=100_u64));
    let late = || prop_oneof![Just(0_u16), 0..300_u16];
    let first = (ground, kind, vec(len, 1..4), [extra(), extra()], [copy(), copy()]);
    let second = ([progress(), progress()], wait, [late(), late()], 1..3000_u64, stop);
    (first, second).prop_map(|((ground, kind, lens, extra, copy), (progress, wait, late, pause, stop))| {
        let mut stops = match kind {
            K::Message => vec![S::CancelSends, S::CancelSends, S::CancelReceives, S::CancelReceives],
            K::Put => vec![S::Withdraw, S::Withdraw],
            _ => vec![],
        };
        stops.extend([S::OriginLeaves, S::TargetLeaves]);
        // Over a network a death is told after seconds.
        if matches!(ground, Ground::Heap | Ground::Faulty) {
            stops.extend([S::OriginDies, S::TargetDies]);
        }
        let stop = stop.map(|(which, percent)| (*which.get(&stops), percent));
        Case { ground, kind, lens, extra, copy, progress, wait, late, pause, stop }
    })
}

/// What became of an operation at one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    /// It certainly did not take place.
    Not,
    Unknown,
}

impl End {
    fn of(result: &doorbell::Result<()>) -> Self {
        match result {
            Ok(()) => End::Done,
            Err(Error::Cancelled) => End::Not,
            Err(
                Error::PeerDied { .. }
                | Error::PeerLeft { .. }
                | Error::Closed
                | Error::BufferKept { .. }
                | Error::NoSuchNode { .. },
            ) => End::Unknown,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The bytes that operations have counted: at least, and at most.
fn counted(lens: &[usize], ends: &[End]) -> (u64, u64) {
    let each = lens.iter().zip(ends).map(|(len, end)| match end {
        End::Done => (*len, *len),
        // The last byte counts when the operation is certain.
        End::Not => (0, len.saturating_sub(1)),
        End::Unknown => (0, *len),
    });
    each.fold((0, 0), |(least, most), (low, high)| (least + low as u64, most + high as u64))
}

fn ranges(lens: &[usize]) -> Vec<Range<usize>> {
    lens.iter()
        .enumerate()
        .map(|(at, len)| (lens[..at].iter().sum(), *len))
        .map(|(start, len): (usize, _)| start..start + len)
        .collect()
}

/// An operation, until it is over.
struct Slot<T> {
    operation: Option<Operation<T>>,
    over: Option<End>,
}

impl<T> From<doorbell::Result<Operation<T>>> for Slot<T> {
    fn from(begun: doorbell::Result<Operation<T>>) -> Self {
        match begun {
            Ok(operation) => Self { operation: Some(operation), over: None },
            Err(error) => Self { operation: None, over: Some(End::of(&Err(error))) },
        }
    }
}

impl<T> Slot<T> {
    fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// Takes its end, if it has ended. Whether it has.
    fn look(&mut self, end: impl FnOnce(T) -> End) -> bool {
        if let Some(operation) = self.operation.take_if(|operation| operation.test()) {
            self.over = Some(end(operation.wait()));
        }
        self.is_over()
    }

    fn cancel(&mut self, end: impl FnOnce(T) -> End) {
        if let Some(operation) = self.operation.take() {
            self.over = Some(end(operation.cancel()));
        }
    }
}

struct Run<'a> {
    case: &'a Case,
    nodes: [Node; 2],
    sent: &'a Use,
    arrived: &'a Use,
    source: Region<u8>,
    target: Region<u8>,
    /// Of the target.
    packets: ReceptionFifo,
    /// What became of each operation at the origin.
    ended: OnceLock<Vec<End>>,
    /// The stop of the case has come.
    stopped: AtomicBool,
}

impl Run<'_> {
    fn begin(&self, end: usize) {
        (0..self.case.late[end]).for_each(|_| yield_now());
    }

    /// Does what was to happen at one of the ends when the time has come. Returns what has just happened.
    fn stop(&self, stops: &[Stop], of: &Use) -> Option<Stop> {
        let (stop, _) = self.case.stop.filter(|(stop, percent)| stops.contains(stop) && of.fell_to(*percent))?;
        if self.stopped.swap(true, SeqCst) {
            return None;
        }
        match stop {
            Stop::CancelSends | Stop::CancelReceives => {}
            Stop::Withdraw => self.target.withdraw().unwrap(),
            Stop::OriginLeaves | Stop::TargetLeaves => of.node.clone().leave().unwrap(),
            Stop::OriginDies | Stop::TargetDies => doorbell::testing::kill(&of.node),
        }
        Some(stop)
    }

    fn stop_origin(&self) -> Option<Stop> {
        self.stop(&[Stop::CancelSends, Stop::OriginLeaves, Stop::OriginDies], self.sent)
    }

    fn stop_target(&self) -> Option<Stop> {
        self.stop(&[Stop::CancelReceives, Stop::Withdraw, Stop::TargetLeaves, Stop::TargetDies], self.arrived)
    }

    /// Whether bytes may stay where they are.
    fn may_fail(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    fn origin(&self) -> Vec<End> {
        self.begin(0);
        let ends = match self.case.kind {
            Kind::Message => self.send(),
            Kind::Put | Kind::Packet => self.inject(0),
            Kind::CallPut => self.put(),
            Kind::RemoteGet | Kind::CallGet => {
                // The target's part: this end is there, or not.
                let deadline = soon();
                while self.ended.get().is_none() {
                    self.stop_origin();
                    let _ = self.nodes[0].progress();
                    assert!(Instant::now() < deadline, "the target does not end");
                    yield_now();
                }
                return self.ended.get().unwrap().clone();
            }
        };
        self.ended.set(ends.clone()).unwrap();
        if self.case.kind == Kind::Message {
            self.send_anew(&ends);
        }
        ends
    }

    fn target(&self) -> Vec<End> {
        self.begin(1);
        match self.case.kind {
            Kind::Message => self.receive(),
            Kind::Put | Kind::CallPut => {
                self.serve(|| {});
                self.ended.get().unwrap().clone()
            }
            Kind::Packet => self.take_packets(),
            Kind::RemoteGet | Kind::CallGet => {
                let ends = if self.case.kind == Kind::CallGet { self.get() } else { self.inject(1) };
                self.ended.set(ends.clone()).unwrap();
                ends
            }
        }
    }

    // ---- messages

    fn send(&self) -> Vec<End> {
        let peer = self.nodes[0].peer(self.nodes[1].id());
        let peer = match peer {
            Ok(peer) => peer,
            Err(error) => return vec![End::of(&Err(error)); self.case.lens.len()],
        };
        let begin = |(at, len): (usize, &usize)| self.sent.counter.start_send(&peer, at as u64, pattern::bytes(*len, at as u64));
        let mut sends: Vec<_> = self.case.lens.iter().enumerate().map(begin).map(Slot::from).collect();
        let deadline = soon();
        while sends.iter_mut().map(|send| send.look(|done| End::of(&done.result))).filter(|is_over| !is_over).count() > 0 {
            if self.stop_origin() == Some(Stop::CancelSends) {
                sends.iter_mut().for_each(|send| send.cancel(|done| End::of(&done.result)));
            }
            assert!(Instant::now() < deadline, "a send does not end");
            yield_now();
        }
        sends.into_iter().map(|send| send.over.unwrap()).collect()
    }

    /// Sends messages that were cancelled once more, and counts nothing: their receives may have lost one in the middle.
    fn send_anew(&self, ends: &[End]) {
        for at in (0..ends.len()).filter(|at| ends[*at] == End::Not) {
            let bytes = pattern::bytes(self.case.lens[at], at as u64 + ANEW);
            self.nodes[0].send_until(self.nodes[1].id(), at as u64, &bytes, soon()).unwrap();
        }
    }

    fn receive(&self) -> Vec<End> {
        let begin = |at: usize, len: usize| self.arrived.counter.start_recv(Match::any().tag(at as u64), vec![0; len]);
        let mut receives: Vec<_> = self.case.lens.iter().enumerate().map(|(at, len)| Slot::from(begin(at, *len))).collect();
        let mut again: Vec<Operation<_>> = Vec::new();
        let deadline = soon();
        // A message that was cancelled, and is sent anew, comes with other bytes.
        let is_second: Vec<_> = receives.iter().map(|_| Cell::new(false)).collect();
        let end = |at: usize| {
            let is_second = &is_second[at];
            move |done: doorbell::Received<Vec<u8>>| {
                if done.result.is_ok() {
                    let bytes = done.buffer.unwrap();
                    is_second.set(pattern::fault(&bytes, at as u64).is_some());
                    pattern::check(&bytes, at as u64 + if is_second.get() { ANEW } else { 0 });
                }
                End::of(&done.result.map(drop))
            }
        };
        loop {
            let origin = self.ended.get();
            if self.stop_target() == Some(Stop::CancelReceives) {
                for (at, receive) in receives.iter_mut().enumerate().filter(|(_, receive)| !receive.is_over()) {
                    receive.cancel(end(at));
                    if receive.over == Some(End::Not) || receive.over == Some(End::Unknown) {
                        // The message itself goes on, to a receive that counts nothing.
                        again.push(self.nodes[1].start_recv(Match::any().tag(at as u64), vec![0; self.case.lens[at]]).unwrap());
                    }
                }
            }
            for (at, receive) in receives.iter_mut().enumerate() {
                receive.look(end(at));
                // Its origin is gone.
                if origin.is_some_and(|origin| origin[at] == End::Unknown) && !receive.is_over() {
                    receive.cancel(end(at));
                }
            }
            if origin.is_some() && receives.iter().all(Slot::is_over) {
                break;
            }
            assert!(Instant::now() < deadline, "a receive does not end: {origin:?}");
            yield_now();
        }
        for (at, is_second) in is_second.iter().enumerate() {
            let was_cancelled = self.ended.get().unwrap()[at] == End::Not;
            assert!(was_cancelled == is_second.get() || self.case.lens[at] == 0, "a cancelled message arrived");
        }
        for operation in again {
            let done = operation.wait_until(soon()).unwrap_or_else(|_| panic!("a message does not go on"));
            pattern::check(&done.buffer.unwrap(), done.result.unwrap().tag);
        }
        receives.into_iter().map(|receive| receive.over.unwrap()).collect()
    }

    // ---- descriptors

    /// Injects descriptors at the origin, or remote gets at the target.
    fn inject(&self, at: usize) -> Vec<End> {
        let Ok(fifo) = InjectionFifo::builder(&self.nodes[at]).open() else { return vec![End::Unknown; self.case.lens.len()] };
        for (number, range) in ranges(&self.case.lens).into_iter().enumerate() {
            let source = self.source.key().range(range.clone());
            let moves = if self.case.kind == Kind::Packet {
                Descriptor::packet(source, self.packets.key(), number as u64)
            } else {
                Descriptor::put(source, self.target.key().range(range))
            };
            let moves = moves.unwrap().send_counter(self.sent.counter.key()).receive_counter(self.arrived.counter.key());
            let moves = if at == 0 { moves } else { Descriptor::remote_get(self.nodes[0].remote_get_fifo(), moves).unwrap() };
            match fifo.inject(&moves) {
                Ok(true) => {}
                Err(Error::Closed) => return vec![End::Unknown; self.case.lens.len()],
                other => panic!("{other:?}"),
            }
        }
        let deadline = soon();
        let (least, _) = counted(&self.case.lens, &vec![End::Done; self.case.lens.len()]);
        let moved =
            || [self.sent, self.arrived].iter().all(|at| at.size.saturating_sub(at.counter.value()) >= least.min(at.size));
        while fifo.depth() > 0 || !moved() {
            let _ = if at == 0 { self.stop_origin() } else { self.stop_target() };
            let turned = self.nodes[at].progress();
            if let Some((_, error)) = fifo.next_fault() {
                assert!(self.may_fail(), "{error}");
                let _ = fifo.wait_until(soon());
                return vec![End::Unknown; self.case.lens.len()];
            }
            if turned.is_err() || self.may_fail() && fifo.depth() == 0 {
                return vec![End::Unknown; self.case.lens.len()];
            }
            assert!(Instant::now() < deadline, "descriptors do not end: {} places are taken", fifo.depth());
            yield_now();
        }
        vec![End::Done; self.case.lens.len()]
    }

    /// The target's part of what the origin does alone.
    fn serve(&self, mut take: impl FnMut()) {
        let deadline = soon();
        while self.ended.get().is_none() {
            self.stop_target();
            let _ = self.nodes[1].progress();
            take();
            assert!(Instant::now() < deadline, "the origin does not end");
            yield_now();
        }
    }

    fn take_packets(&self) -> Vec<End> {
        let mut bytes = vec![0; self.case.lens.iter().sum()];
        let (packets, ranges) = (&self.packets, ranges(&self.case.lens));
        let mut take = || {
            while let Ok(Some(())) = packets.poll(|envelope, at, payload| {
                let range = ranges[envelope.tag as usize].clone();
                payload.copy_to(&mut bytes[range][at as usize..][..payload.len()]);
            }) {}
        };
        self.serve(&mut take);
        take();
        let ends = self.ended.get().unwrap().clone();
        if ends.iter().all(|end| *end == End::Done) && self.nodes[1].progress().is_ok() {
            pattern::check(&bytes, SEED);
        }
        ends
    }

    // ---- calls

    fn put(&self) -> Vec<End> {
        let bytes = pattern::bytes(self.case.lens.iter().sum(), SEED);
        let each = ranges(&self.case.lens).into_iter().map(|range| {
            self.stop_origin();
            let done = self.nodes[0].peer(self.nodes[1].id()).and_then(|peer| {
                self.sent.counter.put(&peer, &bytes[range.clone()], self.target.key().range(range.clone()))?;
                self.nodes[0].notify_until(self.arrived.counter.key(), range.len() as u64, soon())
            });
            self.end_of_call(done)
        });
        each.collect()
    }

    fn get(&self) -> Vec<End> {
        let mut bytes = vec![0; self.case.lens.iter().sum()];
        let each = ranges(&self.case.lens).into_iter().map(|range| {
            self.stop_target();
            let done = self.nodes[1].peer(self.nodes[0].id()).and_then(|peer| {
                self.arrived.counter.get(&peer, self.source.read_key().range(range.clone()), &mut bytes[range.clone()])?;
                self.nodes[1].notify_until(self.sent.counter.key(), range.len() as u64, soon())
            });
            self.end_of_call(done)
        });
        let ends: Vec<_> = each.collect();
        for (range, _) in ranges(&self.case.lens).into_iter().zip(&ends).filter(|(_, end)| **end == End::Done) {
            self.target.write(range.start, &bytes[range]).unwrap();
        }
        ends
    }

    fn end_of_call(&self, done: doorbell::Result<()>) -> End {
        if self.may_fail() && matches!(done, Err(Error::Key { .. } | Error::Severed { .. })) {
            End::Unknown
        } else {
            End::of(&done)
        }
    }
}

const SEED: u64 = 77;
/// Added to the seed of a message that is sent anew.
const ANEW: u64 = 1000;

fn run(case: &Case) {
    let world = World::new(case.ground, Progress::default(), case.wait);
    {
        let nodes = [0, 1].map(|at| {
            let builder = world.builder(at as u16).copy(case.copy[at]).progress(case.progress[at]);
            builder.join().unwrap()
        });
        for (at, node) in nodes.iter().enumerate() {
            until("the other node", || node.peer(nodes[1 - at].id()).ok());
        }
        run_between(case, nodes);
    }
    // What a killed node leaves.
    doorbell_shm::domain::clean(world.domain().space(), Some(world.domain().name()), true).unwrap();
}

fn run_between(case: &Case, nodes: [Node; 2]) {
    let [a, b] = &nodes;
    let total: usize = case.lens.iter().sum();
    let size = |end: usize| (total as i64 + case.extra[end]).max(0) as u64;
    // A message that is given up in the middle does not count.
    let rises = case.kind == Kind::Message && case.stop.is_some();
    let (sent, arrived) = (Use::begin(a, size(0), false), Use::begin(b, size(1), rises));
    let (source, target) = (a.region(total.max(1)).unwrap(), b.region(total.max(1)).unwrap());
    source.write(0, &pattern::bytes(total, SEED)).unwrap();
    let packets = ReceptionFifo::builder(b).open().unwrap();
    let (ended, stopped) = (OnceLock::new(), AtomicBool::new(false));
    let run = Run { case, nodes: nodes.clone(), sent: &sent, arrived: &arrived, source, target, packets, ended, stopped };
    scope(|scope| {
        let _release = [Release(&sent), Release(&arrived)];
        let pause = Duration::from_micros(case.pause);
        let run = &run;
        // All bytes have left: the program may use the source for something else.
        let left = move || {
            if case.extra[0] == 0 {
                run.source.fill(0xee).unwrap();
            }
        };
        let is_put = matches!(case.kind, Kind::Put | Kind::RemoteGet | Kind::CallPut);
        let here = move || {
            if case.extra[1] == 0 && is_put {
                let mut bytes = vec![0; total];
                run.target.read(0, &mut bytes).unwrap();
                pattern::check(&bytes, SEED);
            }
        };
        let threads = [sent.observe(scope, pause, left), arrived.observe(scope, pause, here)];
        let (origin, target) = (scope.spawn(|| run.origin()), scope.spawn(|| run.target()));
        let [at_origin, at_target] = [origin, target].map(joined);
        let [(least, most), (fewest, all)] = [&at_origin, &at_target].map(|ends| counted(&case.lens, ends));
        sent.end(least, most);
        arrived.end(fewest, all);
        threads.into_iter().for_each(Threads::join);
    });
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|error| std::panic::resume_unwind(error))
}

fn cases(otherwise: u64) -> ProptestConfig {
    let cases = doorbell_tests::number("DOORBELL_CASES", otherwise) as u32;
    ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 200,
        max_shrink_time: 40_000,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn a_counter_falls_to_zero_once_whatever_happens(case in case()) {
        run(&case);
    }
}
