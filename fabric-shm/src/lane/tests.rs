use super::*;
use crate::lane::bulk::IN_BULK;
use crate::lane::consumer::Next;
use crate::lane::ways::Ways;
use crate::layout::{LaneGeometry, PAGE};
use doorbell_fabric::copies::Known;
use doorbell_fabric::sync::{AtomicU64, Ordering};
use doorbell_fabric::{PacketHead, PacketKind, Payload, Priority, Push};
use proptest::prelude::*;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::num::NonZeroUsize;

mod bulk_ring;
mod moves;
mod owned;
mod pieces;
mod run;
mod short_laps;

/// A block in the heap. The tests use one lane of it.
struct Block {
    ptr: *mut u8,
    layout: Layout,
    lanes: LaneGeometry,
}

impl Block {
    fn new(cells: u32, data_bytes: u32) -> Self {
        let lanes = LaneGeometry { cells: [cells; 3], data_bytes: [data_bytes; 3] };
        let layout = Layout::from_size_align(lanes.pair_bytes(), PAGE).unwrap();
        // SAFETY: the size is not zero.
        Self { ptr: unsafe { alloc_zeroed(layout) }, layout, lanes }
    }

    fn memory(&self) -> RawMemory {
        // SAFETY: the block is as long as its geometry needs and outlives the lanes of each test.
        unsafe { RawMemory::new(self.ptr, self.lanes.lane(Priority::Normal)) }
    }

    /// The ring by which the lane begins.
    fn first(&self) -> RawMemory {
        // SAFETY: as above.
        unsafe { RawMemory::new(self.ptr, self.lanes.first_lane(Priority::Normal)) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.ptr, self.layout) };
    }
}

/// A packet, behind the one by which the producer moved if that comes first.
fn followed(consumer: &mut Consumer<RawMemory>) -> Option<(PacketHead, Vec<u8>)> {
    if matches!(consumer.peek(), Peek::Moved) {
        assert!(consumer.is_ready() && consumer.has_packet());
        consumer.follow();
    }
    pop(consumer)
}

fn push(producer: &mut Producer<RawMemory>, kind: PacketKind, sequence: u32, bytes: &[u8]) -> Push {
    push_of(producer, kind, sequence, bytes, bytes.len() as u64)
}

/// Pushes a part of a message of `total` bytes.
fn push_of(producer: &mut Producer<RawMemory>, kind: PacketKind, sequence: u32, bytes: &[u8], total: u64) -> Push {
    let head = PacketHead { kind, tag: sequence as u64 * 3, sequence, total };
    // SAFETY: a slice.
    unsafe { producer.push(&head, bytes.as_ptr(), bytes.len()) }
}

fn pop(consumer: &mut Consumer<RawMemory>) -> Option<(PacketHead, Vec<u8>)> {
    let Peek::Packet(seen) = consumer.peek() else { return None };
    let mut copied = vec![0; seen.len];
    // SAFETY: from the latest peek; the vector is long enough.
    let viewed = unsafe {
        consumer.copy_out(&seen, copied.as_mut_ptr());
        consumer.payload(&seen).to_vec()
    };
    assert_eq!(copied, viewed);
    let _ = consumer.take(&seen);
    Some((seen.head, copied))
}

/// Multiples of 7, which repeat after 256. Made by the compiler, because Miri takes long for each step of a loop.
static SEVENS: [u8; 512] = {
    let (mut sevens, mut at) = ([0; 512], 0);
    while at < sevens.len() {
        sevens[at] = (at * 7) as u8;
        at += 1;
    }
    sevens
};

/// Bytes that differ from one number to the next: those of `SEVENS` from the one on that is the number.
fn message(sequence: u32, len: usize) -> Vec<u8> {
    // 7 times 183 is 1, as far as bytes go.
    let start = sequence as usize * 183 % 256;
    let period = &SEVENS[start..start + 256];
    let mut bytes = period.repeat(len / period.len() + 1);
    bytes.truncate(len);
    // Then a read behind its end is one outside the allocation.
    bytes.shrink_to_fit();
    bytes
}

