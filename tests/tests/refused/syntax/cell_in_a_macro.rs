use doorbell::atomic;
use doorbell::atomic::AtomicCell;

struct Tally {
    best: AtomicCell<u32>,
}

fn run(tally: &Tally) {
    atomic! { tally.best = tally.best * tally.best + vec![tally.best].len() as u32 };
}

fn main() {
    let a = AtomicCell::new(1_u32);
    atomic! { a = a + std::cmp::max(vec![a, 2].len() as u32, a) };
    atomic! { a = a * a + format!("{{}} {a:?}").len() as u32 };
    atomic! { a = a * a + format!("{:>a$}", 1).len() as u32 };
    atomic! { a = Some(1).map_or(a, |_| matches!(a, 3).into()) };
}
