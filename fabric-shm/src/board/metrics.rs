//! The metrics of a node: one array of named words.

#[cfg(not(loom))]
use doorbell_fabric::sync::{AtomicU64, Ordering};
use std::ops::{Index, IndexMut};

/// The behaviour of a metric over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// A counter that only grows. The difference between two readings is a rate.
    Total,
    /// A gauge that goes up and down.
    Level,
    /// The highest value that a gauge has had.
    Most,
}

macro_rules! metrics {
    ($($(#[doc = $doc:literal])+ $name:ident $word:literal $kind:ident $unit:ident;)+) => {
        /// One metric of a node. The list is the same for all builds that show or read metrics.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(usize)]
        pub enum Metric { $($(#[doc = $doc])+ $name,)+ }

        /// Name, kind and unit of each metric, in order.
        const TABLE: &[(Metric, &str, FigureKind, Unit)] = &[$((Metric::$name, $word, FigureKind::$kind, Unit::$unit),)+];
        /// The number of metrics.
        const COUNT: usize = TABLE.len();

        impl Metric {
            /// All metrics, in the order of their words.
            pub const ALL: &[Metric] = &[$(Metric::$name,)+];
        }
    };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Count,
    Bytes,
}

metrics! {
    /// Messages that arrived in full.
    MessagesIn "messages_in" Total Count;
    /// Their bytes.
    BytesIn "bytes_in" Total Bytes;
    /// Messages sent.
    MessagesOut "messages_out" Total Count;
    /// Their bytes.
    BytesOut "bytes_out" Total Bytes;
    /// Messages that wait for a matching receive.
    Pooled "pooled" Level Count;
    /// Bytes of those messages.
    PooledBytes "pooled_bytes" Level Bytes;
    /// Times a thread slept on the doorbell.
    Parks "parks" Total Count;
    /// The most bytes that waiting messages ever occupied.
    PooledBytesMost "pooled_bytes_most" Most Bytes;
    /// Messages that arrived before a matching receive was posted.
    Unexpected "unexpected" Total Count;
    /// Messages that the poller thread received.
    ByPoller "by_poller" Total Count;
    /// Turns of the engine.
    Turns "turns" Total Count;
    /// Descriptors in the injection FIFO of high priority.
    FifoHigh "fifo_high" Level Count;
    /// Descriptors in the injection FIFO of normal priority.
    FifoNormal "fifo_normal" Level Count;
    /// Descriptors in the injection FIFO of low priority.
    FifoLow "fifo_low" Level Count;
    /// The most descriptors that the injection FIFO of high priority ever held.
    FifoHighMost "fifo_high_most" Most Count;
    /// The most descriptors that the injection FIFO of normal priority ever held.
    FifoNormalMost "fifo_normal_most" Most Count;
    /// The most descriptors that the injection FIFO of low priority ever held.
    FifoLowMost "fifo_low_most" Most Count;
    /// Memory-FIFO descriptors executed.
    MemoryFifos "memory_fifos" Total Count;
    /// Direct-put descriptors executed.
    DirectPuts "direct_puts" Total Count;
    /// Remote-get descriptors executed.
    RemoteGets "remote_gets" Total Count;
    /// Request-to-send descriptors executed.
    Rts "rts" Total Count;
    /// Bytes of transfers that travelled as memory-FIFO packets.
    BytesFifo "bytes_fifo" Total Bytes;
    /// Bytes of transfers that this node put as their origin.
    BytesPut "bytes_put" Total Bytes;
    /// Bytes of transfers that this node pulled as their target.
    BytesPulled "bytes_pulled" Total Bytes;
    /// Bytes put by key.
    BytesPutByKey "bytes_put_by_key" Total Bytes;
    /// Bytes got by key.
    BytesGotByKey "bytes_got_by_key" Total Bytes;
    /// Bytes of the loans sent.
    BytesLoaned "bytes_loaned" Total Bytes;
    /// Transfers that this node completed, as origin or as target.
    Transfers "transfers" Total Count;
    /// DMA counters in use.
    CountersUsed "counters_used" Level Count;
    /// Times a DMA counter reached zero.
    CounterZeros "counter_zeros" Total Count;
    /// Peers that died.
    PeersDied "peers_died" Total Count;
    /// Collectives that completed on this node.
    Collectives "collectives" Total Count;
    /// Turns of team channels that were acquired at once.
    TurnsAcquired "turns_acquired" Total Count;
    /// Turns that found no channel available, and were queued.
    TurnsQueued "turns_queued" Total Count;
    /// Background synchronisations that were posted.
    TurnsSynchronised "turns_synchronised" Total Count;
    /// Turns whose channel the other members had already reported available in their posts.
    TurnsForeseen "turns_foreseen" Total Count;
}

const _: () = assert!(COUNT <= crate::layout::FIGURE_WORDS);

/// A hash of the names and their order. It is part of the layout, because both sides must give a word the same name.
pub const FIGURES_HASH: u64 = {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < COUNT {
        let word = TABLE[at].1.as_bytes();
        let mut byte = 0;
        while byte < word.len() {
            hash = (hash ^ word[byte] as u64).wrapping_mul(0x0000_0100_0000_01b3);
            byte += 1;
        }
        hash = (hash ^ 0xff).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash
};

impl Metric {
    /// Its name in output, such as `messages_in`.
    pub const fn word(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// Its behaviour over time.
    pub const fn kind(self) -> FigureKind {
        TABLE[self as usize].2
    }

    /// Whether it counts bytes.
    pub const fn is_bytes(self) -> bool {
        matches!(TABLE[self as usize].3, Unit::Bytes)
    }

    /// The metric with this name.
    ///
    /// ```
    /// use doorbell_shm::board::Metric;
    /// assert_eq!(Metric::from_word("parks"), Some(Metric::Parks));
    /// ```
    pub fn from_word(word: &str) -> Option<Metric> {
        TABLE.iter().find(|(_, name, ..)| *name == word).map(|(metric, ..)| *metric)
    }
}

/// The metrics of one node at one moment.
///
/// ```
/// use doorbell_shm::board::{Metric, Metrics};
/// let mut figures = Metrics::default();
/// figures[Metric::Parks] = 3;
/// assert_eq!(figures.iter().find(|(figure, _)| figure.word() == "parks"), Some((Metric::Parks, 3)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metrics([u64; COUNT]);

impl Default for Metrics {
    fn default() -> Self {
        Self([0; COUNT])
    }
}

impl Metrics {
    /// Collects the metrics that a function returns.
    pub fn collect(mut value: impl FnMut(Metric) -> u64) -> Self {
        let mut metrics = Self::default();
        Metric::ALL.iter().for_each(|metric| metrics[*metric] = value(*metric));
        metrics
    }

    /// All metrics with their values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Metric, u64)> + '_ {
        Metric::ALL.iter().map(|metric| (*metric, self[*metric]))
    }
}

impl Index<Metric> for Metrics {
    type Output = u64;

    fn index(&self, metric: Metric) -> &u64 {
        &self.0[metric as usize]
    }
}

impl IndexMut<Metric> for Metrics {
    fn index_mut(&mut self, metric: Metric) -> &mut u64 {
        &mut self.0[metric as usize]
    }
}

/// The node's own copy of its metrics, in private memory. Any of its threads may update it. An update is one atomic operation of
/// some nanoseconds, so it is meant for transfers and chunks, not for the path of a small message.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct Tallies([AtomicU64; COUNT]);

#[cfg(not(loom))]
impl Default for Tallies {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; COUNT])
    }
}

#[cfg(not(loom))]
impl Tallies {
    /// Adds to a counter or a gauge.
    #[inline]
    pub fn add(&self, metric: Metric, amount: u64) {
        self.0[metric as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// Subtracts from a gauge.
    #[inline]
    pub fn sub(&self, metric: Metric, amount: u64) {
        self.0[metric as usize].fetch_sub(amount, Ordering::Relaxed);
    }

    /// Sets a gauge.
    #[inline]
    pub fn set(&self, metric: Metric, value: u64) {
        self.0[metric as usize].store(value, Ordering::Relaxed);
    }

    /// Raises a highest value to `value` if that is higher.
    #[inline]
    pub fn raise(&self, metric: Metric, value: u64) {
        self.0[metric as usize].fetch_max(value, Ordering::Relaxed);
    }

    /// Records how many descriptors the injection FIFO of a priority holds, in the gauge and in the highest value.
    pub fn fifo_depth(&self, priority: doorbell_fabric::Priority, depth: usize) {
        let at = priority.index();
        self.set([Metric::FifoHigh, Metric::FifoNormal, Metric::FifoLow][at], depth as u64);
        self.raise([Metric::FifoHighMost, Metric::FifoNormalMost, Metric::FifoLowMost][at], depth as u64);
    }

    /// The current values.
    pub fn read(&self) -> Metrics {
        Metrics::collect(|metric| self.0[metric as usize].load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::board::testing::HeapBoard;
    use doorbell_fabric::Priority;

    #[test]
    fn figures_are_what_their_table_says() {
        for (at, (metric, word, ..)) in TABLE.iter().enumerate() {
            assert_eq!((*metric as usize, Metric::ALL[at], Metric::from_word(word)), (at, *metric, Some(*metric)));
            assert!(word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{word}");
            assert_eq!(metric.is_bytes(), word.contains("bytes"), "{word}");
        }
        assert_eq!(Metric::from_word("nothing"), None);
    }

    #[test]
    fn what_is_shown_is_read() {
        let room = HeapBoard::new();
        let metrics = Metrics::collect(|metric| metric as u64 + 7);
        room.home.board().show(&metrics);
        assert_eq!(room.home.board().metrics(), metrics);
        assert_eq!(metrics.iter().count(), COUNT);
    }

    #[test]
    fn tallies_are_counted() {
        let tallies = Tallies::default();
        tallies.add(Metric::Rts, 3);
        tallies.fifo_depth(Priority::Low, 9);
        tallies.fifo_depth(Priority::Low, 2);
        let metrics = tallies.read();
        assert_eq!((metrics[Metric::Rts], metrics[Metric::FifoLow], metrics[Metric::FifoLowMost]), (3, 2, 9));
    }
}
