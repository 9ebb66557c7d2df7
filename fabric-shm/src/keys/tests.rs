//! Locks without a domain: their words, the table, and the waiters.

use super::table::{KEYS_MAX, KeyRef, KeyTable, NAME_BYTES, Resource, ResourceError, TABLE_BYTES};
use super::waiting::{self, Look, Waiter};
use super::waits::WAITS_MAX;
use super::word::{LockWords, OwnerId, Seen, Value};
use crate::layout::PAGE;
use doorbell_fabric::{Incarnation, NodeId};
use proptest::prelude::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MAKER: (NodeId, Incarnation) = (NodeId(2), Incarnation(5));

/// The memory of an empty registry.
struct Memory(Box<[Page]>);

#[repr(C, align(4096))]
struct Page([AtomicU64; PAGE / 8]);

impl Memory {
    fn new() -> Self {
        Self((0..TABLE_BYTES / PAGE).map(|_| Page(std::array::from_fn(|_| AtomicU64::new(0)))).collect())
    }

    fn table(&self) -> KeyTable<'_> {
        // SAFETY: so long, aligned, and made of atomics.
        unsafe { KeyTable::at(self.0.as_ptr().cast_mut().cast()) }
    }

    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.0.iter().flat_map(|page| &page.0)
    }
}

fn owner(number: u32) -> OwnerId {
    OwnerId::thread(NodeId(3), Incarnation(7), number)
}

fn with_words<T>(run: impl FnOnce(&LockWords) -> T) -> T {
    let memory = Memory::new();
    run(&memory.table().slot(0).unwrap().words)
}

#[track_caller]
fn check_id(node: u16, incarnation: u32, number: u32) {
    let thread = OwnerId::thread(NodeId(node), Incarnation(incarnation), number);
    let user = OwnerId::user(NodeId(node), Incarnation(incarnation), number);
    for id in [thread, user] {
        assert_eq!((id.node(), id.incarnation(), id.number()), (NodeId(node), Incarnation(incarnation), number));
        assert_eq!(OwnerId::from_bits(id.bits()), Some(id));
        assert_ne!(Value::Owner(id).bits(), Value::Module.bits());
    }
    assert!(user.is_users() && !thread.is_users() && user != thread);
    let base = OwnerId::thread(NodeId(node), Incarnation(incarnation), 0).bits();
    assert_eq!(OwnerId::numbered(base, number), thread);
}

