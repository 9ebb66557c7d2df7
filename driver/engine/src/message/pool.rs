//! The pool: messages that arrived before a receive asked for them.

use super::{Match, Message};
use crate::message::lending::Lent;
use doorbell_fabric::{Envelope, NodeId, Payload};
use std::collections::{BTreeMap, VecDeque};

/// A message in the pool.
#[derive(Debug)]
pub struct Entry {
    /// The message's envelope.
    pub envelope: Envelope,
    bytes: Bytes,
    /// Its place in the order of arrival. For a message that is still coming, this is also the name of its transfer.
    number: u64,
}

/// Location of a pooled message's bytes.
#[derive(Debug)]
enum Bytes {
    /// Not complete yet; a transfer brings them.
    Coming,
    /// In private memory.
    Private(Vec<u8>),
    /// In their owner's memory, as a loan. Nothing is copied, and they take no room.
    Lent(Lent),
}

impl Entry {
    /// Its number among the messages of the pool.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the message is complete.
    pub fn is_whole(&self) -> bool {
        !matches!(self.bytes, Bytes::Coming)
    }

    /// The bytes for which room was reserved.
    fn reserved(&self) -> usize {
        if matches!(self.bytes, Bytes::Lent(_)) { 0 } else { self.envelope.len }
    }
}

/// A message taken from the pool.
#[derive(Debug)]
pub enum Pooled {
    /// A complete message.
    Whole(Message),
    /// A lent message.
    Lent(Envelope, Lent),
    /// A message that is still coming, by its transfer's name.
    Coming(u64),
}

/// The bytes that a message counts in addition to its own.
const OVERHEAD: usize = 64;

/// The number of entries of a sender for which memory is kept when the sender has none.
const KEPT: usize = 16;

/// Unexpected messages in the order in which they arrived, bounded in bytes.
#[derive(Debug)]
pub struct Pool {
    /// By sender, so that a receive from one node does not search the messages of others.
    senders: BTreeMap<NodeId, VecDeque<Entry>>,
    len: usize,
    arrivals: u64,
    used: usize,
    limit: usize,
    most: usize,
}

impl Pool {
    /// An empty pool of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { senders: BTreeMap::new(), len: 0, arrivals: 0, used: 0, limit, most: 0 }
    }

    /// Whether no message waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many messages wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes in use, and the most that ever were.
    pub fn bytes(&self) -> (usize, usize) {
        (self.used, self.most)
    }

    /// Reserves room for a message of `len` bytes that arrives in pieces. False if there is no room.
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

    /// Reserves room even beyond the limit, for the rest of a message that can no longer be refused.
    pub fn reserve_anyway(&mut self, len: usize) {
        self.used = self.used.saturating_add(len).saturating_add(OVERHEAD);
        self.most = self.most.max(self.used);
    }

    /// Releases a reservation.
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

    /// Adds a message for which room was reserved.
    pub fn push_reserved(&mut self, message: Message) {
        let number = self.next_number();
        self.append(Entry { envelope: message.envelope, bytes: Bytes::Private(message.bytes), number });
    }

    /// Adds a lent message. Room was reserved as for a message without bytes.
    pub fn push_lent(&mut self, envelope: Envelope, lent: Lent) {
        let number = self.next_number();
        self.append(Entry { envelope, bytes: Bytes::Lent(lent), number });
    }

    /// Puts back a message that was taken and not delivered: in front of those that followed it, even beyond the limit.
    pub fn put_back(&mut self, Message { envelope, bytes }: Message) {
        self.reserve_anyway(bytes.len());
        let lane = |envelope: &Envelope| (envelope.incarnation, envelope.priority);
        let follows = |entry: &Entry| {
            lane(&entry.envelope) == lane(&envelope) && (entry.envelope.sequence.wrapping_sub(envelope.sequence) as i32) > 0
        };
        let messages = self.senders.entry(envelope.source).or_default();
        let found = messages.iter().position(follows).map(|at| (at, messages[at].number));
        let (at, number) = found.unwrap_or_else(|| {
            self.arrivals += 1;
            (messages.len(), self.arrivals)
        });
        messages.insert(at, Entry { envelope, bytes: Bytes::Private(bytes), number });
        self.len += 1;
    }

    fn append(&mut self, entry: Entry) {
        self.senders.entry(entry.envelope.source).or_default().push_back(entry);
        self.len += 1;
    }

    /// The number for a message that arrives now.
    pub fn next_number(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// Adds a message that is still coming, in its place. Room was reserved.
    pub fn insert_coming(&mut self, envelope: Envelope, number: u64) {
        let messages = self.senders.entry(envelope.source).or_default();
        let at = messages.partition_point(|entry| entry.number < number);
        messages.insert(at, Entry { envelope, bytes: Bytes::Coming, number });
        self.len += 1;
    }

    /// Completes the message with this number. False if it is not in the pool.
    pub fn complete(&mut self, source: NodeId, number: u64, bytes: Vec<u8>) -> bool {
        let Some(at) = self.place(source, number) else { return false };
        let entry = self.senders.get_mut(&source).and_then(|messages| messages.get_mut(at));
        entry.map(|entry| entry.bytes = Bytes::Private(bytes)).is_some()
    }

    /// Removes the message with this number, which is no longer coming.
    pub fn remove(&mut self, source: NodeId, number: u64) {
        if let Some(at) = self.place(source, number)
            && let Some(entry) = self.extract(source, at)
        {
            self.release(entry.reserved());
        }
    }

    fn place(&self, source: NodeId, number: u64) -> Option<usize> {
        let messages = self.senders.get(&source)?;
        let first = messages.partition_point(|entry| entry.number < number);
        // A message that was put back has the number of the one behind it.
        let mut same = messages.iter().enumerate().skip(first).take_while(|(_, entry)| entry.number == number);
        same.find(|(_, entry)| !entry.is_whole()).map(|(at, _)| at)
    }

    fn extract(&mut self, source: NodeId, at: usize) -> Option<Entry> {
        let messages = self.senders.get_mut(&source)?;
        let entry = messages.remove(at)?;
        if messages.is_empty() {
            messages.shrink_to(KEPT);
        }
        self.len -= 1;
        Some(entry)
    }

    /// The message that a receive would get, left in place.
    pub fn find(&self, accepted: &Match) -> Option<&Entry> {
        self.pick(accepted).and_then(|(source, at)| self.senders.get(&source)?.get(at))
    }

    /// The first message that a receive accepts, preferring complete ones: a message that is still coming, perhaps from a
    /// stopped process, must not delay a complete one of another sender.
    fn pick(&self, accepted: &Match) -> Option<(NodeId, usize)> {
        if self.len == 0 {
            return None;
        }
        if let Some(source) = accepted.bound_to() {
            return Some((source, pick_from(self.senders.get(&source)?, accepted, u64::MAX)?));
        }
        let mut best: Option<(bool, u64, NodeId, usize)> = None;
        for (source, messages) in &self.senders {
            // Messages that arrived later than a complete one are skipped.
            let before = best.filter(|(is_coming, ..)| !is_coming).map_or(u64::MAX, |(_, number, ..)| number);
            if let Some(at) = pick_from(messages, accepted, before) {
                let this = (!messages[at].is_whole(), messages[at].number, *source, at);
                best = best.into_iter().chain([this]).min();
            }
        }
        best.map(|(_, _, source, at)| (source, at))
    }

    /// Takes the message that a receive would get.
    pub fn take(&mut self, accepted: &Match) -> Option<Pooled> {
        let (source, at) = self.pick(accepted)?;
        let entry = self.extract(source, at)?;
        self.release(entry.reserved());
        let Entry { envelope, bytes, number } = entry;
        Some(match bytes {
            Bytes::Private(bytes) => Pooled::Whole(Message { envelope, bytes }),
            Bytes::Lent(lent) => Pooled::Lent(envelope, lent),
            Bytes::Coming => Pooled::Coming(number),
        })
    }
}

