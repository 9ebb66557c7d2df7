use doorbell::Region;
use doorbell::atomic::{Atom, AtomicValue};
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, AtomicValue)]
#[repr(C)]
struct Large([u64; 9]);

fn cell(region: &Region<Atom<Large>>) {
    region.cell(0).unwrap();
}

fn main() {}
