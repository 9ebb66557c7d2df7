//! Writes the tables.

mod chart;
mod tails;

use crate::launch::{Outcome, WINDOW};
use crate::peers::{Peer, Who};
use crate::plan::{Row, Table, legs, size, title};
use doorbell_benches::stats::Samples;
use doorbell_peers::order::{Over, Work};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::{SystemTime, UNIX_EPOCH};

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
    /// Half of each round trip.
    trips: Samples,
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
        for (leg, sections) in legs(table, false).iter().zip(&answer.legs) {
            for seen in sections {
                let [before, after] = seen.hops;
                if seen.shared || before.max(after) > MOVED * before.min(after) {
                    self.left_out += 1;
                } else {
                    let section = Section {
                        round,
                        ns: seen.ns,
                        trips: seen.trips.clone(),
                        overlap: seen.overlap,
                        hop: (before + after) / 2.0,
                    };
                    self.seen.entry((table, leg.bytes, who)).or_default().push(section);
                }
            }
        }
        self.versions.insert(who, answer.version);
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
    /// Whether messages were written and read.
    pub touched: bool,
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        self.section(f, "##", |table| table.over == Over::Memory && !table.work.is_collective() && !table.work.is_overlap())?;
        if self.tables.iter().any(|table| table.work.is_overlap()) {
            writeln!(f, "\n## Computing during transfers\n\n{OVERLAP}")?;
            self.section(f, "###", |table| table.work.is_overlap())?;
        }
        if self.tables.iter().any(|table| table.work.is_collective()) {
            writeln!(f, "\n## Collectives\n\n{COLLECTIVES}")?;
            self.section(f, "###", |table| table.work.is_collective())?;
        }
        if self.tables.iter().any(|table| table.over != Over::Memory) {
            writeln!(f, "\n## Over UDP\n\n{OVER_UDP}")?;
            self.section(f, "###", |table| table.over != Over::Memory)?;
        }
        if Row::ALL.iter().flat_map(|row| row.tables()).all(|table| self.tables.contains(&table)) {
            writeln!(f, "{BEHIND}")?;
        }
        Ok(())
    }
}

/// Findings about the rows in which others are ahead.
const BEHIND: &str = include_str!("../behind.md");

/// The introduction to the collectives.
const COLLECTIVES: &str = "The processes share memory. Two processes run on one processor each, four run two on each. Two poll while \
                           they wait; four yield to each other. One call follows right after the other. A number is the mean of a section of \
                           calls at the slowest member. Vectors hold `i64` and are combined in place; every result is checked.";

/// The introduction to the tables of overlap.
const OVERLAP: &str = "One process starts a transfer, computes, and waits until the transfer is complete. The first line of a table is \
                       the time of a transfer during which the process only waits. The computing lasts as long. The second line is \
                       the share of the transfer's time that the computing hides: 100 % if both together take as long as the \
                       computing, 0 % if they take twice as long. Threads that help the computing process run on the processor of \
                       the other process.";

