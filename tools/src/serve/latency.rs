//! The histogram of sampled latencies, with the edges of its buckets.

use doorbell_shm::board::{LATENCY_BUCKETS, Latencies};

/// The first and the last edge that `/metrics` shows, in nanoseconds. Latencies beyond them lie in the first bucket and in the last one.
const SHOWN: [u64; 2] = [32, 1 << 30];
/// The largest count of a bucket. A damaged board may show any number, and the sum of all counts must fit into 64 bits.
const MOST: u64 = u64::MAX / (2 * LATENCY_BUCKETS as u64);

/// The upper edge of a bucket in nanoseconds: two buckets for each power of two.
fn edge(bucket: usize) -> u64 {
    let next = bucket + 1;
    match next {
        0 | 1 => next as u64,
        _ => (2 + (next as u64 & 1)) << (next / 2 - 1),
    }
}

/// Latencies of one node or of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread([u64; LATENCY_BUCKETS]);

impl Default for Spread {
    fn default() -> Self {
        Self([0; LATENCY_BUCKETS])
    }
}

/// What `/metrics` says of latencies.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Seconds of all samples. A board keeps no sum, so each sample counts as the middle of its bucket.
    pub sum: f64,
    /// The number of samples.
    pub count: u64,
    /// The upper edge of each bucket in seconds, and its own samples.
    pub buckets: Vec<(f64, u64)>,
}

impl Spread {
    /// Adds the samples of a node.
    pub fn add(&mut self, latencies: &Latencies) {
        self.0.iter_mut().zip(latencies.counts()).for_each(|(sum, count)| *sum = sum.saturating_add(*count).min(MOST));
    }

    /// The number of samples.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The buckets that have samples: lower edge, upper edge and count, in nanoseconds.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let edges = |bucket: usize| (bucket.checked_sub(1).map_or(0, edge), edge(bucket));
        let all = self.0.iter().enumerate().map(move |(bucket, count)| (edges(bucket).0, edges(bucket).1, *count));
        all.filter(|(.., count)| *count > 0)
    }

    /// The latency in nanoseconds below which this share of the samples lies. The samples of a bucket count as spread evenly.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = self.count() as f64 * share;
        let mut below = 0.0;
        for (low, high, count) in self.buckets() {
            let count = count as f64;
            if below + count >= wanted {
                return Some(low as f64 + (high - low) as f64 * ((wanted - below) / count).clamp(0.0, 1.0));
            }
            below += count;
        }
        None
    }

    /// The buckets in seconds. They are the same for each node and at each time.
    pub fn histogram(&self) -> Histogram {
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        let mut waiting = 0;
        for (bucket, count) in self.0.iter().enumerate() {
            waiting += count;
            if (SHOWN[0]..=SHOWN[1]).contains(&edge(bucket)) {
                buckets.push((edge(bucket) as f64 / 1e9, std::mem::take(&mut waiting)));
            }
        }
        buckets.push((f64::INFINITY, waiting));
        let sum = self.buckets().map(|(low, high, count)| count as f64 * (low + (high - low) / 2) as f64 / 1e9).sum();
        Histogram { sum, count: self.count(), buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_shm::board::LatencyHistogram;

    fn of(values: &[(u32, usize)]) -> Spread {
        let histogram = LatencyHistogram::default();
        values.iter().for_each(|(ns, count)| (0..*count).for_each(|_| histogram.add(*ns)));
        let mut spread = Spread::default();
        spread.add(&histogram.read());
        spread
    }

    #[test]
    fn edges_are_those_of_the_board() {
        for bucket in 0..LATENCY_BUCKETS - 1 {
            let last = edge(bucket) as u32;
            for (ns, place) in [(last - 1, bucket), (last, bucket + 1)] {
                assert_eq!(of(&[(ns, 1)]).0.iter().position(|count| *count == 1), Some(place), "{ns}");
            }
        }
    }

    #[test]
    fn every_sample_is_in_one_bucket() {
        let found = of(&[(0, 3), (40, 5), (300, 90), (5_000_000, 2), (u32::MAX, 1)]).histogram();
        assert_eq!((found.count, found.buckets.iter().map(|(_, count)| count).sum::<u64>()), (101, 101));
        assert_eq!(found.buckets.first(), Some(&(32e-9, 3)));
        assert_eq!(found.buckets.last(), Some(&(f64::INFINITY, 1)));
        assert!(found.buckets.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let exact = (5.0 * 40e-9) + 90.0 * 300e-9 + 2.0 * 5e-3 + 4.294_967_295;
        assert!((found.sum / exact - 1.0).abs() < 0.25, "{} {exact}", found.sum);
    }

    #[test]
    fn a_quantile_lies_in_its_bucket() {
        let found = of(&[(300, 99), (50_000, 1)]);
        assert!((256.0..384.0).contains(&found.quantile(0.5).unwrap()));
        assert!((49_152.0..=65_536.0).contains(&found.quantile(0.999).unwrap()));
        assert_eq!(Spread::default().quantile(0.5), None);
    }

    #[test]
    fn counts_that_no_node_writes_have_a_sum() {
        let mut spread = Spread([u64::MAX; LATENCY_BUCKETS]);
        spread.add(&LatencyHistogram::default().read());
        let found = spread.histogram();
        assert_eq!(found.count, found.buckets.iter().map(|(_, count)| count).sum::<u64>());
    }
}
