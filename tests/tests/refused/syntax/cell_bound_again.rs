use doorbell::atomic;
use doorbell::atomic::AtomicCell;

struct Tally {
    best: AtomicCell<u32>,
}

fn run(found: Option<u32>, count: &AtomicCell<u32>, cells: &[AtomicCell<u32>], tally: Tally, i: usize) {
    atomic! { count = match found { Some(count) => count, None => 0 } };
    atomic! { count = { let count = count * 2; count + 1 } };
    atomic! { count = found.map_or(count, |count| count + 1) };
    atomic! { count = if let Some(count) = found { count } else { 0 } };
    atomic! { count = { let (step, ref count @ ..) = (1, 2); step + count } };
    atomic! { count = { for count in 0..3 { drop(count) } count } };
    atomic! { count = { const count: u32 = 3; count } };
    let _ = atomic! { count += 1 if found.is_some_and(|count| count > 3) };
    atomic! { count += found.map_or(0, |count| count) };
    atomic! { cells[i] = (0..3).map(|i| cells[i]).max() };
    atomic! { tally.best = found.map_or(tally.best, |tally| tally.best) };
}

fn main() {}