/// The introduction to the tables over UDP.
const OVER_UDP: &str = "The same two processes without shared memory: datagrams on the loopback interface. Peers that encrypt are \
                        compared with Doorbell with a key, the others with Doorbell without one.";

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
             **×** is the peer's time for a message divided by Doorbell's: above 1 Doorbell is faster. {} \
             [benches/peers/README.md](../benches/peers/README.md) explains what is compared and how fair the comparison is.\n",
            if self.touched {
                "Every cache line of a message is written before it is sent and read after it was received."
            } else {
                "Messages were neither written before they were sent nor read after they were received."
            }
        )?;
        writeln!(
            f,
            "These numbers come from one machine on one day. Nanoseconds differ by 10 to 30 % from hour to hour on a virtual \
             machine: compare within this page only, and measure on yours.\n"
        )?;
        writeln!(f, "| | |\n|---|---|")?;
        writeln!(f, "| date | {} |", today())?;
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
            writeln!(f, "| left out | {left_out} sections during which the processors moved or shared a core |")?;
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
        writeln!(f, "\n{level} {}{added}\n\n{}\n", title(table), self.about(table.work))?;
        write!(f, "| bytes |")?;
        for peer in &columns {
            write!(f, " {} |{}", peer.who.name(), if peer.who == Who::Doorbell { "" } else { " × |" })?;
        }
        write!(f, "\n|---:|")?;
        for peer in &columns {
            write!(f, "---:|{}", if peer.who == Who::Doorbell { "" } else { "---:|" })?;
        }
        writeln!(f)?;
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
                writeln!(f)?;
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
            Work::Rate => ("M/s", found.map(|ns| 1e3 / ns)),
            Work::OneWay | Work::BothWays => ("GB/s", found.map(|ns| bytes as f64 / ns)),
            _ if found.median >= 9_999.5 => ("µs", found.map(|ns| ns / 1e3)),
            _ => ("ns", found),
        };
        let digits = if unit == "ns" || spread.median >= 99.95 { 0 } else { 1 };
        let Spread { low, median, high } = spread;
        format!("{median:.digits$} {unit} ({low:.digits$}..{high:.digits$})")
    }

    fn about(&self, work: Work) -> String {
        match work {
            Work::Latency => {
                "Tagged messages back and forth between private buffers, one at a time; half a round trip, the median \
                              of some thousands."
                    .into()
            }
            Work::Loan => "The same with messages that are written and read in place: nothing is copied.".into(),
            Work::Put => {
                "One process puts all but the last word of a message into the other's memory, then that word, which the \
                          other polls; half a round trip."
                    .into()
            }
            Work::Rate => {
                "One process sends one message after another, the other receives them: the time until all have arrived.".into()
            }
            Work::OneWay => format!(
                "One process sends one message after another, {WINDOW} of them under way at once: the time until all have arrived. GB \
                 are powers of ten."
            ),
            Work::BothWays => format!("Both send and receive, {WINDOW} messages under way in each direction; the sum of both."),
            Work::Pairs => "Four processes, two on each processor, in pairs that exchange messages across. The mean, because \
                            waits for a processor matter here."
                .into(),
            Work::PutOverlap => {
                "One process puts into the memory of the other, which sleeps. Doorbell's poller executes a descriptor of an injection \
                 FIFO."
                    .into()
            }
            Work::SendOverlap => "One process sends and computes. The other receives.".into(),
            Work::ReceiveOverlap => "One process posts a receive and computes. The other then sends.".into(),
            Work::Barrier => {
                "All processes wait for each other. The bare barrier is an addition in shared memory to arrive, and a word that the last one raises.".into()
            }
            Work::Allreduce => "Each process writes its vector, gets the sum of all in its place, and reads that.".into(),
            Work::Broadcast => "The first process writes its vector; all others get it and read it. The first may be ahead by as many \
                                calls as there is room for."
                .into(),
            Work::Computing => "Before each allreduce every member works for a random 1 to 3 µs, which is the same for every \
                                peer. The work is part of the time. Doorbell synchronises its channels in the background; in the \
                                foreground, no call returns before all members have left its channel."
                .into(),
        }
    }
}

fn today() -> String {
    let days = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400;
    let (year, month, day) = date(days as i64);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The Gregorian date that many days after 1 January 1970.
fn date(days: i64) -> (i64, i64, i64) {
    let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let (mut year, mut left) = (1970, days);
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let mut month = 1;
    for length in [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

/// The command as a user with the repository would type it.
fn command() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = "cargo run --release --manifest-path benches/peers/Cargo.toml";
    if arguments.is_empty() { command.into() } else { format!("{command} -- {}", arguments.join(" ")) }
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_once(':').filter(|(name, _)| name.trim() == "model name"))
        .map(|(_, model)| model.trim())
        .collect();
    let guest = if text.contains(" hypervisor") { ", a virtual machine" } else { "" };
    match models.first() {
        Some(model) => format!("{} processors, {model}{guest}", models.len()),
        None => "unknown".into(),
    }
}

fn kernel() -> String {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default().trim().to_string();
    format!("{} {}", read("ostype"), read("osrelease"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_peers::order::{Answer, Seen};

    const RATE: Table = Table { work: Work::Rate, over: Over::Memory, pairs: 1 };

    #[test]
    fn days_become_dates() {
        assert_eq!((date(0), date(59), date(11_016)), ((1970, 1, 1), (1970, 3, 1), (2000, 2, 29)));
        assert_eq!((date(19_722), date(19_723)), ((2023, 12, 31), (2024, 1, 1)));
    }

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
            Report { peers: &peers, tables: &tables, findings: &findings, rounds: 1, quick: false, touched: true }.to_string();
        assert!(told.contains("| 100 M/s (100..100) | 40.0 M/s (40.0..40.0) | **2.50** | not installed |  |"), "{told}");
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
