//! The driver of a program's node. It follows the program and checks everything that arrives.

use super::world::{End, Fate, Incoming, Pushed, Side, World};
use crate::protocol::sim::Driver;
use crate::protocol::{Endpoint, Event, Receive, SessionId, Source, Time, TransferId};
use doorbell_fabric::{Incarnation, NodeId, PRIORITIES, PacketHead, PacketKind, Payload, Priority, Push, Sink, Verdict};
use std::cell::RefCell;
use std::rc::Rc;

/// The most unrequested turns in a row in which nothing happens.
const IDLE_TURNS: u32 = 100;
/// The pause before it returns to waiting packets.
const AGAIN: u64 = 50_000;

pub(super) struct Player {
    pub node: u16,
    pub life: u32,
    world: Rc<RefCell<World>>,
    /// The latest session that can be used.
    pub session: Option<SessionId>,
    /// A session that this node requested.
    pub attempt: Option<SessionId>,
    pub refuse: [bool; PRIORITIES],
    /// The number of packets after which it asks to return later.
    pub stop_every: u32,
    taken: u32,
    /// It does not ask for waiting packets.
    pub hold: bool,
    pub unreadable: bool,
    /// It begins and grants at once whatever it can.
    pub dutiful: bool,
    /// The largest packet that was allowed.
    pub packet_bytes: usize,
    last: (u64, u64),
    idle: u32,
    asked: bool,
}

/// Fills bytes so that each one is recognisable at its place.
fn fill(seed: u64, offset: u64, bytes: &mut [u8]) {
    for (at, byte) in bytes.iter_mut().enumerate() {
        let place = offset + at as u64;
        *byte = seed.wrapping_mul(31).wrapping_add(place ^ (place >> 8).wrapping_mul(7)) as u8;
    }
}

fn matches(seed: u64, offset: u64, bytes: &[u8]) -> bool {
    let mut expected = vec![0; bytes.len()];
    fill(seed, offset, &mut expected);
    expected == bytes
}

fn packet_seed(end: End, priority: Priority, number: usize) -> u64 {
    u64::from(end.name) ^ u64::from(end.node) << 7 ^ (number as u64) << 2 ^ priority.index() as u64
}

fn transfer_seed(receiver: End, transfer: u64) -> u64 {
    u64::from(receiver.name).wrapping_add(transfer * 3 + 1000)
}

impl Player {
    pub fn new(node: u16, life: u32, world: Rc<RefCell<World>>) -> Self {
        Self {
            node,
            life,
            world,
            session: None,
            attempt: None,
            refuse: [false; PRIORITIES],
            stop_every: 0,
            taken: 0,
            hold: false,
            unreadable: false,
            dutiful: false,
            packet_bytes: 0,
            last: (0, 0),
            idle: 0,
            asked: true,
        }
    }

    pub fn end_of(&self, session: SessionId) -> End {
        End { node: self.node, life: self.life, name: session.0 as u32 }
    }

    pub fn world(&self) -> &RefCell<World> {
        &self.world
    }

    pub fn end(&self) -> Option<End> {
        self.session.map(|session| self.end_of(session))
    }

    /// Pushes one packet. Returns whether there was room.
    pub fn push(&mut self, now: Time, endpoint: &mut Endpoint, priority: Priority, kind: PacketKind, len: usize) -> bool {
        let Some(session) = self.session else { return false };
        let end = self.end_of(session);
        self.packet_bytes = self.packet_bytes.max(endpoint.packet_bytes(session));
        let len = len.min(self.packet_bytes);
        let mut world = self.world.borrow_mut();
        let Some(side) = world.ends.get_mut(&end) else { return false };
        let lane = &mut side.lanes[priority.index()];
        let number = lane.pushed.len();
        let mut payload = vec![0; len];
        fill(packet_seed(end, priority, number), 0, &mut payload);
        let total = if kind.has_total() { number as u64 * 7 } else { len as u64 };
        let head = PacketHead { kind, tag: number as u64, sequence: end.name, total };
        match endpoint.push(now, session, priority, &head, &payload) {
            Push::Done => {
                assert!(side.closed.is_none(), "a packet on a session that was closed");
                lane.pushed.push(Pushed { kind, len, given_up: false });
                match kind {
                    PacketKind::First => lane.open = Some(number),
                    PacketKind::GivenUp => {
                        if let Some(from) = lane.open.take() {
                            lane.pushed[from..].iter_mut().for_each(|packet| packet.given_up = true);
                        }
                    }
                    PacketKind::Next => {}
                    _ => lane.open = None,
                }
                true
            }
            Push::Full => {
                // The sender of a message can always give it up.
                assert!(kind != PacketKind::GivenUp || lane.open.is_none(), "no room to give a message up");
                false
            }
            Push::Down(_) => false,
        }
    }

