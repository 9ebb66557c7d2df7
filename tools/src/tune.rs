//! `doorbell tune`: finds the length from which on messages are faster by DMA on this machine, and keeps it for programs that ask for it.

use crate::exit::{Explain, Failure, warn};
use crate::experiment::report;
use crate::experiment::{FREE, Field, Fields, Setting};
use crate::measure::{Leg, Place, Plan, Size, Test, pairs};
use crate::paths::{self, Output};
use crate::processes::EndRequest;
use crate::text::{FormArgs, bar, counted, median, word};
use doorbell::mode::{Dma, Fabric};
use doorbell_engine::tune::{Found, Machine, Tune};
use serde_json::{Value, json};
use std::path::Path;

/// Measure the length from which on messages are faster by DMA here, and keep it
///
/// Two processes send messages of each size and memory back and forth, by both ways in turns: through the lane (`transfer`), where
/// both processors copy, and by DMA, where each byte is copied once. The command keeps the length in a file. A policy made with
/// `Thresholds::tuned()` reads that file. Other programs are not affected.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../help/tune.txt"))]
pub struct TuneArgs {
    /// The two processors on which the processes run
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',', num_args = 1..=2)]
    pin: Vec<usize>,
    /// How often each size is measured by each way
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Keep nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    form: FormArgs,
}

const SHORTEST: usize = 4 << 10;
const LONGEST: usize = 4 << 20;
/// The most bytes of a size in a round, one way.
const ROUND_BYTES: usize = 32 << 20;
/// DMA has to save this part of the time of all sizes together. Less counts as noise.
const GAIN: f64 = 0.03;
/// A ratio whose logarithm is larger than this counts as this.
const CLEAR: f64 = 0.5;
const PLACES: [Place; 2] = [Place::Private, Place::Registered];

/// The way of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Transfer,
    Dma,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Transfer => "transfer",
            Way::Dma => "DMA",
        }
    }

    fn mode(self) -> &'static str {
        match self {
            Way::Transfer => "shm/transfer",
            Way::Dma => "shm/both",
        }
    }
}

/// The figures of a size: nanoseconds by each way, for each round.
#[derive(Clone, Debug)]
struct Row {
    place: Place,
    bytes: usize,
    transfer: Vec<f64>,
    dma: Vec<f64>,
}

impl Row {
    fn fields(&self) -> Fields {
        let faster = self.ratio().map(|ratio| {
            let (way, times) = if ratio < 1.0 { (Way::Dma, 1.0 / ratio) } else { (Way::Transfer, ratio) };
            format!("{} ({times:.2} times)", way.name())
        });
        let of = |name, times: &[f64]| Field::ns(name, median(times.iter().copied())).or("-");
        Fields(vec![
            Field::of("memory", self.place).under("memory"),
            Field::bytes("size_bytes", self.bytes).under(">size"),
            of("transfer_ns", &self.transfer).under(">transfer"),
            of("dma_ns", &self.dma).under(">DMA"),
            Field::of("ratio", self.ratio()).text(faster.unwrap_or_default()).under("faster"),
        ])
    }

    /// How many times as long as a transfer a DMA takes. Both figures of a round were measured right after each other.
    fn ratio(&self) -> Option<f64> {
        median(self.transfer.iter().zip(&self.dma).map(|(transfer, dma)| dma / transfer))
    }
}

/// Measures, prints, and keeps the length.
pub fn run(args: &TuneArgs) -> Result<(), Failure> {
    let output = if args.dry_run { None } else { Some(output()?) };
    let path = output.as_ref().map(Output::path);
    let rows = measure(args)?;
    let found = PLACES.into_iter().filter_map(|place| {
        let compared: Vec<_> =
            rows.iter().filter(|row| row.place == place).filter_map(|row| Some((row.bytes, row.ratio()?))).collect();
        let in_region = place == Place::Registered;
        (!compared.is_empty()).then(|| Found { fabric: Fabric::Shm, in_region, dma: threshold(&compared) })
    });
    let tune = Tune { machine: Machine::this(), found: found.collect() };
    if let Some(output) = &output {
        let text = serde_json::to_string_pretty(&tune).map_err(std::io::Error::from);
        let hint = "the figures are lost: see --dry-run, or name another file with DOORBELL_TUNE";
        let written = text.and_then(|text| output.write((text + "\n").as_bytes()));
        written.or_failed(format_args!("could not write {}", output.path().display()), hint)?;
    }
    args.form.print(|| table(&rows, &tune, path, args.rounds), objects(&rows, &tune, path));
    if args.pin.is_empty() {
        warn(FREE);
    }
    Ok(())
}

