//! A histogram of the delay from publishing to taking a sampled message.
//!
//! Each power of two has two buckets, so a quantile is accurate to a quarter or better. One packet of a lane in 64 carries a
//! time stamp, at most one a millisecond: see [`crate::lane`].

use super::home::Words;
use doorbell_fabric::sync::Ordering;

/// Buckets of the histogram: two for each power of two in nanoseconds.
pub const LATENCY_BUCKETS: usize = 64;

/// The bucket that a latency belongs to.
fn bucket(ns: u32) -> usize {
    match ns {
        0 | 1 => ns as usize,
        _ => {
            let log = ns.ilog2();
            (2 * log + ((ns >> (log - 1)) & 1)) as usize
        }
    }
}

/// The lowest latency of a bucket, in nanoseconds.
fn least(bucket: usize) -> u64 {
    match bucket {
        0 | 1 => bucket as u64,
        _ => (2 + (bucket as u64 & 1)) << (bucket / 2 - 1),
    }
}

/// The histogram that a node fills, in private memory. One thread at a time adds; any thread reads.
#[derive(Debug, Default)]
pub struct LatencyHistogram(Words<LATENCY_BUCKETS>);

impl LatencyHistogram {
    /// Adds a latency in nanoseconds.
    pub fn add(&self, ns: u32) {
        // Only one thread at a time adds, so a plain load and store suffice.
        let count = &self.0.0[bucket(ns)];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The current counts.
    pub fn read(&self) -> Latencies {
        Latencies(self.0.read())
    }
}

/// The histogram at one moment, or of the interval between two moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latencies(pub(super) [u64; LATENCY_BUCKETS]);

impl Default for Latencies {
    fn default() -> Self {
        Self([0; LATENCY_BUCKETS])
    }
}

impl Latencies {
    /// The number of samples in each bucket.
    pub fn counts(&self) -> &[u64; LATENCY_BUCKETS] {
        &self.0
    }

    /// The number of samples.
    pub fn count(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The samples that were added after the earlier reading of the same node.
    #[must_use]
    pub fn since(&self, earlier: &Latencies) -> Latencies {
        Self(std::array::from_fn(|bucket| self.0[bucket].saturating_sub(earlier.0[bucket])))
    }

    /// The latency in nanoseconds below which this share (0 to 1) of the samples lies; `None` without samples. Assumes that the
    /// samples of a bucket are spread evenly.
    ///
    /// ```
    /// use doorbell_shm::board::LatencyHistogram;
    /// let histogram = LatencyHistogram::default();
    /// (0..100).for_each(|_| histogram.add(200));
    /// let p50 = histogram.read().quantile(0.5).unwrap();
    /// assert!((192..256).contains(&p50));
    /// assert_eq!(LatencyHistogram::default().read().quantile(0.5), None);
    /// ```
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let wanted = self.count() as f64 * share.clamp(0.0, 1.0);
        let mut below = 0.0;
        let mut last = None;
        for (bucket, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (low, high) = (least(bucket) as f64, least(bucket + 1) as f64);
            let count = *count as f64;
            if below + count >= wanted {
                return Some((low + (high - low) * ((wanted - below) / count).clamp(0.0, 1.0)) as u64);
            }
            below += count;
            last = Some(high as u64);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other() {
        for ns in (0..200_000_u32).step_by(if cfg!(miri) { 997 } else { 1 }).chain([u32::MAX - 1, u32::MAX]) {
            let bucket = bucket(ns);
            assert!(bucket < LATENCY_BUCKETS);
            assert!(least(bucket) <= u64::from(ns) && u64::from(ns) < least(bucket + 1), "{ns} in {bucket}");
        }
    }

    #[test]
    fn quantiles_lie_in_their_buckets() {
        let histogram = LatencyHistogram::default();
        (0..990).for_each(|_| histogram.add(300));
        let before = histogram.read();
        (0..10).for_each(|_| histogram.add(50_000));
        let now = histogram.read();
        assert!((256..384).contains(&now.quantile(0.5).unwrap()));
        assert!((49_152..65_536).contains(&now.quantile(0.999).unwrap()));
        assert!((49_152..65_536).contains(&now.since(&before).quantile(0.5).unwrap()));
        assert_eq!((now.count(), now.since(&now).quantile(0.5)), (1000, None));
        assert_eq!(Latencies([u64::MAX; LATENCY_BUCKETS]).count(), u64::MAX);
    }
}
