//! The rows of the fixed list: Doorbell beside the best of the others, and what the list lacks.

use super::tails::{Tail, time};
use super::{Mood, Report};
use crate::peers::Who;
use crate::plan::{Table, size, title};
use crate::rows::{self, Line};
use std::fmt::{self, Formatter};

/// The two ways to measure a row.
const WAYS: [(bool, &str); 2] = [(true, "touched"), (false, "untouched")];

const ABOUT: &str = "The rows of `benches/peers/rows.txt`. *Best* is the fastest of the other peers in a row, and **×** its time divided by \
                     Doorbell's: above 1 Doorbell is faster. The percentiles are Doorbell's; behind them stands the best peer's percentile \
                     divided by Doorbell's. Rates and streams have none, because their messages are not timed one by one.";

impl Report<'_> {
    /// The tables of the list, one for each mood, if anything of the list was to be measured.
    pub(super) fn listed(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Ok(lines) = rows::all() else { return Ok(()) };
        let ways: Vec<(bool, &str)> = WAYS.into_iter().filter(|(touched, _)| self.has_any(&lines, *touched)).collect();
        if ways.is_empty() {
            return Ok(());
        }
        let moods = self.findings.moods();
        for mood in &moods {
            let added = mood.title.map_or(String::new(), |title| format!(", {title}"));
            writeln!(f, "\n## Doorbell and the best of the others{added}\n\n{ABOUT}\n")?;
            write!(f, "| row | bytes |")?;
            ways.iter().try_for_each(|(_, way)| write!(f, " {way}: best | × | 99 % | 99.9 % |"))?;
            writeln!(f, "\n|---|---:|{}", "---|---:|---:|---:|".repeat(ways.len()))?;
            for line in lines.iter().filter(|line| ways.iter().any(|(touched, _)| self.tables.contains(&line.way(*touched)))) {
                write!(f, "| {} | {} |", title(line.table), size(line.bytes))?;
                ways.iter().try_for_each(|(touched, _)| self.cells(f, line.way(*touched), line.bytes, *mood))?;
                writeln!(f)?;
            }
        }
        if moods.len() == 1 {
            writeln!(f, "\nThe processors had one distance all the time.")?;
        }
        let gaps = self.gaps();
        match gaps.as_slice() {
            [] => writeln!(f, "\nThe list is complete: each row has a time of Doorbell and of every peer that knows it."),
            gaps => {
                writeln!(f, "\nThe list lacks:\n")?;
                gaps.iter().try_for_each(|gap| writeln!(f, "- {gap}"))
            }
        }
    }

    fn has_any(&self, lines: &[Line], touched: bool) -> bool {
        lines.iter().any(|line| self.tables.contains(&line.way(touched)))
    }

    fn cells(&self, f: &mut Formatter<'_>, table: Table, bytes: usize, mood: Mood) -> fmt::Result {
        let Some((who, ratio)) = self.best(table, bytes, mood) else { return write!(f, " – | – | – | – |") };
        let [own, its] = [Who::Doorbell, who].map(|who| self.findings.tail(table, bytes, who, mood));
        let [p99, p999]: [fn(&Tail) -> Option<f64>; 2] = [|tail| tail.p99, |tail| tail.p999];
        let [p99, p999] = [p99, p999].map(|which| percentile(which(&own), which(&its)));
        write!(f, " {} | **{ratio:.2}** | {p99} | {p999} |", who.name())
    }

    /// The fastest of the others in a row, and its time divided by Doorbell's.
    pub(super) fn best(&self, table: Table, bytes: usize, mood: Mood) -> Option<(Who, f64)> {
        let own = self.findings.spread(table, bytes, Who::Doorbell, mood)?.median;
        let others = self.peers.iter().filter(|peer| peer.who.is_other() && peer.knows(table));
        let times = others.filter_map(|peer| Some((peer.who, self.findings.spread(table, bytes, peer.who, mood)?.median / own)));
        times.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// What the list lacks: rows that were not measured, and peers without a time.
    pub fn gaps(&self) -> Vec<String> {
        let lines = match rows::all() {
            Ok(lines) => lines,
            Err(why) => return vec![why],
        };
        let mut gaps = Vec::new();
        for (touched, way) in WAYS {
            let all = lines.len();
            let absent = lines.iter().filter(|line| !self.tables.contains(&line.way(touched))).count();
            if absent > 0 {
                gaps.push(format!("{absent} of {all} rows {way}: they were not to be measured"));
            }
        }
        for mood in self.findings.moods() {
            let added = mood.title.map_or(String::new(), |title| format!(" {title}"));
            // The sizes of a table that lack the same peers stand together.
            let mut groups: Vec<(String, Vec<String>, String)> = Vec::new();
            for (line, (touched, way)) in lines.iter().flat_map(|line| WAYS.map(|way| (line, way))) {
                let Some(lacking) = self.lacking(line.way(touched), line.bytes, mood) else { continue };
                let head = format!("{}, {way}{added}", title(line.table));
                match groups.iter_mut().find(|(known, _, names)| *known == head && *names == lacking) {
                    Some((_, sizes, _)) => sizes.push(size(line.bytes)),
                    None => groups.push((head, vec![size(line.bytes)], lacking)),
                }
            }
            gaps.extend(groups.into_iter().map(|(head, sizes, names)| format!("{head}, {}: {names}", sizes.join(", "))));
        }
        gaps
    }

    /// The peers without a time in a row that was to be measured.
    fn lacking(&self, table: Table, bytes: usize, mood: Mood) -> Option<String> {
        if !self.tables.contains(&table) {
            return None;
        }
        let knowing = self.peers.iter().filter(|peer| peer.knows(table) && peer.who.takes(bytes));
        let has = |who| self.findings.spread(table, bytes, who, mood).is_some();
        let (have, lack): (Vec<_>, Vec<_>) = knowing.map(|peer| peer.who).partition(|who| has(*who));
        match (have.is_empty(), lack.is_empty()) {
            (_, true) => None,
            (true, false) => Some("all peers".into()),
            (false, false) => Some(lack.into_iter().map(Who::name).collect::<Vec<_>>().join(", ")),
        }
    }
}

