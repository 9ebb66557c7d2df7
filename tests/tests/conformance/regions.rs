//! Memory that other nodes write and read: puts, gets, and keys that are refused.

use doorbell::{Error, Incarnation, KEY_BYTES, Key, KeyFault, Match, Node, NodeId, Priority, ReadOnly, ReadWrite};
use doorbell_tests::in_place::read_by;
use doorbell_tests::patience::{briefly, eventually, running, soon};
use doorbell_tests::pattern;
use doorbell_tests::steps::Steps;
use doorbell_tests::world::{Ground, World};

/// The key fault of an error. Panics on any other error.
#[track_caller]
fn why<T: std::fmt::Debug>(result: doorbell::Result<T>) -> KeyFault {
    match result.unwrap_err() {
        Error::Key { why, .. } => why,
        other => panic!("{other:?}"),
    }
}

/// Checks the number of regions of a node that others see, on fabrics where they see any.
#[track_caller]
fn check_names(world: &World, node: NodeId, count: usize) {
    let mut names = world.domain().files();
    names.retain(|name| name.rsplit_once(".r").is_some_and(|(head, _)| head.ends_with(&format!(".{node}"))));
    assert!(names.len() == count || world.is_networked(), "{names:?}");
}

pub fn puts_and_gets_of_every_length_arrive(world: &World) {
    let [a, b] = world.nodes();
    let region = b.region::<u8>(300_000).unwrap();
    let (peer, key) = (a.peer(b.id()).unwrap(), region.key());
    let mut got = vec![0; 300_000];
    for (round, len) in (0..70).chain([127, 128, 1000, 4095, 4096, 4097, 65_536, 262_144, 299_988]).enumerate() {
        for at in [0, 1, 11] {
            let seed = (round * 16 + at) as u64;
            let bytes = pattern::bytes(len, seed);
            region.fill_bytes(0x55, at, len);
            if round % 2 == 0 { peer.put(&bytes, key.at(at)) } else { a.put(&bytes, key.at(at)) }.unwrap();
            region.read(at, &mut got[..len]).unwrap();
            pattern::check(&got[..len], seed);
            got[..len].fill(0);
            if round % 2 == 0 { peer.get(key.at(at), &mut got[..len]) } else { a.get(key.read_only().at(at), &mut got[..len]) }
                .unwrap();
            pattern::check(&got[..len], seed);
            // Not a byte more.
            let mut after = [0];
            region.read(at + len, &mut after).unwrap();
            assert_eq!(after, [0x55], "{len} at {at}");
        }
    }
    // Within a node, too.
    let own = b.peer(b.id()).unwrap();
    own.put(&[1, 2, 3], key.at(299_997)).unwrap();
    own.get(key.at(299_998), &mut got[..2]).unwrap();
    assert_eq!(got[..2], [2, 3]);
}

trait FillBytes {
    fn fill_bytes(&self, byte: u8, at: usize, len: usize);
}

impl FillBytes for doorbell::Region<u8> {
    /// These, and one more.
    fn fill_bytes(&self, byte: u8, at: usize, len: usize) {
        self.write(at, &vec![byte; len + 1]).unwrap();
    }
}

pub fn what_was_put_before_a_message_is_there(world: &World) {
    let [a, b] = world.nodes();
    let region = b.region::<u64>(1000).unwrap();
    b.send_until(a.id(), 1, &region.key().to_bytes(), soon()).unwrap();
    let (owner, to_b) = (b.id(), a.clone());
    let putting = running("puts and messages", move || {
        let mut buf = [0; KEY_BYTES];
        assert_eq!(to_b.recv_until(Match::from(owner).tag(1), &mut buf, soon()).unwrap().len, KEY_BYTES);
        let key = Key::<u64, ReadWrite>::from_bytes(&buf).unwrap();
        let peer = to_b.peer(owner).unwrap();
        for round in 1..=200 {
            peer.put(&[round; 1000], key).unwrap();
            peer.send_until(2, b"", soon()).unwrap();
            peer.recv_until(Match::any().tag(3), &mut [], soon()).unwrap();
        }
    });
    let mut got = [0; 1000];
    let steps = Steps::of("a put, a message and the answer");
    for round in 1..=200 {
        steps.step(|| b.recv_until(Match::from(a.id()).tag(2), &mut [], soon()).unwrap());
        region.read(0, &mut got).unwrap();
        assert_eq!(got, [round; 1000]);
        b.send_until(a.id(), 3, b"", soon()).unwrap();
    }
    putting.join();
    steps.check();
}

