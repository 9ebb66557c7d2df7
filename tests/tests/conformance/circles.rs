//! Deadlocks of waits for locks: the waiter that closes one is told.

use super::locks::{lock_sound, met, until_waiting, why};
use doorbell::{Lock, LockError, Node, OwnerId, Resource, Value};
use doorbell_tests::patience::{Running, eventually, running, soon};
use doorbell_tests::world::World;
use std::sync::{Arc, Barrier};

/// The waiting owners of a deadlock, each with the lock it waits for.
type Circle = Vec<(OwnerId, String)>;

/// Each node holds a lock and waits for that of the next one, both as this owner. Returns how each wait ended. A node that is told of a deadlock gives
/// its lock up.
fn circle<const N: usize>(nodes: &[Node; N], owner: fn(&Lock) -> Lock, one_after_the_other: bool) -> [Option<Circle>; N] {
    let keys: [[Lock; N]; N] = std::array::from_fn(|at| {
        let name = format!("key {at}");
        Lock::open(&nodes[0], &name, Resource::Unnamed).unwrap();
        std::array::from_fn(|node| Lock::find(&nodes[node], &name).unwrap())
    });
    let start = Arc::new(Barrier::new(N));
    let waiting: Vec<_> = (0..N)
        .map(|at| {
            let (own, next, start) = (owner(&keys[at][at]), owner(&keys[(at + 1) % N][at]), start.clone());
            running("a circle of waits", move || {
                let guard = lock_sound(&own);
                start.wait();
                if one_after_the_other {
                    // The first waits for key 1, which is known before the second waits for key 2, …
                    (0..at).for_each(|before| until_waiting(&own.clone(), usize::from(before + 1 == at)));
                }
                let second = match next.lock_until(soon()) {
                    Ok(second) => second,
                    Err(error) => match why::<()>(Err(error)) {
                        LockError::Deadlock { waits } => return Some(waits),
                        other => panic!("{other}"),
                    },
                };
                assert_eq!(second.inherited_from(), None);
                drop((second, guard));
                None
            })
        })
        .collect();
    let ended: Vec<_> = waiting.into_iter().map(Running::join).collect();
    for key in &keys {
        // Guards that are dropped wait for nobody.
        eventually("the keys free", || key[0].get().unwrap() == Value::Unlocked);
    }
    std::array::from_fn(|at| ended[at].clone())
}

fn check_circles<const N: usize>(nodes: &[Node; N]) {
    // The last waiter closed it.
    let told = circle(nodes, Lock::clone, true);
    let last = told[N - 1].as_ref().expect("nobody told the last");
    assert!(told[..N - 1].iter().all(Option::is_none), "{told:?}");
    let expected = (0..N).map(|step| ((N - 1 + step) % N, (N + step) % N));
    let found: Vec<_> = last.iter().map(|(who, key)| (who.node().index(), key.clone())).collect();
    assert_eq!(found, expected.map(|(node, key)| (node, format!("key {key}"))).collect::<Vec<_>>());
    // At once: one of them. Owners are threads, or numbers of the program.
    for owner in [Lock::clone, |key: &Lock| key.with_id(7), Lock::clone] {
        let told = circle(nodes, owner, false);
        assert_eq!(told.iter().flatten().count(), 1, "{told:?}");
    }
}

pub fn a_circle_of_two_is_told_to_who_closed_it(world: &World) {
    check_circles(&met::<2>(world));
}

pub fn a_circle_of_three_is_told_to_who_closed_it(world: &World) {
    check_circles(&met::<3>(world));
}