#[test]
fn one_packet_in_64_and_one_a_millisecond_says_when_it_was_published() {
    let block = Block::new(16, 16 << 10);
    let mut producer = Producer::claim(block.memory(), 1).unwrap();
    let mut consumer = Consumer::new(block.memory(), None);
    // Its number, and the times before and after.
    let mut last: Option<(u32, u64, u64)> = None;
    let mut sequence = 0;
    let mut stamps = 0;
    while stamps < if STAMPED { 4 } else { 1 } {
        let before = crate::clock::now_ns();
        assert_eq!(push(&mut producer, PacketKind::Whole, sequence, b"x"), Push::Done);
        let now = crate::clock::now_ns();
        let Peek::Packet(seen) = consumer.peek() else { panic!("nothing came") };
        assert_eq!(seen.head.sequence, sequence, "the stamp is not part of the sequence number");
        assert!(seen.stamp == 0 || age(seen.stamp).is_some());
        if seen.stamp != 0 {
            assert!(last.is_none_or(|(number, time, _)| sequence - number >= 64 && now - time >= STAMP_NS), "{sequence}");
            (last, stamps) = (Some((sequence, before, now)), stamps + 1);
        } else if !STAMPED {
            stamps += 1;
        } else if let Some((number, _, time)) = last {
            assert!(!(sequence - number).is_multiple_of(64) || before < time + STAMP_NS, "one is due");
        }
        let _ = consumer.take(&seen);
        sequence += 1;
    }
    // A stamp of another clock, or a forged one, gives no sample.
    assert_eq!(age((crate::clock::now_ns() as u32).wrapping_add(1 << 30)), None);
}

#[test]
fn a_series_goes_through_the_lane_in_order_and_stops_where_it_must() {
    // Messages of the same length have bundles without heads where the tag is the same, too.
    for (lens, same) in
        [(&[8, 0, 64, 40, 41, 1000, SERIES_BYTES][..], 1), (&[8], 40), (&[64], 1000), (&[5, 5, 5, 700], 4), (&[0], 7)]
    {
        series(lens, same);
    }
}

#[test]
fn chunks_go_through_the_lane_as_a_list_of_them_does() {
    // In one piece where their length is that of their place in a bundle. The last one is shorter, and the long ones have no bundle.
    for len in [1, 5, 8, 40, 64, 600, 1000, 1016, SERIES_BYTES + 8] {
        let block = Block::new(16, 16 << 10);
        let mut producer = Producer::claim(block.memory(), 1).unwrap();
        let mut consumer = Consumer::new(block.memory(), None);
        let bytes = message(0, if cfg!(miri) { 20 * len } else { 200 * len } + len / 3);
        let all = Chunks::new(7, NonZeroUsize::new(len).unwrap(), &bytes);
        let expected: Vec<&[u8]> = bytes.chunks(len).collect();
        let (mut sent, mut read) = (0, 0);
        while read < expected.len() {
            producer.stamp_not();
            let left = all.behind(sent);
            assert_eq!(left.first(), expected.get(sent).map(|bytes| (7, *bytes)));
            let (count, sum) = producer.push_series(sent as u32, left);
            assert_eq!(sum, expected[sent..][..count].iter().map(|bytes| bytes.len() as u64).sum::<u64>());
            sent += count;
            if count == 0
                && let Some((tag, bytes)) = all.behind(sent).first()
            {
                let head = PacketHead { kind: PacketKind::Whole, tag, sequence: sent as u32, total: bytes.len() as u64 };
                // SAFETY: a slice.
                sent += usize::from(unsafe { producer.push(&head, bytes.as_ptr(), bytes.len()) } == Push::Done);
            }
            if let Some((head, payload)) = pop(&mut consumer) {
                assert_eq!((head.tag, head.sequence as usize, &payload[..]), (7, read, expected[read]), "{len}");
                read += 1;
            }
        }
        assert_eq!((sent, all.behind(sent).first()), (expected.len(), None));
        let (packets, messages) = (producer.pushed(), expected.len() as u64);
        let shares = if len <= SERIES_BYTES { packets <= messages * 2 / 3 } else { packets == messages };
        assert!(shares, "{packets} packets for {messages} messages of {len}");
    }
}

