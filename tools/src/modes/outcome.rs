//! The figures of a load.

use super::{Chooser, Found, Load, ReadPhase, Timeline, Way, Written, name};
use crate::text::median;
use doorbell_benches::Samples;
use std::collections::BTreeMap;

/// The goal: the policy's total is at most this many times the best total of a mode alone.
pub const TOTAL_GOAL: f64 = 1.05;
/// The goal: the policy's p99 is at most this many times the worst p99 of a mode alone.
pub const P99_GOAL: f64 = 0.5;

/// Metrics of a load or of a phase: times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Metrics {
    /// From the first message until the reader has the last one.
    pub total: f64,
    /// The number of messages.
    pub messages: f64,
    /// Their bytes.
    pub bytes: f64,
    /// The median latency.
    pub p50: f64,
    /// The 99th percentile of the latencies.
    pub p99: f64,
    /// The longest latency.
    pub max: f64,
    /// Bytes of the background.
    pub background: f64,
}

impl Metrics {
    fn new(total: f64, (messages, bytes, background): (u64, u64, u64), latency: &Samples) -> Self {
        let of = latency.summary(1.0);
        let [messages, bytes, background] = [messages, bytes, background].map(|count| count as f64);
        Self { total, messages, bytes, p50: of.p50, p99: of.p99, max: of.max, background }
    }

    /// The median of each.
    fn median<'a>(rounds: impl Iterator<Item = &'a Metrics> + Clone) -> Self {
        let of = |metric: fn(&Metrics) -> f64| median(rounds.clone().map(metric)).unwrap_or(0.0);
        Self {
            total: of(|of| of.total),
            messages: of(|of| of.messages),
            bytes: of(|of| of.bytes),
            p50: of(|of| of.p50),
            p99: of(|of| of.p99),
            max: of(|of| of.max),
            background: of(|of| of.background),
        }
    }

    /// Messages in a second.
    pub fn messages_per_s(&self) -> f64 {
        self.messages * 1e9 / self.total.max(1.0)
    }

    /// Millions of bytes in a second.
    pub fn mb_per_s(&self) -> f64 {
        self.bytes * 1e3 / self.total.max(1.0)
    }
}

/// One run of a load by one way.
#[derive(Clone, Debug)]
pub struct Round {
    metrics: Metrics,
    phases: Vec<Metrics>,
    used: BTreeMap<String, u64>,
    background: BTreeMap<String, u64>,
    /// When the phases began, counted from the first.
    starts: Vec<u64>,
    links: Vec<String>,
    timeline: Option<Timeline>,
}

impl Round {
    /// From the findings of both processes, if the reader read all messages; or why the load cannot go by this way.
    pub fn new(load: &Load, found: Vec<Found>) -> Result<Result<Self, String>, String> {
        let (written, read): (Vec<_>, Vec<_>) = found.into_iter().map(|found| (found.written, found.read)).unzip();
        let (written, read) = (written.into_iter().flatten().next().unwrap_or_default(), read.concat());
        if let Some(why) = written.unavailable {
            return Ok(Err(why));
        }
        if written.phases.len() != load.phases.len() || read.len() != load.phases.len() {
            let (writes, reads, all) = (written.phases.len(), read.len(), load.phases.len());
            return Err(format!("{writes} phases were written and {reads} read, of {all}"));
        }
        let (mut phases, mut all) = (Vec::new(), Samples::new());
        let (mut used, mut background) = (BTreeMap::new(), BTreeMap::new());
        for ((phase, written), read) in load.phases.iter().zip(&written.phases).zip(&read) {
            if read.messages != phase.messages {
                return Err(format!("phase '{}': {} messages were read of {}", phase.name, read.messages, phase.messages));
            }
            all.merge(&read.latency);
            let total = read.end.saturating_sub(written.start) as f64;
            phases.push(Metrics::new(total, counts(read), &read.latency));
            for (into, from) in [(&mut used, &written.used), (&mut background, &written.background)] {
                for (mode, count) in from {
                    *into.entry(mode.clone()).or_default() += count;
                }
            }
        }
        let sum = |of: fn(&Metrics) -> f64| phases.iter().map(of).sum::<f64>();
        let counts = read.iter().map(counts).fold((0, 0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1, sum.2 + more.2));
        let metrics = Metrics::new(sum(|phase| phase.total), counts, &all);
        let first = written.phases.first().map_or(0, |phase| phase.start);
        let starts = written.phases.iter().map(|phase| phase.start.saturating_sub(first)).collect();
        let Written { links, timeline, .. } = written;
        Ok(Ok(Self { metrics, phases, used, background, starts, links, timeline }))
    }
}