pub fn a_flag_that_was_put_after_a_flush_follows_its_data(world: &World) {
    let [a, b] = world.nodes();
    let region = b.region::<u64>(65).unwrap();
    let (peer, key) = (a.peer(b.id()).unwrap(), region.key());
    let looking = region.clone();
    let watching = running("a look at flags", move || {
        let (mut flag, mut data) = ([0], [0; 64]);
        while flag != [500] {
            looking.read(64, &mut flag).unwrap();
            looking.read(0, &mut data).unwrap();
            // The data may be newer than the flag, never older.
            assert!(data.iter().all(|word| *word >= flag[0]), "{flag:?} {data:?}");
            std::thread::yield_now();
        }
    });
    let watching = watching.started();
    for round in 1..=500 {
        peer.put(&[round; 64], key).unwrap();
        peer.flush().unwrap();
        peer.put(&[round], key.at(64)).unwrap();
    }
    watching.join();
}

pub fn keys_reach_no_further_than_they_say(world: &World) {
    let [a, b] = world.nodes();
    let region = b.region::<u32>(100).unwrap();
    let (peer, key) = (a.peer(b.id()).unwrap(), region.key());
    for _ in 0..2 {
        for (key, fits) in [(key, 100), (key.at(90), 10), (key.range(10..20), 10), (key.at(100), 0), (key.at(101), 0)] {
            assert_eq!(key.len(), fits);
            let ones = vec![1; fits + 1];
            peer.put(&ones[..fits], key).unwrap();
            assert_eq!(why(peer.put(&ones, key)), KeyFault::OutOfRange);
            assert_eq!(why(a.put(&ones, key)), KeyFault::OutOfRange);
            let mut into = vec![7; fits + 1];
            assert_eq!(why(peer.get(key, &mut into)), KeyFault::OutOfRange);
            assert!(into.iter().all(|word| *word == 7));
        }
    }
    let error = peer.put(&[0; 101], key).unwrap_err();
    assert_eq!(error.node(), Some(b.id()));
    assert!(error.to_string().contains("node 1") && !error.is_retryable(), "{error}");
    for (at, len) in [(0, 101), (100, 1), (101, 0), (usize::MAX, 1)] {
        assert!(matches!(region.read(at, &mut vec![0; len]), Err(Error::Invalid { .. })));
        assert!(matches!(region.write(at, &vec![0; len]), Err(Error::Invalid { .. })));
    }
    assert!(matches!(b.region::<u32>(0), Err(Error::Invalid { .. })));
    assert!(matches!(b.region::<u32>(usize::MAX), Err(Error::Invalid { .. })));
    region.fill(5).unwrap();
    // SAFETY: nobody writes the region now.
    assert!(unsafe { region.as_slice() }.iter().all(|word| *word == 5));
    // SAFETY: nobody else uses the region now.
    let elements = unsafe { region.as_mut_slice() };
    elements[3] = 8;
    let mut got = [0; 2];
    peer.get(key.at(2), &mut got).unwrap();
    assert_eq!(got, [5, 8]);
}

