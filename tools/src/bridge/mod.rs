//! `doorbell bridge`: programs that speak TCP or Unix sockets, by streams.
//!
//! A [`Bridge`](ends::Bridge) accepts at one side and connects at the other; each connection is a [`link`] of two [`pump`]s, one for each direction. [`socket`] is what
//! the system has, [`tally`] what is counted.

mod ends;
mod link;
mod pump;
mod socket;
mod tally;

use crate::environment::{Domain, wait};
use crate::exit::Failure;
use crate::join::{NetworkArgs, failure};
use crate::ls::Format;
use crate::measure::args::words;
use crate::measure::size::Size;
use crate::processes::{raise_descriptors, requests_to_end};
use crate::text::{print, time};
use doorbell::Listener;
use doorbell::Stream;
use doorbell::{NodeId, Role};
use ends::{Bridge, Service};
use serde_json::json;
use socket::Place;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tally::Tally;

/// What has to be started before bridges of other machines.
const FIRST: &str = "start the bridge there first: doorbell bridge --from SERVICE --tcp ADDR";

/// Carry TCP or Unix connections over Doorbell
///
/// Programs that speak TCP, such as a Redis server and its clients, go by Doorbell without knowing it: one bridge stands beside the clients, and takes their
/// connections for the server's (--to); the other stands beside the server, and connects to it (--from). Between the two each connection is a stream, to a service
/// that has a name. A program that uses streams itself (`Stream::builder`, `Listener::builder`) needs no bridge on its side.
#[derive(Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("socket").required(true),
    group = clap::ArgGroup::new("service").required(true),
    after_help = "\
Examples:
  redis-server --port 6380                             a server
  doorbell bridge --from redis --tcp 127.0.0.1:6380    its side: the service 'redis' is this server
  doorbell bridge --tcp 127.0.0.1:6379 --to redis      the clients' side: so is port 6379 now
  redis-cli -p 6379 ping                               PONG

  doorbell bridge --unix ./db --to 3:db                the service 'db' of node 3, as a Unix socket
  doorbell bridge --from db --unix /run/db.sock

Two machines, first that of the server, which has the address 10.0.0.1, then that of the clients; with \
a key that both have (`head -c 32 /dev/urandom > grid.key; chmod 600 grid.key`):
  doorbell bridge --from redis --tcp 127.0.0.1:6380 --listen 10.0.0.1:7000 --key-file grid.key
  doorbell bridge --tcp 127.0.0.1:6379 --to redis --connect 10.0.0.1:7000 --key-file grid.key

What ends in one direction goes on in the other, and what is reset on one side is reset on the other. Who reads \
slowly makes the other side wait. Each connection takes twice --buffer of shared memory, in steps of eight \
connections.

Interrupted, or ended by TERM, it takes no more connections, gives those that there are the time of --drain to \
end, and says what it did; asked a second time it cuts them off at once."
)]
pub struct BridgeArgs {
    /// The socket's side: with --to listen there, with --from connect to it. HOST:PORT; port 0 is any that is free
    #[arg(long, value_name = "ADDR", group = "socket", value_parser = socket::tcp)]
    tcp: Option<String>,
    /// The same by a Unix socket
    #[arg(long, value_name = "PATH", group = "socket")]
    unix: Option<PathBuf>,
    /// Carry what connects to the socket to this service: NODE:NAME, or the NAME of whichever node offers it
    #[arg(long, value_name = "SERVICE", group = "service")]
    to: Option<Service>,
    /// Offer a service of this name, and carry what connects to it to the socket
    #[arg(long, value_name = "NAME", group = "service", value_parser = ends::name)]
    from: Option<String>,
    /// Connections at a time; more have to wait
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=30_000))]
    connections: u32,
    /// How long it is tried to reach the other side, for each connection, and to join: 10s, 500ms
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    patience: Duration,
    /// How long connections may take to end by themselves when the bridge is to end
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    drain: Duration,
    /// Bytes under way in each direction of a connection, where memory is shared; with --to
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    buffer: Size,
    /// The domain
    #[arg(long, value_name = "NAME", env = "DOORBELL_DOMAIN", default_value = "bridge")]
    domain: Domain,
    /// Which node of it to be [default: one that is free]
    #[arg(long, value_name = "N")]
    node: Option<NodeId>,
    /// How to wait: auto spins, then yields, then sleeps [env: DOORBELL_WAIT=] [default: auto]
    #[arg(long, value_name = "HOW", value_parser = words::<doorbell::Wait>(&["auto", "spin", "yield", "park"]))]
    wait: Option<doorbell::Wait>,
    /// Form of what it says
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Format::Table)]
    format: Format,
    #[command(flatten)]
    network: NetworkArgs,
}

