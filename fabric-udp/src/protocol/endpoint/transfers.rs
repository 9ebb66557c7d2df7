//! Transfers: beginning, granting and cancelling.

use super::Endpoint;
use crate::protocol::loss::Carried;
use crate::protocol::session::Closing;
use crate::protocol::{Event, SessionId, Time, TransferError, TransferId};
use doorbell_fabric::Priority;
use std::ops::Range;

impl Endpoint {
    /// Expects a transfer of `total` bytes from the peer, and names it. The caller must tell the peer's driver the name; the peer
    /// may then send the bytes below `limit` (at most `total`). For a transfer without bytes only [`Event::Arrived`] is reported.
    pub fn expect(&mut self, now: Time, session: SessionId, total: u64, limit: u64) -> Result<TransferId, TransferError> {
        let (index, live) = self.sessions.live(session).ok_or(TransferError::Gone)?;
        let transfer = live.cargo.transfers_in.expect(total, limit.min(total));
        if total > 0 {
            live.cargo.controls.push_back(Carried::Grant { transfer });
        } else {
            live.events.push(Event::Arrived { session, transfer: TransferId(transfer) });
        }
        self.after(now, index);
        Ok(TransferId(transfer))
    }

    /// Like [`expect`](Self::expect), but the peer's driver reads the name as a grant for all bytes.
    pub fn expect_granted(&mut self, session: SessionId, total: u64) -> Result<TransferId, TransferError> {
        let (_, live) = self.sessions.live(session).ok_or(TransferError::Gone)?;
        Ok(TransferId(live.cargo.transfers_in.expect(total, total)))
    }

    /// Lets the peer send the bytes of a transfer below `limit`. A lower limit than before changes nothing.
    pub fn grant(&mut self, now: Time, session: SessionId, transfer: TransferId, limit: u64) {
        if let Some((index, session)) = self.sessions.live(session)
            && session.cargo.transfers_in.grant(transfer.0, limit)
        {
            session.cargo.controls.push_back(Carried::Grant { transfer: transfer.0 });
            self.after(now, index);
        }
    }

    /// Sends the `total` bytes of a transfer that the peer named. [`Source`](crate::protocol::Source) supplies them when they
    /// are sent.
    pub fn begin_transfer(
        &mut self,
        now: Time,
        session: SessionId,
        transfer: TransferId,
        total: u64,
        priority: Priority,
    ) -> Result<(), TransferError> {
        self.begin(now, session, transfer, (0..total, total), 0, priority)
    }

    /// Sends a part of a transfer of `total` bytes that the peer named by [`expect_granted`](Self::expect_granted).
    /// [`Event::Sent`] reports that this part has arrived. The peer gets an event only for a whole transfer, so its driver must
    /// learn by other means which part comes, and must [`forget`](Self::forget) the rest.
    pub fn begin_part(
        &mut self,
        now: Time,
        session: SessionId,
        transfer: TransferId,
        part: Range<u64>,
        total: u64,
        priority: Priority,
    ) -> Result<(), TransferError> {
        self.begin(now, session, transfer, (part.start..part.end.min(total), total), total, priority)
    }

    fn begin(
        &mut self,
        now: Time,
        session: SessionId,
        transfer: TransferId,
        (part, total): (Range<u64>, u64),
        granted: u64,
        priority: Priority,
    ) -> Result<(), TransferError> {
        let live = self.sessions.live(session).filter(|(_, session)| session.cargo.closing == Closing::No);
        let (index, live) = live.ok_or(TransferError::Gone)?;
        live.last_used = now;
        live.cargo.transfers_out.begin(transfer.0, part, total, granted, priority)?;
        live.tell_finished();
        self.after(now, index);
        Ok(())
    }

    /// Stops expecting a transfer from the peer, because everything that the peer sends is there. The peer is not told.
    pub fn forget(&mut self, session: SessionId, transfer: TransferId) {
        if let Some((_, session)) = self.sessions.live(session) {
            session.cargo.transfers_in.cancel(transfer.0);
        }
    }

    /// Cancels a transfer to the peer; its bytes are no longer read. Returns whether it was still running. If so, no event
    /// reports its end.
    pub fn cancel_outgoing(&mut self, now: Time, session: SessionId, transfer: TransferId) -> bool {
        self.cancel(now, session, transfer, false)
    }

    /// Cancels a transfer from the peer; no more bytes are placed. Returns whether it was still running. If so, no event reports
    /// its end.
    pub fn cancel_incoming(&mut self, now: Time, session: SessionId, transfer: TransferId) -> bool {
        self.cancel(now, session, transfer, true)
    }

    fn cancel(&mut self, now: Time, session: SessionId, transfer: TransferId, by_receiver: bool) -> bool {
        let Some((index, session)) = self.sessions.live(session) else { return false };
        let (cargo, transfer) = (&mut session.cargo, transfer.0);
        let running = if by_receiver { cargo.transfers_in.cancel(transfer) } else { cargo.transfers_out.cancel(transfer) };
        if running {
            cargo.controls.push_back(Carried::Cancel { transfer, by_receiver });
            self.after(now, index);
        }
        running
    }
}
