//! `doorbell latency`: how long a message takes from one process to another.

use super::{Leg, MeasureArgs, Plan, Size, Test, TransferArgs};
use crate::exit::Failure;

/// Measure how long a message takes from one process to another
///
/// Two processes send a message back and forth. The latency is half a round trip. Both processes write every cache line of a message
/// before they send it, and read every line of a message that they received, as programs do.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/latency.txt"))]
pub struct LatencyArgs {
    /// Sizes of the messages: 8, 64KiB, 1MB
    #[arg(
        long,
        value_name = "SIZE,…",
        value_delimiter = ',',
        default_value = "8,64,1KiB,4KiB",
        default_value_if("put", "true", "8,64,1KiB,4KiB,64KiB,1MiB,4MiB")
    )]
    sizes: Vec<Size>,
    /// Put into each other's regions, and poll the last word, instead of sending messages
    #[arg(long, conflicts_with = "buffers")]
    put: bool,
    /// Round trips at the beginning of every section that do not count [default: a tenth of a section]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    warmup: Option<u64>,
    /// Write messages in place in memory on loan, and read them there: nothing is copied
    #[arg(long)]
    loan: bool,
    #[command(flatten)]
    transfer: TransferArgs,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// Sections of each carrier: enough that a change of the machine's speed affects both alike.
const ROUNDS: usize = 16;

/// Measures and prints.
pub fn run(args: &LatencyArgs) -> Result<(), Failure> {
    // A message that is only handed over takes the same time at any length.
    let handed_over = args.loan && !args.measure.touches_bytes();
    let usual = |bytes| usual(if handed_over { 0 } else { bytes });
    let plan = args.measure.plan(Test::Latency, &args.sizes, usual, |bytes, messages| leg(bytes, messages, args.warmup))?;
    let plan = Plan { loan: args.loan, ..args.measure.by_put(args.put, plan)? };
    super::carry_out(&args.measure, Some(&args.transfer), plan)
}

/// The usual number of round trips that count.
pub fn usual(bytes: usize) -> u64 {
    match bytes {
        0..=4096 => 200_000,
        4097..=65_536 => 30_000,
        65_537..=1_048_576 => 3_000,
        _ => 400,
    }
}

/// The sections of round trips.
pub fn leg(bytes: usize, messages: usize, warmup: Option<u64>) -> Leg {
    let rounds = ROUNDS.min(messages);
    let count = messages.div_ceil(rounds);
    Leg { bytes, rounds, count, warmup: warmup.map_or(count.div_ceil(10), |warmup| warmup as usize) }
}
