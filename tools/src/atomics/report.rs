//! The forms in which tiers and times are printed.

use crate::experiment::report::{self, Fields};
use crate::ls::Format;
use crate::text::Table;
use doorbell::atomic::{self as cells, Tier};
use serde::{Serialize, Serializer};
use serde_json::json;

/// Nanoseconds of one update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// By the chosen tier, without the old or new value.
    #[serde(rename = "as_is_ns", serialize_with = "rounded")]
    pub as_is: f64,
    /// By the chosen tier, with the old value.
    #[serde(rename = "fetch_ns", serialize_with = "rounded")]
    pub fetch: f64,
    /// By compare-and-swap.
    #[serde(rename = "swap_ns", serialize_with = "rounded")]
    pub swap: f64,
    /// Under a lock.
    #[serde(rename = "lock_ns", serialize_with = "rounded")]
    pub lock: f64,
}

/// Finer than any clock here.
fn rounded<S: Serializer>(ns: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    report::rounded(*ns, 2).serialize(serializer)
}

/// An operator of a type.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub value: &'static str,
    pub op: &'static str,
    pub tier: Tier,
    pub tier_fetch: Tier,
    pub alone: Option<Times>,
    pub contended: Option<Times>,
}

/// An update of a cell of another node, and the nanoseconds that one update takes. The first row over the network is a message there and back.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteRow {
    pub what: &'static str,
    pub ns: f64,
}

/// The rows in this form.
pub fn render_net(format: Format, rows: &[RemoteRow]) -> String {
    let trip = rows.first().map_or(f64::NAN, |row| row.ns);
    match format {
        Format::Json => report::lines(rows.iter().map(|row| object_of_net(row, trip))),
        Format::Table => {
            let table = Table::of(rows, |RemoteRow { what, ns }| {
                vec![
                    ("u64", (*what).to_owned()),
                    (">µs", format!("{:.2}", ns / 1e3)),
                    (">of a round trip", format!("{:.3}", ns / trip)),
                    (">a second", format!("{:.0}", 1e9 / ns)),
                ]
            });
            format!("A cell in a region of another node, over UDP.\n\n{table}")
        }
    }
}

fn object_of_net(RemoteRow { what, ns }: &RemoteRow, trip: f64) -> Fields {
    let (each, ratio) = (report::rounded(*ns, 2), report::rounded(ns / trip, 2));
    Fields(vec![("fabric", json!("udp")), ("what", json!(what)), ("ns", each), ("of_round_trip", ratio)])
}

impl Row {
    /// A row without times.
    pub fn tiers(row: &cells::Row) -> Self {
        let cells::Row { value, op, tier, tier_fetch } = *row;
        Self { value, op, tier, tier_fetch, alone: None, contended: None }
    }

    /// Whether the chosen tier, and compare-and-swap, were no faster than the next tier below them.
    fn is_beaten(&self, times: &Times) -> (bool, bool) {
        (self.tier == Tier::Native && times.as_is >= times.swap, times.swap >= times.lock)
    }

    fn cells(&self, times: Option<&Times>) -> Vec<String> {
        let Some(times) = times else { return Vec::new() };
        let (native, swap) = self.is_beaten(times);
        let figure = |ns: f64, beaten| format!("{ns:.1}{}", if beaten { "!" } else { " " });
        vec![figure(times.as_is, native), figure(times.fetch, false), figure(times.swap, swap), figure(times.lock, false)]
    }
}

/// The rows in this form.
pub fn render(format: Format, rows: &[Row], remote: &[RemoteRow], threads: usize) -> String {
    match format {
        Format::Json => {
            report::lines(rows.iter().map(|row| object(row, threads))) + &report::lines(remote.iter().map(object_of_remote))
        }
        Format::Table => {
            let mut parts = vec![table(rows, threads)];
            if !remote.is_empty() {
                parts.push(table_of_remote(remote));
            }
            parts.join("\n")
        }
    }
}

