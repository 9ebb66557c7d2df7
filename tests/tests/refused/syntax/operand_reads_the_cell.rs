use doorbell::atomic;
use doorbell::atomic::AtomicCell;

fn main() {
    let a = AtomicCell::new(1_u32);
    atomic! { a += a / 2 };
}
