//! The interface of a peer.

use crate::collective::Calls;
use crate::order::{Order, Over, Work};
use crate::place::Place;
use doorbell_benches::exchange::{Buffers, Carrier, Part, Section, Side};
use doorbell_benches::memory::Memory;
use doorbell_benches::stream::{Flow, Messages, Window};
use std::error::Error;

/// An error in words.
pub type Fault = Box<dyn Error>;
/// The result of a peer's call.
pub type Result<T> = std::result::Result<T, Fault>;

/// The tag of all messages. Where a peer knows tags, receivers accept no other.
pub const TAG: u64 = 7;

/// The most messages in a batch. The same as in `c/loops.h`.
pub const BATCH: usize = 64;

/// The process's role in a measurement.
#[derive(Debug)]
pub struct Setup<'a> {
    /// The order for all processes.
    pub order: &'a Order,
    /// The number of this process. Even ones send first and hold the clock.
    pub node: usize,
    /// The directory for exchanges before messages work.
    pub place: &'a Place,
}

impl Setup<'_> {
    /// The process at the other end.
    pub fn other(&self) -> usize {
        self.node ^ 1
    }

    /// The side that it plays.
    pub fn side(&self) -> Side {
        if self.node.is_multiple_of(2) { Side::Ping } else { Side::Pong }
    }

    /// Private memory for messages, the same for all peers.
    ///
    /// # Errors
    /// The system has no such memory.
    pub fn buffers(&self) -> Result<Buffers> {
        // Streams and collectives have their own buffers.
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
    /// Buffers for as many messages as the order says.
    pub fn new(order: &Order) -> Self {
        Self { window: order.window, made: None }
    }

    /// The buffers for messages of this length.
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

/// A window over a carrier whose `send` returns once it has taken the message, and which copies each received message in turn.
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

/// A transport from the viewpoint of one of the two processes at its ends.
pub trait Transport: Sized {
    /// Connects to the other process. Not timed.
    ///
    /// # Errors
    /// The requirement that is missing.
    fn open(setup: &Setup<'_>) -> Result<Self>;

    /// The version of the peer.
    fn version(&self) -> String;

    /// Plays a part in a section of messages, loans or puts, according to the order given to [`open`](Self::open).
    ///
    /// # Errors
    /// Those of the peer.
    fn play(&mut self, part: Part<'_>, section: Section) -> Result<()>;

    /// Pours or drains the messages of a section in batches.
    ///
    /// # Errors
    /// Those of the peer.
    fn batches(&mut self, side: Side, section: Section) -> Result<()> {
        Err(format!("this peer has no batches, for {side:?} of {} messages", section.count).into())
    }

    /// Takes part in a stream of messages of this length.
    ///
    /// # Errors
    /// Those of the peer.
    fn stream(&mut self, bytes: usize, flow: Flow) -> Result<()>;

    /// The memory that a transfer in two steps reads or fills, according to the order.
    ///
    /// # Errors
    /// The peer has no such transfers.
    fn memory(&mut self) -> Result<&mut [u8]> {
        Err("this peer cannot compute during a transfer".into())
    }

    /// Starts a transfer of all of that memory.
    ///
    /// # Errors
    /// Those of the peer.
    fn start(&mut self) -> Result<()> {
        Ok(())
    }

    /// Waits until that transfer is complete.
    ///
    /// # Errors
    /// Those of the peer.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    /// Takes part in a section of collectives. Returns the ticks of the timed calls.
    ///
    /// # Errors
    /// Those of the peer, or a wrong result.
    fn collect(&mut self, calls: Calls) -> Result<u64> {
        Err(unknown("this peer", calls.work, Over::Memory))
    }
}

/// The error for work that a peer does not support.
pub fn unknown(peer: &str, work: Work, over: Over) -> Fault {
    format!("{peer} does not support {work:?} over {over:?}").into()
}

/// Polls until `look` returns something. With more processes than processors, yields in between.
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

/// As [`until`], with a pause after each look that finds nothing: for looks at a word. Most peers look for longer, and take longer with a
/// pause.
///
/// # Errors
/// Those of `look`.
#[inline(always)]
pub fn until_pausing<T, E>(
    crowded: bool,
    mut look: impl FnMut() -> std::result::Result<Option<T>, E>,
) -> std::result::Result<T, E> {
    until(crowded, || {
        let found = look()?;
        if found.is_none() {
            std::hint::spin_loop();
        }
        Ok(found)
    })
}

/// The number of looks before a yield. The same as in `c/loops.h`.
const LOOKS: u32 = 64;
