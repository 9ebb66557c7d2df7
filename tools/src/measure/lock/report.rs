//! What was found of locks, and the forms in which it is printed.

use super::worker::Seen;
use super::{Plan, Task};
use crate::experiment::report::{Fields, Report, figure, figure_or_null};
use crate::measure::table::time;
use crate::text::Table;
use doorbell_benches::stats::Summary;
use serde::Serialize;
use serde_json::{Value, json};

/// Under what circumstances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Section {
    /// By one process, while nobody else wants it.
    Uncontended,
    /// By several that all want it.
    Contended,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// A key of the registry, locked and unlocked.
    Key,
    /// Over a network: a message to the home of the key and back.
    Message,
    /// Locking the key.
    Lock,
    /// Unlocking it.
    Unlock,
    /// The floor of one: two compare-and-swaps.
    Swaps,
    /// The floor of many: the C library's robust mutex.
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

/// What was found of one of them.
#[derive(Clone, Debug)]
pub struct Row {
    section: Section,
    what: What,
    /// Processes.
    nodes: usize,
    locks: u64,
    /// Of sections, for each lock.
    each: Option<Summary>,
    /// All processes together.
    pub locks_per_s: f64,
    /// Ours over the floor: of medians if uncontended, of locks a second if contended.
    pub ratio: Option<f64>,
    /// The median over that of a message there and back.
    round_trips: Option<f64>,
    waits: Option<Waits>,
}

