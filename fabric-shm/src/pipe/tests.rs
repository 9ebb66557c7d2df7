use super::{CUT, DONE};
use super::{HEAD, Moved, NoRead, NoWrite, Reader, View, Words, Writer};
use crate::segment::{HeapBlock, Segment};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const RING: usize = 4096;

fn memory(ring: usize) -> Segment {
    let bytes = HEAD + ring;
    Segment::heap(Arc::new(HeapBlock::new(bytes).unwrap()), 0, bytes).unwrap()
}

fn view(memory: &Segment, ring: usize) -> View<'_> {
    // SAFETY: the memory has that many bytes and is page-aligned.
    unsafe { View::at(memory.ptr(), ring) }
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len).map(|at| (at as u64).wrapping_mul(31).wrapping_add(seed) as u8).collect()
}

#[test]
fn bytes_come_in_order_and_then_the_end() {
    let memory = memory(RING);
    let view = view(&memory, RING);
    let (mut writer, mut reader, mut buf) = (Writer::default(), Reader::default(), [0; 100]);
    assert_eq!(reader.try_read(&view, &mut buf), Err(NoRead::Empty));
    assert_eq!(writer.try_write(&view, b"hello "), Ok(Moved { bytes: 6, wake: false }));
    assert_eq!(writer.try_write(&view, b"world"), Ok(Moved { bytes: 5, wake: false }));
    assert!(!writer.end(&view) && reader.is_ready(&view));
    assert_eq!(reader.try_read(&view, &mut buf[..4]), Ok(Moved { bytes: 4, wake: false }));
    assert_eq!(reader.try_read(&view, &mut buf[4..]), Ok(Moved { bytes: 7, wake: false }));
    assert_eq!(&buf[..11], b"hello world");
    assert_eq!(reader.try_read(&view, &mut buf), Err(NoRead::End));
    assert_eq!(reader.try_read(&view, &mut []), Ok(Moved { bytes: 0, wake: false }));
}

#[test]
fn a_writer_that_gives_up_says_so_behind_its_bytes() {
    let memory = memory(RING);
    let view = view(&memory, RING);
    let (mut writer, mut reader, mut buf) = (Writer::default(), Reader::default(), [0; 100]);
    writer.try_write(&view, b"half").unwrap();
    assert!(!reader.wait(&view) || reader.is_ready(&view));
    assert!(writer.cut(&view), "the reader waits");
    assert!(reader.is_ready(&view) && view.has_news(0));
    assert_eq!(reader.try_read(&view, &mut buf), Ok(Moved { bytes: 4, wake: false }));
    assert_eq!(reader.try_read(&view, &mut buf), Err(NoRead::Cut));
    assert!(!view.is_over());
    reader.leave(&view);
    assert!(view.is_over());
}

#[test]
fn a_full_pipe_takes_what_fits_and_says_who_waits() {
    let memory = memory(RING);
    let view = view(&memory, RING);
    let (mut writer, mut reader) = (Writer::default(), Reader::default());
    let data = bytes(RING + 100, 1);
    assert_eq!(writer.try_write(&view, &data), Ok(Moved { bytes: RING, wake: false }));
    assert_eq!(writer.try_write(&view, &data), Err(NoWrite::Full));
    assert_eq!(writer.try_write(&view, &[]), Ok(Moved { bytes: 0, wake: false }));
    writer.wait(&view);
    assert!(!writer.is_ready(&view));
    let mut buf = vec![0; 1000];
    assert_eq!(reader.try_read(&view, &mut buf), Ok(Moved { bytes: 1000, wake: true }));
    assert_eq!(buf, data[..1000]);
    // The mark is taken once for each wait.
    assert_eq!(reader.try_read(&view, &mut buf), Ok(Moved { bytes: 1000, wake: false }));
    assert!(writer.is_ready(&view));
    reader.wait(&view);
    assert_eq!(writer.try_write(&view, b"x"), Ok(Moved { bytes: 1, wake: true }));
    assert!(!reader.leave(&view));
    while writer.try_write(&view, &data).is_ok() {}
    assert_eq!(writer.try_write(&view, &data), Err(NoWrite::Gone));
}

#[test]
fn the_end_wakes_who_waits_on_either_side() {
    let memory = memory(RING);
    let view = view(&memory, RING);
    let (writer, reader) = (Writer::default(), Reader::default());
    reader.wait(&view);
    assert!(writer.end(&view));
    writer.wait(&view);
    assert!(reader.leave(&view));
}

#[test]
fn what_no_other_side_writes_ends_the_stream() {
    let memory = memory(RING);
    let view = view(&memory, RING);
    // SAFETY: within the memory, aligned; all words are atomics.
    let word = |at: usize| unsafe { &*memory.ptr().add(128 * at).cast::<AtomicU64>() };
    let (mut writer, mut reader) = (Writer::default(), Reader::default());
    // A side does not read its own word, so a forged value there changes nothing.
    word(1).store(RING as u64 / 2, Ordering::Relaxed);
    assert!(!view.has_news(reader.at()) && !reader.is_ready(&view));
    word(1).store(0, Ordering::Relaxed);
    for flags in [DONE, CUT, CUT | DONE] {
        word(0).store(flags, Ordering::Relaxed);
        assert_eq!(reader.try_read(&view, &mut [0; 8]), Err(NoRead::Broken));
    }
    word(0).store(RING as u64 + 1, Ordering::Relaxed);
    assert!(view.has_news(reader.at()));
    assert_eq!(reader.try_read(&view, &mut [0; 8]), Err(NoRead::Broken));
    word(1).store(3 * RING as u64, Ordering::Relaxed);
    assert_eq!(writer.try_write(&view, &bytes(RING, 0)).map(|moved| moved.bytes), Ok(RING));
    assert_eq!(writer.try_write(&view, &[0; 100]), Err(NoWrite::Broken));
    assert_eq!(HEAD, size_of::<Words>());
}

#[derive(Clone, Debug)]
enum Op {
    Write(usize),
    Read(usize),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 300 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// Compares a pipe with a plain queue.
    #[test]
    fn a_pipe_is_a_queue_of_bytes(ops in proptest::collection::vec(
        prop_oneof![(0..6000_usize).prop_map(Op::Write), (0..6000_usize).prop_map(Op::Read)], 1..if cfg!(miri) { 8 } else { 60 })) {
        let memory = memory(RING);
        let view = view(&memory, RING);
        let (mut writer, mut reader, mut model) = (Writer::default(), Reader::default(), VecDeque::new());
        for (seed, op) in ops.into_iter().enumerate() {
            match op {
                Op::Write(len) => {
                    let data = bytes(len, seed as u64);
                    let fits = len.min(RING - model.len());
                    match writer.try_write(&view, &data) {
                        Ok(moved) => prop_assert_eq!(moved, Moved { bytes: fits, wake: false }),
                        Err(why) => prop_assert!(why == NoWrite::Full && fits == 0 && len > 0),
                    }
                    model.extend(&data[..fits]);
                }
                Op::Read(len) => {
                    let mut buf = vec![0; len];
                    match reader.try_read(&view, &mut buf) {
                        Ok(moved) => {
                            prop_assert_eq!(moved.bytes, len.min(model.len()));
                            let expected: Vec<u8> = model.drain(..moved.bytes).collect();
                            prop_assert_eq!(&buf[..moved.bytes], &expected[..]);
                        }
                        Err(why) => prop_assert!(why == NoRead::Empty && model.is_empty() && len > 0),
                    }
                }
            }
        }
    }
}
