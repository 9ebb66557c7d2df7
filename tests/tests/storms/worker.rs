//! One of the four processes under traffic. It sends numbered messages of all kinds to all others, checks what it receives, and
//! records its progress in shared words, which survive it.

use doorbell::{
    Completion, CopySide, Envelope, Error, Event, Incarnation, Match, Node, NodeId, Operation, Peer, Priority, Received,
};
use doorbell_tests::patience::soon;
use doorbell_tests::process::{told, told_as};
use doorbell_tests::words::{Words, now};
use doorbell_tests::world::Lots;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{self, TryRecvError};
use std::time::{Duration, Instant};

pub const NODES: usize = 4;
/// Addresses that the lives of one place have in turn.
pub const TURNS: usize = 8;
/// The priorities that carry traffic.
pub const PRIORITIES: [Priority; 2] = [Priority::High, Priority::Normal];

/// The shared words. Counts carry the life they belong to in their upper half.
pub mod at {
    use super::NODES;
    /// Not zero when all are to leave.
    pub const STOP: usize = 0;
    /// The incarnation of the process in a place, once it has joined.
    pub fn incarnation(node: usize) -> usize {
        8 + node
    }
    fn pair(block: usize, one: usize, other: usize) -> usize {
        16 + (block * NODES + one) * NODES + other
    }
    /// What `from` has sent to `to`: the incarnation of `to`, and how many.
    pub fn sent(from: usize, to: usize, priority: usize) -> usize {
        pair(priority, from, to)
    }
    /// What `to` has received from `from`: the incarnation of `from`, and how many.
    pub fn received(to: usize, from: usize, priority: usize) -> usize {
        pair(2 + priority, to, from)
    }
    /// Which life of `dead` `node` was last told of as dead, and when.
    pub fn told(node: usize, dead: usize) -> (usize, usize) {
        (pair(4, node, dead), pair(5, node, dead))
    }
    /// When the receive that `node` had pending from `dead` was seen to have failed.
    pub fn failed(node: usize, dead: usize) -> usize {
        pair(6, node, dead)
    }
    /// Which life of `dead` `node` has done with: all received, operations failed.
    pub fn done(node: usize, dead: usize) -> usize {
        pair(7, node, dead)
    }
    pub const COUNT: usize = 16 + 8 * NODES * NODES;
}

/// The number of a message and a life in one word.
pub fn count_of(incarnation: Incarnation, count: u32) -> u64 {
    (incarnation.0 as u64) << 32 | count as u64
}

/// A tag that no node sends.
const NEVER: u64 = u64::MAX;
const LENGTHS: [usize; 8] = [16, 40, 41, 200, 3000, 17, 60_000, 20_000];

fn length(number: u32, priority: Priority) -> usize {
    let len = LENGTHS[number as usize % LENGTHS.len()];
    if priority == Priority::High { len.min(3000) } else { len }
}

/// One connection to one incarnation of another node.
struct Way {
    peer: Peer,
    /// Messages sent, and so the number of the next.
    sent: u32,
    /// The next, if it is under way.
    request: Option<Operation<Completion<Vec<u8>>>>,
}

struct Other {
    incarnation: Incarnation,
    ways: [Way; 2],
    /// A receive that nothing but the other's end can complete.
    pending: Option<Operation<Received<Vec<u8>>>>,
}

struct Worker {
    me: usize,
    node: Node,
    words: Arc<Words>,
    events: mpsc::Receiver<Event>,
    others: HashMap<usize, Other>,
    expected: HashMap<(NodeId, Incarnation, Priority), u32>,
    buf: Vec<u8>,
}

/// The role.
pub fn work() {
    let me: usize = told_as("ME");
    let words = Arc::new(Words::inherited());
    let builder = Node::builder(told("DOMAIN")).id(me as u16);
    let builder = builder.progress(told_as("PROGRESS")).wait(told_as("WAIT"));
    // Long messages are moved from both ends, whatever is faster here.
    let builder = match told_as::<u16>("PORT") {
        0 => builder,
        // Each message by any link that there is.
        base => {
            // The kernel may take seconds to give the address of a killed process back.
            let address = |node: usize, turn: usize| ([127, 0, 0, 1], base + (TURNS * node + turn) as u16);
            let own = address(me, told_as("TURN"));
            let builder = builder.listen(own).policy(Lots::new(u64::from(std::process::id())));
            let others = (0..NODES).filter(|node| *node != me).flat_map(|node| (0..TURNS).map(move |turn| address(node, turn)));
            others.fold(builder, doorbell::NodeBuilder::seek)
        }
    };
    let node = builder.copy(CopySide::Both).join().unwrap();
    words[at::incarnation(me)].store(node.incarnation().0 as u64, SeqCst);
    let (sender, events) = mpsc::channel();
    let watcher = {
        let (node, words) = (node.clone(), words.clone());
        std::thread::spawn(move || watch(me, &node, &words, &sender))
    };
    let mut worker = Worker { me, node, words, events, others: HashMap::new(), expected: HashMap::new(), buf: vec![0; 64 << 10] };
    while worker.words[at::STOP].load(SeqCst) == 0 {
        worker.take_note();
        worker.send();
        worker.receive();
    }
    worker.others.clear();
    worker.node.leave().unwrap();
    watcher.join().unwrap();
}

