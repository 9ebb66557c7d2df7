//! Streams, of threads and of tasks.

mod streams;
mod streams_async;
mod streams_held_up;

doorbell_tests::roles! {
    "server" => streams_async::server,
    "plain descriptor" => streams_async::plain_descriptor,
}
