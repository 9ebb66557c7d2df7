//! The flow charts of the published method, step by step and with its names: a host and two accelerators race for one resource. See docs/locks.md.

use doorbell::{Lock, LockError, Node, NodeId, Offer, OwnerId, Progress, Resource, Value, Wait};
use doorbell_tests::patience::soon;
use doorbell_tests::world::{Ground, World};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The time after which a process attempts again.
const PREDEFINED: Duration = Duration::from_micros(200);
/// How often each process gets the resource.
const ACCESSES: usize = 50;

// The calls that the source names, each by one of ours.

fn dacs_mutex_init(node: &Node, key: &str, start: u64, end: u64) -> Lock {
    Lock::init(node, key, Resource::memory(start..end)).unwrap()
}

fn dacs_mutex_share(key: &Lock, nodes: &[NodeId]) -> Offer {
    key.offer(nodes).unwrap()
}

fn dacs_mutex_accept(node: &Node) -> Lock {
    Lock::accept(node, soon()).unwrap()
}

/// In the flow chart this returns the current value and changes nothing.
fn dacs_mutex_trylock(key: &Lock) -> Value {
    key.get().unwrap()
}

/// This version takes the value that was seen, so that only one of two nodes that saw the resource unlocked sets it.
fn dacs_registry_set(key: &Lock, seen: Value, unique_id: Option<OwnerId>) -> bool {
    let expected = if let Value::Owner(owner) = seen { Some(owner) } else { None };
    match key.set(expected, unique_id) {
        Ok(()) => true,
        Err(error) if matches!(error.downcast_ref(), Some(LockError::Otherwise(_))) => false,
        Err(error) => panic!("{error}"),
    }
}

fn dacs_registry_get(key: &Lock) -> Value {
    key.get().unwrap()
}

/// The resource, and how many are in it.
#[derive(Default)]
struct Memory {
    inside: AtomicU32,
    accesses: AtomicU64,
}

impl Memory {
    fn access(&self) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two are in");
        self.accesses.fetch_add(1, Ordering::Relaxed);
        assert_eq!(self.inside.fetch_sub(1, Ordering::SeqCst), 1);
    }
}

/// "Attempting by a process to access the resource", until it was authorized once. Counts each time that it was not.
fn attempt(key: &Lock, unique_id: OwnerId, memory: &Memory, in_vain: &AtomicUsize) {
    loop {
        // Determine whether the current value of the key represents an unlocked state.
        let value = dacs_mutex_trylock(key);
        if value == Value::Unlocked {
            // Set the value of the key to the unique identification of the process.
            let set = dacs_registry_set(key, value, Some(unique_id));
            // Determine whether the current value of the key is the unique identification of the process.
            let is_mine = dacs_registry_get(key) == Value::Owner(unique_id);
            assert_eq!(set, is_mine, "only the node that set the value finds its own");
            if is_mine {
                memory.access();
                // Upon completing access, set the value to represent an unlocked state.
                assert!(dacs_registry_set(key, Value::Owner(unique_id), None));
                return;
            }
        }
        // Not authorized now: attempt again after waiting a predefined amount of time.
        in_vain.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(PREDEFINED);
    }
}

