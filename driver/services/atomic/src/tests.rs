//! The guarantees of cells within one process.

use super::code::{AtomicRequest, TypeCode};
use super::codes::OpCode;
use super::*;
use doorbell_engine::{Error, KeyFault, Node, Space};
use doorbell_macros::atomic;
use std::sync::atomic::Ordering;
use std::thread;
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, AtomicValue)]
#[repr(C)]
struct Twelve([u32; 3]);

impl std::ops::Add<u32> for Twelve {
    type Output = Self;

    fn add(self, by: u32) -> Self {
        Twelve(self.0.map(|word| word + by))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, AtomicValue)]
#[repr(C)]
struct Large([u64; 5]);

impl std::ops::Add<u64> for Large {
    type Output = Self;

    fn add(self, by: u64) -> Self {
        Large(self.0.map(|word| word + by))
    }
}

const _: () = {
    assert!(matches!(tier::<Twelve>(), Tier::CompareAndSwap) && size_of::<Atom<Twelve>>() == 16);
    assert!(matches!(tier::<Large>(), Tier::Lock) && size_of::<Atom<Large>>() == 16 + 2 * 40);
};

#[test]
fn every_form_of_an_update_says_what_it_did() {
    let cell = AtomicCell::new(10_i32);
    atomic! { cell += 5 };
    atomic! { cell = cell - 3; }
    assert_eq!(atomic! { old: cell *= 2 }, 12);
    assert_eq!(atomic! { new, relaxed: cell /= 5 }, 4);
    assert_eq!(atomic! { seq_cst, new: cell <<= 3 }, 32);
    assert_eq!(atomic! { old: cell = 7 }, 32);
    assert_eq!(atomic! { new: cell = std::cmp::max(9, cell) }, 9);
    assert_eq!(atomic! { new: cell = cell.min(8) }, 8);
    let (step, cells) = (3, [&cell]);
    assert_eq!(atomic! { new: cells[0] = (cells[0] + step) * cells[0] }, 88);
    assert_eq!(atomic! { old: cell = cell.pow(2) if cell < 50 }, Err(AtomicError::Declined));
    assert_eq!(atomic! { new: cell -= 80 if cell > 50 }, Ok(8));
    assert_eq!(atomic! { old, attempts(1): cell ^= 1 }, Ok(8));
    assert_eq!(atomic! { acquire: cell }, 9);
    // The macro leaves an expression's own names alone, and labels, items and fields, too.
    struct Wrapper {
        cell: i32,
    }
    assert_eq!(atomic! { new: cell = Wrapper { cell }.cell + 1 }, 10);
    let found = Some(3);
    assert_eq!(atomic! { new: cell = found.map_or(cell, |found| cell + found) }, 13);
    let labelled = atomic! { new: cell = 'inner: {
        fn same(cell: i32) -> i32 {
            for _ in 0..2 {
                if cell > 0 {
                    return cell;
                }
            }
            0
        }
        if cell > 100 {
            break 'inner same(0);
        }
        'outer: loop {
            for left in 0.. {
                if left == cell - 13 {
                    break 'outer same(left);
                }
            }
        }
    } };
    assert_eq!(labelled, 0);
    assert_eq!(atomic! { new: cell = { println!("a {{cell}} is no cell"); cell + 1 } }, 1);
    // An operand is evaluated before the update, and a macro call in it sees the cell itself.
    macro_rules! read {
        ($cell:expr) => {
            atomic! { $cell }
        };
    }
    assert_eq!(atomic! { new: cell = cell + read!(cell) }, 2);
    assert_eq!(atomic! { new: cell += read!(cell) }, 4);
    assert_eq!(atomic! { new: cell = read!(cell) + 1 }, 5);
    assert_eq!(atomic! { new: cell = cell + read!(cell) if cell == 5 }, Ok(10));
    let old = AtomicCell::new(1_u8);
    atomic! { old += 255 };
    assert_eq!(atomic! { old }, 0);
}

