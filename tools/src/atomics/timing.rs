//! How long updates take: the same expression by each tier, alone and contended.

use super::report::{RemoteRow, Row, Times};
use crate::environment::space;
use crate::exit::{Explain, Failure};
use crate::experiment::pin;
use crate::text::median;
use doorbell::atomic::{
    self as cells, AtomicCell, AtomicValue, ByLock, New, Nothing, Offset, Old, Operate, RemoteCell, TABLE, Word,
};
use doorbell::{FabricKind, Match, Node, NodeId, Operation, PortKind, Region, Role, atomic};
use doorbell_benches::{Clock, ticks};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Uncontended sections of each kind. The median counts.
const SECTIONS: usize = 15;
/// Updates of a section.
const UPDATES: u32 = 10_000;
/// How long threads contend for a cell, and how often. The median counts.
const SPAN: Duration = Duration::from_millis(3);
const SPANS: usize = 5;
/// Over the network: rounds, in which every kind has a section; updates of a section one at a time; and updates of a section with many under way.
const ROUNDS: usize = 101;
const TRIPS: usize = 200;
const AT_ONCE: usize = 64;
const MANY: usize = 1000;
/// How long all rounds may take.
const LONGEST: Duration = Duration::from_secs(5);
/// After so long a silence the other node counts as dead. A busy machine holds a thread up for less.
const SILENCE: Duration = Duration::from_secs(5);
/// Tags of messages: one to send back, and the last one.
const ECHO: u64 = 1;
const LAST: u64 = 2;

/// The clock and the threads of the measurement.
pub struct Bench<'a> {
    clock: Clock,
    pin: &'a [usize],
    threads: usize,
}

/// Updates a cell so many times. A pointer, so that the loops around it exist once and not for each operator of each type.
type Update<'a> = &'a (dyn Fn(u32) + Sync);

/// A cell on cache lines of its own.
#[repr(align(256))]
struct Apart<T: AtomicValue>(AtomicCell<T>);

/// Operands that change a value: one, or true.
trait Operand: Copy + Send + Sync {
    const ONE: Self;
}

macro_rules! operands {
    ($($of:ident $one:expr;)+) => { $(
        impl Operand for $of {
            const ONE: Self = $one;
        }
    )+ };
}

operands!(u8 1; i8 1; u16 1; i16 1; u32 1; i32 1; u64 1; i64 1; u128 1; i128 1; f32 1.0; f64 1.0; bool true; Offset Offset(1););

impl<'a> Bench<'a> {
    /// A measurement by threads on these processors, in turn. The calling thread moves to the first.
    pub fn new(processors: &'a [usize], threads: usize) -> Result<Self, Failure> {
        pin(processors.first().copied())?;
        Ok(Self { clock: Clock::calibrate(), pin: processors, threads })
    }

    /// All operators of all types that are wanted.
    pub fn rows(&self, wants: impl Fn(&str, &str) -> bool) -> Result<Vec<Row>, Failure> {
        let mut found = Vec::new();
        let mut types = TABLE.iter();
        macro_rules! measure {
            ($of:ident: $($op:ident $operand:ident),+) => {{
                let mut rows = types.next().into_iter().copied().flatten();
                $(
                    if let Some(row) = rows.next().filter(|row| wants(row.value, row.op)) {
                        found.push(self.row::<$of, { cells::op::$op }, $operand>(row)?);
                    }
                )+
            }};
        }
        let _ = doorbell::atomic::atomic_table!(measure);
        Ok(found)
    }

