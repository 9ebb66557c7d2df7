//! The figures of a measurement, and the forms in which they are printed.

use super::{Finding, Outcome, Plan, Size, Test, bars};
use crate::exit::warn;
use crate::experiment::report::render;
use crate::experiment::{FREE, Field, Fields};
use crate::text::{Format, print as write, word};
use doorbell::Progress;
use doorbell_benches::{Samples, Summary};
use std::collections::BTreeMap;

/// Processors have moved if their distance changed by more than this factor.
const MOVED: f64 = 1.5;

/// A sentence about all rows.
pub fn title(plan: &Plan) -> String {
    let what = match plan.test {
        Test::Latency if plan.put => "One-way latency of puts into each other's regions (half a round trip)".into(),
        Test::Latency => "One-way latency (half a round trip)".into(),
        Test::Rate if plan.put => "Puts into the other's region, without notification,".into(),
        Test::Rate if plan.batch > 1 => format!("Messages one way, {} by one call,", plan.batch),
        Test::Rate => "Messages one way".into(),
        Test::Bandwidth => {
            let ways = if plan.both_ways { "Bytes both ways at once, their sum" } else { "Bytes one way" };
            format!("{ways}, {} messages under way", plan.window)
        }
    };
    let loan = if plan.loan { "on loan " } else { "" };
    let net = plan.setting.net.as_ref().map_or_else(String::new, |net| {
        let to = net.other.as_ref().map_or_else(String::new, |other| format!(" to {other}"));
        format!(" {}{to}", net.security())
    });
    let through = if plan.shared { "node shared by threads" } else { "peer" };
    let touched = match (plan.touched, plan.put && plan.test == Test::Rate) {
        (false, _) => "left alone",
        (true, true) => "written",
        (true, false) => "written and read",
    };
    let (fabric, how) = (plan.setting.fabric(), plan.setting.how());
    let pairs = if plan.pairs > 1 { format!("; {} pairs at once, figures for one of them", plan.pairs) } else { String::new() };
    format!("{what} {loan}over {fabric}{net}, through a {through}, {how}; every line is {touched}{pairs}.")
}

/// The figures for messages of one size.
#[derive(Clone, Debug)]
pub struct Row {
    /// The plan of the measurement.
    plan: Plan,
    /// Bytes of a message.
    pub bytes: usize,
    /// Messages that counted; for a latency, round trips.
    pub messages: u64,
    /// The samples of all pairs.
    pub samples: Samples,
    /// Nanoseconds a message in a unit of the samples.
    pub ns_per_unit: f64,
    /// The summary of the samples.
    pub summary: Summary,
    /// Messages a second between the processes of one pair.
    pub messages_per_s: f64,
    /// The same over the floor, if that was measured.
    pub floor: Option<FloorFigures>,
    /// The median over the floor in the best chunks, in nanoseconds, and the bytes of these chunks; for a latency of long messages.
    pub pipelined: Option<(f64, usize)>,
    /// Messages a second by one copy of the kernel, for a bandwidth.
    pub pulled_per_s: Option<f64>,
    /// Why the kernel made no such copy.
    pub refused: Option<String>,
    /// How far apart the processors of the first pair were, if they are two.
    pub hop_ns: Option<f64>,
    /// Whether the processors seemed to be threads of one core.
    pub shared_core: bool,
    /// Whether the processors moved meanwhile.
    pub moved: bool,
}

/// The figures of the machine's floor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FloorFigures {
    /// The median.
    pub p50_ns: f64,
    /// Messages a second between the processes of one pair.
    pub messages_per_s: f64,
}

