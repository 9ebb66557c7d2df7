//! The pool: messages that arrived before anybody asked for them.

use super::{Match, Message};
use crate::loan::Lent;
use doorbell_fabric::{Envelope, Payload};
use std::collections::VecDeque;

/// A place in the pool.
#[derive(Debug)]
pub struct Entry {
    /// What the message says of itself.
    pub envelope: Envelope,
    bytes: Bytes,
    /// Its place among all that arrived; for a message that is coming, the name of its transfer.
    number: u64,
}

/// Where the bytes of a message are that waits.
#[derive(Debug)]
enum Bytes {
    /// Still coming, by a transfer.
    Coming,
    /// Here.
    Private(Vec<u8>),
    /// Where their owner lent them: nothing is copied, and they take no room.
    Lent(Lent),
}

impl Entry {
    /// Whether all of it is there.
    pub fn is_whole(&self) -> bool {
        !matches!(self.bytes, Bytes::Coming)
    }

    /// Bytes for which room was reserved.
    fn reserved(&self) -> usize {
        if matches!(self.bytes, Bytes::Lent(_)) { 0 } else { self.envelope.len }
    }
}

/// What was taken from the pool.
#[derive(Debug)]
pub enum Pooled {
    /// A message.
    Whole(Message),
    /// A message that is lent.
    Lent(Envelope, Lent),
    /// A message that is still coming, by the transfer of this name.
    Coming(u64),
}

/// Bytes that a pooled message is counted for beyond its own.
const OVERHEAD: usize = 64;

/// Unexpected messages in the order in which they arrived, bounded in bytes.
#[derive(Debug)]
pub struct Pool {
    messages: VecDeque<Entry>,
    arrivals: u64,
    used: usize,
    limit: usize,
    most: usize,
}

impl Pool {
    /// An empty pool of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { messages: VecDeque::new(), arrivals: 0, used: 0, limit, most: 0 }
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
        self.push_reserved(Message { envelope, bytes: payload.to_vec() });
        true
    }

    /// Puts a message in for which room was reserved.
    pub fn push_reserved(&mut self, message: Message) {
        let number = self.next_number();
        self.messages.push_back(Entry { envelope: message.envelope, bytes: Bytes::Private(message.bytes), number });
    }

    /// Puts in a message that is lent, for which no room was reserved but that for no bytes.
    pub fn push_lent(&mut self, envelope: Envelope, lent: Lent) {
        let number = self.next_number();
        self.messages.push_back(Entry { envelope, bytes: Bytes::Lent(lent), number });
    }

    /// The place of the message that arrives now.
    pub fn next_number(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// Puts in a message that is still coming, at its place. Room was reserved.
    pub fn insert_coming(&mut self, envelope: Envelope, number: u64) {
        let at = self.messages.partition_point(|entry| entry.number < number);
        self.messages.insert(at, Entry { envelope, bytes: Bytes::Coming, number });
    }

    /// The message of this name has come. False if it is not in the pool.
    pub fn complete(&mut self, number: u64, bytes: Vec<u8>) -> bool {
        let entry = self.messages.iter_mut().find(|entry| entry.number == number);
        entry.map(|entry| entry.bytes = Bytes::Private(bytes)).is_some()
    }

    /// The message of this name is not coming any more.
    pub fn remove(&mut self, number: u64) {
        if let Some(at) = self.messages.iter().position(|entry| entry.number == number)
            && let Some(entry) = self.messages.remove(at)
        {
            self.release(entry.reserved());
        }
    }

    /// The message that a receive gets, left where it is.
    pub fn find(&self, accepted: &Match) -> Option<&Entry> {
        self.pick(accepted).map(|at| &self.messages[at])
    }

    /// The first that a receive accepts. Order holds among those of one sender and priority: one that is still coming, perhaps of a
    /// process that was stopped, is no reason to wait where another's is there.
    fn pick(&self, accepted: &Match) -> Option<usize> {
        let mut coming = None;
        // Of whom no later message may be taken: a handful, if any.
        let mut waiting = Vec::new();
        let accepted = self.messages.iter().enumerate().filter(|(_, entry)| accepted.matches(&entry.envelope));
        for (at, entry) in accepted {
            let lane = (entry.envelope.source, entry.envelope.incarnation, entry.envelope.priority);
            if waiting.contains(&lane) {
                continue;
            }
            if entry.is_whole() {
                return Some(at);
            }
            coming = coming.or(Some(at));
            waiting.push(lane);
        }
        coming
    }

    /// Takes the message that a receive gets.
    pub fn take(&mut self, accepted: &Match) -> Option<Pooled> {
        let at = self.pick(accepted)?;
        let entry = self.messages.remove(at)?;
        self.release(entry.reserved());
        let Entry { envelope, bytes, number } = entry;
        Some(match bytes {
            Bytes::Private(bytes) => Pooled::Whole(Message { envelope, bytes }),
            Bytes::Lent(lent) => Pooled::Lent(envelope, lent),
            Bytes::Coming => Pooled::Coming(number),
        })
    }
}