/// The file that keeps the length. A mistake is reported before the measurement.
fn output() -> Result<Output, Failure> {
    let path = Tune::path().ok_or_else(|| {
        let what = "there is no file to keep it in: DOORBELL_TUNE is `off`, or neither XDG_CACHE_HOME nor HOME is a directory";
        Failure::usage(what, "only look with --dry-run, or name a file with DOORBELL_TUNE=FILE")
    })?;
    let hint = "only look with --dry-run, or name a regular file with DOORBELL_TUNE=FILE";
    let output = std::fs::create_dir_all(paths::directory(&path)).and_then(|()| Output::at(&path));
    output.or_usage(format_args!("cannot write {}", path.display()), hint)
}

fn measure(args: &TuneArgs) -> Result<Vec<Row>, Failure> {
    let request = EndRequest::listen()?;
    let setting = Setting::new("tune", None, &args.pin, 2)?;
    let sizes: Vec<usize> = (SHORTEST.ilog2()..=LONGEST.ilog2()).map(|power| 1 << power).collect();
    let row = |place: Place| {
        sizes.iter().map(move |&bytes| Row { place, bytes, transfer: Vec::new(), dma: Vec::new() }).collect::<Vec<_>>()
    };
    let mut rows = PLACES.map(row);
    let bar = bar(args.rounds.into(), "round {pos} of {len}: {msg}");
    let mut refused = None;
    for round in 0..args.rounds {
        bar.inc(1);
        // A change of the machine's speed affects both ways alike, because they take turns. Each way is the first as often as the other.
        let mut ways = [Way::Transfer, Way::Dma];
        ways.rotate_left(usize::from(round % 2));
        for (place, rows) in PLACES.into_iter().zip(&mut rows) {
            for way in ways {
                let is_pull = way == Way::Dma && place == Place::Private;
                if is_pull && refused.is_some() {
                    continue;
                }
                bar.set_message(format!("{} memory by {}", word(&place), way.name()));
                let outcome = match pairs::carry_out(&plan(&setting, place, way, &sizes)) {
                    // The system does not let one process read the memory of the other.
                    Err(failure) if failure.is_usage() && is_pull => {
                        refused = Some(failure);
                        continue;
                    }
                    outcome => outcome?,
                };
                for (row, finding) in rows.iter_mut().zip(&outcome.pairs[0]) {
                    let ns = finding.driver.summary(outcome.clock.ns_per_tick / 2.0).p50;
                    if way == Way::Dma { &mut row.dma } else { &mut row.transfer }.push(ns);
                }
                // A signal may have come while no worker was running.
                request.check()?;
            }
        }
    }
    bar.finish_and_clear();
    if let Some(failure) = refused {
        warn(format_args!("private memory was not measured by DMA: {}", failure.plain()));
    }
    Ok(rows.concat())
}

fn plan(setting: &Setting, buffers: Place, way: Way, sizes: &[usize]) -> Plan {
    let leg = |&bytes: &usize| {
        let count = (ROUND_BYTES / bytes).clamp(16, 256);
        Leg { bytes, rounds: 1, warmup: 4 + count / 8, count }
    };
    let legs = sizes.iter().map(leg).collect();
    Plan { buffers, mode: Some(way.mode().into()), ..Plan::new(Test::Latency, setting.clone(), legs) }
}

