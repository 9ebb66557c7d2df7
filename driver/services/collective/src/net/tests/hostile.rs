//! A member that gets packets of any kind.

use super::super::streams::{HEAD, WINDOW};
use super::super::*;
use super::case::{Case, Chance, Element, advance, span};
use crate::kind::Kind;
use doorbell_fabric::{Payload, Verdict};
use proptest::prelude::*;

/// A member that waits for a message from another one, and has a message for it.
struct Waiting {
    streams: Streams,
    run: Run,
    _output: Vec<Element>,
}

fn waiting(len: usize) -> Waiting {
    let case = Case::new(Kind::AllGather, 2, 0, len, true, &mut Chance::new(3));
    let case = Case { algorithm: Algorithm::Ring, receives: vec![vec![len; 2]; 2], ..case };
    let mut output = vec![[0; 2]; 2 * len];
    // The own block is the first of the output.
    let own = span(&mut output);
    let mut streams = Streams::new(7, 0, 2);
    let mut run = case.run(0, own, own);
    assert_eq!(advance(&mut run, &mut streams), Ok(false));
    Waiting { streams, run, _output: output }
}

fn head(sequence: u64, call: u32, index: u32, offset: u64, len: u64, piece: usize) -> Vec<u8> {
    let words = [sequence, u64::from(call) | u64::from(index) << 32, offset, len];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(HEAD + piece, 0xab);
    bytes
}

const DATA: u64 = 7 << 32 | 1 << 24;
const TAKEN: u64 = 7 << 32 | 2 << 24;

#[test]
fn a_member_that_breaks_the_rules_is_found() {
    let broken = |packets: &[(u64, Vec<u8>)]| {
        let mut streams = Streams::new(7, 0, 2);
        let (last, before) = packets.split_last().unwrap();
        for (tag, bytes) in before {
            assert_eq!(streams.take(None, 1, *tag, Payload::private(bytes)), Verdict::Taken);
        }
        let verdict = streams.take(None, 1, last.0, Payload::private(&last.1));
        assert!(matches!(verdict, Verdict::Broken(_)), "{packets:?}");
    };
    let data = |bytes: Vec<u8>| (DATA, bytes);
    broken(&[data(vec![0; HEAD - 1])]);
    broken(&[(DATA | 1, head(1, 0, 0, 0, 8, 8))]);
    broken(&[(DATA ^ 1 << 32, head(1, 0, 0, 0, 8, 8))]);
    // Numbers, places and lengths.
    broken(&[data(head(1, 0, 1, 0, 8, 8))]);
    broken(&[data(head(1, 0, 0, 4, 8, 4))]);
    broken(&[data(head(1, 0, 0, 0, 8, 9))]);
    broken(&[data(head(1, 0, 0, 0, 8, 0))]);
    let first = || data(head(5, 0, 0, 0, 16, 8));
    broken(&[first(), first()]);
    broken(&[first(), data(head(5, 0, 0, 4, 16, 8))]);
    broken(&[first(), data(head(5, 0, 0, 9, 16, 7))]);
    broken(&[first(), data(head(5, 0, 0, 8, 16, 9))]);
    broken(&[first(), data(head(5, 0, 0, 8, 17, 8))]);
    broken(&[first(), data(head(5, 1, 0, 8, 16, 8))]);
    let second = || data(head(5, 0, 0, 8, 16, 8));
    broken(&[first(), second(), data(head(5, 0, 0, 0, 8, 8))]);
    broken(&[first(), second(), data(head(5, 0, 2, 0, 8, 8))]);
    broken(&[first(), second(), data(head(4, 0, 0, 0, 8, 8))]);
    broken(&[first(), second(), data(head(6, 0, 1, 0, 8, 8))]);
    broken(&[data(head(1, 0, 0, 0, u64::MAX, 8)), data(head(1, 0, 0, u64::MAX, u64::MAX, 8))]);
    // Reports about bytes that were never sent.
    broken(&[(TAKEN, 1_u64.to_le_bytes().to_vec())]);
    broken(&[(TAKEN, vec![0; 7])]);
    broken(&[(TAKEN, vec![0; 9])]);
    broken(&[(7 << 32 | 3 << 24, vec![0])]);
    // More than the window, by packets without bytes, and by bytes.
    if !cfg!(miri) {
        let packet = |index| data(head(1, 0, index as u32, 0, 0, 0));
        broken(&(0..=WINDOW / HEAD).map(packet).collect::<Vec<_>>());
    }
    let packet = |index| data(head(1, 0, 0, index * 60_000, 1 << 40, 60_000));
    broken(&(0..=(WINDOW / 60_000) as u64).map(packet).collect::<Vec<_>>());
    // From itself, and from members that do not exist.
    let mut streams = Streams::new(7, 0, 2);
    for from in [0, 2, usize::MAX] {
        let verdict = streams.take(None, from, DATA, Payload::private(&head(1, 0, 0, 0, 8, 8)));
        assert!(matches!(verdict, Verdict::Broken(_)));
    }
}