#[test]
fn identifications_keep_what_they_are_made_of() {
    for node in [0, 1, 511, 1023] {
        for incarnation in [1, 2, 0x8000_0000, u32::MAX] {
            for number in [0, 1, OwnerId::NUMBERS - 1] {
                check_id(node, incarnation, number);
            }
        }
    }
    // Of a number that is too large the lower bits count, and nothing spills into other fields.
    let spilt = OwnerId::thread(NodeId(u16::MAX), Incarnation(1), u32::MAX);
    assert_eq!((spilt.node(), spilt.incarnation(), spilt.number()), (NodeId(1023), Incarnation(1), OwnerId::NUMBERS - 1));
    assert!(!spilt.is_users());
    assert_eq!(OwnerId::from_bits(0), None);
    assert_eq!(OwnerId::from_bits(3 << 62), None);
    assert!(owner(4).to_string().contains("thread 4"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_identification_keeps_what_it_is_made_of(node in 0..1024u16, incarnation in 1..=u32::MAX, number in 0..OwnerId::NUMBERS) {
        check_id(node, incarnation, number);
    }

    #[test]
    fn resources_are_four_words(words in any::<[u64; 4]>(), kind in 0..6u64) {
        let resource = Resource::from_words([kind, words[1], words[2], words[3]]);
        prop_assert_eq!(Resource::from_words(resource.to_words()), resource);
        let _ = Resource::from_words(words);
    }
}

#[test]
fn a_value_says_who_is_in() {
    with_words(|words| {
        let seen = words.get();
        assert!(seen.is_free() && !seen.is_frozen() && !seen.is_damaged());
        assert_eq!((seen.value(), seen.value().bits(), seen.owner()), (Value::Unlocked, 0, None));
        assert!(!words.try_take(owner(1), 0).unwrap().damaged);
        let seen = words.get();
        assert_eq!((seen.value(), seen.value().bits()), (Value::Owner(owner(1)), owner(1).bits()));
        assert!(!seen.is_free());
        assert_eq!(words.try_take(owner(1), 0), Err(seen));
        assert_eq!(words.try_take(owner(2), 0), Err(seen));
        words.release(owner(1)).unwrap();
        assert!(words.get().is_free());
        assert_eq!(words.uses(), 1);
        words.freeze();
        assert_eq!((words.get().value(), words.get().value().bits()), (Value::Module, u64::MAX));
        assert_eq!(words.try_take(owner(1), 0).unwrap_err().value(), Value::Module);
    });
}

#[test]
fn who_does_not_own_it_changes_nothing() {
    with_words(|words| {
        assert_eq!(words.release(owner(1)).unwrap_err().value(), Value::Unlocked);
        assert_eq!(words.repair(owner(1)).unwrap_err().value(), Value::Unlocked);
        words.try_take(owner(1), 0).unwrap();
        let seen = words.get();
        // Another incarnation of the node, another thread number, a program's number.
        let strangers = [owner(2), OwnerId::thread(NodeId(3), Incarnation(8), 1), OwnerId::user(NodeId(3), Incarnation(7), 1)];
        for stranger in strangers {
            assert_eq!(words.release(stranger), Err(seen));
            assert_eq!(words.repair(stranger), Err(seen));
        }
        assert_eq!(words.get(), seen);
        words.freeze();
        assert!(words.release(owner(2)).is_err());
        words.release(owner(1)).unwrap();
        assert_eq!(words.release(owner(1)).unwrap_err().value(), Value::Module);
    });
}

#[test]
fn a_value_is_set_if_it_is_as_expected() {
    with_words(|words| {
        words.set(None, None).unwrap();
        assert!(words.set(Some(owner(1)), None).is_err());
        assert!(words.set(Some(owner(1)), Some(owner(2))).is_err());
        assert!(words.get().is_free());
        words.set(None, Some(owner(1))).unwrap();
        assert_eq!(words.set(None, None).unwrap_err().value(), Value::Owner(owner(1)));
        assert_eq!(words.set(None, Some(owner(2))).unwrap_err().value(), Value::Owner(owner(1)));
        words.set(Some(owner(1)), Some(owner(2))).unwrap();
        assert_eq!(words.get().value(), Value::Owner(owner(2)));
        // Handing the lock on still keeps others out.
        words.freeze();
        words.set(Some(owner(2)), Some(owner(3))).unwrap();
        assert!(words.get().is_frozen());
        words.set(Some(owner(3)), None).unwrap();
        assert_eq!(words.set(None, Some(owner(1))).unwrap_err().value(), Value::Module);
        assert_eq!(words.set(None, None).unwrap_err().value(), Value::Module);
    });
}

#[test]
fn damage_is_told_until_it_is_repaired() {
    with_words(|words| {
        words.try_take(owner(1), 0).unwrap();
        let seen = words.get();
        assert!(words.take_from_dead(seen, owner(2)));
        assert!(!words.take_from_dead(seen, owner(3)), "two inherited");
        assert!(!words.let_go_dead(seen));
        assert_eq!((words.get().owner(), words.get().is_damaged()), (Some(owner(2)), true));
        words.release(owner(2)).unwrap();
        for _ in 0..3 {
            assert!(words.get().is_free());
            assert!(words.try_take(owner(3), 0).unwrap().damaged);
            words.release(owner(3)).unwrap();
        }
        assert!(words.try_take(owner(3), 0).unwrap().damaged);
        words.repair(owner(3)).unwrap();
        words.repair(owner(3)).unwrap();
        words.release(owner(3)).unwrap();
        assert!(!words.try_take(owner(1), 0).unwrap().damaged);
        // Released without a new owner.
        assert!(words.let_go_dead(words.get()));
        assert!(words.get().is_free() && words.get().is_damaged());
    });
}

#[test]
fn barring_leaves_in_who_is_in() {
    with_words(|words| {
        assert!(!words.thaw());
        words.try_take(owner(1), 0).unwrap();
        let (before, first) = words.freeze();
        assert_eq!((before.owner(), first), (Some(owner(1)), true));
        assert!(!words.freeze().1);
        assert_eq!(words.get().value(), Value::Owner(owner(1)));
        assert!(words.thaw());
        assert_eq!(words.get().value(), Value::Owner(owner(1)), "another owner changed the value");
        words.freeze();
        words.release(owner(1)).unwrap();
        assert!(!words.get().is_free());
        assert!(words.thaw());
        assert!(!words.try_take(owner(2), 0).unwrap().damaged);
        // A dead owner's frozen lock gets no new owner.
        words.freeze();
        let seen = words.get();
        assert!(!words.take_from_dead(seen, owner(3)));
        assert!(words.let_go_dead(seen));
        assert_eq!((words.get().value(), words.get().is_damaged()), (Value::Module, true));
        words.thaw();
        assert!(words.try_take(owner(3), 0).unwrap().damaged);
    });
}

#[test]
fn keys_are_found_by_name() {
    let memory = Memory::new();
    let table = memory.table();
    assert_eq!(table.find("a"), None);
    assert!(table.all().is_empty());
    let resources = [
        Resource::Unnamed,
        Resource::memory(5..9),
        Resource::Region { node: NodeId(1023), incarnation: Incarnation(u32::MAX), number: u64::MAX, bytes: 7 },
        Resource::Device(4),
        Resource::Id(u64::MAX),
    ];
    let longest = "ü".repeat(NAME_BYTES / 2);
    let names = ["a", "with a space", "8 bytes.", "nine byte", longest.as_str()];
    let keys: Vec<KeyRef> = names.iter().zip(resources).map(|(name, what)| table.init(name, what, MAKER).unwrap()).collect();
    for ((name, what), key) in names.iter().zip(resources).zip(&keys) {
        assert_eq!(table.find(name), Some(*key));
        let facts = table.facts(key.slot).unwrap();
        assert_eq!((facts.key, facts.name.as_str(), facts.resource, facts.creator), (*key, *name, what, MAKER));
        assert!(facts.seen.is_free() && facts.dead.is_none() && facts.users.is_empty() && facts.waiting.is_empty());
    }
    assert_eq!(table.all().len(), names.len());
    for name in names {
        assert_eq!(table.init(name, Resource::Unnamed, MAKER), Err(ResourceError::Exists { name: name.into() }));
    }
    let long = "x".repeat(NAME_BYTES + 1);
    for name in ["", "a\0", "a\nb", "\u{7f}", long.as_str()] {
        assert_eq!(table.init(name, Resource::Unnamed, MAKER), Err(ResourceError::Name { name: name.into() }));
        assert_eq!(table.find(name), None);
    }
}

#[test]
#[cfg_attr(miri, ignore = "a thousand keys take it minutes")]
fn a_table_has_so_many_keys_and_no_more() {
    let memory = Memory::new();
    let table = memory.table();
    for number in 0..KEYS_MAX {
        table.init(&format!("key {number}"), Resource::Id(number as u64), MAKER).unwrap();
    }
    assert_eq!(table.init("one more", Resource::Unnamed, MAKER), Err(ResourceError::Full));
    assert_eq!(table.all().len(), KEYS_MAX);
    let gone = table.find("key 77").unwrap();
    table.slot(gone.slot).unwrap().destroy(gone.generation);
    assert_eq!(table.find("key 77"), None);
    let new = table.init("one more", Resource::Unnamed, MAKER).unwrap();
    assert_eq!(new.slot, gone.slot);
    assert_ne!(new.generation, gone.generation);
}

#[test]
fn a_slot_that_is_used_again_is_another_key() {
    let memory = Memory::new();
    let table = memory.table();
    let old = table.init("key", Resource::Id(1), MAKER).unwrap();
    let slot = table.slot(old.slot).unwrap();
    assert!(slot.is_current(old.generation));
    slot.set_user(NodeId(1023), true);
    slot.set_user(NodeId(0), true);
    assert_eq!(slot.users().collect::<Vec<_>>(), [NodeId(0), NodeId(1023)]);
    slot.words.try_take(owner(1), 0).unwrap();
    slot.set_dead(owner(9));
    slot.words.let_go_dead(slot.words.get());
    assert_eq!(table.facts(old.slot).unwrap().dead, Some(owner(9)));
    slot.destroy(old.generation);
    assert!(!slot.is_current(old.generation));
    assert!(slot.words.try_take(owner(1), 0).is_err(), "a late thread took the lock");
    assert_eq!((table.facts(old.slot), table.all()), (None, Vec::new()));

    let new = table.init("key", Resource::Id(2), MAKER).unwrap();
    assert_eq!(new.slot, old.slot);
    assert!(slot.is_current(new.generation) && !slot.is_current(old.generation));
    // Nothing of the former lock is left.
    let facts = table.facts(new.slot).unwrap();
    assert!(facts.seen.is_free() && !facts.seen.is_damaged() && facts.users.is_empty() && facts.dead.is_none());
    table.forget_user(NodeId(5));
    slot.set_user(NodeId(5), true);
    table.forget_user(NodeId(5));
    assert!(table.facts(new.slot).unwrap().users.is_empty());
    slot.set_user(NodeId(u16::MAX), true);
    assert!(table.facts(new.slot).unwrap().users.is_empty());
    assert!(table.slot(KEYS_MAX as u16).is_none() && table.facts(u16::MAX).is_none() && table.seen(KEYS_MAX).is_none());
}

/// Has an owner take the lock of a slot.
fn hold(table: &KeyTable<'_>, slot: usize, who: OwnerId) {
    table.slot(slot as u16).unwrap().words.try_take(who, 0).unwrap();
}

#[test]
fn who_closes_a_circle_is_told_and_nobody_else() {
    for count in [2, 3, 64] {
        let memory = Memory::new();
        let (table, waits) = (memory.table(), memory.table().waits());
        let value = |slot| table.seen(slot);
        (0..count).for_each(|at| hold(&table, at, owner(at as u32)));
        // Each owner waits for the lock of the next one.
        let entered: Vec<_> = (0..count)
            .map(|at| {
                let entered = waits.enter(owner(at as u32), (at + 1) % count, at as u64 + 1).unwrap();
                let circle = waits.circle(&entered, value);
                assert_eq!(circle.is_some(), at + 1 == count, "{at} of {count}");
                if let Some(circle) = circle {
                    let all: Vec<_> = circle.iter().map(|waiting| (waiting.who, waiting.slot)).collect();
                    let expected: Vec<_> =
                        (0..count).map(|step| (at + step) % count).map(|at| (owner(at as u32), (at + 1) % count)).collect();
                    assert_eq!(all, expected);
                }
                entered
            })
            .collect();
        for (at, entered) in entered.iter().enumerate() {
            assert_eq!(waits.circle(entered, value).is_some(), at + 1 == count, "asked again: {at} of {count}");
        }
        // One of them unlocks, and the deadlock is resolved.
        table.slot(1).unwrap().words.release(owner(1)).unwrap();
        assert!(entered.iter().all(|entered| waits.circle(entered, value).is_none()));
        drop(entered);
        assert_eq!(waits.of_key(0).count(), 0);
    }
}

#[test]
fn a_chain_is_no_circle() {
    let memory = Memory::new();
    let (table, waits) = (memory.table(), memory.table().waits());
    let value = |slot| table.seen(slot);
    hold(&table, 0, owner(0));
    hold(&table, 1, owner(1));
    hold(&table, 2, owner(2));
    // 4 → 1 → 2, 3 → 1, and a deadlock of 0 and 2, which 4 waits for but is not part of.
    let _waiting = [
        waits.enter(owner(1), 2, 1).unwrap(),
        waits.enter(owner(3), 1, 1).unwrap(),
        waits.enter(owner(2), 0, 1).unwrap(),
        waits.enter(owner(0), 2, 1).unwrap(),
    ];
    let last = waits.enter(owner(4), 1, 7).unwrap();
    assert_eq!(waits.circle(&last, value), None);
    assert!(waits.circle(&_waiting[3], value).is_some());
    let mut of_key: Vec<_> = waits.of_key(1).collect();
    of_key.sort_unstable();
    assert_eq!(of_key, [owner(3), owner(4)]);
    assert_eq!(waits.first(1), Some(1));
    waits.forget_ticket(1);
    assert_eq!((waits.first(1), waits.first(2)), (Some(7), None));
    waits.sweep(|who| who == owner(3));
    assert_eq!(waits.of_key(1).collect::<Vec<_>>(), [owner(4)]);
}

#[test]
#[cfg_attr(miri, ignore = "takes it minutes")]
fn more_wait_than_can_be_entered() {
    let memory = Memory::new();
    let waits = memory.table().waits();
    let mut all: Vec<_> = (0..WAITS_MAX as u32).map(|number| waits.enter(owner(number), 3, 1).unwrap()).collect();
    assert!(waits.enter(owner(9999), 3, 1).is_none());
    assert_eq!(waits.of_key(3).count(), WAITS_MAX);
    all.pop();
    let entered = waits.enter(owner(9999), 3, 1).unwrap();
    assert!(waits.enter(owner(9998), 3, 1).is_none());
    drop((entered, all));
    assert_eq!(waits.of_key(3).count(), 0);
}

/// Waits for a lock until the caller owns it.
fn take(waiter: &mut Waiter<'_>) {
    while !matches!(waiter.look(), Look::Taken(_)) {
        waiter.sleep(Duration::from_millis(25));
    }
}

#[test]
fn threads_take_turns() {
    let memory = Memory::new();
    let table = memory.table();
    let (threads, rounds) = if cfg!(miri) { (2, 5) } else { (6, 2000) };
    let [first, second] = [const { AtomicU64::new(0) }; 2];
    let (words, start) = (&table.slot(0).unwrap().words, &Barrier::new(threads as usize));
    std::thread::scope(|scope| {
        for number in 0..threads {
            let (first, second, table) = (&first, &second, &table);
            scope.spawn(move || {
                start.wait();
                for _ in 0..rounds {
                    let mut waiter = Waiter::new(words, table.waits(), 0, owner(number));
                    waiter.enter();
                    take(&mut waiter);
                    drop(waiter);
                    let before = first.load(Ordering::Relaxed);
                    first.store(before + 1, Ordering::Relaxed);
                    assert_eq!(second.load(Ordering::Relaxed), before);
                    second.store(before + 1, Ordering::Relaxed);
                    words.release(owner(number)).unwrap();
                }
            });
        }
    });
    assert_eq!(first.into_inner(), threads as u64 * rounds);
    assert!(words.get().is_free());
    assert_eq!(words.turn(), None, "a waiter is next for ever");
}

#[test]
fn who_is_next_and_does_not_look_is_passed_over() {
    let memory = Memory::new();
    let table = memory.table();
    let words = &table.slot(0).unwrap().words;
    // As if the next waiter had been killed; also with times that no waiter writes.
    for seen in [crate::clock::now_ns(), 0, u64::MAX] {
        assert!(words.claim_turn(1, seen));
        assert!(words.try_take(owner(1), 0).is_err());
        let mut tries = 0;
        while waiting::try_take(words, owner(1)).is_err() {
            std::thread::sleep(Duration::from_millis(1));
            tries += 1;
            assert!(tries < 10_000, "never passed over");
        }
        words.release(owner(1)).unwrap();
        assert!(words.claim_turn(1, seen));
        let mut waiter = Waiter::new(words, table.waits(), 0, owner(2));
        take(&mut waiter);
        words.release(owner(2)).unwrap();
        assert_eq!(words.turn(), None);
    }
}

/// A pseudo-random number for each number.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

/// What a hostile process may write: anything, or nearly valid words.
fn forged(seed: u64, at: usize, kind: u8) -> u64 {
    let any = mix(seed ^ mix(at as u64 + 1));
    match kind {
        0 => any,
        1 => [0, 1, u64::MAX, u64::MAX - 1, 1 << 63, 1 << 62, 3, any][any as usize % 8],
        // Few different owners, which wait for few locks.
        _ if any.is_multiple_of(2) => owner((any >> 8) as u32 % 4).bits(),
        _ => (any >> 20) << 16 | any >> 8 & 3,
    }
}

/// Everything that reads the registry, and all writes that do not wait.
fn use_all(memory: &Memory) {
    let table = memory.table();
    let _ = (table.all(), table.find("key"), table.seat().term(), table.seat().home());
    let _ = table.seat().serves(NodeId(u16::MAX), Incarnation(1));
    let waits = table.waits();
    for slot in 0..4 {
        let (_, _) = (waits.of_key(slot).count(), waits.first(slot));
        if let Some(entered) = waits.enter(owner(9), slot, 5) {
            let _ = waits.circle(&entered, |slot| table.seen(slot));
        }
        let at = table.slot(slot as u16).unwrap();
        let mut waiter = Waiter::new(&at.words, waits, slot, owner(8));
        for _ in 0..2 {
            let _ = waiter.look();
            waiter.enter();
            waiter.sleep(Duration::from_micros(10));
        }
        drop(waiter);
        let _ = (waiting::try_take(&at.words, owner(1)), at.words.get(), at.dead(), at.users().count());
        let _ = (at.words.set(None, Some(owner(1))), at.words.set(Some(owner(1)), Some(owner(2))), at.words.repair(owner(2)));
        let _ = (at.words.freeze(), at.words.release(owner(2)), at.words.thaw());
        let seen: Seen = at.words.get();
        let _ = (at.words.let_go_dead(seen), at.words.release(owner(1)));
        at.words.wake_all();
    }
    waits.sweep(|who| who.number() == 1);
    waits.forget_ticket(5);
    table.forget_user(NodeId(3));
    let made = table.init("key", Resource::Id(1), MAKER);
    if let Ok(key) = made {
        assert!(table.slot(key.slot).unwrap().is_current(key.generation));
        assert_eq!(table.facts(key.slot).unwrap().key, key);
        table.slot(key.slot).unwrap().destroy(key.generation);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    // Too many words for Miri.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn whatever_is_in_the_registry_nothing_panics_or_hangs(seed in any::<u64>(), kind in 0..3u8, share in 1..=8u64) {
        let memory = Memory::new();
        for number in 0..8 {
            memory.table().init(&format!("key {number}"), Resource::Unnamed, MAKER).unwrap();
        }
        for (at, word) in memory.words().enumerate() {
            if mix(seed ^ at as u64).is_multiple_of(share) {
                word.store(forged(seed, at, kind), Ordering::Relaxed);
            }
        }
        use_all(&memory);
    }
}
