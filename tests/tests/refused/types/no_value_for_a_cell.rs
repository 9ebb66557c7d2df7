use doorbell::atomic::AtomicCell;

fn main() {
    let _ = AtomicCell::new(String::new());
}
