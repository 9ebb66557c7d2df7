//! An honest pair talks by streams, by a device and by messages, while a third node does one of them harm in the ways of the other tests. Nothing that
//! the pair says is lost or changed, and it ends well.

use crate::pair::{self, Pair};
use doorbell::DeviceSender;
use doorbell_tests::patience::PATIENCE;
use doorbell_tests::{Turn, number};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

fn talks_beside(way: &str) {
    let _turn = Turn::take();
    let seed = number("DOORBELL_HOSTILE_SEED", u64::from(std::process::id()));
    println!("{way}: DOORBELL_HOSTILE_SEED={seed}");
    let pair = Pair::new(false);
    let node = pair.join();
    pair::accepts(&node);
    let foe = pair.foe("hostile", way, seed);
    let span = Duration::from_millis(300 * number("DOORBELL_HOSTILE_SECONDS", 1));
    let (mut round, mut struck) = (0, Instant::now());
    let (patience, blows) = (Instant::now() + PATIENCE, || pair.words[crate::at::BLOWS].load(SeqCst));
    while blows() == 0 || struck.elapsed() < span {
        assert!(Instant::now() < patience + span, "no blow was struck: {way}");
        if blows() == 0 {
            struck = Instant::now();
        }
        // Also what begins under attack.
        let (mut stream, sender) = (pair::connect(&node), DeviceSender::open(&node, pair::DEVICE).unwrap());
        for _ in 0..20 {
            pair::talk(&node, &mut stream, &sender, round);
            round += 1;
        }
    }
    println!("{way}: {} blows, {round} rounds", blows());
    foe.kill();
    drop(foe);
    pair.end(node);
}

macro_rules! ways {
    ($($way:ident),+ $(,)?) => { $(#[test] fn $way() { talks_beside(stringify!($way)); })+ };
}

// The ways by which a node harms its own memory, and its victim by its packets. The ways that touch the directory and the first pages of inboxes are missing:
// those pages say which nodes live, and a node that is taken for dead has no device.
ways! { replay, indices, envelopes, descriptors, keys, meetings, loans, flood, services }
