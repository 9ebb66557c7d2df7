//! Transfers: bytes with a fixed place, sent in any order and stored once each.
//!
//! The receiver names a transfer and grants its sender a limit; only then bytes flow. So bytes of an unknown transfer are old or
//! cancelled, and nothing needs to be remembered to recognise them.

use super::frame::{self, DATA_HEAD};
use super::lent::{LEND_LEAST, Lender, Lent};
use super::loss::Carried;
use super::ranges::{Pieces, RangeSet};
use super::wire::Writer;
use super::{SessionId, Source};
use doorbell_fabric::{PRIORITIES, Priority, TransferId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// The most grants and cancellations kept for transfers that this end has not begun.
const EARLY_MAX: usize = 4096;
/// The most pieces of one transfer, with gaps between them, that may have arrived: more than a sender with alternating losses
/// ever causes.
const PIECES_MAX: usize = 1 << 15;
/// The most bytes of a turn. Shorter transfers end one after another. If each gave way after one datagram, all those under way would
/// end at once, and the sender would have nothing to send until it learnt of the next ones.
const TURN_MOST: u64 = 1 << 20;
/// Fewer bytes are not worth a frame, unless they are the last.
const PIECE_LEAST: usize = 256;

/// Why a transfer cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// There is no such session, or it is closing.
    #[error("the session is gone")]
    Gone,
    /// A transfer with this name was begun before.
    #[error("the transfer was already begun")]
    Used,
}

/// The sending ends of a session's transfers.
#[derive(Default)]
pub(crate) struct TransfersOut {
    running: BTreeMap<u64, Out>,
    /// Transfers with something to send, in turn.
    queues: [VecDeque<u64>; PRIORITIES],
    /// Grants that came before their transfer was begun.
    early: BTreeMap<u64, u64>,
    /// Transfers that the receiver cancelled before they were begun: the latest of them.
    given_up: BTreeSet<u64>,
    used: RangeSet,
    /// Transfers that ended and were not reported yet, and whether all of each was acknowledged.
    pub finished: VecDeque<(u64, bool)>,
}

struct Out {
    priority: Priority,
    total: u64,
    /// The part that is sent.
    part: Range<u64>,
    /// The receiver's limit.
    limit: u64,
    /// The first byte that was never sent.
    next: u64,
    /// Of these the ones to be sent again.
    pieces: Pieces,
    queued: bool,
    /// The bytes sent since its turn began.
    turn: u64,
}

impl Out {
    fn has_work(&self) -> bool {
        self.next < self.limit.min(self.part.end) || !self.pieces.unsent.is_empty()
    }
}

impl TransfersOut {
    /// Sends a part of a transfer of `total` bytes; the part lies within it. The driver may know that the transfer is `granted`
    /// up to a limit.
    pub fn begin(
        &mut self,
        transfer: u64,
        part: Range<u64>,
        total: u64,
        granted: u64,
        priority: Priority,
    ) -> Result<(), TransferError> {
        if self.is_used(transfer) || transfer == u64::MAX {
            return Err(TransferError::Used);
        }
        self.used.insert(transfer, transfer + 1);
        if self.given_up.remove(&transfer) {
            self.finished.push_back((transfer, false));
            return Ok(());
        }
        let limit = self.early.remove(&transfer).unwrap_or(0).max(granted);
        if part.is_empty() {
            self.finished.push_back((transfer, true));
            return Ok(());
        }
        let out = Out { priority, total, limit, next: part.start, part, pieces: Pieces::default(), queued: false, turn: 0 };
        self.running.insert(transfer, out);
        self.enqueue(transfer, false);
        Ok(())
    }

    fn enqueue(&mut self, transfer: u64, is_first: bool) {
        if let Some(out) = self.running.get_mut(&transfer)
            && !out.queued
            && out.has_work()
        {
            (out.queued, out.turn) = (true, 0);
            let queue = &mut self.queues[out.priority.index()];
            if is_first { queue.push_front(transfer) } else { queue.push_back(transfer) }
        }
    }

    /// Whether nothing waits for an acknowledgement or a grant.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    #[inline]
    pub fn has_work(&self, priority: Priority) -> bool {
        !self.queues[priority.index()].is_empty()
    }

    /// Forgets a transfer. Returns whether it was running.
    pub fn cancel(&mut self, transfer: u64) -> bool {
        self.early.remove(&transfer);
        self.running.remove(&transfer).is_some()
    }

    /// The receiver cancels a transfer, which may not have been begun yet. Returns whether it was running.
    pub fn on_cancel(&mut self, transfer: u64) -> bool {
        if !self.is_used(transfer) {
            self.given_up.insert(transfer);
            if self.given_up.len() > EARLY_MAX {
                self.given_up.pop_first();
            }
        }
        self.cancel(transfer)
    }

    fn is_used(&self, transfer: u64) -> bool {
        self.used.covers(transfer, transfer.saturating_add(1))
    }

