//! `doorbell top`: all nodes of running domains at work.
//!
//! [`watch`] reads the boards and computes rates from two looks. [`screen`] draws them on a terminal.

mod screen;
pub mod watch;

use crate::environment::Domain;
use crate::exit::Failure;
use crate::text::{FormArgs, Format, Style, time};
use std::io::IsTerminal;
use std::thread;
use std::time::Duration;
use watch::Watch;

/// Watch the nodes of running domains at work
///
/// Reads the boards of the nodes. The nodes take no part and are not slowed down, and the command shows nodes that hang or were stopped like all
/// others. One message in 64 has a time stamp, at most one a millisecond, so latencies are those of the running program.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/top.txt"))]
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
    #[command(flatten)]
    form: FormArgs,
}

/// Watches until told to stop, or looks once.
pub fn run(args: &TopArgs) -> Result<(), Failure> {
    let only = args.domain.as_ref().map(|Domain(name)| name.clone());
    let mut watch = Watch::new(only);
    let terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if terminal && !args.once && args.form.format == Format::Table {
        return screen::show(&mut watch, args.interval);
    }
    // Rates need two looks.
    watch.look()?;
    thread::sleep(args.interval);
    let look = watch.look()?;
    if let (Some(Domain(name)), true) = (&args.domain, look.rows.is_empty()) {
        return Err(Failure::failed(format!("there is no domain '{name}'"), "`doorbell ls` shows all of this user's"));
    }
    args.form.print(|| look.table(Style::of(&std::io::stdout())), std::iter::once_with(|| look.object()));
    Ok(())
}

fn interval(word: &str) -> Result<Duration, String> {
    match time(word)? {
        found if found >= Duration::from_millis(10) => Ok(found),
        _ => Err("it is too short; hint: from 10ms, as nodes show their figures every 50ms".into()),
    }
}
