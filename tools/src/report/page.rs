//! What the page shows.

use super::ends::BYTES;
use super::{Figure, Part, Report};
use crate::chart::{Axis, Bar, Scale, Series, bars, lines, round_number, round_time};
use crate::experiment::report::table;
use crate::measure::report::{Row, title};
use crate::page::{Page, Rows};
use crate::text::bytes;
use maud::{Markup, html};
use std::collections::BTreeMap;

/// The generator of the page, by which the command knows its own pages.
pub const MARK: &str = "doorbell report";

const SIZE: Axis = Axis { label: "bytes of a message", scale: Scale::Log(2.0), mark: |size| bytes(size.round() as u64) };
const ONE_WAY: Axis = Axis { label: "one way", scale: Scale::Log(10.0), mark: round_time };
const SAMPLES: Axis = Axis { label: "samples", scale: Scale::Log(10.0), mark: round_number };
const MESSAGES: Axis = Axis { label: "messages a second", scale: Scale::FromZero, mark: round_number };
const GIGABYTES: Axis = Axis { label: "GB/s", scale: Scale::FromZero, mark: round_number };

const SINCE: Axis = Axis { label: "milliseconds", scale: Scale::Linear, mark: |ms| ((ms * 100.0).round() / 100.0).to_string() };
const PLACE: Axis =
    Axis { label: "MiB of the message", scale: Scale::FromZero, mark: |place| ((place * 10.0).round() / 10.0).to_string() };

/// Bars of the histogram for each power of ten.
const BARS: f64 = 20.0;

/// The whole page.
pub fn whole(report: &Report) -> String {
    let machine = &report.machine;
    let page = Page {
        generator: &format!("{MARK} {}", machine.version),
        title: &format!("Doorbell on {}", machine.cpu),
        about: html! {
            "Doorbell " (machine.version) ", " (machine.time)
            @if report.quick { "; a quick report, whose figures are less steady" }
        },
        main: html! {
            (figures(&report.figures()))
            (warnings(&report.warnings()))
            h2 { "Charts" }
            div.charts { (charts(report)) }
            h2 { "Figures" }
            @for part in report.parts() {
                p { (title(&part.plan)) }
                (Rows { table: &table(&part.rows.iter().map(Row::fields).collect::<Vec<_>>()), strong: None })
            }
            (facts(report))
            (variables(&machine.variables))
        },
        footer: html! {
            "A latency is half a round trip between two processes. The floor is the least that such an exchange can take on this machine, "
            "measured in turns with Doorbell: a line of shared memory that one process writes and the other polls. A bandwidth stands beside one "
            "copy by the kernel (pulled), and beside a copy into shared memory and out again (copied). A hop is the time of a cache line "
            "between the two processors. The message that moves from both ends goes between two nodes of one process. A ratio is Doorbell by the floor, and for a bandwidth by the copy of the kernel. Pipelined is the floor of a long message that goes in chunks. Both processes write every line of a message before they send it, and read every line of a "
            "message that they received."
        },
    };
    page.render()
}

fn figures(figures: &[Figure]) -> Markup {
    html! {
        dl.figures { @for figure in figures {
            div { dt { (figure.name) } dd.value { (figure.value) } dd.quiet { (figure.about) } }
        } }
    }
}

fn warnings(warnings: &[String]) -> Markup {
    html! {
        @if warnings.is_empty() {
            p { "Nothing was found that makes these figures doubtful." }
        } @else {
            section.trouble {
                h2 { "Warnings" }
                ul { @for warning in warnings { li { (warning) } } }
            }
        }
    }
}

fn charts(report: &Report) -> Markup {
    let line = |part: &Part, name: &str, value: fn(&Row) -> Option<f64>| Series {
        name: name.into(),
        points: part.rows.iter().map(|row| (row.bytes as f64, value(row).unwrap_or(f64::NAN))).collect(),
    };
    let Report { latency, rate, bandwidth, ends, .. } = report;
    let end = |name: &str, points: &[(f64, f64)]| Series {
        name: name.into(),
        points: points.iter().map(|(ns, place)| (ns / 1e6, place / f64::from(1 << 20))).collect(),
    };
    html! {
        (lines("Latency by size", SIZE, ONE_WAY, &[
            line(latency, "p50", |row| Some(row.summary.p50)),
            line(latency, "p99", |row| Some(row.summary.p99)),
            line(latency, "floor p50", |row| row.floor.map(|floor| floor.p50_ns)),
        ]))
        @if let Some(row) = latency.rows.first() {
            (bars(&format!("Latencies of messages of {}", bytes(row.bytes as u64)), ONE_WAY, SAMPLES, &histogram(row)))
        }
        (lines("Messages a second by size", SIZE, MESSAGES, &[
            line(rate, "Doorbell", |row| Some(row.messages_per_s)),
            line(rate, "floor", |row| row.floor.map(|floor| floor.messages_per_s)),
        ]))
        (lines("Bandwidth by size", SIZE, GIGABYTES, &[
            line(bandwidth, "Doorbell", |row| Some(row.at_rate(row.messages_per_s))),
            line(bandwidth, "one copy by the kernel", |row| row.pulled_per_s.map(|rate| row.at_rate(rate))),
            line(bandwidth, "copied in and out", |row| row.floor.map(|floor| row.at_rate(floor.messages_per_s))),
        ]))
        (lines(&format!("A message of {} moves from both ends", bytes(BYTES as u64)), SINCE, PLACE, &[
            end("packets from its beginning", &ends.first),
            end("puts and copies from its end", &ends.last),
        ]))
    }
}

/// A bar for each range of equal ratio in which there are samples.
fn histogram(row: &Row) -> Vec<Bar> {
    let mut counts: BTreeMap<i32, u64> = BTreeMap::new();
    for (value, count) in row.samples.recorded() {
        let ns = (value as f64 * row.ns_per_unit).max(1.0);
        *counts.entry((ns.log10() * BARS).floor() as i32).or_default() += count;
    }
    let edge = |number: i32| 10_f64.powf(f64::from(number) / BARS);
    counts.into_iter().map(|(number, count)| Bar { from: edge(number), to: edge(number + 1), value: count as f64 }).collect()
}

fn facts(report: &Report) -> Markup {
    html! {
        h2 { "Machine" }
        table.facts { tbody { @for (name, words) in &report.machine.facts { tr { th { (name) } td { (words) } } } } }
    }
}

fn variables(variables: &[(String, String)]) -> Markup {
    html! {
        h2 { "Environment" }
        @if variables.is_empty() {
            p { "No variable of the environment changes how Doorbell runs." }
        } @else {
            table.facts { tbody { @for (name, value) in variables { tr { th { code { (name) } } td { (value) } } } } }
        }
    }
}
