//! What was found, and the forms in which it is printed.

use super::pairs::Outcome;
use super::plan::{Plan, Test, unpack};
use super::table;
use crate::exit::warn;
use crate::experiment::report::{Fields, csv, figure, figure_or_null, lines};
use crate::experiment::setting::FREE;
use doorbell::Progress;
use doorbell_benches::stats::{Samples, Summary};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// One object a line
    Json,
    /// A line of names, and a line for each size
    Csv,
    /// The percentile distribution as HdrHistogram writes it
    Hgrm,
}

/// Processors whose distance changes by more than this factor have moved.
const MOVED: f64 = 1.5;

/// What is true of all rows.
#[derive(Clone, Debug)]
pub struct Header {
    /// What was measured.
    pub test: Test,
    /// Whether the floor was, too.
    pub floor: bool,
    /// Whether it went over the network.
    pub is_remote: bool,
    plan: Plan,
}

impl Header {
    /// Of what was planned.
    pub fn of(plan: &Plan) -> Self {
        Self { test: plan.test, floor: plan.floor, is_remote: plan.setting.net.is_some(), plan: plan.clone() }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = &self.plan;
        f.write_str(match self.test {
            Test::Latency if plan.put => "One-way latency of puts into each other's regions (half a round trip)",
            Test::Latency => "One-way latency (half a round trip)",
            Test::Rate if plan.put => "Puts into the other's region, of which nobody is told,",
            Test::Rate => "Messages one way",
            Test::Bandwidth if plan.both_ways => "Bytes both ways at once, their sum",
            Test::Bandwidth => "Bytes one way",
        })?;
        if self.test == Test::Bandwidth {
            write!(f, ", {} messages under way", plan.window)?;
        }
        write!(f, " {}over {}", if plan.loan { "on loan " } else { "" }, plan.setting.fabric())?;
        if let Some(net) = &plan.setting.net {
            write!(f, " {}", net.security())?;
            net.other.map_or(Ok(()), |other| write!(f, " to {other}"))?;
        }
        write!(f, ", through a {}", through(plan))?;
        write!(f, ", progress {}, wait {}; every line is ", plan.setting.progress, plan.setting.wait)?;
        f.write_str(match (plan.touched, plan.put && self.test == Test::Rate) {
            (false, _) => "left alone",
            (true, true) => "written",
            (true, false) => "written and read",
        })?;
        if plan.pairs > 1 {
            write!(f, "; {} pairs at once, figures for one of them", plan.pairs)?;
        }
        f.write_str(".")
    }
}

fn through(plan: &Plan) -> &'static str {
    if plan.shared { "node shared by threads" } else { "peer" }
}

/// What was found for messages of one size.
#[derive(Clone, Debug)]
pub struct Row {
    test: Test,
    /// Bytes of a message.
    pub bytes: usize,
    /// Messages that counted: round trips for a latency.
    pub messages: u64,
    /// All samples, of all pairs.
    pub samples: Samples,
    /// Nanoseconds a message in a unit of the samples.
    pub ns_per_unit: f64,
    /// The figures of the samples.
    pub summary: Summary,
    /// Messages a second between the processes of one pair.
    pub messages_per_s: f64,
    /// The same over the floor, if it was measured.
    pub floor: Option<FloorFigures>,
    /// The median over the floor in the best chunks, in nanoseconds, and their bytes; for a latency of long messages.
    pub pipelined: Option<(f64, usize)>,
    /// Messages a second with one copy by the kernel, for a bandwidth.
    pub pulled_per_s: Option<f64>,
    /// Why there was no such copy.
    pub refused: Option<String>,
    /// How far apart the processors of the first pair were, if they are two.
    pub hop_ns: Option<f64>,
    /// They seemed to be threads of one core.
    pub shared_core: bool,
    /// They moved meanwhile.
    pub moved: bool,
    plan: Plan,
}

/// What the machine can do at best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FloorFigures {
    /// Median.
    pub p50_ns: f64,
    /// Messages a second between the processes of one pair.
    pub messages_per_s: f64,
}

impl Row {
    /// From samples of round trips.
    pub fn latency(plan: &Plan, leg: usize, outcome: &Outcome) -> Self {
        let per_unit = outcome.clock.ns_per_tick / 2.0;
        let rate = |samples: &[Samples]| 1e9 / mean(samples.iter().map(|samples| samples.summary(per_unit).mean));
        let round_trips = plan.legs[leg].rounds * plan.legs[leg].count;
        let mut row = Self::new(plan, leg, outcome, per_unit, round_trips, rate);
        row.pipelined = best_chunks(outcome, leg, per_unit);
        row
    }

