//! Streams: several messages under way at once. The side that works on a buffer owns it.

use crate::memory::Memory;
use crate::touch;
use std::collections::VecDeque;

/// The buffers of one process: for each direction as many as messages may be under way.
#[derive(Debug)]
pub struct Messages {
    sources: Vec<Memory>,
    targets: Vec<Memory>,
    window: usize,
}

impl Messages {
    /// Buffers for `window` messages in each direction, each made by `make`.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn new<E>(window: usize, mut make: impl FnMut() -> Result<Memory, E>) -> Result<Self, E> {
        let mut room = || (0..window).map(|_| make()).collect::<Result<Vec<_>, _>>();
        Ok(Self { sources: room()?, targets: room()?, window })
    }
}

/// A carrier of streams between two processes, from the viewpoint of one of them. Operations complete in the order of their
/// start.
pub trait Window {
    /// Why a call failed.
    type Error;
    /// An outgoing message.
    type Sent;
    /// A buffer that waits for a message.
    type Received;
    /// Begins to send a message.
    fn start_send(&mut self, message: Memory) -> Result<Self::Sent, Self::Error>;
    /// Waits until the buffer of the oldest message may be written again.
    fn finish_send(&mut self, sent: Self::Sent) -> Result<Memory, Self::Error>;
    /// Offers a buffer for a message of its length.
    fn start_receive(&mut self, into: Memory) -> Result<Self::Received, Self::Error>;
    /// Waits until the message for the oldest buffer has arrived.
    fn finish_receive(&mut self, received: Self::Received) -> Result<Memory, Self::Error>;
}

/// The part of one process in a section that both sides agreed on.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Messages to send.
    pub sends: usize,
    /// Messages to receive.
    pub receives: usize,
    /// Whether every line is written before it is sent, and read after it was received.
    pub touched: bool,
}

/// Sends and receives in turns, with as many messages under way as there are buffers.
///
/// Two processes that both do this cannot deadlock: each waits only for a step that the other did in an earlier turn or does
/// next.
///
/// # Errors
/// Those of the window. The buffers under way are then lost.
pub fn run<W: Window>(window: &mut W, flow: Flow, messages: &mut Messages) -> Result<(), W::Error> {
    let Messages { sources, targets, window: most } = messages;
    let (mut sending, mut receiving) = (VecDeque::with_capacity(*most), VecDeque::with_capacity(*most));
    for into in targets.drain(..(*most).min(flow.receives)) {
        receiving.push_back(window.start_receive(into)?);
    }
    for turn in 0..flow.sends.max(flow.receives) {
        if turn < flow.sends {
            let free = match sources.pop() {
                Some(message) => Some(message),
                None => sending.pop_front().map(|sent| window.finish_send(sent)).transpose()?,
            };
            if let Some(mut message) = free {
                if flow.touched {
                    touch::write(message.as_mut(), turn as u64);
                }
                sending.push_back(window.start_send(message)?);
            }
        }
        if let Some(received) = receiving.pop_front() {
            let message = window.finish_receive(received)?;
            if flow.touched {
                touch::read(message.as_ref());
            }
            if turn + *most < flow.receives {
                receiving.push_back(window.start_receive(message)?);
            } else {
                targets.push(message);
            }
        }
    }
    for sent in sending {
        sources.push(window.finish_send(sent)?);
    }
    Ok(())
}
