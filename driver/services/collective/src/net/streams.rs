//! How the bytes get there: a stream of messages to and from each other member of a team, in packets that a lane delivers in order.
//!
//! A data packet is a head of [`HEAD`] bytes and a piece of a message. The pieces of a message come in order, and so do the messages. Each piece says to
//! which call its message belongs, the number of the message among those of this call between these two members, and how long it is. So members that call
//! different operations notice.
//!
//! A sender has at most [`WINDOW`] bytes of packets on the way that the receiver has not reported as taken. A piece of an expected message goes straight to
//! its place and counts as taken; a piece that comes early is kept. The receiver reports each time that it has taken a quarter of the window. That is soon
//! enough: when it has taken everything, less than a quarter is unreported.
//!
//! A member that finds that members called different operations, or that drops a run before its end, tells all others that nothing goes on. So no member
//! waits for ever.
//!
//! Everything that comes is checked before it is used.

use super::memory::Memory;
use super::place::Place;
use super::schedule::{Algorithm, Operation};
use doorbell_fabric::{Payload, Verdict};
use std::collections::VecDeque;

/// Bytes of packets, heads included, that may be on the way from one member to another, or wait there.
pub const WINDOW: usize = 256 << 10;
/// Bytes before the piece of a message.
pub const HEAD: usize = 32;
/// The least part of the window that a sender waits for, and after which a receiver reports.
const QUARTER: usize = WINDOW / 4;

/// Which operation, by which algorithm, with which root. All members have to call the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call(u32);

impl Call {
    /// An operation that goes by this algorithm. `between` is the algorithm of the leaders of boxes, if there are two levels.
    pub fn new(operation: &Operation<'_>, algorithm: Algorithm, between: Option<Algorithm>) -> Self {
        let between = between.map_or(0, |between| between as u32 + 1);
        let root = operation.root as u16;
        Self((operation.kind as u32) << 24 | between << 20 | (algorithm as u32) << 16 | u32::from(root))
    }
}

/// The message that a piece belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// The number of the call in its team, from 1.
    pub sequence: u64,
    pub call: Call,
    /// The number of the message among those of the call from this member to that one, from 0.
    pub index: u32,
    /// Bytes of the message.
    pub len: u64,
}

/// Members called different operations, or with different lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The member whose message does not fit.
    pub rank: usize,
    /// The message that this member waited for. If it waited for none from there: message 0, of 0 bytes, of the call that it has made.
    pub expected: Said,
    /// The message that came.
    pub found: Said,
}

/// Why no operation of the team can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Members called different operations.
    Mismatch(Mismatch),
    /// This member gave up an operation before its end. Others may still wait for its messages.
    GivenUp,
    /// The reduction of the application panicked.
    Panicked,
    /// Another member says that nothing can go on.
    Ended { rank: usize },
}

/// The kind of a packet. Its tag has the team in the upper half, below that this kind, and nothing in the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// A head and a piece of a message.
    Data = 1,
    /// How many bytes were taken since the team began.
    Taken = 2,
    /// Nothing goes on any more. No bytes.
    Ended = 3,
}

/// The team that a packet is for, from its tag.
pub const fn team_of(tag: u64) -> u32 {
    (tag >> 32) as u32
}

impl Word {
    fn tag(self, team: u32) -> u64 {
        u64::from(team) << 32 | (self as u64) << 24
    }

    fn from_tag(tag: u64) -> Option<Self> {
        [Self::Data, Self::Taken, Self::Ended].into_iter().find(|word| word.tag(team_of(tag)) == tag)
    }
}

/// The head of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    said: Said,
    /// Where in the message the piece begins.
    offset: u64,
}

impl Head {
    fn encode(&self) -> [[u8; 8]; HEAD / 8] {
        let Said { sequence, call, index, len } = self.said;
        let words = [sequence, u64::from(call.0) | u64::from(index) << 32, self.offset, len];
        words.map(u64::to_le_bytes)
    }

    fn decode(payload: Payload<'_>) -> Option<(Self, Payload<'_>)> {
        let word = |index: usize| payload.u64_at(index * 8).map(u64::from_le);
        let name = word(1)?;
        let said = Said { sequence: word(0)?, call: Call(name as u32), index: (name >> 32) as u32, len: word(3)? };
        Some((Self { said, offset: word(2)? }, payload.slice(HEAD, payload.len() - HEAD)?))
    }
}

/// A message on its way in or out.
struct Message {
    said: Said,
    place: Place,
    /// Bytes that were sent or have come.
    done: usize,
}

