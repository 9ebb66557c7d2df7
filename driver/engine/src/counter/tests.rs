use super::*;
use crate::{Progress, Space, Wait};
use proptest::prelude::*;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn node(progress: Progress, wait: Wait) -> Node {
    Node::builder("counters").space(Space::heap()).progress(progress).wait(wait).join().unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn readable(fd: BorrowedFd<'_>, milliseconds: i32) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd.
    (unsafe { libc::poll(&mut poll, 1, milliseconds) }) == 1
}

#[test]
fn waiters_of_every_kind_are_woken() {
    // Each case takes seconds under Miri.
    let most = if cfg!(miri) { 1 } else { 3 };
    for progress in [Progress::Adaptive, Progress::Inline, Progress::Poller].into_iter().take(most) {
        for wait in [Wait::Auto, Wait::Park, Wait::Spin] {
            let node = node(progress, wait);
            let counter = node.counter().unwrap();
            counter.init(3).unwrap();
            std::thread::scope(|scope| {
                // One thread sleeps on the bell, the others on their operations.
                let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| counter.wait_until(soon()))).collect();
                std::thread::sleep(Duration::from_millis(5));
                assert_eq!(counter.lower(2).unwrap(), Lowered::Left(1));
                assert_eq!(counter.lower(1).unwrap(), Lowered::Zero { excess: 0 });
                waiters.into_iter().for_each(|waiter| waiter.join().unwrap().unwrap());
            });
            assert!(counter.is_zero());
        }
    }
}

#[test]
fn a_notification_waits_for_room_until_its_deadline() {
    let space = Space::heap();
    let [a, b] = [(); 2]
        .map(|()| Node::builder("notify").space(space.clone()).progress(Progress::Inline).wait(Wait::Park).join().unwrap());
    let counter = b.counter().unwrap();
    counter.init(1 << 30).unwrap();
    let region = b.region::<u8>(1).unwrap();
    let notify = || a.put_notify_until(&[1], region.key(), counter.key(), Instant::now() + Duration::from_millis(1));
    // No thread turns the other node's engine, so the lane fills.
    let lowered = (0..100_000).find(|_| matches!(notify(), Err(Error::Timeout { operation: "notify", .. }))).unwrap();
    let deadline = soon();
    while counter.value() != (1 << 30) - lowered && Instant::now() < deadline {
        b.progress().unwrap();
    }
    assert_eq!(counter.value(), (1 << 30) - lowered);
    notify().unwrap();
}

#[test]
fn a_wait_ends_at_its_deadline_and_with_the_node() {
    let node = node(Progress::Inline, Wait::Auto);
    let counter = node.counter().unwrap();
    counter.wait_until(Instant::now()).unwrap();
    counter.init(1).unwrap();
    let error = counter.wait_until(Instant::now() + Duration::from_millis(2)).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| counter.wait());
        std::thread::sleep(Duration::from_millis(5));
        node.clone().leave().unwrap();
        assert!(matches!(waiter.join().unwrap(), Err(Error::Closed)));
    });
    assert!(matches!(counter.lower(1), Err(Error::Closed)));
    assert!(matches!(counter.wait(), Err(Error::Closed)));
    assert!(matches!(node.counter(), Err(Error::Closed)));
}

#[test]
fn a_wait_goes_on_for_the_next_use() {
    let node = node(Progress::Inline, Wait::Auto);
    let counter = node.counter().unwrap();
    counter.init(1).unwrap();
    let first = counter.key();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| counter.wait_until(soon()));
        std::thread::sleep(Duration::from_millis(5));
        counter.init(2).unwrap();
        assert_eq!(counter.file().lower_by_key(&first, 1), Lowered::Stale);
        assert!(!waiter.is_finished());
        assert!(counter.lower(2).unwrap().reached_zero());
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn the_register_shows_who_is_at_zero() {
    let node = node(Progress::Inline, Wait::Auto);
    let counters: Vec<_> = (0..70).map(|_| node.counter().unwrap()).collect();
    counters.iter().for_each(|counter| counter.init(1).unwrap());
    assert_eq!(node.counter_status(), [0; 4]);
    assert!(counters[69].lower(5).unwrap().reached_zero());
    assert!(counters[3].lower(1).unwrap().reached_zero());
    assert_eq!(node.counter_status(), [1 << 3, 1 << 5, 0, 0]);
    counters[3].clear().unwrap();
    assert_eq!(node.counter_status(), [0, 1 << 5, 0, 0]);
    assert_eq!(counters[69].lower(1).unwrap(), Lowered::Already);
    counters[69].init(9).unwrap();
    let metrics = node.metrics().unwrap();
    assert_eq!((metrics[crate::Metric::CountersUsed], metrics[crate::Metric::CounterZeros]), (70, 2));
    assert_eq!((node.counter_status(), counters[69].value()), ([0; 4], 9));
}

#[test]
fn there_are_256_and_dropped_ones_come_back() {
    let node = node(Progress::Inline, Wait::Auto);
    let mut counters: Vec<_> = (0..COUNTERS).map(|_| node.counter().unwrap()).collect();
    let error = node.counter().unwrap_err();
    assert!(error.to_string().contains("all 256 DMA counters"), "{error}");
    let key = counters[9].key();
    drop(counters.swap_remove(9));
    let again = node.counter().unwrap();
    assert_eq!(again.index(), 9);
    again.init(7).unwrap();
    assert_eq!(again.file().lower_by_key(&key, 7), Lowered::Stale);
    let forged = CounterKey { index: u16::MAX, ..again.key() };
    assert_eq!(again.file().lower_by_key(&forged, 7), Lowered::Stale);
    let elsewhere = CounterKey { incarnation: crate::Incarnation(99), ..again.key() };
    assert_eq!(again.file().lower_by_key(&elsewhere, 7), Lowered::Stale);
    assert!(again.file().lower_by_key(&again.key(), 7).reached_zero());
}

