//! The metrics of a node: one array of named words.

#[cfg(not(loom))]
use super::home::Words;
#[cfg(not(loom))]
use doorbell_fabric::sync::Ordering;
use std::ops::{Index, IndexMut};
use strum::{EnumString, VariantArray, VariantNames};

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

/// One metric of a node. The list is the same for all builds that show or read metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EnumString, VariantArray, VariantNames)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
#[repr(usize)]
pub enum Metric {
    /// Messages that arrived in full.
    MessagesIn,
    /// Their bytes.
    BytesIn,
    /// Messages sent.
    MessagesOut,
    /// Their bytes.
    BytesOut,
    /// Messages that wait for a matching receive.
    Pooled,
    /// Bytes of those messages.
    PooledBytes,
    /// Times a thread slept on the doorbell.
    Parks,
    /// The most bytes that waiting messages ever occupied.
    PooledBytesMost,
    /// Messages that arrived before a matching receive was posted.
    Unexpected,
    /// Messages that the poller thread received.
    ByPoller,
    /// Turns of the engine.
    Turns,
    /// Descriptors in the injection FIFO of high priority.
    FifoHigh,
    /// Descriptors in the injection FIFO of normal priority.
    FifoNormal,
    /// Descriptors in the injection FIFO of low priority.
    FifoLow,
    /// The most descriptors that the injection FIFO of high priority ever held.
    FifoHighMost,
    /// The most descriptors that the injection FIFO of normal priority ever held.
    FifoNormalMost,
    /// The most descriptors that the injection FIFO of low priority ever held.
    FifoLowMost,
    /// Memory-FIFO descriptors executed.
    MemoryFifos,
    /// Direct-put descriptors executed.
    DirectPuts,
    /// Remote-get descriptors executed.
    RemoteGets,
    /// Request-to-send descriptors executed.
    Rts,
    /// Bytes of transfers that travelled as memory-FIFO packets.
    BytesFifo,
    /// Bytes of transfers that this node put as their origin.
    BytesPut,
    /// Bytes of transfers that this node pulled as their target.
    BytesPulled,
    /// Bytes put by key.
    BytesPutByKey,
    /// Bytes got by key.
    BytesGotByKey,
    /// Bytes of the loans sent.
    BytesLoaned,
    /// Transfers that this node completed, as origin or as target.
    Transfers,
    /// DMA counters in use.
    CountersUsed,
    /// Times a DMA counter reached zero.
    CounterZeros,
    /// Descriptors that the DMA engine executed for injection FIFOs of the program and of peers.
    Descriptors,
    /// Descriptors that failed.
    DescriptorFaults,
    /// Peers that died.
    PeersDied,
    /// Collectives that completed on this node.
    Collectives,
    /// Turns of team channels that were acquired at once.
    TurnsAcquired,
    /// Turns that found no channel available, and were queued.
    TurnsQueued,
    /// Background synchronisations that were posted.
    TurnsSynchronised,
    /// Turns whose channel the other members had already reported available in their posts.
    TurnsForeseen,
}

/// The names of all metrics, in order.
const NAMES: &[&str] = <Metric as VariantNames>::VARIANTS;
/// The number of metrics.
const COUNT: usize = NAMES.len();

const _: () = assert!(COUNT <= crate::layout::FIGURE_WORDS);

/// A hash of the names and their order. It is part of the layout, because both sides must give a word the same name.
pub const FIGURES_HASH: u64 = {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < COUNT {
        let word = NAMES[at].as_bytes();
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
    /// All metrics, in the order of their words.
    pub const ALL: &[Metric] = <Metric as VariantArray>::VARIANTS;

    /// Its name in output, such as `messages_in`.
    pub const fn word(self) -> &'static str {
        NAMES[self as usize]
    }

    /// Its behaviour over time.
    pub const fn kind(self) -> FigureKind {
        use Metric::*;
        match self {
            Pooled | PooledBytes | FifoHigh | FifoNormal | FifoLow | CountersUsed => FigureKind::Level,
            PooledBytesMost | FifoHighMost | FifoNormalMost | FifoLowMost => FigureKind::Most,
            _ => FigureKind::Total,
        }
    }

    /// Whether it counts bytes.
    pub fn is_bytes(self) -> bool {
        self.word().contains("bytes")
    }

    /// The metric with this name.
    ///
    /// ```
    /// use doorbell_shm::board::Metric;
    /// assert_eq!(Metric::from_word("parks"), Some(Metric::Parks));
    /// ```
    pub fn from_word(word: &str) -> Option<Metric> {
        word.parse().ok()
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
pub struct Metrics(pub(super) [u64; COUNT]);

impl Default for Metrics {
    fn default() -> Self {
        Self([0; COUNT])
    }
}

impl Metrics {
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
#[derive(Debug, Default)]
pub struct Tallies(Words<COUNT>);

#[cfg(not(loom))]
impl Tallies {
    /// Adds to a counter or a gauge.
    #[inline]
    pub fn add(&self, metric: Metric, amount: u64) {
        self.0.0[metric as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// Subtracts from a gauge.
    #[inline]
    pub fn sub(&self, metric: Metric, amount: u64) {
        self.0.0[metric as usize].fetch_sub(amount, Ordering::Relaxed);
    }

    /// Sets a gauge.
    #[inline]
    pub fn set(&self, metric: Metric, value: u64) {
        self.0.0[metric as usize].store(value, Ordering::Relaxed);
    }

    /// Raises a highest value to `value` if that is higher.
    #[inline]
    pub fn raise(&self, metric: Metric, value: u64) {
        self.0.0[metric as usize].fetch_max(value, Ordering::Relaxed);
    }

    /// Records how many descriptors the injection FIFO of a priority holds, in the gauge and in the highest value.
    pub fn fifo_depth(&self, priority: doorbell_fabric::Priority, depth: usize) {
        let at = priority.index();
        self.set([Metric::FifoHigh, Metric::FifoNormal, Metric::FifoLow][at], depth as u64);
        self.raise([Metric::FifoHighMost, Metric::FifoNormalMost, Metric::FifoLowMost][at], depth as u64);
    }

    /// The current values.
    pub fn read(&self) -> Metrics {
        Metrics(self.0.read())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::board::testing::HeapBoard;
    use doorbell_fabric::Priority;

    #[test]
    fn figures_are_what_their_table_says() {
        for (at, metric) in Metric::ALL.iter().enumerate() {
            let word = metric.word();
            assert_eq!((*metric as usize, Metric::from_word(word)), (at, Some(*metric)));
            assert!(word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{word}");
            assert_eq!(metric.is_bytes(), word.contains("bytes"), "{word}");
        }
        assert_eq!(Metric::from_word("nothing"), None);
    }

    #[test]
    fn what_is_shown_is_read() {
        let room = HeapBoard::new();
        let metrics = Metrics(std::array::from_fn(|metric| metric as u64 + 7));
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
