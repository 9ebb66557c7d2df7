//! Carries out one schedule over the streams of a team.

use super::memory::{LINE, Memory, Region, Span};
use super::schedule::{Place, Schedule, Step};
use super::streams::{Call, Failure, Streams};

/// Combines elements: what lies in the first bytes with the second, which stand on the left if the flag is set. Both have the same whole number of
/// elements, and are aligned for them.
pub type Fold = Box<dyn Fn(&mut [u8], &[u8], bool) + Send>;

/// What a run is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits for the streams.
    Waits,
    /// The next is to [`fold`](Run::fold): nothing is to be sent or to come meanwhile, so nobody needs its memory.
    Folds,
    /// It has its result.
    Over,
}

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
    /// What came is folded, and the local steps of the next round are done.
    has_folded: bool,
    folds: Vec<Waiting>,
    /// Bytes that come to be folded in the next round.
    coming: usize,
}

impl Run {
    /// A run of a schedule that was made for elements of `element` bytes, from `input` to `output`. Elements need an alignment of at most [`LINE`], of
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
        Self {
            schedule,
            call,
            memory,
            element,
            fold,
            round: 0,
            has_begun: false,
            has_folded: false,
            folds: Vec::new(),
            coming: 0,
        }
    }

    /// What the streams read from and write to.
    pub fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Goes on with what has come and was sent, up to where the application's reduction is called. That is [`fold`](Self::fold), without the streams.
    ///
    /// # Errors
    /// Members called different things, or a run before this was given up.
    pub fn step(&mut self, streams: &mut Streams) -> Result<Stage, Failure> {
        if !self.has_begun {
            self.has_begun = true;
            streams.begin(self.call);
        }
        loop {
            if let Some(failure) = streams.failure() {
                return Err(failure);
            }
            if !streams.is_idle() {
                return Ok(Stage::Waits);
            }
            if !std::mem::take(&mut self.has_folded) {
                return Ok(Stage::Folds);
            }
            if self.round == self.schedule.rounds.len() {
                return Ok(Stage::Over);
            }
            self.begin_round(streams);
            self.round += 1;
        }
    }

    /// Folds what has come, and does the local steps of the next round.
    pub fn fold(&mut self) {
        self.has_folded = true;
        for Waiting { into, coming, left } in self.folds.drain(..) {
            self.memory.fold(&into, &coming, |into, from| (self.fold)(into, from, left));
        }
        self.coming = 0;
        let Some(steps) = self.schedule.rounds.get(self.round) else { return };
        for step in steps {
            match step {
                Step::Copy { from, into } => self.memory.copy(&span(from, self.element), &span(into, self.element)),
                Step::Combine { from, into } => {
                    let (into, from) = (span(into, self.element), span(from, self.element));
                    self.memory.fold(&into, &from, |into, from| (self.fold)(into, from, false));
                }
                Step::Fold { into, left, .. } => {
                    let into = span(into, self.element);
                    let coming = Span { region: Region::Coming, bytes: self.coming..self.coming + into.bytes.len() };
                    self.coming = coming.bytes.end.next_multiple_of(LINE);
                    self.folds.push(Waiting { into, coming, left: *left });
                }
                Step::Send { .. } | Step::Receive { .. } => (),
            }
        }
    }

    /// The streams are told all that is not local.
    fn begin_round(&mut self, streams: &mut Streams) {
        self.memory.expect(self.coming);
        let mut folds = self.folds.iter();
        for step in &self.schedule.rounds[self.round] {
            match step {
                Step::Send { to, from } => streams.send(*to, span(from, self.element)),
                Step::Receive { from, into } => streams.expect(&mut self.memory, *from, span(into, self.element)),
                Step::Fold { from, .. } => {
                    if let Some(fold) = folds.next() {
                        streams.expect(&mut self.memory, *from, fold.coming.clone());
                    }
                }
                Step::Copy { .. } | Step::Combine { .. } => (),
            }
        }
    }

    /// Goes on as far as it can. True when it is over.
    #[cfg(test)]
    pub fn advance(&mut self, streams: &mut Streams) -> Result<bool, Failure> {
        loop {
            match self.step(streams)? {
                Stage::Waits => return Ok(false),
                Stage::Folds => self.fold(),
                Stage::Over => return Ok(true),
            }
        }
    }
}

/// The bytes of some elements.
fn span(place: &Place, element: usize) -> Span {
    let (region, range) = match place {
        Place::Input(range) => (Region::Input, range),
        Place::Output(range) => (Region::Output, range),
        Place::Scratch(range) => (Region::Scratch, range),
    };
    Span { region, bytes: range.start * element..range.end * element }
}
