use doorbell::atomic;
use doorbell::atomic::AtomicCell;

fn main() {
    let a = AtomicCell::new(1_u32);
    atomic! { previous: a += 1 };
    atomic! { old, new: a += 1 };
    atomic! { relaxed, seq_cst: a += 1 };
    atomic! { attempts: a += 1 };
    atomic! { attempts(0): a += 1 };
    atomic! { release: a };
    atomic! { old: a };
}
