//! What was found, and the forms in which it is printed.

use super::worker::Found;
use super::{Format, Plan};
use crate::measure::size::Size;
use crate::measure::table::time;
use crate::text::Table;
use serde_json::{Value, json};

/// Everything by name, in order, and the same names for all rows.
fn fields(plan: &Plan, found: &Found) -> Vec<(&'static str, Value)> {
    let rounded = |value: f64| json!((value * 1e4).round() / 1e4);
    let Found { op, bytes, io, local } = found;
    vec![
        ("test", json!("io")),
        ("op", json!(op)),
        ("size_bytes", json!(bytes)),
        ("fabric", json!(plan.fabric())),
        ("rounds", json!(plan.rounds)),
        ("calls", json!(io.calls)),
        ("p50_ns", rounded(io.p50)),
        ("p99_ns", rounded(io.p99)),
        ("min_ns", rounded(io.min)),
        ("local_p50_ns", rounded(local.p50)),
        ("local_p99_ns", rounded(local.p99)),
        ("local_min_ns", rounded(local.min)),
        ("gb_per_s", rounded(*bytes as f64 / io.p50)),
        ("local_gb_per_s", rounded(*bytes as f64 / local.p50)),
        ("ratio", rounded(io.p50 / local.p50)),
        ("share", rounded(local.p50 / io.p50)),
        ("file_bytes", json!(plan.file)),
        ("wait", json!(plan.wait)),
        ("crowded", json!(plan.crowded)),
    ]
}

/// In the form that was asked for.
pub fn render(format: Format, plan: &Plan, found: &[Found]) -> String {
    let rows = found.iter().map(|found| fields(plan, found));
    match format {
        Format::Table => table(plan, found),
        Format::Json => rows.map(|row| object(&row)).collect(),
        Format::Csv => {
            let mut lines = String::new();
            for (at, row) in rows.enumerate() {
                if at == 0 {
                    lines += &row.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(",");
                    lines.push('\n');
                }
                let words = row.iter().map(|(_, value)| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
                lines += &words.collect::<Vec<_>>().join(",");
                lines.push('\n');
            }
            lines
        }
    }
}

/// Objects of serde_json sort their names; ours stay in order.
fn object(fields: &[(&'static str, Value)]) -> String {
    let members: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}\n", members.join(","))
}

/// For people.
fn table(plan: &Plan, found: &[Found]) -> String {
    let crowded = if plan.crowded { "more processes than processors" } else { "a processor for each process" };
    let mut text = format!(
        "Calls by an I/O node over {}, in turns with local ones on the same file of {} ({crowded}), wait {}; {} rounds.\n\n",
        plan.fabric(),
        Size(plan.file),
        plan.wait,
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
