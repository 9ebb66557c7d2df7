//! The counts of a bridge, and its messages.

use super::Trouble;
use crate::text::{FormArgs, bytes, counted};
use serde_json::json;
use std::io::ErrorKind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The least time between two messages about failed connections.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// Counts of all connections.
#[derive(Debug, Default)]
pub struct Tally {
    /// Connections that were made on both sides.
    pub connections: AtomicU64,
    /// Bytes from sockets to streams.
    pub to_streams: AtomicU64,
    /// Bytes from streams to sockets.
    pub to_sockets: AtomicU64,
    /// Connections that could not be made on the other side.
    pub failed: AtomicU64,
    /// Connections that were cut off before both sides had ended.
    pub cut: AtomicU64,
    said: Mutex<Option<Said>>,
}

/// The last message.
#[derive(Debug)]
struct Said {
    at: Instant,
    unsaid: u64,
}

impl Tally {
    /// A connection could not be made.
    pub fn fails(&self, why: impl std::fmt::Display) {
        add(&self.failed);
        self.warn(format_args!("a connection was given up: {why}"));
    }

    /// A connection was cut off.
    pub fn is_cut(&self, trouble: &Trouble) {
        add(&self.cut);
        match trouble {
            // Clients do this all the time.
            Trouble::Socket(error) => tracing::debug!("a connection ended at its socket: {error}"),
            Trouble::Stream(error) if error.kind() == ErrorKind::BrokenPipe => {
                tracing::debug!("a connection ended at its stream: {error}");
            }
            Trouble::Stream(error) => self.warn(format_args!("a connection ended: {error}")),
        }
    }

    /// Logs a warning, unless it logged one a moment ago: a thousand connections may fail at once.
    pub fn warn(&self, what: std::fmt::Arguments<'_>) {
        let mut said = self.said.lock().unwrap_or_else(|error| error.into_inner());
        let now = Instant::now();
        match &mut *said {
            Some(said) if now < said.at + SAY_EVERY => said.unsaid += 1,
            _ => {
                let unsaid = said.replace(Said { at: now, unsaid: 0 }).map_or(0, |said| said.unsaid);
                let more = if unsaid == 0 { String::new() } else { format!(" (and {unsaid} more before that)") };
                tracing::warn!("{what}{more}");
            }
        }
    }

    /// Prints the last line. The service is on the side of the streams or on that of the sockets.
    pub fn print(&self, form: FormArgs, service_is_by_streams: bool) {
        let [connections, mut to, mut from, failed, cut] =
            [&self.connections, &self.to_streams, &self.to_sockets, &self.failed, &self.cut]
                .map(|count| count.load(Ordering::Relaxed));
        if !service_is_by_streams {
            (to, from) = (from, to);
        }
        let text = || {
            let (connections, to, from) = (counted(connections as usize, "connection"), bytes(to), bytes(from));
            format!("{connections}, {to} to the service, {from} from it; {failed} failed, {cut} cut off\n")
        };
        form.print(
            text,
            [json!({
                "connections": connections, "to_service_bytes": to, "from_service_bytes": from, "failed": failed, "cut": cut,
            })],
        );
    }
}

/// Adds one.
pub fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}
