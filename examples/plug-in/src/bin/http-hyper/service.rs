//! The service, as for any transport.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path};
use axum::routing::{get, post};
use doorbell_plug_in::pattern;
use std::convert::Infallible;

pub fn service() -> Router {
    Router::new()
        .route("/echo", post(async |said: Bytes| said).layer(DefaultBodyLimit::disable()))
        .route("/count/{count}/{size}", get(count))
        .route("/chat", post(async |said: Body| said))
}

/// So many messages of so many bytes.
async fn count(Path((count, size)): Path<(u32, usize)>) -> Body {
    Body::from_stream(futures::stream::iter((0..count).map(move |number| Ok::<_, Infallible>(pattern(number, size)))))
}
