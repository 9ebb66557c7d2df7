//! quinn (QUIC) as a peer of Doorbell: one stream in each direction of one connection, over UDP and encrypted.
//!
//! A byte stream has no messages: both sides know the lengths, and there is only one tag. The settings are:
//! - Each process has a runtime with one thread that never sleeps. The waiting code runs it, and each turn polls the socket.
//! - Datagrams are as large as the loopback interface carries from the start, without a search for a larger size. Runs of smaller
//!   datagrams, which the kernel cuts, were no faster.
//! - Windows hold everything that a test has under way, and the congestion window starts as large, because there is no other
//!   traffic.
//! - Socket buffers are as large as Doorbell's, as far as the system allows.
//! - Only streams are measured: when two processes took turns and idled between two sections, some runs came to a standstill.
//! - The cipher is AES-256-GCM of `aws-lc-rs`, as in Doorbell.

use doorbell_benches::exchange::{Carrier, Part, Section};
use doorbell_benches::stream::{self, Flow};
use doorbell_peers::order::{Over, Work};
use doorbell_peers::transport::{AtOnce, Fault, Result, Setup, StreamBuffers, Transport, unknown};
use doorbell_peers::worker;
use quinn::congestion::CubicConfig;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, RecvStream, SendStream, ServerConfig, TokioRuntime};
use quinn::{TransportConfig, VarInt};
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::future::{Future, poll_fn};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// The largest datagram: the payload of an IPv4 packet of 64 KiB.
const DATAGRAM: u16 = 65_507;
/// The most bytes under way, in a stream and in all, and the initial congestion window.
const WINDOW: u32 = 16 << 20;
const CONGESTION_WINDOW: u64 = 2 << 20;
/// The size of socket buffers.
const SOCKET_BYTES: usize = 4 << 20;
/// The name in the certificate.
const NAME: &str = "peer";
/// The timeout for the other process.
const PATIENCE: Duration = Duration::from_secs(20);
/// The number of turns after which a few bytes without other traffic have been sent.
const LAST_TURNS: usize = 64;
/// The length of the confirmation of a stream.
const ARRIVED: usize = 8;

fn main() -> ExitCode {
    worker::main::<Quinn>()
}

struct Quinn {
    runtime: Runtime,
    out: SendStream,
    back: RecvStream,
    messages: StreamBuffers,
    _connection: Connection,
    _endpoint: Endpoint,
}

fn fault(what: &str, error: impl std::fmt::Display) -> Fault {
    format!("{what}: {error}").into()
}

/// Runs the runtime without a pause until the future completes.
fn turn<F: Future>(runtime: &Runtime, future: F) -> F::Output {
    let mut future = pin!(future);
    runtime.block_on(poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            context.waker().wake_by_ref();
        }
        polled
    }))
}

/// A future that gives all others this many turns.
async fn turns(mut left: usize) {
    poll_fn(|_| {
        left = left.saturating_sub(1);
        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await
}

fn transport() -> Arc<TransportConfig> {
    let mut congestion = CubicConfig::default();
    congestion.initial_window(CONGESTION_WINDOW);
    let mut transport = TransportConfig::default();
    transport
        .initial_mtu(DATAGRAM)
        .mtu_discovery_config(None)
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(WINDOW.into())
        .congestion_controller_factory(Arc::new(congestion))
        // A process may be stopped for a while.
        .max_idle_timeout(None);
    Arc::new(transport)
}

fn provider() -> Arc<CryptoProvider> {
    // The standard requires AES-128 for the first packets of the handshake.
    let mut provider = aws_lc_rs::default_provider();
    let initial = aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites = vec![TLS13_AES_256_GCM_SHA384, initial];
    Arc::new(provider)
}

fn server(certificate: CertificateDer<'static>, key: PrivateKeyDer<'static>) -> Result<ServerConfig> {
    let crypto = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(crypto)?));
    config.transport_config(transport());
    Ok(config)
}

fn client(certificate: CertificateDer<'static>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let crypto = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(crypto)?));
    config.transport_config(transport());
    Ok(config)
}