/// A series of messages of these lengths in turn, of which so many have the same tag.
fn series(lens: &[usize], same: u64) {
    let block = Block::new(16, 16 << 10);
    let mut producer = Producer::claim(block.memory(), 1).unwrap();
    let mut consumer = Consumer::new(block.memory(), None);
    let bytes: Vec<Vec<u8>> =
        (0..if cfg!(miri) { 40 } else { 300 }).map(|number| message(number, lens[number as usize % lens.len()])).collect();
    let all: Vec<(u64, &[u8])> = bytes.iter().zip(0..).map(|(bytes, number)| (number / same, &bytes[..])).collect();
    let (mut sent, mut read) = (0, 0);
    while read < all.len() {
        if read % 100 == 99 {
            producer.forget_stamp();
        }
        let (count, sum) = producer.push_series(sent as u32, &all[sent..]);
        assert_eq!(sum, all[sent..][..count].iter().map(|(_, bytes)| bytes.len() as u64).sum());
        sent += count;
        if sent < all.len() && count == 0 {
            // It needs a time stamp, or a look for room.
            let (tag, bytes) = all[sent];
            let head = PacketHead { kind: PacketKind::Whole, tag, sequence: sent as u32, total: bytes.len() as u64 };
            // SAFETY: a slice.
            sent += usize::from(unsafe { producer.push(&head, bytes.as_ptr(), bytes.len()) } == Push::Done);
        }
        // One in seven is not accepted at first.
        let (before, is_choosy) = (read, read % 2 == 0);
        let _ = consumer.read_series(
            None,
            read as u32,
            5,
            |tag| !is_choosy || tag % 7 != 0,
            |tag, sequence, payload| {
                assert_eq!((tag, sequence as usize, payload.to_vec()), (all[read].0, read, bytes[read].clone()));
                read += 1;
            },
        );
        assert!(read - before <= 5 && (!is_choosy || (before..read).all(|number| !all[number].0.is_multiple_of(7))));
        if read == before
            && let Some((head, payload)) = pop(&mut consumer)
        {
            assert_eq!((head.tag, head.sequence as usize, &payload), (all[read].0, read, &bytes[read]));
            read += 1;
        }
        // A later sequence number than the first one's is left alone.
        let _ = consumer.read_series(None, read as u32 + 1, 5, |_| true, |tag, _, _| panic!("{tag}"));
    }
    assert_eq!(sent, all.len());
    assert!(lens.len() > 1 || producer.pushed() < all.len() as u64 / 2, "{} packets", producer.pushed());
    // A reader that panics leaves its message, and has the ones before it.
    producer.stamp_not();
    let both = [(1, &bytes[1][..]), (2, &bytes[2][..])];
    assert_eq!(producer.push_series(0, &both[..]).0, 2);
    let mut seen = Vec::new();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = consumer.read_series(
            None,
            0,
            5,
            |_| true,
            |tag, _, _| {
                seen.push(tag);
                if tag == 2 {
                    std::panic::resume_unwind(Box::new(()));
                }
            },
        );
    }));
    assert_eq!((panicked.is_err(), seen), (true, vec![1, 2]));
    assert_eq!(pop(&mut consumer).map(|(head, _)| head.tag), Some(2));
}

