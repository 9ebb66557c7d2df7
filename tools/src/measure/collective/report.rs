//! The figures of collectives, and the forms in which they are printed.

use super::worker::{Found, Sections, Stats};
use super::{Leg, Op, Plan, Way};
use crate::experiment::report::{Fields, lines, rounded};
use crate::ls::Format;
use crate::measure::size::Size;
use crate::measure::table::time;
use crate::text::{Table, word};
use doorbell_benches::clock::Clock;
use doorbell_benches::stats::{Samples, Summary};
use serde_json::{Value, json};

/// The columns of the counts of channels.
const STAT_COLUMNS: [&str; 5] = [">operations", ">acquired", ">queued", ">synchronised", ">foreseen"];

/// The figures of an operation of one size, by one way of synchronisation.
#[derive(Clone, Debug)]
pub struct Row {
    leg: Leg,
    way: Way,
    /// Calls of a round.
    calls: u64,
    /// The time of a call, over all rounds.
    each: Summary,
    /// The counts of channels, of all processes.
    stats: Stats,
    /// The bare counter barrier.
    floor: Option<Summary>,
    /// The median over the median in the foreground.
    of_foreground: Option<f64>,
}

impl Row {
    /// The rows of a leg: one for each way of synchronisation.
    pub fn all(plan: &Plan, leg: usize, found: &[Vec<Found>], clock: Clock) -> Vec<Row> {
        let floor: Vec<&Sections> = found.iter().filter_map(|found| found[leg].floor.as_ref()).collect();
        let floor = (!floor.is_empty()).then(|| slowest(&floor, clock));
        let row = |(at, way): (usize, &Way)| {
            let seen: Vec<&Sections> = found.iter().map(|found| &found[leg].ways[at]).collect();
            Row {
                leg: plan.legs[leg],
                way: *way,
                calls: seen[0].calls,
                each: slowest(&seen, clock),
                stats: seen.iter().fold(Stats::default(), |sum, seen| sum.and(seen.stats)),
                floor,
                of_foreground: None,
            }
        };
        let mut rows: Vec<Row> = plan.ways.iter().enumerate().map(row).collect();
        let foreground = rows.iter().find(|row| row.way == Way::Foreground).map(|row| row.each.p50);
        for row in rows.iter_mut().filter(|row| row.way == Way::Background) {
            row.of_foreground = foreground.map(|foreground| row.each.p50 / foreground);
        }
        rows
    }

    /// The median over the median of the floor.
    fn ratio(&self) -> Option<f64> {
        self.floor.map(|floor| self.each.p50 / floor.p50)
    }

    /// Bytes over the time; `None` for a barrier.
    fn gb_per_s(&self) -> Option<f64> {
        (self.leg.op != Op::Barrier).then(|| self.leg.bytes as f64 / self.each.p50)
    }

    /// The fields of the row, with the same names for all rows.
    fn fields(&self, plan: &Plan) -> Fields {
        let figure = |value: f64| rounded(value, 4);
        let or_null = |value: Option<f64>| value.map_or(Value::Null, figure);
        let mut fields = vec![
            ("test", json!("collective")),
            ("op", json!(self.leg.op)),
            ("size_bytes", json!((self.leg.op != Op::Barrier).then_some(self.leg.bytes))),
            ("compute_ns", json!(self.leg.work.map(|work| work.ns))),
            ("sync", json!(self.way)),
            ("nodes", json!(plan.nodes)),
            ("rounds", json!(self.each.count)),
            ("calls", json!(self.calls)),
            ("p50_ns", figure(self.each.p50)),
            ("min_ns", figure(self.each.min)),
            ("max_ns", figure(self.each.max)),
            ("gb_per_s", or_null(self.gb_per_s())),
            ("floor_p50_ns", or_null(self.floor.map(|floor| floor.p50))),
            ("ratio", or_null(self.ratio())),
            ("of_foreground", or_null(self.of_foreground)),
        ];
        fields.extend(STAT_COLUMNS.into_iter().zip(self.stats.0).map(|(name, count)| (&name[1..], json!(count))));
        fields.extend([
            ("channels", json!(plan.channels)),
            ("slot_bytes", json!(plan.slot)),
            ("crowded", json!(plan.setting.crowded)),
            ("progress", json!(plan.setting.progress.to_string())),
            ("wait", json!(plan.setting.wait.to_string())),
        ]);
        Fields(fields)
    }

    /// The cells at the beginning of a line.
    fn names(&self) -> Vec<(&'static str, String)> {
        let Leg { op, bytes, work } = self.leg;
        let size = if op == Op::Barrier { String::new() } else { Size(bytes).to_string() };
        let work = work.map_or_else(String::new, |work| time(work.ns as f64));
        vec![("", word(&op)), (">size", size), (">work", work), ("sync", word(&self.way))]
    }
}

/// The time of one call. Each round takes as long as its slowest process.
fn slowest(seen: &[&Sections], clock: Clock) -> Summary {
    let rounds = seen.iter().map(|seen| seen.ticks.len()).min().unwrap_or(0);
    let mut samples = Samples::new();
    for round in 0..rounds {
        samples.record(seen.iter().map(|seen| seen.ticks[round]).max().unwrap_or(0));
    }
    samples.summary(clock.ns_per_tick / seen[0].calls as f64)
}

/// The rows in this form.
pub fn render(format: Format, stats: bool, plan: &Plan, rows: &[Row]) -> String {
    match format {
        Format::Table if stats => format!("{}\n{}", table(plan, rows), channels(rows)),
        Format::Table => table(plan, rows),
        Format::Json => lines(rows.iter().map(|row| row.fields(plan))),
    }
}

