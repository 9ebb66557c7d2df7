use proptest::collection::vec;
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

/// No file of failures: a model checker has no directories.
fn config() -> ProptestConfig {
    ProptestConfig { cases: if cfg!(miri) { 2 } else { 48 }, failure_persistence: None, ..Default::default() }
}

use super::*;

/// Whether two results are the same: to the bit, but for NaNs.
trait Same: Copy + std::fmt::Debug {
    fn same(self, other: Self) -> bool;
}

macro_rules! same {
    ($($t:ty,)*) => {$(
        impl Same for $t {
            fn same(self, other: Self) -> bool {
                self == other
            }
        }
    )*};
}

same!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, (u32, u32),);

impl Same for f32 {
    fn same(self, other: Self) -> bool {
        self.to_bits() == other.to_bits() || self.is_nan() && other.is_nan()
    }
}

impl Same for f64 {
    fn same(self, other: Self) -> bool {
        self.to_bits() == other.to_bits() || self.is_nan() && other.is_nan()
    }
}

impl<T: Same> Same for Located<T> {
    fn same(self, other: Self) -> bool {
        { self.value }.same(other.value) && { self.at } == { other.at }
    }
}

/// Looks whether every way to reduce these vectors does what `naive(left, right)` does, one element after the other.
fn check<T: Same, R: Reduction<T>>(reduction: R, pairs: &[(T, T)], naive: impl Fn(T, T) -> T) {
    let (left, right): (Vec<T>, Vec<T>) = pairs.iter().copied().unzip();
    let expect = |got: &[T], f: &dyn Fn(T, T) -> T| {
        assert_eq!(got.len(), pairs.len());
        for (index, (&got, &(l, r))) in got.iter().zip(pairs).enumerate() {
            let want = f(l, r);
            assert!(got.same(want), "{} of {l:?} and {r:?} at {index}: {got:?}, not {want:?}", reduction.name());
        }
    };

    let mut into = left.clone();
    reduction.fold(&mut into, &right);
    expect(&into, &naive);

    let mut into = right.clone();
    reduction.fold_left(&mut into, &left);
    expect(&into, &naive);

    if R::COMMUTATIVE {
        let mut into = right.clone();
        reduction.fold(&mut into, &left);
        expect(&into, &naive);
    }

    let mut into = left.clone();
    reduction.fold_many(&mut into, &[&right, &left, &right]);
    expect(&into, &|l, r| naive(naive(naive(l, r), l), r));
}

fn float(bits: u64) -> f64 {
    // A fifth each of zeros, NaNs and infinities, and small integers that are often equal.
    match bits % 5 {
        0 => [0.0, -0.0][(bits >> 8) as usize % 2],
        1 => [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -f64::NAN][(bits >> 8) as usize % 4],
        2 => ((bits >> 8) as i8).into(),
        _ => f64::from_bits(bits),
    }
}

macro_rules! number_tests {
    ($($t:ident $from:expr, $sum:expr, $product:expr, $max:expr, $min:expr;)*) => {$(
        mod $t {
            use super::*;

            proptest! {
                #![proptest_config(config())]

                #[test]
                fn numbers(raw in vec(any::<(u128, u128)>(), 0..if cfg!(miri) { 40 } else { 1000 })) {
                    let pairs: Vec<($t, $t)> = raw.iter().map(|&(l, r)| ($from(l), $from(r))).collect();
                    check(Sum, &pairs, $sum);
                    check(Product, &pairs, $product);
                    check(Max, &pairs, $max);
                    check(Min, &pairs, $min);
                    check(by("sum", |l: &$t, r: &$t| $sum(*l, *r)), &pairs, $sum);
                    check(by_ordered("left", |l: &$t, _: &$t| *l), &pairs, |l, _| l);

                    let located: Vec<_> = raw
                        .iter()
                        .zip(&pairs)
                        .map(|(raw, pair)| {
                            let at = |raw: u128| (raw >> 64) as u64 % 4;
                            (Located { value: pair.0, at: at(raw.0) }, Located { value: pair.1, at: at(raw.1) })
                        })
                        .collect();
                    let best = |of: fn($t, $t) -> $t| move |l: Located<$t>, r: Located<$t>| {
                        let value = of(l.value, r.value);
                        let at = match ({ l.value }.same(value), { r.value }.same(value)) {
                            (true, true) => { l.at }.min(r.at),
                            (true, false) => l.at,
                            _ => r.at,
                        };
                        Located { value, at }
                    };
                    check(MaxLoc, &located, best($max));
                    check(MinLoc, &located, best($min));
                }
            }
        }
    )*};
}