impl Message {
    fn left(&self) -> usize {
        self.place.len() - self.done
    }

    /// The next `len` bytes.
    fn piece(&self, len: usize) -> Place {
        let start = self.place.range.start + self.done;
        Place { region: self.place.region, range: start..start + len }
    }
}

/// The latest packet that was offered.
enum Offer {
    Data(usize),
    Taken(u64),
    Ended,
}

/// The streams to and from one member.
#[derive(Default)]
struct Peer {
    /// To be sent, in order.
    out: VecDeque<Message>,
    /// Messages of this call so far.
    out_index: u32,
    /// Bytes of packets sent, and the number of them that the peer has reported as taken.
    sent: u64,
    acked: u64,
    offer: Option<Offer>,
    /// Whether it knows that nothing goes on any more.
    knows: bool,

    /// To come, in order.
    expected: VecDeque<Message>,
    expected_index: u32,
    /// Pieces that came before they were expected: heads with their numbers of bytes, and the bytes. Only while nothing is expected.
    early: VecDeque<(Head, usize)>,
    early_bytes: Vec<u8>,
    /// The number of these bytes that have gone to their place.
    early_read: usize,
    /// The message of the latest piece, and how much of it has come.
    current: Option<(Said, u64)>,
    /// Bytes of packets that came, bytes that were taken, and bytes that were reported as taken.
    received: u64,
    taken: u64,
    reported: u64,
}

impl Peer {
    fn has_report(&self) -> bool {
        self.taken - self.reported >= QUARTER as u64
    }

    /// The bytes of the front message in the next packet, which has at most `packet` bytes. `None` while there is no message, or no room for it.
    fn piece(&self, packet: usize) -> Option<usize> {
        let left = self.out.front()?.left();
        let room = WINDOW - (self.sent - self.acked) as usize;
        let whole = (HEAD + left).min(QUARTER);
        (whole <= room).then(|| left.min(packet.min(QUARTER) - HEAD))
    }

    /// Whether a piece can follow the latest one.
    fn follows(&self, head: &Head, len: usize) -> Result<(), &'static str> {
        let said = head.said;
        let begins_well = match self.current {
            Some((last, have)) if have < last.len => {
                if said != last || head.offset != have {
                    return Err("a piece of a collective's message that doesn't continue the one before");
                }
                true
            }
            // Numbers go on by one, or begin again with a later call.
            Some((last, _)) if said.sequence == last.sequence => {
                last.index.checked_add(1) == Some(said.index) && head.offset == 0
            }
            Some((last, _)) => said.sequence > last.sequence && said.index == 0 && head.offset == 0,
            None => said.index == 0 && head.offset == 0,
        };
        if !begins_well {
            return Err("a message of a collective that is out of order");
        }
        let fits = head.offset.checked_add(len as u64).is_some_and(|end| end <= said.len);
        if !fits || len == 0 && said.len > 0 {
            return Err("a piece of a collective's message with more bytes than the message, or none");
        }
        Ok(())
    }
}

/// The streams between this member of a team and all others.
pub struct Streams {
    team: u32,
    me: usize,
    peers: Vec<Peer>,
    /// The latest call, and its number.
    call: Call,
    sequence: u64,
    /// Messages still to be sent or to come.
    pending: usize,
    failure: Option<Failure>,
}

impl Streams {
    /// The streams of member `me`. The team has this number at all its members.
    pub fn new(team: u32, me: usize, members: usize) -> Self {
        let peers = std::iter::repeat_with(Peer::default).take(members).collect();
        Self { team, me, peers, call: Call(u32::MAX), sequence: 0, pending: 0, failure: None }
    }

    /// The number of members.
    pub fn members(&self) -> usize {
        self.peers.len()
    }

    /// Why nothing goes on any more, if that is so.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Whether no message is still to be sent or to come.
    pub fn is_idle(&self) -> bool {
        self.pending == 0
    }

    /// Whether this member waits for a message from that one.
    pub fn awaits(&self, from: usize) -> bool {
        self.failure.is_none() && self.peers.get(from).is_some_and(|peer| !peer.expected.is_empty())
    }

    /// Whether there is a packet for a member.
    pub fn wants(&self, to: usize) -> bool {
        let Some(peer) = self.peers.get(to).filter(|_| to != self.me) else { return false };
        if self.failure.is_some() { !peer.knows } else { peer.has_report() || peer.piece(QUARTER).is_some() }
    }

