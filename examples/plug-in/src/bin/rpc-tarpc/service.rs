//! The service, as for any transport.

use serde_bytes::ByteBuf;
use tarpc::context::Context;

#[tarpc::service]
pub trait Echo {
    /// Says back what it is told.
    async fn say(payload: ByteBuf) -> ByteBuf;
}

#[derive(Clone)]
pub struct Echoes;

impl Echo for Echoes {
    async fn say(self, _: Context, payload: ByteBuf) -> ByteBuf {
        payload
    }
}
