//! How a thread gets its next message, by each scheme; and what tags say.

use super::worker::Trouble;
use doorbell::{DeviceThread, Error, Match, Node, Taken};
use doorbell_benches::touch;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::{Duration, Instant};

/// Messages that may wait in a channel.
const CHANNEL: usize = 64;
/// Up to how many bytes a dispatcher hands over a copy: what fits in a cache line is not worth a loan.
pub const COPIED: usize = 64;
/// How often a thread that waits looks whether it is to stop.
pub const GLANCE: Duration = Duration::from_millis(100);

/// A tag says for which thread a message is, and when it was sent; with the largest such time a section ends.
const THREADS: u64 = 1 << 6;
const END: u64 = u64::MAX / THREADS;

/// The tag of a message.
#[inline(always)]
pub fn tag(thread: usize, sent_ns: u64) -> u64 {
    sent_ns * THREADS + thread as u64
}

/// The tag of the last one of a section.
pub fn end(thread: usize) -> u64 {
    tag(thread, END)
}

/// For which thread it is.
#[inline(always)]
pub fn thread_of(tag: u64) -> usize {
    (tag % THREADS) as usize
}

/// When it was sent; `None`: it is the last one.
#[inline(always)]
pub fn sent_ns(tag: u64) -> Option<u64> {
    let sent = tag / THREADS;
    (sent != END).then_some(sent)
}

/// How a thread receives.
pub trait Ear {
    /// The next message, every line of which is read: its tag. `None` at the deadline.
    fn receive(&mut self, buf: &mut [u8], deadline: Instant) -> Result<Option<u64>, Trouble>;
}

impl Ear for DeviceThread {
    #[inline]
    fn receive(&mut self, buf: &mut [u8], deadline: Instant) -> Result<Option<u64>, Trouble> {
        match self.receive_by(buf, deadline) {
            Ok(envelope) => {
                touch::read(&buf[..envelope.len]);
                Ok(Some(envelope.tag))
            }
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// A node that is one thread's.
pub struct Fifo<'a>(pub &'a Node);

impl Ear for Fifo<'_> {
    #[inline]
    fn receive(&mut self, buf: &mut [u8], deadline: Instant) -> Result<Option<u64>, Trouble> {
        match self.0.recv_by(Match::any(), buf, deadline) {
            Ok(envelope) => {
                touch::read(&buf[..envelope.len]);
                Ok(Some(envelope.tag))
            }
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// What a dispatcher hands over.
pub enum Handed {
    /// A short message: its tag, how long it is, and its bytes.
    Copied(u64, usize, [u8; COPIED]),
    /// A loan.
    Lent(Taken<[u8]>),
}

/// The end of a thread's channel at the dispatcher.
pub struct Hand(SyncSender<Handed>);

/// The thread's end.
pub struct FromHand(Receiver<Handed>);

/// A thread's channel.
pub fn channel() -> (Hand, FromHand) {
    let (hand, from) = sync_channel(CHANNEL);
    (Hand(hand), FromHand(from))
}

impl Hand {
    /// Hands a message over; waits if the thread has very many.
    #[inline]
    fn give(&self, handed: Handed) -> Result<(), Trouble> {
        let gone = || Trouble::Wrong("a thread has ended before its messages".into());
        match self.0.try_send(handed) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(handed)) => self.0.send(handed).map_err(|_| gone()),
            Err(TrySendError::Disconnected(_)) => Err(gone()),
        }
    }
}

impl Ear for FromHand {
    #[inline]
    fn receive(&mut self, _: &mut [u8], deadline: Instant) -> Result<Option<u64>, Trouble> {
        let gone = || Trouble::Wrong("the dispatcher has ended before the messages".into());
        let handed = match self.0.try_recv() {
            Ok(handed) => handed,
            Err(TryRecvError::Disconnected) => return Err(gone()),
            Err(TryRecvError::Empty) => match self.0.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(handed) => handed,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            },
        };
        Ok(Some(match handed {
            Handed::Copied(tag, len, bytes) => {
                touch::read(&bytes[..len]);
                tag
            }
            Handed::Lent(taken) => {
                // SAFETY: the sender writes no loan that it has sent, and the node stays for all sections.
                touch::read(unsafe { taken.as_slice() });
                taken.envelope().tag
            }
        }))
    }
}

/// Takes one message of a node and hands it over to its thread: the tag. `None` at the deadline.
#[inline]
pub fn dispatch(node: &Node, bytes: usize, hands: &[Option<Hand>], deadline: Instant) -> Result<Option<u64>, Trouble> {
    let handed = if bytes <= COPIED {
        let mut copy = [0; COPIED];
        node.recv_by(Match::any(), &mut copy, deadline)
            .map(|envelope| (envelope.tag, Handed::Copied(envelope.tag, envelope.len, copy)))
    } else {
        node.take_by::<[u8]>(Match::any(), deadline).map(|taken| (taken.envelope().tag, Handed::Lent(taken)))
    };
    let (tag, handed) = match handed {
        Ok(handed) => handed,
        Err(Error::Timeout { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let Some(Some(hand)) = hands.get(thread_of(tag)) else {
        return Err(Trouble::Wrong(format!("a message came for thread {}, which is not here", thread_of(tag))));
    };
    hand.give(handed)?;
    Ok(Some(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_say_for_whom_and_when() {
        for (thread, sent) in [(0, 0), (63, 1), (5, 1 << 50)] {
            assert_eq!((thread_of(tag(thread, sent)), sent_ns(tag(thread, sent))), (thread, Some(sent)));
        }
        assert_eq!((thread_of(end(63)), sent_ns(end(63))), (63, None));
    }
}
