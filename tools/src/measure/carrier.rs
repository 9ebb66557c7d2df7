//! The driver as a carrier of messages: through a `Peer`, through a `Node` that threads share, or on loan.

use super::plan::Arrival;
use crate::experiment::Trouble;
use doorbell::mode::ModeRequest;
use doorbell::zerocopy::FromBytes;
use doorbell::{Error, KEY_BYTES, Key, Match, Node, NodeId, Peer, ReadWrite, Recipient, Region, Request};
use doorbell_benches::exchange::Carrier;
use doorbell_benches::floor::{Patience, PullError, Stopped, UdpError};
use doorbell_benches::memory::Memory;
use doorbell_benches::stream::Window;
use doorbell_benches::touch;
use std::time::{Duration, Instant};

const TAG: u64 = 1;
/// Of messages with keys.
const KEY: u64 = 2;

/// Why a message was not carried.
#[derive(Debug, thiserror::Error)]
pub enum CarrierError {
    /// The process was told to stop.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The driver says why.
    #[error(transparent)]
    Driver(#[from] Error),
    /// The floor's socket does not work.
    #[error(transparent)]
    Socket(UdpError),
    /// The kernel did not copy.
    #[error(transparent)]
    Kernel(nix::errno::Errno),
}

impl From<UdpError> for CarrierError {
    fn from(error: UdpError) -> Self {
        match error {
            UdpError::Stopped(stopped) => stopped.into(),
            error => Self::Socket(error),
        }
    }
}

impl From<PullError> for CarrierError {
    fn from(error: PullError) -> Self {
        match error {
            PullError::Stopped(stopped) => stopped.into(),
            PullError::Refused(error) => Self::Kernel(error),
        }
    }
}

impl From<CarrierError> for Trouble {
    fn from(error: CarrierError) -> Self {
        match error {
            CarrierError::Stopped(stopped) => stopped.into(),
            CarrierError::Driver(error) => error.into(),
            error => Self::wrong(error),
        }
    }
}

/// Through a thread's own way to the other node.
#[derive(Debug)]
pub struct ThroughPeer<'a> {
    /// The way.
    pub peer: &'a Peer,
    /// Says when to stop.
    pub patience: &'a Patience,
}

impl Carrier for ThroughPeer<'_> {
    type Error = CarrierError;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), CarrierError> {
        Ok(self.peer.send(TAG, message)?)
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<(), CarrierError> {
        if self.patience.stopped() {
            return Err(Stopped.into());
        }
        self.peer.recv(Match::any(), into)?;
        Ok(())
    }
}

/// The same, by a mode that is asked for.
#[derive(Debug)]
pub struct ByMode<'a> {
    /// The way.
    pub peer: &'a Peer,
    /// The mode.
    pub mode: ModeRequest,
    /// Says when to stop.
    pub patience: &'a Patience,
}

impl Carrier for ByMode<'_> {
    type Error = CarrierError;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), CarrierError> {
        self.peer.send_as(TAG, message, self.mode)?;
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<(), CarrierError> {
        ThroughPeer { peer: self.peer, patience: self.patience }.receive(into)
    }
}

/// Through a handle that other threads of the process have, too.
#[derive(Debug)]
pub struct ThroughNode<'a> {
    /// The handle.
    pub node: &'a Node,
    /// The node at the other end.
    pub to: NodeId,
    /// What to receive.
    pub from: Match,
    /// Says when to stop.
    pub patience: &'a Patience,
}

impl Carrier for ThroughNode<'_> {
    type Error = CarrierError;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), CarrierError> {
        Ok(self.node.send(self.to, TAG, message)?)
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<(), CarrierError> {
        if self.patience.stopped() {
            return Err(Stopped.into());
        }
        self.node.recv(self.from, into)?;
        Ok(())
    }
}

/// Where the puts of a pair land: this process's region, and the key to the other's.
#[derive(Debug)]
pub struct Landing {
    own: Region<u64>,
    theirs: Key<u64, ReadWrite>,
    sent: u64,
    received: u64,
    arrival: Arrival,
}