/// A thread that waits for events and does nothing else, so that it hears of them as late as any thread does.
fn watch(me: usize, node: &Node, words: &Words, sender: &mpsc::Sender<Event>) {
    loop {
        match node.event(Instant::now() + Duration::from_millis(500)) {
            Ok(event) => {
                if let Event::Died { node, incarnation } = event {
                    let (which, when) = at::told(me, node.index());
                    words[when].store(now(), SeqCst);
                    words[which].store(incarnation.0 as u64, SeqCst);
                }
                if sender.send(event).is_err() {
                    return;
                }
            }
            Err(Error::Timeout { .. }) => {}
            Err(Error::Closed) => return,
            Err(error) => panic!("waiting for events: {error}"),
        }
    }
}

impl Worker {
    fn take_note(&mut self) {
        loop {
            match self.events.try_recv() {
                Ok(Event::Joined { node, incarnation }) if node.index() != self.me => self.welcome(node, incarnation),
                Ok(Event::Died { node, incarnation }) => self.bury(node, incarnation),
                Ok(Event::Damaged { node, reason }) => panic!("node {node}: {reason}"),
                Ok(_) => {}
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) if self.words[at::STOP].load(SeqCst) != 0 => break,
                Err(TryRecvError::Disconnected) => panic!("the watcher has ended"),
            }
        }
        for (dead, other) in &self.others {
            if other.pending.as_ref().is_some_and(Operation::test) && self.words[at::failed(self.me, *dead)].load(SeqCst) == 0 {
                self.words[at::failed(self.me, *dead)].store(now(), SeqCst);
            }
        }
    }

    fn welcome(&mut self, node: NodeId, incarnation: Incarnation) {
        self.words[at::failed(self.me, node.index())].store(0, SeqCst);
        let [Ok(high), Ok(normal)] = PRIORITIES.map(|priority| self.node.peer_with_priority(node, priority)) else {
            // It is gone again; then that is the next event.
            return;
        };
        if high.incarnation() != incarnation || normal.incarnation() != incarnation {
            return;
        }
        let pending = self.node.start_recv(Match::any().incarnation(node, incarnation).tag(NEVER), vec![0; 8]).unwrap();
        let ways = [high, normal].map(|peer| Way { peer, sent: 0, request: None });
        self.others.insert(node.index(), Other { incarnation, ways, pending: Some(pending) });
    }

    fn bury(&mut self, node: NodeId, incarnation: Incarnation) {
        let names_it = |error: &Error| matches!(error, Error::PeerDied { node: dead, incarnation: gone } if (*dead, *gone) == (node, incarnation));
        // Everything it had published comes first, then the error that names it.
        loop {
            match self.node.recv_until(Match::any().incarnation(node, incarnation), &mut self.buf, soon()) {
                Ok(envelope) => self.check(&envelope),
                Err(error) if names_it(&error) => break,
                Err(error) => panic!("receiving from dead node {node} ({incarnation:?}): {error}"),
            }
        }
        if self.others.get(&node.index()).is_some_and(|other| other.incarnation == incarnation)
            && let Some(mut other) = self.others.remove(&node.index())
        {
            for way in &mut other.ways {
                let results = [
                    way.peer.send_until(0, b"too late", soon()),
                    way.peer.recv_until(Match::any(), &mut [0; 8], soon()).map(drop),
                    way.request.take().map_or_else(|| way.peer.try_send(0, b"too late"), |request| ended(request).map(drop)),
                ];
                for (index, result) in results.into_iter().enumerate() {
                    let sent_before = index == 2 && result.is_ok();
                    assert!(
                        sent_before || result.as_ref().is_err_and(names_it),
                        "operation {index} with dead node {node} ({incarnation:?}): {result:?}"
                    );
                }
            }
            let failed = other.pending.take().map(ended);
            assert!(
                failed.as_ref().is_some_and(|result| result.as_ref().is_err_and(names_it)),
                "a receive from dead node {node} ({incarnation:?}): {failed:?}"
            );
            let when = &self.words[at::failed(self.me, node.index())];
            let _ = when.compare_exchange(0, now(), SeqCst, SeqCst);
        }
        self.words[at::done(self.me, node.index())].store(incarnation.0 as u64, SeqCst);
    }

    fn send(&mut self) {
        for (to, other) in &mut self.others {
            for (way, priority) in other.ways.iter_mut().zip(PRIORITIES) {
                if send_one(way, priority, &self.words) {
                    way.sent += 1;
                    self.words[at::sent(self.me, *to, priority.index())].store(count_of(other.incarnation, way.sent), SeqCst);
                }
            }
        }
    }

    fn receive(&mut self) {
        // For longer than sending took, or what waits in the pool grows, and with it the time until it is looked at.
        let until = Instant::now() + Duration::from_millis(15);
        for turn in (0..).take_while(|_| Instant::now() < until) {
            let deadline = Instant::now() + Duration::from_millis(1);
            let received = if turn % 4 == 3 {
                let buf = &mut self.buf;
                self.node.recv_with_until(Match::any(), deadline, |envelope, payload| {
                    payload.copy_to(buf);
                    *envelope
                })
            } else {
                self.node.recv_until(Match::any(), &mut self.buf, deadline)
            };
            match received {
                Ok(envelope) => self.check(&envelope),
                Err(Error::Timeout { .. }) => return,
                Err(error) => panic!("receiving: {error}"),
            }
        }
    }

    /// A message is the next of its life and priority, meant for this life, and whole.
    fn check(&mut self, envelope: &Envelope) {
        let expected = self.expected.entry((envelope.source, envelope.incarnation, envelope.priority)).or_default();
        let word = |at: usize| u32::from_ne_bytes(self.buf[at..at + 4].try_into().unwrap());
        let (number, meant_for) = (word(0), word(4));
        assert_eq!(number, *expected, "node {} lost or repeated a message of {envelope:?}", self.me);
        assert_eq!(meant_for, self.node.incarnation().0, "meant for another life of node {}: {envelope:?}", self.me);
        assert_eq!((envelope.tag, envelope.len), (number as u64, length(number, envelope.priority)), "{envelope:?}");
        assert!(self.buf[8..envelope.len].iter().all(|byte| *byte == number as u8), "a torn message: {envelope:?}");
        *expected += 1;
        let (from, priority) = (envelope.source.index(), envelope.priority.index());
        self.words[at::received(self.me, from, priority)].store(count_of(envelope.incarnation, *expected), SeqCst);
    }
}

