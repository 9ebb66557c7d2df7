//! The figures of receiving threads, and the forms in which they are printed.

use super::{Found, Leg, Plan, Round, Scheme, Seen, Sent};
use crate::exit::Failure;
use crate::experiment::report::render;
use crate::experiment::{Field, Fields};
use crate::text::{Format, median, word};
use doorbell_benches::{Samples, Summary};

/// The figures of a leg by one scheme.
#[derive(Clone, Debug)]
pub struct Row {
    leg: Leg,
    scheme: Scheme,
    /// The messages of all rounds.
    messages: u64,
    /// Medians of rounds, for one message.
    ns_each: f64,
    processor_ns: f64,
    /// The median of rounds of the processors that were busy.
    busy: f64,
    /// The times from sender to thread, if they were measured.
    times: Option<Summary>,
    /// This row's figures over those of the dispatcher: each, p50 and processor.
    of_dispatcher: Option<[Option<f64>; 3]>,
}

impl Row {
    /// The rows: one for each leg and scheme.
    ///
    /// # Errors
    /// A message is missing, or came twice.
    pub fn all(plan: &Plan, found: &[Found]) -> Result<Vec<Row>, Failure> {
        let sent = found.iter().find(|found| !found.sent.is_empty());
        let seen = || found.iter().filter(|found| !found.seen.is_empty());
        let mut rows = Vec::new();
        for (at, leg) in plan.legs.iter().enumerate() {
            let mut of_leg = Vec::new();
            for (scheme, name) in plan.schemes.iter().enumerate() {
                let sent = sent.map_or(&[][..], |found| &found.sent[at][scheme]);
                let seen: Vec<&Seen> = seen().map(|found| &found.seen[at][scheme]).collect();
                of_leg.push(Row::new(*leg, *name, sent, &seen)?);
            }
            if let Some(dispatcher) = of_leg.iter().find(|row| row.scheme == Scheme::Dispatcher).cloned() {
                of_leg.iter_mut().for_each(|row| row.of_dispatcher = Some(row.over(&dispatcher)));
            }
            rows.extend(of_leg);
        }
        Ok(rows)
    }

    fn new(leg: Leg, scheme: Scheme, sent: &[Sent], seen: &[&Seen]) -> Result<Self, Failure> {
        let (mut each, mut processor, mut busy) = (Vec::new(), Vec::new(), Vec::new());
        for (round, Sent { began_ns, messages }) in sent.iter().enumerate() {
            let rounds: Vec<&Round> = seen.iter().map(|seen| &seen.rounds[round]).collect();
            let came: u64 = rounds.iter().map(|round| round.messages).sum();
            if came != *messages {
                let what = format!("of {messages} messages that were sent by {} {came} came", word(&scheme));
                return Err(Failure::failed(what, "this is an error of Doorbell: please report it"));
            }
            let ended_ns = rounds.iter().map(|round| round.ended_ns).max().unwrap_or(0);
            let used = rounds.iter().map(|round| round.processor_ns).sum::<u64>() as f64;
            let (took, count) = (ended_ns.saturating_sub(*began_ns).max(1) as f64, (*messages).max(1) as f64);
            each.push(took / count);
            processor.push(used / count);
            busy.push(used / took);
        }
        let mut times = Samples::new();
        seen.iter().for_each(|seen| times.merge(&seen.times));
        Ok(Self {
            leg,
            scheme,
            messages: sent.iter().map(|sent| sent.messages).sum(),
            ns_each: median(each).unwrap_or(0.0),
            processor_ns: median(processor).unwrap_or(0.0),
            busy: median(busy).unwrap_or(0.0),
            times: leg.load.is_timed().then(|| times.summary(1.0)),
            of_dispatcher: None,
        })
    }

    fn over(&self, other: &Row) -> [Option<f64>; 3] {
        let p50 = self.times.zip(other.times).map(|(mine, its)| mine.p50 / its.p50);
        [Some(self.ns_each / other.ns_each), p50, Some(self.processor_ns / other.processor_ns)]
    }
}

impl Plan {
    /// The rows in this form.
    pub fn render(&self, format: Format, rows: &[Row]) -> String {
        let processes = if self.receivers() == 1 { "of one process" } else { "of two processes" };
        let crowded = if self.setting.crowded { "more than processors" } else { "a processor for each" };
        let title = format!(
            "{} threads {processes} ({}, {crowded}) receive messages of one process, over shared memory: {}, {} rounds.",
            self.threads,
            word(&self.mode),
            self.setting.how(),
            self.rounds
        );
        render(format, &title, &rows.iter().map(|row| self.fields(row)).collect::<Vec<_>>())
    }