fn counts(read: &ReadPhase) -> (u64, u64, u64) {
    (read.messages, read.bytes, read.background_bytes)
}

/// A load by one way.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name of the way.
    pub name: String,
    /// Whether a policy decided.
    pub is_policy: bool,
    /// Medians.
    pub metrics: Metrics,
    /// The medians of each phase.
    pub phases: Vec<Metrics>,
    /// How many messages took each mode, in the latest round.
    pub used: BTreeMap<String, u64>,
    /// The same for the background.
    pub background: BTreeMap<String, u64>,
    rounds: Vec<Round>,
}

impl Row {
    /// The distance of the totals of the rounds, as a part of their median.
    pub fn spread(&self) -> f64 {
        let totals = || self.rounds.iter().map(|round| round.metrics.total);
        (totals().fold(0.0, f64::max) - totals().fold(f64::INFINITY, f64::min)) / self.metrics.total.max(1.0)
    }
}

/// The results of a load by all ways.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The load.
    pub load: Load,
    /// The policy.
    pub policy: Chooser,
    /// How often each way had its turn.
    pub rounds: u16,
    /// The rows, the policy first.
    pub rows: Vec<Row>,
    /// Ways that this machine does not have, and why.
    pub missing: Vec<(String, String)>,
    /// The links between the two processes.
    pub links: Vec<String>,
    /// The observations and decisions of the policy.
    pub timeline: Timeline,
    /// When the phases began in the timeline, in nanoseconds.
    pub starts: Vec<u64>,
}

/// The policy compared with a mode.
#[derive(Clone, Debug, PartialEq)]
pub struct Ratio {
    /// The policy's figure over the figure of the mode.
    pub ratio: f64,
    /// The mode.
    pub beside: String,
    /// The largest ratio that meets the goal.
    pub goal: f64,
}

impl Ratio {
    /// Whether the ratio meets the goal.
    pub fn is_met(&self) -> bool {
        self.ratio <= self.goal
    }
}

impl Outcome {
    /// An outcome without any run.
    pub fn new(load: Load, policy: Chooser, rounds: u16) -> Self {
        let (timeline, none) = (Timeline::default(), Vec::new);
        Self { load, policy, rounds, rows: Vec::new(), missing: Vec::new(), links: none(), timeline, starts: Vec::new() }
    }

    /// Adds a run.
    pub fn add(&mut self, way: &Way, round: Round) {
        let (name, is_policy) = (name(way), matches!(way, Way::Policy { .. }));
        let at = self.rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
            let (metrics, phases) = (Metrics::default(), Vec::new());
            let (used, background) = (BTreeMap::new(), BTreeMap::new());
            self.rows.push(Row { name, is_policy, metrics, phases, used, background, rounds: Vec::new() });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        self.links.clone_from(&round.links);
        (row.used, row.background) = (round.used.clone(), round.background.clone());
        row.rounds.push(round);
        row.metrics = Metrics::median(row.rounds.iter().map(|round| &round.metrics));
        row.phases = (0..self.load.phases.len())
            .map(|at| Metrics::median(row.rounds.iter().map(move |round| &round.phases[at])))
            .collect();
    }

    /// Adds the run in which the policy was watched.
    pub fn watch(&mut self, round: Round) {
        self.timeline = round.timeline.unwrap_or_default();
        self.starts = round.starts;
    }