impl BridgeArgs {
    fn place(&self) -> Result<Place, Failure> {
        match (&self.tcp, &self.unix) {
            (Some(address), None) => Ok(Place::Tcp(address.clone())),
            (None, Some(path)) => Ok(Place::Unix(path.clone())),
            _ => Err(Failure::usage("a bridge has one socket's side", "say --tcp ADDR or --unix PATH")),
        }
    }

    /// Joins.
    fn join(&self) -> Result<doorbell::Node, Failure> {
        let role = if self.from.is_some() { Role::Service } else { Role::Host };
        let mut builder = self.network.builder(&self.domain, role, "bridge", FIRST)?.wait(wait(self.wait)?);
        if let Some(node) = self.node {
            builder = builder.id(node);
        }
        if let Some(peer) = &self.network.connect {
            // Found again if it begins anew.
            builder = builder.seek(peer.0);
        }
        builder.patience(self.patience).join().map_err(|error| failure(error, FIRST))
    }
}

/// Carries connections until it is interrupted.
pub fn run(args: &BridgeArgs) -> Result<(), Failure> {
    let signals = signals().map_err(|error| Failure::usage(format!("could not set a signal handler: {error}"), ""))?;
    raise_descriptors();
    let place = args.place()?;
    // Before it joins: who can't listen disturbs nobody.
    let bound = args.to.as_ref().map(|_| place.bind()).transpose()?;
    if bound.is_none() {
        place.may_accept()?;
    }
    let node = args.join()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::usage(format!("could not start a runtime: {error}"), ""))?;
    let tally = Arc::new(Tally::default());
    let ended = runtime.block_on(async {
        let bridge = match (bound, &args.to, &args.from) {
            (Some(bound), Some(service), _) => {
                let at = bound.place();
                let mut connector = Stream::builder(&node, &service.name).patience(args.patience).buffer_bytes(args.buffer.0);
                if let Some(to) = service.node {
                    connector = connector.to(to);
                }
                say(args, &node, &at, &service.to_string());
                let listener = bound.enter().map_err(|error| Failure::failed(format!("cannot listen at {at}: {error}"), ""))?;
                Bridge::To { listener, connector }
            }
            (_, _, Some(name)) => {
                let listener = Listener::builder(&node, name).backlog(1024).bind();
                let listener = listener.map_err(|error| Failure::failed(format!("cannot offer '{name}': {error}"), ""))?;
                say(args, &node, &place, name);
                Bridge::From { listener, place, patience: args.patience }
            }
            _ => return Err(Failure::usage("a bridge has one service", "say --to NODE:NAME or --from NAME")),
        };
        carry(args, bridge, &tally, signals).await
    });
    // Streams and sockets are gone with it; then whoever was connected is told.
    drop(runtime);
    let left = node.leave();
    tally.print(args.format, args.to.is_some());
    ended?;
    left.map_err(|error| Failure::failed(error, ""))
}

/// The first line.
fn say(args: &BridgeArgs, node: &doorbell::Node, place: &Place, service: &str) {
    let (id, domain) = (node.id(), node.domain());
    let place = place.to_string();
    print(&match (args.format, args.to.is_some()) {
        (Format::Json, is_to) => {
            let [from, to] = if is_to { [place.as_str(), service] } else { [service, place.as_str()] };
            let address = node.address().map(|address| address.to_string());
            let line = json!({ "node": id.0, "domain": domain, "address": address, "from": from, "to": to });
            format!("{line}\n")
        }
        (Format::Table, is_to) => {
            let at = node.address().map_or_else(String::new, |address| format!(" at {address}"));
            let what =
                if is_to { format!("{place} to the service {service}") } else { format!("the service {service} to {place}") };
            format!("node {id} of domain '{domain}'{at} carries what connects to {what}; interrupt it to end\n")
        }
    });
}

/// From which a byte can be read for each signal that asks for an end.
fn signals() -> io::Result<UnixStream> {
    let (come, comes) = UnixStream::pair()?;
    for signal in requests_to_end() {
        signal_hook::low_level::pipe::register(signal as i32, come.try_clone()?)?;
    }
    comes.set_nonblocking(true)?;
    Ok(comes)
}

/// Carries until it is asked to end, and a little longer.
async fn carry(args: &BridgeArgs, bridge: Bridge, tally: &Arc<Tally>, signals: UnixStream) -> Result<(), Failure> {
    let signals = tokio::net::UnixStream::from_std(signals);
    let signals = signals.map_err(|error| Failure::failed(format!("could not wait for signals: {error}"), ""))?;
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
    // Of those that are left some may be done by now.
    while tasks.try_join_next().is_some() {}
    tally.cut.fetch_add(tasks.len() as u64, Ordering::Relaxed);
    tasks.shutdown().await;
    Ok(())
}

/// Returns once for each signal that asks for an end.
async fn requested(signals: &tokio::net::UnixStream) {
    // What fails otherwise can't be waited for, and ends it as well.
    while signals.readable().await.is_ok()
        && signals.try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    {}
}
