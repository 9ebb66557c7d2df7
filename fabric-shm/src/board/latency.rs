//! Latencies of sampled messages: how many took how long from being published to being taken.
//!
//! Two buckets for each doubling, so that a figure is right to a quarter or better. Of the lane's packets every 64th bears a
//! time stamp: see [`crate::lane`].

use doorbell_fabric::sync::{AtomicU64, Ordering};

/// Buckets of the histogram: two for each power of two of nanoseconds.
pub const LATENCY_BUCKETS: usize = 64;

/// The bucket of a latency.
fn bucket(ns: u32) -> usize {
    match ns {
        0 | 1 => ns as usize,
        _ => {
            let log = ns.ilog2();
            (2 * log + ((ns >> (log - 1)) & 1)) as usize
        }
    }
}

/// The least latency of a bucket, in nanoseconds.
fn least(bucket: usize) -> u64 {
    match bucket {
        0 | 1 => bucket as u64,
        _ => (2 + (bucket as u64 & 1)) << (bucket / 2 - 1),
    }
}

/// The histogram that a node fills in, in private memory. One thread at a time adds; any thread reads.
#[derive(Debug)]
pub struct LatencyHistogram([AtomicU64; LATENCY_BUCKETS]);

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; LATENCY_BUCKETS])
    }
}

impl LatencyHistogram {
    /// Adds a latency in nanoseconds.
    pub fn add(&self, ns: u32) {
        // One thread at a time adds: a plain load and store.
        let count = &self.0[bucket(ns)];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The counts as they are now.
    pub fn read(&self) -> Latencies {
        Latencies::collect(|bucket| self.0[bucket].load(Ordering::Relaxed))
    }
}

/// The histogram of one moment, or of the time between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latencies([u64; LATENCY_BUCKETS]);

impl Default for Latencies {
    fn default() -> Self {
        Self([0; LATENCY_BUCKETS])
    }
}

impl Latencies {
    pub(super) fn collect(count: impl FnMut(usize) -> u64) -> Self {
        Self(std::array::from_fn(count))
    }

    /// How many samples are in each bucket.
    pub fn counts(&self) -> &[u64; LATENCY_BUCKETS] {
        &self.0
    }

    /// How many samples there are.
    pub fn count(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The samples that came after an earlier look at the same node.
    #[must_use]
    pub fn since(&self, earlier: &Latencies) -> Latencies {
        Self(std::array::from_fn(|bucket| self.0[bucket].saturating_sub(earlier.0[bucket])))
    }

    /// The latency in nanoseconds below which this share of the samples lies, from 0 to 1; `None` without samples. Within a
    /// bucket samples are taken to lie evenly.
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
