//! One side of a pair tells the other that a stream has ended.

use super::mapping::PairMemory;
use super::patience::{Patience, Stopped};
use super::ring::Line;
use std::sync::atomic::Ordering::*;

/// One side of the word that announces the end of a stream, for the floor and for the driver. For each stream one side announces,
/// and the other waits.
#[derive(Debug)]
pub struct Finish<'m> {
    word: &'m Line,
    streams: u64,
    patience: &'m Patience,
}

impl<'m> Finish<'m> {
    /// Each side must be created once during the life of a mapping.
    pub fn new(memory: &PairMemory<'m>, patience: &'m Patience) -> Self {
        Self { word: &memory.words.drained, streams: 0, patience }
    }

    /// Announces that this side has received or sent the whole stream.
    pub fn tell(&mut self) {
        self.streams += 1;
        self.word.0.store(self.streams, Release);
    }

    /// Whether the other side has announced the end of the awaited stream.
    pub fn is_told(&self) -> bool {
        self.word.0.load(Acquire) == self.streams + 1
    }

    /// Waits until the other side has announced the end.
    ///
    /// # Errors
    /// It was told to stop.
    pub fn wait(&mut self) -> Result<(), Stopped> {
        self.streams += 1;
        self.patience.until(|| self.word.0.load(Acquire) == self.streams)
    }
}
