//! Messages that are written and read in place.

use doorbell::zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
use doorbell::{Error, Event, Loan, LoanStats, Match, Node, Plain, Taken};
use doorbell_tests::in_place::read_by;
use doorbell_tests::patience::{briefly, eventually, soon};
use doorbell_tests::pattern;
use doorbell_tests::world::{Ground, World};
use std::mem::forget;

/// Checks that all loans of a node have come back.
#[track_caller]
fn is_whole(node: &Node) {
    let LoanStats { held, blocks, out, .. } = node.loan_stats().unwrap();
    assert_eq!((held, blocks, out), (0, 0, 0));
}

fn loan(node: &Node, len: usize, seed: u64) -> Loan<[u8]> {
    let mut loan = node.loan_bytes(len).unwrap();
    loan.copy_from_slice(&pattern::bytes(len, seed));
    loan.share()
}

#[track_caller]
fn take(node: &Node, accepts: Match) -> Taken<[u8]> {
    node.take_until(accepts, soon()).unwrap()
}

pub fn loans_of_every_length_arrive_intact(world: &World) {
    let [a, b] = world.nodes();
    let peer = a.peer(b.id()).unwrap();
    for (round, len) in (0..70).chain([4095, 4096, 4097, 32 << 10, 33_000, 70_001, 1 << 20, 4 << 20]).enumerate() {
        let seed = round as u64;
        let mut loan = a.loan_bytes(len).unwrap();
        loan.copy_from_slice(&pattern::bytes(len, seed));
        if round % 2 == 0 { loan.send(b.id(), seed) } else { loan.send(&peer, seed) }.unwrap();
        let taken = take(&b, Match::any());
        let envelope = taken.envelope();
        assert_eq!((envelope.source, envelope.tag, envelope.len, taken.len()), (a.id(), seed, len, len));
        assert_eq!(taken.is_lent(), world.lends());
        pattern::check(&taken.to_vec(), seed);
        // SAFETY: the loan is not sent twice, and its owner writes it no more.
        pattern::check(unsafe { taken.as_slice() }, seed);
    }
    is_whole(&a);
    // As any message, with its place among the others.
    b.send_until(a.id(), 1, b"one", soon()).unwrap();
    loan(&b, 3, 0).send_until(a.id(), 2, soon()).unwrap();
    b.send_until(a.id(), 3, b"three", soon()).unwrap();
    let tags: Vec<_> = (0..3).map(|_| a.recv_until(Match::any(), &mut [0; 8], soon()).unwrap().tag).collect();
    assert_eq!(tags, [1, 2, 3]);
    is_whole(&b);
    let metrics = a.metrics().unwrap();
    assert!(!world.lends() || metrics[doorbell::Metric::BytesLoaned] > 5 << 20);
}

pub fn values_and_slices_are_lent_as_what_they_are(world: &World) {
    type Wide = [u64; 16];
    let [a, b] = world.nodes();
    let mut wide = a.loan::<Wide>().unwrap();
    *wide = [9; 16];
    wide.send(b.id(), 1).unwrap();
    let mut many = a.loan_slice::<u32>(1000).unwrap();
    many.iter_mut().zip(0..).for_each(|(element, index)| *element = index);
    many.send(b.id(), 2).unwrap();
    let many = b.take_until::<[u32]>(Match::any().tag(2), soon()).unwrap();
    let mut some = [0; 1200];
    assert_eq!((many.copy_to(&mut some), many.copy_to(&mut some[..5]), some[999], some[4]), (1000, 5, 999, 4));
    let wide = b.take_until::<Wide>(Match::any(), soon()).unwrap();
    // SAFETY: its owner writes it no more.
    assert_eq!((wide.read(), *unsafe { wide.as_ref() }), ([9; 16], [9; 16]));
    drop((wide, many));
    // A message that is no loan is copied, whatever its length and alignment.
    for len in [128, 128 * 50, 128 * 3000] {
        let sender = doorbell_tests::patience::running("a send", {
            let (a, to) = (a.clone(), b.id());
            move || a.send_until(to, 3, &vec![1; len], soon()).unwrap()
        });
        let copied = b.take_until::<[Wide]>(Match::any(), soon()).unwrap();
        assert!(!copied.is_lent() && copied.len() == len / 128);
        // SAFETY: a copy.
        assert!(unsafe { copied.as_slice() }.iter().all(|wide| *wide == [0x0101_0101_0101_0101; 16]));
        sender.join();
    }
    // A message of another size comes back with the error, lent or not.
    loan(&a, 7, 5).send(b.id(), 4).unwrap();
    a.send_until(b.id(), 4, &[1; 7], soon()).unwrap();
    for _ in 0..2 {
        match b.take_until::<u64>(Match::any(), soon()) {
            Err(Error::WrongSize { message, expected: 8 }) => assert_eq!((message.bytes.len(), message.envelope.tag), (7, 4)),
            other => panic!("{other:?}"),
        }
    }
    is_whole(&a);
    assert!(b.try_take::<u64>(Match::any()).unwrap().is_none());
    assert!(matches!(b.take_until::<u64>(Match::any(), briefly()), Err(Error::Timeout { .. })));
}

