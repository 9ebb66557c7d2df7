//! The driver as a carrier of messages: by two calls, by puts, or by several requests at once.

use super::{Arrival, receive};
use crate::experiment::{Trouble, unless_stopped};
use doorbell::zerocopy::FromBytes;
use doorbell::{Completion, Error, KEY_BYTES, Key, Match, Node, NodeId, Operation, Peer, ReadWrite, Received, Region};
use doorbell_benches::{Carrier, Memory, Patience, PullError, UdpError, Window};

/// The tag of messages.
pub const TAG: u64 = 1;
/// The tag of messages with keys.
const KEY: u64 = 2;

impl From<UdpError> for Trouble {
    fn from(error: UdpError) -> Self {
        match error {
            UdpError::Stopped(stopped) => stopped.into(),
            error => Self::wrong(error),
        }
    }
}

impl From<PullError> for Trouble {
    fn from(error: PullError) -> Self {
        match error {
            PullError::Stopped(stopped) => stopped.into(),
            PullError::Refused(error) => Self::wrong(error),
        }
    }
}

/// A carrier of two calls: one sends a message, and the other receives one.
pub struct By<'a, S, R> {
    /// Sends.
    pub send: S,
    /// Receives.
    pub receive: R,
    /// Says when to stop.
    pub patience: &'a Patience,
}

impl<S, R> Carrier for By<'_, S, R>
where
    S: FnMut(&[u8]) -> Result<(), Error>,
    R: FnMut(&mut [u8]) -> Result<(), Error>,
{
    type Error = Trouble;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), Trouble> {
        Ok((self.send)(message)?)
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<(), Trouble> {
        unless_stopped(self.patience)?;
        Ok((self.receive)(into)?)
    }
}

/// Looks at whether to stop: before the first message, and then once in as many as have a MiB, 256 at most. A look before each message
/// would take a tenth of the time of a short one.
#[derive(Debug)]
struct Looks<'a> {
    patience: &'a Patience,
    every: u32,
    left: u32,
}

impl<'a> Looks<'a> {
    /// For messages of `bytes` bytes.
    fn new(patience: &'a Patience, bytes: usize) -> Self {
        Self { patience, every: ((1 << 20) / bytes.max(1)).clamp(1, 256) as u32, left: 0 }
    }

    #[inline(always)]
    fn look(&mut self) -> Result<(), Trouble> {
        if self.left == 0 {
            self.left = self.every;
            unless_stopped(self.patience)?;
        }
        self.left -= 1;
        Ok(())
    }
}

/// By a node's own calls. The compiler does not inline a closure that two loops call, so these are methods.
#[derive(Debug)]
pub struct NodeCalls<'a> {
    node: &'a Node,
    to: NodeId,
    from: Match,
    looks: Looks<'a>,
}

impl<'a> NodeCalls<'a> {
    /// Sends messages of `bytes` bytes to one node, and receives such.
    pub fn new(node: &'a Node, (to, from): (NodeId, Match), patience: &'a Patience, bytes: usize) -> Self {
        Self { node, to, from, looks: Looks::new(patience, bytes) }
    }
}

impl Carrier for NodeCalls<'_> {
    type Error = Trouble;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), Trouble> {
        Ok(self.node.send(self.to, TAG, message)?)
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<(), Trouble> {
        self.looks.look()?;
        self.node.recv(self.from, into)?;
        Ok(())
    }
}

/// By the calls of a peer.
#[derive(Debug)]
pub struct PeerCalls<'a> {
    peer: &'a Peer,
    looks: Looks<'a>,
}

impl<'a> PeerCalls<'a> {
    /// Sends messages of `bytes` bytes to a peer, and receives such.
    pub fn new(peer: &'a Peer, patience: &'a Patience, bytes: usize) -> Self {
        Self { peer, looks: Looks::new(patience, bytes) }
    }
}

impl Carrier for PeerCalls<'_> {
    type Error = Trouble;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), Trouble> {
        Ok(self.peer.send(TAG, message)?)
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<(), Trouble> {
        self.looks.look()?;
        self.peer.recv(Match::any(), into)?;
        Ok(())
    }
}

/// The memory of the puts of a pair: this process's region, and the key to the region of the other process.
#[derive(Debug)]
pub struct Landing {
    own: Region<u64>,
    theirs: Key<u64, ReadWrite>,
    sent: u64,
    received: u64,
    arrival: Arrival,
}

/// The least length of a region that a stream of puts fills, in bytes.
pub const LANDING_BYTES: usize = 64 << 10;
/// Marks the word that announces a message, so that no content can be taken for it.
const ARRIVED: u64 = 1 << 63;

impl Landing {
    /// Exchanges keys with the other process.
    ///
    /// # Errors
    /// The other process is gone, or this one was told to stop.
    pub fn exchange(own: Region<u64>, node: &Node, to: NodeId, arrival: Arrival, patience: &Patience) -> Result<Self, Trouble> {
        node.send(to, KEY, &own.key().to_bytes())?;
        let mut bytes = [0; KEY_BYTES];
        receive(node, Match::from(to).tag(KEY), &mut bytes, None, patience)?;
        Ok(Self { own, theirs: Key::from_bytes(&bytes)?, sent: 0, received: 0, arrival })
    }