impl Line {
    /// The row's table, touched or not.
    fn way(&self, touched: bool) -> Table {
        Table { touched, ..self.table }
    }
}

/// A percentile of Doorbell, and the best peer's divided by it.
fn percentile(own: Option<f64>, its: Option<f64>) -> String {
    match (own.map(|ns| (ns, time(ns))), its) {
        (Some((ns, (text, unit))), Some(its)) => format!("{text} {unit} ({:.2})", its / ns),
        (Some((_, (text, unit))), None) => format!("{text} {unit}"),
        (None, _) => "–".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Findings, SECTIONS_LEAST};
    use super::*;
    use crate::peers;
    use crate::plan::Row;
    use doorbell_benches::stats::Samples;
    use doorbell_peers::order::{Answer, Seen, TRIP_UNIT};

    const PEERS: [Who; 3] = [Who::Doorbell, Who::Ucx, Who::Aeron];

    /// Every row, touched and untouched, at these distances; without the last size of `lacks`.
    fn findings(tables: &[Table], hops: &[f64], lacks: Option<(Who, Table)>) -> Findings {
        let mut findings = Findings::default();
        for (round, hop) in hops.iter().enumerate() {
            for table in tables {
                for (number, who) in PEERS.into_iter().enumerate() {
                    let ns = [100.0, 150.0, 90.0][number];
                    let mut trips = Samples::new();
                    trips.record_many((2.0 * ns / TRIP_UNIT) as u64, 1_000);
                    let seen = Seen { ns, trips, hops: [*hop; 2], ..Seen::default() };
                    let mut legs = vec![vec![seen; SECTIONS_LEAST]; peers::legs(who, *table, false).len()];
                    if lacks == Some((who, *table)) {
                        legs.pop();
                    }
                    findings.add(who, *table, round, Ok(Answer { legs, ..Answer::default() }));
                }
            }
        }
        findings
    }

    fn told(tables: &[Table], findings: &Findings) -> (String, Vec<String>) {
        let peers = peers::find(std::path::Path::new("/nowhere"), &PEERS);
        let report = Report { peers: &peers, tables, findings, rounds: 1, quick: false, dates: "today" };
        (report.to_string(), report.gaps())
    }

    fn tables() -> Vec<Table> {
        let rows = || Row::ALL.into_iter().filter(|row| rows::has(*row));
        WAYS.into_iter().flat_map(|(touched, _)| rows().flat_map(move |row| row.tables(touched))).collect()
    }

    #[test]
    fn a_complete_list_names_the_best_peer_of_each_row_with_percentiles() {
        let (text, gaps) = told(&tables(), &findings(&tables(), &[100.0], None));
        assert_eq!(gaps, Vec::<String>::new());
        assert!(text.contains("The list is complete") && text.contains("had one distance"), "{text}");
        let row = "| Messages, one way | 64 KiB | Aeron | **0.90** | 200 ns (0.90) | 200 ns (0.90) | Aeron | **0.90** |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("| Puts, one way | 8 B | UCX | **1.50** | 200 ns (1.50) |"), "{text}");
    }

    #[test]
    fn sizes_that_lack_the_same_peers_stand_together() {
        let all = tables();
        let mut found = findings(&all, &[100.0], None);
        // Far apart, one peer was measured once.
        let seen = Seen { ns: 1.0, hops: [300.0; 2], ..Seen::default() };
        let batches = Row::Batch.tables(true)[0];
        for round in 1..500 {
            let legs = vec![vec![seen.clone(); SECTIONS_LEAST]; 2];
            found.add(Who::Ucx, batches, round, Ok(Answer { legs, ..Answer::default() }));
        }
        let (_, gaps) = told(&all, &found);
        assert!(gaps.contains(
            &"Messages a second, in batches, touched with the processors far apart, 8 B, 64 B: Doorbell, Aeron".into()
        ));
        assert!(
            gaps.contains(&"Messages a second, touched with the processors far apart, 8 B, 64 B: all peers".into()),
            "{gaps:?}"
        );
    }

    #[test]
    fn each_row_that_lacks_a_peer_or_a_distance_is_named() {
        let all = tables();
        let latency = Table { touched: false, ..Row::Latency.tables(true)[0] };
        let (text, gaps) = told(&all, &findings(&all, &[100.0, 300.0], Some((Who::Ucx, latency))));
        assert_eq!(
            gaps,
            [
                "Messages, one way, untouched with the processors near each other, 4 MiB: UCX",
                "Messages, one way, untouched with the processors far apart, 4 MiB: UCX"
            ]
        );
        assert!(gaps.iter().all(|gap| text.contains(gap)) && !text.contains("is complete"), "{text}");
        // A row that was not asked for is no row that was measured.
        let some: Vec<Table> = all.iter().copied().filter(|table| *table != latency).collect();
        let (_, gaps) = told(&some, &findings(&some, &[100.0], None));
        assert!(gaps.len() == 1 && gaps[0].starts_with("10 of ") && gaps[0].contains("untouched"), "{gaps:?}");
    }
}