    /// Puts the next packet for a member, of at most `packet` bytes (more than [`HEAD`]), into `room`, and returns its tag. It stays the next packet until
    /// [`sent`](Self::sent) is called. `memory` is that of the run under way.
    pub fn next(&mut self, memory: Option<&mut Memory>, to: usize, packet: usize, room: &mut Vec<u8>) -> Option<u64> {
        debug_assert!(packet > HEAD);
        if !self.wants(to) || packet <= HEAD {
            return None;
        }
        let peer = self.peers.get_mut(to)?;
        room.clear();
        if self.failure.is_some() {
            peer.offer = Some(Offer::Ended);
            return Some(Word::Ended.tag(self.team));
        }
        if peer.has_report() {
            peer.offer = Some(Offer::Taken(peer.taken));
            room.extend_from_slice(&peer.taken.to_le_bytes());
            return Some(Word::Taken.tag(self.team));
        }
        let len = peer.piece(packet)?;
        let message = peer.out.front()?;
        room.extend_from_slice(Head { said: message.said, offset: message.done as u64 }.encode().as_flattened());
        room.extend_from_slice(memory?.bytes(&message.piece(len)));
        peer.offer = Some(Offer::Data(len));
        Some(Word::Data.tag(self.team))
    }

    /// The latest packet that [`next`](Self::next) returned for this member is in the lane.
    pub fn sent(&mut self, to: usize) {
        let Some(peer) = self.peers.get_mut(to) else { return };
        match peer.offer.take() {
            Some(Offer::Taken(taken)) => peer.reported = taken,
            Some(Offer::Ended) => peer.knows = true,
            Some(Offer::Data(len)) => {
                peer.sent += (HEAD + len) as u64;
                if let Some(message) = peer.out.front_mut() {
                    message.done += len;
                    if message.left() == 0 {
                        peer.out.pop_front();
                        self.pending -= 1;
                    }
                }
            }
            None => (),
        }
    }

    /// A packet came from a member. `memory` is that of the run under way. If members called different operations the lane is not at fault: the packet is
    /// taken, and [`failure`](Self::failure) says so.
    ///
    /// After `Broken` no more packets may be taken from that member.
    pub fn take(&mut self, memory: Option<&mut Memory>, from: usize, tag: u64, payload: Payload<'_>) -> Verdict {
        if from == self.me || from >= self.peers.len() || team_of(tag) != self.team {
            return Verdict::Broken("a packet of a collective from no member of its team");
        }
        let result = match Word::from_tag(tag) {
            Some(Word::Data) => self.data(memory, from, payload),
            Some(Word::Taken) => self.acked(from, payload),
            Some(Word::Ended) if payload.is_empty() => {
                self.peers[from].knows = true;
                self.fail(Failure::Ended { rank: from });
                Ok(())
            }
            Some(Word::Ended) => Err("the end of a collective's team with bytes behind it"),
            None => Err("a packet of a collective of unknown kind"),
        };
        result.map_or_else(Verdict::Broken, |()| Verdict::Taken)
    }

