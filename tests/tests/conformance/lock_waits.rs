//! How soon a wait for a key is over once nothing stands against it: not only some day.

use super::locks::{grounds, lock_sound, until_waiting};
use doorbell::{Error, LockKey, Match, Node, NodeId};
use doorbell_tests::patience::{Running, running, soon};
use doorbell_tests::world::World;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const ROUNDS: usize = 15;
/// A wait may take so many times as long as a message and a sleeper's waking. One that is never woken takes 25 ms, until it looks by itself.
const TIMES_MOST: u32 = 40;

/// How long a thread that sleeps takes to run once it is woken.
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

/// How long a message takes.
fn message([from, to]: [&Node; 2]) -> Duration {
    let (node, source) = (to.clone(), from.id());
    let receiving = running("a receive", move || {
        node.recv_by(Match::from(source), &mut [0; 8], soon()).unwrap();
        Instant::now()
    });
    let receiving = receiving.started();
    let began = Instant::now();
    from.send_by(to.id(), 1, &[7; 8], soon()).unwrap();
    receiving.join().saturating_duration_since(began)
}

/// Locks the key in a thread of its own, and says when it had it.
fn has(key: &LockKey) -> Running<Instant> {
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
    let mut waits = ["unlock", "unlock_all", "a deadline"].map(|what| (what, Vec::new()));
    for _ in 0..ROUNDS {
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

        // Over a network the home is asked once more, who has it.
        if !world.is_networked() {
            let guard = lock_sound(&a);
            let deadline = Instant::now() + Duration::from_millis(2);
            assert!(matches!(b.lock_by(deadline), Err(Error::Timeout { node: Some(NodeId(0)), .. })));
            waits[2].1.push(deadline.elapsed());
            guard.unlock().unwrap();
        }
    }
    let calm = median(&mut calm);
    for (what, times) in waits.iter_mut().filter(|(_, times)| !times.is_empty()) {
        let took = median(times);
        assert!(took <= TIMES_MOST * calm, "a wait took {took:.1?} after {what}, and {calm:.1?} a message and a waking");
    }
}
