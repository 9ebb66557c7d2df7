//! How a thread gets its next message by each scheme, and the meaning of tags.

use crate::experiment::Trouble;
use doorbell::{DeviceThread, Error, Match, Node, Taken};
use doorbell_benches::touch;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Messages that may wait in a channel.
const CHANNEL: usize = 64;
/// A dispatcher copies messages of up to this many bytes: a message that fits in a cache line is not worth a loan.
pub const COPIED: usize = 64;
/// Looks into a channel between two readings of the clock.
const LOOKS: u32 = 8;
/// How long a thread looks before it sleeps.
const SPIN: Duration = Duration::from_nanos(500);
/// The dispatcher wakes sleeping threads after this many messages, even if more messages are waiting.
const WAKE_AFTER: u32 = 32;
/// How often a waiting thread looks whether it is told to stop.
pub const GLANCE: Duration = Duration::from_millis(100);

/// A tag holds the thread of a message, and the time of sending. The largest such time ends a section.
const THREADS: u64 = 1 << 6;
const END: u64 = u64::MAX / THREADS;

/// The tag of a message.
#[inline(always)]
pub fn tag(thread: usize, sent_ns: u64) -> u64 {
    sent_ns * THREADS + thread as u64
}

/// The tag of the last message of a section for a thread.
pub fn end(thread: usize) -> u64 {
    tag(thread, END)
}

/// The thread of a message.
#[inline(always)]
pub fn thread_of(tag: u64) -> usize {
    (tag % THREADS) as usize
}

/// When a message was sent; `None` for the last message.
#[inline(always)]
pub fn sent_ns(tag: u64) -> Option<u64> {
    let sent = tag / THREADS;
    (sent != END).then_some(sent)
}

/// How a thread receives.
pub trait Ear {
    /// Receives the next message, reads every cache line of it, and returns its tag. `None` at the deadline.
    fn receive(&mut self, buf: &mut [u8], deadline: Instant) -> Result<Option<u64>, Trouble>;
}

impl Ear for DeviceThread {
    #[inline]
    fn receive(&mut self, buf: &mut [u8], deadline: Instant) -> Result<Option<u64>, Trouble> {
        let received = self.receive_until(buf, deadline).map(|envelope| (envelope.tag, envelope.len));
        read(received, buf)
    }
}

/// A node of one thread.
pub struct Fifo<'a>(pub &'a Node);

impl Ear for Fifo<'_> {
    #[inline]
    fn receive(&mut self, buf: &mut [u8], deadline: Instant) -> Result<Option<u64>, Trouble> {
        let received = self.0.recv_until(Match::any(), buf, deadline).map(|envelope| (envelope.tag, envelope.len));
        read(received, buf)
    }
}

