//! Programs made of bytes, for a fuzzer and for tests. They drive one endpoint or two sessions, and check what must always hold.
//!
//! Both functions panic when something is wrong. Any bytes are a valid program.

mod datagrams;
mod player;
mod sessions;
mod tape;
mod world;

pub use datagrams::datagrams;
pub use sessions::sessions;
