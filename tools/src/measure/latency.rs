//! `doorbell latency`: how long a message takes from one process to another.

use super::args::{MeasureArgs, TransferArgs};
use super::plan::{Leg, Plan, Test};
use super::report::Row;
use super::size::Size;
use crate::exit::Failure;

/// Measure how long a message takes from one process to another
///
/// Two processes send a message back and forth; the latency is half a round trip. Both write every cache line of a message
/// before they send it, and read every line of what they received, as programs do.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  doorbell latency --pin 0,1                        four sizes, one process on each processor
  doorbell latency --pin 0,1 --sizes 8 --floor      how far from what the machine can do
  doorbell latency --pin 0,1 --pairs 2              four processes on two processors
  doorbell latency --pin 0,1 --wait park            both sleep until the doorbell wakes them
  doorbell latency --pin 0,1 --put                  by puts, from 8 bytes to 4 MiB
  doorbell latency --loan --untouched --sizes 8,4MiB
                                                    what it takes to hand over a message, however long
  doorbell latency --pin 0,1 --fabric udp --floor   over UDP, in turns with plain sockets
  doorbell latency --sizes 8 --format json | jq .p99_ns
  doorbell latency --sizes 8 --format hgrm > 8.hgrm for the plotters of HdrHistogram

With --floor the same two processes also pass bare messages, in short sections between
those of the driver: in a ring slot that is one cache line, payload and sequence word
together (up to 48 bytes), or copied in and out of shared memory (above). `ratio` is the
driver's median over the floor's. From 16 KiB on, `pipelined` is the same floor in chunks
that are copied in while others are copied out: the best of 4, 8, 16 and 32 KiB. Over UDP
the floor is a datagram by a plain socket that is asked again and again, up to 65507 bytes.

Between two machines, with a key that both have:
  head -c 32 /dev/urandom > grid.key; chmod 600 grid.key; scp -p grid.key other:
  doorbell latency --listen 10.0.0.1:7000 --key-file grid.key     on the one, which has that address
  doorbell latency --connect 10.0.0.1:7000 --key-file grid.key    on the other, which measures and prints
The half that connects says what is measured: --sizes, --iterations, --warmup, --untouched.
--pin, --wait, --progress, --shared and --port are each half's own.

With --put each process has a region and the key to the other's, and puts its message there:
all but the last word, then that word, which the other polls where it lies. No engine and no
lane take part; --wait and --progress change nothing. What arrives is read where it is.

Believe ratios rather than nanoseconds: the processors of a virtual machine move, and
every time with them. `hop` is how long a cache line takes between the two just now.")]
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
    /// Round trips that do not count, at the beginning of every section [default: a tenth of a section]
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

/// Sections of each carrier: enough that a mood of the machine meets both alike.
const ROUNDS: usize = 16;

/// Measures and prints.
pub fn run(args: &LatencyArgs) -> Result<(), Failure> {
    // What is only handed over takes no longer for being longer.
    let handed_over = args.loan && !args.measure.touches_bytes();
    let usual = |bytes| usual(if handed_over { 0 } else { bytes });
    let plan = args.measure.plan(Test::Latency, &args.sizes, usual, |bytes, messages| leg(args, bytes, messages))?;
    let plan = Plan { loan: args.loan, ..args.measure.by_put(args.put, plan)? };
    super::carry_out(&args.measure, Some(&args.transfer), plan, Row::latency)
}

fn usual(bytes: usize) -> u64 {
    match bytes {
        0..=4096 => 200_000,
        4097..=65_536 => 30_000,
        65_537..=1_048_576 => 3_000,
        _ => 400,
    }
}

fn leg(args: &LatencyArgs, bytes: usize, messages: usize) -> Leg {
    let rounds = ROUNDS.min(messages);
    let count = messages.div_ceil(rounds);
    Leg { bytes, rounds, count, warmup: args.warmup.map_or(count.div_ceil(10), |warmup| warmup as usize) }
}
