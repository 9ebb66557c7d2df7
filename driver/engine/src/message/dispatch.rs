//! A packet that arrives is checked, matched, and given to its receiver.

use super::Message;
use super::inbound::{Active, Direct, Inbound, Into, News};
use super::receive::RecvOp;
use crate::message::lending::{Lease, Miss};
use crate::sync::op::Outcome;
use crate::transfer::descriptor::{Control, DirectPut, TransferId};
use crate::transfer::incoming::{Incoming, Sink};
use crate::transfer::kept::Pieces;
use doorbell_fabric::copies::Known;
use doorbell_fabric::{Envelope, Incarnation, NodeId, PRIORITIES, PacketHead, PacketKind, Payload, Priority, Verdict};

/// No message is longer than a terabyte. A peer that announces a longer one breaks the rules.
const MESSAGE_MAX: usize = 1 << 40;

/// Gives packets to their receivers.
pub struct Dispatch<'a, D> {
    /// The messages that are arriving.
    pub inbound: &'a mut Inbound,
    /// The waiting thread.
    pub direct: &'a mut D,
    /// Whether the poller thread turns the engine.
    pub poller: bool,
    /// True when `direct` has its message.
    pub satisfied: bool,
}

impl<D: Direct> doorbell_fabric::Sink for Dispatch<'_, D> {
    #[inline(always)]
    fn packet(
        &mut self,
        source: NodeId,
        incarnation: Incarnation,
        priority: Priority,
        head: &PacketHead,
        payload: Payload<'_>,
    ) -> Verdict {
        let lane = source.index() * PRIORITIES + priority.index();
        match head.kind {
            PacketKind::Next => return self.next(lane, payload),
            PacketKind::GivenUp => {
                self.inbound.give_up(lane);
                return Verdict::Taken;
            }
            PacketKind::Chunk => return self.chunk(lane, head, payload),
            PacketKind::Control => {
                let Some(word) = Control::decode(payload) else { return Verdict::Broken("a control packet of unknown kind") };
                self.inbound.news.push((source, News::Control(word)));
                return Verdict::Taken;
            }
            PacketKind::Whole | PacketKind::First | PacketKind::Rts | PacketKind::Loan => {}
            class => return self.inbound.services.receive(class, (source, incarnation).into(), priority, head.tag, payload),
        }
        let assembly = &mut self.inbound.assemblies[lane];
        let ahead = head.sequence.wrapping_sub(assembly.expected);
        if ahead != 0 {
            // Earlier messages may come over another link; the fabrics know whether there is one.
            return if ahead <= u32::MAX / 2 { Verdict::Later } else { Verdict::Broken("a message out of sequence") };
        }
        if assembly.active.is_some() {
            self.inbound.give_up(lane);
        }
        if head.kind == PacketKind::Loan {
            let envelope = Envelope { source, incarnation, tag: head.tag, len: 0, sequence: head.sequence, priority };
            return self.loan(lane, envelope, payload);
        }
        let Some(len) = usize::try_from(head.total).ok().filter(|len| *len < MESSAGE_MAX) else {
            return Verdict::Broken("a message that is longer than allowed");
        };
        let envelope = Envelope { source, incarnation, tag: head.tag, len, sequence: head.sequence, priority };
        if head.kind == PacketKind::Rts {
            return self.rts(lane, envelope, payload);
        }
        if head.kind == PacketKind::First {
            return self.first(lane, envelope, payload);
        }
        if !self.inbound.posted.is_empty()
            && let Some(receive) = self.inbound.posted_for(&envelope)
        {
            receive.complete(envelope, payload);
            self.count(lane, len);
            self.inbound.turned_away = false;
            return self.received();
        }
        if !self.satisfied && self.direct.wants(&envelope) {
            self.direct.take(&envelope, payload);
            self.count(lane, len);
            self.inbound.turned_away = false;
            return self.given();
        }
        if !self.inbound.pool.push(envelope, payload) {
            if !self.inbound.must_take(lane, &envelope, len) {
                self.inbound.turned_away = true;
                return Verdict::Refused;
            }
            // A thread waits for exactly this message.
            self.inbound.pool.reserve_anyway(len);
            self.inbound.pool.push_reserved(Message { envelope, bytes: payload.to_vec() });
        }
        self.count(lane, len);
        self.inbound.tally.unexpected += 1;
        self.inbound.notify_probe(&envelope);
        Verdict::Taken
    }

    fn buffer_for(
        &mut self,
        source: NodeId,
        incarnation: Incarnation,
        priority: Priority,
        head: &PacketHead,
    ) -> Option<&mut [u8]> {
        let assembly = &self.inbound.assemblies[source.index() * PRIORITIES + priority.index()];
        if head.sequence != assembly.expected || assembly.active.is_some() {
            return None;
        }
        let envelope = whole(source, incarnation, priority, head);
        if let Some(at) = self.inbound.posted_at(&envelope) {
            return Some(self.inbound.posted[at].buffer());
        }
        if self.satisfied || !self.direct.wants(&envelope) { None } else { self.direct.buffer() }
    }

    fn copied(&mut self, source: NodeId, incarnation: Incarnation, priority: Priority, head: &PacketHead) -> bool {
        let envelope = whole(source, incarnation, priority, head);
        self.count(source.index() * PRIORITIES + priority.index(), envelope.len);
        self.inbound.turned_away = false;
        // Nothing has changed since `buffer_for`, so this finds the same receive.
        let verdict = match self.inbound.posted_for(&envelope) {
            Some(receive) => {
                receive.op.moved(envelope.len as u64);
                receive.op.finish(Outcome::Received(envelope));
                self.received()
            }
            None => {
                self.direct.copied(&envelope);
                self.given()
            }
        };
        verdict == Verdict::TakenAndStop
    }

    fn damaged(&mut self, source: NodeId, _priority: Priority, reason: &'static str) {
        self.inbound.news.push((source, News::Broken(reason)));
    }
}

