//! What a peer has to be able to do.

use crate::collective::Calls;
use crate::order::{Order, Over, Work};
use crate::place::Place;
use doorbell_benches::exchange::{Buffers, Carrier, Part, Section, Side};
use doorbell_benches::memory::Memory;
use doorbell_benches::stream::{Flow, Messages, Window};
use std::error::Error;

/// What went wrong, in words.
pub type Fault = Box<dyn Error>;
/// What a peer answers.
pub type Result<T> = std::result::Result<T, Fault>;

/// The tag of all messages. Receivers accept no other, where a peer knows tags.
pub const TAG: u64 = 7;

/// Who this process is, and with whom it speaks.
#[derive(Debug)]
pub struct Setup<'a> {
    /// What all do.
    pub order: &'a Order,
    /// Which process this is. Even ones send first and hold the clock.
    pub node: usize,
    /// Where processes meet before they can send messages.
    pub place: &'a Place,
}

impl Setup<'_> {
    /// The process at the other end.
    pub fn other(&self) -> usize {
        self.node ^ 1
    }

    /// Which part it plays.
    pub fn side(&self) -> Side {
        if self.node.is_multiple_of(2) { Side::Ping } else { Side::Pong }
    }

    /// Private memory for messages, the same for all peers.
    ///
    /// # Errors
    /// The system has no such memory.
    pub fn buffers(&self) -> Result<Buffers> {
        // Streams have theirs, and collectives.
        let work = self.order.work;
        let bytes = if work.is_stream() || work.is_collective() { 0 } else { self.order.bytes() };
        Ok(Buffers::private(bytes)?)
    }
}

/// Private memory for a window of messages, kept from one stream to the next of the same size.
#[derive(Debug)]
pub struct StreamBuffers {
    window: usize,
    made: Option<(usize, Messages)>,
}

impl StreamBuffers {
    /// For as many messages as the order says.
    pub fn new(order: &Order) -> Self {
        Self { window: order.window, made: None }
    }

    /// For messages of so many bytes.
    ///
    /// # Errors
    /// The system has no such memory.
    pub fn of(&mut self, bytes: usize) -> Result<&mut Messages> {
        let messages = match self.made.take() {
            Some((room, messages)) if room == bytes => messages,
            _ => Messages::new(self.window, || Memory::private(bytes))?,
        };
        Ok(&mut self.made.insert((bytes, messages)).1)
    }
}

/// A window of messages over a carrier that has taken a message when `send` returns, and copies one when its turn has come.
#[derive(Debug)]
pub struct AtOnce<C>(pub C);

impl<C: Carrier> Window for AtOnce<C> {
    type Error = C::Error;
    type Sent = Memory;
    type Received = Memory;

    #[inline(always)]
    fn start_send(&mut self, message: Memory) -> std::result::Result<Memory, C::Error> {
        self.0.send(&message)?;
        Ok(message)
    }

    #[inline(always)]
    fn finish_send(&mut self, sent: Memory) -> std::result::Result<Memory, C::Error> {
        Ok(sent)
    }

    #[inline(always)]
    fn start_receive(&mut self, into: Memory) -> std::result::Result<Memory, C::Error> {
        Ok(into)
    }

    #[inline(always)]
    fn finish_receive(&mut self, mut received: Memory) -> std::result::Result<Memory, C::Error> {
        self.0.receive(&mut received)?;
        Ok(received)
    }
}

/// A way to send messages, as one of the two processes at its ends sees it.
pub trait Transport: Sized {
    /// Meets the other process; nothing of this is timed.
    ///
    /// # Errors
    /// What is missing.
    fn open(setup: &Setup<'_>) -> Result<Self>;

    /// The version of the peer.
    fn version(&self) -> String;

    /// Plays a part in a section of messages, loans or puts, as the order of [`open`](Self::open) says.
    ///
    /// # Errors
    /// Those of the peer.
    fn play(&mut self, part: Part<'_>, section: Section) -> Result<()>;

    /// Takes part in a stream of messages of so many bytes.
    ///
    /// # Errors
    /// Those of the peer.
    fn stream(&mut self, bytes: usize, flow: Flow) -> Result<()>;

    /// Takes part in a section of collectives, and tells the ticks of those that count.
    ///
    /// # Errors
    /// Those of the peer; a result is wrong.
    fn collect(&mut self, calls: Calls) -> Result<u64> {
        Err(unknown("this peer", calls.work, Over::Memory))
    }
}

/// What to say of work that a peer does not know.
pub fn unknown(peer: &str, work: Work, over: Over) -> Fault {
    format!("{peer} has nothing for {work:?} over {over:?}").into()
}

/// Waits, by looking, until something is there. With more processes than processors others get the processor in between.
///
/// # Errors
/// Those of `look`.
#[inline(always)]
pub fn until<T, E>(crowded: bool, mut look: impl FnMut() -> std::result::Result<Option<T>, E>) -> std::result::Result<T, E> {
    loop {
        for _ in 0..LOOKS {
            if let Some(found) = look()? {
                return Ok(found);
            }
        }
        if crowded {
            std::thread::yield_now();
        }
    }
}

/// Looks before others get the processor. The same in `c/loops.h`.
const LOOKS: u32 = 64;
