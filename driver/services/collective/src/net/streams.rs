//! How the bytes get there: a stream of messages to and from each other member of a team, in packets that a lane delivers in order.
//!
//! A data packet is a head of [`HEAD`] bytes and a piece of a message. The pieces of a message come in order, and so do the messages: each says
//! of which call it is, the how manieth of it between these two, and how long. So members that call different things notice.
//!
//! A sender has at most [`WINDOW`] bytes of packets on the way that the receiver has not reported as taken. What was expected goes straight to
//! its place and counts as taken; what comes early is kept. The receiver reports each time that it has taken a quarter of the window: that is
//! soon enough, as less than a quarter is unreported when it has taken everything.
//!
//! Who finds that members called different things, or drops a run before its end, tells all others that nothing goes on, so that none
//! waits for ever.
//!
//! Nothing that comes is believed before it was checked.

use super::memory::{Memory, Span};
use super::schedule::{Algorithm, Kind, Operation};
use doorbell_fabric::{Payload, Verdict};
use std::collections::VecDeque;
use std::fmt;

/// Bytes of packets, heads included, that may be on the way from one member to another, or wait there.
pub const WINDOW: usize = 256 << 10;
/// Bytes before the piece of a message.
pub const HEAD: usize = 32;
/// The least part of the window that a sender waits for, and after which a receiver reports.
const QUARTER: usize = WINDOW / 4;

/// Which operation, by which algorithm, with which root: all members have to mean the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call(u32);

impl Call {
    /// Of an operation that is carried out so; `between` is how leaders of boxes do it, where there are two levels.
    pub fn new(operation: &Operation<'_>, algorithm: Algorithm, between: Option<Algorithm>) -> Self {
        let root = operation.root().unwrap_or(0) as u16;
        let between = between.map_or(0, |between| between as u32 + 1);
        Self((operation.kind() as u32) << 24 | between << 20 | (algorithm as u32) << 16 | u32::from(root))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = Kind::ALL.get((self.0 >> 24) as usize);
        let algorithm = Algorithm::ALL.get((self.0 >> 16) as usize & 0xf);
        let (Some(kind), Some(algorithm)) = (kind, algorithm) else { return write!(f, "an unknown operation") };
        write!(f, "{} by {}", kind.name(), algorithm.name())?;
        match kind {
            Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter => write!(f, " with root {}", self.0 as u16),
            _ => Ok(()),
        }
    }
}

/// What a message says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// The number of the call in its team, from 1.
    pub sequence: u64,
    /// What was called.
    pub call: Call,
    /// The number of the message in the call, of those from this member to that, from 0.
    pub index: u32,
    /// How many bytes it has.
    pub len: u64,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {} of {} bytes of call {}, {}", self.index, self.len, self.sequence, self.call)
    }
}

/// Members called different operations, or with different lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("members called different operations, or different lengths: from rank {rank} came {found}; expected was {expected}")]
pub struct Mismatch {
    /// From whom it came.
    pub rank: usize,
    /// What this member waited for. If it waited for nothing from there, what it has called, as message 0 of 0 bytes.
    pub expected: Said,
    /// What came.
    pub found: Said,
}

/// Why no operation of the team can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Members called different things.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// This member gave up an operation before its end: others may still wait for what it had to send.
    #[error("an operation of this team was given up before its end: no other can follow it")]
    GivenUp,
    /// The reduction of the application panicked.
    #[error("the reduction panicked: no other operation of this team can follow")]
    Panicked,
    /// Another member says that nothing can go on.
    #[error(
        "rank {rank} ended this team's operations: it gave one up, or found that members called different ones, and says which"
    )]
    Ended {
        /// Who says so.
        rank: usize,
    },
}

/// What a packet is, as its tag: the team in the upper half, the kind in the next byte, and nothing in the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// A head and a piece of a message.
    Data,
    /// How many bytes were taken since the team began.
    Taken,
    /// Nothing goes on any more. No bytes.
    Ended,
}

/// The team that a packet is for, from its tag.
pub const fn team_of(tag: u64) -> u32 {
    (tag >> 32) as u32
}

