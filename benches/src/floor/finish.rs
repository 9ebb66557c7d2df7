//! How one side of a pair learns that the other is through with a stream.

use super::mapping::PairMemory;
use super::patience::{Patience, Stopped};
use super::ring::Line;
use std::sync::atomic::Ordering::*;

/// One side of the word that says that a stream is through. It serves the floor and the driver alike. Of each stream one side tells,
/// and the other waits.
#[derive(Debug)]
pub struct Finish<'m> {
    word: &'m Line,
    streams: u64,
    patience: &'m Patience,
}

impl<'m> Finish<'m> {
    /// Each side is made once in the life of a mapping.
    pub fn new(memory: &PairMemory<'m>, patience: &'m Patience) -> Self {
        Self { word: &memory.words.drained, streams: 0, patience }
    }

    /// Says that this side received the stream whole, or sent it.
    pub fn tell(&mut self) {
        self.streams += 1;
        self.word.0.store(self.streams, Release);
    }

    /// Whether the other side has said so, of the stream that is waited for next.
    pub fn is_told(&self) -> bool {
        self.word.0.load(Acquire) == self.streams + 1
    }

    /// Waits until the other side has said so.
    ///
    /// # Errors
    /// It was told to stop.
    pub fn wait(&mut self) -> Result<(), Stopped> {
        self.streams += 1;
        self.patience.until(|| self.word.0.load(Acquire) == self.streams)
    }
}