    fn fields(&self, row: &Row) -> Fields {
        let times = |name, of: fn(&Summary) -> f64| Field::ns(name, row.times.as_ref().map(of));
        let of = |name, at: usize| Field::figure(name, row.of_dispatcher.and_then(|ratios| ratios[at]), 2);
        let mut fields = vec![
            Field::of("test", "device"),
            Field::of("mode", self.mode),
            Field::of("threads", self.threads),
            Field::bytes("size_bytes", row.leg.bytes).under(">size"),
            Field::of("load", row.leg.load).under("load"),
            Field::of("scheme", row.scheme).under("scheme"),
            Field::of("rounds", self.rounds),
            Field::of("messages", row.messages).under(">messages"),
            Field::of("messages_per_s", (1e9 / row.ns_each).round()).text(format!("{:.3}", 1e3 / row.ns_each)).under(">M/s"),
            Field::ns("each_ns", row.ns_each).under(">each"),
            times("min_ns", |times| times.min),
            times("p50_ns", |times| times.p50).under(">p50"),
            times("p99_ns", |times| times.p99).under(">p99"),
            times("p999_ns", |times| times.p999).under(">p99.9"),
            times("max_ns", |times| times.max),
            Field::ns("processor_ns", row.processor_ns).under(">processor"),
            Field::figure("processors_busy", row.busy, 2).under(">busy"),
            of("each_of_dispatcher", 0).under(">of dispatcher:"),
            of("p50_of_dispatcher", 1).under(">p50"),
            of("processor_of_dispatcher", 2).under(">processor"),
            Field::of("rate", (self.rate > 0).then_some(self.rate)),
            Field::of("crowded", self.setting.crowded),
        ];
        fields.extend(self.setting.fields());
        Fields(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Load, Mode};
    use super::*;
    use crate::experiment::Setting;
    use serde_json::{Value, json};

    fn plan() -> Plan {
        Plan {
            setting: Setting { crowded: true, ..Setting::default() },
            threads: 4,
            mode: Mode::Dual,
            legs: vec![Leg { bytes: 8, load: Load::Turn }, Leg { bytes: 1024, load: Load::Alone }],
            rate: 0,
            schemes: vec![Scheme::Claimed, Scheme::Dispatcher],
            rounds: 3,
            section_ns: 1000,
            count: None,
        }
    }

    /// Two processes: of three rounds with ten messages each, which took so long and used so much in each process.
    fn found(timed: u64, figures: [(u64, [u64; 3], u64); 2]) -> Vec<Found> {
        let sent: Vec<Vec<Sent>> = figures.iter().map(|_| vec![Sent { began_ns: 100, messages: 10 }; 3]).collect();
        let seen = |(_, took, used): (u64, [u64; 3], u64), messages: u64| {
            let mut times = Samples::new();
            times.record_many(timed, messages);
            let round = |took| Round { messages, ended_ns: 100 + took, processor_ns: used };
            Seen { rounds: took.map(round).to_vec(), times }
        };
        let of = |messages| Found { sent: Vec::new(), seen: vec![figures.map(|figures| seen(figures, messages)).to_vec(); 2] };
        vec![Found { sent: vec![sent; 2], seen: Vec::new() }, of(4), of(6)]
    }

    #[test]
    fn medians_of_rounds_and_ratios_to_the_dispatcher() {
        let rows = Row::all(&plan(), &found(50, [(0, [1000, 5000, 2000], 500), (0, [4000; 3], 2000)])).unwrap();
        let figures: Vec<_> = rows.iter().map(|row| (row.ns_each, row.processor_ns, row.busy, row.of_dispatcher)).collect();
        assert_eq!(figures[0], (200.0, 100.0, 0.5, Some([Some(0.5), None, Some(0.25)])));
        assert_eq!(figures[1], (400.0, 400.0, 1.0, Some([Some(1.0), None, Some(1.0)])));
        assert_eq!(rows[2].of_dispatcher, Some([Some(0.5), Some(1.0), Some(0.25)]));
        assert_eq!((rows[0].messages, rows[2].times.map(|times| times.p50)), (30, Some(50.0)));
    }

    #[test]
    fn what_did_not_come_is_no_figure() {
        let mut found = found(50, [(0, [1000; 3], 1), (0, [1000; 3], 1)]);
        found.pop();
        let failure = Row::all(&plan(), &found).unwrap_err();
        assert!(failure.to_string().contains("of 10 messages that were sent by claimed 4 came"), "{failure}");
    }

    #[test]
    fn every_row_has_the_same_names() {
        let rows = Row::all(&plan(), &found(50, [(0, [1000; 3], 10), (0, [1000; 3], 20)])).unwrap();
        let text = plan().render(Format::Json, &rows);
        let objects: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let names = |object: &Value| object.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert!(objects.len() == 4 && objects.iter().all(|object| names(object) == names(&objects[0])));
        assert_eq!((&objects[0]["load"], &objects[0]["p50_ns"]), (&json!("turn"), &Value::Null));
        let csv = plan().render(Format::Csv, &rows);
        let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(columns, [objects[0].as_object().unwrap().len(); 5]);
        let table = plan().render(Format::Table, &rows);
        assert!(table.starts_with("4 threads of two processes (dual, more than processors)"), "{table}");
    }
}