/// The table for people.
fn table(plan: &Plan, rows: &[Row]) -> String {
    let crowded = if plan.setting.crowded { "more than processors" } else { "a processor for each" };
    let title = format!(
        "A team of {} processes ({crowded}) over shared memory: {} channels of {} for each, progress {}, wait {}; time by the slowest, {} rounds.",
        plan.nodes,
        plan.channels,
        Size(plan.slot),
        plan.setting.progress,
        plan.setting.wait,
        plan.rounds
    );
    let (floor, both) = (rows.iter().any(|row| row.floor.is_some()), rows.iter().any(|row| row.of_foreground.is_some()));
    let known = |figure: Option<String>| figure.unwrap_or_default();
    let two = |ratio: f64| format!("{ratio:.2}");
    let table = Table::of(rows, |row| {
        let mut cells = row.names();
        cells.push((">calls", row.calls.to_string()));
        cells.extend(
            [(">each", row.each.p50), (">fastest", row.each.min), (">slowest", row.each.max)].map(|(name, ns)| (name, time(ns))),
        );
        cells.push((">GB/s", known(row.gb_per_s().map(|rate| format!("{rate:.3}")))));
        if floor {
            cells.push((">floor", known(row.floor.map(|floor| time(floor.p50)))));
            cells.push((">ratio", known(row.ratio().map(two))));
        }
        if both {
            cells.push((">of fg", known(row.of_foreground.map(two))));
        }
        cells
    });
    format!("{title}\n\n{table}")
}

/// The counts of channels, for people.
fn channels(rows: &[Row]) -> String {
    let table = Table::of(rows, |row| {
        let mut cells = row.names();
        cells.extend(STAT_COLUMNS.into_iter().zip(row.stats.0).map(|(name, count)| (name, count.to_string())));
        cells
    });
    format!("Channels, of all processes, in the rounds:\n\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::setting::Setting;

    fn plan() -> Plan {
        Plan {
            setting: Setting::default(),
            nodes: 2,
            legs: vec![Leg { op: Op::Barrier, bytes: 0, work: None }, Leg { op: Op::Allreduce, bytes: 4096, work: None }],
            ways: vec![Way::Background, Way::Foreground],
            floor: true,
            channels: 4,
            slot: 256 << 10,
            rounds: 3,
            iterations: Some(10),
        }
    }

    fn sections(ticks: [u64; 3]) -> Sections {
        let stats = Stats([30, 20, 10, 29, 15]);
        Sections { calls: 10, ticks: ticks.to_vec(), stats }
    }

    fn rows() -> Vec<Row> {
        // The slowest of round 0 is the second process, of the others the first.
        let found = |background, foreground, floor: Option<[u64; 3]>| Found {
            ways: vec![sections(background), sections(foreground)],
            floor: floor.map(sections),
        };
        let one = vec![found([10, 200, 200], [400; 3], Some([100; 3])), found([50; 3], [80; 3], None)];
        let other = vec![found([200, 10, 10], [10; 3], Some([10; 3])), found([50; 3], [100; 3], None)];
        let (plan, found) = (plan(), [one, other]);
        (0..2).flat_map(|leg| Row::all(&plan, leg, &found, Clock { ns_per_tick: 2.0 })).collect()
    }

    #[test]
    fn the_slowest_process_counts_and_ratios_are_of_medians() {
        let rows = rows();
        let figures: Vec<_> = rows.iter().map(|row| (row.each.p50, row.ratio(), row.of_foreground)).collect();
        let expected = [(40.0, Some(2.0), Some(0.5)), (80.0, Some(4.0), None), (10.0, None, Some(0.5)), (20.0, None, None)];
        assert_eq!(figures, expected);
        assert_eq!(rows[0].stats, Stats([60, 40, 20, 58, 30]));
    }

    #[test]
    fn every_object_has_the_same_names() {
        let text = render(Format::Json, false, &plan(), &rows());
        let objects: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(objects.len(), 4);
        let names = |object: &Value| object.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert!(objects.iter().all(|object| names(object) == names(&objects[0])));
        assert_eq!((&objects[0]["op"], &objects[0]["size_bytes"]), (&json!("barrier"), &Value::Null));
        assert_eq!((&objects[0]["floor_p50_ns"], &objects[0]["ratio"]), (&json!(20.0), &json!(2.0)));
        assert_eq!((&objects[2]["size_bytes"], &objects[2]["gb_per_s"]), (&json!(4096), &json!(409.6)));
        assert_eq!((&objects[2]["ratio"], &objects[2]["of_foreground"]), (&Value::Null, &json!(0.5)));
    }

    #[test]
    fn people_see_a_table_and_channels_if_they_want() {
        let line = |text: &str, begins: &str| {
            let line = text.lines().find(|line| line.starts_with(begins)).unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let text = render(Format::Table, false, &plan(), &rows());
        assert_eq!(line(&text, "barrier"), "barrier background 10 40.0 ns 40.0 ns 40.0 ns 20.0 ns 2.00 0.50");
        assert_eq!(line(&text, "allreduce"), "allreduce 4 KiB background 10 10.0 ns 10.0 ns 10.0 ns 409.600 0.50");
        assert!(!text.contains("foreseen"));
        let text = render(Format::Table, true, &plan(), &rows());
        let (_, channels) = text.split_once("Channels").unwrap();
        assert_eq!(line(channels, "barrier"), "barrier background 60 40 20 58 30");
    }
}