    /// From samples of sections.
    pub fn rate(plan: &Plan, leg: usize, outcome: &Outcome) -> Self {
        let per_unit = outcome.clock.ns_per_tick / plan.legs[leg].count as f64;
        let rate = |samples: &[Samples]| mean(samples.iter().map(|samples| 1e9 / samples.summary(per_unit).p50));
        let messages = plan.legs[leg].rounds * plan.legs[leg].count;
        Self::new(plan, leg, outcome, per_unit, messages, rate)
    }

    /// From samples of sections in which messages went one way or both.
    pub fn bandwidth(plan: &Plan, leg: usize, outcome: &Outcome) -> Self {
        let per_unit = outcome.clock.ns_per_tick / plan.legs[leg].count as f64;
        let ways = if plan.both_ways { 2 } else { 1 };
        let rate =
            |samples: &[Samples]| mean(samples.iter().map(|samples| f64::from(ways) * 1e9 / samples.summary(per_unit).p50));
        let messages = plan.legs[leg].rounds * plan.legs[leg].count * ways as usize;
        let mut row = Self::new(plan, leg, outcome, per_unit, messages, rate);
        row.refused = outcome.pairs.iter().find_map(|pair| pair[leg].refused.clone());
        let pulled: Vec<Samples> = outcome.pairs.iter().map(|pair| unpack(&pair[leg].pulled)).collect();
        row.pulled_per_s = (plan.floor && plan.setting.net.is_none() && row.refused.is_none()).then(|| rate(&pulled));
        row
    }

    fn new(
        plan: &Plan,
        leg: usize,
        outcome: &Outcome,
        ns_per_unit: f64,
        messages: usize,
        rate: impl Fn(&[Samples]) -> f64,
    ) -> Self {
        let findings = || outcome.pairs.iter().map(|pair| &pair[leg]);
        let driver: Vec<Samples> = findings().map(|finding| unpack(&finding.driver)).collect();
        let floor: Vec<Samples> = findings().map(|finding| unpack(&finding.floor)).collect();
        let hops: Vec<(f64, bool)> = findings().flat_map(|finding| finding.hops.iter().copied()).collect();
        let (nearest, farthest) = hops.iter().fold((f64::MAX, 0.0_f64), |(low, high), (ns, _)| (low.min(*ns), high.max(*ns)));
        let samples = merged(&driver);
        Self {
            test: plan.test,
            bytes: plan.legs[leg].bytes,
            messages: (messages * plan.pairs) as u64,
            summary: samples.summary(ns_per_unit),
            samples,
            ns_per_unit,
            messages_per_s: rate(&driver),
            floor: (plan.floor && floor.iter().any(|samples| samples.count() > 0))
                .then(|| FloorFigures { p50_ns: merged(&floor).summary(ns_per_unit).p50, messages_per_s: rate(&floor) }),
            pipelined: None,
            pulled_per_s: None,
            refused: None,
            hop_ns: (!hops.is_empty()).then(|| mean(hops.iter().map(|(ns, _)| *ns))),
            shared_core: hops.iter().any(|(_, shared)| *shared),
            moved: farthest > MOVED * nearest,
            plan: plan.clone(),
        }
    }

    /// Bytes in a nanosecond.
    pub fn gb_per_s(&self) -> f64 {
        self.at_rate(self.messages_per_s)
    }

    /// How far the fastest and the slowest tenth of the samples are apart, as a share of the median.
    pub fn spread(&self) -> f64 {
        let spread = self.samples.spread();
        (spread.quantile(0.9) - spread.quantile(0.1)) / spread.quantile(0.5)
    }

    /// Ours over the floor: of medians for a latency, of messages a second for a rate, and for a bandwidth over what the kernel
    /// copies.
    pub fn ratio(&self) -> Option<f64> {
        match self.test {
            Test::Latency => self.floor.map(|floor| self.summary.p50 / floor.p50_ns),
            Test::Rate => self.floor.map(|floor| self.messages_per_s / floor.messages_per_s),
            Test::Bandwidth => {
                let is_remote = self.plan.setting.net.is_some();
                let over = if is_remote { self.floor.map(|floor| floor.messages_per_s) } else { self.pulled_per_s };
                over.map(|over| self.messages_per_s / over)
            }
        }
    }

