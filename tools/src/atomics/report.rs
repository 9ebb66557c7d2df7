//! The forms in which tiers and times are printed.

use crate::experiment::report::table;
use crate::experiment::{Field, Fields};
use crate::text::{FormArgs, Table};
use doorbell::atomic::{self as cells, Tier};
use serde::Serialize;
use serde_json::{Value, json};

/// Nanoseconds of one update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// By the chosen tier, without the old or new value.
    pub as_is_ns: f64,
    /// By the chosen tier, with the old value.
    pub fetch_ns: f64,
    /// By compare-and-swap.
    pub swap_ns: f64,
    /// Under a lock.
    pub lock_ns: f64,
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

/// Prints the rows over the network.
pub fn print_net(form: FormArgs, rows: &[RemoteRow]) {
    let rows = net(rows);
    form.print(|| format!("A cell in a region of another node, over UDP.\n\n{}", table(&rows)), &rows);
}

fn net(rows: &[RemoteRow]) -> Vec<Fields> {
    let trip = rows.first().map_or(f64::NAN, |row| row.ns);
    let row = |RemoteRow { what, ns }: &RemoteRow| {
        Fields(vec![
            Field::of("fabric", "udp"),
            Field::of("what", what).under("u64"),
            Field::ns("ns", *ns).text(format!("{:.2}", ns / 1e3)).under(">µs"),
            Field::figure("of_round_trip", ns / trip, 3).under(">of a round trip"),
            Field::figure("a_second", 1e9 / ns, 0).under(">a second"),
        ])
    };
    rows.iter().map(row).collect()
}

fn remote(row: &RemoteRow) -> Fields {
    let ns = Field::figure("alone_ns", row.ns, 1).under(">ns");
    Fields(vec![Field::of("fabric", "shm"), Field::of("what", row.what).under("u64"), ns])
}

impl Row {
    /// A row without times.
    pub fn tiers(row: &cells::Row) -> Self {
        let cells::Row { value, op, tier, tier_fetch } = *row;
        Self { value, op, tier, tier_fetch, alone: None, contended: None }
    }

    /// The times as text. A `!` marks the chosen tier, or compare-and-swap, if it was no faster than the next tier below it.
    fn cells(&self, times: Option<Times>) -> Vec<String> {
        let Some(Times { as_is_ns, fetch_ns, swap_ns, lock_ns }) = times else { return Vec::new() };
        let is_beaten = self.tier == Tier::Native && as_is_ns >= swap_ns;
        let figures = [(as_is_ns, is_beaten), (fetch_ns, false), (swap_ns, swap_ns >= lock_ns), (lock_ns, false)];
        figures.map(|(ns, is_beaten)| format!("{ns:.1}{}", if is_beaten { "!" } else { " " })).into()
    }

    fn object(&self, threads: usize) -> Value {
        json!({
            "type": self.value,
            "op": self.op,
            "tier": self.tier.to_string(),
            "tier_fetch": self.tier_fetch.to_string(),
            "threads": threads,
            "alone": self.alone,
            "contended": self.contended,
        })
    }
}

/// Prints the rows of own cells, and of cells of another node that shares memory.
pub fn print(form: FormArgs, rows: &[Row], others: &[RemoteRow], threads: usize) {
    form.print(|| text(rows, others, threads), objects(rows, others, threads));
}

fn objects(rows: &[Row], others: &[RemoteRow], threads: usize) -> Vec<Value> {
    rows.iter().map(|row| row.object(threads)).chain(others.iter().map(|row| json!(remote(row)))).collect()
}

fn text(rows: &[Row], others: &[RemoteRow], threads: usize) -> String {
    let mut text = format!("Operators by type on {}, and the tier by which each is made atomic.", std::env::consts::ARCH);
    let mut names = vec!["type", "operator", "tier", "fetch"];
    if rows.iter().any(|row| row.alone.is_some()) {
        text += &format!(" Nanoseconds an update: alone, and contended by {threads} threads.");
        names.extend([">as is", ">fetch", ">swap", ">lock"].repeat(2));
    }
    let mut tiers = Table::new(&names);
    for row in rows {
        let words = [row.value.to_owned(), row.op.to_owned(), row.tier.to_string(), row.tier_fetch.to_string()];
        tiers.row(words.into_iter().chain(row.cells(row.alone)).chain(row.cells(row.contended)));
    }
    text += &format!("\n\n{tiers}");
    if !others.is_empty() {
        let others = table(&others.iter().map(remote).collect::<Vec<_>>());
        text += &format!("\nA cell in a region, over shared memory, alone.\n\n{others}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let times = |as_is| Times { as_is_ns: as_is, fetch_ns: 5.0, swap_ns: 6.25, lock_ns: 20.0 };
        let (value, op) = ("u64", "Add");
        Row { value, op, tier: Tier::Native, tier_fetch: Tier::Native, alone: Some(times(5.0)), contended: Some(times(7.0)) }
    }

    #[test]
    fn a_tier_that_is_beaten_is_marked() {
        let text = text(&[row()], &[RemoteRow { what: "by key", ns: 12.34 }], 2);
        let words: Vec<&str> = text.lines().find(|line| line.starts_with("u64  ")).unwrap().split_whitespace().collect();
        assert_eq!(words, ["u64", "Add", "native", "native", "5.0", "5.0", "6.2", "20.0", "7.0!", "5.0", "6.2", "20.0"]);
        assert!(text.contains("by key  12.3"), "{text}");
    }

    #[test]
    fn what_goes_by_the_network_is_beside_a_round_trip() {
        let rows = [RemoteRow { what: "trip", ns: 20_000.0 }, RemoteRow { what: "update", ns: 25_000.0 }];
        let rows = net(&rows);
        let text = table(&rows).to_string();
        assert!(text.lines().any(|line| line.split_whitespace().eq(["update", "25.00", "1.250", "40000"])), "{text}");
        let last = json!(rows[1]);
        assert_eq!((&last["fabric"], &last["of_round_trip"]), (&json!("udp"), &json!(1.25)));
    }

    #[test]
    fn objects_are_json() {
        let objects = objects(&[row(), Row { alone: None, contended: None, ..row() }], &[], 2);
        assert_eq!((&objects[0]["tier"], &objects[0]["alone"]["swap_ns"]), (&json!("native"), &json!(6.25)));
        assert_eq!(objects[1]["contended"], Value::Null);
    }
}