#[test]
fn messages_are_read_one_by_one_if_nothing_is_special_about_them() {
    let block = Block::new(16, 16 << 10);
    let mut producer = Producer::claim(block.memory(), 1).unwrap();
    let mut consumer = Consumer::new(block.memory(), None);
    let nothing = |_: u64, _: Payload<'_>| panic!("it is read");
    let count = if cfg!(miri) { 80 } else { 300 };
    for sequence in 0..count {
        let bytes = message(sequence, [8, 0, 64, 40, 41, 1000, SERIES_BYTES, 3000][sequence as usize % 8]);
        assert!(consumer.read_next(None, sequence, usize::MAX, |_| true, nothing).is_none(), "there is none");
        if sequence % 70 == 0 {
            producer.forget_stamp();
        } else {
            producer.stamp_not();
        }
        // SAFETY: a slice.
        let is_short = unsafe { producer.push_whole(u64::from(sequence) * 3, sequence, bytes.as_ptr(), bytes.len()) };
        if !is_short {
            // It gets a time stamp, or the lane looks full.
            assert_eq!(push(&mut producer, PacketKind::Whole, sequence, &bytes), Push::Done);
        }
        let is_stamped = matches!(consumer.peek(), Peek::Packet(seen) if seen.stamp != 0);
        assert!(!(is_stamped && is_short) && is_stamped == (STAMPED && sequence % 70 == 0));
        assert!(consumer.read_next(None, sequence.wrapping_sub(1), usize::MAX, |_| true, nothing).is_none(), "out of order");
        assert!(consumer.read_next(None, sequence, usize::MAX, |_| false, nothing).is_none(), "another tag");
        assert!(bytes.is_empty() || consumer.read_next(None, sequence, bytes.len() - 1, |_| true, nothing).is_none());
        let mut read = None;
        let next = consumer.read_next(None, sequence, bytes.len(), |_| true, |tag, payload| read = Some((tag, payload.to_vec())));
        assert_eq!(next.is_none(), is_stamped, "{sequence}");
        match next {
            Some(Next { tag, len, .. }) => {
                assert_eq!(((tag, len), read), ((sequence as u64 * 3, bytes.len()), Some((tag, bytes))))
            }
            None => assert_eq!(pop(&mut consumer).unwrap().1, bytes),
        }
    }
    assert_eq!(consumer.taken(), u64::from(count));
    // A part of a message is none.
    assert_eq!(push_of(&mut producer, PacketKind::First, 0, b"part", 8), Push::Done);
    assert!(consumer.read_next(None, 0, usize::MAX, |_| true, nothing).is_none());
    pop(&mut consumer).unwrap();
    // A reader that panics leaves its message, in its cell or in the ring.
    for len in [8, 64] {
        assert_eq!(push(&mut producer, PacketKind::Whole, 0, &message(0, len)), Push::Done);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            consumer.read_next(None, 0, usize::MAX, |_| true, |_, _| std::panic::resume_unwind(Box::new(())))
        }));
        assert!(panicked.is_err() && pop(&mut consumer).unwrap().1 == message(0, len));
    }
    // A place that no producer states.
    for place in [8, 16 << 10, !IN_BULK, u64::MAX] {
        assert_eq!(push(&mut producer, PacketKind::Whole, 0, &message(0, 64)), Push::Done);
        let cell = consumer.taken() as usize % 16;
        block.memory().cell_word(cell, word::PLACE).store(place, Ordering::Relaxed);
        assert!(consumer.read_next(None, 0, usize::MAX, |_| true, nothing).is_none(), "{place:x}");
        let _ = consumer.take_from(Place::Inline, 0);
    }
}

#[test]
fn payloads_are_written_when_their_packets_are_published() {
    for in_bulk in [false, true] {
        for (ways, is_streamed) in Ways::always_streamed_and_owned().into_iter().zip([true, false]) {
            arrives_whole(ways, in_bulk, is_streamed);
        }
    }
}