fn flow_charts(ground: Ground) {
    let world = World::new(ground, Progress::Adaptive, Wait::Auto);
    let [host, first, second] = world.nodes::<3>();
    for node in [&host, &first, &second] {
        node.wait_for(3, soon()).unwrap();
    }

    // The module provides the key in the registry, to the processes on the accelerators and the host.
    let key = dacs_mutex_init(&host, "MemRsrcKey", 0x100, 0x1000);
    let shared = dacs_mutex_share(&key, &[first.id(), second.id()]);
    let accepted = [dacs_mutex_accept(&first), dacs_mutex_accept(&second)];
    let acknowledged = shared.wait(soon()).unwrap();
    assert_eq!(acknowledged.iter().map(|ack| ack.node).collect::<Vec<_>>(), [first.id(), second.id()]);
    assert!(acknowledged.iter().all(|ack| ack.pid == std::process::id() && ack.module != 0));
    assert_ne!(acknowledged[0].module, acknowledged[1].module);
    assert_eq!(accepted[0].resource().unwrap(), Resource::memory(0x100..0x1000));
    assert_eq!(dacs_registry_get(&key), Value::Unlocked);
    assert_eq!(Value::Unlocked.bits(), 0, "zero represents an unlocked state");

    // The host is in, and stays until both accelerators have attempted in vain at least twice: then they waited, and attempted again.
    let memory = Memory::default();
    let host_id = key.with_id(1).my_id();
    assert!(dacs_registry_set(&key, Value::Unlocked, Some(host_id)));
    let (in_vain, mut authorized) = ([const { AtomicUsize::new(0) }; 2], 0);
    std::thread::scope(|scope| {
        for ((number, key), in_vain) in (2..).zip(&accepted).zip(&in_vain) {
            let memory = &memory;
            scope.spawn(move || attempt(key, key.with_id(number).my_id(), memory, in_vain));
        }
        // Whatever comes of it, the accelerators must find the way free in the end.
        let deadline = soon();
        let is_retried = |count: &AtomicUsize| count.load(Ordering::Relaxed) >= 2;
        while !in_vain.iter().all(is_retried) && Instant::now() < deadline {
            std::thread::yield_now();
        }
        authorized = memory.accesses.load(Ordering::Relaxed);
        memory.access();
        assert!(dacs_registry_set(&key, Value::Owner(host_id), None));
    });
    assert_eq!(authorized, 0, "authorized while the host is in");
    assert!(in_vain.iter().all(|count| count.load(Ordering::Relaxed) >= 2), "nobody waited and attempted again: {in_vain:?}");
    assert_eq!(memory.accesses.load(Ordering::Relaxed), 3);

    // Three processes race.
    let memory = Memory::default();
    let in_vain = AtomicUsize::new(0);
    let start = Barrier::new(3);
    std::thread::scope(|scope| {
        for (number, key) in [&key, &accepted[0], &accepted[1]].into_iter().enumerate() {
            let (memory, start, in_vain) = (&memory, &start, &in_vain);
            scope.spawn(move || {
                // A user specified value: unique with the node.
                let unique_id = key.with_id(1 + number as u32).my_id();
                start.wait();
                for _ in 0..ACCESSES {
                    attempt(key, unique_id, memory, in_vain);
                }
            });
        }
    });
    assert_eq!(memory.accesses.load(Ordering::Relaxed), 3 * ACCESSES as u64);
    assert_eq!(dacs_registry_get(&key), Value::Unlocked);

    // The module locks all access, by a value that is nobody's and not unlocked.
    key.lock_all(soon()).unwrap();
    for key in [&key, &accepted[0], &accepted[1]] {
        let value = dacs_mutex_trylock(key);
        assert_eq!(value, Value::Module);
        assert!(value.bits() != 0 && value.bits() != key.my_id().bits());
        assert!(!dacs_registry_set(key, Value::Unlocked, Some(key.my_id())));
        assert_eq!(dacs_registry_get(key), Value::Module);
    }
    accepted[1].unlock_all().unwrap();
    attempt(&accepted[0], accepted[0].my_id(), &memory, &in_vain);

    let [first_key, second_key] = accepted;
    first_key.release().unwrap();
    second_key.release().unwrap();
    key.destroy(soon()).unwrap();
    assert!(Lock::find(&first, "MemRsrcKey").is_err());
}

#[test]
fn all_share_memory() {
    flow_charts(Ground::Posix);
}

#[test]
fn none_share_memory() {
    flow_charts(Ground::Udp);
}

#[test]
fn the_host_shares_memory_with_one_accelerator() {
    flow_charts(Ground::Mixed);
}