#[cfg(test)]
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
        let whole = |pool: &mut Pool, accepts: Match| match pool.take(&accepts) {
            Some(Pooled::Whole(message)) => Some(message),
            _ => None,
        };
        assert_eq!(whole(&mut pool, Match::any().tag(2)).unwrap().bytes, [2; 10]);
        assert!(pool.push(envelope(3, 10), Payload::private(&[3; 10])));
        let order: Vec<_> = std::iter::from_fn(|| whole(&mut pool, Match::any())).map(|m| m.envelope.tag).collect();
        assert_eq!(order, [1, 1, 3]);
        assert_eq!(pool.bytes().0, 0);
    }

    #[test]
    fn a_message_that_is_coming_holds_up_none_but_those_behind_it() {
        let mut pool = Pool::new(1000);
        let number = pool.next_number();
        assert!(pool.reserve(100));
        pool.insert_coming(envelope(1, 100), number);
        let other = |tag, priority, source| Envelope { source: NodeId(source), priority, ..envelope(tag, 1) };
        let others = [(2, Priority::Normal, 1), (3, Priority::High, 1), (4, Priority::Normal, 2), (5, Priority::Normal, 1)];
        for (tag, priority, source) in others {
            assert!(pool.push(other(tag, priority, source), Payload::private(&[0])));
        }
        let mut next = |accepts: Match| match pool.take(&accepts) {
            Some(Pooled::Whole(message)) => message.envelope.tag,
            Some(Pooled::Coming(_)) => 1,
            _ => 0,
        };
        // Who does not accept it is not held up by it.
        assert_eq!(next(Match::any().tag(5)), 5);
        assert_eq!([(); 5].map(|()| next(Match::any())), [3, 4, 1, 2, 0]);
    }

    #[test]
    fn a_message_that_is_coming_keeps_its_place() {
        let mut pool = Pool::new(1000);
        let number = pool.next_number();
        assert!(pool.reserve(100) && pool.push(envelope(1, 1), Payload::private(&[1])));
        pool.insert_coming(envelope(1, 100), number);
        assert!(matches!(pool.take(&Match::any()), Some(Pooled::Coming(named)) if named == number));
        // Its receive was cancelled.
        pool.reserve_anyway(100);
        pool.insert_coming(envelope(1, 100), number);
        assert!(!pool.find(&Match::any()).unwrap().is_whole());
        assert!(pool.complete(number, vec![7; 100]) && !pool.complete(number + 10, Vec::new()));
        assert!(matches!(pool.take(&Match::any()), Some(Pooled::Whole(message)) if message.bytes == [7; 100]));
        assert!(matches!(pool.take(&Match::any()), Some(Pooled::Whole(message)) if message.bytes == [1]));
        assert_eq!(pool.bytes().0, 0);
    }
}
