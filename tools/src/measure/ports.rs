//! `doorbell ports`: the two ways in which a node moves datagrams, beside each other.

use super::{Leg, Net, Plan, Size, Test, pairs};
use crate::exit::{Failure, warn};
use crate::experiment::report::render;
use crate::experiment::{FREE, Field, Fields, Setting};
use crate::processes::EndRequest;
use crate::text::{RowArgs, bar, median, print};
use doorbell::{PortKind, Wait};

/// Compare the ways in which a node moves datagrams: by plain calls of the socket and by io_uring
///
/// Two processes send messages of each size over UDP by the loopback interface, by both ways in turns: back and forth, in a stream, and
/// in a stream whose ends sleep instead of spinning, for the processor time.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/ports.txt"))]
pub struct PortsArgs {
    /// Sizes of the messages: 8, 64KiB, 1MB
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "8,64,1KiB,4KiB,64KiB,256KiB,1MiB")]
    sizes: Vec<Size>,
    /// How often each size is measured by each way
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// The processors on which the two processes run
    #[arg(long, value_name = "CPU,CPU", value_delimiter = ',', num_args = 1..=2)]
    pin: Vec<usize>,
    #[command(flatten)]
    form: RowArgs,
}

const PORTS: [PortKind; 2] = [PortKind::Calls, PortKind::Uring];
/// From this size on several messages are under way at once in a stream.
const LONG: usize = 64 << 10;
/// Messages under way at once then.
const WINDOW: usize = 8;
/// Sections of a stream.
const SECTIONS: usize = 5;

/// A figure of each size and way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Half a round trip.
    Latency,
    /// Messages in a stream.
    Stream,
    /// The processor time of a stream.
    Busy,
}

impl What {
    const ALL: [What; 3] = [What::Latency, What::Stream, What::Busy];

    /// A leg of a few hundredths of a second.
    fn leg(self, bytes: usize) -> Leg {
        if self == What::Latency {
            let count = ((128 << 20) / (bytes + (64 << 10))).clamp(100, 2000);
            return Leg { bytes, rounds: 1, warmup: count / 5, count };
        }
        let messages = ((256 << 20) / (bytes + 1024)).clamp(256, 100_000);
        Leg { bytes, rounds: SECTIONS, warmup: 0, count: messages / SECTIONS }
    }

    /// The plans for messages of these sizes: one by one, and several at once.
    fn plans(self, setting: &Setting, port: PortKind, sizes: &[usize]) -> [Plan; 2] {
        let wait = if self == What::Busy { Wait::Park } else { Wait::Auto };
        let setting = Setting { wait, net: Some(Net { port, ..Net::default() }), ..setting.clone() };
        [false, true].map(|is_long| {
            let legs = sizes.iter().filter(|bytes| (**bytes >= LONG) == is_long).map(|bytes| self.leg(*bytes)).collect();
            let test = match self {
                What::Latency => Test::Latency,
                _ if is_long => Test::Bandwidth,
                _ => Test::Rate,
            };
            Plan { window: WINDOW, ..Plan::new(test, setting.clone(), legs) }
        })
    }
}

/// The figures of one size by each way, one for each round.
#[derive(Clone, Debug, Default)]
struct Row {
    bytes: usize,
    found: [[Vec<f64>; 3]; 2],
}

impl Row {
    fn fields(&self, at: usize) -> Fields {
        let [latency, stream, busy] = self.found[at].each_ref().map(|figures| median(figures.iter().copied()));
        // Nanoseconds a message become messages a second; and the processor time of a message that of a byte.
        let a_second = stream.map(|ns| 1e9 / ns);
        let millions = a_second.map(|rate| format!("{:.3}", rate / 1e6)).unwrap_or_default();
        let [latency_ratio, stream_ratio, busy_ratio] = [0, 1, 2].map(|what| if at == 0 { None } else { self.ratio(what) });
        Fields(vec![
            Field::bytes("size_bytes", self.bytes).under(">size"),
            Field::of("port", PORTS[at].to_string()).under("port"),
            Field::ns("latency_ns", latency).under(">latency"),
            Field::figure("latency_ratio", latency_ratio, 2).under(">ratio"),
            Field::of("messages_per_s", a_second.map(f64::round)).text(millions).under(">M/s"),
            Field::figure("gb_per_s", a_second.map(|rate| rate * self.bytes as f64 / 1e9), 2).under(">GB/s"),
            Field::figure("stream_ratio", stream_ratio.map(|ratio| 1.0 / ratio), 2).under(">ratio"),
            Field::figure("busy_ns_per_byte", busy.map(|ns| ns / self.bytes.max(1) as f64), 3).under(">processor ns/byte"),
            Field::figure("busy_ratio", busy_ratio, 2).under(">ratio"),
        ])
    }