fn endpoint(server: Option<ServerConfig>) -> Result<Endpoint> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    // The system may allow less.
    socket.set_recv_buffer_size(SOCKET_BYTES)?;
    socket.set_send_buffer_size(SOCKET_BYTES)?;
    socket.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))?;
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(DATAGRAM)?;
    Ok(Endpoint::new(config, server, socket.into(), Arc::new(TokioRuntime))?)
}

/// The first process listens, and leaves its address and certificate for the other.
async fn meet(setup: &Setup<'_>) -> Result<(Endpoint, Connection)> {
    if setup.node == 0 {
        let made = rcgen::generate_simple_self_signed(vec![NAME.into()])?;
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
        let endpoint = endpoint(Some(server(certificate.clone(), key)?))?;
        setup.place.leave("certificate", &certificate)?;
        setup.place.leave("address", endpoint.local_addr()?.to_string().as_bytes())?;
        let incoming = endpoint.accept().await.ok_or("the endpoint is closed")?;
        let connection = incoming.await?;
        return Ok((endpoint, connection));
    }
    let address = String::from_utf8(setup.place.find("address", 0)?)?.parse()?;
    let certificate = CertificateDer::from(setup.place.find("certificate", 0)?);
    let mut endpoint = endpoint(None)?;
    endpoint.set_default_client_config(client(certificate)?);
    let connection = endpoint.connect(address, NAME)?.await?;
    Ok((endpoint, connection))
}

impl Transport for Quinn {
    fn open(setup: &Setup<'_>) -> Result<Self> {
        let order = setup.order;
        if order.over != Over::Sealed || order.work != Work::OneWay {
            return Err(unknown("quinn", order.work, order.over));
        }
        // Poll the socket in each turn and not in every 61st.
        let runtime = Builder::new_current_thread().enable_all().event_interval(1).build()?;
        let (endpoint, connection, out, back) = turn(&runtime, async {
            let met = async {
                let (endpoint, connection) = meet(setup).await?;
                let mut out = connection.open_uni().await?;
                // The other side sees a stream only once something is sent on it.
                out.write_all(&[0]).await?;
                let mut back = connection.accept_uni().await?;
                back.read_exact(&mut [0]).await?;
                turns(LAST_TURNS).await;
                Ok::<_, Fault>((endpoint, connection, out, back))
            };
            tokio::time::timeout(PATIENCE, met).await.map_err(|_| Fault::from("the other process did not connect"))?
        })?;
        Ok(Self { runtime, out, back, messages: StreamBuffers::new(order), _connection: connection, _endpoint: endpoint })
    }

    fn version(&self) -> String {
        "quinn 0.11.9".into()
    }

    fn play(&mut self, _: Part<'_>, _: Section) -> Result<()> {
        Err(unknown("quinn", Work::Latency, Over::Sealed))
    }

    fn stream(&mut self, bytes: usize, flow: Flow) -> Result<()> {
        let Self { runtime, out, back, messages, .. } = self;
        let mut way = AtOnce(Way { runtime, out, back });
        stream::run(&mut way, flow, messages.of(bytes)?)?;
        // Turns of the runtime send the buffered bytes, so neither process stops before everything has arrived.
        let AtOnce(mut way) = way;
        if flow.receives > 0 {
            way.send(&[0; ARRIVED])?;
        }
        if flow.sends > 0 {
            way.receive(&mut [0; ARRIVED])?;
        }
        turn(runtime, turns(LAST_TURNS));
        Ok(())
    }
}

struct Way<'a> {
    runtime: &'a Runtime,
    out: &'a mut SendStream,
    back: &'a mut RecvStream,
}

impl Carrier for Way<'_> {
    type Error = Fault;

    fn send(&mut self, message: &[u8]) -> Result<()> {
        turn(self.runtime, self.out.write_all(message)).map_err(|error| fault("could not send", error))
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<()> {
        turn(self.runtime, self.back.read_exact(into)).map_err(|error| fault("could not receive", error))
    }
}
