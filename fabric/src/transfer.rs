//! Transfers: bytes that a network moves apart from the packets of its links.

/// One transfer of one direction of a session, named by its receiver. A name is never reused within the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u64);

/// The bytes that a transfer sends, in memory of the caller that began it. Any thread calls it while it holds the fabric, so it
/// must neither block nor call the fabric.
pub trait BytesOut: Send + Sync {
    /// Passes `len` bytes from `at` to a callback, for the first transmission and for each repetition. Returns false if the bytes
    /// are gone; then the transfer ends.
    fn lend(&self, at: u64, len: usize, to: &mut dyn FnMut(&[u8])) -> bool;
    /// Whether the bytes are still there.
    fn has(&self) -> bool;
    /// Reports the end of the transfer. `whole` is false if the peer wants no more of it, the bytes could not be read, or the
    /// session ended.
    fn ended(&self, whole: bool);
}

/// The destination of a transfer's bytes. The polling thread calls it while it holds the fabric, so it must neither block nor
/// call the fabric.
pub trait BytesIn: Send + Sync {
    /// Stores new bytes, in any order. They lie within the transfer.
    fn store(&self, at: u64, bytes: &[u8]);
}