macro_rules! integer_tests {
    ($($t:ident)*) => {
        // Half of them small, so that there are zeros and equals.
        number_tests! {
            $($t |raw: u128| (if raw % 2 == 0 { raw >> 126 } else { raw >> 1 }) as $t,
                <$t>::wrapping_add,
                <$t>::wrapping_mul,
                |l, r| if l > r { l } else { r },
                |l, r| if l < r { l } else { r };)*
        }

        mod bits {
            use super::*;

            $(proptest! {
                #![proptest_config(config())]

                #[test]
                fn $t(raw in vec(any::<(u128, u128)>(), 0..if cfg!(miri) { 40 } else { 1000 })) {
                    let number = |raw: u128| (if raw % 2 == 0 { raw >> 126 } else { raw >> 1 }) as $t;
                    let pairs: Vec<($t, $t)> = raw.iter().map(|&(l, r)| (number(l), number(r))).collect();
                    check(And, &pairs, |l, r| l & r);
                    check(Or, &pairs, |l, r| l | r);
                    check(Xor, &pairs, |l, r| l ^ r);
                    check(LogicalAnd, &pairs, |l, r| if l != 0 && r != 0 { 1 } else { 0 });
                    check(LogicalOr, &pairs, |l, r| if l != 0 || r != 0 { 1 } else { 0 });
                    check(LogicalXor, &pairs, |l, r| if (l != 0) != (r != 0) { 1 } else { 0 });
                }
            })*
        }
    };
}

integer_tests!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128);

/// What `max` is to do, said by the order that the standard library has for all floats.
macro_rules! float_order {
    ($t:ty, $pick:ident) => {
        |l: $t, r: $t| match (l.is_nan(), r.is_nan()) {
            (true, true) => <$t>::NAN,
            (true, false) => r,
            (false, true) => l,
            _ => $pick(l, r, |l, r| l.total_cmp(r)),
        }
    };
}

fn greater<T: Copy>(l: T, r: T, order: impl Fn(&T, &T) -> std::cmp::Ordering) -> T {
    if order(&l, &r).is_ge() { l } else { r }
}

fn lesser<T: Copy>(l: T, r: T, order: impl Fn(&T, &T) -> std::cmp::Ordering) -> T {
    if order(&l, &r).is_le() { l } else { r }
}

number_tests! {
    f32 |raw| float(raw as u64) as f32,
        |l: f32, r: f32| l + r, |l: f32, r: f32| l * r, float_order!(f32, greater), float_order!(f32, lesser);
    f64 |raw| float(raw as u64),
        |l: f64, r: f64| l + r, |l: f64, r: f64| l * r, float_order!(f64, greater), float_order!(f64, lesser);
}