/// Another node reads this node's board and guesses keys from what it finds and from small numbers. None is valid.
#[test]
fn nothing_on_the_board_is_a_key() {
    let space = Space::heap();
    let [a, c] = [0, 2].map(|id| Node::builder("guesses").space(space.clone()).id(id).join().unwrap());
    let counter = a.counter().unwrap();
    counter.init(8).unwrap();
    assert!(counter.lower(8).unwrap().reached_zero());
    counter.init(1 << 20).unwrap();
    let key = counter.key().to_bytes();
    let boards = doorbell_shm::domain::list_domains(&space).unwrap();
    let nodes = boards.iter().flat_map(|domain| &domain.nodes);
    let records = nodes.filter_map(|node| node.board.as_ref()).flat_map(|board| board.board().records());
    let seen: Vec<_> = records.map(|seen| [seen.record.transfer, seen.record.offset, seen.record.bytes]).collect();
    let is_first_use = |[index, _, bytes]: &[u64; 3]| (*index, *bytes) == (counter.index() as u64, 8);
    assert!(seen.iter().any(is_first_use), "no record of the first use: {seen:?}");
    let near = |number: u64| (0..4).map(move |step: u64| number.wrapping_add(step));
    for guess in seen.into_iter().flatten().flat_map(near).chain(0..64) {
        // All parts of a key are public except the one that tells uses apart.
        let mut forged = key;
        let secret = forged.len() - 8;
        forged[8.max(secret)..].iter_mut().zip(guess.to_le_bytes()).for_each(|(byte, guessed)| *byte = guessed);
        c.notify_until(CounterKey::from_bytes(&forged).unwrap(), u64::MAX, soon()).unwrap();
        // Only this turns the node's engine, and the lane must not fill.
        a.progress().unwrap();
    }
    // Later notices of the same lane are handled later.
    c.notify_until(counter.key(), 1, soon()).unwrap();
    let deadline = soon();
    while counter.value() == 1 << 20 {
        assert!(Instant::now() < deadline, "the valid key lowers nothing");
        a.progress().unwrap();
    }
    assert_eq!(counter.value(), (1 << 20) - 1, "a guess lowered it");
}

#[test]
fn too_many_bytes_are_refused() {
    let node = node(Progress::Inline, Wait::Auto);
    let counter = node.counter().unwrap();
    counter.init(COUNTER_BYTES_MAX).unwrap();
    let error = counter.init(COUNTER_BYTES_MAX + 1).unwrap_err();
    assert!(error.to_string().contains("counts up to"), "{error}");
    assert_eq!(counter.value(), COUNTER_BYTES_MAX);
}

#[test]
#[cfg_attr(miri, ignore = "polls a descriptor")]
fn an_interrupt_comes_at_zero_and_goes_with_the_next_use() {
    let node = node(Progress::Inline, Wait::Auto);
    let counter = node.counter().unwrap();
    let fd = counter.interrupt().unwrap();
    assert!(!readable(fd, 0), "a new counter's interrupt is already triggered");
    counter.init(2).unwrap();
    assert!(counter.lower(1).is_ok() && !readable(fd, 0));
    assert!(counter.lower(1).is_ok() && readable(fd, 0));
    counter.init(1).unwrap();
    assert!(!readable(fd, 0));
    std::thread::scope(|scope| {
        scope.spawn(|| counter.lower(1));
        assert!(readable(fd, 20_000));
    });
    let late = node.counter().unwrap();
    late.init(0).unwrap();
    assert!(readable(late.interrupt().unwrap(), 0), "made after the counter reached zero");
    assert_eq!(late.interrupt().unwrap().as_raw_fd(), late.interrupt().unwrap().as_raw_fd());
    drop(late);
    let again = node.counter().unwrap();
    assert!(!readable(again.interrupt().unwrap(), 0), "the counter's former owner completed it");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 48 }, failure_persistence: None, ..Default::default() })]

    /// However a size is split over threads, exactly one call lowers it to zero, and every waiting thread is woken.
    #[test]
    fn zero_is_reached_once(shares in proptest::collection::vec(proptest::collection::vec(1_u64..100_000, 1..30), 1..4)) {
        let node = node(Progress::Inline, Wait::Auto);
        let counter = node.counter().unwrap();
        for _ in 0..2 {
            counter.init(shares.iter().flatten().sum()).unwrap();
            let zeros = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| counter.wait_until(soon()));
                for share in &shares {
                    let (counter, zeros) = (&counter, &zeros);
                    scope.spawn(move || {
                        let reached = share.iter().filter(|bytes| counter.lower(**bytes).unwrap().reached_zero()).count();
                        zeros.fetch_add(reached, Ordering::Relaxed);
                    });
                }
                waiter.join().unwrap().unwrap();
            });
            prop_assert_eq!(zeros.into_inner(), 1);
            prop_assert_eq!((counter.value(), node.counter_status()), (0, [1, 0, 0, 0]));
        }
    }
}
