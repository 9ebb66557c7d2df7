//! The one loop of all reductions, compiled for several kinds of processors.

/// Panics, in the name of a reduction, unless both vectors have the same length.
pub(super) fn same_length(name: &str, into: usize, from: usize) {
    assert!(into == from, "cannot combine a vector of {from} elements into one of {into} by {name:?}: give both the same length");
}

/// `into[i] = f(into[i], from[i])` for each `i`. Panics, in the name of a reduction, unless both vectors have the same length.
#[inline]
pub(super) fn fold<T, F: Fn(&T, &T) -> T>(name: &str, into: &mut [T], from: &[T], f: F) {
    same_length(name, into.len(), from.len());
    each(into, from, f);
}

/// `into[i] = f(into[i], from[i])` for each `i` that both have.
// The macro calls a function compiled for a processor with AVX2 or AVX-512 after it has asked whether this is one: that takes `unsafe`.
#[allow(unsafe_code)]
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn each<T, F: Fn(&T, &T) -> T>(into: &mut [T], from: &[T], f: F) {
    for (into, from) in into.iter_mut().zip(from) {
        *into = f(into, from);
    }
}