/// Sends the next message of a connection in a random form. True if it is sent now.
fn send_one(way: &mut Way, priority: Priority, words: &Words) -> bool {
    let outcome = if let Some(request) = way.request.take() {
        if !request.test() {
            way.request = Some(request);
            return false;
        }
        ended(request).map(drop)
    } else {
        let mut message = vec![way.sent as u8; length(way.sent, priority)];
        message[..4].copy_from_slice(&way.sent.to_ne_bytes());
        message[4..8].copy_from_slice(&way.peer.incarnation().0.to_ne_bytes());
        let tag = way.sent as u64;
        match way.sent % 5 {
            0..=2 => way.peer.try_send(tag, &message),
            3 => way.peer.send_until(tag, &message, Instant::now() + Duration::from_millis(2)),
            _ => match way.peer.start_send(tag, message) {
                Ok(request) => {
                    way.request = Some(request);
                    return false;
                }
                Err(error) => Err(error),
            },
        }
    };
    match outcome {
        Ok(()) => true,
        Err(Error::Full { .. } | Error::Timeout { .. } | Error::PeerDied { .. }) => false,
        // All are told to leave at once, and the peer may be the first to do so.
        Err(Error::PeerLeft { .. }) if words[at::STOP].load(SeqCst) != 0 => false,
        Err(error) => panic!("sending to node {}: {error}", way.peer.id()),
    }
}

/// The result of a request that must end.
fn ended<B, R>(request: Operation<Completion<B, R>>) -> doorbell::Result<R> {
    match request.wait_until(soon()) {
        Ok(completion) => completion.result,
        Err(_) => panic!("an operation hangs"),
    }
}