fn arrives_whole(ways: Ways, in_bulk: bool, is_streamed: bool) {
    let (block, mut room) = (Block::new(16, 256 << 10), bulk_room(256 << 10));
    let (memory, count) = (block.memory(), if cfg!(miri) { 4 } else { 20_000 });
    let lens = [2 << 10, 5001, 16 << 10, 100, 33_333];
    let messages: Vec<_> = (0..2 * lens.len()).map(|number| message(number as u32, lens[number % lens.len()])).collect();
    let mut producer = Producer::claim(memory, 1).unwrap();
    producer.set_ways(ways);
    let mut consumer = Consumer::new(memory, None);
    if in_bulk {
        // SAFETY: the vector outlives both ends.
        unsafe {
            producer.offer_bulk(bulk(&mut room), 6);
            let _ = consumer.tell();
            assert_eq!(consumer.offered(), Some(6));
            consumer.answer(Some(bulk(&mut room)));
        }
    }
    let mut told = [0; 2];
    std::thread::scope(|scope| {
        let messages = &messages;
        scope.spawn(move || {
            for sequence in 0..count {
                let bytes = &messages[sequence as usize % messages.len()];
                while push(&mut producer, PacketKind::Whole, sequence, bytes) != Push::Done {
                    std::thread::yield_now();
                }
            }
        });
        for sequence in 0..count {
            let mut next = || {
                if let Peek::Packet(seen @ Seen { place: Place::Bulk { .. }, .. }) = consumer.peek() {
                    // SAFETY: from the latest peek, and nothing is taken yet.
                    let known = unsafe { consumer.payload(&seen) }.known();
                    told[usize::from((known == Known::Streamed) == is_streamed)] += 1;
                }
                pop(&mut consumer)
            };
            let (head, bytes) =
                std::iter::repeat_with(|| next().ok_or_else(std::thread::yield_now)).find_map(Result::ok).unwrap();
            assert!(head.sequence == sequence && bytes == messages[sequence as usize % messages.len()], "message {sequence}");
        }
    });
    // Miri sends too few messages for a look at the consumer's answer.
    assert!(told[0] == 0 && (cfg!(miri) || (told[1] > 0) == in_bulk), "marks of streamed payloads: {told:?}");
    assert!(cfg!(miri) || room.iter().any(|line| line.0 != [0; 64]) == in_bulk);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 128 }, failure_persistence: None, ..Default::default() })]

    /// Compares a lane with a plain queue. Whatever the sizes and the turns, packets come out whole and in order, and a lane
    /// whose packets were all taken is never full.
    #[test]
    fn a_lane_is_a_queue(steps in prop::collection::vec((any::<bool>(), prop_oneof![0..=48_usize, 0..=4096_usize]), 1..if cfg!(miri) { 60 } else { 1500 })) {
        let block = Block::new(16, 16 << 10);
        let mut producer = Producer::claim(block.memory(), 1).unwrap();
        let mut consumer = Consumer::new(block.memory(), None);
        let mut model = std::collections::VecDeque::new();
        let mut sequence = 0;
        for (send, len) in steps {
            if send {
                let kind = if len > 100 { PacketKind::First } else { PacketKind::Whole };
                let bytes = message(sequence, len);
                match push(&mut producer, kind, sequence, &bytes) {
                    Push::Done => {
                        model.push_back((kind, sequence, bytes));
                        sequence += 1;
                    }
                    Push::Full => prop_assert!(!model.is_empty(), "full while empty"),
                    Push::Down(down) => prop_assert!(false, "{down:?}"),
                }
            } else {
                match (pop(&mut consumer), model.pop_front()) {
                    (None, None) => {}
                    (Some((head, bytes)), Some((kind, sequence, expected))) => {
                        prop_assert_eq!((head.kind, head.sequence, head.tag), (kind, sequence, sequence as u64 * 3));
                        prop_assert_eq!(bytes, expected);
                    }
                    (got, expected) => prop_assert!(false, "got {got:?}, expected {expected:?}"),
                }
            }
        }
    }

    /// The same for a bundle: however its words change while it is read, no message lies outside the lane, and it ends.
    #[test]
    fn forged_bundles_stay_inside(
        words in prop::collection::vec(prop::array::uniform8(any::<u64>()), 1..40),
        bytes in 0..3000_usize,
        data in prop::collection::vec(0..100_u64, 400),
    ) {
        let block = Block::new(16, 16 << 10);
        let memory = block.memory();
        let mut consumer = Consumer::new(memory, None);
        for (at, word) in data.iter().enumerate() {
            // SAFETY: eight bytes inside the ring.
            unsafe { memory.write_data(at * 8, word.to_ne_bytes().as_ptr(), 8, doorbell_fabric::copies::Copying::Library) };
        }
        let mut taken = 0;
        for words in words.iter().cycle().take(100) {
            let store = |index: usize, value| memory.cell_word(0, index).store(value, Ordering::Relaxed);
            store(word::CHECK, check_word(1, BUNDLE, bytes));
            store(word::TAG, words[0]);
            store(word::SEQUENCE, words[1] & 0x3f_0000_000f);
            store(word::PLACE, if words[2] % 16 == 0 { words[2] } else { words[2] & 0x3fc0 });
            store(word::LENGTH, if words[3] % 16 == 0 { words[3] } else { words[3] & 0x7f });
            let by_series = words[4] % 2 == 0;
            let before = taken;
            if by_series {
                let first = words[1] as u32 & 15;
                let sequence = first + taken as u32;
                taken += consumer.read_series(None, sequence, words[4] % 5, |_| true, |_, _, payload| _ = payload.to_vec()).0;
            } else if let Peek::Packet(seen) = consumer.peek() {
                // SAFETY: from the latest peek.
                prop_assert_eq!(unsafe { consumer.payload(&seen) }.to_vec().len(), seen.len);
                let _ = consumer.take(&seen);
                taken += 1;
            }
            prop_assert!(taken <= before + 5);
            if consumer.taken() > 0 {
                break;
            }
        }
        prop_assert!(taken <= crate::lane::bundle::MESSAGES_MOST as u64);
    }

    /// A cell with any content is empty, holds a packet inside the lane, or is damaged. It never causes a read outside the lane
    /// (Miri watches).
    #[test]
    fn forged_cells_stay_inside(words in prop::array::uniform8(any::<u64>()), small in any::<bool>()) {
        let block = Block::new(16, 16 << 10);
        let memory = block.memory();
        let consumer = Consumer::new(block.memory(), None);
        for (index, value) in words.into_iter().enumerate() {
            let value = match index {
                word::CHECK => (value & !0xffff_ffff) | 1,
                word::PLACE if small => value & 0x7fff,
                _ => value,
            };
            memory.cell_word(0, index).store(value, std::sync::atomic::Ordering::Relaxed);
        }
        if let Peek::Packet(seen) = consumer.peek() {
            // SAFETY: from the latest peek.
            prop_assert_eq!(unsafe { consumer.payload(&seen) }.to_vec().len(), seen.len);
        }
    }
}