    pub fn on_grant(&mut self, transfer: u64, limit: u64) -> Result<(), &'static str> {
        if let Some(out) = self.running.get_mut(&transfer) {
            out.limit = out.limit.max(limit);
            self.enqueue(transfer, false);
        } else if !self.is_used(transfer) && !self.given_up.contains(&transfer) {
            let known = self.early.entry(transfer).or_default();
            *known = limit.max(*known);
            if self.early.len() > EARLY_MAX {
                return Err("grants for too many transfers that were not begun");
            }
        }
        Ok(())
    }

    /// Writes the next bytes of one transfer of this priority. With `lend`, many bytes stay where they are; nothing may follow
    /// then. Transfers whose bytes `source` no longer has are pushed to `unreadable`.
    pub fn write<S: Source>(
        &mut self,
        priority: Priority,
        session: SessionId,
        writer: &mut Writer,
        lend: Option<&mut Option<Lent>>,
        source: &mut S,
        unreadable: &mut Vec<u64>,
    ) -> Option<Carried> {
        let queue = &mut self.queues[priority.index()];
        loop {
            let transfer = *queue.front()?;
            let Some(out) = self.running.get_mut(&transfer).filter(|out| out.has_work()) else {
                if let Some(out) = self.running.get_mut(&transfer) {
                    out.queued = false;
                }
                queue.pop_front();
                continue;
            };
            let most = writer.room().checked_sub(DATA_HEAD)?.min(usize::from(u16::MAX)) as u64;
            let left = match out.pieces.unsent.first() {
                Some((from, to)) => to - from,
                None => out.limit.min(out.part.end) - out.next,
            };
            if most < left.min(PIECE_LEAST as u64) {
                return None;
            }
            let (from, to) = match out.pieces.unsent.take_front(most) {
                Some(range) => range,
                None => {
                    let to = out.limit.min(out.part.end).min(out.next + most);
                    let from = std::mem::replace(&mut out.next, to);
                    (from, to)
                }
            };
            out.turn += to - from;
            let total = out.total;
            if !out.has_work() {
                out.queued = false;
                queue.pop_front();
            }
            let (before, len) = (writer.len(), (to - from) as usize);
            frame::write_data_head(writer, transfer, from, total, len);
            let is_there = match lend {
                Some(lend) if len >= LEND_LEAST && source.lends(session, TransferId(transfer)) => {
                    *lend = Some(Lent { by: Lender::Transfer(transfer), at: from, len: len as u32 });
                    true
                }
                _ => source.read(session, TransferId(transfer), from, writer.space(len)),
            };
            if !is_there {
                writer.back_to(before);
                self.running.remove(&transfer);
                unreadable.push(transfer);
                return self.write(priority, session, writer, None, source, unreadable);
            }
            return Some(Carried::Data { transfer, offset: from, len: len as u32 });
        }
    }

    /// Gives the next transfer of this priority its turn, if the present one sent as much as may be under way in this window.
    pub fn rotate(&mut self, priority: Priority, window: u64) {
        let queue = &mut self.queues[priority.index()];
        if let Some(out) = queue.front().and_then(|transfer| self.running.get_mut(transfer))
            && out.turn >= TURN_MOST.min(window)
        {
            out.turn = 0;
            queue.rotate_left(1);
        }
    }

    pub fn on_acked(&mut self, transfer: u64, offset: u64, len: u32) {
        let Some(out) = self.running.get_mut(&transfer) else { return };
        out.pieces.on_acked(offset, offset + u64::from(len));
        if out.pieces.acked.covers(out.part.start, out.part.end) {
            self.running.remove(&transfer);
            self.finished.push_back((transfer, true));
        }
    }

    /// Returns how many bytes are sent again.
    pub fn on_lost(&mut self, transfer: u64, offset: u64, len: u32) -> u64 {
        let Some(out) = self.running.get_mut(&transfer) else { return 0 };
        let bytes = out.pieces.on_lost(offset, offset + u64::from(len));
        // If it sent everything else, it should not wait for the turns of all others.
        self.enqueue(transfer, true);
        bytes
    }
}

/// The receiving ends of a session's transfers.
#[derive(Default)]
pub(crate) struct TransfersIn {
    running: BTreeMap<u64, In>,
    next: u64,
}

struct In {
    total: u64,
    limit: u64,
    arrived: RangeSet,
}

impl TransfersIn {
    /// Names a transfer of `total` bytes.
    pub fn expect(&mut self, total: u64, limit: u64) -> u64 {
        let transfer = self.next;
        self.next += 1;
        if total > 0 {
            self.running.insert(transfer, In { total, limit, arrived: RangeSet::default() });
        }
        transfer
    }

    pub fn grant(&mut self, transfer: u64, limit: u64) -> bool {
        match self.running.get_mut(&transfer) {
            Some(running) if limit > running.limit => {
                running.limit = limit;
                true
            }
            _ => false,
        }
    }

    /// The sender's limit, if the transfer goes on.
    pub fn limit(&self, transfer: u64) -> Option<u64> {
        self.running.get(&transfer).map(|running| running.limit)
    }

    pub fn cancel(&mut self, transfer: u64) -> bool {
        self.running.remove(&transfer).is_some()
    }

    /// Handles arrived bytes; `place` gets the new ones. Returns whether the transfer is now complete.
    #[inline]
    pub fn on_data(
        &mut self,
        (transfer, offset, total): (u64, u64, u64),
        bytes: &[u8],
        mut place: impl FnMut(u64, &[u8]),
    ) -> Result<bool, &'static str> {
        let Some(running) = self.running.get_mut(&transfer) else { return Ok(false) };
        let end = offset + bytes.len() as u64;
        if total != running.total {
            return Err("a transfer has another length than agreed");
        }
        if end > running.limit {
            return Err("a transfer ran over its limit");
        }
        running.arrived.fill(offset, end, |from, to| place(from, &bytes[(from - offset) as usize..(to - offset) as usize]));
        if running.arrived.pieces() > PIECES_MAX {
            return Err("a transfer has too many pieces");
        }
        let complete = running.arrived.covers(0, total);
        if complete {
            self.running.remove(&transfer);
        }
        Ok(complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_in_crumbs_takes_bounded_memory() {
        let mut transfers = TransfersIn::default();
        let total = 1 << 30;
        let transfer = transfers.expect(total, total);
        let mut put = |at: u64| transfers.on_data((transfer, at, total), &[0], |_, _| {});
        let pieces = (0..).map(|piece| put(2 * piece)).take_while(Result::is_ok).count();
        assert_eq!(pieces, PIECES_MAX);
    }
}