/// A row for programs.
#[derive(Serialize)]
struct Object {
    r#type: &'static str,
    op: &'static str,
    tier: String,
    tier_fetch: String,
    threads: usize,
    alone: Option<Times>,
    contended: Option<Times>,
}

fn object(row: &Row, threads: usize) -> Object {
    let Row { value, op, tier, tier_fetch, alone, contended } = *row;
    Object { r#type: value, op, tier: tier.to_string(), tier_fetch: tier_fetch.to_string(), threads, alone, contended }
}

fn object_of_remote(row: &RemoteRow) -> Fields {
    Fields(vec![("fabric", json!("shm")), ("what", json!(row.what)), ("alone_ns", report::rounded(row.ns, 2))])
}

fn table(rows: &[Row], threads: usize) -> String {
    let is_timed = rows.iter().any(|row| row.alone.is_some());
    let mut names = vec!["type", "operator", "tier", "fetch"];
    if is_timed {
        names.extend([">as is", ">fetch", ">swap", ">lock", ">as is", ">fetch", ">swap", ">lock"]);
    }
    let mut table = Table::new(&names);
    for row in rows {
        let words = [row.value.to_owned(), row.op.to_owned(), row.tier.to_string(), row.tier_fetch.to_string()];
        table.row(words.into_iter().chain(row.cells(row.alone.as_ref())).chain(row.cells(row.contended.as_ref())));
    }
    let title = format!("Operators by type on {}, and the tier by which each is made atomic.", std::env::consts::ARCH);
    let times =
        if is_timed { format!(" Nanoseconds an update: alone, and contended by {threads} threads.") } else { String::new() };
    format!("{title}{times}\n\n{table}")
}

fn table_of_remote(rows: &[RemoteRow]) -> String {
    let table = Table::of(rows, |row| vec![("u64", row.what.to_owned()), (">ns", format!("{:.1}", row.ns))]);
    format!("A cell in a region, over shared memory, alone.\n\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn row() -> Row {
        let times = |as_is| Times { as_is, fetch: 5.0, swap: 6.25, lock: 20.0 };
        let (value, op) = ("u64", "Add");
        Row { value, op, tier: Tier::Native, tier_fetch: Tier::Native, alone: Some(times(5.0)), contended: Some(times(7.0)) }
    }

    #[test]
    fn a_tier_that_is_beaten_is_marked() {
        let text = render(Format::Table, &[row()], &[RemoteRow { what: "by key", ns: 12.34 }], 2);
        let words: Vec<&str> = text.lines().find(|line| line.starts_with("u64  ")).unwrap().split_whitespace().collect();
        assert_eq!(words, ["u64", "Add", "native", "native", "5.0", "5.0", "6.2", "20.0", "7.0!", "5.0", "6.2", "20.0"]);
        assert!(text.contains("by key  12.3"), "{text}");
    }

    #[test]
    fn what_goes_by_the_network_is_beside_a_round_trip() {
        let rows = [RemoteRow { what: "trip", ns: 20_000.0 }, RemoteRow { what: "update", ns: 25_000.0 }];
        let text = render_net(Format::Table, &rows);
        assert!(text.lines().any(|line| line.split_whitespace().eq(["update", "25.00", "1.250", "40000"])), "{text}");
        let last: Value = serde_json::from_str(render_net(Format::Json, &rows).lines().last().unwrap()).unwrap();
        assert_eq!((&last["fabric"], &last["of_round_trip"]), (&json!("udp"), &json!(1.25)));
    }

    #[test]
    fn objects_are_json() {
        let text = render(Format::Json, &[row(), Row { alone: None, contended: None, ..row() }], &[], 2);
        let objects: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&objects[0]["tier"], &objects[0]["alone"]["swap_ns"]), (&json!("native"), &json!(6.25)));
        assert_eq!(objects[1]["contended"], Value::Null);
    }
}
