//! The one loop that all reductions are, for each kind of processor.

/// Panics, in the name of a reduction, unless both vectors have the same length.
pub(super) fn same_length(name: &str, into: usize, from: usize) {
    assert!(into == from, "cannot combine a vector of {from} elements into one of {into} by {name:?}: give both the same length");
}

/// `into[i] = f(into[i], from[i])` for each `i` that both have.
// The macro calls a function compiled for a processor with AVX2 or AVX-512 after it has asked whether this is one: that takes `unsafe`.
#[allow(unsafe_code)]
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn each<T, F: Fn(&T, &T) -> T>(into: &mut [T], from: &[T], f: F) {
    for (into, from) in into.iter_mut().zip(from) {
        *into = f(into, from);
    }
}
