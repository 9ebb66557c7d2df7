//! All reductions of all types, compared with a plain computation in one process.

use super::collectives::{after, cases, length, shape, with_team};
use doorbell::Result;
use doorbell::collective::reduction::{
    And, Located, LogicalAnd, LogicalOr, LogicalXor, Max, MaxLoc, Min, MinLoc, Or, Product, Reduction, Sum, Xor, by, by_ordered,
};
use doorbell::collective::{Team, Value};
use proptest::prelude::*;
use std::fmt::Debug;

/// A number that looks random, for an element of a member.
fn number(rank: usize, at: usize) -> u64 {
    let x = (rank as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (at as u64 + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// A reduction of elements of one type. The compiler makes only these few calls for each reduction, and the checks once for each type.
trait Reduces<T> {
    fn name(&self) -> String;
    fn allreduce(&self, team: &Team, xs: &mut [T]) -> Result<()>;
    fn reduce(&self, team: &Team, root: usize, xs: &mut [T]) -> Result<()>;
    fn scan(&self, team: &Team, xs: &mut [T]) -> Result<()>;
    fn reduce_scatter(&self, team: &Team, from: &[T], into: &mut [T]) -> Result<()>;
    /// An allreduce and a reduce of the same elements, both under way at once.
    fn both(&self, team: &Team, root: usize, xs: &[T]) -> Result<[Vec<T>; 2]>;
}

struct By<R>(R);

impl<T: Value, R: Reduction<T>> Reduces<T> for By<R> {
    fn name(&self) -> String {
        format!("{} of {}", self.0.name(), std::any::type_name::<T>())
    }

    fn allreduce(&self, team: &Team, xs: &mut [T]) -> Result<()> {
        team.allreduce(self.0, xs)
    }

    fn reduce(&self, team: &Team, root: usize, xs: &mut [T]) -> Result<()> {
        team.reduce(root, self.0, xs)
    }

    fn scan(&self, team: &Team, xs: &mut [T]) -> Result<()> {
        team.scan(self.0, xs)
    }

    fn reduce_scatter(&self, team: &Team, from: &[T], into: &mut [T]) -> Result<()> {
        team.reduce_scatter(self.0, from, into)
    }

    fn both(&self, team: &Team, root: usize, xs: &[T]) -> Result<[Vec<T>; 2]> {
        let begun = (team.start_allreduce(self.0, xs.to_vec())?, team.start_reduce(root, self.0, xs.to_vec())?);
        Ok([begun.0.wait()?, begun.1.wait()?])
    }
}

/// One reduction by all operations that reduce, compared with the same computed here in the order of ranks.
fn reduces<T: Value + PartialEq + Debug>(
    at: (&Team, usize, usize),
    reduction: impl Reduction<T>,
    value: impl Fn(usize, usize) -> T,
    plain: impl Fn(T, T) -> T,
) -> Result<()> {
    check(at, &By(reduction), &value, &plain)
}

fn check<T: Value + PartialEq + Debug>(
    (team, len, root): (&Team, usize, usize),
    reduction: &dyn Reduces<T>,
    value: &dyn Fn(usize, usize) -> T,
    plain: &dyn Fn(T, T) -> T,
) -> Result<()> {
    let (me, members) = (team.rank(), team.len());
    let name = reduction.name();
    let vector = |rank: usize, len: usize| (0..len).map(|at| value(rank, at)).collect::<Vec<T>>();
    let of = |ranks: usize, range: std::ops::Range<usize>| -> Vec<T> {
        range.map(|at| (1..ranks).fold(value(0, at), |sum, rank| plain(sum, value(rank, at)))).collect()
    };
    let (own, whole) = (vector(me, len), of(members, 0..len));
    let at_root = if me == root { &whole } else { &own };

    let mut xs = own.clone();
    reduction.allreduce(team, &mut xs)?;
    assert_eq!(xs, whole, "allreduce: {name}");
    let mut xs = own.clone();
    reduction.reduce(team, root, &mut xs)?;
    assert_eq!(xs, *at_root, "reduce: {name}");
    let mut xs = own.clone();
    reduction.scan(team, &mut xs)?;
    assert_eq!(xs, of(me + 1, 0..len), "scan: {name}");
    let mut mine = own.clone();
    reduction.reduce_scatter(team, &vector(me, len * members), &mut mine)?;
    assert_eq!(mine, of(members, me * len..(me + 1) * len), "reduce_scatter: {name}");
    let [all, one] = reduction.both(team, root, &own)?;
    assert_eq!(all, whole, "start_allreduce: {name}");
    assert_eq!(one, *at_root, "start_reduce: {name}");
    Ok(())
}

/// All reductions, of all types that they are for.
fn reductions(team: &Team, len: usize, root: usize) -> Result<()> {
    let at = (team, len, root % team.len());
    macro_rules! integers {
        ($($t:ident)*) => {$(
            let value = |rank, at| number(rank, at) as $t;
            // Zeros are rare else.
            let truth = |rank, at| if number(rank, at).is_multiple_of(3) { 0 } else { value(rank, at) };
            reduces(at, Sum, value, $t::wrapping_add)?;
            reduces(at, Product, |rank, at| value(rank, at) | 1, $t::wrapping_mul)?;
            reduces(at, Max, value, Ord::max)?;
            reduces(at, Min, value, Ord::min)?;
            reduces(at, And, |rank, at| value(rank, at) | value(rank + 99, at), |a, b| a & b)?;
            reduces(at, Or, |rank, at| value(rank, at) & value(rank + 99, at), |a, b| a | b)?;
            reduces(at, Xor, value, |a, b| a ^ b)?;
            reduces(at, LogicalAnd, truth, |a, b| (a != 0 && b != 0).into())?;
            reduces(at, LogicalOr, truth, |a, b| (a != 0 || b != 0).into())?;
            reduces(at, LogicalXor, truth, |a, b| ((a != 0) != (b != 0)).into())?;
            located!($t);
        )*};
    }
    macro_rules! floats {
        ($($t:ident)*) => {$(
            // Sums and products that are exact in any order.
            let value = |rank, at| (number(rank, at) % 1000) as $t - 500.0;
            reduces(at, Sum, value, |a, b| a + b)?;
            reduces(at, Product, |rank, at| [0.5, 1.0, -2.0, 4.0][number(rank, at) as usize % 4], |a, b| a * b)?;
            reduces(at, Max, value, $t::max)?;
            reduces(at, Min, value, $t::min)?;
            located!($t);
        )*};
    }
    // Few values, so that places decide.
    macro_rules! located {
        ($t:ident) => {
            let value = |rank: usize, at: usize| Located { value: (number(rank, at) % 5) as $t, at: number(at, rank) % 100 };
            let first = |a: Located<$t>, b: Located<$t>| if { a.at } <= { b.at } { a } else { b };
            let (greater, less) = (
                |a: Located<$t>, b: Located<$t>| { a.value } > { b.value },
                |a: Located<$t>, b: Located<$t>| { a.value } < { b.value },
            );
            reduces(at, MaxLoc, value, |a, b| {
                if greater(a, b) {
                    a
                } else if greater(b, a) {
                    b
                } else {
                    first(a, b)
                }
            })?;
            reduces(at, MinLoc, value, |a, b| {
                if less(a, b) {
                    a
                } else if less(b, a) {
                    b
                } else {
                    first(a, b)
                }
            })?;
        };
    }
    integers!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128);
    floats!(f32 f64);
    let modulus = by("sum modulo p", |a: &u32, b: &u32| (a + b) % 1_000_003);
    reduces(at, modulus, |rank, at| number(rank, at) as u32 % 1_000_003, |a, b| (a + b) % 1_000_003)?;
    let map = |rank, at| [number(rank, at) as u32, number(at, rank) as u32];
    reduces(at, by_ordered("after", after), map, |a, b| after(&a, &b))?;
    // Of a size that divides nothing.
    let odd = |rank: usize, at: usize| [number(rank, at) as u8, 1, 2, 3, at as u8, 5, rank as u8];
    reduces(at, by_ordered("the last", |_: &[u8; 7], b: &[u8; 7]| *b), odd, |_, b| b)
}

proptest! {
    #![proptest_config(cases(15, 4))]

    #[test]
    fn reductions_are_those_of_a_plain_computation(shape in shape(), len in length(9), root in 0..16_usize) {
        with_team(shape, |team| reductions(team, len, root));
    }
}