    /// Bytes in a nanosecond at so many messages a second.
    pub fn at_rate(&self, messages_per_s: f64) -> f64 {
        messages_per_s * self.bytes as f64 / 1e9
    }

    /// Everything by name.
    pub fn fields(&self) -> Fields {
        let (found, setting) = (&self.summary, &self.plan.setting);
        let mut fields = vec![
            ("test", json!(self.test)),
            ("fabric", json!(setting.fabric())),
            ("size_bytes", json!(self.bytes)),
            ("samples", json!(self.messages)),
            ("min_ns", figure(found.min)),
            ("p50_ns", figure(found.p50)),
            ("p90_ns", figure(found.p90)),
            ("p99_ns", figure(found.p99)),
            ("p999_ns", figure(found.p999)),
            ("max_ns", figure(found.max)),
            ("mean_ns", figure(found.mean)),
            ("gb_per_s", figure(self.gb_per_s())),
            ("messages_per_s", json!(self.messages_per_s.round())),
        ];
        if self.test == Test::Bandwidth {
            fields.push(("spread", figure(self.spread())));
        }
        if self.plan.floor && setting.net.is_some() {
            let rate = self.floor.map(|floor| floor.messages_per_s);
            match self.test {
                Test::Latency => fields.push(("floor_p50_ns", figure_or_null(self.floor.map(|floor| floor.p50_ns)))),
                Test::Rate => fields.push(("floor_messages_per_s", json!(rate.map(f64::round)))),
                Test::Bandwidth => fields.push(("floor_gb_per_s", figure_or_null(rate.map(|rate| self.at_rate(rate))))),
            }
            fields.push(("ratio", figure_or_null(self.ratio())));
        } else if let Some(floor) = self.floor {
            match self.test {
                Test::Latency => fields.extend([
                    ("floor_p50_ns", figure(floor.p50_ns)),
                    ("floor_pipelined_p50_ns", figure_or_null(self.pipelined.map(|(p50_ns, _)| p50_ns))),
                    ("floor_pipelined_chunk_bytes", json!(self.pipelined.map(|(_, bytes)| bytes))),
                ]),
                Test::Rate => fields.extend([
                    ("floor_messages_per_s", json!(floor.messages_per_s.round())),
                    ("floor_gb_per_s", figure(self.at_rate(floor.messages_per_s))),
                ]),
                Test::Bandwidth => fields.extend([
                    ("floor_pulled_gb_per_s", figure_or_null(self.pulled_per_s.map(|rate| self.at_rate(rate)))),
                    ("floor_copied_gb_per_s", figure(self.at_rate(floor.messages_per_s))),
                ]),
            }
            fields.push(("ratio", figure_or_null(self.ratio())));
        }
        fields.extend([
            ("hop_ns", figure_or_null(self.hop_ns)),
            ("shared_core", json!(self.shared_core)),
            ("moved", json!(self.moved)),
            ("pairs", json!(self.plan.pairs)),
            ("put", json!(self.plan.put)),
            ("through", json!(if self.plan.shared { "node" } else { "peer" })),
            ("loan", json!(self.plan.loan)),
            ("touched", json!(self.plan.touched)),
            ("progress", json!(setting.progress)),
            ("wait", json!(setting.wait)),
        ]);
        if let Some(net) = &setting.net {
            let other = net.other.map(|other| other.to_string());
            fields.extend([("key", json!(net.key_file.is_some())), ("port", json!(net.port)), ("to", json!(other))]);
        } else if self.test != Test::Rate && !self.plan.put {
            fields.extend([("buffers", json!(self.plan.buffers)), ("copy", json!(self.plan.copy))]);
        }
        if self.test == Test::Bandwidth {
            fields.extend([("window", json!(self.plan.window)), ("both_ways", json!(self.plan.both_ways))]);
        }
        Fields(fields)
    }

