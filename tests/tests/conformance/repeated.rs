//! A step that once stalled in some runs, many times in a row: `DOORBELL_REPEATS=100` sets how many.

use super::regions;
use doorbell::{Progress, Wait};
use doorbell_tests::steps::Steps;
use doorbell_tests::world::{Ground, World};
use doorbell_tests::{Turn, number};
use std::time::Duration;

/// A run may take this many times the median, ...
const TIMES: u32 = 5;
/// ... or this: a busy machine holds a thread up for as long as that.
const FLOOR: Duration = Duration::from_millis(600);

fn repeat(ground: Ground, progress: Progress, wait: Wait) {
    let _turn = Turn::take();
    let steps = Steps::of("a run of threads_put_and_get_both_ways_at_once");
    for _ in 0..number("DOORBELL_REPEATS", 3) {
        let world = World::new(ground, progress, wait);
        steps.step(|| regions::threads_put_and_get_both_ways_at_once(&world));
    }
    let took = steps.sorted();
    println!("{} runs: from {:?} by {:?} to {:?}", took.len(), took[0], steps.median(), took[took.len() - 1]);
    steps.check_against(steps.median(), TIMES, FLOOR);
}

macro_rules! repeated {
    ($($world:ident: $ground:ident, $progress:ident, $wait:ident;)+) => {
        $(
            #[test]
            fn $world() {
                repeat(Ground::$ground, Progress::$progress, Wait::$wait);
            }
        )+
    };
}

repeated! {
    faulty_inline: Faulty, Inline, Auto;
    faulty_poller: Faulty, Poller, Auto;
    faulty_adaptive: Faulty, Adaptive, Auto;
    faulty_adaptive_yield: Faulty, Adaptive, Yield;
    lots_adaptive: Lots, Adaptive, Auto;
    lots_inline: Lots, Inline, Auto;
    lots_poller: Lots, Poller, Auto;
}
