//! Streams, of threads and of tasks.

mod streams;
mod streams_async;
mod streams_held_up;
mod streams_killed;

doorbell_tests::roles! {
    "server" => streams_killed::server,
    "plain descriptor" => streams_async::plain_descriptor,
}