/// Bytes of a region into which puts go one behind the other, at least.
pub const LANDING_BYTES: usize = 64 << 10;
/// Marks the word that says that a message is there, so that no content is taken for it.
const ARRIVED: u64 = 1 << 63;

impl Landing {
    /// Exchanges keys with the other process.
    ///
    /// # Errors
    /// The other one is gone, or the process was told to stop.
    pub fn exchange(
        own: Region<u64>,
        node: &Node,
        to: NodeId,
        arrival: Arrival,
        patience: &Patience,
    ) -> Result<Self, CarrierError> {
        node.send(to, KEY, &own.key().to_bytes())?;
        let mut bytes = [0; KEY_BYTES];
        loop {
            if patience.stopped() {
                return Err(Stopped.into());
            }
            match node.recv_by(Match::from(to).tag(KEY), &mut bytes, Instant::now() + Duration::from_millis(100)) {
                Err(Error::Timeout { .. }) => {}
                received => {
                    received?;
                    break;
                }
            }
        }
        Ok(Self { own, theirs: Key::from_bytes(&bytes)?, sent: 0, received: 0, arrival })
    }

    /// The next section goes on where one ended.
    pub fn go_on(&mut self, (sent, received): (u64, u64)) {
        (self.sent, self.received) = (sent, received);
    }
}

/// By puts into the other process's region.
#[derive(Debug)]
pub struct Puts<'a> {
    node: &'a Node,
    peer: Option<&'a Peer>,
    patience: &'a Patience,
    own: &'a Region<u64>,
    key: Key<u64, ReadWrite>,
    sent: u64,
    received: u64,
    /// Words of a message.
    words: usize,
    /// Where the last word of a message goes.
    last: Key<u64, ReadWrite>,
    arrival: Arrival,
}

impl<'a> Puts<'a> {
    /// For messages of so many bytes, a multiple of eight.
    pub fn new(node: &'a Node, peer: Option<&'a Peer>, landing: &'a Landing, bytes: usize, patience: &'a Patience) -> Self {
        let Landing { own, theirs, sent, received, arrival } = landing;
        let words = (bytes / size_of::<u64>()).max(1);
        let last = theirs.at(words - 1);
        Self { node, peer, patience, own, key: *theirs, sent: *sent, received: *received, words, last, arrival: *arrival }
    }

    /// How many messages went out and came in, in all.
    pub fn counts(&self) -> (u64, u64) {
        (self.sent, self.received)
    }

    #[inline(always)]
    fn put(&self, words: &[u64], to: Key<u64, ReadWrite>) -> Result<(), Error> {
        match self.peer {
            Some(peer) => peer.put(words, to),
            None => self.node.put(words, to),
        }
    }

    fn flush(&self) -> Result<(), Error> {
        match self.peer {
            Some(peer) => peer.flush(),
            None => self.node.flush(),
        }
    }
}

/// A message as words. Buffers begin at a page, and sizes are multiples of eight.
#[inline(always)]
fn words(message: &[u8]) -> &[u64] {
    <[u64]>::ref_from_bytes(message).unwrap_or_default()
}

impl Carrier for Puts<'_> {
    type Error = CarrierError;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), CarrierError> {
        self.sent += 1;
        if self.words > 1 {
            self.put(&words(message)[..self.words - 1], self.key)?;
            // Whoever sees the last word sees the others.
            self.flush()?;
        }
        Ok(self.put(&[ARRIVED | self.sent], self.last)?)
    }

    /// What arrives lies in the region already, of which `into` is the beginning.
    #[inline(always)]
    fn receive(&mut self, _into: &mut [u8]) -> Result<(), CarrierError> {
        self.received += 1;
        let (own, at, expected) = (self.own, self.words - 1, ARRIVED | self.received);
        let mut word = [0];
        if self.arrival != Arrival::Mapped {
            loop {
                self.arrival.help(self.node)?;
                if own.read(at, &mut word).is_ok() && word[0] == expected {
                    return Ok(());
                }
                if self.patience.stopped() {
                    return Err(Stopped.into());
                }
            }
        }
        Ok(self.patience.until(|| own.read(at, &mut word).is_ok() && word[0] == expected)?)
    }
}