impl Word {
    fn tag(self, team: u32) -> u64 {
        let kind = match self {
            Self::Data => 1,
            Self::Taken => 2,
            Self::Ended => 3,
        };
        u64::from(team) << 32 | kind << 24
    }

    fn from_tag(tag: u64) -> Option<Self> {
        match tag as u32 {
            0x0100_0000 => Some(Self::Data),
            0x0200_0000 => Some(Self::Taken),
            0x0300_0000 => Some(Self::Ended),
            _ => None,
        }
    }
}

/// What comes before a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    said: Said,
    /// Where in the message the piece begins.
    offset: u64,
}

impl Head {
    fn encode(&self) -> [u8; HEAD] {
        let Said { sequence, call, index, len } = self.said;
        let words = [sequence, u64::from(call.0) | u64::from(index) << 32, self.offset, len];
        let mut bytes = [0; HEAD];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
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
    span: Span,
    /// Bytes that were sent or have come.
    done: usize,
}

impl Message {
    fn left(&self) -> usize {
        self.span.bytes.len() - self.done
    }

    /// The next so many bytes.
    fn piece(&self, len: usize) -> Span {
        let start = self.span.bytes.start + self.done;
        Span { region: self.span.region, bytes: start..start + len }
    }
}

/// What was put into a packet last.
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
    /// Bytes of packets sent, and how many of them the peer has taken, as it says.
    sent: u64,
    acked: u64,
    offer: Option<Offer>,
    /// Whether it knows that nothing goes on any more.
    knows: bool,

    /// To come, in order.
    expected: VecDeque<Message>,
    expected_index: u32,
    /// What came before it was expected: heads, with how many bytes each, and the bytes. Only while nothing is expected.
    early: VecDeque<(Head, usize)>,
    early_bytes: Vec<u8>,
    /// How many of these bytes have gone to their place.
    early_read: usize,
    /// The message that came last, and how much of it.
    current: Option<(Said, u64)>,
    /// Bytes of packets that came, that were taken, and that were reported as taken.
    received: u64,
    taken: u64,
    reported: u64,
}

impl Peer {
    fn has_report(&self) -> bool {
        self.taken - self.reported >= QUARTER as u64
    }

    /// How many bytes of the front message go with the next packet, of at most so many; `None` while there is none, or no room for it.
    fn piece(&self, packet: usize) -> Option<usize> {
        let left = self.out.front()?.left();
        let room = WINDOW - (self.sent - self.acked) as usize;
        let whole = (HEAD + left).min(QUARTER);
        (whole <= room).then(|| left.min(packet.min(QUARTER) - HEAD))
    }

    /// Whether a piece is one that can follow.
    fn follows(&self, head: &Head, len: usize) -> Result<(), &'static str> {
        let said = head.said;
        let begins_well = match self.current {
            Some((last, have)) if have < last.len => {
                if said != last || head.offset != have {
                    return Err("a piece of a collective's message that doesn't continue the one before");
                }
                true
            }
            // Numbers go on by one, or begin anew with a later call.
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
    /// The call that is under way, or was the last, and its number.
    call: Call,
    sequence: u64,
    /// Messages that are to be sent or to come.
    pending: usize,
    failure: Option<Failure>,
}

impl Streams {
    /// Nothing yet, of member `me` of a team that has this number at all its members.
    pub fn new(team: u32, me: usize, members: usize) -> Self {
        let peers = std::iter::repeat_with(Peer::default).take(members).collect();
        Self { team, me, peers, call: Call(u32::MAX), sequence: 0, pending: 0, failure: None }
    }

    /// How many members there are.
    pub fn members(&self) -> usize {
        self.peers.len()
    }

    /// Why nothing goes on any more, if so.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Whether nothing is to be sent or expected.
    pub fn is_idle(&self) -> bool {
        self.pending == 0
    }

    /// Whether this member waits for something of that one.
    pub fn awaits(&self, from: usize) -> bool {
        self.failure.is_none() && self.peers.get(from).is_some_and(|peer| !peer.expected.is_empty())
    }

