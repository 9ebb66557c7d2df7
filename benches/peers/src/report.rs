//! Writes the tables.

mod about;
mod chart;
mod listed;
pub mod machine;
pub mod page;
mod tails;

use crate::launch::Outcome;
use crate::peers::{self, Peer, Who};
use crate::plan::{Row, Table, legs, size, title};
use doorbell_peers::order::{Over, Work};
use machine::{command, kernel, processor};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

/// If the hops before and after a section differ by more than this factor, the processors moved meanwhile.
const MOVED: f64 = 1.5;
/// If hops differ by more than this factor, they belong to two moods, which get separate tables.
const MOODS: f64 = 2.0;

/// The number of sections of a round that must have been in one mood for the round to count. Processors that moved back and forth
/// between two probes show up in a few sections only.
const SECTIONS_LEAST: usize = 3;

/// The results so far.
#[derive(Debug, Default)]
pub struct Findings {
    seen: BTreeMap<(Table, usize, Who), Vec<Section>>,
    /// Why there is no result.
    failures: BTreeMap<(Table, Who), String>,
    versions: BTreeMap<Who, String>,
    left_out: usize,
}

/// A section that counts.
#[derive(Clone, Debug)]
struct Section {
    round: usize,
    ns: f64,
    /// Half of each round trip: each time that occurred, and how often.
    trips: Vec<(u64, u64)>,
    overlap: Option<f64>,
    hop: f64,
}

/// A range of hops. The processors of a virtual machine may be neighbours in one second and far apart in the next. Results of the
/// two cases cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mood {
    title: Option<&'static str>,
    from: f64,
    to: f64,
}

impl Findings {
    /// A failure would recur, and may take long.
    pub fn is_worth_a_try(&self, who: Who, table: Table) -> bool {
        !self.failures.contains_key(&(table, who))
    }

    /// Adds the result of a run.
    pub fn add(&mut self, who: Who, table: Table, round: usize, outcome: Outcome) {
        let answer = match outcome {
            Ok(answer) => answer,
            Err(why) => {
                self.failures.insert((table, who), why);
                return;
            }
        };
        for (leg, sections) in peers::legs(who, table, false).iter().zip(&answer.legs) {
            for seen in sections {
                let [before, after] = seen.hops;
                if seen.shared || before.min(after) < 0.0 || before.max(after) > MOVED * before.min(after) {
                    self.left_out += 1;
                } else {
                    let section = Section {
                        round,
                        ns: seen.ns,
                        trips: seen.trips.recorded().collect(),
                        overlap: seen.overlap,
                        hop: (before + after) / 2.0,
                    };
                    self.seen.entry((table, leg.bytes, who)).or_default().push(section);
                }
            }
        }
        self.versions.insert(who, answer.version);
    }

    /// The version that a peer reported.
    #[cfg(test)]
    pub fn version(&self, who: Who) -> Option<&str> {
        self.versions.get(&who).map(String::as_str)
    }

    /// Whether any measurement of a peer failed.
    pub fn failed(&self, who: Who) -> bool {
        self.failures.keys().any(|(_, failed)| *failed == who)
    }

    fn hops(&self) -> Vec<f64> {
        self.seen.values().flatten().map(|section| section.hop).collect()
    }

    /// The moods of the machine, the most frequent first.
    fn moods(&self) -> Vec<Mood> {
        let mut hops = self.hops();
        hops.sort_by(f64::total_cmp);
        let at = |share: usize| hops.get(hops.len() * share / 100).copied().unwrap_or(0.0);
        let (low, high) = (at(5), at(95));
        if high <= MOODS * low {
            return vec![Mood { title: None, from: 0.0, to: f64::INFINITY }];
        }
        let between = (low * high).sqrt();
        let near = Mood { title: Some("with the processors near each other"), from: 0.0, to: between };
        let far = Mood { title: Some("with the processors far apart"), from: between, to: f64::INFINITY };
        if 2 * hops.partition_point(|hop| *hop < between) >= hops.len() { vec![near, far] } else { vec![far, near] }
    }

    /// The spread of the times: the medians of each round.
    fn spread(&self, table: Table, bytes: usize, who: Who, mood: Mood) -> Option<Spread> {
        self.spread_of(table, bytes, who, mood, |section| Some(section.ns))
    }