impl Row {
    /// The row of a leg, from the findings of all pairs.
    pub fn new(plan: &Plan, leg: usize, outcome: &Outcome) -> Self {
        let ways = if plan.both_ways { 2 } else { 1 };
        let part = if plan.test == Test::Latency { 2.0 } else { plan.legs[leg].count as f64 };
        let ns_per_unit = outcome.clock.ns_per_tick / part;
        let findings = || outcome.pairs.iter().map(|pair| &pair[leg]);
        let merged = |of: fn(&Finding) -> &Samples| {
            findings().map(of).fold(Samples::new(), |mut all, part| {
                all.merge(part);
                all
            })
        };
        let rate = |of: fn(&Finding) -> &Samples| {
            let summaries = findings().map(|finding| of(finding).summary(ns_per_unit));
            match plan.test {
                Test::Latency => 1e9 / mean(summaries.map(|found| found.mean)),
                _ => mean(summaries.map(|found| f64::from(ways) * 1e9 / found.p50)),
            }
        };
        let refused = findings().find_map(|finding| finding.refused.clone());
        let is_pulled = plan.test == Test::Bandwidth && plan.floor && plan.setting.net.is_none() && refused.is_none();
        let hops: Vec<(f64, bool)> = findings().flat_map(|finding| finding.hops.iter().copied()).collect();
        let (nearest, farthest) = hops.iter().fold((f64::MAX, 0.0_f64), |(low, high), (ns, _)| (low.min(*ns), high.max(*ns)));
        let (samples, floor) = (merged(|finding| &finding.driver), merged(|finding| &finding.floor));
        let floor = (plan.floor && floor.count() > 0).then(|| floor.summary(ns_per_unit).p50);
        Self {
            bytes: plan.legs[leg].bytes,
            messages: (plan.legs[leg].rounds * plan.legs[leg].count * ways as usize * plan.pairs) as u64,
            summary: samples.summary(ns_per_unit),
            samples,
            ns_per_unit,
            messages_per_s: rate(|finding| &finding.driver),
            floor: floor.map(|p50_ns| FloorFigures { p50_ns, messages_per_s: rate(|finding| &finding.floor) }),
            pipelined: if plan.test == Test::Latency { best_chunks(outcome, leg, ns_per_unit) } else { None },
            pulled_per_s: is_pulled.then(|| rate(|finding| &finding.pulled)),
            refused,
            hop_ns: (!hops.is_empty()).then(|| mean(hops.iter().map(|(ns, _)| *ns))),
            shared_core: hops.iter().any(|(_, shared)| *shared),
            moved: farthest > MOVED * nearest,
            plan: plan.clone(),
        }
    }

    /// How far the fastest and the slowest tenth of the samples are apart, as a share of the median.
    pub fn spread(&self) -> f64 {
        let spread = self.samples.spread();
        (spread.quantile(0.9) - spread.quantile(0.1)) / spread.quantile(0.5)
    }

    /// The driver over the floor: the ratio of medians for a latency, of messages a second for a rate. A bandwidth is compared with the copy of
    /// the kernel.
    pub fn ratio(&self) -> Option<f64> {
        let floor_per_s = self.floor.map(|floor| floor.messages_per_s);
        match self.plan.test {
            Test::Latency => self.floor.map(|floor| self.summary.p50 / floor.p50_ns),
            Test::Bandwidth if self.plan.setting.net.is_none() => self.pulled_per_s.map(|over| self.messages_per_s / over),
            _ => floor_per_s.map(|over| self.messages_per_s / over),
        }
    }

    /// Bytes in a nanosecond at this rate.
    pub fn at_rate(&self, messages_per_s: f64) -> f64 {
        messages_per_s * self.bytes as f64 / 1e9
    }

