//! Builds the next datagram of a session.

use super::{CLASSES, Cargo, Closing, Move, RANGES_ALONG, Session, resend};
use crate::protocol::TransferId;
use crate::protocol::frame::{
    self, ACK_LEN, ACK_RANGE, CHALLENGE_LEN, CLOSE_LEN, CREDIT_LEN, FRAGMENT_HEAD, GRANT_LEN, PACKET_HEAD, Short,
};
use crate::protocol::header::HEADER;
use crate::protocol::lent::Lent;
use crate::protocol::loss::Carried;
use crate::protocol::time::Time;
use crate::protocol::wire::Writer;
use crate::protocol::{Event, Path, Source};
use doorbell_fabric::Priority;

/// The number of datagrams for which a class stands back before it goes first.
const PATIENCE: u8 = 15;
/// The most items that one datagram carries.
const CARRIED_MAX: u8 = 24;
/// The least length of the last frame's bytes that may be left out of the checksum.
const LEFT_OUT_LEAST: usize = 512;

/// A datagram that was built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Its bytes in the buffer.
    pub len: usize,
    pub to: Path,
    /// It must be sent alone, whatever its size.
    pub alone: bool,
    /// The bytes before its tag that lie elsewhere.
    pub lent: Option<Lent>,
}

/// The datagram being built.
struct Draft<'b> {
    writer: Writer<'b>,
    count: u8,
    wants_answer: bool,
    /// The start of the last frame's bytes, if there are many.
    tail: Option<usize>,
    /// Whether the bytes of the last frame may stay where they lie, and which bytes do.
    may_lend: bool,
    lent: Option<Lent>,
}

impl Session {
    /// Whether [`transmit`](Self::transmit) may have a datagram.
    #[inline]
    pub fn wants_to_send(&self, now: Time) -> bool {
        if !self.confirmed || self.over.is_some() {
            return false;
        }
        self.ping
            || self.questions > 0
            || self.received.is_due(now)
            || self.cargo.has_news()
            || self.cargo.has_bulk()
            || self.response.is_some()
            || self.spares_due()
            || self.mtu.deadline() <= now
            || matches!(self.cargo.closing, Closing::Finishing { .. })
            || self.movement.as_ref().is_some_and(|movement| movement.asked.is_none())
    }

