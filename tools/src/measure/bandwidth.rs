//! `doorbell bandwidth`: how many bytes a second go from one process to another.

use super::{MeasureArgs, Plan, Size, Test, TransferArgs, stream_leg, usual_stream};
use crate::exit::Failure;

/// Measure how many bytes a second go from one process to another
///
/// One process keeps a window of messages under way, and the other has as many buffers waiting for them. Both use a buffer again as
/// soon as it is free. The figures are those of the median of several sections.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/bandwidth.txt"))]
pub struct BandwidthArgs {
    /// Sizes of the messages: 8, 64KiB, 1MB
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "4KiB,64KiB,1MiB")]
    sizes: Vec<Size>,
    /// Messages under way at once in each direction
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=512))]
    window: u16,
    /// Send in both directions at once, and print the sum
    #[arg(long)]
    both_ways: bool,
    #[command(flatten)]
    transfer: TransferArgs,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// The usual number of messages that count, at most.
pub const MESSAGES: u64 = 1_000_000;
/// The most bytes of the buffers of one direction.
pub const WINDOW_BYTES: usize = 2 << 30;

/// Measures and prints.
pub fn run(args: &BandwidthArgs) -> Result<(), Failure> {
    let window = usize::from(args.window);
    if let Some(size) = args.sizes.iter().find(|size| size.0 * window > WINDOW_BYTES) {
        let most = (WINDOW_BYTES / size.0).max(1);
        let what =
            format!("--window: {window} messages of {size} are more than the {} that buffers may have", Size(WINDOW_BYTES));
        return Err(Failure::usage(what, format!("--window {most} is enough for such messages")));
    }
    let plan = args.measure.plan(Test::Bandwidth, &args.sizes, |bytes| usual_stream(bytes, MESSAGES), stream_leg)?;
    let plan = Plan { window, both_ways: args.both_ways, ..plan };
    super::carry_out(&args.measure, Some(&args.transfer), plan)
}
