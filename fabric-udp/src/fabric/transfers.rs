//! The source and destination of transfers: memory of the fabric's user.

use crate::protocol::{Endpoint, SessionId, Source, TransferId};
use doorbell_fabric::{BytesIn, BytesOut};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

type Name = (SessionId, TransferId);

/// All transfers of a node over the network.
#[derive(Default)]
pub(super) struct Transfers {
    pub outgoing: HashMap<Name, Arc<dyn BytesOut>>,
    /// The caller that expects a transfer owns its destination. Dropping the destination ends the transfer.
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

    /// Whether any transfer is being sent.
    #[inline]
    pub fn is_sending(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Reports the end of an outgoing transfer.
    pub fn ended(&mut self, session: SessionId, transfer: TransferId, whole: bool) {
        if let Some(from) = self.outgoing.remove(&(session, transfer)) {
            from.ended(whole);
        }
    }

    /// Ends all transfers of a session that has ended.
    pub fn end_session(&mut self, session: SessionId) {
        self.incoming.retain(|(of, _), _| *of != session);
        self.outgoing.retain(|(of, _), from| {
            if *of == session {
                from.ended(false);
            }
            *of != session
        });
    }

    /// Passes on bytes of an outgoing transfer. Returns false if they are gone.
    pub fn lend(&self, name: Name, at: u64, len: usize, to: &mut dyn FnMut(&[u8])) -> bool {
        self.outgoing.get(&name).is_some_and(|from| from.lend(at, len, to))
    }

    /// Stores bytes that arrived.
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
