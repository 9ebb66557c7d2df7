//! Locks and the incarnations of nodes.

use super::*;
use crate::keys::{KeyRef, Look, OwnerId, Resource, Value};
use std::time::{Duration, Instant};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn id(node: &Membership) -> OwnerId {
    OwnerId::thread(node.id(), node.incarnation(), 0)
}

fn make(node: &Membership, name: &str) -> KeyRef {
    node.init_key(name, Resource::Unnamed, soon()).unwrap()
}

fn lock(node: &Membership, key: KeyRef) {
    assert!(!node.key(key).unwrap().words().try_take(id(node), 0).unwrap().damaged);
}

#[test]
fn a_life_lives_until_it_ends() {
    each_space(|space| {
        let (a, b, c) = (join(space), join(space), join(space));
        let lives = [&a, &b, &c].map(|node| (node.id(), node.incarnation()));
        let as_seen = |node: &Membership| lives.map(|(id, incarnation)| node.is_living(id, incarnation));
        assert_eq!(as_seen(&a), [true; 3]);
        assert_eq!(as_seen(&b), [true; 3]);
        assert!(!a.is_living(b.id(), Incarnation(b.incarnation().0 + 1)), "an incarnation that has not begun");
        assert!(!a.is_living(b.id(), a.incarnation()) && !a.is_living(b.id(), Incarnation(0)));
        assert!(!a.is_living(NodeId(3), Incarnation(1)) && !a.is_living(NodeId(u16::MAX), Incarnation(1)));

        b.abandon();
        assert_eq!(as_seen(&a), [true, false, true]);
        assert_eq!(as_seen(&b), [true, false, true], "a node knows itself");
        c.leave().unwrap();
        assert_eq!(as_seen(&a), [true, false, false]);

        // Other nodes join under their ids.
        let (b2, c2) = (join(space), join(space));
        assert_eq!((b2.id(), c2.id()), (lives[1].0, lives[2].0));
        assert_eq!(as_seen(&a), [true, false, false]);
        assert_eq!(as_seen(&b2), [true, false, false]);
        assert!(a.is_living(b2.id(), b2.incarnation()) && b2.is_living(c2.id(), c2.incarnation()));
        a.leave().unwrap();
        assert_eq!(as_seen(&b2), [false; 3]);
    });
}

#[test]
fn keys_outlive_who_made_them() {
    each_space(|space| {
        let (a, b) = (join(space), join(space));
        let key = make(&a, "key");
        assert_eq!(b.find_key("key"), Some(key));
        let again = b.init_key("key", Resource::Unnamed, soon()).unwrap_err();
        assert!(matches!(again, ShmError::Key { .. }), "{again}");
        a.leave().unwrap();
        assert!(matches!(a.init_key("other", Resource::Unnamed, soon()), Err(ShmError::Left { .. })));
        lock(&b, key);
        assert_eq!(b.key(key).unwrap().destroy(None, soon()).unwrap(), Some(id(&b)), "another owner has it");
        assert!(!b.key(key).unwrap().words().get().is_frozen(), "the lock is unchanged");
        assert_eq!(b.key(key).unwrap().destroy(Some(id(&b)), soon()).unwrap(), None);
        assert!(b.key(key).is_none() && b.find_key("key").is_none() && b.keys().is_empty());
    });
}

#[test]
fn an_heir_is_told_from_whom() {
    each_space(|space| {
        let (a, b, c) = (join(space), join(space), join(space));
        let place = make(&a, "key");
        lock(&b, place);
        let dead = id(&b);
        b.abandon();
        let key = a.key(place).unwrap();
        let seen = key.words().get();
        let (mut first, mut second) = (key.wait(id(&a)), c.key(place).unwrap().wait(id(&c)));
        assert!(matches!(key.inherit(&mut first, seen), Look::Taken(taken) if taken.damaged));
        assert!(matches!(c.key(place).unwrap().inherit(&mut second, seen), Look::Not(_)), "two waiters inherited the lock");
        drop((first, second));
        assert_eq!((key.dead(), key.words().get().owner()), (Some(dead), Some(id(&a))));
        key.words().release(id(&a)).unwrap();
        assert!(key.words().try_take(id(&c), 0).unwrap().damaged);
        assert_eq!(key.facts().unwrap().dead, Some(dead));
    });
}

