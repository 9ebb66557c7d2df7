//! A private copy of another node's board.

use super::Board;
use crate::layout::{BOARD_BYTES, HeaderFacts, HeaderFault, SegmentHeader, SegmentKind};
use crate::segment::Segment;
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

    /// What it shows.
    pub fn board(&self) -> Board<'_> {
        // SAFETY: page-aligned, BOARD_BYTES long at least (checked), and kept mapped by `self`; nothing is written.
        unsafe { Board::at(self.segment.ptr(), self.segment.len()) }
    }

    /// The owner of the board.
    pub fn node(&self) -> NodeId {
        self.facts.node
    }

    /// The incarnation of that node.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.facts.incarnation)
    }
}
