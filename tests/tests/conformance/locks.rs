//! Locks of the registry: one owner at a time, while nodes wait, give up, leave and die.

use doorbell::{Error, Lock, LockError, LockGuard, Match, Node, NodeId, Resource, Result, TryLock, Value};
use doorbell_tests::in_place::read;
use doorbell_tests::patience::{Running, briefly, eventually, running, soon, until};
use doorbell_tests::world::World;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Nodes that have met, and the handle of each to a lock that the first one made.
#[track_caller]
pub(super) fn grounds<const N: usize>(world: &World) -> ([Node; N], [Lock; N]) {
    let nodes = met(world);
    let keys = shared(&nodes, "key");
    (nodes, keys)
}

/// Nodes that have met. Before that, each might have a registry of its own.
#[track_caller]
pub(super) fn met<const N: usize>(world: &World) -> [Node; N] {
    let nodes = world.nodes::<N>();
    for node in &nodes {
        node.wait_for(N, soon()).unwrap();
    }
    nodes
}

#[track_caller]
fn shared<const N: usize>(nodes: &[Node; N], name: &str) -> [Lock; N] {
    Lock::init(&nodes[0], name, Resource::Unnamed).unwrap();
    std::array::from_fn(|at| Lock::find(&nodes[at], name).unwrap())
}

/// The lock fault of an error. Panics on any other error.
#[track_caller]
pub(super) fn why<T>(result: Result<T>) -> LockError {
    match result {
        Err(error) => error.downcast_ref().cloned().unwrap_or_else(|| panic!("{error}")),
        Ok(_) => panic!("it worked"),
    }
}

/// The node that had the lock when the deadline passed.
#[track_caller]
fn held_by<T>(result: Result<T>) -> Option<NodeId> {
    match result {
        Err(Error::Timeout { node, .. }) => node,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it worked"),
    }
}

/// The value that keeps the caller out.
#[track_caller]
fn busy(key: &Lock) -> Value {
    match key.try_lock().unwrap() {
        TryLock::Busy(value) => value,
        TryLock::Locked(_) => panic!("it was not busy"),
    }
}

/// Takes the lock, and checks that no owner died with it.
#[track_caller]
pub(super) fn lock_sound(key: &Lock) -> LockGuard<'_> {
    let guard = key.lock_until(soon()).unwrap();
    assert_eq!(guard.inherited_from(), None);
    guard
}

/// Waits until the registry knows `count` waiters.
#[track_caller]
pub(super) fn until_waiting(key: &Lock, count: usize) {
    eventually("somebody waits for the lock", || key.facts().unwrap().waiting.len() >= count);
}

/// Waits for the lock in a thread of its own, uses it, and returns the owner that died with it.
pub(super) fn waits(key: &Lock) -> Running<Result<Option<doorbell::OwnerId>>> {
    let key = key.clone();
    running("a wait for a key", move || {
        let guard = key.lock_until(soon())?;
        let dead = guard.inherited_from();
        guard.unlock()?;
        Ok(dead)
    })
}

pub fn a_key_has_one_owner(world: &World) {
    let (_nodes, [a, b]) = grounds(world);
    assert_eq!((a.get().unwrap(), b.get().unwrap()), (Value::Unlocked, Value::Unlocked));
    let guard = lock_sound(&a);
    assert_eq!(guard.owner(), a.my_id());
    assert_eq!((a.get().unwrap(), b.get().unwrap()), (Value::Owner(a.my_id()), Value::Owner(a.my_id())));
    assert_eq!(busy(&b), Value::Owner(a.my_id()));
    assert_eq!(why(b.unlock()), LockError::NotYours(Value::Owner(a.my_id())));
    assert_eq!(a.get().unwrap(), Value::Owner(a.my_id()), "somebody else unlocked it");
    guard.unlock().unwrap();
    assert_eq!(why(a.unlock()), LockError::NotYours(Value::Unlocked));

    let guard = b.try_lock().unwrap().guard().unwrap();
    assert_eq!(a.get().unwrap(), Value::Owner(b.my_id()));
    // Not by dropping it: over a network that waits for nobody.
    guard.unlock().unwrap();
    assert_eq!(a.get().unwrap(), Value::Unlocked);
    // Kept beyond the guard.
    let me = lock_sound(&a).keep();
    assert_eq!(b.get().unwrap(), Value::Owner(me));
    a.unlock().unwrap();
    drop(lock_sound(&b));
}

