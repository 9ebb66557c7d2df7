//! A port that is warmed up takes no memory from the heap.

use doorbell_udp::Run;
use doorbell_udp::port::{Kind, Options, Park, Port, Room, Sent, open};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

struct Counting;

thread_local!(static TAKEN: Cell<usize> = const { Cell::new(0) });

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.set(TAKEN.get() + 1);
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn exchange(from: &dyn Port, to: &mut dyn Port, room: &mut Room) {
    let (bell, peer) = (AtomicU32::new(1), to.direct().local());
    let mut bytes = [[1; 5000]; 8];
    let [one, rest @ ..] = &mut bytes;
    let runs = rest.each_mut().map(|bytes| Run { peer, bytes, segment: 1000 });
    for parked in [false, true] {
        assert_eq!(from.direct().send(&Run { peer, bytes: &mut one[..], segment: 1000 }), Sent::Sent);
        runs.iter().for_each(|run| assert_eq!(from.direct().send(run), Sent::Sent));
        let mut came = 0;
        while came < 40_000 {
            if parked {
                let park = Park { bell: &bell, expected: 1, timeout: Duration::from_secs(20), writable: false };
                assert!(!to.park(park).unwrap().timeout);
            }
            to.direct().receive(room, 8, &mut |run: Run<'_>| came += run.bytes.len()).unwrap();
        }
    }
}

#[test]
fn nothing_is_allocated_once_it_runs() {
    for kind in [Kind::Uring, Kind::Calls, Kind::Plain] {
        let port = || open(&Options { kind, ..Options::new("0.0.0.0:0".parse().unwrap()) }).unwrap();
        let to = port();
        let address = to.direct().local().port();
        drop(to);
        let from = port();
        let mut to = open(&Options { kind, ..Options::new(format!("127.0.0.1:{address}").parse().unwrap()) }).unwrap();
        let mut room = Room::default();
        exchange(&*from, &mut *to, &mut room);
        let before = TAKEN.get();
        for _ in 0..100 {
            exchange(&*from, &mut *to, &mut room);
        }
        assert_eq!(TAKEN.get() - before, 0, "{kind}");
    }
}
