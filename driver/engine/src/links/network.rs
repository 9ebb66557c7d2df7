//! A node's place on a network, as its threads share it.

use super::net::{Net, lock};
use crate::error::Error;
use doorbell_fabric::{NodeId, world};
use doorbell_shm::domain::Membership;
use doorbell_shm::doorbell::Bell;
use doorbell_udp::UdpFabric;
use doorbell_udp::port::{Kind, Park, Port, bell_only};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For this long after joining, a node that has met no other may still meet some.
const SETTLING: Duration = Duration::from_millis(500);
/// How long a sleep lasts if waiting for the port fails.
const WITHOUT_PORT: Duration = Duration::from_millis(1);

/// What an event loop waits for in place of the bell.
pub type AnyPort = dyn Port;

/// A port for the bell of a node without a network.
///
/// # Errors
/// The system has no descriptor or thread left.
pub fn port_of_bell(_: &Arc<Membership>) -> io::Result<Box<AnyPort>> {
    bell_only(Kind::Auto)
}

/// Prepares an event loop's sleep while the bell is armed for this sleeper. False if something has happened already.
///
/// # Errors
/// The system can't wait for the port.
pub fn watch(port: &mut AnyPort, bell: &Bell, sleeper: u32, timeout: Duration) -> io::Result<bool> {
    port.watch(Park { bell: bell.word(), expected: sleeper, timeout, writable: false })
}

/// A node's place on a network.
pub struct Network {
    udp: Arc<Mutex<UdpFabric>>,
    /// The thread that sleeps on the bell waits here for both.
    port: Mutex<Option<Box<dyn Port>>>,
    addresses: Vec<SocketAddr>,
    /// The timeout for leaving.
    linger: Duration,
    /// Until when the nodes that it seeks may answer.
    settled: Instant,
}

impl Network {
    /// A place for a network port.
    pub fn new(udp: UdpFabric, port: Box<dyn Port>, linger: Duration, seeks: bool) -> Self {
        let addresses = udp.addresses().to_vec();
        let settled = world::now() + if seeks { SETTLING } else { Duration::ZERO };
        Self { udp: Arc::new(Mutex::new(udp)), port: Mutex::new(Some(port)), addresses, linger, settled }
    }

    /// The network as the engine sees it, in a domain for `nodes` nodes.
    pub fn net(&self, nodes: usize) -> Net {
        Net::new(self.udp.clone(), nodes)
    }

    /// Whether nodes that this one seeks may not have had the time to answer.
    pub fn is_settling(&self) -> bool {
        world::now() < self.settled
    }

    /// Sets the function to call when packets are gathered, which must be sent in time.
    pub fn on_gather(&self, call: impl Fn() + Send + 'static) {
        lock(&self.udp).on_gather(Box::new(call));
    }

    /// The node at an address.
    pub fn node_at(&self, address: SocketAddr) -> Option<NodeId> {
        lock(&self.udp).node_at(address)
    }

    /// The addresses at which other nodes reach this one.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Ends as if the process had been killed, and frees the address.
    pub fn abandon(&self) {
        self.close(UdpFabric::abandon);
    }

    /// Leaves the network in good order, and frees the address.
    pub fn shut(&self) {
        self.close(|udp| udp.shut(world::now() + self.linger));
    }

    fn close(&self, end: impl FnOnce(&mut UdpFabric)) {
        end(&mut lock(&self.udp));
        *self.port.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Sleeps on the bell and the network, while the bell is armed by this sleeper.
    pub fn sleep(&self, bell: &Bell, sleeper: u32, timeout: Duration) {
        let park = Park { bell: bell.word(), expected: sleeper, timeout, writable: false };
        // The former leader may still be here, on its way out: the bell does not have its number any more.
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(port) = &mut *port else { return bell.sleep_as(sleeper, timeout) };
        if let Err(error) = port.park(park) {
            tracing::debug!(%error, "the UDP port can't be waited for");
            bell.sleep_as(sleeper, timeout.min(WITHOUT_PORT));
        }
    }

    /// Uses the port, unless the node has left.
    pub fn with_port<T>(&self, each: impl FnOnce(&mut AnyPort) -> io::Result<T>) -> io::Result<T> {
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(port) = &mut *port else { return Err(Error::Closed.into()) };
        each(&mut **port)
    }
}
