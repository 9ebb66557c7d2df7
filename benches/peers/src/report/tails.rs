//! The table of the slow round trips, below each table of latencies.

use super::{Findings, Mood, Report, SECTIONS_LEAST, Section, Spread};
use crate::peers::{Peer, Who};
use crate::plan::{Table, legs, size};
use doorbell_benches::stats::Samples;
use doorbell_peers::order::TRIP_UNIT;
use std::collections::BTreeMap;
use std::fmt::{self, Formatter};

/// Times that 99 and 99.9 of 100 round trips do not exceed, halved, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Tail {
    pub(super) p99: Option<f64>,
    pub(super) p999: Option<f64>,
}

impl Tail {
    /// A percentile means nothing if no round trip can be beyond it.
    fn of(trips: &Samples) -> Self {
        // Not smoothed, as medians are: slow round trips are far from each other.
        let at = |least, share| (trips.count() >= least).then(|| trips.histogram().value_at_quantile(share) as f64 * TRIP_UNIT);
        Self { p99: at(100, 0.99), p999: at(1_000, 0.999) }
    }
}

impl Findings {
    /// The medians of the rounds. A round's percentile is that of all its round trips that count.
    pub(super) fn tail(&self, table: Table, bytes: usize, who: Who, mood: Mood) -> Tail {
        let mut rounds: BTreeMap<usize, Vec<&Section>> = BTreeMap::new();
        for section in self.seen.get(&(table, bytes, who)).into_iter().flatten().filter(|section| mood.has(section.hop)) {
            rounds.entry(section.round).or_default().push(section);
        }
        let tails: Vec<Tail> = rounds
            .values()
            .filter(|sections| sections.len() >= SECTIONS_LEAST)
            .map(|sections| {
                let mut all = Samples::new();
                for (value, count) in sections.iter().flat_map(|section| &section.trips) {
                    all.record_many(*value, *count);
                }
                Tail::of(&all)
            })
            .collect();
        let median = |percentile: fn(&Tail) -> Option<f64>| {
            Spread::of(&tails.iter().filter_map(percentile).collect::<Vec<_>>()).map(|spread| spread.median)
        };
        Tail { p99: median(|tail| tail.p99), p999: median(|tail| tail.p999) }
    }
}

impl Report<'_> {
    /// One column for each peer.
    pub(super) fn tails(&self, f: &mut Formatter<'_>, table: Table, columns: &[&Peer], mood: Mood) -> fmt::Result {
        writeln!(
            f,
            "\nThe slow ones: 99 and 99.9 of 100 round trips of a round take at most so long, halved; the median of the rounds.\n"
        )?;
        write!(f, "| bytes, 99 % / 99.9 % |")?;
        columns.iter().try_for_each(|peer| write!(f, " {} |", peer.who.name()))?;
        write!(f, "\n|---:|{}\n", "---:|".repeat(columns.len()))?;
        for leg in legs(table, self.quick) {
            write!(f, "| {} |", size(leg.bytes))?;
            for peer in columns {
                write!(f, " {} |", cell(self.findings.tail(table, leg.bytes, peer.who, mood)))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// A time with its unit.
pub(super) fn time(ns: f64) -> (String, &'static str) {
    match ns {
        _ if ns < 9_999.5 => (format!("{ns:.0}"), "ns"),
        _ if ns < 99_950.0 => (format!("{:.1}", ns / 1e3), "µs"),
        _ if ns < 9_999_500.0 => (format!("{:.0}", ns / 1e3), "µs"),
        _ => (format!("{:.0}", ns / 1e6), "ms"),
    }
}

fn cell(tail: Tail) -> String {
    match (tail.p99.map(time), tail.p999.map(time)) {
        (Some((p99, unit)), Some((p999, its))) if unit == its => format!("{p99} / {p999} {unit}"),
        (Some((p99, unit)), Some((p999, its))) => format!("{p99} {unit} / {p999} {its}"),
        (Some((p99, unit)), None) => format!("{p99} / – {unit}"),
        (None, _) => "–".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_peers::order::{Answer, Over, Seen, Work};

    const LATENCY: Table = Table { work: Work::Latency, over: Over::Memory, pairs: 1, touched: true };

    /// As many round trips as sections and rounds need, of which `slow` in a thousand last ten times as long.
    fn answer(ns: f64, slow: u64) -> Answer {
        let units = |ns: f64| (ns / TRIP_UNIT) as u64;
        let mut trips = Samples::new();
        trips.record_many(units(ns), 1_000 - slow);
        trips.record_many(units(10.0 * ns), slow);
        let seen = Seen { ns, trips, hops: [100.0; 2], ..Seen::default() };
        Answer { legs: vec![vec![seen; SECTIONS_LEAST]], ..Answer::default() }
    }

    #[test]
    fn a_tail_is_the_median_of_the_rounds_over_all_trips_of_a_round() {
        let mut findings = Findings::default();
        for (round, (ns, slow)) in [(100.0, 20), (200.0, 5), (300.0, 5)].into_iter().enumerate() {
            findings.add(Who::Doorbell, LATENCY, round, Ok(answer(ns, slow)));
        }
        let mood = findings.moods()[0];
        let Tail { p99: Some(p99), p999: Some(p999) } = findings.tail(LATENCY, 8, Who::Doorbell, mood) else {
            panic!("there are enough round trips");
        };
        // The rounds' percentiles are 1000, 200 and 300, and 1000, 2000 and 3000.
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.01;
        assert!(near(p99, 300.0) && near(p999, 2_000.0), "{p99} and {p999}");
        assert_eq!(findings.tail(LATENCY, 8, Who::Ucx, mood), Tail::default());
    }

    #[test]
    fn a_percentile_needs_a_trip_beyond_it() {
        let mut trips = Samples::new();
        trips.record_many(1_000, 999);
        assert_eq!((Tail::of(&trips).p99.is_some(), Tail::of(&trips).p999), (true, None));
        trips.record(1_000);
        assert!(Tail::of(&trips).p999.is_some());
    }

    #[test]
    fn a_cell_names_a_unit_once() {
        let tail = |p99, p999| cell(Tail { p99: Some(p99), p999: Some(p999) });
        assert_eq!(tail(180.4, 951.0), "180 / 951 ns");
        assert_eq!(tail(180.0, 12_345.0), "180 ns / 12.3 µs");
        assert_eq!(tail(123_456.0, 20e6), "123 µs / 20 ms");
        assert_eq!(cell(Tail { p99: Some(99_960.0), p999: None }), "100 / – µs");
        assert_eq!(cell(Tail::default()), "–");
    }
}
