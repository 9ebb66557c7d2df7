use doorbell::Region;
use doorbell::atomic::{Atom, AtomicCell, AtomicValue};
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, AtomicValue)]
#[repr(C)]
struct Large([u64; 9]);

fn cell(region: &Region<Atom<Large>>) {
    AtomicCell::at(region, 0).unwrap();
}

fn main() {}