    fn hgrm(&self) -> String {
        let histogram = self.samples.histogram();
        let mut text = format!("# {} {} {} bytes, ns\n", self.test.name(), self.plan.setting.fabric(), self.bytes);
        text.push_str("       Value     Percentile TotalCount 1/(1-Percentile)\n\n");
        let mut total = 0;
        for step in histogram.iter_quantiles(5) {
            total += step.count_since_last_iteration();
            let (value, share) = (step.value_iterated_to() as f64 * self.ns_per_unit, step.quantile_iterated_to());
            text.push_str(&format!("{value:12.3} {share:2.12} {total:10}"));
            text.push_str(&if share < 1.0 { format!(" {:14.2}\n", 1.0 / (1.0 - share)) } else { "\n".into() });
        }
        let (mean, deviation) = (histogram.mean() * self.ns_per_unit, histogram.stdev() * self.ns_per_unit);
        text.push_str(&format!("#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]\n"));
        text.push_str(&format!("#[Max     = {:12.3}, Total count    = {:12}]\n", self.summary.max, histogram.len()));
        let (buckets, per_bucket) =
            (histogram.buckets(), histogram.distinct_values() / (usize::from(histogram.buckets()) + 1) * 2);
        text.push_str(&format!("#[Buckets = {buckets:12}, SubBuckets     = {per_bucket:12}]\n"));
        text
    }
}

/// The least median over the floor in chunks, and the chunks that gave it.
fn best_chunks(outcome: &Outcome, leg: usize, ns_per_unit: f64) -> Option<(f64, usize)> {
    let mut all: BTreeMap<usize, Samples> = BTreeMap::new();
    for (bytes, recorded) in outcome.pairs.iter().flat_map(|pair| &pair[leg].chunked) {
        all.entry(*bytes).or_default().merge(&unpack(recorded));
    }
    let medians = all.iter().map(|(bytes, samples)| (samples.summary(ns_per_unit).p50, *bytes));
    medians.min_by(|(one, _), (other, _)| one.total_cmp(other))
}

fn merged(parts: &[Samples]) -> Samples {
    let mut all = Samples::new();
    parts.iter().for_each(|part| all.merge(part));
    all
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count)
}

/// Prints, and says on stderr what the reader should know before believing it.
pub fn print(format: Format, header: &Header, rows: &[Row]) {
    let text = match format {
        Format::Table => table::render(header, rows),
        Format::Json => lines(rows.iter().map(Row::fields)),
        Format::Csv => csv(rows.iter().map(Row::fields), "null"),
        Format::Hgrm => rows.iter().map(Row::hgrm).collect::<Vec<_>>().join("\n"),
    };
    // Who closed the pipe has seen enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    doubts(header, rows).into_iter().for_each(warn);
}

