//! Places in the memory of one run, and how a vector gets there.

use std::ops::Range;

/// Memory that a run reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// The caller's input, which is never written.
    Input,
    /// The caller's output.
    Output,
    /// Memory of the run, used by the schedule.
    Scratch,
    /// Memory of the run for vectors that come and are combined afterwards.
    Coming,
}

/// How a vector `x` gets into a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It is stored there.
    Store,
    /// `into = into ⊕ x`
    After,
    /// `into = x ⊕ into`
    Before,
}

/// A part of a region. A schedule counts in elements; everything else counts in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub region: Region,
    pub range: Range<usize>,
}

impl Place {
    pub fn input(range: Range<usize>) -> Self {
        Self { region: Region::Input, range }
    }

    pub fn output(range: Range<usize>) -> Self {
        Self { region: Region::Output, range }
    }

    pub fn scratch(range: Range<usize>) -> Self {
        Self { region: Region::Scratch, range }
    }

    pub fn len(&self) -> usize {
        self.range.len()
    }

    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The same place in bytes, if it is given in elements of this size.
    pub fn in_bytes(&self, element: usize) -> Self {
        Self { region: self.region, range: self.range.start * element..self.range.end * element }
    }
}
