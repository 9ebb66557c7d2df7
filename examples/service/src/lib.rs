//! A key-value store: each node keeps the values of some keys, and asks the owner for the others.
//!
//! It shows how a program adds a service of its own to Doorbell: a type that implements [`Service`] gets the packets of its class and turns of the
//! engine, and [`ServiceHandle`] brings the program's threads to it. Nothing here knows by which fabric packets go.

use doorbell::service::{Class, CloseReason, Gone, Outbox, PacketKind, PeerId, Service, ServiceHandle, Verdict, Wants};
use doorbell::{Error, Node, NodeId, Payload, Priority, Result};
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// Bytes of the longest key and value. A packet has room for both.
pub const BYTES_MAX: usize = 24;
/// Requests of one peer that may wait for their answers. Its packets stay in their lane beyond that.
const WAITING_MAX: usize = 64;

/// A packet is a request to put (1) or get (2), or the answer to one (3). The rest of the tag is the number of the request.
const PUT: u64 = 1 << 56;
const GET: u64 = 2 << 56;
const ANSWER: u64 = 3 << 56;
const NUMBER: u64 = PUT - 1;

/// An answer, as the bytes of a value; `None` if the key is unknown.
type Answer = Option<Vec<u8>>;

/// The service: the values of this node, and what it has asked others.
#[derive(Default)]
struct Store {
    values: HashMap<Vec<u8>, Vec<u8>>,
    out: VecDeque<(PeerId, u64, Vec<u8>)>,
    asked: HashMap<u64, (PeerId, Option<Result<Answer>>)>,
    next: u64,
}

impl Class for Store {
    const CLASS: PacketKind = PacketKind::User0;
}

impl Service for Store {
    fn receive(&mut self, from: PeerId, _: Priority, tag: u64, payload: Payload<'_>) -> Verdict {
        let (kind, number, bytes) = (tag & !NUMBER, tag & NUMBER, payload.to_vec());
        if kind == ANSWER {
            // An answer to a request that was given up, or was never made, is for nobody.
            if let Some((_, answer)) = self.asked.get_mut(&number).filter(|(asked, _)| *asked == from) {
                *answer = Some(Ok(bytes.split_first().filter(|(known, _)| **known == 1).map(|(_, value)| value.to_vec())));
            }
            return Verdict::Taken;
        }
        if self.out.iter().filter(|(to, ..)| *to == from).count() >= WAITING_MAX {
            return Verdict::Refused;
        }
        let Some((key, value)) = split(&bytes) else { return Verdict::Broken("a request without a key") };
        let found = match kind {
            PUT => self.values.insert(key.to_vec(), value.to_vec()),
            GET => self.values.get(key).cloned(),
            _ => return Verdict::Broken("a request of no kind"),
        };
        let answer = found.map_or(vec![0], |value| [&[1], &value[..]].concat());
        self.out.push_back((from, ANSWER | number, answer));
        Verdict::Taken
    }

    fn progress(&mut self, out: &mut Outbox<'_>) -> usize {
        out.push_all(&mut self.out, Priority::Normal, |(to, tag, bytes)| (*to, *tag, bytes))
    }

    fn wants(&self) -> Wants {
        if self.out.is_empty() { Wants::Nothing } else { Wants::Soon }
    }

    fn peer_gone(&mut self, peer: PeerId, why: Gone) {
        self.out.retain(|(to, ..)| *to != peer);
        for (_, answer) in self.asked.values_mut().filter(|(asked, answer)| *asked == peer && answer.is_none()) {
            *answer = Some(Err(why.error(peer)));
        }
    }

    fn close(&mut self, why: CloseReason) {
        self.out.clear();
        self.asked.values_mut().for_each(|(_, answer)| *answer = Some(Err(why.error())));
    }
}

/// A key and a value from bytes: the length of the key, the key, the value.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*len))
}

/// A node's way to the store. Clones are handles to the same store; all calls are thread-safe, and wait for the owner's answer until a deadline.
#[derive(Clone, Debug)]
pub struct KeyValue(ServiceHandle<Store>);

impl KeyValue {
    /// Joins a domain as a node of the store. `node` says how.
    ///
    /// # Errors
    /// As [`doorbell::NodeBuilder::join`].
    pub fn join(node: doorbell::NodeBuilder) -> Result<Self> {
        Ok(Self(ServiceHandle::open(&node.service(Store::default).join()?)?))
    }

    /// The node.
    pub fn node(&self) -> &Node {
        self.0.node()
    }

    /// Has `owner` keep a value for a key. The value that it had before.
    ///
    /// # Errors
    /// [`Error::Invalid`]: key or value are longer than [`BYTES_MAX`]. [`Error::NoSuchNode`], [`Error::PeerDied`], [`Error::PeerLeft`]; [`Error::Timeout`]: the value
    /// may have been kept.
    pub fn put(&self, owner: NodeId, key: &[u8], value: &[u8], deadline: Instant) -> Result<Answer> {
        self.ask(PUT, owner, key, value, deadline)
    }

    /// The value that `owner` keeps for a key. `None`: it has none.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn get(&self, owner: NodeId, key: &[u8], deadline: Instant) -> Result<Answer> {
        self.ask(GET, owner, key, &[], deadline)
    }

    fn ask(&self, kind: u64, owner: NodeId, key: &[u8], value: &[u8], deadline: Instant) -> Result<Answer> {
        if key.len().max(value.len()) > BYTES_MAX {
            return Err(Error::Invalid { what: format!("keys and values have at most {BYTES_MAX} bytes; use a shorter one") });
        }
        let owner = self.node().peer(owner)?;
        let owner = PeerId { node: owner.id(), incarnation: owner.incarnation() };
        let number = self.0.call(|store| {
            store.next += 1;
            store.asked.insert(store.next, (owner, None));
            let bytes = [&[key.len() as u8], key, value].concat();
            store.out.push_back((owner, kind | store.next, bytes));
            store.next
        })?;
        let answered = self.0.wait_until(deadline, |store| store.asked.get_mut(&number)?.1.take());
        self.0.call(|store| store.asked.remove(&number))?;
        answered?
    }
}
