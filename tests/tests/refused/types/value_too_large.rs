use doorbell::atomic::AtomicValue;
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, AtomicValue)]
#[repr(C)]
struct Huge([u64; 2049]);

fn main() {}
