//! A domain in one process for the tests of your own programs. A test can kill or stop its nodes, fill their lanes, and delay
//! their packets.
//!
//! The nodes and lanes are real. Only the segments are heap memory, so nothing is left behind, and tests in one process do not
//! disturb each other.
//!
//! ```
//! use doorbell::testing::{self, Domain};
//! use doorbell::{Error, Match};
//!
//! # fn main() -> Result<(), doorbell::Error> {
//! let domain = Domain::new();
//! let (a, b) = (domain.join()?, domain.join()?);
//! b.send(a.id(), 7, b"the last word")?;
//! testing::kill(&b);
//! // Everything that it had sent is delivered first, and then its death is reported.
//! let mut buf = [0; 64];
//! assert_eq!(a.recv(Match::from(b.id()), &mut buf)?.tag, 7);
//! assert!(matches!(a.recv(Match::from(b.id()), &mut buf), Err(Error::PeerDied { .. })));
//! # Ok(())
//! # }
//! ```

use crate::{Faults, Node, NodeBuilder, Result, Space};
use doorbell_engine::node::shared_of;
use doorbell_engine::sync::baton::Token;
use doorbell_fabric::sync::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

/// A domain within this process. Thread-safe.
#[derive(Debug)]
pub struct Domain {
    space: Space,
    faults: Option<(u64, u8)>,
    nodes: AtomicU64,
}

impl Default for Domain {
    fn default() -> Self {
        Self::new()
    }
}

impl Domain {
    /// A new domain, without nodes and without faults.
    pub fn new() -> Self {
        Self { space: Space::heap(), faults: None, nodes: AtomicU64::new(0) }
    }

    /// A new domain with faults from a seed. Of a hundred pushes, `percent` (at most 90) find their lane full, and of a hundred
    /// looks, as many see nothing. A lane may do both by its contract. Nodes that join in the same order have the same faults
    /// in the same order.
    pub fn with_faults(seed: u64, percent: u8) -> Self {
        Self { faults: Some((seed, percent)), ..Self::new() }
    }

    /// The settings of a node that has not joined yet.
    pub fn builder(&self) -> NodeBuilder {
        let builder = Node::builder("testing").space(self.space.clone());
        let number = self.nodes.fetch_add(1, Ordering::Relaxed);
        match self.faults {
            Some((seed, percent)) => builder.faults(Faults::new(seed.wrapping_mul(1024).wrapping_add(number), percent, percent)),
            None => builder,
        }
    }

    /// Joins a node with the lowest free id.
    ///
    /// # Errors
    /// As [`NodeBuilder::join`].
    pub fn join(&self) -> Result<Node> {
        self.builder().join()
    }
}

/// Ends a node as if its process had been killed at this instant. Other nodes find it dead with all that it had sent, and
/// nothing is removed. Its own pending calls end with [`Error::Closed`](crate::Error::Closed), and so do later ones. Waits for
/// a thread that is within the node's engine at this moment. For a node that is [stopped](stop) it would wait for ever, so
/// resume that first.
pub fn kill(node: &Node) {
    node.clone().abandon();
}

/// A stopped node. Dropping this resumes it.
#[must_use = "the node goes on when this is dropped"]
#[derive(Debug)]
pub struct Stopped {
    go_on: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Stops a node as if its process had been stopped: its threads wait as soon as they send, receive or turn the engine. Other
/// nodes do not take it for dead. What they send to it waits, and their calls wait until their deadlines. Dropping the result
/// resumes the node.
///
/// Threads that put and get, and threads that write into memory on loan, go on: they need nothing from the node. Do not call
/// this within [`recv_with`](Node::recv_with) of the same node: it would wait for itself.
///
/// ```
/// use doorbell::testing::{self, Domain};
/// use doorbell::{Error, Match, Progress};
/// use std::time::{Duration, Instant};
///
/// # fn main() -> Result<(), doorbell::Error> {
/// let domain = Domain::new();
/// let (a, b) = (domain.join()?, domain.builder().progress(Progress::Poller).join()?);
/// let receive = b.start_recv(Match::any(), [0; 8])?;
/// let stopped = testing::stop(&b);
/// a.send(b.id(), 1, b"patience")?;
/// assert!(!receive.test());
/// drop(stopped);
/// assert_eq!(&receive.wait().buffer.unwrap(), b"patience");
/// # Ok(())
/// # }
/// ```
pub fn stop(node: &Node) -> Stopped {
    let (go_on, until) = mpsc::channel::<()>();
    let (stands, is_still) = mpsc::channel();
    let shared = shared_of(node).clone();
    let thread = thread::spawn(move || {
        let me = Token::current();
        // First the engine, then the send queues: a new queue can't be made without the engine.
        let engine = shared.enter(me, "stop");
        let ways: Vec<_> = shared.ways().iter().filter_map(|way| way.state.enter(me)).collect();
        let _ = stands.send(());
        let _ = until.recv();
        drop(ways);
        drop(engine);
    });
    let _ = is_still.recv();
    Stopped { go_on: Some(go_on), thread: Some(thread) }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        drop(self.go_on.take());
        if let Some(thread) = self.thread.take() {
            // The thread does nothing that can panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Event, Match, Progress};
    use std::time::{Duration, Instant};

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    #[cfg_attr(miri, ignore = "too slow")]
    fn a_stopped_node_is_not_dead_and_goes_on() {
        for progress in [Progress::Inline, Progress::Adaptive, Progress::Poller] {
            let domain = Domain::new();
            let a = domain.join().unwrap();
            let b = domain.builder().progress(progress).join().unwrap();
            let (sender, to) = (b.clone(), a.id());
            b.send(a.id(), 1, b"before").unwrap();
            let stopped = stop(&b);
            let sending = thread::spawn(move || sender.send(to, 2, b"after"));
            a.send(b.id(), 3, b"to it").unwrap();
            let mut buf = [0; 8];
            assert_eq!(a.recv_until(Match::from(b.id()), &mut buf, soon()).unwrap().tag, 1);
            let nothing = a.recv_until(Match::from(b.id()), &mut buf, Instant::now() + Duration::from_millis(80));
            assert!(matches!(nothing, Err(Error::Timeout { .. })), "{nothing:?}");
            drop(stopped);
            assert_eq!(a.recv_until(Match::from(b.id()), &mut buf, soon()).unwrap().tag, 2);
            assert_eq!(b.recv_until(Match::any(), &mut buf, soon()).unwrap().tag, 3);
            sending.join().unwrap().unwrap();
            while let Some(event) = a.try_event().unwrap() {
                assert!(!matches!(event, Event::Died { .. }), "{event}");
            }
            b.leave().unwrap();
        }
    }

    #[test]
    fn a_killed_node_is_told_of_and_its_number_is_free() {
        let domain = Domain::with_faults(7, 30);
        let (a, b) = (domain.join().unwrap(), domain.join().unwrap());
        let id = b.id();
        let receive = a.start_recv(Match::from(id), [0; 8]).unwrap();
        kill(&b);
        assert!(matches!(b.send(a.id(), 1, b"x"), Err(Error::Closed)));
        let told = receive.wait_until(soon()).ok().unwrap().result;
        assert!(matches!(told, Err(Error::PeerDied { node, .. }) if node == id), "{told:?}");
        let next = domain.builder().id(id).join().unwrap();
        next.send_until(a.id(), 2, b"y", soon()).unwrap();
        assert_eq!(a.recv_until(Match::any(), &mut [0; 8], soon()).unwrap().incarnation, next.incarnation());
    }
}
