//! Figures as text for people.

use super::bars;
use super::plan::{Plan, Test};
use super::report::{Row, title};
use super::size::Size;
use crate::text::Table;
use std::fmt::Write;

/// A time in a unit that suits it, with about three significant digits.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 9_999.5 => format!("{ns:.*} ns", usize::from(ns < 999.95)),
        ns if ns < 9_999_500.0 => format!("{:.*} µs", usize::from(ns < 999_950.0), ns / 1e3),
        ns if ns < 9_999_500_000.0 => format!("{:.*} ms", usize::from(ns < 999_950_000.0), ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

/// The figures of a measurement, and the distribution of latencies.
pub fn render(plan: &Plan, rows: &[Row]) -> String {
    let mut text = format!("{}\n\n{}", title(plan), Table::of(rows, |row| cells(plan, row)));
    if plan.test == Test::Latency {
        for row in rows {
            let _ = writeln!(text, "\n{}", Size(row.bytes));
            for line in bars::draw(&row.samples, row.ns_per_unit) {
                let _ = writeln!(text, "  {line}");
            }
        }
    }
    text
}

fn cells(plan: &Plan, row: &Row) -> Vec<(&'static str, String)> {
    let (found, is_remote) = (&row.summary, plan.setting.net.is_some());
    let two = |figure: f64| format!("{figure:.2}");
    let one = |figure: f64| format!("{figure:.1}");
    let counted = if plan.test == Test::Latency { ">samples" } else { ">messages" };
    let mut cells = vec![(">size", Size(row.bytes).to_string()), (counted, row.messages.to_string())];
    match plan.test {
        Test::Latency => cells.extend([
            (">min", time(found.min)),
            (">p50", time(found.p50)),
            (">p90", time(found.p90)),
            (">p99", time(found.p99)),
            (">p99.9", time(found.p999)),
            (">max", time(found.max)),
            (">mean", time(found.mean)),
        ]),
        Test::Rate => cells.extend([
            (">M/s", two(row.messages_per_s / 1e6)),
            (">GB/s", two(row.gb_per_s())),
            (">ns each", one(found.p50)),
            (">fastest", one(found.min)),
            (">slowest", one(found.max)),
        ]),
        Test::Bandwidth => {
            cells.extend([(">GB/s", two(row.gb_per_s())), (">spread", format!("{:.0} %", 100.0 * row.spread()))]);
        }
    }
    if plan.floor {
        let known = Option::unwrap_or_default;
        let gb_per_s = |per_s: Option<f64>| known(per_s.map(|per_s| two(row.at_rate(per_s))));
        let floor_per_s = row.floor.map(|floor| floor.messages_per_s);
        cells.push(match plan.test {
            Test::Latency => (">floor p50", known(row.floor.map(|floor| time(floor.p50_ns)))),
            Test::Rate => (">floor M/s", known(floor_per_s.map(|floor| two(floor / 1e6)))),
            Test::Bandwidth if is_remote => (">floor", gb_per_s(floor_per_s)),
            Test::Bandwidth => (">pulled", gb_per_s(row.pulled_per_s)),
        });
        cells.push((">ratio", known(row.ratio().map(two))));
        match plan.test {
            Test::Latency if !is_remote => cells.push((">pipelined", known(row.pipelined.map(|(p50_ns, _)| time(p50_ns))))),
            Test::Bandwidth if !is_remote => cells.push((">copied", gb_per_s(floor_per_s))),
            _ => {}
        }
    }
    cells.push((">hop", row.hop_ns.map_or("?".into(), time)));
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
