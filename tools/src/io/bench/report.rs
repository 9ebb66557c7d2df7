//! What was found, and the forms in which it is printed.

use super::Plan;
use super::worker::Found;
use crate::experiment::report::{Fields, Report, rounded};
use crate::measure::size::Size;
use crate::measure::table::time;
use crate::text::Table;
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
            ("wait", json!(self.setting.wait)),
            ("crowded", json!(self.setting.crowded)),
        ])
    }

    fn table(&self, found: &[Found]) -> String {
        table(self, found)
    }
}

/// For people.
fn table(plan: &Plan, found: &[Found]) -> String {
    let crowded = if plan.setting.crowded { "more processes than processors" } else { "a processor for each process" };
    let mut text = format!(
        "Calls by an I/O node over {}, in turns with local ones on the same file of {} ({crowded}), wait {}; {} rounds.\n\n",
        plan.setting.fabric(),
        Size(plan.file),
        plan.setting.wait,
        plan.rounds
    );
    let mut table =
        Table::new(&["", ">size", ">each", ">p99", ">GB/s", ">local", ">local p99", ">local GB/s", ">ratio", ">share"]);
    for Found { op, bytes, io, local } in found {
        table.row([
            op.name().into(),
            Size(*bytes).to_string(),
            time(io.p50),
            time(io.p99),
            format!("{:.2}", *bytes as f64 / io.p50),
            time(local.p50),
            time(local.p99),
            format!("{:.2}", *bytes as f64 / local.p50),
            format!("{:.2}", io.p50 / local.p50),
            format!("{:.2}", local.p50 / io.p50),
        ]);
    }
    for line in table.lines() {
        text += &line;
        text.push('\n');
    }
    text
}
