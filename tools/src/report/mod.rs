//! `doorbell report`: this machine and the figures of Doorbell on it, as one page that needs no other file.
//!
//! [`machine`] asks the system. The experiments of [`measure`](crate::measure) give rows, [`ends`] looks at one long message, and [`page`] shows
//! all of that.

mod ends;
mod machine;
mod page;

use crate::exit::{Explain, Failure, warn};
use crate::experiment::Setting;
use crate::measure::report::{Row, doubts};
use crate::measure::{Leg, Place, Plan, Test, bandwidth, latency, pairs, rate, stream_leg, time, usual_stream};
use crate::nodes::short;
use crate::paths::{self, Output};
use crate::processes::EndRequest;
use crate::text::{FormArgs, bar, distinct};
use ends::Ends;
use machine::Machine;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Write a page about this machine and what Doorbell does on it
///
/// Measures latency, messages a second and bandwidth beside the best that this machine can do, and writes an HTML page with charts, the
/// properties of the machine, and what makes the figures doubtful. The page loads nothing, so people can send it to each other.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/report.txt"))]
pub struct ReportArgs {
    /// The page to write
    #[arg(value_name = "PAGE.html")]
    page: PathBuf,
    /// Measure for a few seconds only
    #[arg(long)]
    quick: bool,
    /// Processors for the two processes
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Replace a file that is no page of this command
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    form: FormArgs,
}

/// The measurements of a kind, with a row for each size.
struct Part {
    plan: Plan,
    rows: Vec<Row>,
}

/// Everything that the page shows.
struct Report {
    machine: Machine,
    quick: bool,
    latency: Part,
    rate: Part,
    bandwidth: Part,
    ends: Ends,
}

const LATENCY_SIZES: [usize; 7] = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20];
const RATE_SIZES: [usize; 4] = [8, 64, 512, 4 << 10];
const BANDWIDTH_SIZES: [usize; 7] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Messages under way at once for a bandwidth.
const WINDOW: usize = 8;
/// A quick report measures this part of the messages: few enough that it ends soon where an exchange takes a time slice, since other
/// programs use the processors.
const QUICKER: u64 = 200;
/// The first bytes of a page, which have its mark.
const HEAD_BYTES: u64 = 1024;

/// Measures and writes the page.
pub fn run(args: &ReportArgs) -> Result<(), Failure> {
    let output = output(args)?;
    let setting = Setting::new("report", None, &args.pin, 2)?;
    let machine = Machine::look();
    let report = measure(setting, machine, args.quick)?;
    let page = page::whole(&report);
    let place = output.path().display();
    output.write(page.as_bytes()).or_failed(format_args!("cannot write {place}"), "see whether there is room")?;
    let rows = report.parts().into_iter().flat_map(|part| &part.rows).map(Row::fields);
    args.form.print(|| report.summary() + &format!("{place} has the whole report\n"), rows);
    report.warnings().into_iter().for_each(warn);
    Ok(())
}

/// The place of the page. A mistake is reported before the measurement.
fn output(args: &ReportArgs) -> Result<Output, Failure> {
    let what = format!("cannot write {}", args.page.display());
    let output = Output::at(&args.page).or_usage(&what, "name a regular file, or a new one in a directory of yours")?;
    if !args.force && args.page.exists() && !is_report(&args.page).or_usage(&what, "name another file")? {
        let why = format!("{what}: a file is there that is no page of `doorbell report`");
        return Err(Failure::usage(why, "name another file, or replace that one with --force"));
    }
    Ok(output)
}

/// Whether a file has the mark of such a page.
fn is_report(path: &Path) -> std::io::Result<bool> {
    let mut head = Vec::new();
    paths::open(path)?.take(HEAD_BYTES).read_to_end(&mut head)?;
    let mark = format!("<meta name=\"generator\" content=\"{}", page::MARK);
    Ok(head.windows(mark.len()).any(|part| part == mark.as_bytes()))
}

