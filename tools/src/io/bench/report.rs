//! The figures, and the forms in which they are printed.

use super::Plan;
use super::worker::Found;
use crate::experiment::report::{Fields, Report, rounded};
use crate::measure::size::Size;
use crate::measure::table::time;
use crate::text::{Table, word};
use serde_json::json;

impl Report for Plan {
    fn fields(&self, found: &Found) -> Fields {
        let figure = |value: f64| rounded(value, 4);
        let Found { op, bytes, io, local } = found;
        Fields(vec![
            ("test", json!("io")),
            ("op", json!(op)),
            ("size_bytes", json!(bytes)),
            ("fabric", json!(self.setting.fabric())),
            ("rounds", json!(self.rounds)),
            ("calls", json!(io.calls)),
            ("p50_ns", figure(io.p50)),
            ("p99_ns", figure(io.p99)),
            ("min_ns", figure(io.min)),
            ("local_p50_ns", figure(local.p50)),
            ("local_p99_ns", figure(local.p99)),
            ("local_min_ns", figure(local.min)),
            ("gb_per_s", figure(*bytes as f64 / io.p50)),
            ("local_gb_per_s", figure(*bytes as f64 / local.p50)),
            ("ratio", figure(io.p50 / local.p50)),
            ("share", figure(local.p50 / io.p50)),
            ("file_bytes", json!(self.file)),
            ("wait", json!(self.setting.wait.to_string())),
            ("crowded", json!(self.setting.crowded)),
        ])
    }

    fn table(&self, found: &[Found]) -> String {
        table(self, found)
    }
}

/// The table for people.
fn table(plan: &Plan, found: &[Found]) -> String {
    let crowded = if plan.setting.crowded { "more processes than processors" } else { "a processor for each process" };
    let title = format!(
        "Calls by an I/O node over {}, in turns with local ones on the same file of {} ({crowded}), wait {}; {} rounds.",
        plan.setting.fabric(),
        Size(plan.file),
        plan.setting.wait,
        plan.rounds
    );
    let table = Table::of(found, |Found { op, bytes, io, local }| {
        let gb_per_s = |ns: f64| format!("{:.2}", *bytes as f64 / ns);
        vec![
            ("", word(op)),
            (">size", Size(*bytes).to_string()),
            (">each", time(io.p50)),
            (">p99", time(io.p99)),
            (">GB/s", gb_per_s(io.p50)),
            (">local", time(local.p50)),
            (">local p99", time(local.p99)),
            (">local GB/s", gb_per_s(local.p50)),
            (">ratio", format!("{:.2}", io.p50 / local.p50)),
            (">share", format!("{:.2}", local.p50 / io.p50)),
        ]
    });
    format!("{title}\n\n{table}")
}