pub fn keys_that_do_not_suffice_are_refused_by_name(world: &World) {
    let [a, b, c] = world.nodes();
    let region = b.region::<u32>(16).unwrap();
    let (bytes, read) = (region.key().to_bytes(), region.read_key().to_bytes());
    assert_eq!(why(Key::<u32, ReadWrite>::from_bytes(&read)), KeyFault::ReadOnly);
    assert_eq!(why(Key::<u64, ReadWrite>::from_bytes(&bytes)), KeyFault::WrongType);
    assert_eq!(why(Key::<u32, ReadWrite>::from_bytes(&bytes[1..])), KeyFault::Forged);
    for at in 0..KEY_BYTES {
        let mut bytes = bytes;
        bytes[at] = bytes[at].wrapping_add(1);
        assert_eq!(why(Key::<u32, ReadWrite>::from_bytes(&bytes)), KeyFault::Forged, "byte {at}");
    }
    // A key of this node is none of that one.
    let to_c = a.peer(c.id()).unwrap();
    assert_eq!(why(to_c.put(&[1], region.key())), KeyFault::OtherNode);
    a.put(&[1], region.key()).unwrap();
    // What may only be read is read, by a mapping that can do no more.
    let key = Key::<u32, ReadOnly>::from_bytes(&read).unwrap();
    let mut got = [0];
    to_c.node().get(key, &mut got).unwrap();
    c.get(key, &mut got).unwrap();
    assert_eq!(got, [1]);
    c.put(&[2], region.key()).unwrap();
    c.get(key, &mut got).unwrap();
    assert_eq!(got, [2]);
}

pub fn a_withdrawn_region_has_stale_keys(world: &World) {
    let [a, b] = world.nodes();
    let peer = a.peer(b.id()).unwrap();
    for withdraw in [false, true] {
        let region = b.region::<u64>(8).unwrap();
        let (key, clone) = (region.key(), region.clone());
        (0..3).for_each(|_| peer.put(&[1], key).unwrap());
        a.put(&[1], key).unwrap();
        drop(region);
        peer.put(&[2], key).unwrap();
        assert!(clone.is_live());
        check_names(world, b.id(), 1);
        if withdraw {
            clone.withdraw().unwrap();
            clone.withdraw().unwrap();
            assert!(!clone.is_live());
        } else {
            drop(clone.clone());
            drop(clone);
        }
        check_names(world, b.id(), 0);
        for _ in 0..2 {
            assert_eq!(why(peer.put(&[3], key)), KeyFault::Stale);
            assert_eq!(why(peer.get(key, &mut [0])), KeyFault::Stale);
            assert_eq!(why(a.put(&[3], key)), KeyFault::Stale);
            assert_eq!(why(b.put(&[3], key)), KeyFault::Stale);
        }
        // The next one is not mistaken for it.
        let next = b.region::<u64>(8).unwrap();
        assert_eq!(why(peer.put(&[4], key)), KeyFault::Stale);
        let mut all = [9; 8];
        peer.get(next.key(), &mut all).unwrap();
        assert_eq!(all, [0; 8]);
    }
}

/// Whether an error says that this incarnation of this node is gone.
fn is_gone(error: &Error, node: NodeId, incarnation: Incarnation, died: bool) -> bool {
    match *error {
        Error::PeerDied { node: n, incarnation: gone } => died && (n, gone) == (node, incarnation),
        Error::PeerLeft { node: n, incarnation: gone } => !died && (n, gone) == (node, incarnation),
        _ => false,
    }
}

