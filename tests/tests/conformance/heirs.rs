//! Locks whose owner is gone: the next owner gets the lock and is told.

use super::locks::{grounds, lock_sound, until_waiting, waits};
use doorbell::{Error, Lock, Value};
use doorbell_tests::patience::{soon, until};
use doorbell_tests::world::World;
use std::time::{Duration, Instant};

/// The next owners of a lock after its owner `gone`: each is told, until one has repaired the data that the lock guards.
#[track_caller]
fn check_heirs(keys: [&Lock; 2], gone: doorbell::OwnerId) {
    for key in [keys[0], keys[1], keys[1], keys[0]] {
        let guard = key.lock_until(soon()).unwrap();
        assert_eq!(guard.inherited_from(), Some(gone));
        assert_eq!(key.facts().unwrap().dead, Some(gone));
        guard.unlock().unwrap();
    }
    let mut guard = keys[1].try_lock().unwrap().guard().unwrap();
    assert_eq!(guard.inherited_from(), Some(gone));
    guard.mark_repaired().unwrap();
    assert_eq!(guard.inherited_from(), None);
    guard.mark_repaired().unwrap();
    guard.unlock().unwrap();
    drop(lock_sound(keys[0]));
    drop(lock_sound(keys[1]));
}

pub fn the_next_owner_is_told_who_died(world: &World) {
    let (nodes, [a, b, c]) = grounds(world);
    let [na, nb, _nc] = nodes;
    // A newcomer, a caller that tries again and again, and a waiter find out.
    let guard = lock_sound(&b);
    let gone = guard.owner();
    nb.abandon();
    check_heirs([&a, &c], gone);
    // An operation that is over can't give the turn up.
    let held = lock_sound(&a);
    drop(guard);
    assert_eq!(a.get().unwrap(), Value::Owner(held.owner()), "a dead one unlocked it");
    held.unlock().unwrap();
    assert!(matches!(b.lock(), Err(Error::Closed)));
    assert!(matches!(b.get(), Err(Error::Closed)));

    // Its next life has nothing to do with it.
    let nb = world.node(1);
    let b = Lock::find(&nb, "key").unwrap();
    let gone = lock_sound(&b).keep();
    let waiter = waits(&a);
    until_waiting(&c, 1);
    nb.abandon();
    assert_eq!(waiter.join().unwrap(), Some(gone));
    check_heirs([&c, &a], gone);

    let nb = world.node(1);
    let b = Lock::find(&nb, "key").unwrap();
    let gone = b.with_id(3).lock_until(soon()).unwrap().keep();
    nb.abandon();
    let guard = a.lock_every(Duration::from_millis(1), soon()).unwrap();
    assert_eq!(guard.inherited_from(), Some(gone));
    guard.unlock().unwrap();
    a.lock_until(soon()).unwrap().mark_repaired().unwrap();
    // Even waits that are too short find out.
    let nb = world.node(1);
    let b = Lock::find(&nb, "key").unwrap();
    let gone = lock_sound(&b).keep();
    nb.abandon();
    let guard = until("a short wait that inherits", || a.lock_until(Instant::now() + Duration::from_micros(100)).ok());
    assert_eq!(guard.inherited_from(), Some(gone));
    guard.unlock().unwrap();
    // An heir dies: the next owner is told of the heir.
    let heir = c.lock_until(soon()).unwrap();
    assert_eq!(heir.inherited_from(), Some(gone));
    let gone = heir.keep();
    _nc.abandon();
    let guard = a.lock_until(soon()).unwrap();
    assert_eq!(guard.inherited_from(), Some(gone));
    drop((guard, na));
}

pub fn the_next_owner_is_told_who_left(world: &World) {
    let (nodes, [a, b, c]) = grounds(world);
    let [_na, nb, nc] = nodes;
    let guard = lock_sound(&b);
    let gone = guard.owner();
    nb.leave().unwrap();
    drop(guard);
    // Its guard was dropped after it had left: either the key was given up, or somebody inherits it. Never is it locked for ever.
    let next = a.lock_until(soon()).unwrap();
    assert!(next.inherited_from().is_none_or(|dead| dead == gone));
    next.unlock().unwrap();

    a.lock_until(soon()).unwrap().mark_repaired().unwrap();
    let gone = lock_sound(&c).keep();
    let waiter = waits(&a);
    until_waiting(&a, 1);
    nc.leave().unwrap();
    assert_eq!(waiter.join().unwrap(), Some(gone));
    check_heirs([&a, &a], gone);
}
