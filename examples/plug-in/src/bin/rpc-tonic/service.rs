//! The service, as for any transport.

use bytes::Bytes;
use doorbell_plug_in::pattern;
use futures::stream::{BoxStream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

tonic::include_proto!("echo");

pub struct Echoes;

#[tonic::async_trait]
impl echo_server::Echo for Echoes {
    async fn say(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    type CountStream = BoxStream<'static, Result<Message, Status>>;

    async fn count(&self, request: Request<Wish>) -> Result<Response<Self::CountStream>, Status> {
        let Wish { count, size } = request.into_inner();
        let messages = (0..count).map(move |number| Ok(pattern(number, size as usize).into()));
        Ok(Response::new(futures::stream::iter(messages).boxed()))
    }

    type ChatStream = BoxStream<'static, Result<Message, Status>>;

    async fn chat(&self, request: Request<Streaming<Message>>) -> Result<Response<Self::ChatStream>, Status> {
        Ok(Response::new(request.into_inner().boxed()))
    }
}

impl From<Bytes> for Message {
    fn from(payload: Bytes) -> Self {
        Self { payload }
    }
}