pub fn a_node_that_is_gone_has_stale_keys(world: &World) {
    let a = world.node(0);
    for (go, died) in [(Node::abandon as fn(Node), true), (|node: Node| node.leave().unwrap(), false)] {
        let b = world.node(1);
        let region = b.region::<u64>(8).unwrap();
        let (id, incarnation, key) = (b.id(), b.incarnation(), region.key());
        let unused = b.region::<u64>(8).unwrap();
        let peer = a.peer(id).unwrap();
        (0..3).for_each(|_| peer.put(&[1], key).unwrap());
        go(b);
        // A dead owner's region is there until somebody asks for the owner, which is not at every put.
        let error = (0..5000).find_map(|_| peer.put(&[2], key).err()).expect("puts to the dead");
        assert!(is_gone(&error, id, incarnation, died), "{error:?}");
        assert!(is_gone(&peer.flush().unwrap_err(), id, incarnation, died));
        for error in [a.put(&[3], key).unwrap_err(), a.get(key, &mut [0]).unwrap_err(), a.put(&[3], unused.key()).unwrap_err()] {
            assert!(is_gone(&error, id, incarnation, died), "{error:?}");
        }
        assert_eq!(region.is_live(), died);
        // The next life has other keys, and the former one's lead nowhere.
        let b = world.node(1);
        assert_eq!(b.id(), id);
        let next = b.region::<u64>(8).unwrap();
        a.put(&[5], next.key()).unwrap();
        assert!(is_gone(&peer.put(&[6], key).unwrap_err(), id, incarnation, died));
        assert!(is_gone(&a.put(&[6], key).unwrap_err(), id, incarnation, died));
        // A node that joined later does not know how it ended.
        let c = world.node(2);
        assert_eq!(why(c.put(&[6], key)), KeyFault::Stale);
        drop((region, unused));
        let mut first = [0];
        next.read(0, &mut first).unwrap();
        assert_eq!((first, next.is_live()), ([5], true));
        c.leave().unwrap();
        b.leave().unwrap();
        assert!(!next.is_live());
        check_names(world, id, 0);
    }
}

pub fn a_node_that_left_makes_and_uses_no_regions(world: &World) {
    let [a, b] = world.nodes();
    let (region, keeper) = (b.region::<u64>(1).unwrap(), b.clone());
    let (mine, peer) = (a.region::<u64>(1).unwrap(), a.peer(b.id()).unwrap());
    peer.put(&[1], region.key()).unwrap();
    let other = a.clone();
    a.leave().unwrap();
    assert!(matches!(peer.put(&[2], region.key()), Err(Error::Closed)));
    assert!(matches!(peer.flush(), Err(Error::Closed)));
    assert!(matches!(other.get(region.key(), &mut [0]), Err(Error::Closed)));
    assert!(matches!(other.region::<u64>(1), Err(Error::Closed)));
    // Its own memory is still its own.
    mine.write(0, &[4]).unwrap();
    let mut got = [0];
    mine.read(0, &mut got).unwrap();
    assert_eq!((got, mine.is_live()), ([4], false));
    b.leave().unwrap();
    drop(keeper);
    assert_eq!(world.domain().files(), [""; 0]);
}

pub fn a_node_has_many_regions(world: &World) {
    let [a, b] = world.nodes();
    let count = if world.ground == Ground::Posix { 100 } else { 500 };
    let mut regions: Vec<_> = (0..count).map(|index| b.region::<u64>(1 + index).unwrap()).collect();
    let peer = a.peer(b.id()).unwrap();
    for round in 0..3_u64 {
        for (index, region) in regions.iter().enumerate() {
            peer.put(&[round * 1000 + index as u64], region.key().at(index)).unwrap();
        }
        for (index, region) in regions.iter().enumerate() {
            let mut got = [0];
            region.read(index, &mut got).unwrap();
            assert_eq!(got, [round * 1000 + index as u64]);
        }
        regions.truncate(regions.len() / 2);
    }
    check_names(world, b.id(), regions.len());
    let keys: Vec<_> = regions.iter().map(|region| region.key()).collect();
    regions.clear();
    assert!(keys.iter().all(|key| why(peer.put(&[1], *key)) == KeyFault::Stale));
    check_names(world, b.id(), 0);
}

