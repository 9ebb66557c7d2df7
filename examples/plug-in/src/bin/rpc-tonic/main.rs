//! A gRPC service by tonic: unary, server-streaming and both ways.

mod service;

use bytes::Bytes;
use doorbell_plug_in::{Ask, Connector, Error, Kind, Listener, Program, Result, pattern};
use futures::stream::{StreamExt, TryStreamExt};
use hyper_util::rt::TokioIo;
use service::echo_client::EchoClient;
use service::echo_server::EchoServer;
use service::{Echoes, Wish};
use std::process::ExitCode;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Server, Uri};

/// Of a message, in bytes; tonic's own limit is 4 MiB with all around.
const MOST: usize = 64 << 20;

struct Tonic;

impl Program for Tonic {
    const NAME: &'static str = "rpc-tonic";
    const ABOUT: &'static str = "A gRPC service by tonic, over a Unix socket or Doorbell";
    type Client = EchoClient<Channel>;

    async fn serve(listener: Listener) -> Result<()> {
        let service = EchoServer::new(Echoes).max_decoding_message_size(MOST);
        Ok(Server::builder().add_service(service).serve_with_incoming(listener.incoming()).await?)
    }

    async fn connect(connector: Connector) -> Result<Self::Client> {
        let connect = tower::service_fn(move |_: Uri| {
            let connector = connector.clone();
            async move { Ok::<_, std::io::Error>(TokioIo::new(connector.connect().await?)) }
        });
        // The address says nothing: the connector knows the way.
        let channel = Endpoint::from_static("http://echo").connect_with_connector(connect).await?;
        Ok(EchoClient::new(channel).max_decoding_message_size(MOST))
    }

    async fn echo(client: &mut Self::Client, payload: Bytes) -> Result<Bytes> {
        Ok(client.say(service::Message { payload }).await?.into_inner().payload)
    }

    async fn call(
        client: &mut Self::Client,
        kind: Kind,
        Ask { count, size }: Ask,
        mut seen: impl FnMut(u32, Bytes) -> Result<()> + Send,
    ) -> Result<()> {
        match kind {
            Kind::Together => {
                let calls = (0..count).map(|number| {
                    let mut client = client.clone();
                    async move { Ok::<_, Error>((number, Self::echo(&mut client, pattern(number, size)).await?)) }
                });
                let mut answers = futures::stream::iter(calls).buffer_unordered(64);
                while let Some((number, answer)) = answers.try_next().await? {
                    seen(number, answer)?;
                }
            }
            Kind::Stream => {
                let wish = Wish { count, size: size.try_into()? };
                let mut answers = client.count(wish).await?.into_inner();
                let mut number = 0;
                while let Some(answer) = answers.message().await? {
                    seen(number, answer.payload)?;
                    number += 1;
                }
            }
            Kind::Chat => {
                let (say, said) = tokio::sync::mpsc::channel(1);
                let mut answers = client.chat(ReceiverStream::new(said)).await?.into_inner();
                for number in 0..count {
                    say.send(pattern(number, size).into()).await?;
                    match answers.message().await? {
                        Some(answer) => seen(number, answer.payload)?,
                        None => return Err("the server ended the chat".into()),
                    }
                }
            }
            Kind::Unary => return Err(kind.is_unknown::<Self>()),
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    doorbell_plug_in::run::<Tonic>()
}
