//! Bytes at the end of a datagram that were left where they lie, so that the kernel takes them from there.

use super::{SessionId, TransferId};
use doorbell_fabric::Priority;

/// So many bytes are better lent than copied.
pub(crate) const LEND_LEAST: usize = 16 << 10;

/// Bytes that belong to the end of a datagram and were not copied there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lent {
    pub by: Lender,
    /// Where they begin there.
    pub at: u64,
    pub len: u32,
}

/// Who has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lender {
    /// A lane of the session.
    Lane(Priority),
    /// The source of a transfer.
    Transfer(u64),
}

/// The bytes of a datagram that do not lie in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Middle<'a> {
    /// They are these.
    Lane(&'a [u8]),
    /// Bytes of a transfer, which whoever began it has.
    Transfer {
        /// The session.
        session: SessionId,
        /// The transfer.
        transfer: TransferId,
        /// Where they begin in it.
        offset: u64,
        /// How many.
        len: usize,
    },
}
