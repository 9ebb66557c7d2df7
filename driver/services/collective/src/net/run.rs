//! Carries out one schedule over the streams of a team.

use super::memory::{LINE, Memory};
use super::place::{How, Place, Region};
use super::schedule::{Schedule, Step};
use super::streams::{Call, Failure, Streams};
use crate::combine::Combine;
use crate::span::Span;

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits for the streams.
    Waits,
    /// The caller has to call [`combine`](Run::combine) next. Nothing is to be sent or to come meanwhile, so the streams do not need its memory.
    Combines,
    /// It has its result.
    Over,
}

/// A vector that comes, and is combined when its round has ended.
struct Waiting {
    coming: Place,
    into: Place,
    how: How,
}

/// One operation of one member, under way.
pub struct Run {
    schedule: Schedule,
    call: Call,
    memory: Memory,
    /// Bytes of an element.
    element: usize,
    combine: Option<Box<dyn Combine>>,
    /// The round that begins next.
    round: usize,
    has_begun: bool,
    /// The vectors that came are combined, and the local steps of the next round are done.
    has_combined: bool,
    waiting: Vec<Waiting>,
    /// Bytes that come and are combined in the next round.
    coming: usize,
}

impl Run {
    /// A run of a schedule that was made for elements of `element` bytes, from `input` to `output`. The alignment of elements is at most [`LINE`]; their
    /// size is a multiple of it. The two spans may begin at the same place only if the operation allows it; else they don't overlap.
    pub fn new(
        schedule: Schedule,
        call: Call,
        element: usize,
        (input, output): (Span, Span),
        combine: Option<Box<dyn Combine>>,
    ) -> Self {
        let memory = Memory::new(input, output, schedule.scratch * element);
        Self {
            schedule,
            call,
            memory,
            element,
            combine,
            round: 0,
            has_begun: false,
            has_combined: false,
            waiting: Vec::new(),
            coming: 0,
        }
    }

    /// The memory that the streams read and write.
    pub fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Goes on as far as messages have come and were sent, up to the point where the application's reduction has to run. For that the caller calls
    /// [`combine`](Self::combine), without the streams.
    ///
    /// # Errors
    /// Members called different operations, or an earlier run was given up.
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
            if !std::mem::take(&mut self.has_combined) {
                return Ok(Stage::Combines);
            }
            if self.round == self.schedule.rounds.len() {
                return Ok(Stage::Over);
            }
            self.begin_round(streams);
            self.round += 1;
        }
    }

    /// Combines the vectors that came, and does the local steps of the next round.
    pub fn combine(&mut self) {
        self.has_combined = true;
        let combine = self.combine.as_deref();
        for Waiting { coming, into, how } in self.waiting.drain(..) {
            self.memory.apply(&coming, &into, how, combine);
        }
        self.coming = 0;
        let Some(steps) = self.schedule.rounds.get(self.round) else { return };
        for step in steps {
            match step {
                Step::Local { from, into, how } => {
                    self.memory.apply(&from.in_bytes(self.element), &into.in_bytes(self.element), *how, combine);
                }
                Step::Receive { into, how, .. } if *how != How::Store => {
                    let into = into.in_bytes(self.element);
                    let coming = Place { region: Region::Coming, range: self.coming..self.coming + into.len() };
                    self.coming = coming.range.end.next_multiple_of(LINE);
                    self.waiting.push(Waiting { coming, into, how: *how });
                }
                Step::Send { .. } | Step::Receive { .. } => (),
            }
        }
    }

    /// Hands the streams all steps that are not local.
    fn begin_round(&mut self, streams: &mut Streams) {
        self.memory.expect(self.coming);
        let mut waiting = self.waiting.iter();
        for step in &self.schedule.rounds[self.round] {
            match step {
                Step::Send { to, from } => streams.send(*to, from.in_bytes(self.element)),
                Step::Receive { from, into, how: How::Store } => {
                    streams.expect(&mut self.memory, *from, into.in_bytes(self.element));
                }
                Step::Receive { from, .. } => {
                    if let Some(waiting) = waiting.next() {
                        streams.expect(&mut self.memory, *from, waiting.coming.clone());
                    }
                }
                Step::Local { .. } => (),
            }
        }
    }
}
