//! `doorbell bridge`: carries TCP and Unix connections over streams.
//!
//! A [`Bridge`](ends::Bridge) accepts at one side and connects at the other. Each connection is a [`link`] of two [`pump`]s, one for each direction. [`socket`]
//! has the sockets of the system, and [`tally`] the counts.

mod ends;
mod link;
mod pump;
mod socket;
mod tally;

pub use link::{Link, Trouble};
pub use pump::{Broken, Pump};
pub use socket::{Connection, Listener, Place, cut, unknown};
pub use tally::{Tally, add};

use crate::environment::{Domain, WAIT, chosen};
use crate::exit::{Explain, Failure};
use crate::join::{NetworkArgs, failure};
use crate::measure::Size;
use crate::processes::raise_descriptors;
use crate::processes::signals::{requested, signals};
use crate::text::{FormArgs, WAITS, time, words};
use doorbell::Stream;
use doorbell::{NodeId, Role};
use ends::{Bridge, Service};
use serde_json::json;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The hint for bridges of other machines that find no node.
const FIRST: &str = "start the bridge there first: doorbell bridge --from SERVICE --tcp ADDR";

/// Carry TCP or Unix connections over Doorbell
///
/// Programs that speak TCP, such as a Redis server and its clients, use Doorbell without knowing it. One bridge runs beside the clients, and accepts their
/// connections in place of the server (--to). The other runs beside the server, and connects to it (--from). Between the two bridges each connection is a
/// stream to a service with a name. A program that uses streams itself (`Stream::builder`, `Listener::builder`) needs no bridge on its side.
#[derive(Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("socket").required(true),
    group = clap::ArgGroup::new("service").required(true),
    after_help = include_str!("../../help/bridge.txt")
)]
pub struct BridgeArgs {
    /// The address of the socket: the bridge listens there with --to, and connects to it with --from. HOST:PORT; port 0 is any free port
    #[arg(long, value_name = "ADDR", group = "socket", value_parser = Place::tcp)]
    tcp: Option<Place>,
    /// The path of a Unix socket instead of an address
    #[arg(long, value_name = "PATH", group = "socket")]
    unix: Option<PathBuf>,
    /// Carry connections to the socket on to this service: NODE:NAME, or NAME of any node that offers it
    #[arg(long, value_name = "SERVICE", group = "service")]
    to: Option<Service>,
    /// Offer a service of this name, and carry connections to it on to the socket
    #[arg(long, value_name = "NAME", group = "service", value_parser = ends::name)]
    from: Option<String>,
    /// The most connections at a time; more have to wait
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=30_000))]
    connections: u32,
    /// How long the bridge tries to reach the other side of each connection, and to join: 10s, 500ms
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    patience: Duration,
    /// How long connections may take to end by themselves when the bridge has to end
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    drain: Duration,
    /// Bytes under way in each direction of a connection, where memory is shared; with --to
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    buffer: Size,
    /// The domain
    #[arg(long, value_name = "NAME", env = "DOORBELL_DOMAIN", default_value = "bridge")]
    domain: Domain,
    /// The id of the node [default: one that is free]
    #[arg(long, value_name = "N")]
    node: Option<NodeId>,
    /// How to wait: auto spins, then yields, then sleeps [env: DOORBELL_WAIT=] [default: auto]
    #[arg(long, value_name = "HOW", value_parser = words::<doorbell::Wait>(WAITS))]
    wait: Option<doorbell::Wait>,
    #[command(flatten)]
    form: FormArgs,
    #[command(flatten)]
    network: NetworkArgs,
}

impl BridgeArgs {
    /// Joins.
    fn join(&self) -> Result<doorbell::Node, Failure> {
        let role = if self.from.is_some() { Role::Service } else { Role::Host };
        let mut builder = self.network.builder(&self.domain, role, "bridge", FIRST)?.wait(chosen(self.wait, WAIT)?);
        if let Some(node) = self.node {
            builder = builder.id(node);
        }
        if let Some(peer) = &self.network.connect {
            // The bridge finds that node again if it starts anew.
            builder = builder.seek(peer.clone());
        }
        builder.patience(self.patience).join().map_err(|error| failure(error, FIRST))
    }
}