    pub fn connected(&mut self, endpoint: &Endpoint, session: SessionId, peer: (u16, u32)) {
        let end = self.end_of(session);
        // A session that ended as it began has no name any more, and no code asks for it again.
        let Some(name) = endpoint.named_there(session) else { return };
        let peer = End { node: peer.0, life: peer.1, name };
        let mut world = self.world.borrow_mut();
        let me = (self.node, self.life);
        let twin = world.ends.iter().find(|(other, side)| {
            (other.node, other.life) == me && !side.ended && (side.peer.node, side.peer.life) == (peer.node, peer.life)
        });
        // A session that has ended may still have packets for its driver.
        if let Some((twin, _)) = twin {
            assert!(endpoint.is_over(twin.name), "two sessions with one life of one node: {twin:?} and {end:?}");
        }
        assert!(world.ends.insert(end, Side::new(peer)).is_none(), "a session twice");
        self.session = Some(session);
    }

    fn event(&mut self, now: Time, endpoint: &Endpoint, event: &Event) {
        match *event {
            Event::Connected { session, peer, asked, .. } => {
                if asked {
                    assert_eq!(self.attempt.take(), Some(session));
                }
                self.connected(endpoint, session, (peer.node.0, peer.incarnation.0));
            }
            Event::Closed { session, peer, reason } => {
                if self.attempt == Some(session) {
                    assert!(peer.is_none());
                    self.attempt = None;
                    return;
                }
                if self.session == Some(session) {
                    self.session = None;
                }
                let end = self.end_of(session);
                if self.world.borrow().ends.contains_key(&end) {
                    self.world.borrow_mut().end(now, end, reason);
                }
            }
            Event::Sent { session, transfer } => {
                let end = self.end_of(session);
                let mut world = self.world.borrow_mut();
                let side = world.ends.get_mut(&end).expect("a session");
                assert!(!side.ended);
                let fate = side.outgoing.insert(transfer.0, Fate::Done);
                assert_eq!(fate, Some(Fate::Running), "sent once");
                let peer = side.peer;
                if let Some(incoming) = world.ends.get(&peer).and_then(|other| other.incoming.get(&transfer.0)) {
                    // A driver that cancels a transfer while its last bytes are under way cannot call them back.
                    assert!(
                        incoming.placed == incoming.total || incoming.fate == Fate::GivenUp,
                        "sent but not placed: {transfer:?}"
                    );
                }
            }
            Event::Arrived { session, transfer } => self.ends_in(session, transfer, Fate::Done),
            Event::Cancelled { session, transfer, outgoing: false } => self.ends_in(session, transfer, Fate::Cancelled),
            Event::Cancelled { session, transfer, outgoing: true } => {
                let end = self.end_of(session);
                let mut world = self.world.borrow_mut();
                let side = world.ends.get_mut(&end).expect("a session");
                let fate = side.outgoing.insert(transfer.0, Fate::Cancelled);
                assert_eq!(fate, Some(Fate::Running), "cancelled once");
            }
            Event::Refused { .. } | Event::Moved { .. } => {}
        }
    }

    fn ends_in(&mut self, session: SessionId, transfer: TransferId, fate: Fate) {
        let end = self.end_of(session);
        let mut world = self.world.borrow_mut();
        let side = world.ends.get_mut(&end).expect("a session");
        assert!(!side.ended);
        let incoming = side.incoming.get_mut(&transfer.0).expect("a transfer that was expected");
        assert_eq!(incoming.fate, Fate::Running, "{transfer:?} ended twice");
        assert!(fate != Fate::Done || incoming.placed == incoming.total, "arrived but not placed");
        incoming.fate = fate;
    }