fn measure(setting: Setting, machine: Machine, quick: bool) -> Result<Report, Failure> {
    let request = EndRequest::listen()?;
    let quicker = if quick { QUICKER } else { 1 };
    let bar = bar(4, "{pos} of {len}: {msg}");
    let part = |test: Test, what: &'static str, sizes: &[usize], leg: &dyn Fn(usize) -> Leg| {
        bar.set_message(what);
        let legs = sizes.iter().map(|bytes| leg(*bytes)).collect();
        let plan = Plan { floor: true, ..Plan::new(test, setting.clone(), legs) };
        let buffers = if test == Test::Rate { plan.buffers } else { Place::Registered };
        let plan = Plan { buffers, window: if test == Test::Bandwidth { WINDOW } else { 1 }, ..plan };
        let outcome = pairs::carry_out(&plan)?;
        // A signal may have come while no worker was running.
        request.check()?;
        bar.inc(1);
        let rows = (0..plan.legs.len()).map(|leg| Row::new(&plan, leg, &outcome)).collect();
        Ok::<_, Failure>(Part { plan, rows })
    };
    let fewer = |usual: u64| (usual / quicker).max(100) as usize;
    let stream = |most| move |bytes| stream_leg(bytes, fewer(usual_stream(bytes, most)));
    let latency =
        part(Test::Latency, "latency", &LATENCY_SIZES, &|bytes| latency::leg(bytes, fewer(latency::usual(bytes)), None))?;
    let rate = part(Test::Rate, "messages a second", &RATE_SIZES, &stream(rate::MESSAGES))?;
    let bandwidth = part(Test::Bandwidth, "bandwidth", &BANDWIDTH_SIZES, &stream(bandwidth::MESSAGES))?;
    bar.set_message("a long message");
    let ends = ends::look(&setting);
    request.check()?;
    bar.finish_and_clear();
    Ok(Report { machine, quick, latency, rate, bandwidth, ends })
}

impl Report {
    fn parts(&self) -> [&Part; 3] {
        [&self.latency, &self.rate, &self.bandwidth]
    }

    /// What makes the figures doubtful, each sentence once.
    fn warnings(&self) -> Vec<String> {
        let mut all = self.machine.warnings.clone();
        all.extend(self.parts().into_iter().flat_map(|part| doubts(&part.plan, &part.rows)));
        all.extend(self.ends.trouble.clone());
        let words: Vec<&str> = distinct(all.iter().map(String::as_str));
        words.into_iter().map(str::to_owned).collect()
    }

    /// The row of the fastest stream of bytes.
    fn widest(&self) -> Option<&Row> {
        let rate = |row: &Row| row.at_rate(row.messages_per_s);
        self.bandwidth.rows.iter().max_by(|one, other| rate(one).total_cmp(&rate(other)))
    }

    /// How far apart the processors were at least and at most, in nanoseconds.
    fn hop(&self) -> Option<(f64, f64)> {
        let hops = self.parts().into_iter().flat_map(|part| &part.rows).filter_map(|row| row.hop_ns);
        hops.fold(None, |found, ns| Some(found.map_or((ns, ns), |(low, high): (f64, f64)| (low.min(ns), high.max(ns)))))
    }

    /// The chief figures, each in a line.
    fn summary(&self) -> String {
        let figures = self.figures().into_iter();
        figures.map(|figure| format!("{:<19} {:>11}  {}\n", figure.name, figure.value, figure.about)).collect()
    }

    /// The chief figures.
    fn figures(&self) -> Vec<Figure> {
        let mut all = Vec::new();
        let mut add = |name, value: String, about: String| all.push(Figure { name, value, about });
        if let Some(row) = self.latency.rows.first() {
            let size = crate::text::bytes(row.bytes as u64);
            add("latency", time(row.summary.p50), format!("{size} one way; p99 {}", time(row.summary.p99)));
            if let (Some(floor), Some(ratio)) = (row.floor, row.ratio()) {
                add("floor", time(floor.p50_ns), format!("the best here; Doorbell takes {ratio:.2} times as long"));
            }
        }
        match self.hop() {
            Some((low, high)) => add("hop", time(low), format!("a cache line between the processors; {} at most", time(high))),
            // A probe gives no figure while other programs keep a process from running.
            None => add("hop", "?".into(), "not measured: the machine was busy".into()),
        }
        if let Some(row) = self.rate.rows.first() {
            let size = crate::text::bytes(row.bytes as u64);
            add("messages a second", short(row.messages_per_s), format!("of {size}, one by one, one way"));
        }
        if let Some(row) = self.widest() {
            let (rate, size) = (row.at_rate(row.messages_per_s), crate::text::bytes(row.bytes as u64));
            add("bandwidth", format!("{rate:.2} GB/s"), format!("messages of {size}, {WINDOW} under way, one way"));
        }
        all
    }
}

/// A chief figure.
struct Figure {
    name: &'static str,
    value: String,
    about: String,
}