/// Reads a received message of this tag and length. Returns the tag.
#[inline(always)]
fn read(received: Result<(u64, usize), Error>, buf: &[u8]) -> Result<Option<u64>, Trouble> {
    match received {
        Ok((tag, len)) => {
            touch::read(&buf[..len]);
            Ok(Some(tag))
        }
        Err(Error::Timeout { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A message that a dispatcher hands over.
pub enum Handed {
    /// A short message: its tag, how long it is, and its bytes.
    Copied(u64, usize, [u8; COPIED]),
    /// A loan.
    Lent(Taken<[u8]>),
}

/// A thread's sleep. The dispatcher wakes the thread when it has no other messages to hand over, and not with each message.
#[derive(Default)]
struct Bed {
    is_asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

/// The end of a thread's channel at the dispatcher.
pub struct Hand {
    sends: SyncSender<Handed>,
    bed: Arc<Bed>,
}

/// The thread's end.
pub struct FromHand {
    receives: Receiver<Handed>,
    bed: Arc<Bed>,
}

/// A thread's channel.
pub fn channel() -> (Hand, FromHand) {
    let ((sends, receives), bed) = (sync_channel(CHANNEL), Arc::<Bed>::default());
    (Hand { sends, bed: bed.clone() }, FromHand { receives, bed })
}

impl Hand {
    /// Hands a message over, and returns whether the thread has to be woken. Waits if the channel is full.
    #[inline]
    fn give(&self, handed: Handed) -> Result<bool, Trouble> {
        let gone = || Trouble::Wrong("a thread has ended before its messages".into());
        match self.sends.try_send(handed) {
            Ok(()) => {}
            Err(TrySendError::Full(handed)) => {
                self.wake();
                self.sends.send(handed).map_err(|_| gone())?;
            }
            Err(TrySendError::Disconnected(_)) => return Err(gone()),
        }
        // Pairs with the fence in `wait`: either the thread sees the message before it sleeps, or this load sees that it sleeps.
        fence(Ordering::SeqCst);
        Ok(self.bed.is_asleep.load(Ordering::Relaxed))
    }

    fn wake(&self) {
        if self.bed.is_asleep.swap(false, Ordering::AcqRel)
            && let Some(thread) = self.bed.thread.get()
        {
            thread.unpark();
        }
    }
}

impl FromHand {
    fn look(&self) -> Result<Option<Handed>, Trouble> {
        match self.receives.try_recv() {
            Ok(handed) => Ok(Some(handed)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Trouble::Wrong("the dispatcher has ended before the messages".into())),
        }
    }

    #[cold]
    fn wait(&self, deadline: Instant) -> Result<Option<Handed>, Trouble> {
        let began = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if let Some(handed) = self.look()? {
                    return Ok(Some(handed));
                }
                std::hint::spin_loop();
            }
            // A thread that yields instead of sleeping takes the processor from the dispatcher.
            if began.elapsed() >= SPIN {
                break;
            }
        }
        self.bed.thread.get_or_init(std::thread::current);
        loop {
            self.bed.is_asleep.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let handed = self.look()?;
            if handed.is_none() {
                std::thread::park_timeout(deadline.saturating_duration_since(Instant::now()));
            }
            self.bed.is_asleep.store(false, Ordering::Relaxed);
            let handed = if handed.is_none() { self.look()? } else { handed };
            if handed.is_some() || Instant::now() >= deadline {
                return Ok(handed);
            }
        }
    }
}

impl Ear for FromHand {
    #[inline]
    fn receive(&mut self, _: &mut [u8], deadline: Instant) -> Result<Option<u64>, Trouble> {
        let handed = match self.look()? {
            Some(handed) => handed,
            None => match self.wait(deadline)? {
                Some(handed) => handed,
                None => return Ok(None),
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

/// The dispatcher, which takes the messages of a node and hands each message to its thread.
pub struct Dispatcher<'a> {
    /// The node that receives.
    pub node: &'a Node,
    /// Bytes of a message.
    pub bytes: usize,
    /// The channels of the threads of this process.
    pub hands: &'a [Option<Hand>],
    /// One bit for each sleeping thread that has messages.
    pub asleep: u64,
    /// Messages since the dispatcher woke threads.
    pub given: u32,
}

impl Dispatcher<'_> {
    /// Hands one message over, and returns its tag. `None` at the deadline.
    #[inline]
    pub fn step(&mut self, deadline: Instant) -> Result<Option<u64>, Trouble> {
        let next = match self.next(None)? {
            Some(next) if self.given < WAKE_AFTER => Some(next),
            next => {
                self.wake();
                if next.is_some() { next } else { self.next(Some(deadline))? }
            }
        };
        let Some((tag, handed)) = next else { return Ok(None) };
        let thread = thread_of(tag);
        let Some(Some(hand)) = self.hands.get(thread) else {
            return Err(Trouble::Wrong(format!("a message came for thread {thread}, which is not here")));
        };
        if hand.give(handed)? {
            self.asleep |= 1 << thread;
        }
        self.given += 1;
        Ok(Some(tag))
    }

    /// Wakes the sleeping threads that have messages.
    #[inline]
    pub fn wake(&mut self) {
        self.given = 0;
        while self.asleep != 0 {
            let thread = self.asleep.trailing_zeros() as usize;
            self.asleep &= self.asleep - 1;
            if let Some(Some(hand)) = self.hands.get(thread) {
                hand.wake();
            }
        }
    }

    /// The next message. Waits until the deadline, if there is one.
    #[inline]
    fn next(&self, deadline: Option<Instant>) -> Result<Option<(u64, Handed)>, Trouble> {
        let (node, any) = (self.node, Match::any());
        let next = if self.bytes <= COPIED {
            let mut copy = [0; COPIED];
            let got = match deadline {
                Some(deadline) => node.recv_until(any, &mut copy, deadline).map(Some),
                None => node.try_recv(any, &mut copy),
            };
            got.map(|got| got.map(|envelope| (envelope.tag, Handed::Copied(envelope.tag, envelope.len, copy))))
        } else {
            let got = match deadline {
                Some(deadline) => node.take_until::<[u8]>(any, deadline).map(Some),
                None => node.try_take::<[u8]>(any),
            };
            got.map(|got| got.map(|taken| (taken.envelope().tag, Handed::Lent(taken))))
        };
        match next {
            Err(Error::Timeout { .. }) => Ok(None),
            next => Ok(next?),
        }
    }
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