/// Carries connections until it is interrupted.
pub fn run(args: &BridgeArgs) -> Result<(), Failure> {
    let signals = signals().or_usage("could not set a signal handler", "")?;
    raise_descriptors();
    let place = args.tcp.clone().or(args.unix.clone().map(Place::Unix));
    let place = place.ok_or_else(|| Failure::usage("a bridge has one socket's side", "say --tcp ADDR or --unix PATH"))?;
    // Before the bridge joins: a bridge that cannot listen does not disturb the domain.
    let bound = args.to.as_ref().map(|_| place.bind()).transpose()?;
    if bound.is_none() {
        place.may_accept()?;
    }
    let node = args.join()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().or_usage("could not start a runtime", "")?;
    let tally = Arc::new(Tally::default());
    let ended = runtime.block_on(async {
        let bridge = match (bound, &args.to, &args.from) {
            (Some(bound), Some(service), _) => {
                let at = bound.place.clone();
                let mut connector = Stream::builder(&node, &service.name).patience(args.patience).buffer_bytes(args.buffer.0);
                if let Some(to) = service.node {
                    connector = connector.to(to);
                }
                say(args, &node, &at, &service.to_string());
                let listener = bound.enter().or_failed(format_args!("cannot listen at {at}"), "")?;
                Bridge::To { listener, connector }
            }
            (_, _, Some(name)) => {
                let listener = doorbell::Listener::builder(&node, name).backlog(1024).bind();
                let listener = listener.or_failed(format_args!("cannot offer '{name}'"), "")?;
                say(args, &node, &place, name);
                Bridge::From { listener, place, patience: args.patience }
            }
            _ => return Err(Failure::usage("a bridge has one service", "say --to NODE:NAME or --from NAME")),
        };
        carry(args, bridge, &tally, signals).await
    });
    // This drops all streams and sockets, so their other ends notice.
    drop(runtime);
    let left = node.leave();
    tally.print(args.form, args.to.is_some());
    ended?;
    left.map_err(|error| Failure::failed(&error, "").see(&error))
}

/// The first line.
fn say(args: &BridgeArgs, node: &doorbell::Node, place: &Place, service: &str) {
    let (id, domain, address, place) = (node.id(), node.domain(), node.address(), place.to_string());
    let (from, to, what) = match args.to {
        Some(_) => (place.as_str(), service, format!("{place} to the service {service}")),
        None => (service, place.as_str(), format!("the service {service} to {place}")),
    };
    let at = address.map_or_else(String::new, |address| format!(" at {address}"));
    let text = || format!("node {id} of domain '{domain}'{at} carries what connects to {what}; interrupt it to end\n");
    args.form.print(text, [json!({ "node": id.0, "domain": domain, "address": address, "from": from, "to": to })]);
}

/// Carries connections until a signal asks for the end, and a little longer.
async fn carry(args: &BridgeArgs, bridge: Bridge, tally: &Arc<Tally>, signals: UnixStream) -> Result<(), Failure> {
    let signals = tokio::net::UnixStream::from_std(signals);
    let signals = signals.or_failed("could not wait for signals", "")?;
    let mut tasks = tokio::task::JoinSet::new();
    tokio::select! {
        failure = bridge.accept(args.connections, tally, &mut tasks) => return Err(failure),
        () = requested(&signals) => {}
    }
    drop(bridge);
    let end = async { while tasks.join_next().await.is_some() {} };
    tokio::select! {
        () = end => {}
        () = requested(&signals) => {}
        () = tokio::time::sleep(args.drain) => {}
    }
    // Some of the remaining tasks may be done by now.
    while tasks.try_join_next().is_some() {}
    tally.cut.fetch_add(tasks.len() as u64, Ordering::Relaxed);
    tasks.shutdown().await;
    Ok(())
}
