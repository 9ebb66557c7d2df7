//! Reductions by functions of the application.

use std::fmt;

use super::contract::Reduction;
use super::pass;

/// A reduction by a function of the application; made by [`by`], or by [`by_ordered`] if its operands keep their order.
#[derive(Clone, Copy)]
pub struct By<F, const COMMUTATIVE: bool = true> {
    name: &'static str,
    f: F,
}

/// A reduction by `f`, which is associative and commutative: the order of its operands may be changed.
///
/// That can't be checked. If it isn't so, members may see different results, which differ from run to run. Errors and statistics use the
/// `name`. The function is called once for each element of each source. A short function without branches becomes vector instructions, as
/// the predefined ones do.
///
/// ```
/// use doorbell::collective::reduction::{Reduction, by};
///
/// let modulus = 1_000_007;
/// let sum = by("sum modulo p", move |a: &u64, b: &u64| (a + b) % modulus);
/// let mut into = [1_000_000, 5];
/// sum.fold(&mut into, &[10, 6]);
/// assert_eq!(into, [3, 11]);
/// ```
pub fn by<T, F>(name: &'static str, f: F) -> By<F>
where
    F: Fn(&T, &T) -> T + Copy + Send + Sync + 'static,
{
    By { name, f }
}

/// A reduction by `f(left, right)`, which is associative but not commutative: the operands stay in the order of ranks.
///
/// Collectives have fewer algorithms for it than for one by [`by`], which can make it slower.
///
/// ```
/// use doorbell::collective::reduction::{Reduction, by_ordered};
///
/// // Of maps x ↦ a·x + b: first the left one, then the right one.
/// let then = by_ordered("then", |l: &[i64; 2], r: &[i64; 2]| [l[0] * r[0], l[1] * r[0] + r[1]]);
/// let (twice, plus_one) = ([2, 0], [1, 1]);
///
/// let mut into = [twice];
/// then.fold(&mut into, &[plus_one]);
/// assert_eq!(into, [[2, 1]]);
///
/// let mut into = [twice];
/// then.fold_left(&mut into, &[plus_one]);
/// assert_eq!(into, [[2, 2]]);
/// ```
pub fn by_ordered<T, F>(name: &'static str, f: F) -> By<F, false>
where
    F: Fn(&T, &T) -> T + Copy + Send + Sync + 'static,
{
    By { name, f }
}

impl<T, F, const COMMUTATIVE: bool> Reduction<T> for By<F, COMMUTATIVE>
where
    F: Fn(&T, &T) -> T + Copy + Send + Sync + 'static,
{
    const COMMUTATIVE: bool = COMMUTATIVE;

    fn fold(&self, into: &mut [T], from: &[T]) {
        pass::fold(self.name, into, from, self.f);
    }

    fn fold_left(&self, into: &mut [T], from: &[T]) {
        let f = self.f;
        pass::fold(self.name, into, from, |into, from| f(from, into));
    }

    fn name(&self) -> &'static str {
        self.name
    }
}

impl<F, const COMMUTATIVE: bool> fmt::Debug for By<F, COMMUTATIVE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("By").field("name", &self.name).finish_non_exhaustive()
    }
}
