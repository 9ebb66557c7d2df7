//! Samples and their percentiles.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Samples in some unit, mostly ticks: exact up to 2047 units, and within 0.1 % above. They travel as values with their counts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "Vec<(u64, u64)>", from = "Vec<(u64, u64)>")]
pub struct Samples {
    histogram: Histogram<u64>,
}

/// Statistics of a set of samples, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Summary {
    pub count: u64,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
    pub mean: f64,
}

impl Default for Samples {
    fn default() -> Self {
        Self::new()
    }
}

impl From<Samples> for Vec<(u64, u64)> {
    fn from(samples: Samples) -> Self {
        samples.recorded().collect()
    }
}

impl From<Vec<(u64, u64)>> for Samples {
    fn from(recorded: Vec<(u64, u64)>) -> Self {
        let mut samples = Self::new();
        recorded.into_iter().for_each(|(value, count)| samples.record_many(value, count));
        samples
    }
}

impl Samples {
    /// An empty set.
    pub fn new() -> Self {
        Self { histogram: Histogram::new(3).expect("three significant digits are allowed") }
    }

    /// Adds a sample.
    pub fn record(&mut self, value: u64) {
        self.record_many(value, 1);
    }

    /// Adds `count` equal samples.
    pub fn record_many(&mut self, value: u64, count: u64) {
        // The histogram resizes itself. It has no room only for values of decades of ticks.
        let _ = self.histogram.record_n(value, count);
    }

    /// Adds the samples of another set.
    pub fn merge(&mut self, other: &Samples) {
        for (value, count) in other.recorded() {
            self.record_many(value, count);
        }
    }

    /// The number of samples.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The distinct values in ascending order, with their counts.
    pub fn recorded(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value()))
    }

    /// The histogram behind it.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }

    /// The statistics, for a unit of `ns_per_unit` nanoseconds.
    pub fn summary(&self, ns_per_unit: f64) -> Summary {
        let spread = self.spread();
        let ns = |quantile| spread.quantile(quantile) * ns_per_unit;
        Summary {
            count: self.count(),
            min: self.histogram.min() as f64 * ns_per_unit,
            p50: ns(0.5),
            p90: ns(0.9),
            p99: ns(0.99),
            p999: ns(0.999),
            max: self.histogram.max() as f64 * ns_per_unit,
            mean: self.histogram.mean() * ns_per_unit,
        }
    }

    /// The distribution, with the clock's steps smoothed out.
    pub fn spread(&self) -> Spread {
        let values: Vec<(u64, u64)> = self.recorded().collect();
        let mut edges = Vec::with_capacity(values.len() + 1);
        let mut below = 0;
        for (i, (value, count)) in values.iter().enumerate() {
            // The first value and the last are limits, because nothing was seen beyond them.
            let edge = if i == 0 { *value as f64 } else { (values[i - 1].0 as f64 + *value as f64) / 2.0 };
            edges.push((edge, below));
            below += count;
        }
        if let Some((last, _)) = values.last() {
            edges.push((*last as f64, below));
        }
        Spread { edges }
    }
}

/// A distribution in which equal samples are spread evenly to half-way towards their neighbours.
///
/// Time stamps advance in steps (10 ns on many machines), while a cache line takes 50 ns to cross. Without smoothing, medians
/// would lie on a grid too coarse to divide by one another. This is the usual median of grouped data.
#[derive(Clone, Debug)]
pub struct Spread {
    /// The start of each group, and the number of samples before it. The last entry holds the end and the total.
    edges: Vec<(f64, u64)>,
}

impl Spread {
    /// The value below which this share of the samples lies; 0 without samples.
    pub fn quantile(&self, share: f64) -> f64 {
        let Some((end, total)) = self.edges.last() else { return 0.0 };
        let rank = share * *total as f64;
        let after = self.edges.partition_point(|(_, below)| *below as f64 <= rank);
        match (self.edges.get(after.wrapping_sub(1)), self.edges.get(after)) {
            (Some((from, below)), Some((to, upto))) => from + (to - from) * (rank - *below as f64) / (upto - below) as f64,
            _ => *end,
        }
    }

    /// The share of the samples below a value.
    pub fn share_below(&self, value: f64) -> f64 {
        let Some((_, total)) = self.edges.last() else { return 0.0 };
        let after = self.edges.partition_point(|(edge, _)| *edge < value);
        let below = match (self.edges.get(after.wrapping_sub(1)), self.edges.get(after)) {
            (None, _) => 0.0,
            (Some((from, below)), Some((to, upto))) => *below as f64 + (upto - below) as f64 * (value - from) / (to - from),
            (Some((_, below)), None) => *below as f64,
        };
        below / *total as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[(u64, u64)]) -> Samples {
        let mut samples = Samples::new();
        values.iter().for_each(|(value, count)| samples.record_many(*value, *count));
        samples
    }

    #[test]
    fn figures_of_a_ramp() {
        let samples = of(&(1..=1000).map(|value| (value, 1)).collect::<Vec<_>>());
        let summary = samples.summary(0.5);
        assert_eq!((summary.count, summary.min, summary.max), (1000, 0.5, 500.0));
        for (found, expected) in
            [(summary.p50, 250.0), (summary.p90, 450.0), (summary.p99, 495.0), (summary.p999, 499.5), (summary.mean, 250.25)]
        {
            assert!((found - expected).abs() <= 0.5, "{found} where {expected} was expected");
        }
    }

    #[test]
    fn a_median_lies_between_the_steps_of_the_clock() {
        let even = of(&[(100, 100), (110, 100)]).summary(1.0);
        assert!((even.p50 - 105.0).abs() < 1e-9);
        let leaning = of(&[(90, 10), (100, 300), (110, 100)]).summary(1.0);
        assert!(leaning.p50 > 95.0 && leaning.p50 < 105.0);
        assert!(leaning.p50 < of(&[(90, 10), (100, 300), (110, 200)]).summary(1.0).p50);
    }

    #[test]
    fn merging_adds() {
        let mut merged = of(&[(10, 3), (5_000_000, 1)]);
        merged.merge(&of(&[(10, 2), (20, 1)]));
        assert_eq!(merged.count(), 7);
        assert_eq!(merged.recorded().take(2).collect::<Vec<_>>(), [(10, 5), (20, 1)]);
        assert!((merged.summary(1.0).max / 5e6 - 1.0).abs() < 0.001);
    }

    #[test]
    fn no_samples_and_one_sample() {
        assert_eq!(Samples::new().summary(1.0), Summary { min: 0.0, ..Summary::default() });
        let one = of(&[(42, 1)]).summary(1.0);
        assert_eq!((one.min, one.p50, one.p999, one.max), (42.0, 42.0, 42.0, 42.0));
    }

    #[test]
    fn shares_and_quantiles_are_inverse() {
        let spread = of(&[(10, 5), (20, 70), (30, 20), (400, 5)]).spread();
        for share in [0.01, 0.05, 0.3, 0.5, 0.9, 0.97] {
            assert!((spread.share_below(spread.quantile(share)) - share).abs() < 1e-9);
        }
        assert_eq!((spread.share_below(1.0), spread.share_below(1e9)), (0.0, 1.0));
    }
}
