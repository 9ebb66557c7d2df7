//! The figures of collectives, and the forms in which they are printed.

use super::{Found, Leg, Op, Plan, Sections, Stats, Way};
use crate::experiment::report::{render as rendered, table};
use crate::experiment::{Field, Fields};
use crate::measure::{Size, time};
use crate::text::Format;
use doorbell_benches::{Clock, Samples, Summary};

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

    /// The fields of the row, with the same names for all rows. People see either its times or the counts of channels.
    fn fields(&self, plan: &Plan, channels: bool) -> Fields {
        let bytes = (self.leg.op != Op::Barrier).then_some(self.leg.bytes);
        let work = self.leg.work.map(|work| work.ns);
        let mut fields = vec![
            Field::of("test", "collective"),
            Field::of("op", self.leg.op).under(""),
            Field::bytes("size_bytes", bytes).under(">size"),
            Field::of("compute_ns", work).text(work.map(|ns| time(ns as f64)).unwrap_or_default()).under(">work"),
            Field::of("sync", self.way).under("sync"),
            Field::of("nodes", plan.nodes),
            Field::of("rounds", self.each.count),
        ];
        let times = [
            (">calls", Field::of("calls", self.calls)),
            (">each", Field::ns("p50_ns", self.each.p50)),
            (">fastest", Field::ns("min_ns", self.each.min)),
            (">slowest", Field::ns("max_ns", self.each.max)),
            (">GB/s", Field::figure("gb_per_s", self.gb_per_s(), 3)),
            (">floor", Field::ns("floor_p50_ns", self.floor.map(|floor| floor.p50))),
            (">ratio", Field::figure("ratio", self.ratio(), 2)),
            (">of fg", Field::figure("of_foreground", self.of_foreground, 2)),
        ];
        fields.extend(times.map(|(head, field)| if channels { field } else { field.under(head) }));
        let counts = STAT_COLUMNS.into_iter().zip(self.stats.0).map(|(head, count)| (head, Field::of(&head[1..], count)));
        fields.extend(counts.map(|(head, field)| if channels { field.under(head) } else { field }));
        fields.extend([
            Field::of("channels", plan.channels),
            Field::of("slot_bytes", plan.slot),
            Field::of("crowded", plan.setting.crowded),
        ]);
        fields.extend(plan.setting.fields());
        Fields(fields)
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
    let crowded = if plan.setting.crowded { "more than processors" } else { "a processor for each" };
    let title = format!(
        "A team of {} processes ({crowded}) over shared memory: {} channels of {} for each, {}; time by the slowest, {} rounds.",
        plan.nodes,
        plan.channels,
        Size(plan.slot),
        plan.setting.how(),
        plan.rounds
    );
    let fields = |channels| rows.iter().map(|row| row.fields(plan, channels)).collect::<Vec<_>>();
    let mut text = rendered(format, &title, &fields(false));
    if stats && format == Format::Table {
        text += &format!("\nChannels, of all processes, in the rounds:\n\n{}", table(&fields(true)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Setting;
    use serde_json::{Value, json};

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