pub fn keys_have_names(world: &World) {
    let [a, b] = met(world);
    assert_eq!(why(Lock::find(&b, "no such key")), LockError::Unknown);
    let key = Lock::init(&a, "frame", Resource::memory(0x1000..0x2000)).unwrap();
    for node in [&a, &b] {
        let again = Lock::init(node, "frame", Resource::Unnamed).unwrap_err();
        assert!(matches!(again, Error::Shm(_)) && again.to_string().contains("frame"), "{again}");
    }
    for name in ["", "a\nb", &"x".repeat(41)] {
        assert!(matches!(Lock::init(&a, name, Resource::Unnamed), Err(Error::Shm(_))), "{name}");
        assert_eq!(why(Lock::find(&a, name)), LockError::Unknown);
    }
    let theirs = Lock::open(&b, "frame", Resource::Id(7)).unwrap();
    assert_eq!(theirs.name(), "frame");
    assert_eq!(theirs.resource().unwrap(), Resource::memory(0x1000..0x2000), "it was there already");
    let facts = key.facts().unwrap();
    assert_eq!((facts.creator, facts.users), ((a.id(), a.incarnation()), vec![a.id(), b.id()]));
    Lock::open(&b, "other", Resource::Device(3)).unwrap();
    assert_eq!(Lock::find(&a, "other").unwrap().resource().unwrap(), Resource::Device(3));
    // Several at once make it together.
    let made: Vec<_> = [&a, &b, &a, &b]
        .map(|node| {
            let node = node.clone();
            running("a key", move || Lock::open(&node, "at once", Resource::Unnamed).unwrap().facts().unwrap().key)
        })
        .into_iter()
        .map(Running::join)
        .collect();
    assert!(made.iter().all(|key| *key == made[0]), "{made:?}");
}

pub fn a_value_is_set_if_it_is_as_expected(world: &World) {
    let (_nodes, [a, b]) = grounds(world);
    let (mine, theirs) = (a.my_id(), b.my_id());
    a.set(None, None).unwrap();
    assert_eq!(why(a.set(Some(mine), None)), LockError::Otherwise(Value::Unlocked));
    a.set(None, Some(mine)).unwrap();
    assert_eq!(busy(&b), Value::Owner(mine));
    assert_eq!(why(b.set(None, Some(theirs))), LockError::Otherwise(Value::Owner(mine)));
    assert_eq!(why(b.set(None, None)), LockError::Otherwise(Value::Owner(mine)));
    // Nobody sets it to what is another's, nor takes it from another.
    assert_eq!(why(b.set(Some(mine), Some(theirs))), LockError::NotYours(Value::Owner(mine)));
    assert_eq!(why(b.set(Some(mine), None)), LockError::NotYours(Value::Owner(mine)));
    assert_eq!(why(b.set(None, Some(mine))), LockError::NotYours(Value::Owner(mine)));
    // Nor does a thread set back what another of its node has.
    let other = a.clone();
    running("another thread", move || {
        assert_eq!(why(other.set(Some(mine), None)), LockError::NotYours(Value::Owner(mine)));
        assert_eq!(why(other.set(Some(mine), Some(other.my_id()))), LockError::NotYours(Value::Owner(mine)));
    })
    .join();
    assert_eq!(why(a.with_id(9).set(Some(mine), None)), LockError::NotYours(Value::Owner(mine)));
    assert_eq!(a.get().unwrap(), Value::Owner(mine), "another thread set it back");
    // Within a node it is handed on.
    let user = a.with_id(9).my_id();
    a.set(Some(mine), Some(user)).unwrap();
    assert_eq!(b.get().unwrap(), Value::Owner(user));
    assert_eq!(why(a.unlock()), LockError::NotYours(Value::Owner(user)));
    a.with_id(9).unlock().unwrap();
    b.set(None, Some(theirs)).unwrap();
    b.set(Some(theirs), None).unwrap();
    assert_eq!(a.get().unwrap(), Value::Unlocked);
}