    fn spread_of(
        &self,
        table: Table,
        bytes: usize,
        who: Who,
        mood: Mood,
        figure: impl Fn(&Section) -> Option<f64>,
    ) -> Option<Spread> {
        let mut rounds: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for section in self.seen.get(&(table, bytes, who))?.iter().filter(|section| mood.has(section.hop)) {
            rounds.entry(section.round).or_default().extend(figure(section));
        }
        let told = rounds.values().filter(|sections| sections.len() >= SECTIONS_LEAST);
        let medians: Vec<f64> = told.filter_map(|ns| Spread::of(ns)).map(|spread| spread.median).collect();
        Spread::of(&medians)
    }
}

impl Mood {
    fn has(&self, hop: f64) -> bool {
        self.from <= hop && hop < self.to
    }
}

/// The median, the lowest and the highest.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Self { low, median, high })
    }

    fn map(self, change: impl Fn(f64) -> f64) -> Self {
        let (a, b) = (change(self.low), change(self.high));
        Self { low: a.min(b), median: change(self.median), high: a.max(b) }
    }
}

/// The complete report.
pub struct Report<'a> {
    /// The columns.
    pub peers: &'a [Peer],
    /// The tables.
    pub tables: &'a [Table],
    /// Their content.
    pub findings: &'a Findings,
    /// The number of planned rounds.
    pub rounds: u16,
    /// Whether there were fewer messages.
    pub quick: bool,
    /// The days of the measurement.
    pub dates: &'a str,
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        self.listed(f)?;
        self.section(f, "##", |table| table.over == Over::Memory && !table.work.is_collective() && !table.work.is_overlap())?;
        if self.tables.iter().any(|table| table.work.is_overlap()) {
            writeln!(f, "\n## Computing during transfers\n\n{}", about::OVERLAP)?;
            self.section(f, "###", |table| table.work.is_overlap())?;
        }
        if self.tables.iter().any(|table| table.work.is_collective()) {
            writeln!(f, "\n## Collectives\n\n{}", about::COLLECTIVES)?;
            self.section(f, "###", |table| table.work.is_collective())?;
        }
        if self.tables.iter().any(|table| table.over != Over::Memory) {
            writeln!(f, "\n## Over UDP\n\n{}", about::OVER_UDP)?;
            self.section(f, "###", |table| table.over != Over::Memory)?;
        }
        if Row::ALL.iter().flat_map(|row| row.tables(true)).all(|table| self.tables.contains(&table)) {
            writeln!(f, "{}", about::BEHIND)?;
        }
        Ok(())
    }
}

