//! Uses what the cases use, as it is meant.

use doorbell::atomic;
use doorbell::atomic::{AtomicCell, AtomicValue};
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, AtomicValue)]
#[repr(C)]
struct Pair([u32; 2]);

fn main() {
    let cell = AtomicCell::new(Pair([0; 2]));
    atomic! { cell = Pair([1; 2]) };
}
