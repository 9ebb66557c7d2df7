//! A private copy of another node's board.

use super::{Board, COUNTERS, Decided, Latencies, LinkRow, Metrics, ModeFigures, Recorded, Status};
use crate::layout::{
    BOARD_BYTES, COUNTER_STATUS_OFFSET, COUNTERS_OFFSET, COUNTERS_USED_OFFSET, HeaderFacts, HeaderFault, SegmentHeader,
    SegmentKind,
};
use crate::segment::Segment;
use doorbell_fabric::sync::Ordering;
use doorbell_fabric::{Incarnation, NodeId};
use std::sync::Arc;

/// A copy of a node's board at one moment. Copying neither asks nor disturbs the node, which may be busy, stopped or dead.
#[derive(Clone, Debug)]
pub struct BoardCopy {
    segment: Arc<Segment>,
    facts: HeaderFacts,
}

/// A DMA counter as its owner shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterShown {
    /// Its index.
    pub index: usize,
    /// Bytes still to move.
    pub value: u64,
    /// The number of bytes that the current use began with.
    pub size: u64,
    /// Whether its bit in the status register is set.
    pub zero: bool,
}

impl BoardCopy {
    /// Checks the copied bytes of a board file.
    pub(crate) fn check(segment: Segment) -> Result<Self, HeaderFault> {
        let len = segment.len();
        // SAFETY: a segment is page-aligned and readable for its length.
        let facts = unsafe { SegmentHeader::check(segment.ptr(), len, len, SegmentKind::Board) }?;
        if len < BOARD_BYTES {
            return Err(HeaderFault::TooShort { found: len, expected: BOARD_BYTES });
        }
        Ok(Self { segment: Arc::new(segment), facts })
    }

    fn board(&self) -> Board<'_> {
        // SAFETY: page-aligned, BOARD_BYTES long (checked), and kept mapped by `self`; nothing is written.
        unsafe { Board::at(self.segment.ptr()) }
    }

    /// The owner of the board.
    pub fn node(&self) -> NodeId {
        self.facts.node
    }

    /// The incarnation of that node.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.facts.incarnation)
    }

    /// The metrics.
    pub fn metrics(&self) -> Metrics {
        self.board().metrics()
    }

    /// The delays of sampled messages.
    pub fn latencies(&self) -> Latencies {
        self.board().latencies()
    }

    /// The latest steps of the engine, oldest first.
    pub fn records(&self) -> Vec<Recorded> {
        self.board().records()
    }

    /// The links that the node sends by, in row order.
    pub fn links(&self) -> Vec<LinkRow> {
        self.board().links()
    }

    /// The counts of transfer modes.
    pub fn modes(&self) -> ModeFigures {
        self.board().modes()
    }

    /// The latest decisions that differ from the request, oldest first.
    pub fn decisions(&self) -> Vec<Decided> {
        self.board().decisions()
    }

    /// The counter status register.
    pub fn counter_status(&self) -> Status {
        std::array::from_fn(|word| self.load(COUNTER_STATUS_OFFSET + word * 8))
    }

    /// The DMA counters in use.
    pub fn counters(&self) -> Vec<CounterShown> {
        let status = self.counter_status();
        let used: Status = std::array::from_fn(|word| self.load(COUNTERS_USED_OFFSET + word * 8));
        let is_set = |words: &Status, index: usize| words[index / 64] >> (index % 64) & 1 != 0;
        let shown = |index| CounterShown {
            index,
            value: self.load(COUNTERS_OFFSET + index * 16),
            size: self.load(COUNTERS_OFFSET + index * 16 + 8),
            zero: is_set(&status, index),
        };
        (0..COUNTERS).filter(|index| is_set(&used, *index)).map(shown).collect()
    }

    fn load(&self, offset: usize) -> u64 {
        self.board().word(offset).load(Ordering::Relaxed)
    }
}
