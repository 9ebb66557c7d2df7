//! A wait for a lock ends soon after the lock is free.

use super::locks::{grounds, lock_sound, until_waiting};
use doorbell::{Lock, Match, Node, Wait};
use doorbell_tests::patience::{Running, running, soon};
use doorbell_tests::world::World;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const ROUNDS: usize = 15;
/// The factor by which a wait may exceed the time of a message plus a wake-up. A waiter that is not woken takes 25 ms, until it looks by itself.
const TIMES_MOST: u32 = 40;
/// A wait may take this long in any case: a few time slices of threads that spin or yield on a busy machine, and far less than those 25 ms.
const FLOOR: Duration = Duration::from_millis(12);

/// The time from a wake-up until the woken thread runs.
fn wake() -> Duration {
    let (tell, told) = mpsc::channel();
    let sleeper = thread::spawn(move || {
        tell.send(()).unwrap();
        thread::park();
        Instant::now()
    });
    told.recv().unwrap();
    let began = Instant::now();
    sleeper.thread().unpark();
    sleeper.join().unwrap().saturating_duration_since(began)
}

/// The time of a message.
fn message([from, to]: [&Node; 2]) -> Duration {
    let (node, source) = (to.clone(), from.id());
    let receiving = running("a receive", move || {
        node.recv_until(Match::from(source), &mut [0; 8], soon()).unwrap();
        Instant::now()
    });
    let receiving = receiving.started();
    let began = Instant::now();
    from.send_until(to.id(), 1, &[7; 8], soon()).unwrap();
    receiving.join().saturating_duration_since(began)
}

/// Takes the lock in a thread of its own, and returns when it had it.
fn has(key: &Lock) -> Running<Instant> {
    let key = key.clone();
    running("a wait for a key", move || {
        let guard = lock_sound(&key);
        let at = Instant::now();
        guard.unlock().unwrap();
        at
    })
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

pub fn a_key_goes_to_who_waits_as_soon_as_it_is_free(world: &World) {
    let ([na, nb], [a, b]) = grounds(world);
    let mut calm = Vec::new();
    let mut waits = ["unlock", "unlock_all"].map(|what| (what, Vec::new()));
    // A thread that only spins tells once a second that it waits.
    let rounds = if world.wait == Wait::Spin { 3 } else { ROUNDS };
    for _ in 0..rounds {
        calm.push(wake() + message([&na, &nb]));
        let guard = lock_sound(&a);
        let waiter = has(&b);
        until_waiting(&a, 1);
        let began = Instant::now();
        guard.unlock().unwrap();
        waits[0].1.push(waiter.join().saturating_duration_since(began));

        a.lock_all(soon()).unwrap();
        let waiter = has(&b);
        until_waiting(&a, 1);
        let began = Instant::now();
        a.unlock_all().unwrap();
        waits[1].1.push(waiter.join().saturating_duration_since(began));
    }
    let calm = median(&mut calm);
    for (what, times) in &waits {
        // The shortest: a waiter that nobody tells waits long each time, and so does one without a processor now and then.
        let took = times.iter().copied().min().unwrap();
        assert!(
            took <= (TIMES_MOST * calm).max(FLOOR),
            "a wait took {took:.1?} after {what}, and {calm:.1?} a message and a waking"
        );
    }
}
