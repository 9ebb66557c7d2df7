//! Counts of a node.

/// Counts of a node since it joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Messages that arrived whole, whether or not a receive had asked for them.
    pub messages_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Of the messages that arrived, those that the poller thread handled.
    pub by_poller: u64,
    /// Of the messages that arrived, those that no receive had asked for yet.
    pub unexpected: u64,
    /// Messages given to lanes.
    pub messages_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Messages that wait to be received.
    pub pooled: usize,
    /// The bytes of these messages in the pool.
    pub pooled_bytes: usize,
    /// The most bytes that waiting messages ever took.
    pub pooled_bytes_most: usize,
    /// How often a thread slept on the doorbell.
    pub parks: u64,
}