#[test]
fn a_full_lane_says_so_and_loses_nothing() {
    let block = Block::new(16, 16 << 10);
    let mut producer = Producer::claim(block.memory(), 1).unwrap();
    let mut consumer = Consumer::new(block.memory(), None);
    for sequence in 0..14 {
        assert_eq!(push(&mut producer, PacketKind::Whole, sequence, &[sequence as u8]), Push::Done);
    }
    assert_eq!(push(&mut producer, PacketKind::Whole, 14, &[]), Push::Full);
    for sequence in 0..14 {
        assert_eq!(pop(&mut consumer).unwrap().1, [sequence as u8]);
    }
    assert!(pop(&mut consumer).is_none());
    assert_eq!(push(&mut producer, PacketKind::Whole, 14, &[]), Push::Done);
}

#[test]
fn giving_up_always_finds_room() {
    let block = Block::new(16, 16 << 10);
    let mut producer = Producer::claim(block.memory(), 1).unwrap();
    let mut consumer = Consumer::new(block.memory(), None);
    for _ in 0..3 {
        assert_eq!(push(&mut producer, PacketKind::First, 0, b"part"), Push::Done);
        while push(&mut producer, PacketKind::Next, 0, b"part") == Push::Done {}
        assert_eq!(push(&mut producer, PacketKind::GivenUp, 0, &[]), Push::Done);
        assert_eq!(push(&mut producer, PacketKind::First, 0, b"part"), Push::Full);
        let kinds: Vec<_> = std::iter::from_fn(|| pop(&mut consumer)).map(|(head, _)| head.kind).collect();
        consumer.tell();
        assert_eq!((kinds.len(), kinds[0], kinds[14]), (15, PacketKind::First, PacketKind::GivenUp));
    }
}

