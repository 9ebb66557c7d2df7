//! An HTTP service by axum, called by hyper: plain answers, streamed ones, and bodies that go both ways at once.

mod service;

use bytes::{Bytes, BytesMut};
use doorbell_plug_in::{Ask, Connector, Kind, Listener, Program, Result, pattern};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Channel, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::process::ExitCode;

struct Hyper;

struct Client {
    requests: http1::SendRequest<BoxBody<Bytes, Infallible>>,
    /// Its connection lasts as long.
    _connector: Connector,
}

impl Client {
    async fn request(&mut self, method: Method, path: &str, body: BoxBody<Bytes, Infallible>) -> Result<Incoming> {
        let request = Request::builder().method(method).uri(path).header("host", "echo").body(body)?;
        self.requests.ready().await?;
        let answer = self.requests.send_request(request).await?;
        if answer.status().is_success() {
            Ok(answer.into_body())
        } else {
            Err(format!("{path}: the server says {}", answer.status()).into())
        }
    }
}

/// The messages in a body, which come in pieces of any length.
struct Messages {
    body: Incoming,
    came: BytesMut,
}

impl Messages {
    async fn next(&mut self, size: usize) -> Result<Bytes> {
        while self.came.len() < size {
            let frame = self.body.frame().await.ok_or("the answer ended early")??;
            if let Ok(data) = frame.into_data() {
                self.came.extend_from_slice(&data);
            }
        }
        Ok(self.came.split_to(size).freeze())
    }
}

impl Program for Hyper {
    const NAME: &'static str = "http-hyper";
    const ABOUT: &'static str = "An HTTP/1.1 service by axum and hyper, over a Unix socket or Doorbell";
    type Client = Client;

    async fn serve(listener: Listener) -> Result<()> {
        Ok(axum::serve(listener, service::service()).await?)
    }

    async fn connect(connector: Connector) -> Result<Client> {
        let (requests, connection) = http1::handshake(TokioIo::new(connector.connect().await?)).await?;
        // What ends it ends the request as well, which says so.
        tokio::spawn(connection);
        Ok(Client { requests, _connector: connector })
    }

    async fn echo(client: &mut Client, payload: Bytes) -> Result<Bytes> {
        let answer = client.request(Method::POST, "/echo", Full::new(payload).boxed()).await?;
        Ok(answer.collect().await?.to_bytes())
    }

    async fn call(
        client: &mut Client,
        kind: Kind,
        Ask { count, size }: Ask,
        mut seen: impl FnMut(u32, Bytes) -> Result<()> + Send,
    ) -> Result<()> {
        match kind {
            Kind::Stream => {
                let path = format!("/count/{count}/{size}");
                let body = client.request(Method::GET, &path, Full::default().boxed()).await?;
                let mut answers = Messages { body, came: BytesMut::new() };
                for number in 0..count {
                    seen(number, answers.next(size).await?)?;
                }
            }
            Kind::Chat => {
                let (mut say, said) = Channel::new(1);
                let body = client.request(Method::POST, "/chat", said.boxed()).await?;
                let mut answers = Messages { body, came: BytesMut::new() };
                for number in 0..count {
                    say.send_data(pattern(number, size)).await?;
                    seen(number, answers.next(size).await?)?;
                }
            }
            Kind::Unary | Kind::Together => return Err(kind.is_unknown::<Self>()),
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    doorbell_plug_in::run::<Hyper>()
}