impl Report<'_> {
    fn section(&self, f: &mut Formatter<'_>, level: &str, has: impl Fn(&Table) -> bool) -> fmt::Result {
        for mood in self.findings.moods() {
            for table in self.tables.iter().filter(|table| has(table)) {
                self.table(f, level, *table, mood)?;
            }
        }
        Ok(())
    }

    fn head(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { findings, rounds, .. } = self;
        writeln!(f, "# How fast Doorbell is, beside others\n")?;
        writeln!(
            f,
            "Two processes, each on its own processor, exchange messages through shared memory, or over UDP where stated. Doorbell and \
             its peers did so in turns, in {rounds} rounds, with the same loops. A cell is the median of the rounds, with the lowest and the highest; \
             **×** is the peer's time for a message divided by Doorbell's: above 1 Doorbell is faster. \
             Every cache line of a message is written before it is sent and read after it was received, except in tables that are called \
             *untouched*. `benches/peers/README.md` explains what is compared and how fair the comparison is.\n",
        )?;
        writeln!(
            f,
            "These numbers come from one machine on one day. Nanoseconds differ by 10 to 30 % from hour to hour on a virtual \
             machine: compare within this page only, and measure on yours.\n"
        )?;
        writeln!(f, "| | |\n|---|---|")?;
        writeln!(f, "| date | {} |", self.dates)?;
        writeln!(f, "| command | `{}` |", command())?;
        writeln!(f, "| machine | {} |", processor())?;
        writeln!(f, "| kernel | {} |", kernel())?;
        for mood in findings.moods() {
            let hops: Vec<f64> = findings.hops().into_iter().filter(|hop| mood.has(*hop)).collect();
            if let Some(Spread { low, median, high }) = Spread::of(&hops) {
                let title = mood.title.map_or(String::new(), |title| format!(", {title}"));
                writeln!(f, "| a cache line's way{title} | {median:.0} ns ({low:.0}..{high:.0}) in {} sections |", hops.len())?;
            }
        }
        if findings.left_out > 0 {
            let left_out = findings.left_out;
            writeln!(f, "| left out | {left_out} sections during which the processors moved, shared a core or were busy |")?;
        }
        for peer in self.peers {
            let version = match (findings.versions.get(&peer.who), &peer.missing) {
                (_, Some(why)) => format!("not measured: {why}"),
                (Some(version), None) => version.clone(),
                (None, None) => "not measured: it failed".into(),
            };
            writeln!(f, "| {} | {} |", peer.who.name(), version.replace('|', "/"))?;
        }
        Ok(())
    }

    fn table(&self, f: &mut Formatter<'_>, level: &str, table: Table, mood: Mood) -> fmt::Result {
        let columns: Vec<&Peer> = self.peers.iter().filter(|peer| peer.knows(table)).collect();
        let added = mood.title.map_or(String::new(), |title| format!(", {title}"));
        writeln!(f, "\n{level} {}{added}\n\n{}\n", title(table), about::table(table.work))?;
        write!(f, "| bytes |")?;
        for peer in &columns {
            write!(f, " {} |{}", peer.who.name(), if peer.who == Who::Doorbell { "" } else { " × |" })?;
        }
        // With one other peer, that one is the best.
        let has_best = columns.iter().filter(|peer| peer.who.is_other()).count() > 1;
        write!(f, "{}\n|---:|", if has_best { " best |" } else { "" })?;
        for peer in &columns {
            write!(f, "---:|{}", if peer.who == Who::Doorbell { "" } else { "---:|" })?;
        }
        writeln!(f, "{}", if has_best { "---|" } else { "" })?;
        for leg in legs(table, self.quick) {
            write!(f, "| {} |", size(leg.bytes))?;
            let own = self.findings.spread(table, leg.bytes, Who::Doorbell, mood);
            for peer in &columns {
                let found = self.findings.spread(table, leg.bytes, peer.who, mood);
                write!(f, " {} |", self.cell(table, leg.bytes, peer, found))?;
                if peer.who != Who::Doorbell {
                    let ratio = found.zip(own).map(|(found, own)| format!("**{:.2}**", found.median / own.median));
                    write!(f, " {} |", ratio.unwrap_or_default())?;
                }
            }
            if has_best {
                let best = self.best(table, leg.bytes, mood).map(|(who, ratio)| format!("{}: **{ratio:.2}**", who.name()));
                write!(f, " {} |", best.unwrap_or_else(|| "–".into()))?;
            }
            writeln!(f)?;
            if table.work.is_overlap() {
                write!(f, "| hidden |")?;
                for peer in &columns {
                    let found = self.findings.spread_of(table, leg.bytes, peer.who, mood, |section| section.overlap);
                    let text = found.map_or("–".into(), |found| {
                        let Spread { low, median, high } = found.map(|share| share * 100.0);
                        format!("**{median:.0} %** ({low:.0}..{high:.0})")
                    });
                    write!(f, " {text} |{}", if peer.who == Who::Doorbell { "" } else { " |" })?;
                }
                writeln!(f, "{}", if has_best { " |" } else { "" })?;
            }
        }
        if table.work.is_exchange() {
            self.tails(f, table, &columns, mood)?;
        }
        for peer in &columns {
            if let Some(why) = self.findings.failures.get(&(table, peer.who)) {
                writeln!(f, "\n{} failed: {why}.", peer.who.name())?;
            }
        }
        let others: Vec<&str> = self
            .peers
            .iter()
            .filter(|peer| !peer.knows(table) && peer.goes_over(table.over) && !peer.is_special())
            .map(|peer| peer.who.name())
            .collect();
        if !others.is_empty() {
            writeln!(f, "\nNo such operation in {}.", others.join(", "))?;
        }
        Ok(())
    }

    fn cell(&self, table: Table, bytes: usize, peer: &Peer, found: Option<Spread>) -> String {
        let Some(found) = found else {
            let failed = self.findings.failures.contains_key(&(table, peer.who));
            return if peer.missing.is_some() {
                "not installed"
            } else if failed {
                "failed"
            } else {
                "–"
            }
            .into();
        };
        let (unit, spread) = match table.work {
            Work::Rate | Work::Batch => ("M/s", found.map(|ns| 1e3 / ns)),
            Work::OneWay | Work::BothWays => ("GB/s", found.map(|ns| bytes as f64 / ns)),
            _ if found.median >= 9_999.5 => ("µs", found.map(|ns| ns / 1e3)),
            _ => ("ns", found),
        };
        let digits = if unit == "ns" || spread.median >= 99.95 { 0 } else { 1 };
        let Spread { low, median, high } = spread;
        format!("{median:.digits$} {unit} ({low:.digits$}..{high:.digits$})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_peers::order::{Answer, Seen};

    const RATE: Table = Table { work: Work::Rate, over: Over::Memory, pairs: 1, touched: true };

    #[test]
    fn the_median_of_the_rounds_is_told_with_its_ends() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { low: 1.0, median: 2.0, high: 3.0 }));
        assert_eq!(Spread::of(&[4.0, 1.0, 3.0, 2.0]).map(|spread| spread.median), Some(2.5));
        assert_eq!(Spread::of(&[]), None);
        let rate = Spread { low: 10.0, median: 20.0, high: 50.0 }.map(|ns| 1e3 / ns);
        assert_eq!(rate, Spread { low: 20.0, median: 50.0, high: 100.0 });
    }

    #[test]
    fn a_ratio_above_one_means_that_the_peer_takes_longer() {
        let peers = crate::peers::find(std::path::Path::new("/nowhere"), &[Who::Ucx, Who::Mpi]);
        let mut findings = Findings::default();
        let hop = |ns, hops| Seen { ns, hops, ..Seen::default() };
        let answer = |seen: Vec<Seen>| Ok(Answer { legs: vec![seen], ..Answer::default() });
        let near = [100.0, 110.0];
        let thrice = |ns| vec![hop(ns, near); SECTIONS_LEAST];
        findings.add(Who::Doorbell, RATE, 0, answer([thrice(10.0), vec![hop(99.0, [100.0, 300.0])]].concat()));
        findings.add(Who::Ucx, RATE, 0, answer(thrice(25.0)));
        findings.add(Who::Mpi, RATE, 0, Err("hung".into()));
        assert!(!findings.is_worth_a_try(Who::Mpi, RATE) && !findings.failed(Who::Doorbell));
        assert_eq!(findings.left_out, 1);
        let tables = [RATE];
        let told =
            Report { peers: &peers, tables: &tables, findings: &findings, rounds: 1, quick: false, dates: "today" }.to_string();
        assert!(
            told.contains("| 100 M/s (100..100) | 40.0 M/s (40.0..40.0) | **2.50** | not installed |  | UCX: **2.50** |"),
            "{told}"
        );
        assert!(told.contains("Open MPI failed: hung.") && told.contains("run benches/peers/install"), "{told}");
    }

    #[test]
    fn what_was_measured_in_different_moods_is_told_apart() {
        let mut findings = Findings::default();
        let seen = |ns, hop| Seen { ns, hops: [hop; 2], ..Seen::default() };
        for round in 0..3 {
            let legs = vec![vec![seen(10.0, 70.0), seen(12.0, 70.0), seen(14.0, 70.0), seen(40.0, 250.0)]];
            // In the last round the processors were far apart for most sections.
            let legs = if round < 2 {
                legs
            } else {
                vec![[10.0, 40.0, 41.0, 42.0].map(|ns| seen(ns, if ns < 20.0 { 70.0 } else { 250.0 })).to_vec()]
            };
            findings.add(Who::Doorbell, RATE, round, Ok(Answer { legs, ..Answer::default() }));
        }
        let moods = findings.moods();
        let median = |mood| findings.spread(RATE, 8, Who::Doorbell, mood).map(|spread| spread.median);
        assert_eq!((moods.len(), median(moods[0]), median(moods[1])), (2, Some(12.0), Some(41.0)));
    }
}
