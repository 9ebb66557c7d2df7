#![allow(unused_labels, unreachable_code)]

use doorbell::atomic;
use doorbell::atomic::AtomicCell;

fn half(value: u32) -> Option<u32> {
    (value % 2 == 0).then_some(value / 2)
}

fn run(a: &AtomicCell<u32>) -> Option<()> {
    atomic! { a = half(a)? };
    atomic! { a = if a > 3 { return None } else { a + 1 } };
    'outer: loop {
        atomic! { a = loop { if a > 3 { break 'outer } else { break a } } };
        atomic! { a = { 'inner: { if a > 3 { break 'inner } } break; } };
    }
    Some(())
}

fn main() {
    run(&AtomicCell::new(1));
}
