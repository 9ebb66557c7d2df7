//! `doorbell serve`: metrics for Prometheus and a live page, at one address.
//!
//! [`metrics`] turns boards into text. [`history`] looks at the boards now and then for the charts of [`page`]. [`answer`] has the requests. The
//! command only reads, and every request is bounded: its head, its time, and the number of requests at once.

mod answer;
mod history;
mod latency;
mod metrics;
mod page;

use crate::bridge::{Listener, Place};
use crate::environment::Domain;
use crate::exit::{Explain, Failure};
use crate::processes::signals::{requested, signals};
use crate::text::{FormArgs, counted, print, time};
use answer::Server;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The most connections at a time. Further ones wait until one of these ends.
const CONNECTIONS: usize = 64;
/// How long a connection may take, from its first byte to the last.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// How long open connections may take to end when the command has to end.
const DRAIN: Duration = Duration::from_secs(1);
/// The pause before accepting again when the system has no resources left.
const SHORTAGE: Duration = Duration::from_millis(100);

/// Serve metrics for Prometheus and a live page
///
/// Reads the boards of all domains of this user, or of one. The nodes take no part. `/metrics` has every metric of every
/// node, `/` is a page with charts that refreshes itself, and `/healthz` says that the command works.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/serve.txt"))]
pub struct ServeArgs {
    /// Only this domain, which may begin later
    domain: Option<Domain>,
    /// The address to listen at: HOST:PORT; port 0 is any free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9464", value_parser = Place::tcp)]
    listen: Place,
    /// Time between two looks at the boards for the charts of the page: 1s, 250ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    #[command(flatten)]
    form: FormArgs,
}

fn interval(word: &str) -> Result<Duration, String> {
    match time(word)? {
        found if (Duration::from_millis(50)..=Duration::from_secs(60)).contains(&found) => Ok(found),
        _ => Err("it is out of range; hint: from 50ms to 60s".into()),
    }
}

/// Serves until a signal asks for the end.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    let signals = signals().or_usage("could not set a signal handler", "")?;
    let bound = args.listen.bind()?;
    let place = bound.place.to_string();
    let domain = args.domain.as_ref().map(|Domain(name)| name.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build();
    let runtime = runtime.or_usage("could not start a runtime", "")?;
    let local = place.parse().is_ok_and(|at: SocketAddr| at.ip().is_loopback());
    let server = Arc::new(Server::new(domain.clone(), args.interval, local));
    let served = runtime.block_on(async {
        let listener = bound.enter().or_failed(format_args!("cannot listen at {place}"), "")?;
        let of = domain.as_ref().map_or_else(|| "all domains of this user".into(), |name| format!("the domain '{name}'"));
        let text = || format!("http://{place}/ shows {of}, and http://{place}/metrics is for Prometheus; interrupt it to end\n");
        args.form.print(text, [serde_json::json!({ "address": place, "domain": domain })]);
        serve(&server, &listener, signals).await
    });
    // A look that takes long ends with the process.
    runtime.shutdown_timeout(DRAIN);
    served?;
    let answered = server.answered();
    print(&match args.form.format {
        crate::text::Format::Json => format!("{}\n", serde_json::json!({ "requests": answered })),
        _ => format!("{} answered\n", counted(answered as usize, "request")),
    });
    Ok(())
}

async fn serve(server: &Arc<Server>, listener: &Listener, signals: UnixStream) -> Result<(), Failure> {
    let signals = tokio::net::UnixStream::from_std(signals).or_failed("could not wait for signals", "")?;
    let mut tasks = JoinSet::new();
    tokio::select! {
        () = accept(server, listener, &mut tasks) => {}
        () = server.look_often() => {}
        () = requested(&signals) => {}
    }
    let end = async { while tasks.join_next().await.is_some() {} };
    tokio::select! {
        () = end => {}
        () = requested(&signals) => {}
        () = tokio::time::sleep(DRAIN) => {}
    }
    tasks.shutdown().await;
    Ok(())
}

/// Accepts connections, and starts a task for each.
async fn accept(server: &Arc<Server>, listener: &Listener, tasks: &mut JoinSet<()>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    // Nothing closes the semaphore.
    while let Ok(place) = room.clone().acquire_owned().await {
        // Drops finished tasks.
        while tasks.try_join_next().is_some() {}
        match listener.accept().await {
            Ok(connection) => {
                let server = server.clone();
                tasks.spawn(async move {
                    // A connection that takes longer is closed.
                    let _ = tokio::time::timeout(CONNECTION_TIME, answer::connection(&server, connection)).await;
                    drop(place);
                });
            }
            Err(error) => {
                crate::exit::warn(format_args!("could not accept a connection: {error}; trying again"));
                tokio::time::sleep(SHORTAGE).await;
            }
        }
    }
}
