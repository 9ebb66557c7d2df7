//! `doorbell top`: all nodes of running domains, as they work.
//!
//! [`watch`] looks at the boards and makes rates of two looks; [`screen`] draws them on a terminal.

mod screen;
mod watch;

use crate::environment::Domain;
use crate::exit::Failure;
use crate::ls::Format;
use crate::text::{Style, print, time};
use std::io::IsTerminal;
use std::thread;
use std::time::Duration;
use watch::Watch;

/// Watch the nodes of running domains at work
///
/// Reads what nodes show on their boards: nobody is asked, stopped or slowed down, and nodes that hang or were stopped are seen
/// like others. Every 64th message bears a time stamp, so latencies are those of the program that runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  doorbell top                                    all domains of this user, until q
  doorbell top --domain grid --interval 250ms
  doorbell top --once                             one look, with the rates of one interval
  doorbell top --once --format json | jq '.domains[].nodes[] | [.node, .rates.messages_in, .latency.p99_ns]'

Keys: q quit, p or space pause, s sort by the next column, r turn the order round, m show or hide the modes, arrows choose
a node (below: what it did last). Without a terminal, and for JSON, it looks once.

IN/S and OUT/S are messages a second. FIFO: descriptors that wait in the injection FIFOs of high, normal and low
priority. CTR: DMA counters in use. KEYS: keys of the lock registry that the node holds, and threads of it that wait for
one (below: which). By way, in bytes a second: FIFO/S as packets, PUT/S put by the origin, PULL/S pulled by the target,
KEY/S put and got by key, LOAN/S loans. P50 and P99: one-way latency of sampled messages since the last look; if there
were none, of all. MODES: the links by which the nodes send, as `doorbell ls --modes` has them, and how messages went of
which a mode was asked or chosen. PARKS/S: how often a thread went to sleep. COLL/S: collectives of
teams, and of their turns of channels the share that found none available and was queued. Nodes show figures when they sleep, leave, or look at them
themselves, and every 50 ms while they wait or poll.")]
pub struct TopArgs {
    /// Only this domain
    #[arg(long, value_name = "NAME")]
    domain: Option<Domain>,
    /// Time between two looks: 1s, 250ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Look once, print, and end
    #[arg(long)]
    once: bool,
    /// Form of the output
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Format::Table)]
    format: Format,
}

/// Watches until told to stop, or looks once.
pub fn run(args: &TopArgs) -> Result<(), Failure> {
    let only = args.domain.as_ref().map(|Domain(name)| name.clone());
    let mut watch = Watch::new(only);
    let terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if terminal && !args.once && args.format == Format::Table {
        return screen::show(&mut watch, args.interval);
    }
    // Rates are of two looks.
    watch.look()?;
    thread::sleep(args.interval);
    let look = watch.look()?;
    if let (Some(Domain(name)), true) = (&args.domain, look.rows.is_empty()) {
        return Err(Failure::failed(format!("there is no domain '{name}'"), "`doorbell ls` shows all of this user's"));
    }
    print(&match args.format {
        Format::Table => look.table(Style::of(&std::io::stdout())),
        Format::Json => format!("{}\n", look.object()),
    });
    Ok(())
}

fn interval(word: &str) -> Result<Duration, String> {
    match time(word)? {
        found if found >= Duration::from_millis(10) => Ok(found),
        _ => Err("it is too short; hint: from 10ms, as nodes show their figures every 50ms".into()),
    }
}
