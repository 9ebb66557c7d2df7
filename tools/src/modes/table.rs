//! An outcome as text for people.

use super::{Change, Metrics, Outcome, Ratio, Row, Seen, Span, Timeline};
use crate::measure::time;
use crate::text::{Table, bytes, counted};
use doorbell::mode::Protocol;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The widest line.
const WIDTH: usize = 110;
/// Columns of a row of bars.
const COLUMNS: usize = 68;
/// Changes that are shown.
const CHANGES: usize = 16;
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The whole text.
pub fn render(outcome: &Outcome) -> String {
    let load = &outcome.load;
    let mut text = String::new();
    let _ = writeln!(text, "{}: {}", load.name, load.about);
    let bytes_of = outcome.policy().map_or(0, |row| row.metrics.bytes as u64);
    let _ = writeln!(
        text,
        "{} messages, {}; medians of {}; links {}\n",
        load.messages(),
        bytes(bytes_of),
        counted(outcome.rounds.into(), "round"),
        outcome.links.join(", ")
    );
    lines(&mut text, &ways(outcome));
    for (way, why) in &outcome.missing {
        let _ = writeln!(text, "{}", cut(&format!("{way} is not available: {why}")));
    }
    text.push('\n');
    for (what, extreme, Ratio { ratio, beside, goal }) in outcome.ratios() {
        let met = if ratio <= goal { "met" } else { "missed" };
        let _ = writeln!(text, "policy's {what} / {extreme} of one mode ({beside}): {ratio:.2}; goal {goal:.2}: {met}");
    }
    by_phase(&mut text, outcome);
    if let Some(row) = outcome.policy() {
        let _ = writeln!(text, "\nthe policy's messages went by {}", shares(&row.used));
        if !row.background.is_empty() {
            let _ = writeln!(text, "and those of the background by {}", shares(&row.background));
        }
    }
    over_time(&mut text, outcome);
    changes(&mut text, &outcome.timeline);
    text
}

/// The figures of each way.
pub fn ways(outcome: &Outcome) -> Table {
    let mut table = Table::new(&["way", ">total", ">spread", ">messages/s", ">MB/s", ">p50", ">p99", ">max"]);
    for row in &outcome.rows {
        let Row { name, metrics, .. } = row;
        let spread = format!("{:.0} %", 100.0 * row.spread());
        let rates = [metrics.messages_per_s(), metrics.mb_per_s()].map(|rate| format!("{rate:.0}"));
        let times = [metrics.p50, metrics.p99, metrics.max].map(time);
        table.row([name.clone(), time(metrics.total), spread].into_iter().chain(rates).chain(times));
    }
    table
}

/// The messages that took another mode than the last one of their kind, up to this number of them.
pub fn rows_of_changes(timeline: &Timeline, most: usize) -> Table {
    let mut table = Table::new(&[">at", ">bytes", "asked", "taken", "why"]);
    for Change { at, len, asked, used, why } in timeline.changes.iter().take(most) {
        table.row([time(*at as f64), len.to_string(), asked.clone(), used.clone(), why.clone()]);
    }
    table
}

fn lines(text: &mut String, table: &Table) {
    for line in table.lines() {
        let _ = writeln!(text, "{}", cut(&line));
    }
}

fn cut(line: &str) -> String {
    if line.chars().count() <= WIDTH { line.to_owned() } else { line.chars().take(WIDTH - 1).chain(['…']).collect() }
}

/// Each phase under the policy, by its best mode, and by its worst mode.
fn by_phase(text: &mut String, outcome: &Outcome) {
    let Some(policy) = outcome.policy() else { return };
    let mut table = Table::new(&["phase", ">policy", ">best", "by", ">p99", ">worst", "by", ">background MB/s"]);
    for (at, phase) in outcome.load.phases.iter().enumerate() {
        let of = |row: &Row| row.phases.get(at).copied().unwrap_or_default();
        let found = of(policy);
        let by = |metric: fn(&Metrics) -> f64, sign: f64| {
            let least = outcome.fixed().min_by(|a, b| (sign * metric(&of(a))).total_cmp(&(sign * metric(&of(b)))));
            least.map_or((String::new(), String::new()), |row| (time(metric(&of(row))), row.name.clone()))
        };
        let ((best, best_by), (worst, worst_by)) = (by(|of| of.total, 1.0), by(|of| of.p99, -1.0));
        let background =
            if found.background > 0.0 { format!("{:.0}", found.background * 1e3 / found.total) } else { String::new() };
        table.row([phase.name.clone(), time(found.total), best, best_by, time(found.p99), worst, worst_by, background]);
    }
    text.push('\n');
    lines(text, &table);
}