/// How several waited.
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
    fn of(seen: &[Seen]) -> Self {
        let waited: u64 = seen.iter().map(|seen| seen.waited).sum();
        let wait_ns: f64 = seen.iter().map(|seen| seen.wait_ns).sum();
        let locks = || seen.iter().map(|seen| seen.locks);
        Self {
            waited,
            mean_ns: (waited > 0).then(|| wait_ns / waited as f64),
            longest_ns: seen.iter().map(|seen| seen.longest_ns).fold(0.0, f64::max),
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
    /// From sections of one process.
    pub fn alone(what: What, locks: u64, each: Summary, ratio: Option<f64>) -> Self {
        let locks_per_s = 1e9 / each.p50;
        let section = Section::Uncontended;
        Self { section, what, nodes: 1, locks, each: Some(each), locks_per_s, ratio, round_trips: None, waits: None }
    }

    /// From single ones between a process and the home of a key, with the median of a message there and back.
    pub fn remote(what: What, each: Summary, message: f64) -> Self {
        Self { nodes: 2, round_trips: Some(each.p50 / message), ..Self::alone(what, each.count, each, None) }
    }

    /// From what each of several processes saw.
    pub fn contended(section: Section, what: What, seen: &[Seen]) -> Self {
        let locks = seen.iter().map(|seen| seen.locks).sum();
        let locks_per_s = seen.iter().map(|seen| seen.locks as f64 * 1e9 / seen.ns.max(1.0)).sum();
        Self {
            section,
            what,
            nodes: seen.len(),
            locks,
            each: None,
            locks_per_s,
            ratio: None,
            round_trips: None,
            waits: Some(Waits::of(seen)),
        }
    }
}

impl Report for Task {
    fn fields(&self, row: &Row) -> Fields {
        let setting = &self.plan.setting;
        let each = |of: fn(&Summary) -> f64| figure_or_null(row.each.as_ref().map(of));
        let waits = |of: fn(&Waits) -> Value| row.waits.as_ref().map_or(Value::Null, of);
        Fields(vec![
            ("test", json!("lock")),
            ("section", json!(row.section)),
            ("fabric", json!(setting.fabric())),
            ("what", json!(row.what)),
            ("nodes", json!(row.nodes)),
            ("locks", json!(row.locks)),
            ("p50_ns", each(|each| each.p50)),
            ("min_ns", each(|each| each.min)),
            ("p99_ns", each(|each| each.p99)),
            ("max_ns", each(|each| each.max)),
            ("locks_per_s", json!(row.locks_per_s.round())),
            ("ratio", figure_or_null(row.ratio)),
            ("round_trips", figure_or_null(row.round_trips)),
            ("waited", waits(|waits| json!(waits.waited))),
            ("mean_wait_ns", waits(|waits| figure_or_null(waits.mean_ns))),
            ("longest_wait_ns", waits(|waits| figure(waits.longest_ns))),
            ("fairness", waits(|waits| figure_or_null(waits.fairness()))),
            ("least", waits(|waits| json!(waits.least))),
            ("most", waits(|waits| json!(waits.most))),
            ("progress", json!(setting.progress)),
            ("wait", json!(setting.wait)),
            ("key", json!(setting.net.as_ref().map(|net| net.key_file.is_some()))),
            ("port", json!(setting.net.as_ref().map(|net| &net.port))),
        ])
    }

    fn table(&self, rows: &[Row]) -> String {
        [Section::Uncontended, Section::Contended].map(|section| table(&self.plan, section, rows)).join("\n")
    }
}

/// One section for people.
fn table(plan: &Plan, section: Section, rows: &[Row]) -> String {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.section == section).collect();
    let (setting, over) = (&plan.setting, plan.setting.over());
    let (title, names): (String, &[&str]) = match section {
        Section::Uncontended if setting.net.is_some() => (
            format!("A process locks and unlocks a key whose home is another process, {over}; nobody else wants it."),
            &["", ">times", ">µs each", ">fastest", ">p99", ">slowest", ">round trips"],
        ),
        Section::Uncontended => (
            format!("One process locks a key and unlocks it, {over}; nobody else wants it."),
            &["", ">locks", ">ns each", ">fastest", ">slowest", ">ratio"],
        ),
        Section::Contended => (
            format!(
                "{} processes want one key for {} s, {over}, progress {}, wait {}.",
                plan.nodes, plan.seconds, setting.progress, setting.wait
            ),
            &["", ">locks", ">M/s", ">ratio", ">waited", ">mean wait", ">longest wait", ">longest/mean", ">least", ">most"],
        ),
    };
    let mut table = Table::new(names);
    for row in rows {
        let ratio = row.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        let mut cells = vec![row.what.words().to_owned(), row.locks.to_string()];
        match (&row.each, row.round_trips) {
            (Some(each), Some(round_trips)) => {
                cells.extend([each.p50, each.min, each.p99, each.max].map(|ns| format!("{:.1}", ns / 1e3)));
                cells.push(format!("{round_trips:.2}"));
            }
            (Some(each), None) => {
                cells.extend([each.p50, each.min, each.max].map(|ns| format!("{ns:.1}")));
                cells.push(ratio.clone());
            }
            (None, _) => {}
        }
        if let Some(waits) = &row.waits {
            let known = |figure: Option<String>| figure.unwrap_or_else(|| "-".into());
            cells.extend([
                format!("{:.2}", row.locks_per_s / 1e6),
                ratio,
                waits.waited.to_string(),
                known(waits.mean_ns.map(time)),
                known(waits.mean_ns.map(|_| time(waits.longest_ns))),
                known(waits.fairness().map(|fairness| format!("{fairness:.1}"))),
                waits.least.to_string(),
                waits.most.to_string(),
            ]);
        }
        table.row(cells);
    }
    format!("{title}\n\n{}\n", table.lines().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;
    use crate::experiment::report::Format;
    use crate::experiment::setting::Setting;
    use crate::measure::net::Net;
    use doorbell_benches::stats::Samples;

    fn task(net: Option<Net>) -> Task {
        let setting = Setting { net, progress: "adaptive".into(), wait: "auto".into(), ..Setting::default() };
        Task { plan: Plan { setting, nodes: 2, seconds: 3, floor: true }, kind: Kind::Contended }
    }

    fn seen(locks: u64, waited: u64, wait_ns: f64, longest_ns: f64) -> Seen {
        Seen { locks, waited, wait_ns, longest_ns, ns: 1e9 }
    }

    fn rows() -> Vec<Row> {
        let mut samples = Samples::new();
        samples.record_many(100, 5);
        let key = Row::contended(Section::Contended, What::Key, &[seen(30, 2, 500.0, 400.0), seen(10, 3, 1000.0, 600.0)]);
        let mutex = Row::contended(Section::Contended, What::Mutex, &[seen(5, 0, 0.0, 0.0), seen(4, 0, 0.0, 0.0)]);
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
        let task = task(Some(Net { port: "auto".into(), ..Net::default() }));
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
