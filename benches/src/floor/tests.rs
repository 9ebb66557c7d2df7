//! Two threads, each with its own mapping, stand in for two processes.

use super::copy::{InOut, Slots};
use super::ring::Ring;
use super::*;
use crate::exchange::Carrier;
use crate::memory::Memory;
use crate::stream::Window;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const SHAPE: Shape = Shape { pairs: 2, bytes: 70_000 };

fn patience() -> Patience {
    Patience::new(Arc::new(AtomicBool::new(false)), true)
}

fn inherited(mapping: &Mapping, shape: Shape) -> std::io::Result<Mapping> {
    // SAFETY: `mapping` lives.
    let descriptor = nix::unistd::dup(unsafe { BorrowedFd::borrow_raw(mapping.descriptor()) }).unwrap().into_raw_fd();
    // SAFETY: a duplicate that was made for this.
    unsafe { Mapping::inherit(descriptor, shape) }
}

/// Runs both sides of the second pair.
fn pair(ping: impl FnOnce(&Mapping, &PairMemory<'_>) + Send, pong: impl FnOnce(&Mapping, &PairMemory<'_>) + Send) {
    let one = Mapping::create(SHAPE).unwrap();
    let other = inherited(&one, SHAPE).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| pong(&other, &other.pair(1)));
        ping(&one, &one.pair(1));
    });
}

fn message(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + number) as u8).collect()
}

/// Sends as many messages as can go one way without an answer, and expects them intact.
fn carries<C: Carrier<Error = Stopped>>(from: &mut C, to: &mut C, bytes: usize, messages: usize) {
    for number in 0..messages {
        from.send(&message(number, bytes)).unwrap();
        let mut found = vec![0; bytes];
        to.receive(&mut found).unwrap();
        assert_eq!(found, message(number, bytes), "message {number} of {bytes} bytes");
    }
}

fn both<'m>(memory: &PairMemory<'m>, patience: &'m Patience) -> (Floor<'m>, Floor<'m>) {
    (Floor::new(memory, Side::Ping, patience), Floor::new(memory, Side::Pong, patience))
}

#[test]
fn what_is_sent_arrives() {
    let (mapping, patience) = (Mapping::create(SHAPE).unwrap(), patience());
    let (ping, pong) = both(&mapping.pair(1), &patience);
    let rings: (Ring<'_, 6>, Ring<'_, 6>) = (ping.ring.of_words(), pong.ring.of_words());
    carries(&mut { rings.0 }, &mut { rings.1 }, 48, 3000);
    carries(&mut { rings.1 }, &mut { rings.0 }, 48, 10);
    let copies: (InOut<'_>, InOut<'_>) = (ping.copy, pong.copy);
    carries(&mut { copies.0 }, &mut { copies.1 }, 70_000, 3);
    carries(&mut { copies.1 }, &mut { copies.0 }, 49, 3);
    let (mut from, mut to): (Chunks<'_>, Chunks<'_>) = (ping.chunks, pong.chunks);
    for chunk in [4096, 16_384] {
        // The two sides take turns here, so send no more than can be in flight.
        (from, to) = (from.of_bytes(chunk), to.of_bytes(chunk));
        carries(&mut from, &mut to, 8 * chunk - 1, 1);
    }
    let (mut from, mut to): (Slots<'_>, Slots<'_>) = (ping.slots, pong.slots);
    // From many places to few and back: leftovers of one layout must not look like a message in the next.
    for bytes in [64, 70_000, 4096, 65_536, 49, 5000] {
        (from, to) = (from.laid_out_for(bytes), to.laid_out_for(bytes));
        carries(&mut from, &mut to, bytes, 301);
    }
}

#[test]
fn sections_of_every_kind_end() {
    let sizes = [0, 1, 8, 20, 48, 49, 64, 4096, 70_000];
    let side = |side| {
        move |mapping: &Mapping, memory: &PairMemory<'_>| {
            let patience = patience();
            let mut floor = Floor::new(memory, side, &patience);
            let mut finish = Finish::new(memory, &patience);
            let mut buffers = Buffers::private(SHAPE.bytes).unwrap();
            for (bytes, touched) in sizes.into_iter().zip([true, false].into_iter().cycle()) {
                let section = Section { bytes, warmup: 3, count: 40, touched };
                mapping.gate().pass(2, &patience).unwrap();
                let mut samples = Vec::new();
                match side {
                    Side::Ping => {
                        floor.play(Part::Ping(&mut samples), section, &mut buffers).unwrap();
                        assert_eq!(samples.len(), 40);
                        floor.play(Part::Pour, section, &mut buffers).unwrap();
                        finish.wait().unwrap();
                    }
                    Side::Pong => {
                        floor.play(Part::Pong, section, &mut buffers).unwrap();
                        floor.play(Part::Drain, section, &mut buffers).unwrap();
                        finish.tell();
                    }
                }
            }
        }
    };
    pair(side(Side::Ping), side(Side::Pong));
}

