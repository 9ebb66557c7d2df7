//! Programs made of bytes, for a fuzzer and for tests: what an endpoint or two sessions go through, and what must hold all the while.
//!
//! Both functions panic when something is wrong. Any bytes are a program.

mod datagrams;
mod player;
mod sessions;
mod tape;
mod world;

pub use datagrams::datagrams;
pub use sessions::sessions;
