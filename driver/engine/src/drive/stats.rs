//! Counts of a node.

/// What a node has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Messages that arrived whole, asked for or not.
    pub messages_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Of the messages that arrived, those that the poller thread carried.
    pub by_poller: u64,
    /// Of the messages that arrived, those that nobody had asked for yet.
    pub unexpected: u64,
    /// Messages given to lanes.
    pub messages_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Messages that wait to be received.
    pub pooled: usize,
    /// Bytes that they take.
    pub pooled_bytes: usize,
    /// The most bytes that waiting messages ever took.
    pub pooled_bytes_most: usize,
    /// Times a thread slept on the doorbell.
    pub parks: u64,
}