    pub fn expect(&mut self, now: Time, endpoint: &mut Endpoint, total: u64, limit: u64) -> Option<TransferId> {
        let session = self.session?;
        let end = self.end_of(session);
        let transfer = endpoint.expect(now, session, total, limit).ok()?;
        let incoming = Incoming { total, limit, there: vec![false; total as usize], placed: 0, fate: Fate::Running, told: false };
        let mut world = self.world.borrow_mut();
        let before = world.ends.get_mut(&end).expect("a session").incoming.insert(transfer.0, incoming);
        assert!(before.is_none(), "a transfer's name twice");
        Some(transfer)
    }

    /// Begins the oldest transfer that the other node's driver expects and this one did not know. Returns whether there was one.
    pub fn begin(&mut self, now: Time, endpoint: &mut Endpoint, priority: Priority) -> bool {
        let Some(session) = self.session else { return false };
        let end = self.end_of(session);
        let mut world = self.world.borrow_mut();
        let Some(peer) = world.ends.get(&end).filter(|_| world.is_whole(end)).map(|side| side.peer) else { return false };
        let expected = &mut world.ends.get_mut(&peer).expect("a whole session").incoming;
        let Some((&name, incoming)) = expected.iter_mut().find(|(_, incoming)| !incoming.told) else { return false };
        incoming.told = true;
        let total = incoming.total;
        let transfer = TransferId(name);
        if endpoint.begin_transfer(now, session, transfer, total, priority).is_ok() {
            assert_eq!(
                endpoint.begin_transfer(now, session, transfer, total, priority),
                Err(crate::protocol::TransferError::Used)
            );
            world.ends.get_mut(&end).expect("a session").outgoing.insert(name, Fate::Running);
        }
        true
    }

    /// Cancels a running transfer.
    pub fn give_up(&mut self, now: Time, endpoint: &mut Endpoint, incoming: bool, which: usize) {
        let Some(session) = self.session else { return };
        let end = self.end_of(session);
        let mut world = self.world.borrow_mut();
        let side = world.ends.get_mut(&end).expect("a session");
        if incoming {
            let mut running = side.incoming.iter_mut().filter(|(_, transfer)| transfer.fate == Fate::Running);
            let Some((name, transfer)) = running.nth(which) else { return };
            // Its end may be among the waiting events.
            if endpoint.cancel_incoming(now, session, TransferId(*name)) {
                transfer.fate = Fate::GivenUp;
            }
        } else {
            let mut running = side.outgoing.iter_mut().filter(|(_, fate)| **fate == Fate::Running);
            let Some((name, fate)) = running.nth(which) else { return };
            if endpoint.cancel_outgoing(now, session, TransferId(*name)) {
                *fate = Fate::GivenUp;
            }
        }
    }

    /// Raises the limits of running transfers.
    pub fn grant(&mut self, now: Time, endpoint: &mut Endpoint, further: u64) {
        let Some(session) = self.session else { return };
        let end = self.end_of(session);
        let mut world = self.world.borrow_mut();
        for (name, incoming) in &mut world.ends.get_mut(&end).expect("a session").incoming {
            incoming.limit = incoming.limit.saturating_add(further).min(incoming.total).max(incoming.limit);
            endpoint.grant(now, session, TransferId(*name), incoming.limit);
        }
    }

    pub fn close(&mut self, now: Time, endpoint: &mut Endpoint, code: u8) {
        let Some(session) = self.session else { return };
        let end = self.end_of(session);
        endpoint.close(now, session, code);
        let mut world = self.world.borrow_mut();
        let side = world.ends.get_mut(&end).expect("a session");
        side.closed = side.closed.or(Some((now, code)));
    }
}

