//! Several messages by one call.

use super::receive::{Reading, give, settled};
use super::send::Patience;
use super::{Node, Peer};
use crate::Result;
use crate::drive::poller::Progress;
use crate::drive::{SPIN_ROUNDS, Shared, TURNS_MAX};
use crate::error::Error;
use crate::message::Match;
use crate::message::inbound::{Direct, Nobody};
use crate::message::lending::Lent;
use crate::sync::baton::Token;
use crate::sync::wait::Wait;
use doorbell_fabric::{Envelope, Payload};
use doorbell_shm::lane::{Chunks, Series};
use std::num::NonZeroUsize;
use std::time::Instant;

/// What a receive does with each message.
type Read<'a> = &'a mut dyn FnMut(&Envelope, Payload<'_>);

/// A receive of several messages that are read in place.
struct Several<'a> {
    accepts: Match,
    limit: usize,
    taken: usize,
    read: Read<'a>,
    reading: Reading,
    failed: Option<Error>,
}

impl Direct for Several<'_> {
    fn wants(&self, envelope: &Envelope) -> bool {
        !self.is_full() && self.accepts.matches(envelope)
    }

    fn take(&mut self, envelope: &Envelope, payload: Payload<'_>) {
        let read = &mut self.read;
        self.reading.run(|| read(envelope, payload));
        self.taken += 1;
    }

    fn take_loan(&mut self, envelope: &Envelope, lent: Lent) {
        self.take(envelope, lent.payload());
        if lent.is_cut() {
            self.failed = Some(Error::Damaged { node: envelope.source });
        }
    }

    fn has(&self) -> bool {
        self.taken > 0
    }

    fn is_full(&self) -> bool {
        self.taken >= self.limit || self.failed.is_some() || self.reading.is_broken_off()
    }
}

impl<'a> Several<'a> {
    fn new(accepts: Match, limit: usize, read: Read<'a>) -> Self {
        Self { accepts, limit, taken: 0, read, reading: Reading::default(), failed: None }
    }

    /// The number of messages that were read, or why the last one is no message.
    fn ended(self) -> Result<usize> {
        self.reading.end();
        self.failed.map_or(Ok(self.taken), Err)
    }

    /// Takes messages that are there now.
    fn take_now(&mut self, shared: &Shared, me: Token, operation: &'static str) -> Result<()> {
        for _ in 0..TURNS_MAX {
            if self.is_full() {
                break;
            }
            let mut engine = shared.enter(me, operation)?;
            if let Some(pooled) = engine.take_whole(&self.accepts) {
                drop(engine);
                give(pooled, self);
                continue;
            }
            // While the first message is incomplete, later messages must not overtake it.
            let is_coming = engine.pool().find(&self.accepts).is_some();
            // The receiver itself takes messages for which the poller had no room.
            if shared.progress() == Progress::Poller && !engine.is_refusing() {
                break;
            }
            let polled = if is_coming { engine.poll(&mut Nobody, false) } else { engine.poll(self, false) };
            // One turn looks at a few idle lanes only. Continue while any lane has something.
            if polled + engine.push(me) == 0 && !engine.fabric().has_news() {
                break;
            }
        }
        Ok(())
    }
}

/// The number of messages that were sent. An error counts only if the first one failed: otherwise the next call returns it.
fn sent((count, ended): (usize, Result<()>)) -> Result<usize> {
    if count > 0 { Ok(count) } else { ended.map(|()| 0) }
}

/// The same for a call that does not wait for room.
fn some_sent(all: (usize, Result<()>)) -> Result<usize> {
    match all {
        (count, Err(Error::Full { .. })) => Ok(count),
        all => sent(all),
    }
}

/// The bytes as messages of this length.
#[inline(always)]
fn chunks(tag: u64, len: usize, bytes: &[u8]) -> Result<Chunks<'_>> {
    let invalid = || Error::Invalid { what: "chunks of 0 bytes were to be sent; use a length of 1 at least".into() };
    NonZeroUsize::new(len).map(|len| Chunks::new(tag, len, bytes)).ok_or_else(invalid)
}

