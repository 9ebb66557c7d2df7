//! The effects of a datagram on a session.

use super::{Closing, Move, Session};
use crate::protocol::TransferId;
use crate::protocol::cipher::Cipher;
use crate::protocol::frame::{self, Ack, Frame, Short};
use crate::protocol::header::Header;
use crate::protocol::loss::Carried;
use crate::protocol::time::Time;
use crate::protocol::{CloseReason, EndpointStats, Event, Path, Receive};
use doorbell_fabric::Priority;

impl Session {
    /// Checks a datagram, and decrypts it in place. Returns its body if it is genuine and new.
    #[inline]
    pub fn open<'d>(
        &mut self,
        from: Path,
        header: &Header,
        datagram: &'d mut [u8],
        stats: &mut EndpointStats,
    ) -> Option<&'d mut [u8]> {
        // The last number of all could have no successor.
        if !self.received.is_new(header.number.get()) || header.number == u64::MAX {
            // The sender may have missed the answer.
            self.stats.duplicates += 1;
            return None;
        }
        // Without a key, a peer that moved looks like an eavesdropper that replays its datagrams.
        if from != self.path && matches!(self.cipher, Cipher::Checked { .. }) && !self.knows(from) {
            stats.misplaced += 1;
            return None;
        }
        let body = self.cipher.open(header, datagram);
        stats.corrupted += u64::from(body.is_none());
        body
    }

    /// Processes the body of a genuine datagram. Returns whether the driver wants to return later; if `stopped`, it wanted that
    /// before.
    pub fn take<R: Receive>(
        &mut self,
        now: Time,
        from: Path,
        number: u64,
        body: &[u8],
        receiver: &mut R,
        mut stopped: bool,
    ) -> bool {
        self.doubted = None;
        // A lone ping after a silence: the peer will send nothing that the answer could accompany.
        self.was_asked = body == [frame::PING] && now - self.last_heard >= self.spans.keep_alive / 2;
        if from == self.path {
            (self.last_heard, self.heard_here) = (now, now);
        } else if self.is_proven(from) {
            self.last_heard = now;
        }
        let latest = self.received.largest().is_none_or(|largest| number > largest);
        let (wants_answer, asks_only) = match self.take_frames(now, from, body, receiver, &mut stopped) {
            Ok(found) => found,
            Err((priority, reason)) => {
                self.fail(priority, reason, receiver);
                return stopped;
            }
        };
        let every = if self.was_asked { 1 } else { self.ack_every };
        self.received.insert(number, now, wants_answer, every, self.spans.ack_delay);
        if from != self.path && latest && !asks_only {
            self.elsewhere(now, from, wants_answer);
        }
        self.tell_finished();
        stopped
    }

    /// Processes the frames of a datagram. Returns whether any of them wants an answer, and whether all of them only test a path,
    /// which does not show that their sender uses the path. An error names the lane that broke the rules; without one, all did.
    #[inline]
    fn take_frames<R: Receive>(
        &mut self,
        now: Time,
        from: Path,
        mut body: &[u8],
        receiver: &mut R,
        stopped: &mut bool,
    ) -> Result<(bool, bool), (Option<Priority>, &'static str)> {
        let (mut wants_answer, mut asks_only) = (false, true);
        let all = |reason| (None, reason);
        loop {
            // Read in place: copying recently written bytes in smaller pieces stalls the processor.
            let read = frame::read(&mut body);
            let frame = match &read {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok((wants_answer, asks_only)),
                Err(reason) => return Err((None, reason)),
            };
            wants_answer |= !matches!(frame, Frame::Ack(_));
            asks_only &= matches!(frame, Frame::Short(Short::Challenge(_) | Short::Response(_)));
            match frame {
                Frame::Packet { priority, sequence, packet } => {
                    self.last_used = now;
                    let lane = &mut self.cargo.lanes_in[priority.index()];
                    let arrival = lane.on_packet(*sequence, packet, self.peer, receiver, *stopped);
                    *stopped |= arrival.map_err(|reason| (Some(*priority), reason))?;
                }
                &Frame::Fragment { priority, sequence, total, offset, bytes } => {
                    self.last_used = now;
                    let lane = &mut self.cargo.lanes_in[priority.index()];
                    let arrival = lane.on_fragment((sequence, total, offset, bytes), self.peer, receiver, *stopped);
                    *stopped |= arrival.map_err(|reason| (Some(priority), reason))?;
                }
                &Frame::Data { transfer, offset, total, bytes } => {
                    self.last_used = now;
                    let (session, name) = (self.id, TransferId(transfer));
                    let place = |at, bytes: &[u8]| receiver.place(session, name, at, bytes);
                    if self.cargo.transfers_in.on_data((transfer, offset, total), bytes, place).map_err(all)? {
                        self.events.push(Event::Arrived { session, transfer: name });
                    }
                }
                Frame::Ack(ack) => self.on_ack(now, ack).map_err(all)?,
                Frame::Short(short) => self.on_short(now, *short, from).map_err(all)?,
            }
        }
    }

    /// The newest datagram came from an address that is not the peer's known one.
    #[cold]
    fn elsewhere(&mut self, now: Time, from: Path, wants_answer: bool) {
        if self.knows(from) {
            if wants_answer {
                self.beckoned(now, from);
            }
        } else {
            // The peer may be where a genuine datagram came from, or an attacker may replay it. So the peer must answer a
            // Challenge from there.
            match &mut self.movement {
                Some(movement) if movement.to == from => {
                    // The Challenge or its Response may be lost. That address gets at most one Challenge for each datagram.
                    let patience = self.flight.round_trip.patience(self.spans.patience);
                    movement.asked = movement.asked.filter(|at| now - *at <= patience);
                }
                _ => {
                    let word = self.words.u64();
                    self.movement = Some(Move { to: from, word, asked: None });
                }
            }
        }
    }

    /// The other end broke the rules, so the session ends.
    fn fail<R: Receive>(&mut self, priority: Option<Priority>, reason: &'static str, receiver: &mut R) {
        match priority {
            Some(priority) => receiver.damaged(self.peer.node, priority, reason),
            None => Priority::ALL.into_iter().for_each(|priority| receiver.damaged(self.peer.node, priority, reason)),
        }
        self.end(CloseReason::Damaged(reason));
    }

    fn on_short(&mut self, now: Time, frame: Short, from: Path) -> Result<(), &'static str> {
        match frame {
            Short::Credit { priority, refused, stamp, limit } => {
                self.cargo.lanes_out[priority.index()].on_credit(refused, stamp, limit);
            }
            Short::Grant { transfer, limit } => self.cargo.transfers_out.on_grant(transfer, limit)?,
            Short::Cancel { transfer, by_receiver } => {
                let running = if by_receiver {
                    self.cargo.transfers_out.on_cancel(transfer)
                } else {
                    self.cargo.transfers_in.cancel(transfer)
                };
                if running {
                    let (session, transfer) = (self.id, TransferId(transfer));
                    self.events.push(Event::Cancelled { session, transfer, outgoing: by_receiver });
                }
            }
            Short::Close(code) => {
                // A driver that still had something to send must learn that it is lost.
                let reason = match self.cargo.closing {
                    Closing::No | Closing::Finishing { .. } => CloseReason::ByPeer(code),
                    Closing::Telling { .. } | Closing::Known => CloseReason::Local,
                };
                self.end(reason);
            }
            Short::Challenge(word) if from == self.path => self.response = Some(word),
            Short::Challenge(word) => self.challenged(from, word),
            Short::Response(word) => {
                self.on_spare_answer(now, from, word);
                if let Some(movement) = self.movement.take_if(|movement| movement.word == word && movement.to == from) {
                    self.go_by(movement.to);
                    self.flight.restart(self.flight.round_trip.smoothed);
                }
            }
            Short::Ping => {}
        }
        Ok(())
    }

    fn on_ack(&mut self, now: Time, ack: &Ack) -> Result<(), &'static str> {
        let Session { flight, cargo, .. } = self;
        let (mut probe, mut answer) = (None, None);
        let acked = flight.on_ack(now, ack, |carried| match carried {
            Carried::Answer { largest } => answer = answer.max(Some(largest)),
            Carried::Probe { size } => probe = probe.max(Some(size)),
            carried => cargo.arrived(carried),
        })?;
        if let Some(largest) = answer {
            self.received.forget_below(largest);
        }
        if let Some((size, number)) = acked.large
            && self.mtu.on_large_acked(number, size)
        {
            self.congestion.set_mtu(self.mtu.current());
        }
        if let Some(size) = probe
            && self.mtu.on_probe_acked(size as usize)
        {
            self.congestion.set_mtu(self.mtu.current());
        }
        if self.cargo.closing == Closing::Known {
            self.end(CloseReason::Local);
        }
        self.stats.spurious += acked.spurious;
        if acked.false_alarm {
            self.congestion.on_false_alarm();
        }
        if let Some((number, sent)) = acked.latest {
            self.questions = 0;
            self.acked_at = now;
            self.cipher.on_acked(number);
            let round_trip = self.flight.round_trip;
            let limited = number < self.limited_until;
            self.congestion.on_ack(now, sent, acked.bytes, limited, round_trip.latest, round_trip.smoothed);
            self.find_lost(now);
        }
        Ok(())
    }

    /// Counts datagrams as lost, and queues their items to be sent again.
    pub(super) fn find_lost(&mut self, now: Time) {
        let Session { flight, cargo, mtu, stats, .. } = self;
        let mut hole = false;
        let lost = flight.find_lost(now, |number, size, carried| match carried {
            Carried::Probe { size } => mtu.on_probe_lost(size as usize),
            Carried::Nothing => hole |= mtu.on_lost(now, number, size),
            carried => stats.bytes_again += cargo.again(carried),
        });
        if lost.datagrams == 0 {
            return;
        }
        self.stats.lost += lost.datagrams;
        if hole {
            self.congestion.set_mtu(self.mtu.current());
        }
        if let Some(sent) = lost.latest {
            if self.congestion.on_loss(now, sent) {
                self.flight.begin_alarm(lost.datagrams);
            }
            if lost.persistent {
                self.congestion.on_persistent_congestion();
            }
        }
    }
}
