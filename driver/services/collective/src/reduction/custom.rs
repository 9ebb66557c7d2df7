//! Reductions of the application.

use std::fmt;

use super::{Reduction, pass};

/// A reduction by a function of the application's; made by [`by`].
#[derive(Clone, Copy)]
pub struct By<F> {
    name: &'static str,
    f: F,
}

/// A reduction by a function of the application's whose operands keep their order; made by [`by_ordered`].
#[derive(Clone, Copy)]
pub struct ByOrdered<F> {
    name: &'static str,
    f: F,
}

/// A reduction by `f`, which is associative and commutative: the order of its operands may be changed.
///
/// Nobody can check that it is. If it isn't, members may see different results, and other ones at each run. `name` is what errors
/// and statistics call it. The function is called once an element and source; one that is short and has no branches becomes vector
/// instructions like the predefined ones.
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
/// Collectives have fewer ways to do it than one by [`by`], which can make it slower. Else it is the same.
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
pub fn by_ordered<T, F>(name: &'static str, f: F) -> ByOrdered<F>
where
    F: Fn(&T, &T) -> T + Copy + Send + Sync + 'static,
{
    ByOrdered { name, f }
}

impl<T, F> Reduction<T> for By<F>
where
    F: Fn(&T, &T) -> T + Copy + Send + Sync + 'static,
{
    const COMMUTATIVE: bool = true;

    fn fold(&self, into: &mut [T], from: &[T]) {
        pass::same_length(self.name, into.len(), from.len());
        pass::each(into, from, self.f);
    }

    fn name(&self) -> &'static str {
        self.name
    }
}

impl<T, F> Reduction<T> for ByOrdered<F>
where
    F: Fn(&T, &T) -> T + Copy + Send + Sync + 'static,
{
    const COMMUTATIVE: bool = false;

    fn fold(&self, into: &mut [T], from: &[T]) {
        pass::same_length(self.name, into.len(), from.len());
        pass::each(into, from, self.f);
    }

    fn fold_left(&self, into: &mut [T], from: &[T]) {
        pass::same_length(self.name, into.len(), from.len());
        let f = self.f;
        pass::each(into, from, |into, from| f(from, into));
    }

    fn name(&self) -> &'static str {
        self.name
    }
}

impl<F> fmt::Debug for By<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("By").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<F> fmt::Debug for ByOrdered<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByOrdered").field("name", &self.name).finish_non_exhaustive()
    }
}