impl Shared {
    /// Takes messages of the lane that was busy last, as long as nothing else is pending in the node.
    #[inline(always)]
    fn take_short(&self, accepts: &Match, limit: usize, mut rounds: u32, read: &mut impl FnMut(&Envelope, Payload<'_>)) -> usize {
        let mut taken = 0;
        if !self.program_turns() {
            return 0;
        }
        while taken < limit {
            let Some(engine) = self.enter_at_once() else { break };
            let Some(mut engine) = settled(engine) else { break };
            let more = engine.take_many(accepts, limit - taken, rounds, &mut *read);
            if more == 0 {
                break;
            }
            taken += more;
            if more < crate::turn::TURN_PACKETS {
                break;
            }
            // The first message is worth a wait, and the others are not.
            rounds = 1;
        }
        // A reader may have dropped a receive. The message that it had comes before those that follow.
        self.catch_up();
        taken
    }

    /// Waits for the first message, and takes those that are there by then.
    #[inline(never)]
    fn receive_many(&self, accepts: Match, limit: usize, deadline: Option<Instant>, read: Read<'_>) -> Result<usize> {
        if limit == 0 {
            return self.check().map(|_| 0);
        }
        let mut several = Several::new(accepts, limit, read);
        self.receive_whole("recv_many", accepts, deadline, &mut several, |_, _| {})?;
        // Whatever keeps further messages away, those that were read count.
        let _ = self.check().and_then(|me| several.take_now(self, me, "recv_many"));
        several.ended()
    }

    /// Takes the messages that are there now.
    #[inline(never)]
    fn try_receive_many(&self, accepts: Match, limit: usize, read: Read<'_>) -> Result<usize> {
        let me = self.check()?;
        if limit == 0 {
            return Ok(0);
        }
        let mut several = Several::new(accepts, limit, read);
        match several.take_now(self, me, "try_recv_many") {
            Err(error) if several.taken == 0 => Err(error),
            Ok(()) if several.taken == 0 => self.enter(me, "try_recv_many")?.never(&accepts).map_or(Ok(0), Err),
            _ => several.ended(),
        }
    }
}

impl Node {
    /// Receives up to `limit` messages in place: `read` gets the envelope and the bytes of each. Waits until there is one, takes
    /// it and those that are behind it already, and returns their number. It may return fewer than are there. Messages of one
    /// sender and priority arrive in the order in which they were sent.
    ///
    /// `read` may run while this thread holds the node's engine, as with [`recv_with`](Self::recv_with). Then other threads of the node
    /// wait for it, and calls of the same node that need the engine return [`Error::Reentrant`]. Do not receive from the same node
    /// within `read`. If `read` panics, its message may come again or be lost. Those before it were received.
    ///
    /// It is cheaper than [`recv`](Self::recv) where several small messages follow each other.
    ///
    /// ```
    /// # use doorbell::{Match, Node, Space};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let space = Space::heap();
    /// # let a = Node::builder("many").space(space.clone()).join()?;
    /// # let b = Node::builder("many").space(space).join()?;
    /// a.peer(b.id())?.send_many(&[(1, b"three"), (2, b"small"), (3, b"messages")])?;
    /// let mut tags = Vec::new();
    /// while tags.len() < 3 {
    ///     b.recv_many(Match::any(), 64, |envelope, payload| {
    ///         assert_eq!(envelope.len, payload.len());
    ///         tags.push(envelope.tag);
    ///     })?;
    /// }
    /// assert_eq!(tags, [1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`recv_with`](Self::recv_with). [`Error::Damaged`]: the last message that `read` got was on loan, and its memory was
    /// truncated.
    #[inline]
    pub fn recv_many(&self, accepts: Match, limit: usize, read: impl FnMut(&Envelope, Payload<'_>)) -> Result<usize> {
        self.recv_many_by(accepts, limit, None, read)
    }

    /// As [`recv_many`](Self::recv_many), waiting for the first message until `deadline` at most.
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`recv_many`](Self::recv_many).
    #[inline]
    pub fn recv_many_until(
        &self,
        accepts: Match,
        limit: usize,
        deadline: Instant,
        read: impl FnMut(&Envelope, Payload<'_>),
    ) -> Result<usize> {
        self.recv_many_by(accepts, limit, Some(deadline), read)
    }

    /// As [`recv_many`](Self::recv_many) for messages that are there now: it never waits, and may return 0.
    ///
    /// # Errors
    /// As [`recv_many`](Self::recv_many).
    #[inline]
    pub fn try_recv_many(&self, accepts: Match, limit: usize, read: impl FnMut(&Envelope, Payload<'_>)) -> Result<usize> {
        let mut read = read;
        match self.shared.take_short(&accepts, limit, 1, &mut read) {
            0 => self.shared.try_receive_many(accepts, limit, &mut read),
            taken => Ok(taken),
        }
    }

    #[inline(always)]
    fn recv_many_by(
        &self,
        accepts: Match,
        limit: usize,
        deadline: Option<Instant>,
        mut read: impl FnMut(&Envelope, Payload<'_>),
    ) -> Result<usize> {
        let rounds = if self.shared.wait() == Wait::Park { 1 } else { SPIN_ROUNDS };
        match self.shared.take_short(&accepts, limit, rounds, &mut read) {
            0 => self.shared.receive_many(accepts, limit, deadline, &mut read),
            taken => Ok(taken),
        }
    }
}

impl Peer {
    /// Sends messages, each a tag and its bytes, in this order. It is faster than as many calls of [`send`](Self::send) if the
    /// messages have at most 1 KiB: up to 32 of them, of up to 2 KiB, share a packet, which becomes visible when the last of them is
    /// written. Messages of one tag and one length take the least room there. Waits as [`send`](Self::send) does.
    ///
    /// # Errors
    /// As [`Node::send`]. The messages before the one that failed were sent, and those behind it were not.
    /// [`send_many_until`](Self::send_many_until) tells how many.
    #[inline]
    pub fn send_many(&self, messages: &[(u64, &[u8])]) -> Result<()> {
        self.send_all(messages, Patience::Forever).1
    }

    /// Sends messages as [`send_many`](Self::send_many), waiting until `deadline` at most. Returns how many were sent: all, or those
    /// before the one that failed.
    ///
    /// # Errors
    /// As [`Node::send_until`], if the first one failed.
    pub fn send_many_until(&self, messages: &[(u64, &[u8])], deadline: Instant) -> Result<usize> {
        sent(self.send_all(messages, Patience::Until(deadline)))
    }

    /// Sends as many of these messages as find room now, and returns their number: `messages[number..]` are left. Never waits.
    ///
    /// # Errors
    /// As [`Node::try_send`] of the first message, except [`Error::Full`].
    #[inline]
    pub fn try_send_many(&self, messages: &[(u64, &[u8])]) -> Result<usize> {
        some_sent(self.send_all(messages, Patience::None))
    }

    /// Sends the bytes as messages of one tag, of `len` bytes each, in this order. The last one is shorter if `len` does not divide their
    /// number, as with [`slice::chunks`]. Empty `bytes` send nothing. It does what [`send_many`](Self::send_many) does for a list of them,
    /// without the list, and is the fastest way to send many records of one size.
    ///
    /// ```
    /// # use doorbell::{Match, testing::Domain};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let domain = Domain::new();
    /// # let (a, b) = (domain.join()?, domain.join()?);
    /// let samples = [20.5_f64, 21.0, 21.5];
    /// let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.to_ne_bytes()).collect();
    /// a.peer(b.id())?.send_chunks(1, 8, &bytes)?;
    /// let mut arrived = Vec::new();
    /// while arrived.len() < 3 {
    ///     b.recv_many(Match::any(), 64, |_, payload| {
    ///         let mut sample = [0; 8];
    ///         payload.copy_to(&mut sample);
    ///         arrived.push(f64::from_ne_bytes(sample));
    ///     })?;
    /// }
    /// assert_eq!(arrived, samples);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`send_many`](Self::send_many). [`Error::Invalid`]: `len` is 0, and nothing was sent.
    #[inline]
    pub fn send_chunks(&self, tag: u64, len: usize, bytes: &[u8]) -> Result<()> {
        self.send_all(chunks(tag, len, bytes)?, Patience::Forever).1
    }

    /// Sends messages as [`send_chunks`](Self::send_chunks), waiting until `deadline` at most. Returns how many were sent: all, or those
    /// before the one that failed.
    ///
    /// # Errors
    /// As [`send_many_until`](Self::send_many_until). [`Error::Invalid`]: `len` is 0.
    pub fn send_chunks_until(&self, tag: u64, len: usize, bytes: &[u8], deadline: Instant) -> Result<usize> {
        sent(self.send_all(chunks(tag, len, bytes)?, Patience::Until(deadline)))
    }

    /// Sends as many of these messages as find room now, and returns their number. The others begin at
    /// `bytes[number * len]`, if any are left: behind a short last message, that is beyond the end. Never waits.
    ///
    /// # Errors
    /// As [`try_send_many`](Self::try_send_many). [`Error::Invalid`]: `len` is 0.
    #[inline]
    pub fn try_send_chunks(&self, tag: u64, len: usize, bytes: &[u8]) -> Result<usize> {
        some_sent(self.send_all(chunks(tag, len, bytes)?, Patience::None))
    }

    /// Sends messages until one fails. Returns how many were sent, and why no more.
    #[inline(always)]
    fn send_all<'a>(&self, messages: impl Series<'a>, patience: Patience) -> (usize, Result<()>) {
        let (mut left, mut count) = (messages, 0);
        loop {
            let sent = self.send_series(left);
            (left, count) = (left.behind(sent), count + sent);
            let Some((tag, bytes)) = left.first() else { return (count, Ok(())) };
            match self.send_with(tag, bytes, patience) {
                Ok(()) => (left, count) = (left.behind(1), count + 1),
                failed => return (count, failed),
            }
        }
    }

    /// Sends the first messages of a series, as far as they are short and nothing speaks against it. Returns their number.
    #[inline(always)]
    fn send_series<'a>(&self, messages: impl Series<'a>) -> usize {
        if !self.node().shared.program_turns() {
            return 0;
        }
        self.outbound().send_series(Token::at_hand(), self.incarnation(), messages)
    }
}
