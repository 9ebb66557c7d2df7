//! The live page.

use super::answer::Seen;
use super::history::Moment;
use super::latency::Spread;
use crate::chart::{self, Axis, Bar, Scale, Series, bars, lines, round_number, round_time};
use crate::nodes::{nanoseconds, short};
use crate::page;
use crate::text::{bytes, counted};
use crate::top::watch::Row;
use doorbell::Metric;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The most domains, and the most nodes and links of each, that the page shows.
const DOMAINS: usize = 16;
const ROWS: usize = 64;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

const AGO: Axis = Axis { label: "seconds", scale: Scale::Linear, mark: |seconds| ((seconds * 10.0).round() / 10.0).to_string() };
const MESSAGES: Axis = Axis { label: "messages a second", scale: Scale::FromZero, mark: round_number };
const BYTES: Axis = Axis { label: "bytes a second", scale: Scale::FromZero, mark: round_number };
const LATENCY: Axis = Axis { label: "one way", scale: Scale::Log(10.0), mark: round_time };
const TIME: Axis = Axis { label: "one way", scale: Scale::Log(10.0), mark: round_time };
const SAMPLES: Axis = Axis { label: "samples", scale: Scale::FromZero, mark: round_number };

/// The whole page.
pub fn whole(seen: &Seen, interval: Duration) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Doorbell" }
                noscript { meta http-equiv="refresh" content="2"; }
                link rel="icon" href="data:,";
                style { (PreEscaped(chart::STYLE)) (PreEscaped(page::STYLE)) (PreEscaped(STYLE)) }
            }
            body data-interval=(interval.as_millis().max(500)) {
                header { h1 { "Doorbell" } p #state role="status" {} }
                main #live { (live(seen, interval)) }
                footer { p { a href="/metrics" { "/metrics" } " has every metric, for Prometheus." } }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

/// The part that changes.
pub fn live(seen: &Seen, interval: Duration) -> Markup {
    let mut domains: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in seen.look.iter().flat_map(|look| &look.rows) {
        domains.entry(&row.domain).or_default().push(row);
    }
    html! {
        @if let Some(why) = &seen.trouble {
            p.trouble { "The boards cannot be read: " (why) }
        }
        @if domains.is_empty() && seen.look.iter().all(|look| look.remarks.is_empty()) {
            p { "There are no nodes. " code { "doorbell demo" } " starts some for a moment." }
        }
        @for (_, remark) in seen.look.iter().flat_map(|look| &look.remarks).filter(|(name, _)| !domains.contains_key(name.as_str())).take(DOMAINS) {
            p.trouble { (remark) }
        }
        @for (name, rows) in domains.iter().take(DOMAINS) {
            (domain(name, rows, seen, interval))
        }
        @if let Some(more) = domains.len().checked_sub(DOMAINS).filter(|more| *more > 0) {
            p { "And " (counted(more, "domain")) " more: " code { "doorbell serve DOMAIN" } " shows one alone." }
        }
    }
}

fn domain(name: &str, rows: &[&Row], seen: &Seen, interval: Duration) -> Markup {
    let now = Instant::now();
    let moments: Vec<&Moment> = seen.history.of(name).collect();
    let line = |name: &str, value: &dyn Fn(&Moment) -> f64| Series {
        name: name.into(),
        points: moments.iter().map(|moment| (-now.duration_since(moment.at).as_secs_f64(), value(moment))).collect(),
    };
    let quantile = |share: f64| move |moment: &Moment| moment.recent.quantile(share).unwrap_or(f64::NAN);
    let mut all = Spread::default();
    rows.iter().for_each(|row| all.add(&row.all));
    let count = |state: &str| rows.iter().filter(|row| row.state == state).count();
    let (dead, stopped) = (count("dead"), count("stopped"));
    let bar = |(low, high, count): (u64, u64, u64)| Bar { from: low.max(1) as f64, to: high as f64, value: count as f64 };
    html! {
        section {
            h2 { (name) }
            p {
                (counted(rows.len(), "node"))
                @if dead > 0 { ", " b.dead { (dead) " dead" } }
                @if stopped > 0 { ", " b.stopped { (stopped) " stopped" } }
                "; a look every " (format!("{interval:?}"))
            }
            @if let Some(remark) = seen.look.as_ref().and_then(|look| look.remarks.get(name)) {
                p.trouble { (remark) }
            }
            div.charts {
                (lines("Messages", AGO, MESSAGES, &[line("in", &|moment| moment.messages_in), line("out", &|moment| moment.messages_out)]))
                (lines("Bytes", AGO, BYTES, &[line("in", &|moment| moment.bytes_in), line("out", &|moment| moment.bytes_out)]))
                (lines("Latency", AGO, LATENCY, &[line("p50", &quantile(0.5)), line("p99", &quantile(0.99))]))
                (bars("Latencies of all sampled messages", TIME, SAMPLES, &all.buckets().map(bar).collect::<Vec<_>>()))
            }
            (nodes(rows))
            (links(rows))
            (locks(rows))
        }
    }
}

fn nodes(rows: &[&Row]) -> Markup {
    let level = |row: &Row, metric: Metric| short(row.metrics[metric] as f64);
    let label = |row: &Row| row.node.member.as_ref().map(|member| member.label.clone()).unwrap_or_default();
    html! {
        div.wide { table.rows {
            thead { tr {
                th { "node" } th.word { "role" } th.word { "state" } th.word { "label" } th { "in/s" } th { "out/s" } th { "pooled" }
                th { "parks/s" } th { "p50" } th { "p99" } th { "memory" }
            } }
            tbody { @for row in rows.iter().take(ROWS) {
                tr class=(row.state) {
                    td { (row.node.id) } td.word { (row.role()) } td.word { (row.state) } td.word { (label(row)) }
                    td { (short(row.rate(Metric::MessagesIn))) } td { (short(row.rate(Metric::MessagesOut))) }
                    td { (level(row, Metric::Pooled)) } td { (short(row.rate(Metric::Parks))) }
                    td { (nanoseconds(row.latency(0.5))) } td { (nanoseconds(row.latency(0.99))) } td { (bytes(row.node.bytes)) }
                }
            } }
        } }
        (left_out(rows.len(), "node"))
    }
}

fn links(rows: &[&Row]) -> Markup {
    let links = || {
        rows.iter()
            .filter_map(|row| Some((row, row.modes.as_ref()?)))
            .flat_map(|(row, modes)| modes.links.iter().map(move |link| (row, link)))
    };
    let count = links().count();
    html! { @if count > 0 {
        h3 { "Links" }
        div.wide { table.rows {
            thead { tr { th { "node" } th { "to" } th.word { "link" } th { "depth" } th { "queued" } th { "occupancy" } th { "messages" } th { "sent" } } }
            tbody { @for (row, link) in links().take(ROWS) { tr {
                td { (row.node.id) } td { (link.node) } td.word { (link.fabric) "/" (link.link) } td { (link.depth) } td { (link.queued) }
                td { (format!("{:.1} %", f64::from(link.occupancy) / 10.0)) } td { (short(link.messages as f64)) } td { (bytes(link.bytes_sent)) }
            } } }
        } }
        (left_out(count, "link"))
    } }
}

fn locks(rows: &[&Row]) -> Markup {
    let busy: Vec<&&Row> = rows.iter().filter(|row| !row.about_keys().is_empty()).take(ROWS).collect();
    html! { @if !busy.is_empty() {
        h3 { "Locks" }
        ul { @for row in busy { li { "node " (row.node.id) " " (row.about_keys()) } } }
    } }
}

/// How many rows the page leaves out.
fn left_out(count: usize, noun: &str) -> Markup {
    html! { @if count > ROWS { p.quiet { "And " (counted(count - ROWS, noun)) " more; /metrics has all." } } }
}
