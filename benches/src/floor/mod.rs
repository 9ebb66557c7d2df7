//! The floor: the best that any transport between two processes of this machine can reach.
//!
//! - `ring`: a message of up to 48 bytes travels in one cache line together with the sequence word; one way there, one back.
//! - `copy`: longer messages are copied in and out, and a word in another line announces them. Streams use several places. Long
//!   messages are also sent in chunks, so that both copies overlap.
//! - `pull`: the kernel copies from the sender's memory for the receiver.
//! - `udp`: datagrams by the simplest calls: one by one, several together, and in runs that the kernel cuts and gathers.
//! - `swaps`, `mutex`: the minimum that locking needs, and the mutex of the C library.
//! - `counter`: the simplest barrier.
//! - `hop`: the current travel time of a cache line between the processors, and whether they share a core.
//!
//! There are no envelopes, no tags and no checks, and no process ever sleeps. The loops match those of C programs that measure
//! the same, word for word, so that the two can be compared. Both processes map one nameless piece of memory ([`Mapping`]),
//! synchronise through its [`Gate`], and talk through a [`Floor`] each.

mod copy;
mod counter;
mod finish;
mod gate;
mod hop;
mod mapping;
mod mutex;
mod patience;
mod pull;
mod ring;
mod swaps;
mod udp;

pub use counter::CounterBarrier;
pub use finish::Finish;
pub use gate::Gate;
pub use hop::{Hop, HopProbe};
pub use mapping::{Common, Mapping, PairMemory, Shape};
pub use mutex::RobustMutex;
pub use patience::{Patience, Stopped};
pub use pull::PullError;
pub use ring::Line;
pub use swaps::PrivateWord;
pub use udp::{Arrived, DATAGRAM_MOST, Datagrams, UdpEnd, UdpError, Way};

use crate::exchange::{self, Buffers, Part, Section, Side};
use crate::stream::{self, Flow, Messages};
use copy::{Chunks, InOut, Slots};
use nix::errno::Errno;
use pull::{Pull, Pulling};
use ring::Ring;

/// The longest message that shares a line with its sequence word.
pub const IN_LINE: usize = ring::WORDS_MAX * 8;

/// One process's end of the floor.
#[derive(Debug)]
pub struct Floor<'m> {
    ring: Ring<'m, 0>,
    copy: InOut<'m>,
    chunks: Chunks<'m>,
    slots: Slots<'m>,
    pull: Pull<'m>,
}

impl<'m> Floor<'m> {
    /// The floor between the two processes of a pair. Each side must be created once during the life of a mapping.
    pub fn new(memory: &PairMemory<'m>, side: Side, patience: &'m Patience) -> Self {
        let (out, back) = match side {
            Side::Ping => (memory.there, memory.back),
            Side::Pong => (memory.back, memory.there),
        };
        Self {
            ring: Ring::new(out.ring, back.ring, patience),
            copy: InOut::new(out.channel, back.channel, patience),
            chunks: Chunks::new(out.channel, back.channel, patience),
            slots: Slots::new(out.channel, back.channel, patience),
            pull: Pull::new(memory, side, patience),
        }
    }

    /// Plays a part in a section, by the cheapest method for messages of this size.
    ///
    /// # Errors
    /// It was told to stop.
    pub fn play(&mut self, part: Part<'_>, section: Section, buffers: &mut Buffers) -> Result<(), Stopped> {
        match (section.bytes.div_ceil(8), &part) {
            (0, _) => self.in_line::<0>(part, section, buffers),
            (1, _) => self.in_line::<1>(part, section, buffers),
            (2, _) => self.in_line::<2>(part, section, buffers),
            (3, _) => self.in_line::<3>(part, section, buffers),
            (4, _) => self.in_line::<4>(part, section, buffers),
            (5, _) => self.in_line::<5>(part, section, buffers),
            (6, _) => self.in_line::<6>(part, section, buffers),
            (_, Part::Ping(_) | Part::Pong) => {
                self.copy = exchange::play(self.copy, part, section, buffers)?;
                Ok(())
            }
            (_, Part::Pour | Part::Drain) => {
                self.slots = exchange::play(self.slots.laid_out_for(section.bytes), part, section, buffers)?;
                Ok(())
            }
        }
    }

    /// Plays a part in a section of messages back and forth that are copied in and out in chunks of this length.
    ///
    /// # Errors
    /// It was told to stop.
    pub fn play_chunked(&mut self, chunk: usize, part: Part<'_>, section: Section, buffers: &mut Buffers) -> Result<(), Stopped> {
        self.chunks = exchange::play(self.chunks.of_bytes(chunk), part, section, buffers)?;
        Ok(())
    }

    /// Takes part in a stream of messages of `bytes` that are copied in and out.
    ///
    /// # Errors
    /// It was told to stop.
    pub fn stream_copied(&mut self, bytes: usize, flow: Flow, messages: &mut Messages) -> Result<(), Stopped> {
        self.slots = self.slots.laid_out_for(bytes);
        stream::run(&mut self.slots, flow, messages)
    }

    /// Takes part in a stream of messages that the receiver pulls out of the sender's memory.
    ///
    /// # Errors
    /// It was told to stop, or the kernel refuses a call that it allowed to [`may_pull`](Self::may_pull).
    pub fn stream_pulled(&mut self, flow: Flow, messages: &mut Messages) -> Result<(), PullError> {
        let mut pulling = Pulling { pull: &mut self.pull, ring: self.ring.of_words() };
        stream::run(&mut pulling, flow, messages)?;
        self.ring = pulling.ring.of_words();
        Ok(())
    }

    /// The reason why the kernel refuses to copy between the two processes, if it does. Both call this at once, and only once.
    ///
    /// # Errors
    /// It was told to stop.
    pub fn may_pull(&self) -> Result<Option<Errno>, Stopped> {
        self.pull.probe()
    }

    fn in_line<const WORDS: usize>(&mut self, part: Part<'_>, section: Section, buffers: &mut Buffers) -> Result<(), Stopped> {
        // A line moves as a whole, and so do its words.
        let section = Section { bytes: WORDS * 8, ..section };
        self.ring = exchange::play(self.ring.of_words::<WORDS>(), part, section, buffers)?.of_words();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
