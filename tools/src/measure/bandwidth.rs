//! `doorbell bandwidth`: how many bytes a second go from one process to another.

use super::args::{MeasureArgs, TransferArgs};
use super::plan::{Plan, Test, stream_leg, usual_stream};
use super::report::Row;
use super::size::Size;
use crate::exit::Failure;

/// Measure how many bytes a second go from one process to another
///
/// One process keeps a window of messages under way, the other has as many buffers waiting for them; buffers are used again as
/// soon as they come back. The stretch is cut into sections; the median section is told.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  doorbell bandwidth --pin 0,1                      three sizes, eight messages under way
  doorbell bandwidth --pin 0,1 --floor              in turns with a bare copy by the kernel
  doorbell bandwidth --pin 0,1 --both-ways          in both directions at once, their sum
  doorbell bandwidth --pin 0,1 --sizes 1MiB --copy origin
  doorbell bandwidth --pin 0,1 --fabric udp --floor in turns with plain UDP sockets
  doorbell bandwidth --listen 10.0.0.1:7000 --key-file grid.key
  doorbell bandwidth --connect 10.0.0.1:7000 --key-file grid.key
                                                    between two machines: see `doorbell latency --help`
  doorbell bandwidth --pin 0,1 --format json | jq .gb_per_s

With --floor the same two processes also pass bare messages in the same buffers, in sections
between those of the driver. `pulled`: the receiver has the kernel copy each message from the
sender's memory (process_vm_readv), and `ratio` is the driver's bandwidth over that. `copied`:
each message is copied into shared memory and out of it. Over UDP the floor is datagrams of
up to 8 KiB in runs that the kernel cuts and gathers, which nobody writes or reads.

GB are powers of ten. `spread` is how far the fastest and the slowest tenth of the sections
are apart, in percent of the median.")]
pub struct BandwidthArgs {
    /// Sizes of the messages: 8, 64KiB, 1MB
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "4KiB,64KiB,1MiB")]
    sizes: Vec<Size>,
    /// Messages under way at once in each direction
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=512))]
    window: u16,
    /// Send in both directions at once, and tell the sum
    #[arg(long)]
    both_ways: bool,
    #[command(flatten)]
    transfer: TransferArgs,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// Messages that count, where nothing is said, at most.
const MESSAGES: u64 = 1_000_000;
/// Bytes of the buffers of one direction, at most.
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
    super::carry_out(&args.measure, Some(&args.transfer), plan, Row::bandwidth)
}
