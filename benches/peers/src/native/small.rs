//! Small messages of Doorbell that are read where they lie: one at a time, and in batches.

use crate::batch::Batches;
use crate::transport::{Result, TAG};
use doorbell::{Envelope, Error, Match, Payload, Peer};
use doorbell_benches::exchange::Carrier;
use doorbell_benches::memory::Memory;
use doorbell_benches::touch;

/// The bytes of a message that its sender does not write meanwhile.
#[inline(always)]
fn bytes<'a>(payload: &'a Payload<'_>) -> &'a [u8] {
    // SAFETY: the other process does not write a message that it has sent until this process has received it.
    unsafe { std::slice::from_raw_parts(payload.as_ptr(), payload.len()) }
}

/// Receives with a function that reads the message. The buffers of the exchange stay untouched.
pub struct Handled<'a> {
    /// The other process.
    pub peer: &'a Peer,
    /// The message to send.
    pub source: &'a mut Memory,
    /// Whether lines are written and read.
    pub touched: bool,
    /// The number of messages sent so far.
    pub count: u64,
}

impl Carrier for Handled<'_> {
    type Error = Error;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> std::result::Result<(), Error> {
        let source = &mut self.source[..message.len()];
        if self.touched {
            self.count += 1;
            touch::write(source, self.count);
        }
        self.peer.send(TAG, source)
    }

    #[inline(always)]
    fn receive(&mut self, _: &mut [u8]) -> std::result::Result<(), Error> {
        let touched = self.touched;
        let read = |_: &Envelope, payload: Payload<'_>| {
            if touched {
                touch::read(bytes(&payload));
            }
        };
        self.peer.recv_many(Match::any().tag(TAG), 1, read).map(drop)
    }
}

/// Sends and receives several messages by one call.
pub struct Several<'a> {
    /// The other process.
    pub peer: &'a Peer,
    /// Room for a batch of messages, one after another.
    pub source: &'a mut Memory,
}

impl Batches for Several<'_> {
    const IN_PLACE: bool = false;

    #[inline(always)]
    fn send(&mut self, bytes: usize, count: usize, write: impl FnMut(&mut [u8])) -> Result<()> {
        self.source[..bytes * count].chunks_exact_mut(bytes).for_each(write);
        Ok(self.peer.send_chunks(TAG, bytes, &self.source[..bytes * count])?)
    }

    #[inline(always)]
    fn receive(&mut self, limit: usize, mut read: impl FnMut(&[u8])) -> Result<usize> {
        let each = |_: &Envelope, payload: Payload<'_>| read(bytes(&payload));
        Ok(self.peer.recv_many(Match::any().tag(TAG), limit, each)?)
    }
}
