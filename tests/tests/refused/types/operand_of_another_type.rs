use doorbell::atomic;
use doorbell::atomic::AtomicCell;

fn main() {
    let a = AtomicCell::new(1_u64);
    atomic! { a += 1_u32 };
}