fn doubts(header: &Header, rows: &[Row]) -> Vec<String> {
    let mut doubts = Vec::new();
    if rows.iter().any(|row| row.shared_core) {
        doubts.push(
            "the two processors seemed to be threads of one core just then: these figures are not comparable with others".into(),
        );
    }
    for row in rows.iter().filter(|row| row.moved) {
        doubts.push(format!(
            "the processors moved while {} bytes were measured (a hop changed by more than {MOVED}): run it again",
            row.bytes
        ));
    }
    if let Some(why) = rows.iter().find_map(|row| row.refused.as_ref()) {
        doubts.push(format!(
            "the kernel does not copy between these processes (process_vm_readv: {why}): there is nothing to compare with"
        ));
    }
    let setting = &header.plan.setting;
    if setting.pin.is_empty() {
        doubts.push(FREE.into());
    }
    if setting.progress == Progress::Poller.to_string() && !setting.pin.is_empty() {
        doubts.push(
            "each process has a poller beside the thread that measures, pinned to the same processor: they take turns".into(),
        );
    }
    if header.floor && setting.crowded {
        doubts.push(
            "there are more processes than processors: the floor yields between looks, which is not the best one can do".into(),
        );
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::super::net::Net;
    use super::super::plan::{Copier, Finding, Leg, Place, pack};
    use super::*;
    use crate::experiment::setting::Setting;
    use doorbell_benches::clock::Clock;
    use serde_json::Value;

    fn plan(test: Test, pairs: usize, floor: bool) -> Plan {
        Plan {
            test,
            setting: Setting { progress: "adaptive".into(), wait: "auto".into(), pin: vec![0, 1], ..Setting::default() },
            pairs,
            legs: vec![Leg { bytes: 64, rounds: 2, warmup: 0, count: 100 }],
            floor,
            touched: true,
            shared: false,
            put: false,
            loan: false,
            mode: None,
            window: 8,
            both_ways: false,
            buffers: Place::Private,
            copy: Copier::Auto,
        }
    }

    fn samples(values: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut samples = Samples::new();
        values.iter().for_each(|(value, count)| samples.record_many(*value, *count));
        pack(&samples)
    }

    /// Each pair's driver takes 100, 200, … ticks of 2 ns, and the floor 80.
    fn outcome(pairs: usize, hops: &[(f64, bool)]) -> Outcome {
        let finding = |pair: usize| Finding {
            driver: samples(&[(100 * (pair as u64 + 1), 200)]),
            floor: samples(&[(80, 200)]),
            chunked: vec![(4096, samples(&[(70, 200)])), (8192, samples(&[(60, 200)])), (16_384, samples(&[(75, 200)]))],
            pulled: samples(&[(50, 200)]),
            refused: None,
            hops: if pair == 0 { hops.to_vec() } else { Vec::new() },
        };
        Outcome { pairs: (0..pairs).map(|pair| vec![finding(pair)]).collect(), clock: Clock { ns_per_tick: 2.0 } }
    }

    fn parsed(row: &Row) -> BTreeMap<String, Value> {
        serde_json::from_str(&lines([row.fields()])).unwrap()
    }

    const ALWAYS: [&str; 12] = [
        "test",
        "fabric",
        "size_bytes",
        "samples",
        "min_ns",
        "p50_ns",
        "p99_ns",
        "p999_ns",
        "max_ns",
        "mean_ns",
        "gb_per_s",
        "messages_per_s",
    ];

    #[test]
    fn a_latency_is_half_a_round_trip_and_its_ratio_that_of_the_medians() {
        let row = Row::latency(&plan(Test::Latency, 1, true), 0, &outcome(1, &[(50.0, false), (60.0, false)]));
        let found = parsed(&row);
        for name in ALWAYS.iter().chain(&["floor_p50_ns", "ratio", "hop_ns", "shared_core", "pairs"]) {
            assert!(found.contains_key(*name), "{name} is missing");
        }
        assert_eq!(found["test"], "latency");
        assert_eq!((&found["p50_ns"], &found["floor_p50_ns"]), (&json!(100.0), &json!(80.0)));
        assert_eq!((&found["ratio"], &found["hop_ns"]), (&json!(1.25), &json!(55.0)));
        assert_eq!((&found["messages_per_s"], &found["gb_per_s"]), (&json!(1e7), &json!(0.64)));
        assert_eq!(found["samples"], 200);
    }

    #[test]
    fn a_rate_counts_messages_and_its_ratio_is_that_of_the_rates() {
        let row = Row::rate(&plan(Test::Rate, 1, true), 0, &outcome(1, &[]));
        let found = parsed(&row);
        for name in ALWAYS.iter().chain(&["floor_messages_per_s", "floor_gb_per_s", "ratio", "hop_ns", "shared_core", "pairs"]) {
            assert!(found.contains_key(*name), "{name} is missing");
        }
        // A section of 100 messages takes 100 ticks of 2 ns.
        assert_eq!((&found["p50_ns"], &found["messages_per_s"]), (&json!(2.0), &json!(5e8)));
        assert_eq!((&found["ratio"], &found["hop_ns"], &found["samples"]), (&json!(0.8), &Value::Null, &json!(200)));
    }

    #[test]
    fn the_pipelined_floor_is_that_of_the_best_chunks() {
        let found = parsed(&Row::latency(&plan(Test::Latency, 2, true), 0, &outcome(2, &[])));
        assert_eq!((&found["floor_pipelined_p50_ns"], &found["floor_pipelined_chunk_bytes"]), (&json!(60.0), &json!(8192)));
    }

    #[test]
    fn a_bandwidth_is_compared_with_what_the_kernel_copies() {
        let one_way = plan(Test::Bandwidth, 1, true);
        let found = parsed(&Row::bandwidth(&one_way, 0, &outcome(1, &[])));
        // A section of 100 messages of 64 bytes takes 100 ticks of 2 ns, and 50 where they are pulled.
        assert_eq!((&found["gb_per_s"], &found["floor_pulled_gb_per_s"]), (&json!(32.0), &json!(64.0)));
        assert_eq!(
            (&found["floor_copied_gb_per_s"], &found["ratio"], &found["spread"]),
            (&json!(40.0), &json!(0.5), &json!(0.0))
        );
        let both_ways = Plan { both_ways: true, ..one_way.clone() };
        let found = parsed(&Row::bandwidth(&both_ways, 0, &outcome(1, &[])));
        assert_eq!((&found["gb_per_s"], &found["ratio"], &found["samples"]), (&json!(64.0), &json!(0.5), &json!(400)));

        let mut refused = outcome(1, &[]);
        refused.pairs[0][0] = Finding { pulled: Vec::new(), refused: Some("EPERM".into()), ..refused.pairs[0][0].clone() };
        let row = Row::bandwidth(&one_way, 0, &refused);
        let found = parsed(&row);
        assert_eq!((&found["floor_pulled_gb_per_s"], &found["ratio"]), (&Value::Null, &Value::Null));
        assert_eq!(found["floor_copied_gb_per_s"], json!(40.0));
        assert!(doubts(&Header::of(&one_way), &[row]).join("").contains("EPERM"));
    }

    #[test]
    fn over_the_network_all_is_compared_with_plain_sockets() {
        let net = || Some(Net { port: "auto".into(), ..Net::default() });
        let over_udp = |plan: Plan| Plan { setting: Setting { net: net(), ..plan.setting }, ..plan };
        let (latency, stream) = (over_udp(plan(Test::Latency, 1, true)), over_udp(plan(Test::Bandwidth, 1, true)));
        let found = parsed(&Row::latency(&latency, 0, &outcome(1, &[])));
        assert_eq!((&found["fabric"], &found["key"], &found["to"]), (&json!("udp"), &json!(false), &Value::Null));
        assert_eq!((&found["floor_p50_ns"], &found["ratio"]), (&json!(80.0), &json!(1.25)));
        assert!(!found.contains_key("buffers") && !found.contains_key("floor_pipelined_p50_ns"));
        let found = parsed(&Row::bandwidth(&stream, 0, &outcome(1, &[])));
        assert_eq!((&found["floor_gb_per_s"], &found["ratio"]), (&json!(40.0), &json!(0.8)));
        // Messages longer than a datagram have no floor of their own.
        let mut without = outcome(1, &[]);
        without.pairs[0][0].floor = Vec::new();
        let row = Row::latency(&latency, 0, &without);
        assert_eq!((&parsed(&row)["floor_p50_ns"], &parsed(&row)["ratio"]), (&Value::Null, &Value::Null));
        let text = table::render(&Header::of(&latency), &[row]);
        assert!(text.contains("over udp without a key") && text.contains("floor p50"), "{text}");
    }

    #[test]
    fn pairs_give_the_mean_and_percentiles_of_all() {
        let row = Row::latency(&plan(Test::Latency, 2, false), 0, &outcome(2, &[]));
        let found = parsed(&row);
        assert_eq!((&found["mean_ns"], &found["max_ns"], &found["pairs"]), (&json!(150.0), &json!(200.0), &json!(2)));
        assert!(!found.contains_key("ratio") && !found.contains_key("floor_p50_ns"));
    }

    #[test]
    fn csv_has_the_names_of_json() {
        let row = Row::latency(&plan(Test::Latency, 1, true), 0, &outcome(1, &[]));
        let text = csv([row.fields(), row.fields()], "null");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0].split(',').collect::<Vec<_>>(), row.fields().0.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        assert_eq!(lines[0].split(',').count(), lines[1].split(',').count());
        assert!(lines[1].starts_with("latency,shm,64,200,"));
    }

    #[test]
    fn a_percentile_distribution_ends_with_all_samples() {
        let text = Row::latency(&plan(Test::Latency, 2, false), 0, &outcome(2, &[])).hgrm();
        assert!(text.contains("Value     Percentile TotalCount 1/(1-Percentile)"));
        let last = text.lines().rfind(|line| !line.starts_with('#')).unwrap();
        assert_eq!(last.split_whitespace().collect::<Vec<_>>(), ["200.000", "1.000000000000", "400"]);
    }

    #[test]
    fn doubts_are_told() {
        let told =
            |plan: &Plan, hops: &[(f64, bool)]| doubts(&Header::of(plan), &[Row::latency(plan, 0, &outcome(1, hops))]).join("\n");
        let quiet = plan(Test::Latency, 1, true);
        assert_eq!(told(&quiet, &[(50.0, false), (60.0, false)]), "");
        assert!(told(&quiet, &[(24.0, true), (24.0, false)]).contains("threads of one core"));
        assert!(told(&quiet, &[(50.0, false), (245.0, false)]).contains("moved"));
        let told = |setting: Setting| told(&Plan { setting, ..quiet.clone() }, &[]);
        let setting = || quiet.setting.clone();
        assert!(told(Setting { pin: Vec::new(), ..setting() }).contains("--pin"));
        assert!(told(Setting { progress: "poller".into(), ..setting() }).contains("poller"));
        assert!(told(Setting { crowded: true, ..setting() }).contains("more processes than processors"));
    }
}
