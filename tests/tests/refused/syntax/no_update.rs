use doorbell::atomic;
use doorbell::atomic::AtomicCell;

fn main() {
    let a = AtomicCell::new(1_u32);
    atomic! { a + 1 };
    atomic! {};
    atomic! { if a == 1 { 2 } else { 3 } };
}
