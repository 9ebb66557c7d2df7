use doorbell::atomic;
use doorbell::atomic::AtomicCell;

fn main() {
    let a = AtomicCell::new(1.0_f64);
    atomic! { a <<= 1 };
}