/// The share of messages of each mode.
fn shares(used: &BTreeMap<String, u64>) -> String {
    let all = used.values().sum::<u64>().max(1) as f64;
    let mut used: Vec<_> = used.iter().collect();
    used.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    used.iter().map(|(mode, count)| format!("{mode} {:.1} %", **count as f64 * 100.0 / all)).collect::<Vec<_>>().join(", ")
}

/// A row of bars for each figure of each link, and for each mode.
fn over_time(text: &mut String, outcome: &Outcome) {
    let Timeline { width, links, spans, .. } = &outcome.timeline;
    if spans.is_empty() {
        return;
    }
    let each = spans.len().div_ceil(COLUMNS);
    let columns: Vec<&[Span]> = spans.chunks(each).collect();
    let column = width * each as u64;
    let _ = writeln!(
        text,
        "\nUnder the policy, watched for {}; a column is {}, a bar the most in it (messages: how many):",
        time((width * spans.len() as u64) as f64),
        time(column as f64)
    );
    let mut names = vec![' '; COLUMNS];
    for (phase, start) in outcome.load.phases.iter().zip(&outcome.starts) {
        let at = (start / column) as usize;
        for (place, letter) in names.iter_mut().skip(at).zip(std::iter::once('|').chain(phase.name.chars())) {
            *place = letter;
        }
    }
    let _ = writeln!(text, "{}", format!("{:<17}{}", "", names.iter().collect::<String>()).trim_end());
    let mut row = |name: String, values: Vec<u64>, told: &dyn Fn(u64) -> String| {
        let most = values.iter().copied().max().unwrap_or(0);
        if most > 0 {
            let _ = writeln!(text, "{name:<17}{:<COLUMNS$} {}", bars(&values, most), told(most));
        }
    };
    for (at, link) in links.iter().enumerate() {
        let most = |metric: fn(&Seen) -> u64| -> Vec<u64> {
            columns.iter().map(|spans| spans.iter().map(|span| metric(&span.links[at])).max().unwrap_or(0)).collect()
        };
        row(format!("{link} depth"), most(|seen| seen.depth.into()), &|most| format!("up to {most}"));
        row(format!("{link} memory"), most(|seen| seen.occupancy.into()), &|most| format!("up to {:.0} %", most as f64 / 10.0));
        row(format!("{link} transfers"), most(|seen| seen.transfers.into()), &|most| format!("up to {most}"));
    }
    for (at, link) in links.iter().enumerate() {
        for protocol in Protocol::ALL {
            let count = |spans: &&[Span]| spans.iter().map(|span| span.modes[at][protocol as usize]).sum();
            row(format!("{link}/{protocol}"), columns.iter().map(count).collect(), &|most| format!("up to {most} msgs"));
        }
    }
}

/// Values as bars. The longest bar stands for `most`.
fn bars(values: &[u64], most: u64) -> String {
    let bar = |value: &u64| BARS[if *value == 0 { 0 } else { 1 + (value * 7 / most.max(1)).min(7) as usize }];
    values.iter().map(bar).collect()
}

fn changes(text: &mut String, timeline: &Timeline) {
    let Timeline { changes, changed, trials, .. } = timeline;
    let trials = if *trials > 0 { format!("; {} besides", counted(*trials as usize, "trial")) } else { String::new() };
    let _ = writeln!(text, "\n{} took another mode than the last one of its kind{trials}", counted(*changed as usize, "message"));
    if changes.is_empty() {
        return;
    }
    lines(text, &rows_of_changes(timeline, CHANGES));
    if *changed > CHANGES as u64 {
        let _ = writeln!(text, "… and {} more: see --report or --format json", changed - CHANGES as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modes::outcome::tests::outcome;

    #[test]
    fn all_is_said_and_no_line_is_too_long() {
        let text = render(&outcome());
        for said in [
            "policy thresholds",
            "policy's total / best of one mode (shm/0/put): 1.01; goal 1.05: met",
            "policy's p99 / worst of one mode (udp/0/put): 0.25; goal 0.50: met",
            "shm/0/get is not available: there is no way",
            "|steady",
            "shm/0 memory",
            "up to 50 %",
            "queue: 7 wait, 5 may",
            "31 messages took another mode than the last one of its kind; 3 trials besides",
            "… and 15 more",
        ] {
            assert!(text.contains(said), "'{said}' is missing in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn what_is_there_is_never_drawn_as_nothing() {
        assert_eq!(bars(&[0, 1, 500, 1000], 1000), " ▁▄█");
        assert_eq!(bars(&[3], 3), "█");
    }
}
