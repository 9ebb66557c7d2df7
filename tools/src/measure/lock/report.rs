//! The figures of locks, and the forms in which they are printed.

use super::{Plan, Task};
use crate::experiment::report::{render, table};
use crate::experiment::{Field, Fields};
use crate::measure::Net;
use crate::text::Format;
use doorbell_benches::{Clock, Contended, Summary};
use serde::{Deserialize, Serialize};

/// A section of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Section {
    /// One process locks, and no other process wants the lock.
    Uncontended,
    /// Several processes want the lock.
    Contended,
}

/// The thing that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// A lock of the registry, locked and unlocked.
    Key,
    /// Over a network: a message to the coordinator and back.
    Message,
    /// Over a network: locking alone.
    Lock,
    /// Over a network: unlocking alone.
    Unlock,
    /// The floor of one process: two compare-and-swaps.
    Swaps,
    /// The floor of several processes: the C library's robust mutex.
    Mutex,
}

impl What {
    fn words(self) -> &'static str {
        match self {
            What::Key => "key",
            What::Message => "8 bytes there and back",
            What::Lock => "lock",
            What::Unlock => "unlock",
            What::Swaps => "two swaps",
            What::Mutex => "mutex",
        }
    }
}

/// The figures of one of these.
#[derive(Clone, Debug)]
pub struct Row {
    section: Section,
    what: What,
    /// The number of processes.
    nodes: usize,
    locks: u64,
    /// The time of one lock, over all sections.
    each: Option<Summary>,
    /// Locks a second of all processes together.
    pub locks_per_s: f64,
    /// The lock over the floor: the ratio of medians if uncontended, of locks a second if contended.
    pub ratio: Option<f64>,
    /// The median over the median of a message there and back.
    round_trips: Option<f64>,
    waits: Option<Waits>,
}

/// The waits of several processes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Waits {
    waited: u64,
    mean_ns: Option<f64>,
    longest_ns: f64,
    /// Locks of the process that had fewest.
    least: u64,
    most: u64,
}

impl Waits {
    fn of(seen: &[Contended], clock: Clock) -> Self {
        let waited: u64 = seen.iter().map(|seen| seen.waited).sum();
        let wait_ticks: u64 = seen.iter().map(|seen| seen.wait_ticks).sum();
        let locks = || seen.iter().map(|seen| seen.locks);
        Self {
            waited,
            mean_ns: (waited > 0).then(|| clock.ns(wait_ticks as f64) / waited as f64),
            longest_ns: clock.ns(seen.iter().map(|seen| seen.longest_ticks).max().unwrap_or(0) as f64),
            least: locks().min().unwrap_or(0),
            most: locks().max().unwrap_or(0),
        }
    }

    /// The longest wait over the mean one, if there were any.
    fn fairness(&self) -> Option<f64> {
        self.mean_ns.map(|mean| self.longest_ns / mean)
    }
}

impl Row {
    /// The row of one process, from its sections.
    pub fn alone(what: What, locks: u64, each: Summary, ratio: Option<f64>) -> Self {
        let locks_per_s = 1e9 / each.p50;
        let section = Section::Uncontended;
        Self { section, what, nodes: 1, locks, each: Some(each), locks_per_s, ratio, round_trips: None, waits: None }
    }

    /// The row of a process that is not the coordinator, with the median of a message there and back.
    pub fn remote(what: What, each: Summary, message: f64) -> Self {
        Self { nodes: 2, round_trips: Some(each.p50 / message), ..Self::alone(what, each.count, each, None) }
    }

    /// The row of several processes, from the findings of each.
    pub fn contended(what: What, seen: &[Contended], clock: Clock) -> Self {
        let locks_per_s = |seen: &Contended| seen.locks as f64 * 1e9 / clock.ns(seen.ticks as f64).max(1.0);
        Self {
            section: Section::Contended,
            what,
            nodes: seen.len(),
            locks: seen.iter().map(|seen| seen.locks).sum(),
            each: None,
            locks_per_s: seen.iter().map(locks_per_s).sum(),
            ratio: None,
            round_trips: None,
            waits: Some(Waits::of(seen, clock)),
        }
    }
}