#[test]
fn only_what_was_given_up_is_skipped() {
    let block = Block::new(16, 16 << 10);
    let mut producer = Producer::claim(block.memory(), 1).unwrap();
    let mut consumer = Consumer::new(block.memory(), None);
    let mut long = |kind, len: usize| assert_eq!(push_of(&mut producer, kind, 0, &vec![7; len], 3000), Push::Done);
    assert!(!consumer.skip_given_up(), "nothing is there");
    long(PacketKind::First, 1000);
    long(PacketKind::Next, 1000);
    assert!(!consumer.skip_given_up(), "the rest may still come");
    long(PacketKind::Next, 1000);
    long(PacketKind::First, 1000);
    assert!(!consumer.skip_given_up(), "the message is whole, and another follows");
    for _ in 0..3 {
        pop(&mut consumer).unwrap();
    }
    long(PacketKind::Next, 1000);
    long(PacketKind::Whole, 1);
    assert!(consumer.skip_given_up());
    assert_eq!(pop(&mut consumer).unwrap().0.kind, PacketKind::Whole);
    assert!(pop(&mut consumer).is_none());
}

#[test]
fn the_largest_packet_always_fits_a_lane_that_was_read() {
    let block = Block::new(16, 16 << 10);
    let mut producer = Producer::claim(block.memory(), 1).unwrap();
    let mut consumer = Consumer::new(block.memory(), None);
    for sequence in 0..if cfg!(miri) { 20 } else { 200 } {
        let bytes = message(sequence, 4096 - (sequence as usize * 97) % 900);
        assert_eq!(push(&mut producer, PacketKind::Whole, sequence, &bytes), Push::Done);
        assert_eq!(pop(&mut consumer).unwrap().1, bytes);
    }
}

#[test]
fn a_forged_head_is_found_out() {
    let block = Block::new(16, 16 << 10);
    let mut producer = Producer::claim(block.memory(), 1).unwrap();
    for sequence in 0..14 {
        assert_eq!(push(&mut producer, PacketKind::Whole, sequence, &[]), Push::Done);
    }
    for forged in [17, u64::MAX, 1 << 63] {
        block.memory().control(Control::Head).store(forged, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(push(&mut producer, PacketKind::Whole, 15, &[]), Push::Down(doorbell_fabric::LinkDown::Damaged));
    }
}

#[test]
fn a_lane_is_claimed_once_until_it_is_reset() {
    let block = Block::new(16, 16 << 10);
    let mut first = Producer::claim(block.memory(), 1).unwrap();
    let mut consumer = Consumer::new(block.memory(), None);
    assert!(Producer::claim(block.memory(), 2).is_none());
    for sequence in 0..9 {
        push(&mut first, PacketKind::Whole, sequence, &message(sequence, 100));
    }
    while pop(&mut consumer).is_some() {}
    assert_eq!(consumer.owner(), 1);
    consumer.reset();
    let mut second = Producer::claim(block.memory(), 2).unwrap();
    assert!(pop(&mut consumer).is_none(), "a packet of the first producer is left");
    assert_eq!(push(&mut second, PacketKind::Whole, 0, b"hello"), Push::Done);
    assert_eq!(pop(&mut consumer).unwrap().1, b"hello");
}

#[derive(Clone, PartialEq)]
#[repr(align(64))]
struct Line([u8; 64]);

/// Room for a bulk ring of that many bytes.
fn bulk_room(bytes: usize) -> Vec<Line> {
    vec![Line([0; 64]); bytes / 64]
}

/// A bulk ring in the heap.
fn bulk(room: &mut [Line]) -> BulkMemory {
    // SAFETY: the tests do not touch the vector as long as their lanes live.
    unsafe { BulkMemory::new(room.as_mut_ptr().cast(), size_of_val(room)) }.unwrap()
}