pub fn a_program_gives_numbers_of_its_own(world: &World) {
    let (_nodes, [a, b]) = grounds(world);
    let (seven, eight) = (a.with_id(7), a.with_id(8));
    assert!(seven.my_id().is_users() && seven.my_id().number() == 7 && !a.my_id().is_users());
    assert_ne!(seven.my_id(), b.with_id(7).my_id(), "of two nodes");
    let id = lock_sound(&seven).keep();
    assert_eq!(b.get().unwrap(), Value::Owner(id));
    assert_eq!([busy(&a), busy(&eight), busy(&b.with_id(7))], [Value::Owner(id); 3]);
    assert_eq!(why(eight.unlock()), LockError::NotYours(Value::Owner(id)));
    assert_eq!(why(b.with_id(7).unlock()), LockError::NotYours(Value::Owner(id)));
    // Whichever thread has the number.
    running("another thread", move || {
        assert_eq!(why(seven.lock()), LockError::AlreadyYours);
        seven.unlock().unwrap();
    })
    .join();
    // Threads without numbers are told apart.
    let guard = lock_sound(&a);
    let other = a.clone();
    running("another thread", move || {
        assert_ne!(busy(&other), Value::Owner(other.my_id()));
        assert!(matches!(why(other.unlock()), LockError::NotYours(_)));
        assert_eq!(held_by(other.lock_until(briefly())), Some(NodeId(0)));
    })
    .join();
    guard.unlock().unwrap();
}