    /// How many times as much io_uring takes. Both figures of a round were measured right after each other.
    fn ratio(&self, what: usize) -> Option<f64> {
        let [calls, uring] = self.found.each_ref().map(|found| &found[what]);
        median(calls.iter().zip(uring).map(|(calls, uring)| uring / calls))
    }
}

/// Measures and prints.
pub fn run(args: &PortsArgs) -> Result<(), Failure> {
    let request = EndRequest::listen()?;
    let setting = Setting::new("ports", None, &args.pin, 2)?;
    let sizes: Vec<usize> = args.sizes.iter().map(|Size(bytes)| *bytes).collect();
    let mut rows: Vec<Row> = sizes.iter().map(|bytes| Row { bytes: *bytes, ..Row::default() }).collect();
    let bar = bar(args.rounds.into(), "round {pos} of {len}");
    for round in 0..args.rounds {
        bar.inc(1);
        for (number, what) in What::ALL.into_iter().enumerate() {
            // A change of the machine's speed affects both ways alike. Each is the first as often as the other.
            let mut ways = [0, 1];
            ways.rotate_left(usize::from(round % 2));
            for is_long in [0, 1] {
                for at in ways {
                    let plan = &what.plans(&setting, PORTS[at], &sizes)[is_long];
                    if plan.legs.is_empty() {
                        continue;
                    }
                    let outcome = pairs::carry_out(plan)?;
                    let mut rows = rows.iter_mut().filter(|row| (row.bytes >= LONG) == (is_long == 1));
                    for (leg, finding) in plan.legs.iter().zip(&outcome.pairs[0]) {
                        let unit = if what == What::Latency { 2 } else { leg.count };
                        let ns = match what {
                            What::Busy => finding.busy.as_nanos() as f64 / (leg.rounds * leg.count) as f64,
                            _ => finding.driver.summary(outcome.clock.ns_per_tick / unit as f64).p50,
                        };
                        if let Some(row) = rows.next() {
                            row.found[at][number].push(ns);
                        }
                    }
                    // A signal may have come while no worker was running.
                    request.check()?;
                }
            }
        }
    }
    bar.finish_and_clear();
    let title = format!(
        "Messages over udp by the loopback interface, by plain calls and by io_uring in turns; medians of {} rounds, ratios of uring to calls.",
        args.rounds
    );
    let rows: Vec<Fields> = rows.iter().flat_map(|row| [row.fields(0), row.fields(1)]).collect();
    print(&render(args.form.format, &title, &rows));
    if args.pin.is_empty() {
        warn(FREE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_figures_of_the_same_round() {
        let figures = |latency: [f64; 3]| [latency.into(), vec![100.0; 3], vec![64.0; 3]];
        let row = Row { bytes: 64, found: [figures([10.0, 20.0, 30.0]), figures([11.0, 24.0, 60.0])] };
        let value = |at: usize, name: &str| serde_json::to_value(row.fields(at)).unwrap()[name].clone();
        assert_eq!((value(0, "latency_ratio"), value(1, "latency_ratio")), (serde_json::Value::Null, 1.2.into()));
        assert_eq!((value(1, "latency_ns"), value(1, "busy_ns_per_byte")), (24.0.into(), 1.0.into()));
        assert_eq!((value(0, "messages_per_s"), value(0, "gb_per_s")), (1e7.into(), 0.64.into()));
    }

    #[test]
    fn every_size_is_in_one_plan() {
        let sizes = [8, 4096, 65_536, 1 << 20];
        for what in What::ALL {
            let plans = what.plans(&Setting::default(), PortKind::Calls, &sizes);
            let bytes: Vec<_> = plans.iter().flat_map(|plan| &plan.legs).map(|leg| leg.bytes).collect();
            assert_eq!(bytes, sizes);
            assert!(plans.iter().flat_map(|plan| &plan.legs).all(|leg| leg.count > 0));
        }
    }
}
