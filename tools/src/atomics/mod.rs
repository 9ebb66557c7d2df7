//! `doorbell atomics`: the tier of each operator of each type, and how long each tier takes.

mod report;
mod timing;

use crate::exit::{Failure, warn};
use crate::experiment::Setting;
use crate::join::PortArgs;
use crate::measure::Fabric;
use crate::text::FormArgs;
use clap::builder::PossibleValuesParser;
use doorbell::atomic::TABLE;
use report::Row;

/// Show the tier that makes each operator of each type atomic, and how long each tier takes
///
/// An update is an expression. It becomes one instruction (native), a loop around a compare-and-swap (swap), or a callback under a lock (lock): the cheapest
/// tier that this platform has for the operator and the type. This command prints the table. It times the chosen tier beside the tiers below it, which it
/// forces on the same expression: alone, and while several threads update the same cell.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/atomics.txt"))]
pub struct AtomicsArgs {
    /// Only this type; can be given several times
    #[arg(long = "type", value_name = "TYPE", value_parser = PossibleValuesParser::new(types()))]
    types: Vec<String>,
    /// Only this operator; can be given several times
    #[arg(long = "op", value_name = "OPERATOR", value_parser = PossibleValuesParser::new(operators()))]
    ops: Vec<String>,
    /// The fabric over which a cell of another node is reached; with udp nothing else is measured
    #[arg(long, value_enum, value_name = "FABRIC", default_value_t = Fabric::Shm, conflicts_with_all = ["types", "ops", "tiers", "threads"])]
    fabric: Fabric,
    #[command(flatten)]
    port: PortArgs,
    /// Print the tiers and measure nothing
    #[arg(long)]
    tiers: bool,
    /// Threads that update one cell
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=64))]
    threads: u16,
    /// Processors for the threads, in turn; the first is used for uncontended updates
    #[arg(long, value_name = "CPU,…", value_delimiter = ',')]
    pin: Vec<usize>,
    #[command(flatten)]
    form: FormArgs,
}

fn types() -> Vec<&'static str> {
    TABLE.iter().map(|rows| rows[0].value).collect()
}

fn operators() -> Vec<&'static str> {
    // The first type is an integer, and integers have all operators.
    TABLE[0].iter().map(|row| row.op).collect()
}

impl AtomicsArgs {
    fn wants(&self, value: &str, op: &str) -> bool {
        let among = |wanted: &[String], name| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
        among(&self.types, value) && among(&self.ops, op)
    }
}

/// Measures and prints.
pub fn run(args: &AtomicsArgs) -> Result<(), Failure> {
    if args.tiers {
        let rows = TABLE.iter().copied().flatten().filter(|row| args.wants(row.value, row.op));
        report::print(args.form, &rows.map(Row::tiers).collect::<Vec<_>>(), &[], 0);
        return Ok(());
    }
    if args.fabric == Fabric::Udp {
        let is_crowded = Setting::new("atomics", None, &args.pin, 2)?.crowded;
        let rows = timing::Bench::new(&args.pin, 2)?.network(args.port.kind()?)?;
        report::print_net(args.form, &rows);
        if is_crowded {
            warn("both nodes share a processor: they take turns");
        }
        return Ok(());
    }
    let threads = usize::from(args.threads);
    let is_crowded = Setting::new("atomics", None, &args.pin, threads)?.crowded;
    let bench = timing::Bench::new(&args.pin, threads)?;
    let rows = bench.rows(|value, op| args.wants(value, op))?;
    let remote = bench.remote()?;
    report::print(args.form, &rows, &remote, threads);
    if args.pin.is_empty() {
        warn("the threads were free to change processors: --pin 0,1 gives steadier figures");
    } else if is_crowded {
        warn("there are more threads than processors: they take turns, and contend less than they would");
    }
    Ok(())
}
