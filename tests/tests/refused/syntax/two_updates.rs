use doorbell::atomic;
use doorbell::atomic::AtomicCell;

fn main() {
    let (a, b) = (AtomicCell::new(1_u32), AtomicCell::new(2_u32));
    atomic! { a += 1; b -= 1 };
}