proptest! {
    #![proptest_config(config())]

    /// Maps x ↦ a·x + b, one after the other: associative, and seldom commutative.
    #[test]
    fn an_ordered_reduction_keeps_the_order(pairs in vec(any::<((u32, u32), (u32, u32))>(), 0..if cfg!(miri) { 40 } else { 1000 })) {
        fn then(l: &(u32, u32), r: &(u32, u32)) -> (u32, u32) {
            (l.0.wrapping_mul(r.0), l.1.wrapping_mul(r.0).wrapping_add(r.1))
        }
        let reduction = by_ordered("then", then);
        check(reduction, &pairs, |l, r| then(&l, &r));
    }

    /// However many sources of whatever length: over the ends of blocks, too.
    #[test]
    fn many_at_once_are_one_after_the_other(sources in 0..6usize, len in 0..3000usize, seed: u32) {
        let next = |index: usize| (index as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) as f32 * 1e-3;
        let vectors: Vec<Vec<f32>> = (0..sources).map(|s| (0..len).map(|i| next(s * len + i)).collect()).collect();
        let start: Vec<f32> = (0..len).map(|i| next(i * 7)).collect();

        let mut expected = start.clone();
        for vector in &vectors {
            for (into, from) in expected.iter_mut().zip(vector) {
                *into += from;
            }
        }
        let mut into = start;
        Sum.fold_many(&mut into, &vectors.iter().map(Vec::as_slice).collect::<Vec<_>>());
        prop_assert!(into.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
    }

    /// The extremes of floats are the same, to the bit, in whatever order and with whatever brackets.
    #[test]
    fn extremes_of_floats_know_no_order(raw in vec(any::<u64>(), 2..12), turn in 0..12usize) {
        fn all<T: Copy, R: Reduction<T>>(reduction: R, values: &[T]) -> T {
            match values {
                [one] => *one,
                _ => {
                    let (left, right) = values.split_at(values.len() / 2);
                    let mut into = [all(reduction, left)];
                    reduction.fold(&mut into, &[all(reduction, right)]);
                    into[0]
                }
            }
        }
        let values: Vec<f64> = raw.iter().map(|&bits| float(bits)).collect();
        let mut other = values.clone();
        other.rotate_left(turn % values.len());
        other.reverse();
        prop_assert_eq!(all(Max, &values).to_bits(), all(Max, &other).to_bits());
        prop_assert_eq!(all(Min, &values).to_bits(), all(Min, &other).to_bits());

        let located = |values: &[f64], raw: &[u64]| -> Vec<_> {
            values.iter().zip(raw).map(|(&value, at)| Located { value, at: at >> 62 }).collect()
        };
        let straight = located(&values, &raw);
        let mut turned = straight.clone();
        turned.rotate_left(turn % values.len());
        turned.reverse();
        let (a, b) = (all(MaxLoc, &straight), all(MaxLoc, &turned));
        prop_assert_eq!(a.as_bytes(), b.as_bytes());
        let (a, b) = (all(MinLoc, &straight), all(MinLoc, &turned));
        prop_assert_eq!(a.as_bytes(), b.as_bytes());
    }
}

#[test]
fn extremes_of_floats_ignore_nan_and_tell_zeros_apart() {
    let pairs =
        [(0.0f64, -0.0), (-0.0, 0.0), (f64::NAN, 1.0), (1.0, f64::NAN), (-f64::NAN, f64::NAN), (f64::NEG_INFINITY, f64::NAN)];
    let (left, right): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let bits = |values: &[f64]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();

    let mut into = left.clone();
    Max.fold(&mut into, &right);
    assert_eq!(bits(&into), bits(&[0.0, 0.0, 1.0, 1.0, f64::NAN, f64::NEG_INFINITY]));

    let mut into = left;
    Min.fold(&mut into, &right);
    assert_eq!(bits(&into), bits(&[-0.0, -0.0, 1.0, 1.0, f64::NAN, f64::NEG_INFINITY]));
}

#[test]
fn among_equals_the_smallest_place_counts() {
    let at = |at| Located { value: 7i32, at };
    for (left, right) in [(3, 1), (1, 3), (1, 1)] {
        let (mut greatest, mut least) = ([at(left)], [at(left)]);
        MaxLoc.fold(&mut greatest, &[at(right)]);
        MinLoc.fold(&mut least, &[at(right)]);
        assert_eq!((greatest, least), ([at(1)], [at(1)]));
    }
    // The place of a NaN doesn't count, nor that of the other zero.
    let mut into = [Located { value: f32::NAN, at: 0 }, Located { value: -0.0, at: 0 }];
    MaxLoc.fold(&mut into, &[Located { value: -1.0, at: 5 }, Located { value: 0.0, at: 5 }]);
    assert_eq!(into, [Located { value: -1.0, at: 5 }, Located { value: 0.0, at: 5 }]);
}

#[test]
fn a_located_value_is_plain_data() {
    let best = Located { value: -1.5f32, at: 1 << 40 };
    let bytes = best.as_bytes();
    assert_eq!(bytes.len(), 12);
    assert_eq!(Located::<f32>::read_from_bytes(bytes).unwrap(), best);
}

#[test]
#[should_panic(expected = "cannot combine a vector of 3 elements into one of 2 by \"sum\"")]
fn different_lengths_are_a_bug_of_the_caller() {
    Sum.fold(&mut [1, 2], &[1, 2, 3]);
}

#[test]
fn a_source_of_another_length_is_found_before_anything_is_combined() {
    let mut into = [1, 2];
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Sum.fold_many(&mut into, &[&[1, 1], &[1]])));
    assert!(result.is_err());
    assert_eq!(into, [1, 2]);
}

#[test]
fn elements_without_bytes_and_larger_than_a_block() {
    by("nothing", |_: &(), _: &()| ()).fold_many(&mut [(); 5], &[&[(); 5]]);
    let wide = by("wide", |a: &[u8; 5000], b: &[u8; 5000]| std::array::from_fn(|i| a[i] ^ b[i]));
    let mut into = [[1; 5000]; 2];
    wide.fold_many(&mut into, &[&[[2; 5000]; 2], &[[4; 5000]; 2]]);
    assert_eq!(into, [[7; 5000]; 2]);
}
