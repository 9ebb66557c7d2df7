//! A receiver sleeps, and is woken.

use super::{FIRST, Stage, told};
use crate::demo::{Order, now, processor_time};
use crate::exit::Failure;
use doorbell::{Progress, Wait};
use std::time::{Duration, Instant};

const TIMES: usize = 5;
/// Shorter than the 50 ms after which a sleeping thread wakes by itself.
const PAUSE_MS: u64 = 40;

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("A receiver sleeps until the doorbell wakes it");
    let parks = stage.done(stage.cast.node.stats())?.parks;
    let (busy, start) = (processor_time(), Instant::now());
    let mut wakes = Vec::new();
    for _ in 0..TIMES {
        let sent: u64 = stage.ask(FIRST, &Order::Sleep(PAUSE_MS))?;
        wakes.push(Duration::from_nanos(now().saturating_sub(sent)));
    }
    let (busy, waited) = (processor_time() - busy, start.elapsed());
    let slept = stage.done(stage.cast.node.stats())?.parks - parks;
    stage.line(format_args!("node 0 waits in recv; node 1 sends after {PAUSE_MS} ms, {TIMES} times"));
    let wait = stage.cast.wait;
    let how = match (slept, wait) {
        (0, Wait::Spin | Wait::Yield) => format!("with --wait {wait} node 0 did not sleep"),
        (0, _) => "node 0 did not sleep: something else kept it awake".into(),
        _ => {
            let sleeper = if stage.cast.progress == Progress::Poller { "the poller of node 0" } else { "node 0" };
            format!("{sleeper} slept {slept} times (stats.parks: {parks} -> {})", parks + slept)
        }
    };
    stage.line(format_args!("{how}, and used {} of processor time in {}", told(busy), told(waited)));
    let wakes: Vec<String> = wakes.into_iter().map(told).collect();
    stage.line(format_args!("from send to the return of recv: {}", wakes.join(", ")));
    stage.say.word("arm, park", "to announce a sleep, and to sleep. A waiter first spins, then yields, then parks");
    stage.say.word(
        "doorbell",
        "a word that a sender reads after it wrote to a lane: the sender makes a system call only if it is armed",
    );
    Ok(())
}
