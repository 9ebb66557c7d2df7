//! `doorbell rate`: how many messages a second go from one process to another.

use super::args::MeasureArgs;
use super::plan::{Test, stream_leg, usual_stream};
use super::report::Row;
use super::size::Size;
use crate::exit::Failure;

/// Measure how many messages a second go from one process to another
///
/// One process sends as fast as it can, the other receives them one by one. The stretch is cut into sections; the median
/// section is told.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  doorbell rate --pin 0,1                           8-byte messages
  doorbell rate --pin 0,1 --floor                   in turns with a bare ring of cache lines
  doorbell rate --pin 0,1 --sizes 8,1KiB,64KiB      also how many bytes a second
  doorbell rate --pin 0,1 --put                     puts of 8 bytes, nobody is told of them
  doorbell rate --pin 0,1 --fabric udp --with-key   over UDP, encrypted
  doorbell rate --listen 10.0.0.1:7000 --key-file grid.key
  doorbell rate --connect 10.0.0.1:7000 --key-file grid.key
                                                    between two machines: see `doorbell latency --help`
  doorbell rate --pin 0,1 --format json | jq .messages_per_s

Every section gives one sample: the time from its first message until the receiver has
its last, divided by their number. `ratio` is the driver's rate over the floor's.
Over UDP the floor is a datagram for each message, in runs that the kernel cuts and gathers.

With --put one process puts one message behind the other into a region of the other, round
and round, and tells nobody: a section ends when its last put is through. `ns each` is what
a put costs the thread that puts. Over UDP each waits for its answer.")]
pub struct RateArgs {
    /// Sizes of the messages: 8, 64KiB, 1MB
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "8")]
    sizes: Vec<Size>,
    /// Put into the other's region, without notification, instead of sending messages
    #[arg(long, conflicts_with = "floor")]
    put: bool,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// Messages that count, where nothing is said: of the smallest, and of others so many that bytes take no longer.
const MESSAGES: u64 = 20_000_000;

/// Measures and prints.
pub fn run(args: &RateArgs) -> Result<(), Failure> {
    let plan = args.measure.plan(Test::Rate, &args.sizes, |bytes| usual_stream(bytes, MESSAGES), stream_leg)?;
    let plan = args.measure.by_put(args.put, plan)?;
    super::carry_out(&args.measure, None, plan, Row::rate)
}
