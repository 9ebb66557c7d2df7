//! The lines that a producer requests before it writes them.

use super::*;
use doorbell_fabric::copies::Copying;
use std::cell::RefCell;
use std::ops::Range;

/// What a producer requested: cells, and places in the data ring.
#[derive(Debug, Default)]
struct Requests {
    cells: Vec<usize>,
    data: Vec<Range<usize>>,
}

/// Memory that notes the requests.
#[derive(Clone, Copy)]
struct Noting<'a> {
    memory: RawMemory,
    requests: &'a RefCell<Requests>,
}

impl LaneMemory for Noting<'_> {
    fn cell_word(&self, cell: usize, word: usize) -> &AtomicU64 {
        self.memory.cell_word(cell, word)
    }
    fn control(&self, control: Control) -> &AtomicU64 {
        self.memory.control(control)
    }
    fn cell_count(&self) -> usize {
        self.memory.cell_count()
    }
    fn data_bytes(&self) -> usize {
        self.memory.data_bytes()
    }
    unsafe fn write_data(&self, offset: usize, src: *const u8, len: usize, way: Copying) {
        // SAFETY: caller.
        unsafe { self.memory.write_data(offset, src, len, way) }
    }
    unsafe fn read_data(&self, offset: usize, dst: *mut u8, len: usize) {
        // SAFETY: caller.
        unsafe { self.memory.read_data(offset, dst, len) }
    }
    fn own_cell(&self, cell: usize) {
        self.requests.borrow_mut().cells.push(cell);
    }
    fn own_data(&self, offset: usize, len: usize) {
        self.requests.borrow_mut().data.push(offset..offset + len);
    }
}

/// Where the payload of the consumer's first packet lies, if that is in the data ring.
fn place(consumer: &Consumer<RawMemory>) -> Option<usize> {
    let Peek::Packet(Seen { place, .. }) = consumer.peek() else { panic!("there is no packet") };
    match place {
        Place::Data(at, _) | Place::Detached(at) => usize::try_from(at).ok(),
        Place::Bundle(entry) => Some(entry.offset()),
        _ => None,
    }
}

#[test]
fn a_producer_requests_free_cells_or_the_place_of_the_next_payload() {
    const CELLS: u32 = 32;
    for (len, in_one_call) in [(8, 1), (40, 1), (48, 1), (64, 1), (256, 1), (1024, 1), (2048, 1), (8, 32), (64, 32)] {
        let (block, requests) = (Block::new(CELLS, 64 << 10), RefCell::new(Requests::default()));
        let mut producer = Producer::claim(Noting { memory: block.memory(), requests: &requests }, 1).unwrap();
        producer.stamp_not();
        let (mut consumer, mut sequence) = (Consumer::new(block.memory(), None), 0);
        let (mut next, mut requested) = (None, 0);
        for _ in 0..if cfg!(miri) { 40 } else { 200 } {
            let (bytes, begins) = (message(sequence, len * in_one_call), producer.pushed());
            producer.reply_to_nothing();
            let pushed = if in_one_call > 1 {
                let all: Vec<_> = bytes.chunks(len).map(|bytes| (7, bytes)).collect();
                producer.push_series(sequence, &all[..]).0
            } else {
                // SAFETY: a slice.
                let pushed = unsafe { producer.push_whole(7, sequence, bytes.as_ptr(), len) };
                producer.own_ahead(len);
                usize::from(pushed)
            };
            assert_eq!(pushed, in_one_call);
            let at = place(&consumer);
            // This call wrote the lines that the last one requested, except at the end of a lap.
            if let (Some(expected), Some(at)) = (next.take(), at) {
                assert!(at == expected || at == 0, "{len}: {expected}, not {at}");
                requested += 1;
            }
            sequence += in_one_call as u32;
            let Requests { cells, data } = requests.take();
            assert!(data.len() <= 1 && cells.len() <= 1 && (at.is_none() || cells.is_empty()), "{len}: {cells:?} {data:?}");
            next = data.first().map(|data| data.start);
            for cell in cells {
                // The consumer has read all before this packet.
                let distance = (cell as u64).wrapping_sub(begins) % u64::from(CELLS);
                assert_eq!(distance, 8, "{len}");
                requested += 1;
            }
            for _ in 0..in_one_call {
                pop(&mut consumer).unwrap();
            }
        }
        assert!(requested > 10, "{len}: {requested}");
    }
}

#[test]
fn a_producer_requests_nothing_that_is_unread() {
    for (len, at_once) in [(8, 1), (64, 1), (1000, 1), (64, 16)] {
        let (block, requests) = (Block::new(32, 16 << 10), RefCell::new(Requests::default()));
        let mut producer = Producer::claim(Noting { memory: block.memory(), requests: &requests }, 1).unwrap();
        producer.stamp_not();
        let bytes = vec![1; len * at_once];
        let series = Chunks::new(7, NonZeroUsize::new(len).unwrap(), &bytes);
        // Nobody reads.
        for sequence in 0.. {
            producer.reply_to_nothing();
            let is_pushed = match at_once {
                // SAFETY: a slice.
                1 => unsafe { producer.push_whole(7, sequence, bytes.as_ptr(), len) },
                _ => producer.push_series(sequence * at_once as u32, series).0 == at_once,
            };
            if !is_pushed {
                break;
            }
            producer.own_ahead(len);
            let (tail, Requests { cells, data }) = (producer.pushed() as usize, requests.take());
            assert!(cells.iter().all(|cell| *cell >= tail), "{len}: {cells:?} at {tail}");
            let written = block.memory().data_bytes() - producer.outstanding().unwrap().bytes as usize;
            assert!(data.iter().all(|data| data.end <= 16 << 10 && data.len() <= written), "{len}: {data:?}");
        }
    }
}