/// A value and a slice of one type, which is aligned where its owner writes it and where it is read.
fn lends_aligned<T: Plain>(a: &Node, b: &Node) {
    let bytes = |len: usize, seed: u64| pattern::bytes(len * size_of::<T>(), seed);
    let mut one = a.loan::<T>().unwrap();
    assert!(one.as_bytes().as_ptr().addr().is_multiple_of(align_of::<T>()));
    one.as_mut_bytes().copy_from_slice(&bytes(1, 1));
    one.send(b.id(), 1).unwrap();
    let mut many = a.loan_slice::<T>(7).unwrap();
    assert!(many.as_ptr().addr().is_multiple_of(align_of::<T>()));
    many.as_mut_bytes().copy_from_slice(&bytes(7, 2));
    many.send(b.id(), 2).unwrap();
    // Nothing lies there, but a slice begins there all the same.
    let none = a.loan_slice::<T>(0).unwrap();
    assert!(none.as_ptr().addr().is_multiple_of(align_of::<T>()));
    none.send(b.id(), 3).unwrap();
    // SAFETY: their owner writes them no more.
    unsafe {
        let one = b.take_until::<T>(Match::any(), soon()).unwrap();
        let read: *const T = one.as_ref();
        assert!(read.addr().is_multiple_of(align_of::<T>()));
        assert_eq!(one.as_ref().as_bytes(), bytes(1, 1), "{}", std::any::type_name::<T>());
        let many = b.take_until::<[T]>(Match::any(), soon()).unwrap();
        assert!(many.as_slice().as_ptr().addr().is_multiple_of(align_of::<T>()));
        assert_eq!(many.as_slice().as_bytes(), bytes(7, 2), "{}", std::any::type_name::<T>());
        let none = b.take_until::<[T]>(Match::any(), soon()).unwrap();
        assert!(none.is_empty() && none.as_slice().as_ptr().addr().is_multiple_of(align_of::<T>()));
    }
}

macro_rules! types {
    ($lends:ident: $($name:ident $align:literal $bytes:literal)*) => {
        $(
            #[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C, align($align))]
            struct $name([u8; $bytes]);
        )*

        fn $lends(a: &Node, b: &Node) {
            $(lends_aligned::<$name>(a, b);)*
        }
    };
}

types! {
    lends_every_type:
    One 1 1
    Two 2 6
    Four 4 4
    Eight 8 24
    Sixteen 16 48
    ThirtyTwo 32 32
    SixtyFour 64 192
    Line 128 128
    ThreeLines 128 384
    Whole 4096 4096
}

/// More than a page.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8192))]
struct TooWide([u8; 8192]);

pub fn values_of_every_alignment_are_lent_aligned(world: &World) {
    let [a, b] = world.nodes();
    // Beside one that is in the way of whatever is aligned by chance.
    let _odd = a.loan::<One>().unwrap();
    lends_every_type(&a, &b);
    let refused = a.loan::<TooWide>().map(drop);
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
}