/// Puts one behind the other, of which nobody is told.
#[derive(Debug)]
pub struct PutStream<'a> {
    puts: Puts<'a>,
    at: usize,
    /// Words of the region, as far as whole messages fit.
    room: usize,
}

impl<'a> PutStream<'a> {
    /// Through these.
    pub fn new(puts: Puts<'a>) -> Self {
        let room = puts.key.len() / puts.words * puts.words;
        Self { puts, at: 0, room }
    }

    /// Returns when all that was put is where it belongs.
    ///
    /// # Errors
    /// The other process is gone.
    pub fn finish(self) -> Result<(), CarrierError> {
        Ok(self.puts.flush()?)
    }
}

impl Carrier for PutStream<'_> {
    type Error = CarrierError;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), CarrierError> {
        self.puts.put(words(message), self.puts.key.at(self.at))?;
        self.at += self.puts.words;
        if self.at >= self.room {
            self.at = 0;
            if self.puts.patience.stopped() {
                return Err(Stopped.into());
            }
        }
        Ok(())
    }

    /// Nothing is there to be received.
    #[inline(always)]
    fn receive(&mut self, _into: &mut [u8]) -> Result<(), CarrierError> {
        Ok(())
    }
}

/// Messages that are written where they are read: the buffers of the exchange stay as they are, and what is to be touched is
/// touched here.
#[derive(Debug)]
pub struct OnLoan<'a> {
    /// The node at this end.
    pub node: &'a Node,
    /// Whom they are sent to.
    pub to: Recipient<'a>,
    /// Whether every line is written before it is sent, and read after it was received.
    pub touched: bool,
    /// The number of the message.
    pub count: u64,
    /// Says when to stop.
    pub patience: &'a Patience,
}

impl Carrier for OnLoan<'_> {
    type Error = CarrierError;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), CarrierError> {
        let mut loan = self.node.loan_bytes(message.len())?;
        if self.touched {
            self.count += 1;
            touch::write(&mut loan, self.count);
        }
        Ok(loan.send(self.to, TAG)?)
    }

    #[inline(always)]
    fn receive(&mut self, _: &mut [u8]) -> Result<(), CarrierError> {
        if self.patience.stopped() {
            return Err(Stopped.into());
        }
        let taken = self.node.take_bytes(Match::any())?;
        if self.touched {
            // SAFETY: the other process writes no loan that it has sent.
            touch::read(unsafe { taken.as_slice() });
        }
        Ok(())
    }
}

/// Requests that own their buffers, several at once.
#[derive(Debug)]
pub struct Requests<'a> {
    /// The node at this end.
    pub node: &'a Node,
    /// The thread's own way, if there is one.
    pub peer: Option<&'a Peer>,
    /// The node at the other end.
    pub to: NodeId,
    /// Says when to stop.
    pub patience: &'a Patience,
}

impl Requests<'_> {
    fn finish(&self, request: Request<Memory>) -> Result<Memory, CarrierError> {
        if self.patience.stopped() {
            return Err(Stopped.into());
        }
        let completion = request.wait();
        completion.result?;
        Ok(completion.buffer)
    }
}

impl Window for Requests<'_> {
    type Error = CarrierError;
    type Sent = Request<Memory>;
    type Received = Request<Memory>;

    #[inline(always)]
    fn start_send(&mut self, message: Memory) -> Result<Request<Memory>, CarrierError> {
        Ok(match self.peer {
            Some(peer) => peer.start_send(TAG, message)?,
            None => self.node.start_send(self.to, TAG, message)?,
        })
    }

    #[inline(always)]
    fn finish_send(&mut self, sent: Request<Memory>) -> Result<Memory, CarrierError> {
        self.finish(sent)
    }

    #[inline(always)]
    fn start_receive(&mut self, into: Memory) -> Result<Request<Memory>, CarrierError> {
        Ok(self.node.start_recv(Match::from(self.to), into)?)
    }

    #[inline(always)]
    fn finish_receive(&mut self, received: Request<Memory>) -> Result<Memory, CarrierError> {
        self.finish(received)
    }
}
