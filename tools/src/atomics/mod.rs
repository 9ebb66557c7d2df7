//! `doorbell atomics`: which type has which operator by which tier, and what each tier takes.

mod report;
mod timing;

use crate::exit::{Failure, warn};
use crate::ls::Format;
use crate::measure::args::crowded;
use crate::measure::net::Fabric;
use crate::text::print;
use clap::builder::PossibleValuesParser;
use doorbell::atomic::TABLE;
use report::Row;

/// Show by which tier each operator of each type is made atomic, and what each takes
///
/// An update that is written as an expression is translated into one instruction (native), into a loop around a compare-and-swap (swap), or into a callback under
/// a lock (lock): the cheapest that this platform has for the operator and the type. This command prints the table, and times the tier that was chosen
/// beside those below it, which are forced on the same expression for that: alone, and while several threads update the same cell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  doorbell atomics --tiers                   the table alone, without any measurement
  doorbell atomics --pin 0,1                 all of it, contended by two threads on two processors
  doorbell atomics --type u64 --type f64     two types
  doorbell atomics --type u64 --op Add       one operator
  doorbell atomics --threads 4 --pin 0,1     four threads on two processors
  doorbell atomics --fabric udp --pin 0,1    a cell that only the network reaches
  doorbell atomics --format json | jq 'select(.op == \"Add\") | {type, tier, alone}'

`tier` is how the update is done if nobody asks what the value was, `fetch` if the old value or
the new one is wanted. The columns of nanoseconds are one update each: `as is` by the tier
under `tier`, `fetch` with the old value, `swap` by a compare-and-swap whether or not there is an
instruction, `lock` under a lock whether or not it needs one. Alone means that one thread updates
a cell of its own; it is the median of short sections. Contended means that all threads update one cell as
fast as they can; it is the time of all divided by the updates of all.

A `!` behind a figure says that the tier was not faster than the next one down.

The second table is of a cell in a region of another node that shares memory: what the checks of a
key take beside the update itself.

With --fabric udp two nodes of this process talk over the loopback interface: a message of
8 bytes goes there and back, and a cell is updated, one update at a time and 64 under way,
in turns; medians of short sections. A round trip is what an update at its best takes.

Believe ratios rather than nanoseconds: the processors of a virtual machine move, and every
time with them.")]
pub struct AtomicsArgs {
    /// Only this type; may be said several times
    #[arg(long = "type", value_name = "TYPE", value_parser = PossibleValuesParser::new(types()))]
    types: Vec<String>,
    /// Only this operator; may be said several times
    #[arg(long = "op", value_name = "OPERATOR", value_parser = PossibleValuesParser::new(operators()))]
    ops: Vec<String>,
    /// By which fabric a cell of another node is reached: with udp that alone is measured
    #[arg(long, value_enum, value_name = "FABRIC", default_value_t = Fabric::Shm, conflicts_with_all = ["types", "ops", "tiers", "threads"])]
    fabric: Fabric,
    /// Print the tiers and measure nothing
    #[arg(long)]
    tiers: bool,
    /// Threads that update one cell
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=64))]
    threads: u16,
    /// Processors on which the threads run, in turn; the first is for what is measured alone
    #[arg(long, value_name = "CPU,…", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Form of the output
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Format::Table)]
    format: Format,
}

fn types() -> Vec<&'static str> {
    TABLE.iter().map(|rows| rows[0].value).collect()
}

fn operators() -> Vec<&'static str> {
    // The first type is an integer, which has all of them.
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
        let rows: Vec<Row> =
            TABLE.iter().copied().flatten().filter(|row| args.wants(row.value, row.op)).map(Row::tiers).collect();
        print(&report::render(args.format, &rows, &[], 0));
        return Ok(());
    }
    if args.fabric == Fabric::Udp {
        let is_crowded = crowded(&args.pin, 2)?;
        let rows = timing::Bench::new(&args.pin, 2)?.network()?;
        print(&report::render_net(args.format, &rows));
        if is_crowded {
            warn("both nodes share a processor: they take turns");
        }
        return Ok(());
    }
    let threads = usize::from(args.threads);
    let is_crowded = crowded(&args.pin, threads)?;
    let bench = timing::Bench::new(&args.pin, threads)?;
    let rows = bench.rows(|value, op| args.wants(value, op))?;
    let remote = bench.remote()?;
    print(&report::render(args.format, &rows, &remote, threads));
    if args.pin.is_empty() {
        warn("the threads were free to change processors: --pin 0,1 gives steadier figures");
    } else if is_crowded {
        warn("there are more threads than processors: they take turns, and contend less than they would");
    }
    Ok(())
}