    fn acked(&mut self, from: usize, payload: Payload<'_>) -> Result<(), &'static str> {
        let peer = &mut self.peers[from];
        let taken = payload.u64_at(0).filter(|_| payload.len() == 8).map(u64::from_le);
        peer.acked = taken
            .filter(|taken| (peer.acked..=peer.sent).contains(taken))
            .ok_or("a report of a collective that more was taken than was sent, or less than before")?;
        Ok(())
    }

    fn data(&mut self, memory: Option<&mut Memory>, from: usize, payload: Payload<'_>) -> Result<(), &'static str> {
        let peer = &mut self.peers[from];
        let (head, bytes) = Head::decode(payload).ok_or("a packet of a collective without its head")?;
        peer.follows(&head, bytes.len())?;
        let received = peer.received + payload.len() as u64;
        if received - peer.reported > WINDOW as u64 {
            return Err("more of a collective than its window holds");
        }
        peer.received = received;
        peer.current = Some((head.said, head.offset + bytes.len() as u64));
        if self.failure.is_some() {
            return Ok(());
        }
        if !peer.expected.is_empty() {
            match memory {
                Some(memory) => self.store(memory, from, &head, bytes),
                None => self.give_up(),
            }
            return Ok(());
        }
        peer.early.push_back((head, bytes.len()));
        bytes.append_to(&mut peer.early_bytes);
        self.compare(from, &head);
        Ok(())
    }

    /// Fails if a piece that came early belongs to a different call than the one under way.
    fn compare(&mut self, rank: usize, head: &Head) {
        let found = head.said;
        // No member waited for a message of a call that is over. Of a call to come nothing is known yet.
        let differs = found.sequence < self.sequence || found.sequence == self.sequence && found.call != self.call;
        if differs {
            let expected = Said { sequence: self.sequence, call: self.call, index: 0, len: 0 };
            self.fail(Failure::Mismatch(Mismatch { rank, expected, found }));
        }
    }

    /// Puts a piece in the place of the message that is expected first.
    fn store(&mut self, memory: &mut Memory, rank: usize, head: &Head, bytes: Payload<'_>) {
        let peer = &mut self.peers[rank];
        let Some(message) = peer.expected.front_mut() else { return };
        // The pieces of one message are in order, and have no more bytes than it (follows).
        if head.said != message.said || head.offset != message.done as u64 {
            let mismatch = Mismatch { rank, expected: message.said, found: head.said };
            return self.fail(Failure::Mismatch(mismatch));
        }
        bytes.copy_to(memory.bytes_mut(&message.piece(bytes.len())));
        message.done += bytes.len();
        peer.taken += (HEAD + bytes.len()) as u64;
        if message.left() == 0 {
            peer.expected.pop_front();
            self.pending -= 1;
        }
    }

    /// The next call of this team begins.
    pub(super) fn begin(&mut self, call: Call) {
        if !self.is_idle() {
            self.give_up();
        }
        self.sequence += 1;
        self.call = call;
        for rank in 0..self.peers.len() {
            let peer = &mut self.peers[rank];
            (peer.out_index, peer.expected_index) = (0, 0);
            if let Some((head, _)) = peer.early.front().copied() {
                self.compare(rank, &head);
            }
        }
    }

    /// The next message for a member.
    pub(super) fn send(&mut self, to: usize, place: Place) {
        let peer = &mut self.peers[to];
        let said = Said { sequence: self.sequence, call: self.call, index: peer.out_index, len: place.len() as u64 };
        peer.out_index = peer.out_index.wrapping_add(1);
        peer.out.push_back(Message { said, place, done: 0 });
        self.pending += 1;
    }

    /// The place of the next message from a member. Pieces that came early are put there at once.
    pub(super) fn expect(&mut self, memory: &mut Memory, from: usize, place: Place) {
        let peer = &mut self.peers[from];
        let said = Said { sequence: self.sequence, call: self.call, index: peer.expected_index, len: place.len() as u64 };
        peer.expected_index = peer.expected_index.wrapping_add(1);
        peer.expected.push_back(Message { said, place, done: 0 });
        self.pending += 1;
        while self.failure.is_none() && !self.peers[from].expected.is_empty() {
            let peer = &mut self.peers[from];
            let Some((head, len)) = peer.early.pop_front() else { return };
            let bytes = std::mem::take(&mut peer.early_bytes);
            let piece = peer.early_read..peer.early_read + len;
            self.store(memory, from, &head, Payload::private(&bytes[piece.clone()]));
            let peer = &mut self.peers[from];
            (peer.early_bytes, peer.early_read) = (bytes, piece.end);
            // Not after each piece: the bytes that are left have to be moved.
            if peer.early.is_empty() || peer.early_read >= WINDOW {
                peer.early_bytes.drain(..peer.early_read);
                peer.early_read = 0;
            }
        }
    }

    /// The run under way is dropped before its end. Nothing goes on any more.
    pub fn give_up(&mut self) {
        self.fail(Failure::GivenUp);
    }

    /// The first reason stays, and all other members are told that there is one. Pieces that were kept are forgotten, and so are the places of messages to come.
    fn fail(&mut self, why: Failure) {
        self.failure.get_or_insert(why);
        self.pending = 0;
        for peer in &mut self.peers {
            // The offer stays: that packet may be in the lane.
            peer.out.clear();
            peer.expected.clear();
            peer.early = VecDeque::new();
            (peer.early_bytes, peer.early_read) = (Vec::new(), 0);
        }
    }

    /// Bytes from one member that are kept for calls to come.
    #[cfg(test)]
    pub(super) fn kept(&self, from: usize) -> usize {
        let peer = &self.peers[from];
        peer.early.len() * HEAD + peer.early_bytes.len() - peer.early_read
    }

    /// Bytes of memory for them, with those that were read already.
    #[cfg(test)]
    pub(super) fn held(&self, from: usize) -> usize {
        self.peers[from].early_bytes.len()
    }

    /// Bytes on the way to a member that it has not reported as taken.
    #[cfg(test)]
    pub(super) fn on_the_way(&self, to: usize) -> usize {
        (self.peers[to].sent - self.peers[to].acked) as usize
    }
}
