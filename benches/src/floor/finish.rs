//! How the sender of a stream learns that all of it was received.

use super::mapping::PairMemory;
use super::patience::{Patience, Stopped};
use super::ring::Line;
use std::sync::atomic::Ordering::*;

/// One side of the word that says that a stream arrived. It serves the floor and the driver alike.
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

    /// Says that this side received the stream whole.
    pub fn tell(&mut self) {
        self.streams += 1;
        self.word.0.store(self.streams, Release);
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