pub fn several_read_one_loan(world: &World) {
    if !world.lends() {
        return;
    }
    let [a, b, c] = world.nodes();
    let shared = loan(&a, 5000, 1);
    // To oneself, too.
    shared.send_to(&[b.id(), c.id(), a.id()], 1).unwrap();
    shared.clone().send(b.id(), 2).unwrap();
    let stats = a.loan_stats().unwrap();
    assert_eq!((stats.blocks, stats.out), (1, 4));
    let mut taken: Vec<_> = [&b, &c, &a].map(|node| take(node, Match::any().tag(1))).into();
    taken.push(take(&b, Match::any().tag(2)));
    pattern::check(&shared, 1);
    drop(shared);
    while let Some(one) = taken.pop() {
        let stats = a.loan_stats().unwrap();
        assert_eq!((stats.blocks, stats.out), (1, taken.len() + 1));
        pattern::check(&one.to_vec(), 1);
    }
    is_whole(&a);
    let nobody = doorbell::NodeId(7);
    let shared = loan(&a, 10, 2);
    let error = shared.send_to(&[b.id(), nobody, c.id()], 3).unwrap_err();
    assert!(matches!(error, Error::NoSuchNode { node } if node == nobody), "{error:?}");
    drop((take(&b, Match::any()), take(&c, Match::any()), shared));
    is_whole(&a);
    let foreign = b.peer(c.id()).unwrap();
    assert!(matches!(a.loan_bytes(1).unwrap().send(&foreign, 1), Err(Error::Invalid { .. })));
    is_whole(&a);
}

pub fn what_was_given_back_is_lent_again(world: &World) {
    let [a, b] = world.nodes();
    for len in [8, 5000, 300_000] {
        let mut reserved = 0;
        for round in 0..300 {
            loan(&a, len, round).send_until(b.id(), round, soon()).unwrap();
            if round == 30 {
                reserved = a.loan_stats().unwrap().reserved;
            }
            if round % 3 == 2 {
                let taken = [(); 3].map(|()| take(&b, Match::any()));
                taken.iter().zip(round - 2..).for_each(|(taken, seed)| pattern::check(&taken.to_vec(), seed));
            }
        }
        is_whole(&a);
        assert_eq!(a.loan_stats().unwrap().reserved, reserved, "{len}");
    }
}

pub fn a_loan_waits_in_the_pool_and_holds_its_memory(world: &World) {
    if !world.lends() {
        return;
    }
    let a = world.node(0);
    let b = world.builder(1).pool_bytes(1000).join().unwrap();
    // More than the pool would hold of messages that are copied.
    for seed in 0..5 {
        loan(&a, 100_000, seed).send_until(b.id(), seed, soon()).unwrap();
    }
    eventually("five messages in the pool", || b.probe(Match::any().tag(4)).unwrap().is_some());
    let (mine, theirs) = (a.loan_stats().unwrap(), b.stats().unwrap());
    assert_eq!((mine.out, theirs.pooled), (5, 5));
    assert!(theirs.pooled_bytes < 1000, "{theirs:?}");
    for seed in [3, 0, 4, 1, 2] {
        pattern::check(&take(&b, Match::any().tag(seed)).to_vec(), seed);
    }
    is_whole(&a);
}

pub fn every_receive_takes_a_loan(world: &World) {
    let [a, b] = world.nodes();
    let mut buf = vec![0; 100_000];
    // Sent before anybody asked, and while somebody waits.
    for early in [true, false] {
        for form in 0..4 {
            let (seed, to) = (form as u64, b.id());
            let send = {
                let a = a.clone();
                move || loan(&a, 90_000, seed).send_until(to, seed, soon()).unwrap()
            };
            let request = if form == 3 && !early { Some(b.start_recv(Match::any(), vec![0; 90_000]).unwrap()) } else { None };
            let sender = if early {
                send();
                eventually("a message in the pool", || b.probe(Match::any()).unwrap().is_some());
                None
            } else {
                Some(doorbell_tests::patience::running("a send", move || {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                    send();
                }))
            };
            match form {
                0 => {
                    let envelope = b.recv_until(Match::any(), &mut buf, soon()).unwrap();
                    assert_eq!((envelope.len, envelope.tag), (90_000, seed));
                    pattern::check(&buf[..90_000], seed);
                }
                1 => read_by(&b, Match::any(), soon(), |envelope, payload| {
                    assert_eq!((envelope.len, payload.len()), (90_000, 90_000));
                    pattern::check(&payload.to_vec(), seed);
                })
                .unwrap(),
                2 => match b.recv_until(Match::any(), &mut buf[..10], soon()) {
                    Err(Error::Truncated { message, capacity: 10 }) => pattern::check(&message.bytes, seed),
                    other => panic!("{other:?}"),
                },
                _ => {
                    let request = request.unwrap_or_else(|| b.start_recv(Match::any(), vec![0; 90_000]).unwrap());
                    let completion = request.wait();
                    completion.result.unwrap();
                    pattern::check(&completion.buffer.unwrap(), seed);
                }
            }
            if let Some(sender) = sender {
                sender.join();
            }
            is_whole(&a);
        }
    }
}