impl Sink for Player {
    fn packet(
        &mut self,
        source: NodeId,
        incarnation: Incarnation,
        priority: Priority,
        head: &PacketHead,
        payload: Payload<'_>,
    ) -> Verdict {
        let end = End { node: source.0, life: incarnation.0, name: head.sequence };
        let mut world = self.world.borrow_mut();
        let side = world.ends.get_mut(&end).expect("a session whose sender knows it");
        let peer = side.peer;
        assert_eq!((peer.node, peer.life), (self.node, self.life), "a packet for another node");
        let lane = &mut side.lanes[priority.index()];
        let number = head.tag as usize;
        assert!(number >= lane.had, "{end:?} {priority:?}: packet {number} comes again after {}", lane.had);
        let skipped = &lane.pushed[lane.had..number];
        assert!(skipped.iter().all(|packet| packet.given_up), "{end:?} {priority:?}: {number} came before {}", lane.had);
        let Pushed { kind, len, .. } = lane.pushed[number];
        assert_eq!((kind, len), (head.kind, payload.len()));
        assert!(matches(packet_seed(end, priority, number), 0, &payload.to_vec()), "packet {number} of {len} bytes");
        if self.refuse[priority.index()] {
            return Verdict::Refused;
        }
        lane.had = number + 1;
        let ended = world.ends.get(&peer).is_some_and(|side| side.ended);
        assert!(!ended, "a packet after the end");
        self.taken += 1;
        if self.stop_every > 0 && self.taken.is_multiple_of(self.stop_every) { Verdict::TakenAndStop } else { Verdict::Taken }
    }

    fn damaged(&mut self, node: NodeId, priority: Priority, reason: &'static str) {
        panic!("{node}, {priority:?}: {reason}");
    }
}

impl Receive for Player {
    fn place(&mut self, session: SessionId, transfer: TransferId, offset: u64, bytes: &[u8]) {
        let end = self.end_of(session);
        let mut world = self.world.borrow_mut();
        let side = world.ends.get_mut(&end).expect("a session");
        assert!(!side.ended);
        let incoming = side.incoming.get_mut(&transfer.0).expect("a transfer that was expected");
        assert_eq!(incoming.fate, Fate::Running, "bytes after the end of the transfer");
        assert!(matches(transfer_seed(end, transfer.0), offset, bytes), "{transfer:?} at {offset}");
        assert!(offset + bytes.len() as u64 <= incoming.limit, "beyond its limit");
        let there = &mut incoming.there[offset as usize..offset as usize + bytes.len()];
        assert!(there.iter().all(|there| !there), "each byte once");
        there.fill(true);
        incoming.placed += bytes.len() as u64;
    }
}

impl Source for Player {
    fn lends(&mut self, _: SessionId, _: TransferId) -> bool {
        !self.unreadable
    }

    fn read(&mut self, session: SessionId, transfer: TransferId, offset: u64, into: &mut [u8]) -> bool {
        let world = self.world.borrow();
        let side = &world.ends[&self.end_of(session)];
        assert_eq!(side.outgoing.get(&transfer.0), Some(&Fate::Running), "a read after the end of the transfer");
        fill(transfer_seed(side.peer, transfer.0), offset, into);
        !self.unreadable
    }
}

impl Driver for Player {
    fn turn(&mut self, now: Time, endpoint: &mut Endpoint) -> Option<Time> {
        let stats = endpoint.stats();
        let seen = (stats.datagrams_in, stats.datagrams_out);
        self.idle = if self.last == seen && !self.asked { self.idle + 1 } else { 0 };
        assert!(self.idle < IDLE_TURNS, "something is always due, but nothing happens");
        self.last = seen;
        while let Some(event) = endpoint.poll_event() {
            self.event(now, endpoint, &event);
        }
        if !self.hold {
            endpoint.deliver(now, self, 8);
        }
        while let Some(event) = endpoint.poll_event() {
            self.event(now, endpoint, &event);
        }
        if self.dutiful {
            self.grant(now, endpoint, u64::MAX);
            while self.begin(now, endpoint, Priority::Normal) {}
        }
        let would_take = !self.refuse.contains(&true) && endpoint.refusing();
        self.asked = !self.hold && (would_take || endpoint.has_ready());
        self.asked.then(|| now + AGAIN)
    }
}