/// No node gets a frozen lock. The next owner after that is told which owner died.
#[test]
fn who_died_in_a_barred_key_is_told_later() {
    each_space(|space| {
        for bury in [false, true] {
            let (a, b) = (join(space), join(space));
            let place = make(&a, "key");
            lock(&b, place);
            let dead = id(&b);
            b.abandon();
            let key = a.key(place).unwrap();
            key.words().freeze();
            let seen = key.words().get();
            if bury {
                assert!(key.bury(seen));
            } else {
                let mut waiter = key.wait(id(&a));
                assert!(matches!(key.inherit(&mut waiter, seen), Look::Not(seen) if seen.value() == Value::Module));
            }
            key.words().thaw();
            assert!(key.words().try_take(id(&a), 0).unwrap().damaged);
            assert_eq!(key.dead(), Some(dead), "{bury}");
            drop(b);
            a.leave().unwrap();
        }
    });
}

/// A waiter will soon inherit the dead owner's lock, so the others can go on.
#[test]
fn a_circle_with_a_dead_member_is_none() {
    for dies in [false, true] {
        let space = Space::heap();
        let [a, b, c] = std::array::from_fn(|_| join(&space));
        let keys = ["a", "b", "c"].map(|name| make(&a, name));
        let nodes = [&a, &b, &c];
        nodes.iter().zip(keys).for_each(|(node, key)| lock(node, key));
        let mut waiters: Vec<_> = (0..3).map(|at| nodes[at].key(keys[(at + 1) % 3]).unwrap().wait(id(nodes[at]))).collect();
        assert!(a.circle(&mut waiters[0]).is_none() && b.circle(&mut waiters[1]).is_none());
        if dies {
            b.abandon();
        }
        let circle = c.circle(&mut waiters[2]);
        assert_eq!(circle.is_some(), !dies);
        for (waiting, name) in circle.iter().flatten().zip(["a", "b", "c"]) {
            assert_eq!(c.name_of(waiting).as_deref(), Some(name));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    // Miri is too slow for so much garbage.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_registry_of_garbage_harms_no_node(seed in any::<u64>(), small in any::<bool>()) {
        let space = Space::heap();
        let [a, b] = std::array::from_fn(|_| join(&space));
        for number in 0..4 {
            make(&a, &format!("key {number}"));
        }
        let file = space.open(&a.names.domain()).unwrap().unwrap();
        let registry = file.map(layout::keys_offset(4), crate::keys::TABLE_BYTES).unwrap();
        let mut word = seed | 1;
        for at in 0..crate::keys::TABLE_BYTES / 8 {
            word = word.rotate_left(23).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at as u64;
            let own = OwnerId::thread(NodeId(word as u16 % 4), Incarnation(1 + (word >> 16) as u32 % 4), (word >> 24) as u32 % 2);
            let value = if small { [0, 1, u64::MAX, own.bits()][(word >> 40) as usize % 4] } else { word };
            // SAFETY: within the registry, and aligned.
            unsafe { (*registry.ptr().cast::<AtomicU64>().add(at)).store(value, Ordering::Relaxed) };
        }
        for node in [&a, &b] {
            let _ = node.find_key("key 1");
            for facts in node.keys() {
                let _ = (facts.resource.to_string(), node.is_living(facts.creator.0, facts.creator.1));
            }
        }
        for slot in 0..4 {
            let Some(facts) = a.directory().keys().facts(slot) else { continue };
            let Some(key) = a.key(facts.key) else { continue };
            let mut waiter = key.wait(id(&a));
            let _ = (waiter.look(), a.circle(&mut waiter));
            waiter.sleep(Duration::from_micros(10));
            let seen = key.words().get();
            if seen.owner().is_some_and(|owner| !a.is_living(owner.node(), owner.incarnation())) {
                let _ = key.inherit(&mut waiter, seen);
            }
            drop(waiter);
            let _ = (key.bury(key.words().get()), key.facts(), key.destroy(None, soon()));
        }
        // The nodes go on: they join, create locks and leave.
        b.leave().unwrap();
        let next = join(&space);
        prop_assert_eq!(next.id(), NodeId(1));
        match next.init_key("new", Resource::Unnamed, soon()) {
            Ok(key) => prop_assert!(next.key(key).is_some()),
            Err(error) => prop_assert!(matches!(error, ShmError::Key { .. }), "{}", error),
        }
    }
}
