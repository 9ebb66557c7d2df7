use doorbell::atomic;
use doorbell::atomic::AtomicCell;

fn main() {
    let a = AtomicCell::new(1_u32);
    atomic! { a = a + std::cmp::max(vec![a, 2].len() as u32, a) };
}
