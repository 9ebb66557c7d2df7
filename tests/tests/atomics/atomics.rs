//! Every operator of every type, by several processes at once on one cell, and its result.
//!
//! There are two checks. Where updates return the old value, each leads from one value to another, and all together lead from the first value to the
//! last: each value is left as often as it is reached. An update that is lost, done twice or torn breaks the sum over both. This holds
//! for every operator, floats too. Where updates return nothing, each process has an operand of its own. These commute, so that the order does not matter
//! and the result is known.

use doorbell::atomic::AtomicCell;
use doorbell::atomic::RemoteCell;
use doorbell::atomic::{self as cells, Atom, AtomicValue, New, Nothing, Offset, Old, Operate, TABLE, Tier, op, tier};
use doorbell::{Error, FabricKind, KEY_BYTES, Key, Match, Node, NodeBuilder, ReadWrite, atomic};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, soon};
use doorbell_tests::process::{Process, told, told_as};
use doorbell_tests::random::Random;
use doorbell_tests::words::Words;
use doorbell_tests::{LOOPBACK, Turn};
use std::sync::atomic::Ordering::{AcqRel, SeqCst};
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const PROCESSES: usize = 3;
/// Updates of each process in each phase of a case.
const UPDATES: usize = 10_000;
/// The same where some go by the network.
const UPDATES_APART: usize = 120;
/// Updates under way at once.
const AT_ONCE: usize = 16;
/// Cells of a region.
const CELLS: usize = 64;

/// The words beside the cells.
mod at {
    /// The number of arrivals at phases, all phases together.
    pub const ARRIVED: usize = 0;
    /// The digests of the values that the updates of a case left, minus those that they reached.
    pub const FLOW: usize = 1;
}

/// A value that tests can make and compare.
trait Sample: AtomicValue {
    /// One of many.
    fn sample(random: &mut Random) -> Self;
    /// An operand for a process. These commute under every operator but `Set`, and change the value.
    fn of_process(process: usize) -> Self;
    /// A number that differs for different values.
    fn digest(self) -> u64;
    /// The first value of a case.
    fn first() -> Self;
}

fn mix(bits: u128) -> u64 {
    let mut mixed = (bits as u64) ^ ((bits >> 64) as u64).rotate_left(29) ^ 0x9e37_79b9_7f4a_7c15;
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(factor);
    }
    mixed ^ (mixed >> 31)
}

macro_rules! integer_samples {
    ($($of:ident)+) => { $(
        impl Sample for $of {
            fn sample(random: &mut Random) -> Self {
                random.below(1 << 30) as $of
            }

            // Odd, so that products keep all of each other's bits.
            fn of_process(process: usize) -> Self {
                (2 * process + 3) as $of
            }

            fn digest(self) -> u64 {
                mix(self as u128)
            }

            fn first() -> Self {
                $of::MAX - 2
            }
        }
    )+ };
}

integer_samples!(u8 i8 u16 i16 u32 i32 u64 i64 u128 i128);

macro_rules! float_samples {
    ($($of:ident)+) => { $(
        impl Sample for $of {
            fn sample(random: &mut Random) -> Self {
                random.below(1 << 20) as $of / 64.0
            }

            // A power of two, and sums of few of them: nothing is rounded.
            fn of_process(_: usize) -> Self {
                2.0
            }

            fn digest(self) -> u64 {
                mix(self.to_bits().into())
            }

            fn first() -> Self {
                1.0
            }
        }
    )+ };
}

float_samples!(f32 f64);

impl Sample for bool {
    fn sample(random: &mut Random) -> Self {
        random.below(2) == 1
    }

    fn of_process(process: usize) -> Self {
        process.is_multiple_of(2)
    }

    fn digest(self) -> u64 {
        mix(self.into())
    }

    fn first() -> Self {
        true
    }
}

impl Sample for Offset {
    fn sample(random: &mut Random) -> Self {
        Offset(u64::sample(random))
    }

    fn of_process(process: usize) -> Self {
        Offset(u64::of_process(process))
    }

    fn digest(self) -> u64 {
        self.0.digest()
    }

    fn first() -> Self {
        Offset(u64::first())
    }
}

/// Eight bytes, updated by compare-and-swap: the second word is always the first one's complement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, AtomicValue)]
#[repr(C)]
struct Pair([u32; 2]);

/// Twelve bytes, in a word of sixteen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, AtomicValue)]
#[repr(C)]
struct Triple([u32; 3]);