    fn row<T, const O: char, R>(&self, row: &cells::Row) -> Result<Row, Failure>
    where
        T: Operand + Operate<O, R>,
        T::Form: Word,
        R: Operand,
    {
        let cell = Apart(AtomicCell::new(T::ONE));
        let locked = Apart(AtomicCell::new(ByLock(T::ONE)));
        let (cell, locked, swapped) = (&cell.0, &locked.0, cell.0.by_swap());
        let as_is = |times| (0..times).for_each(|_| cells::operate::<O, Nothing, _, R>(cell, R::ONE, AcqRel));
        let fetch = |times| (0..times).for_each(|_| kept(cells::operate::<O, Old, _, R>(cell, R::ONE, AcqRel)));
        let swap = |times| (0..times).for_each(|_| cells::operate::<O, Nothing, _, R>(&swapped, R::ONE, AcqRel));
        let change = |ByLock(value)| ByLock(cells::apply::<O, T, R>(value, R::ONE));
        let lock = |times| (0..times).for_each(|_| cells::update::<Nothing, _>(locked, AcqRel, change));
        let ways: [Update<'_>; 4] = [&as_is, &fetch, &swap, &lock];
        let times = |time: &dyn Fn(Update<'_>) -> Result<f64, Failure>| -> Result<Times, Failure> {
            let [as_is, fetch, swap, lock] = ways.map(time);
            Ok(Times { as_is_ns: as_is?, fetch_ns: fetch?, swap_ns: swap?, lock_ns: lock? })
        };
        let (alone, contended) = (times(&|way| Ok(self.alone(way)))?, times(&|way| self.contended(way))?);
        Ok(Row { alone: Some(alone), contended: Some(contended), ..Row::tiers(row) })
    }

    /// Nanoseconds of one update by one thread: the median of several sections.
    fn alone(&self, update: Update<'_>) -> f64 {
        let section = || {
            let began = ticks();
            update(UPDATES);
            ticks() - began
        };
        section();
        let ticks = median((0..SECTIONS).map(|_| section() as f64)).unwrap_or(0.0);
        self.clock.ns(ticks) / f64::from(UPDATES)
    }

    /// Nanoseconds an update while all threads do it: the median of several spans.
    fn contended(&self, update: Update<'_>) -> Result<f64, Failure> {
        let spans = (0..SPANS).map(|_| self.span(update)).collect::<Result<Vec<f64>, Failure>>()?;
        Ok(median(spans).unwrap_or(0.0))
    }

    /// The time of all threads over the updates of all.
    fn span(&self, update: Update<'_>) -> Result<f64, Failure> {
        let (ready, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let thread = |number: usize| {
            let pinned = pin(self.pin.get(number % self.pin.len().max(1)).copied());
            ready.fetch_add(1, Ordering::SeqCst);
            while ready.load(Ordering::SeqCst) < self.threads {
                std::thread::yield_now();
            }
            let (began, mut updates) = (ticks(), 0_u64);
            // At least once, even if this thread started late.
            loop {
                update(64);
                updates += 64;
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            pinned.map(|()| (updates, self.clock.ns((ticks() - began).max(1) as f64)))
        };
        std::thread::scope(|scope| {
            let thread = &thread;
            let threads: Vec<_> = (0..self.threads).map(|number| scope.spawn(move || thread(number))).collect();
            while ready.load(Ordering::SeqCst) < self.threads {
                std::thread::yield_now();
            }
            std::thread::sleep(SPAN);
            stop.store(true, Ordering::Relaxed);
            let mut a_second = 0.0;
            for thread in threads {
                let (updates, ns) = thread.join().expect("a thread that only updates a cell")?;
                a_second += updates as f64 / ns;
            }
            Ok(1.0 / a_second)
        })
    }

    /// A cell of another node that shares memory.
    pub fn remote(&self) -> Result<Vec<RemoteRow>, Failure> {
        self.over_shm().or_usage("could not measure a cell of another node", "")
    }

    /// A cell of another node that only the network reaches.
    pub fn network(&self, port: PortKind) -> Result<Vec<RemoteRow>, Failure> {
        let second = self.pin.get(1 % self.pin.len().max(1)).copied();
        let wrong = |error: doorbell::Error| {
            Failure::usage(format!("could not measure a cell over the network: {error}"), "").see(&error)
        };
        let name = format!("atomics-{}", std::process::id());
        let builder = || {
            let builder = Node::builder(&name).role(Role::Host).label("atomics").max_nodes(2).space(space());
            builder.fabric(FabricKind::Udp).udp_port(port).dead_after(SILENCE)
        };
        let owner = builder().listen(([127, 0, 0, 1], 0)).join().map_err(wrong)?;
        let address = owner.address().unwrap_or_else(|| unreachable!("a node that listens has an address"));
        let other = builder().connect(address).join().map_err(wrong)?;
        let words: Region<u64> = owner.region(1).map_err(wrong)?;
        let rows = std::thread::scope(|scope| {
            let echo = scope.spawn(|| pin(second).and_then(|()| send_back(&owner, other.id()).map_err(wrong)));
            let rows = self.over_udp(&other, owner.id(), &words).map_err(wrong);
            let last = other.send(owner.id(), LAST, &[]).map_err(wrong);
            echo.join().expect("a thread that only sends back").and(last).and(rows)
        })?;
        other.leave().map_err(wrong)?;
        drop(words);
        owner.leave().map_err(wrong)?;
        Ok(rows)
    }

    fn over_udp(&self, node: &Node, to: NodeId, words: &Region<u64>) -> doorbell::Result<Vec<RemoteRow>> {
        let cell: RemoteCell<u64> = RemoteCell::open(node, words.key())?;
        let trip = || -> doorbell::Result<()> {
            node.send(to, ECHO, &[1; 8])?;
            node.recv(Match::from(to).tag(ECHO), &mut [0; 8]).map(drop)
        };
        let many = || -> doorbell::Result<()> {
            let mut under_way = VecDeque::with_capacity(AT_ONCE);
            for _ in 0..MANY {
                if under_way.len() == AT_ONCE
                    && let Some(oldest) = under_way.pop_front()
                {
                    kept(Operation::wait(oldest)?);
                }
                under_way.push_back(cell.start::<{ cells::op::Add }, Old, _>(1)?);
            }
            under_way.into_iter().try_for_each(|update| update.wait().map(kept))
        };
        type Do<'a> = &'a dyn Fn() -> doorbell::Result<()>;
        let kinds: [(&'static str, Do<'_>, usize, usize); 5] = [
            ("8 bytes there and back", &trip, TRIPS, 1),
            ("cell += 1, one at a time", &|| atomic! { cell += 1 }, TRIPS, 1),
            ("old: cell += 1, one at a time", &|| atomic! { old: cell += 1 }.map(kept), TRIPS, 1),
            ("new: cell = f(cell), one at a time", &|| atomic! { new: cell = cell.rotate_left(1) ^ 5 }.map(kept), TRIPS, 1),
            ("old: cell += 1, 64 under way", &many, 1, MANY),
        ];
        let mut figures = [const { Vec::new() }; 5];
        let deadline = Instant::now() + LONGEST;
        for round in 0..=ROUNDS {
            // On busy processors each update waits for its turn.
            if round > 1 && Instant::now() > deadline {
                break;
            }
            for ((_, update, times, each), figures) in kinds.iter().zip(&mut figures) {
                let began = ticks();
                (0..*times).try_for_each(|_| update())?;
                // The first round opens connections, and does not count.
                if round > 0 {
                    figures.push(self.clock.ns((ticks() - began) as f64) / (times * each) as f64);
                }
            }
        }
        let row = |((what, ..), figures): (&(&'static str, Do<'_>, usize, usize), Vec<f64>)| RemoteRow {
            what,
            ns: median(figures).unwrap_or(0.0),
        };
        Ok(kinds.iter().zip(figures).map(row).collect())
    }

    fn over_shm(&self) -> doorbell::Result<Vec<RemoteRow>> {
        let join = || {
            let name = format!("atomics-{}", std::process::id());
            Node::builder(&name).role(Role::Host).label("atomics").max_nodes(2).space(space()).join()
        };
        let (owner, other) = (join()?, join()?);
        let words: Region<u64> = owner.region(64)?;
        let locked: Region<cells::Atom<ByLock<u64>>> = owner.region(1)?;
        let cell: RemoteCell<u64> = RemoteCell::open(&other, words.key())?;
        let under_lock = RemoteCell::open(&other, locked.key())?;
        let own = AtomicCell::at(&words, 32)?;
        macro_rules! row {
            ($what:literal, $update:expr) => {
                RemoteRow { what: $what, ns: self.alone(&|times| (0..times).for_each(|_| $update)) }
            };
        }
        let rows = vec![
            row!("own region, cell += 1", atomic! { own += 1 }),
            row!("own region, old: cell += 1", kept(atomic! { old: own += 1 })),
            row!("by key, cell += 1", ignore(atomic! { cell += 1 })),
            row!("by key, old: cell += 1", ignore(atomic! { old: cell += 1 })),
            row!("by key, new: cell = f(cell)", ignore(atomic! { new: cell = cell.rotate_left(1) ^ 5 })),
            row!("by key, under a lock", ignore(atomic! { under_lock += 1 })),
            row!("by key, cell read", ignore(atomic! { cell })),
        ];
        // Fails if the updates did not take place.
        atomic! { old: cell = 0 }?;
        let _ = cells::update::<New, _>(&under_lock, AcqRel, |value| value)?;
        drop((cell, under_lock));
        other.leave()?;
        drop((words, locked));
        owner.leave()?;
        Ok(rows)
    }
}

/// Sends back the messages of a node, up to the last one.
fn send_back(node: &Node, to: NodeId) -> doorbell::Result<()> {
    let mut bytes = [0; 8];
    loop {
        let envelope = node.recv(Match::from(to), &mut bytes)?;
        if envelope.tag == LAST {
            return Ok(());
        }
        node.send(to, ECHO, &bytes)?;
    }
}

/// Keeps the compiler from dropping the value.
#[inline(always)]
fn kept<T>(value: T) {
    std::hint::black_box(value);
}

/// Ignores an error: the nodes of this measurement do not leave before its end.
#[inline(always)]
fn ignore<T>(result: doorbell::Result<T>) {
    kept(result.is_ok());
}