    /// Whether there is a packet for a member.
    pub fn wants(&self, to: usize) -> bool {
        let Some(peer) = self.peers.get(to).filter(|_| to != self.me) else { return false };
        if self.failure.is_some() { !peer.knows } else { peer.has_report() || peer.piece(QUARTER).is_some() }
    }

    /// Puts the next packet for a member into `room`, of at most `packet` bytes (more than [`HEAD`]), and returns its tag. It is the next again
    /// until [`sent`](Self::sent) is called. `memory` is that of the run under way.
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
        room.extend_from_slice(&Head { said: message.said, offset: message.done as u64 }.encode());
        room.extend_from_slice(memory?.bytes(&message.piece(len)));
        peer.offer = Some(Offer::Data(len));
        Some(Word::Data.tag(self.team))
    }

    /// The packet that [`next`](Self::next) returned last for this member is in the lane.
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

    /// A packet came from a member. `memory` is that of the run under way. That members called different things is no fault of the lane: it is
    /// taken, and [`failure`](Self::failure) says so.
    ///
    /// `Broken` means that no more may be taken from that member.
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

    /// Whether what came early is of another call than the one under way.
    fn compare(&mut self, rank: usize, head: &Head) {
        let found = head.said;
        // What is of a call that is over was never waited for; of one to come nothing is known yet.
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
        // A message that is the same has its pieces in order and of no more bytes (follows).
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

    /// A call begins: the next of this team.
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
    pub(super) fn send(&mut self, to: usize, span: Span) {
        let peer = &mut self.peers[to];
        let said = Said { sequence: self.sequence, call: self.call, index: peer.out_index, len: span.bytes.len() as u64 };
        peer.out_index = peer.out_index.wrapping_add(1);
        peer.out.push_back(Message { said, span, done: 0 });
        self.pending += 1;
    }

    /// Where the next message from a member goes. What came early is put there at once.
    pub(super) fn expect(&mut self, memory: &mut Memory, from: usize, span: Span) {
        let peer = &mut self.peers[from];
        let said = Said { sequence: self.sequence, call: self.call, index: peer.expected_index, len: span.bytes.len() as u64 };
        peer.expected_index = peer.expected_index.wrapping_add(1);
        peer.expected.push_back(Message { said, span, done: 0 });
        self.pending += 1;
        while self.failure.is_none() && !self.peers[from].expected.is_empty() {
            let peer = &mut self.peers[from];
            let Some((head, len)) = peer.early.pop_front() else { return };
            let bytes = std::mem::take(&mut peer.early_bytes);
            let piece = peer.early_read..peer.early_read + len;
            self.store(memory, from, &head, Payload::private(&bytes[piece.clone()]));
            let peer = &mut self.peers[from];
            (peer.early_bytes, peer.early_read) = (bytes, piece.end);
            // Not for each piece, as what is left is moved.
            if peer.early.is_empty() || peer.early_read >= WINDOW {
                peer.early_bytes.drain(..peer.early_read);
                peer.early_read = 0;
            }
        }
    }

    /// The run under way is dropped before its end: nothing goes on any more.
    pub fn give_up(&mut self) {
        self.fail(Failure::GivenUp);
    }

    /// The first reason stays, and all others are told that there is one. What is kept or to come is forgotten, and with it where it was to go.
    fn fail(&mut self, why: Failure) {
        self.failure.get_or_insert(why);
        self.pending = 0;
        for peer in &mut self.peers {
            // Not the offer: that packet may be in the lane.
            peer.out.clear();
            peer.expected.clear();
            peer.early = VecDeque::new();
            (peer.early_bytes, peer.early_read) = (Vec::new(), 0);
        }
    }

    /// Bytes that are kept for calls to come, of one member.
    #[cfg(test)]
    pub(super) fn kept(&self, from: usize) -> usize {
        let peer = &self.peers[from];
        peer.early.len() * HEAD + peer.early_bytes.len() - peer.early_read
    }

    /// Bytes of memory for them, with those that were read.
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