/// Under a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, AtomicValue)]
#[repr(C)]
struct Large([u64; 9]);

/// The smallest value under a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, AtomicValue)]
#[repr(C)]
struct Odd([u8; 17]);

macro_rules! user_samples {
    ($($of:ident $word:ident)+) => { $(
        impl $of {
            /// All words follow from the first, so that half an update shows.
            fn from_word(word: $word) -> Self {
                $of(std::array::from_fn(|at| word.wrapping_mul(2 * at as $word + 1)))
            }

            fn word(self) -> $word {
                assert_eq!(self, Self::from_word(self.0[0]), "torn");
                self.0[0]
            }
        }

        user_samples!(@operators $of: Add add wrapping_add, Sub sub wrapping_sub, Mul mul wrapping_mul, Div div wrapping_div, Rem rem wrapping_rem);

        impl Sample for $of {
            fn sample(random: &mut Random) -> Self {
                Self::from_word($word::sample(random))
            }

            fn of_process(process: usize) -> Self {
                Self::from_word($word::of_process(process))
            }

            fn digest(self) -> u64 {
                self.word().digest()
            }

            fn first() -> Self {
                Self::from_word($word::first())
            }
        }
    )+ };
    (@operators $of:ident: $($op:ident $method:ident $of_word:ident),+) => { $(
        impl std::ops::$op for $of {
            type Output = Self;

            fn $method(self, by: Self) -> Self {
                Self::from_word(self.word().$of_word(by.word()))
            }
        }
    )+ };
}

user_samples!(Pair u32 Triple u32 Large u64 Odd u8);

/// Where an operand comes from.
#[derive(Clone, Copy)]
enum Source {
    /// Each process has an operand of its own.
    Process(usize),
    /// A random one, by this seed.
    Seed(u64),
}

/// Operands: values, and counts of shifts and steps of offsets.
trait Operand: Copy + Send + 'static {
    fn any(random: &mut Random) -> Self;
    fn of(process: usize) -> Self;

    fn from(source: Source) -> Self {
        match source {
            Source::Process(process) => Self::of(process),
            Source::Seed(seed) => Self::any(&mut Random::new(seed)),
        }
    }
}

impl<T: Sample> Operand for T {
    fn any(random: &mut Random) -> Self {
        T::sample(random)
    }

    fn of(process: usize) -> Self {
        T::of_process(process)
    }
}

/// An update that was started, and how to wait for it.
type Started = doorbell::Result<Box<dyn FnOnce()>>;

/// One operator of one type: what the compiler has to make for each operator. Everything else is made once for each type.
struct Operator<T: Sample> {
    name: &'static str,
    /// The same in plain Rust.
    apply: fn(T, Source) -> T,
    /// An update that returns the old value.
    fetch: fn(&RemoteCell<Atom<T>>, Source) -> T,
    /// An update that returns nothing.
    update: fn(&RemoteCell<Atom<T>>, Source),
    /// Begins an update that returns nothing. The result waits for its end.
    start: fn(&RemoteCell<Atom<T>>, Source) -> Started,
}

impl<T: Sample> Operator<T> {
    fn new<const O: char, R: Operand>(name: &'static str) -> Self
    where
        T: Operate<O, R>,
    {
        Self {
            name,
            apply: |value, by| cells::apply::<O, T, R>(value, R::from(by)),
            fetch: |cell, by| cells::operate::<O, Old, _, R>(cell, R::from(by), AcqRel).unwrap(),
            update: |cell, by| cells::operate::<O, Nothing, _, R>(cell, R::from(by), AcqRel).unwrap(),
            start: |cell, by| {
                let update = cell.start::<O, Nothing, R>(R::from(by))?;
                Ok(Box::new(|| update.wait().unwrap()))
            },
        }
    }

    fn is(&self, operator: &str) -> bool {
        self.name.ends_with(operator)
    }
}

/// Calls a macro for each type of the library's table and each of ours, with operators and the types of operands.
macro_rules! cases {
    ($then:ident) => {
        let _ = doorbell::atomic::atomic_table!($then);
        cases!(@ours $then Pair Triple Large Odd);
    };
    (@ours $then:ident $($of:ident)+) => { $(
        $then!($of: Add $of, Sub $of, Mul $of, Div $of, Rem $of, Max $of, Min $of, Set $of);
    )+ };
}

/// Waits until all processes have come.
fn meet(words: &Words, phase: &mut u64) {
    *phase += PROCESSES as u64;
    words[at::ARRIVED].fetch_add(1, SeqCst);
    let deadline = soon();
    while words[at::ARRIVED].load(SeqCst) < *phase {
        assert!(std::time::Instant::now() < deadline, "the others did not come to phase {phase}");
        std::thread::yield_now();
    }
}

/// One updating process.
struct Side<'a> {
    node: &'a Node,
    words: &'a Words,
    me: usize,
    phase: u64,
    random: Random,
    updates: usize,
}

