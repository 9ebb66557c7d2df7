//! The pool: messages that arrived before anybody asked for them.

use super::Match;
use doorbell_fabric::{Envelope, Payload};
use std::collections::VecDeque;

/// A message in private memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it says of itself.
    pub envelope: Envelope,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Bytes that a pooled message is counted for beyond its own.
const OVERHEAD: usize = 64;

/// Unexpected messages in the order in which they arrived, bounded in bytes.
#[derive(Debug)]
pub struct Pool {
    messages: VecDeque<Message>,
    used: usize,
    limit: usize,
    most: usize,
}

impl Pool {
    /// An empty pool of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { messages: VecDeque::new(), used: 0, limit, most: 0 }
    }

    /// Whether no message waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// How many messages wait.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Bytes in use, and the most there ever were.
    pub fn bytes(&self) -> (usize, usize) {
        (self.used, self.most)
    }

    /// Reserves room for a message of `len` bytes that arrives in pieces. False if there is none.
    pub fn reserve(&mut self, len: usize) -> bool {
        // Written so that a length from outside can't overflow.
        let room = self.limit.saturating_sub(self.used);
        if len > room || OVERHEAD > room - len {
            return false;
        }
        self.used += len + OVERHEAD;
        self.most = self.most.max(self.used);
        true
    }

    /// Reserves room even beyond the limit: for the rest of a message that can't be refused any more.
    pub fn reserve_anyway(&mut self, len: usize) {
        self.used = self.used.saturating_add(len).saturating_add(OVERHEAD);
        self.most = self.most.max(self.used);
    }

    /// Gives a reservation back.
    pub fn release(&mut self, len: usize) {
        self.used = self.used.saturating_sub(len).saturating_sub(OVERHEAD);
    }

    /// Copies a message in. False if there is no room.
    pub fn push(&mut self, envelope: Envelope, payload: Payload<'_>) -> bool {
        if !self.reserve(payload.len()) {
            return false;
        }
        self.messages.push_back(Message { envelope, bytes: payload.to_vec() });
        true
    }

    /// Puts a message in for which room was reserved.
    pub fn push_reserved(&mut self, message: Message) {
        self.messages.push_back(message);
    }

    /// The first message that a receive accepts, left where it is.
    pub fn find(&self, accepted: &Match) -> Option<&Message> {
        self.messages.iter().find(|message| accepted.matches(&message.envelope))
    }

    /// Takes the first message that a receive accepts.
    pub fn take(&mut self, accepted: &Match) -> Option<Message> {
        let at = self.messages.iter().position(|message| accepted.matches(&message.envelope))?;
        let message = self.messages.remove(at)?;
        self.release(message.bytes.len());
        Some(message)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use doorbell_fabric::{Incarnation, NodeId, Priority};

    fn envelope(tag: u64, len: usize) -> Envelope {
        Envelope { source: NodeId(1), incarnation: Incarnation(1), tag, len, sequence: 0, priority: Priority::Normal }
    }

    #[test]
    fn a_pool_keeps_order_by_match_and_its_limit() {
        let mut pool = Pool::new(3 * (10 + OVERHEAD));
        for tag in [1, 2, 1] {
            assert!(pool.push(envelope(tag, 10), Payload::private(&[tag as u8; 10])));
        }
        assert!(!pool.push(envelope(3, 0), Payload::private(&[])));
        assert!(!pool.reserve(usize::MAX));
        assert_eq!(pool.take(&Match::any().tag(2)).unwrap().bytes, [2; 10]);
        assert!(pool.push(envelope(3, 10), Payload::private(&[3; 10])));
        let order: Vec<_> = std::iter::from_fn(|| pool.take(&Match::any())).map(|m| m.envelope.tag).collect();
        assert_eq!(order, [1, 1, 3]);
        assert_eq!(pool.bytes().0, 0);
    }
}