#[test]
fn a_report_never_goes_back() {
    let mut waiting = waiting(100);
    let mut room = vec![];
    assert!(waiting.streams.next(Some(waiting.run.memory()), 1, 4096, &mut room).is_some());
    waiting.streams.sent(1);
    let mut take = |taken: u64| waiting.streams.take(None, 1, TAKEN, Payload::private(&taken.to_le_bytes()));
    assert_eq!(take(832), Verdict::Taken);
    assert!(matches!(take(831), Verdict::Broken(_)));
    assert!(matches!(take(833), Verdict::Broken(_)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 512 }, failure_persistence: None, ..Default::default() })]

    #[test]
    fn hostile_packets_do_no_harm(seed: u64, packets in 1..if cfg!(miri) { 8_usize } else { 600 }, len in 0..300_usize) {
        let mut chance = Chance::new(seed);
        let mut waiting = waiting(len.max(1));
        let call = 7 << 24 | 1 << 16;
        let (mut index, mut offset, mut total, mut sequence) = (0, 0, 8 * len.max(1) as u64, 1);
        let mut room = vec![];
        for _ in 0..packets {
            let largest = if chance.one_in(3) { 65_000 } else { 64 };
            let piece = chance.below(largest);
            // Mostly as it should be, or nearly so.
            let piece = if chance.one_in(8) { piece } else { piece.min((total - offset) as usize) };
            let mut bytes = head(sequence, call, index, offset, total, piece);
            let mut tag = if chance.one_in(9) { TAKEN } else { DATA };
            if tag == TAKEN {
                bytes = (chance.below(900) as u64).to_le_bytes().to_vec();
            }
            match chance.below(30) {
                0 => bytes.truncate(chance.below(bytes.len() + 1)),
                1 => {
                    let at = chance.below(bytes.len().min(40));
                    bytes[at] ^= 1 << chance.below(8);
                }
                2 => tag = chance.word(),
                _ => (),
            }
            let run = &mut waiting.run;
            let memory = if chance.one_in(50) { None } else { Some(run.memory()) };
            let verdict = waiting.streams.take(memory, 1, tag, Payload::private(&bytes));
            prop_assert!(waiting.streams.kept(1) <= WINDOW);
            if verdict == Verdict::Taken && tag == DATA && bytes.len() >= HEAD {
                let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                (sequence, total, offset) = (word(0), word(24), word(16) + (bytes.len() - HEAD) as u64);
                if offset == total {
                    (index, offset, total) = (index + 1, 0, chance.below(10_000) as u64);
                    if chance.one_in(8) {
                        (index, sequence) = (0, sequence.wrapping_add(1 + chance.below(3) as u64));
                    }
                }
            }
            let _ = advance(run, &mut waiting.streams);
            if waiting.streams.next(Some(run.memory()), 1, 1100, &mut room).is_some() {
                waiting.streams.sent(1);
            }
        }
    }

    #[test]
    fn bytes_by_chance_do_no_harm(packets in proptest::collection::vec((any::<u64>(), any::<bool>(), any::<Vec<u8>>()), 0..20)) {
        let mut waiting = waiting(10);
        for (tag, ours, bytes) in packets {
            let tag = if ours { DATA } else { tag };
            let _ = waiting.streams.take(Some(waiting.run.memory()), 1, tag, Payload::private(&bytes));
            let _ = advance(&mut waiting.run, &mut waiting.streams);
            prop_assert!(waiting.streams.kept(1) <= WINDOW);
        }
    }
}
