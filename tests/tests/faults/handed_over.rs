//! A thread that waits takes the place of the poller, which was on its way to sleep there: the poller makes room, and the thread is back by its deadline.
//!
//! A fault point holds both up between the look at the lanes and the sleep, so that they meet there each time.

use doorbell::{Match, Node};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::PATIENCE;
use doorbell_tests::process::{Process, told};
use doorbell_tests::steps::Steps;
use doorbell_tests::{LOOPBACK, Turn, number};
use std::time::{Duration, Instant};

/// How long the fault point holds both up.
const HELD_MS: u64 = 40;
/// How long a call may wait for a message that does not come.
const PATIENT: Duration = Duration::from_millis(60);
/// The number of calls.
const ROUNDS: u64 = 8;
/// A call of a node on a network may take so many times the median of one that shares memory alone, ...
const TIMES: u32 = 4;
/// ... or this. The poller of a lonely node sleeps for a second.
const FLOOR: Duration = Duration::from_millis(600);

/// Durations of calls for which the poller made room, or did not.
fn calls(node: &Node, what: &str) -> Steps {
    let steps = Steps::of(what);
    for _ in 0..number("DOORBELL_REPEATS", ROUNDS) {
        // Within this time the poller finds that nobody turns the engine, and is on its way to sleep.
        let until = Instant::now() + Duration::from_millis(HELD_MS / 2);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        let nothing = steps.step(|| node.recv_until(Match::any(), &mut [0; 8], Instant::now() + PATIENT));
        assert!(nothing.is_err(), "{nothing:?}");
    }
    steps
}

pub fn waits_in_turns() {
    let joins = |networked: bool| {
        let builder = Node::builder(told("DOMAIN")).id(u16::from(networked));
        if networked { builder.listen(LOOPBACK) } else { builder }.join().unwrap()
    };
    let near = joins(false);
    let reference = calls(&near, "calls of a node without a network").median();
    near.leave().unwrap();
    let networked = joins(true);
    let steps = calls(&networked, "calls of a node on a network");
    networked.leave().unwrap();
    eprintln!("{reference:?} without a network, {:?} with one", steps.sorted());
    steps.check_against(reference, TIMES, FLOOR);
}

#[test]
fn a_thread_that_takes_the_pollers_place_is_back_in_time() {
    let _turn = Turn::take();
    let domain = Domain::new("handed-over");
    let fault = format!("bell.sleeping:all:delay={HELD_MS}");
    let process = Process::start("waits in turns").tell("DOMAIN", domain.name()).tell("DOORBELL_FAULT", fault).go();
    process.end_well(PATIENCE);
    domain.assert_empty();
}
