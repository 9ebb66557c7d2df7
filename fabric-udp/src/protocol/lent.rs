//! Bytes at the end of a datagram that stay where they lie, so that the kernel takes them from there.

use super::{SessionId, TransferId};
use doorbell_fabric::Priority;

/// The number of bytes from which lending is better than copying.
pub(crate) const LEND_LEAST: usize = 16 << 10;

/// Bytes that belong to the end of a datagram and were not copied there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lent {
    pub by: Lender,
    /// Their start in the lender's memory.
    pub at: u64,
    pub len: u32,
}

/// The owner of the bytes.
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
    /// Bytes of a lane's packet.
    Lane(&'a [u8]),
    /// Bytes of a transfer, which its source has.
    Transfer {
        /// The session.
        session: SessionId,
        /// The transfer.
        transfer: TransferId,
        /// Their start in the transfer.
        offset: u64,
        /// Their number.
        len: usize,
    },
}
