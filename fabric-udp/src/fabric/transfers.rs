//! Where the bytes of transfers come from and go to: memory of whoever uses the fabric.

use crate::protocol::{Endpoint, SessionId, Source, Time, TransferId};
use doorbell_fabric::Priority;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Bytes that a transfer sends, in memory of whoever began it. Called with the fabric entered, by any thread: it may neither block nor call the
/// fabric.
pub trait BytesOut: Send + Sync {
    /// Hands over `len` bytes from `at`: when they are sent, and when they are sent again. `false`: they are gone, and the transfer ends.
    fn lend(&self, at: u64, len: usize, to: &mut dyn FnMut(&[u8])) -> bool;
    /// Whether it still has them.
    fn has(&self) -> bool;
    /// It is over: all is there, or (`false`) the peer wants no more of it, or it could not be read, or the session ended.
    fn ended(&self, whole: bool);
}

/// Where the bytes of a transfer are stored. Called with the fabric entered, by whoever polls: it may neither block nor call the fabric.
pub trait BytesIn: Send + Sync {
    /// Stores bytes that were not there before, in whatever order they come. They lie within the transfer.
    fn store(&self, at: u64, bytes: &[u8]);
}

type Name = (SessionId, TransferId);

/// All transfers of a node over the network.
#[derive(Default)]
pub(super) struct Transfers {
    outgoing: HashMap<Name, Arc<dyn BytesOut>>,
    /// Whoever expects one holds it: dropped, it is expected no more.
    incoming: HashMap<Name, Weak<dyn BytesIn>>,
}

impl Transfers {
    /// Expects a transfer of `total` bytes, all of which may come at once.
    pub fn expect(
        &mut self,
        endpoint: &mut Endpoint,
        session: SessionId,
        total: u64,
        into: &Arc<dyn BytesIn>,
    ) -> Option<TransferId> {
        self.incoming.retain(|(session, transfer), into| {
            let is_expected = into.strong_count() > 0;
            if !is_expected {
                endpoint.forget(*session, *transfer);
            }
            is_expected
        });
        let transfer = endpoint.expect_granted(session, total).ok()?;
        self.incoming.insert((session, transfer), Arc::downgrade(into));
        Some(transfer)
    }

    /// Sends a part of a transfer that the peer expects. False if it does not, or the session is over.
    pub fn begin(
        &mut self,
        endpoint: &mut Endpoint,
        now: Time,
        (session, transfer): Name,
        (part, total): (Range<u64>, u64),
        priority: Priority,
        from: Arc<dyn BytesOut>,
    ) -> bool {
        // Before it begins: its end may be told at once.
        if self.outgoing.contains_key(&(session, transfer)) {
            return false;
        }
        let begun = endpoint.begin_part(now, session, transfer, part, total, priority).is_ok();
        if begun {
            self.outgoing.insert((session, transfer), from);
        }
        begun
    }

    /// Whether any is being sent.
    #[inline]
    pub fn is_sending(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// One that was sent from here is over.
    pub fn ended(&mut self, session: SessionId, transfer: TransferId, whole: bool) {
        if let Some(from) = self.outgoing.remove(&(session, transfer)) {
            from.ended(whole);
        }
    }

    /// A session is over, and all its transfers with it.
    pub fn end_session(&mut self, session: SessionId) {
        self.incoming.retain(|(of, _), _| *of != session);
        self.outgoing.retain(|(of, _), from| {
            if *of == session {
                from.ended(false);
            }
            *of != session
        });
    }

    /// Hands over bytes of what is sent from here. False if they are gone.
    pub fn lend(&self, name: Name, at: u64, len: usize, to: &mut dyn FnMut(&[u8])) -> bool {
        self.outgoing.get(&name).is_some_and(|from| from.lend(at, len, to))
    }

    /// Bytes arrived.
    #[inline]
    pub fn store(&self, session: SessionId, transfer: TransferId, at: u64, bytes: &[u8]) {
        if let Some(into) = self.incoming.get(&(session, transfer)).and_then(Weak::upgrade) {
            into.store(at, bytes);
        }
    }
}

impl Source for Transfers {
    fn lends(&mut self, session: SessionId, transfer: TransferId) -> bool {
        self.outgoing.get(&(session, transfer)).is_some_and(|from| from.has())
    }

    fn read(&mut self, session: SessionId, transfer: TransferId, offset: u64, into: &mut [u8]) -> bool {
        let len = into.len();
        self.lend((session, transfer), offset, len, &mut |bytes| into.copy_from_slice(bytes))
    }
}
