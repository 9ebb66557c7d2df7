//! Figures for people.

use super::bars;
use super::plan::Test;
use super::report::{Header, Row};
use super::size::Size;
use std::fmt::Write;

/// A time with three significant digits or so.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 9_999.5 => format!("{ns:.*} ns", usize::from(ns < 999.95)),
        ns if ns < 9_999_500.0 => format!("{:.*} µs", usize::from(ns < 999_950.0), ns / 1e3),
        ns if ns < 9_999_500_000.0 => format!("{:.*} ms", usize::from(ns < 999_950_000.0), ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

/// All figures of a measurement, and how they are distributed.
pub fn render(header: &Header, rows: &[Row]) -> String {
    let mut text = format!("{header}\n\n");
    let mut table = vec![names(header)];
    table.extend(rows.iter().map(|row| cells(header, row)));
    let widths: Vec<usize> =
        (0..table[0].len()).map(|column| table.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0)).collect();
    for cells in table {
        let line: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        let _ = writeln!(text, "{}", line.join("  "));
    }
    if header.test == Test::Latency {
        for row in rows {
            let _ = writeln!(text, "\n{}", Size(row.bytes));
            for line in bars::draw(&row.samples, row.ns_per_unit) {
                let _ = writeln!(text, "  {line}");
            }
        }
    }
    text
}

fn names(header: &Header) -> Vec<String> {
    let figures: &[&str] = match header.test {
        Test::Latency => &["size", "samples", "min", "p50", "p90", "p99", "p99.9", "max", "mean"],
        Test::Rate => &["size", "messages", "M/s", "GB/s", "ns each", "fastest", "slowest"],
        Test::Bandwidth => &["size", "messages", "GB/s", "spread"],
    };
    let floor: &[&str] = match (header.floor, header.test) {
        (false, _) => &[],
        (true, Test::Latency) if header.is_remote => &["floor p50", "ratio"],
        (true, Test::Bandwidth) if header.is_remote => &["floor", "ratio"],
        (true, Test::Latency) => &["floor p50", "ratio", "pipelined"],
        (true, Test::Bandwidth) => &["pulled", "ratio", "copied"],
        (true, Test::Rate) => &["floor M/s", "ratio"],
    };
    figures.iter().chain(floor).chain(&["hop"]).map(|name| (*name).into()).collect()
}

fn cells(header: &Header, row: &Row) -> Vec<String> {
    let found = &row.summary;
    let mut cells = vec![Size(row.bytes).to_string(), row.messages.to_string()];
    match header.test {
        Test::Latency => cells.extend([found.min, found.p50, found.p90, found.p99, found.p999, found.max, found.mean].map(time)),
        Test::Rate => cells.extend([
            format!("{:.2}", row.messages_per_s / 1e6),
            format!("{:.2}", row.gb_per_s()),
            format!("{:.1}", found.p50),
            format!("{:.1}", found.min),
            format!("{:.1}", found.max),
        ]),
        Test::Bandwidth => cells.extend([format!("{:.2}", row.gb_per_s()), format!("{:.0} %", 100.0 * row.spread())]),
    }
    if header.floor {
        let gb_per_s = |messages_per_s| format!("{:.2}", row.at_rate(messages_per_s));
        let floor_per_s = row.floor.map(|floor| floor.messages_per_s);
        let first = match header.test {
            Test::Latency => row.floor.map(|floor| time(floor.p50_ns)),
            Test::Rate => floor_per_s.map(|floor| format!("{:.2}", floor / 1e6)),
            Test::Bandwidth => if header.is_remote { floor_per_s } else { row.pulled_per_s }.map(gb_per_s),
        };
        cells.extend([first, row.ratio().map(|ratio| format!("{ratio:.2}"))].map(Option::unwrap_or_default));
        match header.test {
            _ if header.is_remote => {}
            Test::Latency => cells.push(row.pipelined.map_or_else(String::new, |(p50_ns, _)| time(p50_ns))),
            Test::Rate => {}
            Test::Bandwidth => cells.push(floor_per_s.map_or_else(String::new, gb_per_s)),
        }
    }
    cells.push(row.hop_ns.map_or("?".into(), time));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_fitting_unit() {
        for (ns, text) in [
            (0.0, "0.0 ns"),
            (66.54, "66.5 ns"),
            (999.96, "1000 ns"),
            (1234.5, "1234 ns"),
            (12_345.0, "12.3 µs"),
            (999_960.0, "1000 µs"),
            (12_345_678.0, "12.3 ms"),
            (3e10, "30.0 s"),
        ] {
            assert_eq!(time(ns), text);
        }
    }
}