pub fn regions_are_used_from_within_a_reader(world: &World) {
    let [a, b] = world.nodes();
    let region = b.region::<u64>(1).unwrap();
    let peer = a.peer(b.id()).unwrap();
    b.send_until(a.id(), 1, &region.key().to_bytes(), soon()).unwrap();
    let reply = read_by(&a, Match::any().tag(1), soon(), |_, payload| {
        let mut bytes = [0; KEY_BYTES];
        payload.copy_to(&mut bytes);
        let key = Key::<u64, ReadWrite>::from_bytes(&bytes).unwrap();
        let (mut of_peer, mut of_node) = ([0], [0]);
        let results =
            [peer.put(&[7], key), peer.get(key, &mut of_peer), a.put(&[7], key), a.get(key, &mut of_node), peer.flush()];
        (results, of_peer[0], of_node[0])
    });
    let (results, of_peer, of_node) = reply.unwrap();
    // Waiting for a reply needs the engine, which this thread is turning unless the message came from the pool.
    if world.is_networked() && results[0].is_err() {
        assert!(results[..4].iter().all(|result| matches!(result, Err(Error::Reentrant { operation: "put" | "get" }))));
        assert!(results[4].is_ok() && (of_peer, of_node) == (0, 0), "{results:?}");
        // Nothing of it is left behind.
        peer.put(&[7], region.key()).unwrap();
    } else {
        assert!(results.iter().all(Result::is_ok) && (of_peer, of_node) == (7, 7), "{results:?}");
    }
    let mut got = [0];
    region.read(0, &mut got).unwrap();
    assert_eq!(got, [7]);
}

pub fn threads_put_and_get_both_ways_at_once(world: &World) {
    const THREADS: usize = 5;
    let [a, b] = world.nodes();
    let lens = [8, 700, 9000, 70_000, 600_000];
    let [puts, gets] = ["puts", "gets"].map(|what| lens.map(|len| Steps::of(format!("{what} of {len} bytes"))));
    let regions = [a.region::<u8>(600_000 * THREADS).unwrap(), b.region::<u8>(600_000 * THREADS).unwrap()];
    let mut under_way = Vec::new();
    for (from, region) in [(&a, &regions[1]), (&b, &regions[0])] {
        for (thread, len) in lens.into_iter().enumerate() {
            let (node, key) = (from.clone(), region.key().at(600_000 * thread));
            let steps = [&puts, &gets].map(|steps| steps[thread].clone());
            under_way.push(running("puts and gets of many threads", move || {
                let [puts, gets] = steps;
                let peer = node.peer(key.node()).unwrap();
                for round in 0..20 {
                    let seed = (thread * 100 + round) as u64;
                    let bytes = pattern::bytes(len, seed);
                    puts.step(|| if round % 2 == 0 { peer.put(&bytes, key) } else { node.put(&bytes, key) }).unwrap();
                    let mut got = vec![0; len];
                    gets.step(|| if round % 2 == 0 { node.get(key, &mut got) } else { peer.get(key, &mut got) }).unwrap();
                    pattern::check(&got, seed);
                }
            }));
        }
    }
    under_way.into_iter().for_each(|thread| thread.join());
    puts.iter().chain(&gets).for_each(Steps::check);
}

pub fn more_threads_put_than_a_node_keeps_answers_for(world: &World) {
    const THREADS: usize = 100;
    let [a, b] = world.nodes();
    let region = b.region::<u64>(THREADS).unwrap();
    let key = region.key();
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let a = a.clone();
            running("a put of many", move || (1..=5).for_each(|round| a.put(&[round], key.at(thread)).unwrap()))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join());
    let mut all = [0; THREADS];
    region.read(0, &mut all).unwrap();
    assert_eq!(all, [5; THREADS]);
}

pub fn a_counter_says_what_was_put(world: &World) {
    let [a, b] = world.nodes();
    let region = b.region::<u32>(100_000).unwrap();
    let counter = b.counter().unwrap();
    counter.init(404_000).unwrap();
    a.put_notify(&[3; 1000], region.key(), counter.key()).unwrap();
    a.put_notify_until(&[4; 100_000], region.key(), counter.key(), soon()).unwrap();
    counter.wait_until(soon()).unwrap();
    let mut all = vec![0; 100_000];
    region.read(0, &mut all).unwrap();
    assert!(all.iter().all(|element| *element == 4));
    let wrong = region.key().at(1);
    counter.init(400_000).unwrap();
    assert_eq!(why(a.put_notify(&[5; 100_000], wrong, counter.key())), KeyFault::OutOfRange);
    assert!(counter.wait_until(briefly()).is_err());
}