/// The first of one sender's messages that a receive accepts, among those that arrived before `before`. Order is kept among
/// messages of one incarnation and priority.
fn pick_from(messages: &VecDeque<Entry>, accepted: &Match, before: u64) -> Option<usize> {
    let mut coming = None;
    // Incarnations and priorities of which no later message may be taken: a handful, if any.
    let mut waiting = Vec::new();
    let earlier = messages.iter().enumerate().take_while(|(_, entry)| entry.number < before);
    for (at, entry) in earlier.filter(|(_, entry)| accepted.matches(&entry.envelope)) {
        let lane = (entry.envelope.incarnation, entry.envelope.priority);
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
        // A receive that does not accept it is not held up by it.
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
        assert!(pool.complete(NodeId(1), number, vec![7; 100]) && !pool.complete(NodeId(1), number + 10, Vec::new()));
        assert!(matches!(pool.take(&Match::any()), Some(Pooled::Whole(message)) if message.bytes == [7; 100]));
        assert!(matches!(pool.take(&Match::any()), Some(Pooled::Whole(message)) if message.bytes == [1]));
        assert_eq!(pool.bytes().0, 0);
    }

    #[test]
    fn what_is_put_back_comes_before_what_followed_it() {
        let mut pool = Pool::new(1000);
        let number = pool.next_number();
        assert!(pool.reserve(100));
        let numbered = |sequence, len| Envelope { sequence, ..envelope(u64::from(sequence), len) };
        pool.insert_coming(numbered(2, 100), number);
        assert!(pool.push(numbered(3, 1), Payload::private(&[3])));
        pool.put_back(Message { envelope: numbered(1, 1), bytes: vec![1] });
        pool.put_back(Message { envelope: numbered(0, 1), bytes: vec![0] });
        assert!(pool.complete(NodeId(1), number, vec![2; 100]) && !pool.complete(NodeId(1), number, Vec::new()));
        let order = std::iter::from_fn(|| match pool.take(&Match::any()) {
            Some(Pooled::Whole(message)) => Some((message.envelope.sequence, message.bytes[0])),
            _ => None,
        });
        assert_eq!(order.collect::<Vec<_>>(), [(0, 0), (1, 1), (2, 2), (3, 3)]);
        assert_eq!(pool.bytes().0, 0);
    }

    #[test]
    fn messages_of_several_senders_come_in_the_order_of_their_arrival() {
        let mut pool = Pool::new(1 << 20);
        for (tag, source) in [(1, 5), (2, 1), (3, 5), (4, 2), (5, 1)] {
            assert!(pool.push(Envelope { source: NodeId(source), ..envelope(tag, 1) }, Payload::private(&[0])));
        }
        let mut next = |accepts: Match| match pool.take(&accepts) {
            Some(Pooled::Whole(message)) => (message.envelope.tag, pool.len()),
            _ => (0, pool.len()),
        };
        assert_eq!(next(Match::from(NodeId(2))), (4, 4));
        assert_eq!(next(Match::from(NodeId(2))), (0, 4));
        assert_eq!([(); 5].map(|()| next(Match::any())), [(1, 3), (2, 2), (3, 1), (5, 0), (0, 0)]);
    }
}