pub fn a_limit_is_reached_and_relieved(world: &World) {
    let a = world.builder(0).loan_bytes(256 << 10).join().unwrap();
    let b = world.node(1);
    let out = |error: Error| matches!(error, Error::LoansOut { limit: 262_144, .. }) && error.is_retryable();
    assert!(out(a.loan_bytes((256 << 10) + 1).unwrap_err()));
    assert!(out(a.loan_bytes(usize::MAX).unwrap_err()));
    for len in [64 << 10, 1 << 10, 100 << 10, 256 << 10, 64] {
        let mut taken = Vec::new();
        let error = loop {
            match a.loan_bytes(len) {
                Ok(loan) => loan.send(b.id(), 1).unwrap(),
                Err(error) => break error,
            }
            // Beyond 1024 at once a reader gets no more.
            taken.push(take(&b, Match::any()));
            if taken.len() == 1024 {
                break a.loan_bytes(512 << 10).unwrap_err();
            }
        };
        assert!(out(error));
        assert!(taken.len() == 1024 || taken.len() >= (256 << 10) / len.next_power_of_two(), "{len}: {}", taken.len());
        taken.pop();
        drop(a.loan_bytes(len).unwrap());
        taken.clear();
        is_whole(&a);
    }
    assert_eq!(a.loan_stats().unwrap().reserved, 256 << 10);
}

pub fn a_reader_has_so_many_loans_and_no_more(world: &World) {
    if !world.lends() {
        return;
    }
    let [a, b] = world.nodes();
    let shared = loan(&a, 8, 1);
    let mut taken = Vec::new();
    for tag in 0..1024 {
        shared.send_until(b.id(), tag, soon()).unwrap();
        taken.push(take(&b, Match::any()));
    }
    assert!(matches!(shared.send_until(b.id(), 1, briefly()), Err(Error::Timeout { .. })));
    taken.pop();
    shared.send_until(b.id(), 5, soon()).unwrap();
    assert_eq!(take(&b, Match::any()).envelope().tag, 5);
    drop((taken, shared));
    is_whole(&a);
}

pub fn a_reader_that_is_gone_holds_nothing(world: &World) {
    if !world.lends() {
        return;
    }
    let [a, c] = [0, 2].map(|id| world.node(id));
    for (go, forgets) in [(Node::abandon as fn(Node), true), (|node: Node| node.leave().unwrap(), false)] {
        let b = world.node(1);
        eventually("this life", || a.peer(b.id()).is_ok_and(|peer| peer.incarnation() == b.incarnation()));
        let shared = loan(&a, 3000, 1);
        shared.send_to(&[b.id(), c.id(), b.id()], 1).unwrap();
        a.loan_bytes(100_000).unwrap().send(b.id(), 2).unwrap();
        drop(shared);
        let (mine, theirs) = (take(&c, Match::any()), take(&b, Match::any()));
        assert_eq!(a.loan_stats().unwrap().blocks, 2);
        if forgets {
            forget(theirs);
            go(b);
        } else {
            go(b);
            // After its node left, it gives nothing back.
            drop(theirs);
        }
        eventually(
            "the reader's end",
            || matches!(a.try_event().unwrap(), Some(Event::Died { node, .. } | Event::Left { node, .. }) if node.0 == 1),
        );
        assert_eq!(a.loan_stats().unwrap().blocks, 1);
        pattern::check(&mine.to_vec(), 1);
        drop(mine);
        is_whole(&a);
        // The next life has the same slots.
        let b = world.node(1);
        eventually("the next life", || a.peer(b.id()).is_ok_and(|peer| peer.incarnation() == b.incarnation()));
        loan(&a, 10, 2).send_until(b.id(), 1, soon()).unwrap();
        let taken = take(&b, Match::any());
        assert_eq!(a.loan_stats().unwrap().out, 1);
        pattern::check(&taken.to_vec(), 2);
        drop(taken);
        is_whole(&a);
        b.leave().unwrap();
    }
}