    /// Whether there is something for another datagram of the same run. A Ping goes alone.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.cargo.has_bulk() || self.cargo.has_news()
    }

    /// Builds the next datagram of at most `most` bytes. `segment`: the size of the earlier ones in the same run; this one may
    /// equal it, or be shorter and the last. `lend`: long bytes may stay where they lie.
    pub fn transmit<S: Source>(
        &mut self,
        now: Time,
        buf: &mut [u8],
        segment: Option<usize>,
        lend: bool,
        source: &mut S,
    ) -> Option<Piece> {
        if !self.confirmed || self.over.is_some() {
            return None;
        }
        if segment.is_none()
            && let Some(piece) = self.transmit_apart(now, buf)
        {
            return Some(piece);
        }
        if let Closing::Finishing { code } = self.cargo.closing
            && self.cargo.is_idle()
            && !self.held
        {
            self.cargo.closing = Closing::Telling { code, told: false };
        }
        let bulk = self.cargo.has_bulk() && self.may_send(now);
        // The window bounds only the records that bulk adds.
        if !bulk && self.flight.is_crowded(self.congestion.window()) {
            self.thin(now);
        }
        let due = self.received.is_due(now);
        if !(bulk || due || self.ping || self.questions > 0 || self.cargo.has_news() || self.response.is_some()) {
            return None;
        }
        let tag = self.cipher.tag();
        let mtu = self.mtu.current();
        let most = segment.unwrap_or(mtu).min(mtu).min(buf.len());
        let may_lend = lend && segment.is_none() && self.cipher.may_leave_out();
        let mut draft = Draft {
            writer: Writer::new(&mut buf[..most - tag]),
            count: 0,
            wants_answer: false,
            tail: None,
            may_lend,
            lent: None,
        };
        draft.writer.space(HEADER);
        if due || self.received.goes_along(now, self.ack_every, self.spans.ack_delay) {
            self.write_answer(now, &mut draft, bulk);
        }
        self.write_news(&mut draft);
        if bulk {
            self.last_used = now;
            self.write_bulk(mtu - tag - HEADER, &mut draft, source);
        }
        if (self.ping || self.questions > 0) && !draft.wants_answer && draft.writer.room() > 0 {
            Short::Ping.write(&mut draft.writer);
            draft.wants_answer = true;
        }
        if draft.wants_answer {
            self.ping = false;
        }
        if draft.writer.len() == HEADER {
            return None;
        }
        let mut covered = match draft.tail {
            Some(tail) if self.cipher.may_leave_out() => tail as u16,
            _ => 0,
        };
        // A little padding continues a run of equal datagrams, which saves a system call.
        let short = draft.writer.room();
        if segment.is_some() && short > 0 && short <= most / 8 && bulk && self.cargo.has_bulk() {
            frame::write_padding(&mut draft.writer, short);
            covered = 0;
        }
        let len = draft.writer.len() + tag;
        let (count, wants_answer, lent) = (draft.count, draft.wants_answer, draft.lent);
        self.finish(now, &mut buf[..len], covered, lent, count, wants_answer, false);
        Some(Piece { len, to: self.path, alone: lent.is_some(), lent })
    }

    /// Whether window and pacing allow another datagram.
    #[inline]
    fn may_send(&mut self, now: Time) -> bool {
        if self.questions > 0 {
            return true;
        }
        let window = self.congestion.window();
        if self.flight.bytes >= window {
            self.limited_until = self.flight.next_number();
            return false;
        }
        let ready = self.pacer.ready_at(now, self.mtu.current(), window, self.flight.round_trip.smoothed);
        self.paced_until = if ready > now { ready } else { Time::NEVER };
        ready <= now
    }

    /// Protects a datagram and records that it was sent.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn finish(
        &mut self,
        now: Time,
        datagram: &mut [u8],
        covered: u16,
        lent: Option<Lent>,
        count: u8,
        wants_answer: bool,
        probe: bool,
    ) {
        let number = self.flight.next_number();
        self.cipher.seal(datagram, self.remote, number, covered);
        let len = datagram.len() + lent.map_or(0, |lent| lent.len as usize);
        self.flight.on_sent(now, len, count, wants_answer, probe);
        // Datagrams that only acknowledge are never acknowledged, so a waiting key change needs a ping.
        self.ping |= self.flight.waiting == 0 && self.cipher.waits();
        if wants_answer {
            self.questions = self.questions.saturating_sub(1);
            self.pacer.spend(len);
            if self.flight.bytes * 2 >= self.congestion.window() {
                self.limited_until = number + 1;
            }
        }
        self.stats.datagrams_out += 1;
    }

    /// Drops the records of the oldest datagrams that the peer does not acknowledge. Their items are sent again.
    #[cold]
    fn thin(&mut self, now: Time) {
        let Self { flight, cargo, mtu, stats, congestion, .. } = self;
        flight.thin(now, congestion.window(), resend(cargo, mtu, stats));
        // The time since the last acknowledgement is known only while something is under way.
        self.ping |= self.flight.waiting == 0;
    }

    fn write_answer(&mut self, now: Time, draft: &mut Draft, along: bool) {
        // With packets, send only a few ranges so that the packets still fit. If there are more, send all of them alone.
        let Some(largest) = self.received.largest() else { return };
        if draft.writer.room() < ACK_LEN {
            return;
        }
        let most = if along { RANGES_ALONG } else { frame::ACK_RANGES_MAX };
        let (delay, ranges) = self.received.answer(now);
        frame::write_ack(&mut draft.writer, delay, ranges.take(most));
        self.flight.carry(Carried::Answer { largest });
        draft.count += 1;
        const { assert!(ACK_LEN + ACK_RANGE * frame::ACK_RANGES_MAX < 1000) };
    }

    /// Writes credits, grants and the like.
    fn write_news(&mut self, draft: &mut Draft) {
        let mut put = |draft: &mut Draft, frame: Short, what| {
            frame.write(&mut draft.writer);
            self.flight.carry(what);
            draft.count += 1;
            draft.wants_answer = true;
        };
        if draft.writer.room() >= CHALLENGE_LEN
            && let Some(word) = self.response.take()
        {
            put(draft, Short::Response(word), Carried::Nothing);
        }
        for (priority, lane) in Priority::ALL.into_iter().zip(&mut self.cargo.lanes_in) {
            if lane.untold && draft.writer.room() >= CREDIT_LEN {
                put(draft, lane.credit(), Carried::Credit { lane: priority as u8 });
            }
        }
        while draft.count < CARRIED_MAX / 2 && draft.writer.room() >= GRANT_LEN {
            let Some(control) = self.cargo.controls.pop_front() else { break };
            let frame = match control {
                Carried::Cancel { transfer, by_receiver } => Short::Cancel { transfer, by_receiver },
                Carried::Grant { transfer } => {
                    let Some(limit) = self.cargo.transfers_in.limit(transfer) else { continue };
                    Short::Grant { transfer, limit }
                }
                _ => continue,
            };
            put(draft, frame, control);
        }
        if let Closing::Telling { code, told } = &mut self.cargo.closing
            && !*told
            && draft.writer.room() >= CLOSE_LEN
        {
            *told = true;
            put(draft, Short::Close(*code), Carried::Close);
        }
    }

    /// Writes packets and transfers by priority. A class that stood back for long goes first.
    fn write_bulk<S: Source>(&mut self, whole: usize, draft: &mut Draft, source: &mut S) {
        // Nearly always one class has work. The others cost one look each.
        let (mut waiting, mut starving) = (0_u32, None);
        for class in 0..CLASSES {
            let waits = self.class_has_work(class);
            waiting |= u32::from(waits) << class;
            self.passed_over[class] = if waits { self.passed_over[class] } else { 0 };
            starving = if self.passed_over[class] >= PATIENCE { Some(class) } else { starving };
        }
        for class in starving.into_iter().chain(classes(waiting)) {
            if draft.writer.room() < PACKET_HEAD.min(FRAGMENT_HEAD) || draft.count >= CARRIED_MAX || draft.lent.is_some() {
                break;
            }
            if self.write_class(class, whole, draft, source) {
                self.passed_over[class] = 0;
            }
        }
        for class in classes(waiting) {
            let waits = self.class_has_work(class);
            let passed = &mut self.passed_over[class];
            *passed = if waits { passed.saturating_add(1) } else { 0 };
        }
    }

    fn class_has_work(&self, class: usize) -> bool {
        if class.is_multiple_of(2) {
            self.cargo.lanes_out[class / 2].has_work()
        } else {
            self.cargo.transfers_out.has_work(Priority::ALL[class / 2])
        }
    }

    /// Writes one class. Even classes are lanes, odd ones transfers. Returns whether anything was written.
    #[inline]
    fn write_class<S: Source>(&mut self, class: usize, whole: usize, draft: &mut Draft, source: &mut S) -> bool {
        let (before, priority, is_lane) = (draft.count, Priority::ALL[class / 2], class.is_multiple_of(2));
        let mut unreadable = Vec::new();
        while draft.count < CARRIED_MAX && self.class_has_work(class) {
            let start = draft.writer.len();
            let lend = draft.may_lend.then_some(&mut draft.lent);
            let Cargo { lanes_out, transfers_out, .. } = &mut self.cargo;
            let carried = if is_lane {
                lanes_out[class / 2].write(&mut draft.writer, whole, lend)
            } else {
                transfers_out.write(priority, self.id, &mut draft.writer, lend, source, &mut unreadable)
            };
            let Some(carried) = carried else { break };
            let head = match carried {
                Carried::Packets { count: 1, .. } => frame::PACKET_HEAD_MAX,
                Carried::Fragment { .. } => FRAGMENT_HEAD,
                Carried::Data { .. } => frame::DATA_HEAD,
                _ => usize::MAX,
            };
            self.flight.carry(carried);
            if draft.is_ended_by(start, head) {
                break;
            }
        }
        if !is_lane {
            self.cargo.transfers_out.rotate(priority, self.congestion.window());
        }
        for transfer in unreadable {
            let session = self.id;
            self.cargo.tell(Carried::Cancel { transfer, by_receiver: false });
            self.events.push(Event::Cancelled { session, transfer: TransferId(transfer), outgoing: true });
        }
        draft.wants_answer |= draft.count > before;
        draft.count > before
    }

    /// Datagrams outside of runs: probes for larger datagrams, and Challenges to other known or possible addresses of the peer.
    #[inline]
    fn transmit_apart(&mut self, now: Time, buf: &mut [u8]) -> Option<Piece> {
        if self.movement.is_none() && !self.ping_alone && !self.spares_due() && self.mtu.deadline() > now {
            return None;
        }
        self.transmit_probe(now, buf)
    }

    #[cold]
    fn transmit_probe(&mut self, now: Time, buf: &mut [u8]) -> Option<Piece> {
        if self.flight.is_crowded(self.congestion.window()) {
            self.thin(now);
        }
        let tag = self.cipher.tag();
        if let Some(Move { to, word, asked: asked @ None }) = &mut self.movement {
            *asked = Some(now);
            let (to, word) = (*to, *word);
            let len = self.write_alone(buf, Short::Challenge(word));
            self.flight.carry(Carried::Nothing);
            self.finish(now, &mut buf[..len], 0, None, 1, true, true);
            return Some(Piece { len, to, alone: true, lent: None });
        }
        if self.spares_due()
            && let Some((len, to)) = self.write_to_spare(now, buf)
        {
            return Some(Piece { len, to, alone: true, lent: None });
        }
        if std::mem::take(&mut self.ping_alone) {
            let len = self.write_alone(buf, Short::Ping);
            self.finish(now, &mut buf[..len], 0, None, 0, true, false);
            return Some(Piece { len, to: self.path, alone: true, lent: None });
        }
        let size = self.mtu.probe(now).filter(|size| *size <= buf.len() && self.flight.bytes < self.congestion.window())?;
        let len = self.write_alone(buf, Short::Ping);
        frame::write_padding(&mut Writer::new(&mut buf[len - tag..]), size - len);
        self.mtu.on_probe_sent();
        self.flight.carry(Carried::Probe { size: size as u32 });
        self.finish(now, &mut buf[..size], 0, None, 1, true, true);
        Some(Piece { len: size, to: self.path, alone: true, lent: None })
    }

    /// Writes a datagram with one frame. Returns its length.
    pub(super) fn write_alone(&self, buf: &mut [u8], frame: Short) -> usize {
        let mut writer = Writer::new(buf);
        writer.space(HEADER);
        frame.write(&mut writer);
        writer.len() + self.cipher.tag()
    }

    /// The last datagram of a session that has ended. It tells the other end, which may still wait for that.
    pub fn farewell(&mut self, now: Time, code: Option<u8>) -> Vec<u8> {
        let tag = self.cipher.tag();
        let mut buf = vec![0; HEADER + ACK_LEN + CLOSE_LEN + tag];
        let mut writer = Writer::new(&mut buf[..HEADER + ACK_LEN + CLOSE_LEN]);
        writer.space(HEADER);
        if self.received.largest().is_some() {
            let (delay, ranges) = self.received.answer(now);
            frame::write_ack(&mut writer, delay, ranges.take(1));
        }
        if let Some(code) = code {
            Short::Close(code).write(&mut writer);
        }
        let len = writer.len() + tag;
        buf.truncate(len);
        self.finish(now, &mut buf, 0, None, 0, false, false);
        buf
    }
}

/// The classes of a set, in order: a bit for each.
fn classes(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let class = (set != 0).then(|| set.trailing_zeros() as usize);
        set &= set.wrapping_sub(1);
        class
    })
}

impl Draft<'_> {
    /// Records a frame that was written at `start` with a head of `head` bytes. Whether nothing may follow, because its bytes
    /// stay where they lie.
    #[inline]
    fn is_ended_by(&mut self, start: usize, head: usize) -> bool {
        self.count += 1;
        let (bytes, end) = (start.saturating_add(head), self.writer.len());
        self.tail = match self.lent {
            Some(_) => Some(end),
            None => (bytes.saturating_add(LEFT_OUT_LEAST) <= end).then_some(bytes),
        };
        self.lent.is_some()
    }
}
