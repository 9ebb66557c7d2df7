//! A service by tarpc, in MessagePack, framed by lengths.

mod service;

use bytes::Bytes;
use doorbell_plug_in::{Ask, Connection, Connector, Error, Kind, Listener, Program, Result, pattern};
use futures::stream::{StreamExt, TryStreamExt};
use serde_bytes::ByteBuf;
use service::{Echo, EchoClient, Echoes};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_util::codec::{Framed, LengthDelimitedCodec};
use tarpc::{client, context, serde_transport};
use tokio_serde::formats::MessagePack;

/// Of a message, in bytes; the codec's own limit is 8 MiB with all around.
const MOST: usize = 64 << 20;

struct Tarpc;

#[derive(Clone)]
struct Client {
    calls: EchoClient,
    /// Its connection lasts as long.
    _connector: Connector,
}

fn framed(connection: Connection) -> Framed<Connection, LengthDelimitedCodec> {
    LengthDelimitedCodec::builder().max_frame_length(MOST).new_framed(connection)
}

impl Program for Tarpc {
    const NAME: &'static str = "rpc-tarpc";
    const ABOUT: &'static str = "A service by tarpc, over a Unix socket or Doorbell";
    type Client = Client;

    async fn serve(listener: Listener) -> Result<()> {
        let mut incoming = std::pin::pin!(listener.incoming());
        while let Some(connection) = incoming.try_next().await? {
            let transport = serde_transport::new(framed(connection), MessagePack::default());
            let calls = BaseChannel::with_defaults(transport).execute(Echoes.serve());
            tokio::spawn(calls.for_each(async |call| {
                tokio::spawn(call);
            }));
        }
        Ok(())
    }

    async fn connect(connector: Connector) -> Result<Client> {
        let transport = serde_transport::new(framed(connector.connect().await?), MessagePack::default());
        Ok(Client { calls: EchoClient::new(client::Config::default(), transport).spawn(), _connector: connector })
    }

    async fn echo(client: &mut Client, payload: Bytes) -> Result<Bytes> {
        let mut context = context::current();
        // Longer than anything takes: a call ends when it is answered or the connection is lost.
        context.deadline = Instant::now() + Duration::from_secs(3600);
        Ok(client.calls.say(context, ByteBuf::from(payload)).await?.into_vec().into())
    }

    async fn call(
        client: &mut Client,
        kind: Kind,
        Ask { count, size }: Ask,
        mut seen: impl FnMut(u32, Bytes) -> Result<()> + Send,
    ) -> Result<()> {
        if kind != Kind::Together {
            return Err(kind.is_unknown::<Self>());
        }
        let calls = (0..count).map(|number| {
            let mut client = client.clone();
            async move { Ok::<_, Error>((number, Self::echo(&mut client, pattern(number, size)).await?)) }
        });
        let mut answers = futures::stream::iter(calls).buffer_unordered(64);
        while let Some((number, answer)) = answers.try_next().await? {
            seen(number, answer)?;
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    doorbell_plug_in::run::<Tarpc>()
}