/// The envelope of a message of one packet.
fn whole(source: NodeId, incarnation: Incarnation, priority: Priority, head: &PacketHead) -> Envelope {
    Envelope { source, incarnation, tag: head.tag, len: head.total as usize, sequence: head.sequence, priority }
}

impl<D: Direct> Dispatch<'_, D> {
    #[inline(always)]
    fn count(&mut self, lane: usize, len: usize) {
        self.inbound.assemblies[lane].pass();
        self.inbound.tally.messages += 1;
        self.inbound.tally.bytes += len as u64;
        self.inbound.tally.by_poller += self.poller as u64;
    }

    /// The verdict after the waiting thread got a message.
    #[inline(always)]
    fn given(&mut self) -> Verdict {
        self.satisfied = self.direct.is_full();
        if self.satisfied { Verdict::TakenAndStop } else { Verdict::Taken }
    }

    /// The verdict after a posted receive got its message. If it was the last posted receive, the application gets a chance to
    /// post another before more is taken: a message taken without a receive goes through the pool and is copied twice.
    #[inline(always)]
    fn received(&self) -> Verdict {
        let anybody_waits = !self.inbound.posted.is_empty() || !(self.satisfied || self.direct.has());
        if anybody_waits { Verdict::Taken } else { Verdict::TakenAndStop }
    }

    /// A message that lies in its sender's memory. The receiver returns it. A refused one comes again.
    fn loan(&mut self, lane: usize, envelope: Envelope, payload: Payload<'_>) -> Verdict {
        let Some(lease) = Lease::decode(payload).filter(|lease| lease.len < MESSAGE_MAX as u64) else {
            return Verdict::Broken("a loan without a lease");
        };
        let envelope = Envelope { len: lease.len as usize, ..envelope };
        let lending = match self.inbound.lenders.find(envelope.source, envelope.incarnation, &lease) {
            Ok(lending) => lending.clone(),
            Err(Miss::Lost) => {
                tracing::debug!(node = envelope.source.0, "a loan is lost because its owner is gone");
                self.inbound.assemblies[lane].pass();
                return Verdict::Taken;
            }
            Err(Miss::NotNow) => {
                self.inbound.turned_away = true;
                return Verdict::Refused;
            }
            Err(Miss::Broken(reason)) => return Verdict::Broken(reason),
        };
        if let Some(receive) = self.inbound.posted_for(&envelope) {
            receive.complete_loan(envelope, &lending.lend(&lease));
            self.count(lane, envelope.len);
            self.inbound.turned_away = false;
            return self.received();
        }
        if !self.satisfied && self.direct.wants(&envelope) {
            self.direct.take_loan(&envelope, lending.lend(&lease));
            self.count(lane, envelope.len);
            self.inbound.turned_away = false;
            return self.given();
        }
        if !self.inbound.pool.reserve(0) {
            if !self.inbound.must_take(lane, &envelope, 0) {
                self.inbound.turned_away = true;
                return Verdict::Refused;
            }
            // A thread waits for exactly this message.
            self.inbound.pool.reserve_anyway(0);
        }
        self.inbound.pool.push_lent(envelope, lending.lend(&lease));
        self.count(lane, envelope.len);
        self.inbound.tally.unexpected += 1;
        self.inbound.notify_probe(&envelope);
        Verdict::Taken
    }

    /// An RTS takes its message's place in the order; the message is matched here.
    #[cold]
    fn rts(&mut self, lane: usize, envelope: Envelope, payload: Payload<'_>) -> Verdict {
        let Some(put) = DirectPut::decode(payload, envelope.len as u64) else {
            return Verdict::Broken("an RTS without a direct-put descriptor");
        };
        let mut coming = match Incoming::new(lane, envelope, put, self.inbound.asks, &self.inbound.membership) {
            Ok(coming) => coming,
            // It stays in its lane: this process may soon have what it lacks.
            Err(error) => {
                tracing::debug!(node = envelope.source.0, %error, "cannot take part in a transfer now");
                return Verdict::Refused;
            }
        };
        let is_given_up = put.apart.is_some() && self.inbound.given_up.take(envelope.source, put.ticket);
        if is_given_up {
            // The sender's slot is free from here on.
            self.inbound.news.push((envelope.source, News::TooLate(put.ticket)));
        }
        if is_given_up || coming.came_too_late() {
            self.inbound.assemblies[lane].pass();
            return Verdict::Taken;
        }
        // Another transfer uses the same slot, so that one is over. A node never has more transfers pending than slots,
        // whatever it writes into them.
        if let Some(at) = self.inbound.incoming.iter().position(|incoming| incoming.shares_slot(lane, put.ticket)) {
            self.inbound.give_up_transfer(at, false);
        }
        // Its origin has done with the former use.
        self.inbound.left.retain(|left| !left.shares_slot(lane, put.ticket));
        let mut is_read_in_place = false;
        let sink = match self.receive_for(&envelope) {
            Some(receive) if envelope.len <= receive.capacity => Sink::Receive(receive),
            Some(receive) => {
                self.inbound.pool.reserve_anyway(envelope.len);
                Sink::TooLong(receive, Pieces::default())
            }
            None if (self.satisfied || !self.direct.wants(&envelope)) && self.inbound.pool.reserve(envelope.len) => {
                Sink::Pool(Pieces::default())
            }
            None if (!self.satisfied && self.direct.wants(&envelope)) || self.inbound.must_take(lane, &envelope, 0) => {
                self.inbound.pool.reserve_anyway(envelope.len);
                is_read_in_place = self.direct.wants(&envelope);
                // Later messages must not overtake it.
                self.satisfied = true;
                Sink::Pool(Pieces::default())
            }
            None => {
                self.inbound.turned_away = true;
                return Verdict::Refused;
            }
        };
        self.inbound.assemblies[lane].pass();
        let id = self.inbound.pool.next_number();
        let is_pooled = matches!(sink, Sink::Pool(_));
        (coming.id, coming.sink) = (id, sink);
        if is_pooled {
            self.inbound.pool.insert_coming(envelope, id);
            if is_read_in_place || self.inbound.is_watched(&envelope) {
                coming.stage();
            }
        }
        self.inbound.incoming.push(coming);
        Verdict::Taken
    }

    fn chunk(&mut self, lane: usize, head: &PacketHead, payload: Payload<'_>) -> Verdict {
        let Some(ticket) = TransferId::from_word(head.tag) else { return Verdict::Broken("a chunk of no transfer") };
        // The transfer is over, but its sender did not know yet.
        let Some(incoming) = self.inbound.incoming.iter_mut().find(|incoming| incoming.is(lane, ticket)) else {
            return Verdict::Taken;
        };
        match incoming.store(head.total, payload) {
            Ok(()) => Verdict::Taken,
            Err(reason) => Verdict::Broken(reason),
        }
    }

    /// The receive for a message that comes in parts: a posted one, or that of the thread that waits with a buffer.
    fn receive_for(&mut self, envelope: &Envelope) -> Option<RecvOp> {
        if let Some(receive) = self.inbound.posted_for(envelope) {
            return Some(receive);
        }
        if self.satisfied || !self.direct.wants(envelope) {
            return None;
        }
        let receive = self.direct.take_long()?;
        self.satisfied = true;
        Some(self.inbound.number(receive))
    }

    fn first(&mut self, lane: usize, envelope: Envelope, payload: Payload<'_>) -> Verdict {
        let receive = self.receive_for(&envelope);
        let into = match receive {
            Some(receive) if envelope.len <= receive.capacity => Into::Buffer(receive),
            Some(receive) => {
                self.inbound.pool.reserve_anyway(envelope.len);
                Into::TooLong(receive, Vec::new())
            }
            None if self.inbound.pool.reserve(envelope.len) => {
                self.inbound.tally.unexpected += 1;
                Into::Pool(Vec::new())
            }
            // A thread waits for exactly this message and can't take it in parts: however long it is, it has to be put
            // together.
            None if (!self.satisfied && self.direct.wants(&envelope))
                || self.inbound.must_take(lane, &envelope, envelope.len) =>
            {
                self.inbound.pool.reserve_anyway(envelope.len);
                Into::Pool(Vec::new())
            }
            None => {
                self.inbound.turned_away = true;
                return Verdict::Refused;
            }
        };
        let spills = matches!(into, Into::Buffer(_)) && self.inbound.spills(&envelope);
        self.inbound.assemblies[lane].active = Some(Box::new(Active { envelope, received: 0, into, spills }));
        self.next(lane, payload)
    }

    fn next(&mut self, lane: usize, payload: Payload<'_>) -> Verdict {
        if payload.is_empty() {
            return Verdict::Broken("an empty part of a message");
        }
        let Some(active) = &mut self.inbound.assemblies[lane].active else {
            return Verdict::Broken("a packet of a message that was not begun");
        };
        if payload.len() > active.envelope.len - active.received {
            return Verdict::Broken("more bytes than the message has");
        }
        if let Into::Buffer(receive) | Into::TooLong(receive, _) = &active.into
            && receive.op.is_done()
        {
            // The receive was cancelled from within recv_with: the buffer is gone, and with it the bytes that had arrived.
            if matches!(active.into, Into::TooLong(..)) {
                self.inbound.pool.release(active.envelope.len);
            }
            active.into = Into::Nowhere;
            return self.next(lane, payload);
        }
        match &mut active.into {
            Into::Nowhere => {}
            Into::Buffer(receive) => {
                let payload = if active.spills { payload.with(Known::Spilled) } else { payload };
                receive.write(active.received, payload);
                // The last byte counts when the message is certain.
                receive.op.moved((active.received + payload.len()).min(active.envelope.len - 1) as u64);
            }
            Into::TooLong(_, bytes) | Into::Pool(bytes) => payload.append_to(bytes),
        }
        active.received += payload.len();
        if active.received == active.envelope.len
            && let Some(active) = self.inbound.assemblies[lane].active.take()
        {
            let envelope = active.envelope;
            self.count(lane, envelope.len);
            match active.into {
                Into::Nowhere => {}
                Into::Buffer(receive) => {
                    self.inbound.turned_away = false;
                    receive.op.moved(envelope.len as u64);
                    receive.op.finish(Outcome::Received(envelope));
                    return self.received();
                }
                Into::TooLong(receive, bytes) => {
                    self.inbound.pool.release(envelope.len);
                    receive.op.finish(Outcome::Truncated(Box::new(Message { envelope, bytes })));
                }
                Into::Pool(bytes) => {
                    let message = Message { envelope, bytes };
                    // A receive may have been posted since the message began.
                    match self.inbound.posted_for(&envelope) {
                        Some(receive) => {
                            self.inbound.pool.release(envelope.len);
                            receive.complete(envelope, Payload::private(&message.bytes));
                        }
                        None if !self.satisfied && self.direct.wants(&envelope) => {
                            // Give it to the thread at once. Through the pool, later messages of this lane would overtake it.
                            self.inbound.pool.release(envelope.len);
                            self.direct.take(&envelope, Payload::private(&message.bytes));
                            return self.given();
                        }
                        None => {
                            self.inbound.pool.push_reserved(message);
                            self.inbound.notify_probe(&envelope);
                        }
                    }
                }
            }
        }
        Verdict::Taken
    }
}
