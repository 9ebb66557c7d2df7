//! Carries out one schedule over the streams of a team.

use super::memory::{LINE, Memory, Region, Span};
use super::schedule::{Place, Schedule, Step};
use super::streams::{Call, Failure, Streams};
use std::ops::Range;

/// Combines elements: what lies in the first bytes with the second, which stand on the left if the flag is set. Both have the same whole number of
/// elements, and are aligned for them.
pub type Fold = Box<dyn Fn(&mut [u8], &[u8], bool) + Send>;

/// What comes to be folded when a round has ended.
struct Waiting {
    into: Span,
    coming: Span,
    left: bool,
}

/// One operation of one member, under way.
pub struct Run {
    schedule: Schedule,
    call: Call,
    memory: Memory,
    /// Bytes of an element.
    element: usize,
    fold: Fold,
    /// The round that begins next.
    round: usize,
    has_begun: bool,
    folds: Vec<Waiting>,
}

impl Run {
    /// A run of a schedule that was made for elements of `element` bytes, from `input` to `output`. Elements need an alignment of at most 16, and of
    /// which their size is a multiple.
    ///
    /// # Safety
    /// Until the run is dropped, the elements of the schedule's input stay readable from `input` on and nobody else writes to them, and those of
    /// its output stay readable and writable from `output` on and nobody else touches them; all their bytes are initialised, and whatever
    /// bytes other members send make valid elements for `fold`. Both pointers are aligned for elements; where there are none a pointer may be
    /// anything. The two may begin at the same place only where the operation allows it, if both pointers may be used for both; else they
    /// don't overlap.
    pub unsafe fn new(schedule: Schedule, call: Call, element: usize, input: *const u8, output: *mut u8, fold: Fold) -> Self {
        let (input_len, output_len) = (schedule.input * element, schedule.output * element);
        // SAFETY: as our caller says; the memory goes with the run.
        let memory = unsafe { Memory::new(input, input_len, output, output_len, schedule.scratch * element) };
        Self { schedule, call, memory, element, fold, round: 0, has_begun: false, folds: Vec::new() }
    }

    /// What the streams read from and write to.
    pub fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Goes on as far as it can with what has come and was sent. True when it is over.
    ///
    /// # Errors
    /// Members called different things, or a run before this was given up.
    pub fn advance(&mut self, streams: &mut Streams) -> Result<bool, Failure> {
        if !self.has_begun {
            self.has_begun = true;
            streams.begin(self.call);
        }
        loop {
            if let Some(failure) = streams.failure() {
                return Err(failure);
            }
            if !streams.is_idle() {
                return Ok(false);
            }
            for Waiting { into, coming, left } in self.folds.drain(..) {
                self.memory.fold(&into, &coming, |into, from| (self.fold)(into, from, left));
            }
            if self.round == self.schedule.rounds.len() {
                return Ok(true);
            }
            self.begin_round(streams);
            self.round += 1;
        }
    }

    /// Local steps take place; all others are told to the streams.
    fn begin_round(&mut self, streams: &mut Streams) {
        let steps = &self.schedule.rounds[self.round];
        let bytes = |range: &Range<usize>| range.start * self.element..range.end * self.element;
        let span = |place: &Place| match place {
            Place::Input(range) => Span { region: Region::Input, bytes: bytes(range) },
            Place::Output(range) => Span { region: Region::Output, bytes: bytes(range) },
            Place::Scratch(range) => Span { region: Region::Scratch, bytes: bytes(range) },
        };
        let mut end = 0;
        for step in steps {
            match step {
                Step::Copy { from, into } => self.memory.copy(&span(from), &span(into)),
                Step::Combine { from, into } => {
                    self.memory.fold(&span(into), &span(from), |into, from| (self.fold)(into, from, false));
                }
                Step::Fold { into, left, .. } => {
                    let into = span(into);
                    let coming = Span { region: Region::Coming, bytes: end..end + into.bytes.len() };
                    end = coming.bytes.end.next_multiple_of(LINE);
                    self.folds.push(Waiting { into, coming, left: *left });
                }
                Step::Send { .. } | Step::Receive { .. } => (),
            }
        }
        self.memory.expect(end);
        let mut folds = self.folds.iter();
        for step in steps {
            match step {
                Step::Send { to, from } => streams.send(*to, span(from)),
                Step::Receive { from, into } => streams.expect(&mut self.memory, *from, span(into)),
                Step::Fold { from, .. } => {
                    if let Some(fold) = folds.next() {
                        streams.expect(&mut self.memory, *from, fold.coming.clone());
                    }
                }
                Step::Copy { .. } | Step::Combine { .. } => (),
            }
        }
    }
}
