//! The pages of the book that have Rust snippets. `cargo test -p doorbell-pages` compiles and runs each snippet.
//!
//! They are here and not in the library, so that no published package includes a file from outside of its folder. A test of
//! `tests/house` compares this list with the pages.

#[cfg(doctest)]
#[doc = include_str!("../../../docs/async.md")]
struct Async;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/atomics.md")]
struct Atomics;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/collectives.md")]
struct Collectives;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/counters.md")]
struct Counters;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/device.md")]
struct Device;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/files.md")]
struct Files;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide.md")]
struct Guide;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/loans.md")]
struct Loans;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/locks.md")]
struct Locks;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/messages.md")]
struct Messages;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/modes.md")]
struct Modes;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/regions.md")]
struct Regions;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/start.md")]
struct Start;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/streams.md")]
struct Streams;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/testing.md")]
struct Testing;