    /// The row of the policy.
    pub fn policy(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.is_policy)
    }

    /// The rows of the modes alone.
    pub fn fixed(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| !row.is_policy)
    }

    /// The policy's total over the best of a mode alone.
    pub fn total_ratio(&self) -> Option<Ratio> {
        let best = self.fixed().min_by(|a, b| a.metrics.total.total_cmp(&b.metrics.total))?;
        let ratio = self.policy()?.metrics.total / best.metrics.total.max(1.0);
        Some(Ratio { ratio, beside: best.name.clone(), goal: TOTAL_GOAL })
    }

    /// The policy's p99 over the worst of a mode alone.
    pub fn p99_ratio(&self) -> Option<Ratio> {
        let worst = self.fixed().max_by(|a, b| a.metrics.p99.total_cmp(&b.metrics.p99))?;
        let ratio = self.policy()?.metrics.p99 / worst.metrics.p99.max(1.0);
        Some(Ratio { ratio, beside: worst.name.clone(), goal: P99_GOAL })
    }

    /// Both ratios: of which figure, and beside which extreme of the modes.
    pub fn ratios(&self) -> impl Iterator<Item = (&'static str, &'static str, Ratio)> {
        let both = [("total", "best", self.total_ratio()), ("p99", "worst", self.p99_ratio())];
        both.into_iter().filter_map(|(what, extreme, ratio)| Some((what, extreme, ratio?)))
    }

    /// The missed goals, in words.
    pub fn missed(&self) -> Vec<String> {
        let told = |what: &str, ratio: Option<Ratio>| {
            let Ratio { ratio, beside, goal } = ratio.filter(|ratio| !ratio.is_met())?;
            Some(format!("{}: {what} is {ratio:.2} times that of {beside}, and {goal:.2} is the goal", self.load.name))
        };
        [told("the total", self.total_ratio()), told("p99", self.p99_ratio())].into_iter().flatten().collect()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::modes::{Change, Seen, Span, WrittenPhase};

    fn found(load: &Load, total: u64, latency: u64, short: u64) -> Vec<Found> {
        let used = |count| BTreeMap::from([("shm/0/transfer".to_owned(), count)]);
        let written = load.phases.iter().enumerate().map(|(at, phase)| {
            let start = 1000 + at as u64 * 2 * total;
            WrittenPhase { start, used: used(phase.messages), background: BTreeMap::new() }
        });
        let read = load.phases.iter().enumerate().map(|(at, phase)| ReadPhase {
            messages: phase.messages - short,
            bytes: 64 * phase.messages,
            end: 1000 + at as u64 * 2 * total + total,
            latency: vec![(latency, phase.messages)].into(),
            ..ReadPhase::default()
        });
        let span = Span {
            links: [Seen { asked: 1, depth: 5, depth_sum: 5, occupancy: 500, occupancy_sum: 500, transfers: 0 }; 5],
            modes: [[2; 4]; 5],
        };
        let change = |at| Change {
            at,
            len: 64,
            asked: "any".into(),
            used: "udp/0/transfer".into(),
            why: "queue: 7 wait, 5 may <&>".into(),
        };
        let timeline = Timeline {
            width: total / 50,
            links: vec!["shm/0".into(), "udp/0".into()],
            spans: vec![span; 100],
            changes: (0..30).map(|at| change(at * total / 50)).collect(),
            changed: 31,
            trials: 3,
        };
        let links = vec!["shm/0".into(), "udp/0".into()];
        let written = Written { links, phases: written.collect(), timeline: Some(timeline), unavailable: None };
        vec![Found { written: Some(written), read: Vec::new() }, Found { written: None, read: read.collect() }]
    }

    /// One with the policy and two modes.
    pub fn outcome() -> Outcome {
        let load = Load::built_in().unwrap().remove(0).scaled(0.001);
        let mut outcome = Outcome::new(load.clone(), Chooser::Thresholds, 3);
        let policy = Way::Policy { policy: Chooser::Thresholds, watched: false };
        for (way, total, latency) in [
            (policy, 1_000_000, 500),
            (Way::Fixed("shm/0/put".into()), 990_000, 800),
            (Way::Fixed("udp/0/put".into()), 3_000_000, 2000),
        ] {
            for round in [0, 10_000, 50] {
                outcome.add(&way, Round::new(&load, found(&load, total + round, latency, 0)).unwrap().unwrap());
            }
        }
        outcome.missing.push(("shm/0/get".into(), "there is no way".into()));
        outcome.watch(Round::new(&load, found(&load, 1_000_000, 500, 0)).unwrap().unwrap());
        outcome
    }

    #[test]
    fn the_policy_is_compared_with_the_best_and_with_the_worst() {
        let mut outcome = outcome();
        let (total, p99) = (outcome.total_ratio().unwrap(), outcome.p99_ratio().unwrap());
        assert_eq!((&total.beside[..], &p99.beside[..], p99.ratio), ("shm/0/put", "udp/0/put", 0.25));
        assert!((1.0..1.05).contains(&total.ratio) && outcome.missed().is_empty(), "{total:?}");
        assert_eq!(outcome.policy().unwrap().metrics.total, 3.0 * 1_000_050.0, "the median");
        assert!((outcome.policy().unwrap().spread() - 0.01).abs() < 1e-4, "{}", outcome.policy().unwrap().spread());
        outcome.rows[0].metrics.p99 = 1001.0;
        assert_eq!(outcome.missed(), ["bursts: p99 is 0.50 times that of udp/0/put, and 0.50 is the goal"]);
    }

    #[test]
    fn a_message_less_is_told() {
        let load = Load::built_in().unwrap().remove(0).scaled(0.001);
        let said = Round::new(&load, found(&load, 1000, 1, 1)).unwrap_err();
        assert!(said.contains("phase 'steady': 59 messages were read of 60"), "{said}");
        let unavailable = Written { unavailable: Some("no".into()), ..Written::default() };
        assert_eq!(
            Round::new(&load, vec![Found { written: Some(unavailable), read: Vec::new() }, Found::default()])
                .unwrap()
                .unwrap_err(),
            "no"
        );
    }
}