pub fn what_was_taken_outlives_its_owner(world: &World) {
    let b = world.node(1);
    for go in [Node::abandon as fn(Node), |node: Node| node.leave().unwrap()] {
        let a = world.node(0);
        for seed in 0..3 {
            loan(&a, 10_000, seed).send_until(b.id(), seed, soon()).unwrap();
        }
        let mine = loan(&a, 10_000, 9);
        let taken = take(&b, Match::any().tag(1));
        eventually("all are there", || b.probe(Match::any().tag(2)).unwrap().is_some());
        go(a);
        pattern::check(&taken.to_vec(), 1);
        // What came before is read after; it may be that nobody is told of the end yet.
        let late = take(&b, Match::any().tag(2));
        pattern::check(&late.to_vec(), 2);
        pattern::check(&take(&b, Match::from(taken.envelope().source)).to_vec(), 0);
        assert!(matches!(mine.send(b.id(), 1), Err(Error::Closed)));
        pattern::check(&mine, 9);
        let gone = b.take_until::<[u8]>(Match::from(taken.envelope().source), soon()).unwrap_err();
        assert!(matches!(gone, Error::PeerDied { .. } | Error::PeerLeft { .. }), "{gone}");
        // And after the next life has begun, to which it must not be given back.
        let a = world.node(0);
        pattern::check(&taken.to_vec(), 1);
        eventually("the next life", || a.peer(b.id()).is_ok());
        let shared = loan(&a, 10, 4);
        (0..8).for_each(|_| shared.send_until(b.id(), 1, soon()).unwrap());
        drop((taken, late, mine));
        assert!(!world.lends() || a.loan_stats().unwrap().out == 8);
        (0..8).for_each(|_| pattern::check(&take(&b, Match::any()).to_vec(), 4));
        drop(shared);
        is_whole(&a);
        a.leave().unwrap();
        // The lane is free for the next when its reader has seen this end.
        eventually("the end", || matches!(b.try_event().unwrap(), Some(Event::Left { .. })));
    }
}

pub fn forgetting_a_loan_is_sound(world: &World) {
    if !world.lends() {
        return;
    }
    let a = world.node(0);
    let b = world.node(1);
    loan(&a, 1000, 1).send(b.id(), 1).unwrap();
    let kept = loan(&a, 2000, 2);
    kept.send(b.id(), 2).unwrap();
    forget(take(&b, Match::any().tag(1)));
    forget(kept.clone());
    forget(a.loan_bytes(3000).unwrap());
    drop((take(&b, Match::any()), kept));
    let stats = a.loan_stats().unwrap();
    assert_eq!((stats.blocks, stats.out), (3, 1));
    let others: Vec<_> = (3..50).map(|seed| loan(&a, 1000, seed)).collect();
    others.iter().zip(3..).for_each(|(other, seed)| pattern::check(other, seed));
    drop(others);
    b.leave().unwrap();
    eventually("the reader's end", || matches!(a.try_event().unwrap(), Some(Event::Left { .. })));
    let stats = a.loan_stats().unwrap();
    assert_eq!((stats.blocks, stats.out), (2, 0));
    a.leave().unwrap();
    if world.ground == Ground::Posix {
        assert_eq!(world.domain().files(), [""; 0]);
    }
}

pub fn loans_are_used_from_within_a_reader(world: &World) {
    let [a, b] = world.nodes();
    b.send_until(a.id(), 1, b"now", soon()).unwrap();
    let loan = read_by(&a, Match::any(), soon(), |_, _| a.loan::<u64>().unwrap()).unwrap();
    let mut loan = loan;
    *loan = 8;
    let error = read_by(&a, Match::any(), briefly(), |_, _| ()).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }));
    loan.send(b.id(), 1).unwrap();
    // From the pool it is read without the engine in hand.
    read_by(&b, Match::any(), soon(), |_, _| {
        let taken = b.try_take::<u64>(Match::any());
        assert!(matches!(taken, Err(Error::Reentrant { .. }) | Ok(None)), "{taken:?}");
    })
    .unwrap();
    is_whole(&a);
    let other = a.clone();
    a.leave().unwrap();
    assert!(matches!(other.loan::<u64>(), Err(Error::Closed)));
    assert!(matches!(other.take::<u64>(Match::any()), Err(Error::Closed)));
}