#[test]
fn an_attempt_that_is_overtaken_is_not_performed() {
    let cell = AtomicCell::new(0_u64);
    let mut others = 0;
    let result = super::attempt::<Old, _>(&cell, Some(3), Ordering::AcqRel, |value| {
        // Another update comes between each time.
        others += 1;
        atomic! { cell += 100 };
        Some(value + 1)
    });
    assert_eq!((result, others, atomic! { cell }), (Err(AtomicError::Attempts), 3, 300));
    assert_eq!(super::attempt::<Old, _>(&cell, Some(0), Ordering::AcqRel, Some), Err(AtomicError::NoAttempt));
    let (large, none) = (AtomicCell::new(Large::default()), u32::from(others > 3));
    let refused = atomic! { attempts(none): large += 1 };
    assert_eq!(refused, Err(AtomicError::NoAttempt));
}

#[test]
// Miri itself fails where the stack held atomics of another size before.
#[cfg_attr(miri, ignore)]
fn an_update_within_one_of_the_same_cell_does_not_wait_for_itself() {
    let private = AtomicCell::new(Large::default());
    let twice = || super::update::<Nothing, _>(&private, Ordering::AcqRel, |_| atomic! { new: private += 1 });
    let nested = std::panic::catch_unwind(twice);
    assert!(nested.unwrap_err().downcast_ref::<&str>().unwrap().contains("deadlock with itself"));
    assert_eq!(atomic! { private }, Large([0; 5]));

    let node = Node::builder("nested").space(Space::heap()).join().unwrap();
    let region = node.region::<Atom<Large>>(2).unwrap();
    let [cell, other] = [0, 1].map(|at| RemoteCell::open(&node, region.key().at(at)).unwrap());
    let mut why = None;
    super::update::<Nothing, _>(&cell, Ordering::AcqRel, |value| {
        atomic! { other += 1 }.unwrap();
        why = atomic! { cell += 1 }.err();
        value
    })
    .unwrap();
    assert!(matches!(why, Some(Error::Unsupported { .. })), "{why:?}");
    atomic! { cell += 1 }.unwrap();
    // The lock is lost in the middle: the outcome is unknown, and the value is the old one.
    let mut attempts = 0;
    let lost = super::update::<Nothing, _>(&cell, Ordering::AcqRel, |value| {
        attempts += 1;
        region.write(0, &[Atom::new(Large([7; 5]))]).unwrap();
        value + 1
    });
    let lost = lost.unwrap_err();
    assert_eq!((lost.certainty(), attempts), (doorbell_engine::Certainty::Unknown, 1));
    assert!(matches!(lost.downcast_ref(), Some(AtomicError::LockLost { .. })), "{lost}");
    assert_eq!(atomic! { cell }.unwrap(), Large([7; 5]));
    node.leave().unwrap();
}

#[test]
fn values_of_any_size_are_updated_whole() {
    let (twelve, large) = (AtomicCell::new(Twelve::default()), AtomicCell::new(Large::default()));
    let rounds = if cfg!(miri) { 5 } else { 5000 };
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for round in 0..rounds {
                    atomic! { twelve += 1 };
                    atomic! { large += 1 };
                    atomic! { large = Large(large.0.map(|word| word + 1)) };
                    let (Twelve(twelve), Large(large)) = (atomic! { twelve }, atomic! { large });
                    assert!(twelve.iter().all(|word| *word == twelve[0]), "{round}: {twelve:?}");
                    assert!(large.iter().all(|word| *word == large[0]), "{round}: {large:?}");
                }
            });
        }
    });
    assert_eq!((atomic! { twelve }, atomic! { large }), (Twelve([3 * rounds as u32; 3]), Large([6 * rounds; 5])));
    assert_eq!(atomic! { old: large = max(large, Large([1; 5])) if large.0[0] == 0 }, Err(AtomicError::Declined));
    assert_eq!(atomic! { new: large = Large([2; 5]) }, Large([2; 5]));
    assert_eq!(format!("{twelve:?}"), format!("AtomicCell(Twelve([{0}, {0}, {0}]))", 3 * rounds));
}