pub fn messages_that_nobody_takes_do_not_hold_up_puts(world: &World) {
    let [a, b] = world.nodes_with_pool(4 << 10);
    let region = b.region::<u8>(200_000).unwrap();
    // Until the pool of the putting node is full, and beyond.
    let urgent = [Priority::High, Priority::Low].map(|priority| b.peer_with_priority(a.id(), priority).unwrap());
    let mut sent = [0; 2];
    for (index, (peer, sent)) in urgent.iter().zip(&mut sent).enumerate() {
        while *sent < 50 && peer.send_until(index as u64 * 100 + *sent, &[1; 1000], briefly()).is_ok() {
            *sent += 1;
        }
    }
    let (to, key) = (a.clone(), region.key());
    running("puts past messages that nobody takes", move || {
        let mut got = vec![0; 200_000];
        for len in [8, 200_000] {
            to.put(&vec![9; len], key).unwrap();
            to.get(key, &mut got[..len]).unwrap();
            assert!(got[..len].iter().all(|byte| *byte == 9));
        }
    })
    .join();
    // They are all there.
    for (index, sent) in sent.into_iter().enumerate() {
        for at in 0..sent {
            a.recv_until(Match::from(b.id()).tag(index as u64 * 100 + at), &mut [0; 1000], soon()).unwrap();
        }
    }
}

pub fn a_long_put_or_get_ends_with_its_node(world: &World) {
    const LEN: usize = 16 << 20;
    for go in [Node::abandon as fn(Node), |node: Node| node.leave().unwrap()] {
        for puts in [true, false] {
            let [a, b] = world.nodes();
            let region = b.region::<u8>(LEN).unwrap();
            let (key, id, incarnation, peer) = (region.key(), b.id(), b.incarnation(), a.peer(b.id()).unwrap());
            let under_way = running("a long put or get", move || {
                let mut bytes = vec![1; LEN];
                let error = (0..1000).find_map(|_| if puts { peer.put(&bytes, key) } else { peer.get(key, &mut bytes) }.err());
                // Nobody touches them any more.
                bytes.fill(2);
                std::thread::yield_now();
                assert!(bytes.iter().all(|byte| *byte == 2));
                error.expect("puts and gets end with the node")
            });
            let under_way = under_way.started();
            if puts {
                eventually("a put under way", || {
                    let mut first = [0];
                    region.read(LEN / 4, &mut first).unwrap();
                    first == [1]
                });
            } else {
                a.get(key, &mut [0]).unwrap();
            }
            go(b);
            let error = under_way.join();
            // A node that shares memory may see that the region is gone before it hears of its owner.
            let is_stale = matches!(error, Error::Key { why: KeyFault::Stale, .. });
            assert!(is_stale || is_gone(&error, id, incarnation, true) || is_gone(&error, id, incarnation, false), "{error:?}");
        }
    }
}

pub fn a_long_put_or_get_ends_when_its_own_node_leaves(world: &World) {
    const LEN: usize = 8 << 20;
    for puts in [true, false] {
        let [a, b] = world.nodes();
        let region = b.region::<u8>(LEN).unwrap();
        let (key, other) = (region.key(), a.clone());
        let under_way = running("a long put or get", move || {
            let mut bytes = vec![1; LEN];
            let error = (0..100_000).find_map(|_| if puts { other.put(&bytes, key) } else { other.get(key, &mut bytes) }.err());
            error.expect("a node that left puts nothing")
        });
        let under_way = under_way.started();
        std::thread::yield_now();
        a.leave().unwrap();
        let error = under_way.join();
        assert!(matches!(error, Error::Closed), "{error:?}");
        // The other one is as it was.
        let c = world.node(2);
        c.put(&[5], key).unwrap();
        let mut first = [0];
        region.read(0, &mut first).unwrap();
        assert_eq!(first, [5]);
    }
}