impl Task {
    /// The rows in this form. People see a table for each section.
    pub fn render(&self, format: Format, rows: &[Row]) -> String {
        let of_section = |section| {
            let rows: Vec<Fields> = rows.iter().filter(|row| row.section == section).map(|row| row.fields(&self.plan)).collect();
            format!("{}\n\n{}", title(&self.plan, section), table(&rows))
        };
        match format {
            Format::Table => [Section::Uncontended, Section::Contended].map(of_section).join("\n"),
            format => render(format, "", &rows.iter().map(|row| row.fields(&self.plan)).collect::<Vec<_>>()),
        }
    }
}

impl Row {
    fn fields(&self, plan: &Plan) -> Fields {
        let is_remote = self.round_trips.is_some();
        let (unit, each_ns, count) = if is_remote { (1e3, ">µs each", ">times") } else { (1.0, ">ns each", ">locks") };
        let each = |name, of: fn(&Summary) -> f64| {
            let ns = self.each.as_ref().map(of);
            Field::ns(name, ns).text(ns.map(|ns| format!("{:.1}", ns / unit)).unwrap_or_default())
        };
        let p99 = each("p99_ns", |each| each.p99);
        let locks_per_s = Field::of("locks_per_s", self.locks_per_s.round()).text(format!("{:.2}", self.locks_per_s / 1e6));
        let waits = self.waits.as_ref();
        let longest = Field::ns("longest_wait_ns", waits.map(|waits| waits.longest_ns)).under(">longest wait");
        let (has_waits, setting) = (waits.is_some(), &plan.setting);
        let or_dash = |field: Field| if has_waits { field.or("-") } else { field };
        let mut fields = vec![
            Field::of("test", "lock"),
            Field::of("section", self.section),
            Field::of("fabric", setting.fabric()),
            Field::of("what", self.what).text(self.what.words()).under(""),
            Field::of("nodes", self.nodes),
            Field::of("locks", self.locks).under(count),
            each("p50_ns", |each| each.p50).under(each_ns),
            each("min_ns", |each| each.min).under(">fastest"),
            if is_remote { p99.under(">p99") } else { p99 },
            each("max_ns", |each| each.max).under(">slowest"),
            if has_waits { locks_per_s.under(">M/s") } else { locks_per_s },
            Field::figure("ratio", self.ratio, 2).under(">ratio"),
            Field::figure("round_trips", self.round_trips, 2).under(">round trips"),
            Field::of("waited", waits.map(|waits| waits.waited)).under(">waited"),
            or_dash(Field::ns("mean_wait_ns", waits.and_then(|waits| waits.mean_ns)).under(">mean wait")),
            if waits.is_some_and(|waits| waits.mean_ns.is_none()) { longest.text("-") } else { longest },
            or_dash(Field::figure("fairness", waits.and_then(Waits::fairness), 1).under(">longest/mean")),
            Field::of("least", waits.map(|waits| waits.least)).under(">least"),
            Field::of("most", waits.map(|waits| waits.most)).under(">most"),
        ];
        fields.extend(setting.fields());
        let net = setting.net.as_ref().map(Net::fields);
        fields.extend(net.unwrap_or_else(|| ["key", "port"].map(|name| Field::of(name, ()))));
        Fields(fields)
    }
}