impl Side<'_> {
    /// One operator of one type, in a cell of its own.
    fn case<T: Sample + PartialEq + std::fmt::Debug>(&mut self, operator: &Operator<T>, key: Key<Atom<T>, ReadWrite>) {
        let (cell, own, name) = (RemoteCell::open(self.node, key).unwrap(), Source::Process(self.me), operator.name);
        // Updates that return the old value.
        if self.me == 0 {
            self.words[at::FLOW].store(0, SeqCst);
            atomic! { cell = T::first() }.unwrap();
        }
        meet(self.words, &mut self.phase);
        let mut flow = 0_u64;
        for update in 0..self.updates {
            let (old, new) = match update % 4 {
                // A new value, because most operators end at zero or at the greatest value.
                3 => {
                    let value = T::sample(&mut self.random);
                    (atomic! { old: cell = value }.unwrap(), value)
                }
                2 => {
                    let mut old = None;
                    let new = cells::update::<New, _>(&cell, AcqRel, |value| {
                        old = Some(value);
                        (operator.apply)(value, own)
                    });
                    (old.unwrap(), new.unwrap())
                }
                _ => {
                    // A divisor that is zero ends a program.
                    let divides = operator.is("Div") || operator.is("Rem");
                    let operand = if divides { own } else { Source::Seed(self.random.next()) };
                    let old = (operator.fetch)(&cell, operand);
                    (old, (operator.apply)(old, operand))
                }
            };
            flow = flow.wrapping_add(old.digest()).wrapping_sub(new.digest());
        }
        self.words[at::FLOW].fetch_add(flow, SeqCst);
        meet(self.words, &mut self.phase);
        if self.me == 0 {
            let last: T = atomic! { cell }.unwrap();
            let whole = T::first().digest().wrapping_sub(last.digest());
            assert_eq!(self.words[at::FLOW].load(SeqCst), whole, "{name}: some update was lost, or took place twice");
            atomic! { cell = T::first() }.unwrap();
        }
        meet(self.words, &mut self.phase);
        // Updates that return nothing.
        let updates = if operator.is("Mul") { 30 } else { self.updates };
        for begin in (0..updates).step_by(AT_ONCE) {
            let begun: Vec<_> = (begin..updates.min(begin + AT_ONCE)).map(|_| (operator.start)(&cell, own)).collect();
            for begun in begun {
                match begun {
                    Ok(wait) => wait(),
                    // The network knows the operators of the library's types alone.
                    Err(Error::Unsupported { .. }) => (operator.update)(&cell, own),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        meet(self.words, &mut self.phase);
        if self.me == 0 {
            let last: T = atomic! { cell }.unwrap();
            let one_by_one = |order: [usize; PROCESSES]| {
                order.into_iter().fold(T::first(), |value, process| {
                    (0..updates).fold(value, |value, _| (operator.apply)(value, Source::Process(process)))
                })
            };
            let allowed = [[0, 1, 2], [1, 2, 0], [2, 0, 1]].map(one_by_one);
            // Remainders depend on the order, and `Set` on the last process.
            let known = if operator.is("Rem") { vec![last] } else { allowed.to_vec() };
            assert!(known.contains(&last), "{name}: {last:?} where {allowed:?} was right");
        }
        meet(self.words, &mut self.phase);
    }
}

/// The role: updates the cells of all cases in turn.
pub fn update() {
    let me: usize = told_as("ME");
    let words = Words::inherited();
    let (owner, ground) = (doorbell::NodeId(told_as("OWNER")), told("GROUND"));
    let builder = Node::builder(told("DOMAIN")).id(1 + me as u16);
    let node = match ground.as_str() {
        "udp" => apart(builder).join().unwrap(),
        "mixed" if me > 0 => apart(builder).join().unwrap(),
        _ => builder.join().unwrap(),
    };
    node.send(owner, 0, &[]).unwrap();
    let updates = if ground == "shm" { UPDATES } else { UPDATES_APART };
    let mut side = Side { node: &node, words: &words, me, phase: 0, random: Random::new(me as u64 + 1), updates };
    let mut number = 0;
    macro_rules! run {
        ($of:ident: $($op:ident $operand:ident),+) => {{
            let mut bytes = [0; KEY_BYTES];
            number += 1;
            node.recv_until(Match::any().tag(number), &mut bytes, soon()).unwrap();
            let key = Key::<Atom<$of>, ReadWrite>::from_bytes(&bytes).unwrap();
            // A lock does not go by the network.
            let goes = ground == "shm" || !matches!(tier::<$of>(), Tier::Lock);
            let mut cell = 0;
            $(
                if goes {
                    let operator = Operator::<$of>::new::<{ op::$op }, $operand>(concat!(stringify!($of), " ", stringify!($op)));
                    side.case(&operator, key.at(cell));
                }
                cell += 1;
            )+
            assert!(cell <= CELLS);
        }};
    }
    cases!(run);
    node.leave().unwrap();
}

/// A node that shares no memory with the owner, whose address the parent passed.
fn apart(builder: NodeBuilder) -> NodeBuilder {
    builder.fabric(FabricKind::Udp).connect(told("ADDRESS")).dead_after(DEAD_AFTER)
}

/// Longer than other work on the machine delays a process.
const DEAD_AFTER: Duration = Duration::from_secs(20);

#[test]
fn every_operator_of_every_type_is_exact_between_processes() {
    exact("shm");
}

#[test]
fn every_operator_of_every_type_is_exact_over_the_network() {
    exact("udp");
}

/// The first updates in place, and the others by the owner's engine.
#[test]
fn every_operator_of_every_type_is_exact_by_shared_memory_and_the_network_at_once() {
    exact("mixed");
}

fn exact(ground: &str) {
    let _turn = Turn::take();
    let domain = Domain::new("atomics");
    let builder = Node::builder(domain.name()).id(0).dead_after(DEAD_AFTER);
    let owner = match ground {
        "shm" => builder,
        "udp" => builder.fabric(FabricKind::Udp).listen(LOOPBACK),
        _ => builder.listen(LOOPBACK),
    };
    let owner = owner.join().unwrap();
    let address = owner.address().map_or(String::new(), |address| address.to_string());
    let words = Words::new(2);
    let start = |me: usize| {
        let start = Process::start("atomics: updater").words(&words).tell("DOMAIN", domain.name()).tell("ME", me.to_string());
        start.tell("OWNER", owner.id().0.to_string()).tell("GROUND", ground).tell("ADDRESS", &address).go()
    };
    let updaters: Vec<Process> = (0..PROCESSES).map(start).collect();
    let nodes: Vec<_> = updaters.iter().map(|_| owner.recv_until(Match::any().tag(0), &mut [], soon()).unwrap().source).collect();
    let (mut number, mut regions) = (0, Vec::<Box<dyn std::any::Any>>::new());
    macro_rules! offer {
        ($of:ident: $($op:ident $operand:ident),+) => {{
            let region = owner.region::<Atom<$of>>(CELLS).unwrap();
            number += 1;
            for node in &nodes {
                owner.send(*node, number, &region.key().to_bytes()).unwrap();
            }
            regions.push(Box::new(region));
        }};
    }
    cases!(offer);
    updaters.into_iter().for_each(|updater| updater.end_well(4 * PATIENCE));
    drop(regions);
    owner.leave().unwrap();
}

/// The words themselves, as a program writes them: on a cell of this node and on the same cell by its key.
#[test]
fn every_assignment_operator_is_an_expression() {
    let domain = Domain::new("expressions");
    let node = Node::builder(domain.name()).join().unwrap();
    macro_rules! expressions {
        ($of:ident: $($sign:tt $by:expr),+) => {{
            // A function for each type: a single one takes the compiler far longer.
            #[inline(never)]
            fn check(node: &Node) {
                let region = node.region::<$of>(1).unwrap();
                let (own, remote) = (AtomicCell::at(&region, 0).unwrap(), RemoteCell::open(node, region.key()).unwrap());
                $({
                    let start = 100 as $of;
                    let mut plain = start;
                    plain $sign $by;
                    atomic! { own = start };
                    atomic! { own $sign $by };
                    assert_eq!(atomic! { own }, plain, stringify!($of $sign));
                    assert_eq!(atomic! { old: own = start }, plain);
                    assert_eq!(atomic! { new: remote $sign $by }.unwrap(), plain, stringify!($of $sign));
                    assert_eq!(atomic! { old: remote = start }.unwrap(), plain);
                    assert_eq!(atomic! { old, attempts(1): own $sign $by if own > 99 as $of }, Ok(start));
                    assert_eq!(atomic! { new: remote = max(remote, 120 as $of) }.unwrap(), plain.max(120 as $of));
                    assert_eq!(atomic! { new: own = own.min(7 as $of) }, 7 as $of);
                })+
            }
            check(&node);
        }};
    }
    expressions!(u8: += 7, -= 7, *= 2, /= 7, %= 7, &= 12, |= 3, ^= 5, <<= 1, >>= 2);
    expressions!(i8: += 7, -= 7, /= 7, %= 7, &= 12, |= 3, ^= 5, >>= 2);
    expressions!(u16: += 7, -= 7, *= 7, /= 7, %= 7, &= 12, |= 3, ^= 5, <<= 2, >>= 2);
    expressions!(i16: += 7, -= 7, *= 7, /= 7, %= 7, &= 12, |= 3, ^= 5, <<= 2, >>= 2);
    expressions!(u32: += 7, -= 7, *= 7, /= 7, %= 7, &= 12, |= 3, ^= 5, <<= 2, >>= 2);
    expressions!(i32: += 7, -= 7, *= 7, /= 7, %= 7, &= 12, |= 3, ^= 5, <<= 2, >>= 2);
    expressions!(u64: += 7, -= 7, *= 7, /= 7, %= 7, &= 12, |= 3, ^= 5, <<= 2, >>= 2);
    expressions!(i64: += 7, -= 7, *= 7, /= 7, %= 7, &= 12, |= 3, ^= 5, <<= 2, >>= 2);
    expressions!(u128: += 7, -= 7, *= 7, /= 7, %= 7, &= 12, |= 3, ^= 5, <<= 2, >>= 2);
    expressions!(i128: += 7, -= 7, *= 7, /= 7, %= 7, &= 12, |= 3, ^= 5, <<= 2, >>= 2);
    expressions!(f32: += 7.0, -= 7.0, *= 7.0, /= 7.0, %= 7.0);
    expressions!(f64: += 7.0, -= 7.0, *= 7.0, /= 7.0, %= 7.0);
    node.leave().unwrap();
}

/// The table of this platform, as the compiler knows it.
#[cfg(target_arch = "x86_64")]
const _: () = {
    const fn is(row: &cells::Row, ops: &[&str]) -> bool {
        let mut at = 0;
        while at < ops.len() {
            let (one, other) = (ops[at].as_bytes(), row.op.as_bytes());
            let mut same = one.len() == other.len();
            let mut byte = 0;
            while same && byte < one.len() {
                same = one[byte] == other[byte];
                byte += 1;
            }
            if same {
                return true;
            }
            at += 1;
        }
        false
    }
    let mut types = 0;
    while types < TABLE.len() {
        let mut at = 0;
        while at < TABLE[types].len() {
            let row = &TABLE[types][at];
            let wide = matches!(row.value.as_bytes(), b"u128" | b"i128");
            let float = matches!(row.value.as_bytes(), b"f32" | b"f64");
            let native = !wide && (is(row, &["Set"]) || !float && is(row, &["Add", "Sub", "And", "Or", "Xor"]));
            let native_fetch = !wide && (is(row, &["Set"]) || !float && is(row, &["Add", "Sub"]));
            assert!(matches!(row.tier, Tier::Native) == native && matches!(row.tier_fetch, Tier::Native) == native_fetch);
            assert!(!matches!(row.tier, Tier::Lock) && !matches!(row.tier_fetch, Tier::Lock));
            at += 1;
        }
        types += 1;
    }
    assert!(matches!(tier::<Pair>(), Tier::CompareAndSwap) && matches!(tier::<Triple>(), Tier::CompareAndSwap));
    assert!(matches!(tier::<Large>(), Tier::Lock) && matches!(tier::<Odd>(), Tier::Lock));
    assert!(
        matches!(<Pair as Operate<{ op::Set }>>::TIER, Tier::Native)
            && matches!(<Large as Operate<{ op::Set }>>::TIER, Tier::Lock)
    );
    assert!(
        matches!(<Pair as Operate<{ op::Add }>>::TIER, Tier::CompareAndSwap)
            && matches!(<Large as Operate<{ op::Add }>>::TIER, Tier::Lock)
    );
};