    /// The fields of the row.
    pub fn fields(&self) -> Fields {
        let (plan, found, setting) = (&self.plan, &self.summary, &self.plan.setting);
        let counted = if plan.test == Test::Latency { ">samples" } else { ">messages" };
        let gb_per_s = |name, rate: Option<f64>| Field::figure(name, rate.map(|rate| self.at_rate(rate)), 2);
        let a_second = |name, rate: Option<f64>| {
            let millions = rate.map(|rate| format!("{:.2}", rate / 1e6));
            Field::of(name, rate.map(f64::round)).text(millions.unwrap_or_default())
        };
        let rates = [a_second("messages_per_s", Some(self.messages_per_s)), gb_per_s("gb_per_s", Some(self.messages_per_s))];
        let rates = match (plan.test, rates) {
            (Test::Latency, rates) => rates,
            (Test::Rate, [messages, bytes]) => [messages.under(">M/s"), bytes.under(">GB/s")],
            (Test::Bandwidth, [messages, bytes]) => [messages, bytes.under(">GB/s")],
        };
        let times = [
            ("min_ns", found.min, ">min", ">fastest"),
            ("p50_ns", found.p50, ">p50", ">ns each"),
            ("p90_ns", found.p90, ">p90", ""),
            ("p99_ns", found.p99, ">p99", ""),
            ("p999_ns", found.p999, ">p99.9", ""),
            ("max_ns", found.max, ">max", ">slowest"),
            ("mean_ns", found.mean, ">mean", ""),
        ];
        let times = times.map(|(name, ns, of_latency, of_rate)| match plan.test {
            Test::Latency => Field::ns(name, ns).under(of_latency),
            Test::Rate if !of_rate.is_empty() => Field::figure(name, ns, 1).under(of_rate),
            _ => Field::ns(name, ns),
        });
        let mut fields = vec![
            Field::of("test", plan.test),
            Field::of("fabric", setting.fabric()),
            Field::bytes("size_bytes", self.bytes).under(">size"),
            Field::of("samples", self.messages).under(counted),
        ];
        fields.extend(rates.into_iter().chain(times));
        if plan.test == Test::Bandwidth {
            let percent = format!("{:.0} %", 100.0 * self.spread());
            fields.push(Field::figure("spread", self.spread(), 2).text(percent).under(">spread"));
        }
        if plan.floor && (setting.net.is_some() || self.floor.is_some()) {
            let (p50_ns, rate) = (self.floor.map(|floor| floor.p50_ns), self.floor.map(|floor| floor.messages_per_s));
            let ratio = Field::figure("ratio", self.ratio(), 2).under(">ratio");
            let floor = match (plan.test, &setting.net) {
                (Test::Latency, Some(_)) => vec![Field::ns("floor_p50_ns", p50_ns).under(">floor p50"), ratio],
                (Test::Latency, None) => vec![
                    Field::ns("floor_p50_ns", p50_ns).under(">floor p50"),
                    ratio,
                    Field::ns("floor_pipelined_p50_ns", self.pipelined.map(|(p50_ns, _)| p50_ns)).under(">pipelined"),
                    Field::of("floor_pipelined_chunk_bytes", self.pipelined.map(|(_, bytes)| bytes)),
                ],
                (Test::Rate, Some(_)) => vec![a_second("floor_messages_per_s", rate).under(">floor M/s"), ratio],
                (Test::Rate, None) => {
                    vec![a_second("floor_messages_per_s", rate).under(">floor M/s"), ratio, gb_per_s("floor_gb_per_s", rate)]
                }
                (Test::Bandwidth, Some(_)) => vec![gb_per_s("floor_gb_per_s", rate).under(">floor"), ratio],
                (Test::Bandwidth, None) => vec![
                    gb_per_s("floor_pulled_gb_per_s", self.pulled_per_s).under(">pulled"),
                    ratio,
                    gb_per_s("floor_copied_gb_per_s", rate).under(">copied"),
                ],
            };
            fields.extend(floor.into_iter().map(|field| field.or("-")));
        }
        fields.extend([
            Field::ns("hop_ns", self.hop_ns).or("?").under(">hop"),
            Field::of("shared_core", self.shared_core),
            Field::of("moved", self.moved),
            Field::of("pairs", plan.pairs),
            Field::of("put", plan.put),
            Field::of("through", if plan.shared { "node" } else { "peer" }),
            Field::of("loan", plan.loan),
            Field::of("batch", plan.batch),
            Field::of("touched", plan.touched),
        ]);
        fields.extend(setting.fields());
        if let Some(net) = &setting.net {
            fields.extend(net.fields().into_iter().chain([Field::of("to", net.other.clone())]));
        } else if plan.test != Test::Rate && !plan.put {
            fields.extend([Field::of("buffers", plan.buffers), Field::of("copy", plan.copy.to_string())]);
        }
        if plan.test == Test::Bandwidth {
            fields.extend([Field::of("window", plan.window), Field::of("both_ways", plan.both_ways)]);
        }
        Fields(fields)
    }