fn title(plan: &Plan, section: Section) -> String {
    let (setting, over) = (&plan.setting, plan.setting.over());
    match section {
        Section::Uncontended if setting.net.is_some() => {
            format!("A process locks and unlocks a lock whose coordinator is another process, {over}; no other process wants it.")
        }
        Section::Uncontended => format!("One process locks and unlocks a lock, {over}; no other process wants it."),
        Section::Contended => {
            format!("{} processes want one lock for {} s, {over}, {}.", plan.nodes, plan.seconds, setting.how())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;
    use crate::experiment::Setting;
    use doorbell_benches::Samples;
    use serde_json::{Value, json};

    fn task(net: Option<Net>) -> Task {
        let setting = Setting { net, ..Setting::default() };
        Task { plan: Plan { setting, nodes: 2, seconds: 3, floor: true }, kind: Kind::Contended }
    }

    fn seen(locks: u64, waited: u64, wait_ticks: u64, longest_ticks: u64) -> Contended {
        Contended { locks, waited, wait_ticks, longest_ticks, ticks: 1_000_000_000 }
    }

    fn rows() -> Vec<Row> {
        let (mut samples, clock) = (Samples::new(), Clock { ns_per_tick: 1.0 });
        samples.record_many(100, 5);
        let key = Row::contended(What::Key, &[seen(30, 2, 500, 400), seen(10, 3, 1000, 600)], clock);
        let mutex = Row::contended(What::Mutex, &[seen(5, 0, 0, 0), seen(4, 0, 0, 0)], clock);
        vec![Row::alone(What::Key, 500, samples.summary(0.5), Some(1.25)), Row { ratio: Some(4.5), ..key }, mutex]
    }

    #[test]
    fn waits_are_of_all_processes() {
        let Row { locks, locks_per_s, waits, .. } = rows()[1].clone();
        let waits = waits.unwrap();
        assert_eq!((locks, locks_per_s), (40, 40.0));
        assert_eq!(waits, Waits { waited: 5, mean_ns: Some(300.0), longest_ns: 600.0, least: 10, most: 30 });
        assert_eq!(waits.fairness(), Some(2.0));
        assert_eq!(rows()[2].waits.unwrap().fairness(), None, "nobody waited");
    }

    #[test]
    fn every_row_has_the_same_names() {
        let text = task(None).render(Format::Json, &rows());
        let objects: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&objects[0]["section"], &objects[0]["p50_ns"]), (&json!("uncontended"), &json!(50.0)));
        assert_eq!(
            (&objects[1]["what"], &objects[1]["fairness"], &objects[1]["ratio"]),
            (&json!("key"), &json!(2.0), &json!(4.5))
        );
        assert_eq!((&objects[2]["what"], &objects[2]["mean_wait_ns"]), (&json!("mutex"), &Value::Null));
        let csv = task(None).render(Format::Csv, &rows());
        let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(columns, [columns[0]; 4]);
        assert_eq!(objects[0].as_object().unwrap().len(), columns[0]);
    }

    #[test]
    fn over_a_network_times_are_told_in_round_trips() {
        let task = task(Some(Net::default()));
        let mut samples = Samples::new();
        samples.record_many(100, 5);
        let rows = [(What::Message, 40.0), (What::Lock, 46.0)].map(|(what, ns)| Row::remote(what, samples.summary(ns), 4000.0));
        let found: Value = serde_json::from_str(&task.render(Format::Json, &rows[1..])).unwrap();
        assert_eq!((&found["fabric"], &found["key"], &found["port"]), (&json!("udp"), &json!(false), &json!("auto")));
        assert_eq!((&found["what"], &found["round_trips"], &found["nodes"]), (&json!("lock"), &json!(1.15), &json!(2)));
        let text = task.render(Format::Table, &rows);
        let line = |begins: &str| text.lines().find(|line| line.starts_with(begins)).unwrap().to_owned();
        assert!(text.contains("over udp without a key") && line(" ").ends_with("round trips"), "{text}");
        assert_eq!(line("lock").split_whitespace().collect::<Vec<_>>(), ["lock", "5", "4.6", "4.6", "4.6", "4.6", "1.15"]);
    }

    #[test]
    fn people_see_two_tables() {
        let text = task(None).render(Format::Table, &rows());
        let line = |begins: &str, which: usize| {
            text.lines()
                .filter(|line| line.starts_with(begins))
                .nth(which)
                .unwrap()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(line("key", 0), "key 500 50.0 50.0 50.0 1.25");
        assert_eq!(line("key", 1), "key 40 0.00 4.50 5 300.0 ns 600.0 ns 2.0 10 30");
        assert_eq!(line("mutex", 0), "mutex 9 0.00 0 - - - 4 5");
    }
}
