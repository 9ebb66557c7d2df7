//! Messages of the libraries, as lines on stderr like the command's own.

use crate::environment;
use crate::exit::Failure;
use std::fmt;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Prints messages of this level and above from now on, unless the environment names another level.
pub fn install(usual: LevelFilter) -> Result<(), Failure> {
    let level = environment::log()?.unwrap_or(usual);
    // A closed stderr is no error.
    let lines = tracing_subscriber::fmt().log_internal_errors(false).event_format(Line);
    // If another subscriber is installed already, that one stays.
    let _ = tracing::subscriber::set_global_default(lines.with_max_level(level).with_writer(std::io::stderr).finish());
    Ok(())
}

/// One line for each event.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let word = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        let mut said = String::new();
        context.format_fields(Writer::new(&mut said), event)?;
        writeln!(writer, "doorbell: {word}: {}", said.replace('\n', " "))
    }
}
