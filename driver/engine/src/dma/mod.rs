//! The DMA engine as a program uses it: descriptors that are injected into FIFOs, and executed while the program computes.
//!
//! - An [`InjectionFifo`] is a ring of [`Descriptor`]s on this node's board. [`inject`](InjectionFifo::inject) writes one and
//!   returns. The thread that turns the engine executes it: with `Progress::Poller` the poller, so that the program only
//!   injects.
//! - A **direct put** copies from a region of this node into a region of any node. A **memory-FIFO packet** goes into a
//!   [`ReceptionFifo`] of another node. A **remote get** has another node's engine execute a direct put. A **request to send** is
//!   a packet with a direct put that lacks its storage location.
//! - DMA [counters](crate::counter) go down as bytes leave and arrive. A descriptor names a send counter at the node that
//!   executes it and a receive counter at its target, or neither.
//!
//! Each descriptor is checked when it is executed. One that fails is an error of that descriptor
//! ([`next_fault`](InjectionFifo::next_fault)); the others go on. Descriptors of one FIFO for one node are executed in order.
//! All priorities share the engine: the higher one first, and now and then the lowest.
//!
//! ```
//! # use doorbell::{Node, Space};
//! # use doorbell::dma::{Descriptor, InjectionFifo};
//! # fn main() -> Result<(), doorbell::Error> {
//! # let space = Space::heap();
//! # let a = Node::builder("dma").space(space.clone()).join()?;
//! # let b = Node::builder("dma").space(space).join()?;
//! let (source, target) = (a.region::<u64>(100)?, b.region::<u64>(100)?);
//! let (sent, arrived) = (a.counter()?, b.counter()?);
//! sent.init(800)?;
//! arrived.init(800)?;
//! source.fill(7)?;
//!
//! let fifo = InjectionFifo::builder(&a).name("halo").open()?;
//! let put = Descriptor::put(source.key(), target.key())?.send_counter(sent.key()).receive_counter(arrived.key());
//! assert!(fifo.inject(&put)?);
//! sent.wait()?;
//! arrived.wait()?;
//! # let mut all = [0; 100];
//! # target.read(0, &mut all)?;
//! # assert_eq!(all, [7; 100]);
//! # Ok(())
//! # }
//! ```
//!
//! A third node can have a transfer made between two others. Here A has B put into C, and no thread of B takes part:
//!
//! ```
//! # use doorbell::{Node, Progress, Space};
//! # use doorbell::dma::{Descriptor, FifoKey, InjectionFifo};
//! # fn main() -> Result<(), doorbell::Error> {
//! # let space = Space::heap();
//! # let node = |progress| Node::builder("three").space(space.clone()).progress(progress).join();
//! # let (a, b, c) = (node(Progress::Inline)?, node(Progress::Poller)?, node(Progress::Inline)?);
//! let (at_b, at_c) = (b.region::<u8>(5000)?, c.region::<u8>(5000)?);
//! let arrived = c.counter()?;
//! arrived.init(5000)?;
//!
//! let put = Descriptor::put(at_b.read_key(), at_c.key())?.receive_counter(arrived.key());
//! let fifo = InjectionFifo::builder(&a).open()?;
//! fifo.inject(&Descriptor::remote_get(b.remote_get_fifo(), put)?)?;
//! fifo.wait()?;
//! arrived.wait()?;
//! # Ok(())
//! # }
//! ```

pub(crate) mod descriptor;
mod fifo;
mod near;
mod open;
mod reception;
mod recorded;
mod run;
mod service;
mod wire;

pub use descriptor::{Descriptor, FifoKey, Kind};
pub use fifo::{FifoBuilder, InjectionFifo};
pub use reception::ReceptionFifo;

#[cfg(test)]
mod tests;
