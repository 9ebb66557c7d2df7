//! `doorbell rate`: how many messages a second go from one process to another.

use super::{MeasureArgs, Plan, Size, Test, stream_leg, usual_stream};
use crate::exit::Failure;

/// Measure how many messages a second go from one process to another
///
/// One process sends messages as fast as it can, and the other receives them one by one. The figures are those of the median of several sections.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/rate.txt"))]
pub struct RateArgs {
    /// Sizes of the messages: 8, 64KiB, 1MB
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "8")]
    sizes: Vec<Size>,
    /// Put into the other's region, without notification, instead of sending messages
    #[arg(long, conflicts_with = "floor")]
    put: bool,
    /// Messages that one call sends, and the most that one call receives
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with_all = ["put", "shared"], value_parser = clap::value_parser!(u16).range(1..=256))]
    batch: u16,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// The usual number of small messages that count. There are fewer long messages, so that all sizes take about as long.
pub const MESSAGES: u64 = 20_000_000;

/// Measures and prints.
pub fn run(args: &RateArgs) -> Result<(), Failure> {
    let plan = args.measure.plan(Test::Rate, &args.sizes, |bytes| usual_stream(bytes, MESSAGES), stream_leg)?;
    let plan = Plan { batch: args.batch.into(), ..args.measure.by_put(args.put, plan)? };
    super::carry_out(&args.measure, None, plan)
}