/// The length from which on DMA costs least. Each size counts alike, by how many times as long the slower way takes.
fn threshold(rows: &[(usize, f64)]) -> Dma {
    let (mut best, mut least, mut cost) = (Dma::Never, 0.0, 0.0);
    for (bytes, ratio) in rows.iter().rev() {
        // A larger ratio was disturbed, or would not make the decision clearer.
        cost += ratio.ln().clamp(-CLEAR, CLEAR);
        if cost < least - if best == Dma::Never { GAIN } else { 0.0 } {
            (best, least) = (Dma::From(*bytes as u64), cost);
        }
    }
    best
}

fn table(rows: &[Row], tune: &Tune, path: Option<&Path>, rounds: u16) -> String {
    let rounds = counted(rounds.into(), "round");
    let mut text = format!("Half a round trip, by the lane (transfer) and by DMA in turns; medians of {rounds}.\n\n");
    text += &format!("{}\n", report::table(&rows.iter().map(Row::fields).collect::<Vec<_>>()));
    for place in PLACES {
        let found = tune.found.iter().find(|found| found.in_region == (place == Place::Registered));
        let what = match found.map(|found| found.dma) {
            Some(Dma::From(bytes)) => format!("DMA from {} on", Size(bytes as usize)),
            Some(Dma::Never) => format!("transfer, up to {} at least", Size(LONGEST)),
            None => "nothing to compare: the driver's own length stays".into(),
        };
        text += &format!("{} memory: {what}\n", word(&place));
    }
    text + &path.map_or("not kept: --dry-run\n".into(), |path| {
        format!("kept in {}, for programs whose policy is Thresholds::tuned()\n", path.display())
    })
}

fn objects(rows: &[Row], tune: &Tune, path: Option<&Path>) -> Vec<Value> {
    let last = json!({"machine": tune.machine, "found": tune.found, "kept": path.map(|path| path.display().to_string())});
    rows.iter().map(|row| json!(row.fields())).chain([last]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(ratios: &[f64]) -> Dma {
        let rows: Vec<_> = ratios.iter().enumerate().map(|(at, ratio)| (1 << (10 + at), *ratio)).collect();
        threshold(&rows)
    }

    #[test]
    fn one_size_that_was_disturbed_does_not_decide() {
        for (ratios, bytes) in [
            (&[2.0, 1.5, 0.9, 0.5][..], 4 << 10),
            (&[2.0, 1.5, 0.9, 1.05, 0.5], 4 << 10),
            (&[2.0, 0.8, 1.5, 0.9, 0.5], 8 << 10),
            (&[0.9, 0.8, 0.5], 1 << 10),
            (&[1.0, 1.0, 0.9], 4 << 10),
        ] {
            assert_eq!(found(ratios), Dma::From(bytes), "{ratios:?}");
        }
        for ratios in [&[][..], &[1.0], &[1.2, 1.1], &[1.0, 0.98], &[0.5, 1.9, 1.2]] {
            assert_eq!(found(ratios), Dma::Never, "{ratios:?}");
        }
    }

    #[test]
    fn a_table_says_what_was_found_and_where_it_is() {
        let row = |place, bytes, transfer: &[f64], dma: &[f64]| Row { place, bytes, transfer: transfer.into(), dma: dma.into() };
        let rows = [
            row(Place::Private, 64 << 10, &[900.0, 100.0, 120.0], &[300.0, 250.0, 300.0]),
            row(Place::Registered, 64 << 10, &[], &[100.0]),
        ];
        let tune =
            Tune { machine: Machine::this(), found: vec![Found { fabric: Fabric::Shm, in_region: false, dma: Dma::Never }] };
        let text = table(&rows, &tune, None, 3);
        assert!(text.contains("private     64 KiB  120.0 ns  300.0 ns  transfer (2.50 times)\n"), "{text}");
        assert!(text.contains("registered  64 KiB         -  100.0 ns\n"), "{text}");
        assert!(text.contains("private memory: transfer, up to 4 MiB at least\n") && text.contains("not kept"), "{text}");
        let last = objects(&rows, &tune, Some(Path::new("/tune.json"))).pop().unwrap();
        assert_eq!((&last["found"][0]["dma"], &last["kept"]), (&"never".into(), &"/tune.json".into()));
    }
}