/// Values that are equal in order, and still differ.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, AtomicValue)]
#[repr(C)]
struct Ranked {
    rank: u32,
    name: u32,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank.cmp(&other.rank)
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked {}

#[test]
fn of_equal_values_the_one_stays_that_the_language_says() {
    use std::cmp::{max, min};
    let (one, other) = (Ranked { rank: 1, name: 1 }, Ranked { rank: 1, name: 2 });
    macro_rules! same {
        ($($call:ident)+) => { $({
            let cell = AtomicCell::new(one);
            assert_eq!(atomic! { new: cell = $call(cell, other) }.name, $call(one, other).name);
            let cell = AtomicCell::new(one);
            assert_eq!(atomic! { new: cell = $call(other, cell) }.name, $call(other, one).name);
            let cell = AtomicCell::new(one);
            assert_eq!(atomic! { new: cell = cell.$call(other) }.name, one.$call(other).name);
            let cell = AtomicCell::new(one);
            assert_eq!(atomic! { new: cell = other.$call(cell) }.name, other.$call(one).name);
            let cell = AtomicCell::new(one);
            assert_eq!(atomic! { new: cell = $call(other, cell) if cell.rank == 1 }.unwrap().name, $call(other, one).name);
        })+ };
    }
    same!(max min);
    let float = AtomicCell::new(f64::NAN);
    assert_eq!(atomic! { new: float = max(2.0, float) }, 2.0);
}

#[test]
fn instructions_and_loops_on_one_word_see_each_other() {
    let (cell, rounds) = (AtomicCell::new(0_u64), if cfg!(miri) { 20 } else { 50_000 });
    let by_swap = cell.by_swap();
    thread::scope(|scope| {
        scope.spawn(|| (0..rounds).for_each(|_| atomic! { cell += 1 }));
        scope.spawn(|| (0..rounds).for_each(|_| atomic! { by_swap += 1 }));
        scope.spawn(|| (0..rounds).for_each(|_| atomic! { cell = cell.rotate_left(0) + 1 }));
    });
    assert_eq!(atomic! { cell }, 3 * rounds);
}

#[test]
fn a_cell_in_a_region_is_the_same_to_all() {
    let space = Space::heap();
    let [a, b] = [(); 2].map(|()| Node::builder("cells").space(space.clone()).join().unwrap());
    let (words, large) = (b.region::<u64>(4).unwrap(), b.region::<Atom<Large>>(2).unwrap());
    let own = AtomicCell::at(&words, 2).unwrap();
    let remote = RemoteCell::at(&a.peer(b.id()).unwrap(), words.key().at(2)).unwrap();
    atomic! { own += 5 };
    assert_eq!(atomic! { old: remote *= 3 }.unwrap(), 5);
    assert_eq!((atomic! { own }, atomic! { remote }.unwrap()), (15, 15));
    let mut all = [0; 4];
    words.read(0, &mut all).unwrap();
    assert_eq!(all, [0, 0, 15, 0]);
    assert!(matches!(AtomicCell::at(&words, 4), Err(Error::Invalid { .. })));

    let [from_a, from_b] = [&a, &b].map(|node| RemoteCell::open(node, large.key().at(1)).unwrap());
    thread::scope(|scope| {
        for cell in [&from_a, &from_b] {
            scope.spawn(move || (0..if cfg!(miri) { 3 } else { 1000 }).for_each(|_| atomic! { cell += 1 }.unwrap()));
        }
    });
    let sum = atomic! { from_a }.unwrap();
    assert_eq!(sum, Large([if cfg!(miri) { 6 } else { 2000 }; 5]));
    let declined = atomic! { from_a += 1 if from_a.0[0] == 0 };
    assert_eq!(declined.unwrap_err().downcast_ref(), Some(&AtomicError::Declined));

    let why = |result: doorbell_engine::Result<()>| match result {
        Err(Error::Key { why, .. }) => Some(why),
        _ => None,
    };
    assert_eq!(why(RemoteCell::open(&a, words.key().at(4)).map(drop)), Some(KeyFault::OutOfRange));
    assert_eq!(
        why(RemoteCell::at(&a.peer(b.id()).unwrap(), a.region::<u8>(1).unwrap().key()).map(drop)),
        Some(KeyFault::OtherNode)
    );
    words.withdraw().unwrap();
    assert_eq!(why(atomic! { remote += 1 }), Some(KeyFault::Stale));
    b.abandon();
    let gone = (0..1000).find_map(|_| atomic! { from_a += 1 }.err()).unwrap();
    assert!(matches!(gone, Error::PeerDied { .. }), "{gone}");
    a.leave().unwrap();
    assert!(matches!(atomic! { from_a += 1 }, Err(Error::Closed)));
}

#[test]
fn a_request_does_what_the_expression_does() {
    macro_rules! same {
        ($of:ident: $($op:ident $operand:ident),+) => {{ $({
            // None of them is a NaN, whose bits are not specified.
            for (start, by) in [(1_u8, 1_u8), (0xf3, 0x7f), (0x80, 3), (0, 0x40)] {
                let bytes = [start; 16];
                let (start, operand) = ($of::from_bytes(&bytes), $operand::from_bytes(&[by; 16]));
                let one = AtomicCell::new(start);
                let expected: $of = super::operate::<{ super::op::$op }, New, _, _>(&one, operand, Ordering::AcqRel);
                let other = AtomicCell::new(start);
                let request = AtomicRequest::operate::<{ super::op::$op }, $operand, $of>(operand, true).unwrap();
                let request = AtomicRequest::from_bytes(&request.to_bytes()).unwrap();
                // SAFETY: a cell of this type.
                let old = unsafe { request.perform((&raw const other).cast_mut().cast()) };
                let bits = |value: $of| { let mut bytes = [0; 16]; value.write_bytes(&mut bytes); bytes };
                assert_eq!((bits(load(&other, Ordering::Acquire)), old), (bits(expected), bits(start)), "{request:?}");
            }
        })+ }};
    }
    let _ = crate::atomic_table!(same);
    let cell = AtomicCell::new(Twelve([1, 2, 3]));
    let bytes = |value: Twelve| {
        let mut bytes = [0; 16];
        value.write_bytes(&mut bytes);
        bytes
    };
    let of = TypeCode::of::<Twelve>().unwrap();
    let (expected, operand) = (bytes(Twelve([1, 2, 3])), bytes(Twelve([4, 5, 6])));
    let swap = AtomicRequest { op: OpCode::CompareSwap, of, fetch: true, operand, expected };
    for _ in 0..2 {
        // SAFETY: a cell of this type.
        unsafe { AtomicRequest::from_bytes(&swap.to_bytes()).unwrap().perform((&raw const cell).cast_mut().cast()) };
        assert_eq!(atomic! { cell }, Twelve([4, 5, 6]));
    }
    assert_eq!(TypeCode::of::<Large>(), None);
    assert_eq!(AtomicRequest::operate::<{ op::Add }, u32, Twelve>(1, true), None);
}

#[test]
fn bytes_that_are_no_request_are_none() {
    let good = AtomicRequest::operate::<{ op::Div }, u32, u32>(7, true).unwrap().to_bytes();
    assert!(AtomicRequest::from_bytes(&good).is_some());
    for (at, byte) in
        [(0, 15), (0, 255), (1, 0x05), (1, 0x50), (1, 0x21), (1, 0x24), (1, 0x31), (1, 0x42), (2, 2), (3, 1), (7, 1), (8, 0)]
    {
        let mut bytes = good;
        bytes[at] = byte;
        assert_eq!(AtomicRequest::from_bytes(&bytes), None, "{at} {byte}");
    }
}