#[test]
fn streams_of_every_kind_end_in_each_direction() {
    let side = |side| {
        move |mapping: &Mapping, memory: &PairMemory<'_>| {
            let patience = patience();
            let mut floor = Floor::new(memory, side, &patience);
            // A process may read its own memory, and here both sides are in one process.
            assert_eq!(floor.may_pull(), Ok(None));
            for (bytes, window, there, back) in [(64, 3, 100, 0), (70_000, 1, 7, 7), (5000, 8, 20, 20), (0, 2, 5, 0)] {
                let mut messages = Messages::new(window, || Memory::private(bytes)).unwrap();
                let (sends, receives) = if side == Side::Ping { (there, back) } else { (back, there) };
                let flow = Flow { sends, receives, touched: true };
                // The second run uses the buffers left from the first.
                for _ in 0..2 {
                    mapping.gate().pass(2, &patience).unwrap();
                    floor.stream_copied(bytes, flow, &mut messages).unwrap();
                    floor.stream_pulled(flow, &mut messages).unwrap();
                }
            }
        }
    };
    pair(side(Side::Ping), side(Side::Pong));
}

#[test]
fn what_is_streamed_arrives() {
    let (mapping, patience) = (Mapping::create(SHAPE).unwrap(), patience());
    let (ping, pong) = both(&mapping.pair(1), &patience);
    let (mut from, mut to) = (ping.pull, pong.pull);
    std::thread::scope(|scope| {
        scope.spawn(|| ping.pull.probe().unwrap());
        pong.pull.probe().unwrap();
    });
    let mut from = Pulling { pull: &mut from, ring: ping.ring.of_words() };
    let mut to = Pulling { pull: &mut to, ring: pong.ring.of_words() };
    for number in 0..3 {
        let (mut source, target) = (Memory::private(70_000).unwrap(), Memory::private(70_000).unwrap());
        source.as_mut().copy_from_slice(&message(number, 70_000));
        let sent = from.start_send(source).unwrap();
        let received = to.start_receive(target).unwrap();
        assert_eq!(to.finish_receive(received).unwrap().as_ref(), message(number, 70_000));
        from.finish_send(sent).unwrap();
    }
}

#[test]
fn probing_twice_gives_two_answers() {
    let side = |side| {
        move |_: &Mapping, memory: &PairMemory<'_>| {
            let patience = patience();
            let mut probe = HopProbe::new(memory, side, &patience);
            // Also on a busy machine.
            probe.longest = Duration::MAX;
            for _ in 0..2 {
                // A tick this short makes any two processors suspicious, so that the copying is tested as well.
                assert_eq!(probe.probe(1e-6).unwrap().is_some(), side == Side::Ping);
            }
        }
    };
    pair(side(Side::Ping), side(Side::Pong));
}

#[test]
fn a_probe_ends_without_an_answer_if_the_other_process_does_not_run() {
    let mapping = Mapping::create(SHAPE).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (memory, patience) = (mapping.pair(0), Patience::new(stop.clone(), false));
    // A probe without an end fails, and does not hang.
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(60));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(HopProbe::new(&memory, Side::Ping, &patience).probe(1.0).unwrap(), None);
    // It runs later, finds that probe over, and takes part in the next one.
    assert_eq!(HopProbe::new(&memory, Side::Pong, &patience).probe(1.0).unwrap(), None);
}

#[test]
fn nobody_waits_for_ever_who_was_told_to_stop() {
    let stop = Arc::new(AtomicBool::new(false));
    let mapping = Mapping::create(SHAPE).unwrap();
    let memory = mapping.pair(0);
    for crowded in [false, true] {
        stop.store(false, std::sync::atomic::Ordering::Relaxed);
        let patience = Patience::new(stop.clone(), crowded);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            // One more process than will ever come, including that of the last turn.
            assert_eq!(mapping.gate().pass(3, &patience), Err(Stopped));
        });
        let section = Section { bytes: 8, warmup: 0, count: 2000, touched: true };
        let buffers = &mut Buffers::private(8).unwrap();
        assert_eq!(Floor::new(&memory, Side::Pong, &patience).play(Part::Pong, section, buffers), Err(Stopped));
        assert_eq!(Finish::new(&memory, &patience).wait(), Err(Stopped));
    }
}

#[test]
fn memory_of_another_shape_is_refused() {
    let mapping = Mapping::create(SHAPE).unwrap();
    let error = inherited(&mapping, Shape { pairs: 3, ..SHAPE }).unwrap_err();
    assert!(error.to_string().contains("bytes, not"), "{error}");
}
