use doorbell::atomic;

fn main() {
    let mut count = 1_u64;
    atomic! { count += 1 };
}