    /// Has the next section go on where the last one ended.
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
    /// The key of the last word of a message.
    last: Key<u64, ReadWrite>,
    arrival: Arrival,
}

impl<'a> Puts<'a> {
    /// Puts for messages of `bytes` bytes, a multiple of eight.
    pub fn new(node: &'a Node, peer: Option<&'a Peer>, landing: &'a Landing, bytes: usize, patience: &'a Patience) -> Self {
        let Landing { own, theirs, sent, received, arrival } = landing;
        let words = (bytes / size_of::<u64>()).max(1);
        let last = theirs.at(words - 1);
        Self { node, peer, patience, own, key: *theirs, sent: *sent, received: *received, words, last, arrival: *arrival }
    }

    /// How many messages were sent and received, in all.
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
    type Error = Trouble;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), Trouble> {
        self.sent += 1;
        if self.words > 1 {
            self.put(&words(message)[..self.words - 1], self.key)?;
            // A target that sees the last word sees all others, too.
            self.flush()?;
        }
        Ok(self.put(&[ARRIVED | self.sent], self.last)?)
    }

    /// A message arrives in the region itself, and `into` is the beginning of that.
    #[inline(always)]
    fn receive(&mut self, _into: &mut [u8]) -> Result<(), Trouble> {
        self.received += 1;
        let (own, at, expected) = (self.own, self.words - 1, ARRIVED | self.received);
        let mut word = [0];
        if self.arrival != Arrival::Mapped {
            loop {
                self.arrival.help(self.node)?;
                if own.read(at, &mut word).is_ok() && word[0] == expected {
                    return Ok(());
                }
                unless_stopped(self.patience)?;
            }
        }
        Ok(self.patience.until(|| {
            let has_arrived = own.read(at, &mut word).is_ok() && word[0] == expected;
            // As a receive does: without a pause, leaving the loop takes longer.
            if !has_arrived {
                std::hint::spin_loop();
            }
            has_arrived
        })?)
    }
}

/// A stream of puts, without notification.
#[derive(Debug)]
pub struct PutStream<'a> {
    puts: Puts<'a>,
    at: usize,
    /// Words of the region, as far as whole messages fit.
    room: usize,
}

impl<'a> PutStream<'a> {
    /// A stream of these puts.
    pub fn new(puts: Puts<'a>) -> Self {
        let room = puts.key.len() / puts.words * puts.words;
        Self { puts, at: 0, room }
    }

    /// Returns when all puts are complete.
    ///
    /// # Errors
    /// The other process is gone.
    pub fn finish(self) -> Result<(), Trouble> {
        Ok(self.puts.flush()?)
    }
}

impl Carrier for PutStream<'_> {
    type Error = Trouble;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), Trouble> {
        self.puts.put(words(message), self.puts.key.at(self.at))?;
        self.at += self.puts.words;
        if self.at >= self.room {
            self.at = 0;
            unless_stopped(self.puts.patience)?;
        }
        Ok(())
    }

    /// The target of a stream receives nothing.
    #[inline(always)]
    fn receive(&mut self, _into: &mut [u8]) -> Result<(), Trouble> {
        Ok(())
    }
}

/// Requests that own their buffers, several at once.
#[derive(Debug)]
pub struct Requests<'a> {
    /// The node at this end.
    pub node: &'a Node,
    /// The peer of the thread, if it has one.
    pub peer: Option<&'a Peer>,
    /// The node at the other end.
    pub to: NodeId,
    /// Says when to stop.
    pub patience: &'a Patience,
}

impl Requests<'_> {
    fn finish<B, R>(&self, request: Operation<Completion<B, R>>) -> Result<B, Trouble> {
        unless_stopped(self.patience)?;
        let completion = request.wait();
        completion.result?;
        Ok(completion.buffer)
    }
}

impl Window for Requests<'_> {
    type Error = Trouble;
    type Sent = Operation<Completion<Memory>>;
    type Received = Operation<Received<Memory>>;

    #[inline(always)]
    fn start_send(&mut self, message: Memory) -> Result<Operation<Completion<Memory>>, Trouble> {
        Ok(match self.peer {
            Some(peer) => peer.start_send(TAG, message)?,
            None => self.node.start_send(self.to, TAG, message)?,
        })
    }

    #[inline(always)]
    fn finish_send(&mut self, sent: Operation<Completion<Memory>>) -> Result<Memory, Trouble> {
        self.finish(sent)
    }

    #[inline(always)]
    fn start_receive(&mut self, into: Memory) -> Result<Self::Received, Trouble> {
        Ok(self.node.start_recv(Match::from(self.to), into)?)
    }

    #[inline(always)]
    fn finish_receive(&mut self, received: Self::Received) -> Result<Memory, Trouble> {
        // A receive without an error returns its buffer.
        self.finish(received)?.ok_or(Error::Cancelled.into())
    }
}