    fn hgrm(&self) -> String {
        let histogram = self.samples.histogram();
        let mut text = format!("# {} {} {} bytes, ns\n", word(&self.plan.test), self.plan.setting.fabric(), self.bytes);
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

/// The least median over the floor in chunks, and the bytes of these chunks.
fn best_chunks(outcome: &Outcome, leg: usize, ns_per_unit: f64) -> Option<(f64, usize)> {
    let mut all: BTreeMap<usize, Samples> = BTreeMap::new();
    for (bytes, recorded) in outcome.pairs.iter().flat_map(|pair| &pair[leg].chunked) {
        all.entry(*bytes).or_default().merge(recorded);
    }
    let medians = all.iter().map(|(bytes, samples)| (samples.summary(ns_per_unit).p50, *bytes));
    medians.min_by(|(one, _), (other, _)| one.total_cmp(other))
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count)
}

/// Prints the rows, and warns on stderr of what makes the figures doubtful.
pub fn print(format: Format, plan: &Plan, rows: &[Row]) {
    write(&match format {
        Format::Hgrm => rows.iter().map(Row::hgrm).collect::<Vec<_>>().join("\n"),
        format => text(format, plan, rows),
    });
    doubts(plan, rows).into_iter().for_each(warn);
}

/// The rows in this form. For people, a table of latencies has their distribution below.
fn text(format: Format, plan: &Plan, rows: &[Row]) -> String {
    let mut text = render(format, &title(plan), &rows.iter().map(Row::fields).collect::<Vec<_>>());
    if plan.test == Test::Latency && format == Format::Table {
        for row in rows {
            let bars = bars::draw(&row.samples, row.ns_per_unit).into_iter().map(|line| format!("  {line}\n"));
            text += &format!("\n{}\n{}", Size(row.bytes), bars.collect::<String>());
        }
    }
    text
}

/// What makes the figures doubtful.
pub fn doubts(plan: &Plan, rows: &[Row]) -> Vec<String> {
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
    let setting = &plan.setting;
    if setting.pin.is_empty() {
        doubts.push(FREE.into());
    }
    if setting.progress == Progress::Poller && !setting.pin.is_empty() {
        doubts.push(
            "each process has a poller beside the thread that measures, pinned to the same processor: they take turns".into(),
        );
    }
    if plan.floor && setting.crowded {
        doubts.push("there are more processes than processors: the floor yields between looks, so it is not at its best".into());
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Setting;
    use crate::measure::{Leg, Net};
    use crate::text::lines;
    use doorbell_benches::Clock;
    use serde_json::{Value, json};

    fn plan(test: Test, pairs: usize, floor: bool) -> Plan {
        let setting = Setting { pin: vec![0, 1], ..Setting::default() };
        let legs = vec![Leg { bytes: 64, rounds: 2, warmup: 0, count: 100 }];
        Plan { pairs, floor, window: 8, ..Plan::new(test, setting, legs) }
    }

    fn samples(values: &[(u64, u64)]) -> Samples {
        values.to_vec().into()
    }

    /// Each pair's driver takes 100, 200, … ticks of 2 ns, and the floor 80.
    fn outcome(pairs: usize, hops: &[(f64, bool)]) -> Outcome {
        let finding = |pair: usize| Finding {
            driver: samples(&[(100 * (pair as u64 + 1), 200)]),
            floor: samples(&[(80, 200)]),
            chunked: [(4096, 70), (8192, 60), (16_384, 75)].map(|(bytes, ticks)| (bytes, samples(&[(ticks, 200)]))).into(),
            pulled: samples(&[(50, 200)]),
            refused: None,
            busy: std::time::Duration::ZERO,
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
        let row = Row::new(&plan(Test::Latency, 1, true), 0, &outcome(1, &[(50.0, false), (60.0, false)]));
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
        let row = Row::new(&plan(Test::Rate, 1, true), 0, &outcome(1, &[]));
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
        let found = parsed(&Row::new(&plan(Test::Latency, 2, true), 0, &outcome(2, &[])));
        assert_eq!((&found["floor_pipelined_p50_ns"], &found["floor_pipelined_chunk_bytes"]), (&json!(60.0), &json!(8192)));
    }

    #[test]
    fn a_bandwidth_is_compared_with_what_the_kernel_copies() {
        let one_way = plan(Test::Bandwidth, 1, true);
        let found = parsed(&Row::new(&one_way, 0, &outcome(1, &[])));
        // A section of 100 messages of 64 bytes takes 100 ticks of 2 ns, and 50 where they are pulled.
        assert_eq!((&found["gb_per_s"], &found["floor_pulled_gb_per_s"]), (&json!(32.0), &json!(64.0)));
        assert_eq!(
            (&found["floor_copied_gb_per_s"], &found["ratio"], &found["spread"]),
            (&json!(40.0), &json!(0.5), &json!(0.0))
        );
        let both_ways = Plan { both_ways: true, ..one_way.clone() };
        let found = parsed(&Row::new(&both_ways, 0, &outcome(1, &[])));
        assert_eq!((&found["gb_per_s"], &found["ratio"], &found["samples"]), (&json!(64.0), &json!(0.5), &json!(400)));

        let mut refused = outcome(1, &[]);
        refused.pairs[0][0] = Finding { pulled: Samples::new(), refused: Some("EPERM".into()), ..refused.pairs[0][0].clone() };
        let row = Row::new(&one_way, 0, &refused);
        let found = parsed(&row);
        assert_eq!((&found["floor_pulled_gb_per_s"], &found["ratio"]), (&Value::Null, &Value::Null));
        assert_eq!(found["floor_copied_gb_per_s"], json!(40.0));
        assert!(doubts(&one_way, &[row]).join("").contains("EPERM"));
    }

    #[test]
    fn over_the_network_all_is_compared_with_plain_sockets() {
        let net = || Some(Net::default());
        let over_udp = |plan: Plan| Plan { setting: Setting { net: net(), ..plan.setting }, ..plan };
        let (latency, stream) = (over_udp(plan(Test::Latency, 1, true)), over_udp(plan(Test::Bandwidth, 1, true)));
        let found = parsed(&Row::new(&latency, 0, &outcome(1, &[])));
        assert_eq!((&found["fabric"], &found["key"], &found["to"]), (&json!("udp"), &json!(false), &Value::Null));
        assert_eq!((&found["floor_p50_ns"], &found["ratio"]), (&json!(80.0), &json!(1.25)));
        assert!(!found.contains_key("buffers") && !found.contains_key("floor_pipelined_p50_ns"));
        let found = parsed(&Row::new(&stream, 0, &outcome(1, &[])));
        assert_eq!((&found["floor_gb_per_s"], &found["ratio"]), (&json!(40.0), &json!(0.8)));
        // Messages longer than a datagram have no floor of their own.
        let mut without = outcome(1, &[]);
        without.pairs[0][0].floor = Samples::new();
        let row = Row::new(&latency, 0, &without);
        assert_eq!((&parsed(&row)["floor_p50_ns"], &parsed(&row)["ratio"]), (&Value::Null, &Value::Null));
        let text = text(Format::Table, &latency, &[row]);
        assert!(text.contains("over udp without a key") && text.contains("floor p50"), "{text}");
    }

    #[test]
    fn pairs_give_the_mean_and_percentiles_of_all() {
        let row = Row::new(&plan(Test::Latency, 2, false), 0, &outcome(2, &[]));
        let found = parsed(&row);
        assert_eq!((&found["mean_ns"], &found["max_ns"], &found["pairs"]), (&json!(150.0), &json!(200.0), &json!(2)));
        assert!(!found.contains_key("ratio") && !found.contains_key("floor_p50_ns"));
    }

    #[test]
    fn csv_has_the_names_of_json() {
        let row = Row::new(&plan(Test::Latency, 1, true), 0, &outcome(1, &[]));
        let text = render(Format::Csv, "", &[row.fields(), row.fields()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0].split(',').collect::<Vec<_>>(), row.fields().0.iter().map(|field| field.name).collect::<Vec<_>>());
        assert_eq!(lines[0].split(',').count(), lines[1].split(',').count());
        assert!(lines[1].starts_with("latency,shm,64,200,"));
    }

    #[test]
    fn a_percentile_distribution_ends_with_all_samples() {
        let text = Row::new(&plan(Test::Latency, 2, false), 0, &outcome(2, &[])).hgrm();
        assert!(text.contains("Value     Percentile TotalCount 1/(1-Percentile)"));
        let last = text.lines().rfind(|line| !line.starts_with('#')).unwrap();
        assert_eq!(last.split_whitespace().collect::<Vec<_>>(), ["200.000", "1.000000000000", "400"]);
    }

    #[test]
    fn doubts_are_told() {
        let told = |plan: &Plan, hops: &[(f64, bool)]| doubts(plan, &[Row::new(plan, 0, &outcome(1, hops))]).join("\n");
        let quiet = plan(Test::Latency, 1, true);
        assert_eq!(told(&quiet, &[(50.0, false), (60.0, false)]), "");
        assert!(told(&quiet, &[(24.0, true), (24.0, false)]).contains("threads of one core"));
        assert!(told(&quiet, &[(50.0, false), (245.0, false)]).contains("moved"));
        let told = |setting: Setting| told(&Plan { setting, ..quiet.clone() }, &[]);
        let setting = || quiet.setting.clone();
        assert!(told(Setting { pin: Vec::new(), ..setting() }).contains("--pin"));
        assert!(told(Setting { progress: Progress::Poller, ..setting() }).contains("poller"));
        assert!(told(Setting { crowded: true, ..setting() }).contains("more processes than processors"));
    }
}