pub fn two_never_own_a_key(world: &World) {
    let (_nodes, keys) = grounds::<3>(world);
    const ROUNDS: u64 = 1000;
    const THREADS: usize = 2;
    let (pair, start) = (Arc::new([const { AtomicU64::new(0) }; 2]), Arc::new(Barrier::new(3 * THREADS)));
    let threads: Vec<_> = (0..3 * THREADS)
        .map(|at| {
            let (key, pair, start) = (keys[at % 3].clone(), pair.clone(), start.clone());
            running("threads that lock", move || {
                start.wait();
                for round in 0..ROUNDS {
                    let guard = match (round + at as u64) % 8 {
                        0 => key.lock_every(Duration::from_micros(20), soon()).unwrap(),
                        1 | 2 => match key.try_lock().unwrap().guard() {
                            Some(guard) => guard,
                            None => key.lock().unwrap(),
                        },
                        3 | 4 => key.lock_until(soon()).unwrap(),
                        _ => key.lock().unwrap(),
                    };
                    assert_eq!(guard.inherited_from(), None);
                    let [one, other] = &*pair;
                    let before = one.load(Ordering::Relaxed);
                    one.store(before + 1, Ordering::Relaxed);
                    if round % 64 == 0 {
                        std::thread::yield_now();
                    }
                    assert_eq!(other.load(Ordering::Relaxed), before, "two owners");
                    other.store(before + 1, Ordering::Relaxed);
                    assert_eq!(key.get().unwrap(), Value::Owner(key.my_id()));
                    guard.unlock().unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(Running::join);
    assert_eq!(pair[0].load(Ordering::Relaxed), 3 * THREADS as u64 * ROUNDS);
    assert_eq!(keys[0].get().unwrap(), Value::Unlocked);
    eventually("nobody waits any more", || keys[0].facts().unwrap().waiting.is_empty());
}

pub fn a_wait_for_a_key_ends_at_its_deadline(world: &World) {
    let (nodes, [a, b]) = grounds(world);
    let guard = lock_sound(&a);
    assert_eq!(held_by(b.lock_until(briefly())), Some(nodes[0].id()));
    assert_eq!(held_by(b.lock_every(Duration::from_millis(1), briefly())), Some(nodes[0].id()));
    // Nothing of the wait is left.
    assert!(a.facts().unwrap().waiting.is_empty());
    assert_eq!(b.get().unwrap(), Value::Owner(a.my_id()));
    guard.unlock().unwrap();
    drop(lock_sound(&b));
    drop(b.lock_every(Duration::from_millis(1), soon()).unwrap());
}

pub fn a_key_is_not_locked_twice(world: &World) {
    let (_nodes, [a]) = grounds(world);
    for key in [a.clone(), a.with_id(5)] {
        let guard = lock_sound(&key);
        assert_eq!(why(key.lock()), LockError::AlreadyYours);
        assert_eq!(why(key.lock_until(soon())), LockError::AlreadyYours);
        assert_eq!(why(key.lock_every(Duration::from_millis(1), soon())), LockError::AlreadyYours);
        assert_eq!(busy(&key), Value::Owner(key.my_id()));
        guard.unlock().unwrap();
        assert_eq!(a.get().unwrap(), Value::Unlocked);
    }
}

pub fn the_module_locks_a_key_for_everybody(world: &World) {
    let (nodes, [a, b, c]) = grounds(world);
    a.lock_all(soon()).unwrap();
    assert_eq!([a.get().unwrap(), b.get().unwrap()], [Value::Module; 2]);
    assert_eq!([busy(&a), busy(&b)], [Value::Module; 2]);
    assert_eq!(held_by(b.lock_until(briefly())), None);
    assert_eq!(why(b.lock_all(soon())), LockError::Frozen);
    assert_eq!(why(a.unlock()), LockError::NotYours(Value::Module));
    let waiter = waits(&b);
    until_waiting(&a, 1);
    // Any node may call it.
    c.unlock_all().unwrap();
    assert_eq!(waiter.join().unwrap(), None);
    assert_eq!(why(a.unlock_all()), LockError::NotYours(Value::Unlocked));

    // It stays locked after the node that locked it has left.
    let [na, nb, nc] = nodes;
    b.lock_all(soon()).unwrap();
    nb.leave().unwrap();
    assert_eq!(busy(&c), Value::Module);
    a.unlock_all().unwrap();
    drop(lock_sound(&c));
    c.lock_all(soon()).unwrap();
    nc.abandon();
    assert_eq!(busy(&a), Value::Module);
    a.unlock_all().unwrap();
    drop(lock_sound(&a));
    drop(na);
}

pub fn the_module_waits_for_who_is_in(world: &World) {
    let (nodes, [a, b, c]) = grounds(world);
    let guard = lock_sound(&b);
    // In vain: everything is as before.
    assert_eq!(held_by(a.lock_all(briefly())), Some(nodes[1].id()));
    let facts = a.facts().unwrap();
    assert!(!facts.seen.is_frozen() && facts.seen.owner() == Some(b.my_id()));

    let all = a.clone();
    let locking = running("lock_all", move || all.lock_all(soon()));
    eventually("a key that is frozen", || a.facts().unwrap().seen.is_frozen());
    let waiter = waits(&c);
    until_waiting(&a, 1);
    // The owner keeps the lock, and no other node gets it.
    assert_eq!(a.get().unwrap(), Value::Owner(b.my_id()));
    assert_eq!(busy(&c), Value::Owner(b.my_id()));
    guard.unlock().unwrap();
    locking.join().unwrap();
    assert_eq!([busy(&b), busy(&c)], [Value::Module; 2]);
    b.unlock_all().unwrap();
    assert_eq!(waiter.join().unwrap(), None);

    // Ended by somebody else before it began.
    let guard = lock_sound(&b);
    let all = a.clone();
    let locking = running("lock_all", move || all.lock_all(soon()));
    eventually("a key that is frozen", || a.facts().unwrap().seen.is_frozen());
    c.unlock_all().unwrap();
    let value = Value::Owner(b.my_id());
    assert_eq!(why(locking.join()), LockError::Otherwise(value));
    guard.unlock().unwrap();

    // The owner dies.
    let dead = lock_sound(&b).keep();
    let all = a.clone();
    let locking = running("lock_all", move || all.lock_all(soon()));
    eventually("a key that is frozen", || a.facts().unwrap().seen.is_frozen());
    let waiter = waits(&c);
    until_waiting(&a, 1);
    let [_na, nb, _nc] = nodes;
    nb.abandon();
    locking.join().unwrap();
    assert_eq!(busy(&c), Value::Module);
    a.unlock_all().unwrap();
    assert_eq!(waiter.join().unwrap(), Some(dead), "of a death in a frozen key");
    a.lock_until(soon()).unwrap().mark_repaired().unwrap();
    let nb = world.node(1);
    let b = Lock::find(&nb, "key").unwrap();
    let dead = lock_sound(&b).keep();
    nb.abandon();
    until("a short lock_all after a death", || a.lock_all(Instant::now() + Duration::from_micros(100)).ok());
    a.unlock_all().unwrap();
    assert_eq!(c.lock_until(soon()).unwrap().inherited_from(), Some(dead));
}

pub fn a_key_is_destroyed_when_nobody_uses_it(world: &World) {
    let (nodes, [a, b, c]) = grounds(world);
    c.release().unwrap();
    let stale = b.clone();
    assert_eq!(why(a.clone().destroy(briefly())), LockError::InUse(vec![nodes[1].id()]));
    drop(lock_sound(&b));
    // Once the last has released it.
    let (all, deadline) = (a.clone(), soon());
    let destroying = running("destroying a key", move || all.destroy(deadline)).started();
    let guard = lock_sound(&b);
    guard.unlock().unwrap();
    b.release().unwrap();
    destroying.join().unwrap();
    assert_eq!(why(Lock::find(&nodes[1], "key")), LockError::Unknown);
    for key in [&a, &stale] {
        assert_eq!(why(key.lock()), LockError::Destroyed);
        assert_eq!(why(key.try_lock()), LockError::Destroyed);
        assert_eq!(why(key.lock_until(soon())), LockError::Destroyed);
        assert_eq!(why(key.unlock()), LockError::Destroyed);
        assert_eq!(why(key.get()), LockError::Destroyed);
        assert_eq!(why(key.set(None, None)), LockError::Destroyed);
        assert_eq!(why(key.lock_all(soon())), LockError::Destroyed);
        assert_eq!(why(key.unlock_all()), LockError::Destroyed);
        assert_eq!(why(key.facts()), LockError::Destroyed);
        assert_eq!(why(key.clone().release()), LockError::Destroyed);
        assert_eq!(why(key.clone().destroy(soon())), LockError::Destroyed);
    }
    // Another of that name is another.
    let new = Lock::init(&nodes[2], "key", Resource::Id(2)).unwrap();
    assert_eq!(why(stale.lock()), LockError::Destroyed);
    let guard = lock_sound(&new);
    assert_eq!(why(stale.unlock()), LockError::Destroyed);
    drop(guard);
    // A user that died uses it no more.
    let theirs = Lock::find(&nodes[1], "key").unwrap();
    let [_na, nb, _nc] = nodes;
    nb.abandon();
    until("a death", || new.clone().destroy(briefly()).ok());
    assert!(matches!(theirs.lock(), Err(Error::Closed)));
}

pub fn who_waits_for_a_key_is_told_that_it_was_destroyed(world: &World) {
    let (nodes, [a, b]) = grounds(world);
    b.clone().release().unwrap();
    let guard = lock_sound(&a);
    let waiting = [waits(&a), waits(&b)];
    until_waiting(&a, 2);
    // Only the owner may destroy it.
    assert_eq!(why(b.clone().destroy(briefly())), LockError::InUse(vec![nodes[0].id()]));
    a.clone().destroy(soon()).unwrap();
    for waiter in waiting {
        assert_eq!(why(waiter.join()), LockError::Destroyed);
    }
    // The guard of the old lock does not touch the lock that takes its place.
    let new = Lock::init(&nodes[0], "key", Resource::Unnamed).unwrap();
    let mine = lock_sound(&new);
    drop(guard);
    assert_eq!(new.get().unwrap(), Value::Owner(new.my_id()), "a guard of another key unlocked it");
    mine.unlock().unwrap();
    // The owner has released its use of the lock.
    let theirs = Lock::find(&nodes[1], "key").unwrap();
    let guard = lock_sound(&theirs);
    theirs.clone().release().unwrap();
    assert_eq!(why(new.clone().destroy(soon())), LockError::Otherwise(Value::Owner(guard.owner())));
    guard.unlock().unwrap();
    new.destroy(soon()).unwrap();
}

pub fn who_gives_up_waiting_holds_up_nobody(world: &World) {
    let (nodes, [a, b, c, d]) = grounds(world);
    let [na, nb, _nc, nd] = nodes;
    let guard = lock_sound(&a);
    let (dying, patient) = (waits(&b), waits(&c));
    until_waiting(&a, 2);
    let leaving = waits(&d);
    until_waiting(&a, 3);
    assert_eq!(held_by(c.with_id(1).lock_until(briefly())), Some(NodeId(0)));
    nb.abandon();
    nd.leave().unwrap();
    assert!(matches!(dying.join(), Err(Error::Closed)));
    assert!(matches!(leaving.join(), Err(Error::Closed)));
    guard.unlock().unwrap();
    let inherited = patient.join().unwrap();
    if world.is_networked() {
        // That it died while it waited is known only when it has been silent for long: it may get the key before that.
        eventually("its death being known", || !na.members().unwrap().iter().any(|member| member.id == NodeId(1)));
        a.lock_until(soon()).unwrap().mark_repaired().unwrap();
    } else {
        assert_eq!(inherited, None);
    }
    drop(lock_sound(&a));
    // A waiter gives up while the lock changes hands all the time.
    let stop = Arc::new(AtomicBool::new(false));
    let (busy, stopped) = (a.clone(), stop.clone());
    let owner = running("an owner", move || {
        while !stopped.load(Ordering::Relaxed) {
            drop(busy.lock_until(soon()).unwrap());
        }
    });
    for round in 0..50u64 {
        let deadline = Instant::now() + Duration::from_micros(37 * round);
        if let Err(error) = c.lock_until(deadline).map(drop) {
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        }
    }
    drop(lock_sound(&c));
    stop.store(true, Ordering::Relaxed);
    owner.join();
    eventually("nobody waiting", || a.facts().unwrap().waiting.is_empty());
}

pub fn everybody_gets_a_turn(world: &World) {
    let (_nodes, keys) = grounds::<4>(world);
    let stop = Arc::new(AtomicBool::new(false));
    let others: Vec<_> = keys[..3]
        .iter()
        .map(|key| {
            let (key, stop) = (key.clone(), stop.clone());
            running("owners that come again at once", move || {
                while !stop.load(Ordering::Relaxed) {
                    drop(key.lock().unwrap());
                }
            })
        })
        .collect();
    for _ in 0..20 {
        drop(lock_sound(&keys[3]));
    }
    stop.store(true, Ordering::Relaxed);
    others.into_iter().for_each(Running::join);
}

pub fn a_panic_gives_its_keys_up(world: &World) {
    let (_nodes, [a, b]) = grounds(world);
    let waiter = {
        let guard = lock_sound(&a);
        let waiter = waits(&b);
        until_waiting(&a, 1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _guard = guard;
            std::panic::resume_unwind(Box::new("on purpose"));
        }));
        assert!(panicked.is_err());
        waiter
    };
    assert_eq!(waiter.join().unwrap(), None);
    drop(lock_sound(&a));
}

pub fn keys_are_locked_within_a_reader(world: &World) {
    let (nodes, [a, b]) = grounds(world);
    nodes[0].send_until(nodes[1].id(), 1, b"message", soon()).unwrap();
    let guard = lock_sound(&a);
    let is_networked = world.is_networked();
    let (reader, asked) = (nodes[1].clone(), Arc::new(AtomicBool::new(false)));
    let asks = asked.clone();
    let reading = running("locking within a reader", move || {
        let read = read(&reader, Match::any(), |_, _| {
            if is_networked {
                // The owner may give the lock up by a notice, which this node reads only if another of its threads turns the engine.
                assert!(matches!(b.lock_until(briefly()), Err(Error::Reentrant { .. } | Error::Timeout { .. })));
                asks.store(true, Ordering::SeqCst);
                return;
            }
            assert_eq!(held_by(b.lock_until(briefly())), Some(NodeId(0)));
            asks.store(true, Ordering::SeqCst);
            drop(lock_sound(&b));
        });
        read.unwrap();
    });
    eventually("a wait within a reader", || asked.load(Ordering::SeqCst));
    guard.unlock().unwrap();
    reading.join();
    drop(lock_sound(&a));
}

pub fn a_node_that_left_has_no_keys(world: &World) {
    let (nodes, [a, b]) = grounds(world);
    let [na, _nb] = nodes;
    let clone = na.clone();
    na.leave().unwrap();
    let results = [
        Lock::init(&clone, "new", Resource::Unnamed).map(drop),
        Lock::find(&clone, "key").map(drop),
        Lock::open(&clone, "key", Resource::Unnamed).map(drop),
        a.get().map(drop),
        a.facts().map(drop),
        a.set(None, None),
        a.try_lock().map(drop),
        a.lock().map(drop),
        a.lock_until(soon()).map(drop),
        a.lock_every(Duration::from_millis(1), soon()).map(drop),
        a.lock_all(soon()),
        a.unlock_all(),
        a.clone().release(),
        a.clone().destroy(soon()),
    ];
    for (call, result) in results.into_iter().enumerate() {
        assert!(matches!(result, Err(Error::Closed)), "{call}: {result:?}");
    }
    drop(lock_sound(&b));
}
