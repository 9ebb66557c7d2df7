//! How a node joins a network.

use super::{NodeBuilder, env};
use crate::Result;
use crate::error::Error;
use crate::links::{FabricKind, Network};
use doorbell_fabric::{Incarnation, world};
use doorbell_shm::domain::Membership;
use doorbell_shm::error::ShmError;
use doorbell_shm::layout::LaneGeometry;
use doorbell_shm::space::Space;
use doorbell_udp::fabric::{About, Address, ParseAddressError, Places, ask, read_key};
use doorbell_udp::port::Kind as PortKind;
use doorbell_udp::protocol::DomainKey;
use doorbell_udp::{UdpFabric, UdpOptions};
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How many ids a node asks for, each already taken by another node of its machine, before it gives up.
const GRANTS_MAX: usize = 64;

/// The settings of a node's network.
#[derive(Clone, Debug, Default)]
pub struct NetworkOptions {
    fabric: FabricKind,
    places: Places,
    /// Its addresses are those of the places, once the node joins.
    udp: UdpOptions,
}

impl NetworkOptions {
    /// The settings of the environment.
    pub fn from_env() -> Result<Self> {
        let mut options = Self { fabric: env("DOORBELL_FABRIC")?.unwrap_or_default(), ..Self::default() };
        options.places.listen = env::<Addresses>("DOORBELL_LISTEN")?.unwrap_or_default().0;
        options.places.connect = env::<Addresses>("DOORBELL_CONNECT")?.unwrap_or_default().0;
        options.places.seek = env::<Addresses>("DOORBELL_SEEK")?.unwrap_or_default().0;
        options.udp.port = env("DOORBELL_PORT")?.unwrap_or_default();
        if let Some(path) = env::<String>("DOORBELL_KEY_FILE")? {
            options.udp.key = Some(read_key(path.as_ref())?);
        }
        Ok(options)
    }

    /// Sets the size of this node's lanes.
    pub fn set_lanes(&mut self, lanes: &LaneGeometry) {
        let most = lanes.data_bytes.into_iter().max().unwrap_or(0);
        self.udp.lane_bytes = most.clamp(8 << 10, 1 << 30);
    }

    fn is_used(&self) -> bool {
        self.places.is_any() && self.fabric != FabricKind::Shm
    }
}

impl NodeBuilder {
    /// Has the node take part in a network and listen at this UDP address: an IP address or a host name, with a port. Port 0 means
    /// any free port; [`Node::address`](crate::Node::address) tells which. A networked node without such an address uses any free
    /// port. Of the addresses of a name the first is taken that this machine can listen at.
    ///
    /// The wildcards `0.0.0.0` and `[::]` mean all addresses of the machine. Other nodes then connect to any of these; an answer
    /// leaves from the address that was asked.
    ///
    /// Call this up to four times for a node with several network interfaces. Nodes tell each other their addresses. A
    /// conversation uses one path at a time. If its path is cut, it continues on another path well before the other node counts
    /// as [dead](Self::dead_after). Where both nodes have several interfaces, each link has a conversation of its own, and
    /// [modes](crate::mode) choose among the links.
    ///
    /// The domain needs a [key](Self::key_file) if other machines can reach the address.
    ///
    /// ```
    /// # use doorbell::{FabricKind, Match, Node};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// let home = Node::builder("net").fabric(FabricKind::Udp).listen("localhost:0").join()?;
    /// let away = Node::builder("net").fabric(FabricKind::Udp).connect(home.address().unwrap()).join()?;
    /// away.send(home.id(), 1, b"hello")?;
    /// let mut buf = [0; 8];
    /// let envelope = home.recv(Match::any(), &mut buf)?;
    /// assert_eq!((envelope.source, &buf[..envelope.len]), (away.id(), &b"hello"[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn listen(mut self, address: impl Into<Address>) -> Self {
        self.network.places.listen.push(address.into());
        self
    }

    /// Has the node take part in a network through a node at this UDP address: an IP address or a host name, with a port. That node
    /// must answer within the [timeout](Self::patience), or joining fails. Of the addresses of a name the one is taken at which a
    /// node answers first. The system's resolver looks names up while the node joins. May be called several times. The answering nodes name the other nodes. The
    /// first of them gives this node its id, the highest free one, unless [`id`](Self::id) sets it. Let all nodes connect to
    /// the same first node, so that no two nodes get the same id.
    pub fn connect(mut self, address: impl Into<Address>) -> Self {
        self.network.places.connect.push(address.into());
        self
    }

    /// Has the node look for another node at this UDP address, now and every few seconds. Joining does not wait for an answer.
    /// May be called several times. If all nodes [listen](Self::listen) at known addresses and seek each other, no node has to
    /// be first, but each needs an [`id`](Self::id) of its own.
    pub fn seek(mut self, address: impl Into<Address>) -> Self {
        self.network.places.seek.push(address.into());
        self
    }

    /// The file with the key that all nodes of the domain share: 32 bytes, or 64 hexadecimal digits. Only the file's owner may
    /// have access to it. With a key, every conversation over the network is authenticated and encrypted. Without a key, only
    /// the loopback interface is used.
    ///
    /// # Errors
    /// [`Error::Udp`]: the file can't be read, other users can read it, or its content is not a key.
    pub fn key_file(mut self, path: impl AsRef<Path>) -> Result<Self> {
        self.network.udp.key = Some(read_key(path.as_ref())?);
        Ok(self)
    }

    /// The key itself: see [`key_file`](Self::key_file).
    pub fn key(mut self, key: [u8; 32]) -> Self {
        self.network.udp.key = Some(DomainKey(key));
        self
    }

    /// Which fabrics to use. The default is shared memory where both nodes share it, and the network otherwise.
    pub fn fabric(mut self, fabric: FabricKind) -> Self {
        self.network.fabric = fabric;
        self
    }

    /// How the node moves datagrams: through io_uring or by plain socket calls. The default is by calls, which are faster or as fast.
    /// It waits for them through io_uring if the machine allows it, and otherwise, or with [`PortKind::Plain`], through `ppoll` and
    /// a second thread. Joining fails with [`PortKind::Uring`] if the machine does not allow io_uring.
    pub fn udp_port(mut self, kind: PortKind) -> Self {
        self.network.udp.port = kind;
        self
    }

    /// How long a node on the network must be silent before it counts as dead. The default is one second. Below some tens of milliseconds, live
    /// nodes may count as dead: one whose thread has ceased to call the node answers after up to eight milliseconds.
    pub fn dead_after(mut self, silence: Duration) -> Self {
        self.network.udp.dead_after = silence;
        self
    }

    /// Joins the domain, and the network if an address is given.
    pub(super) fn enter(&mut self, deadline: Instant) -> Result<(Membership, Option<Network>)> {
        let is_networked = self.network.is_used();
        if self.network.fabric == FabricKind::Udp {
            if !is_networked {
                let what = "the network alone reaches no other node unless an address is given: call listen, connect, or both";
                return Err(Error::Invalid { what: what.into() });
            }
            // The node shares memory with no other.
            self.here.space = Space::heap();
        }
        if !is_networked {
            return Ok((self.join_beside(deadline)?, None));
        }
        let about = self.about(0);
        self.network.places.settle(&self.here.domain, &about, &mut self.network.udp, deadline)?;
        let membership = self.join_networked(deadline)?;
        let network = self.enter_network(&membership, deadline)?;
        Ok((membership, Some(network)))
    }

    fn join_beside(&self, deadline: Instant) -> Result<Membership> {
        let least = if self.network.places.is_any() { next_life() } else { Incarnation(0) };
        self.join_here(self.network.is_used(), least, deadline)
    }

    /// Joins. If the node was given no id, it uses the one that the first node it connects to assigns.
    fn join_networked(&mut self, deadline: Instant) -> Result<Membership> {
        if self.here.id.is_some() || self.network.udp.connect.is_empty() {
            return self.join_beside(deadline);
        }
        let about = self.about(0);
        let mut taken = Vec::new();
        loop {
            let grant = ask(&self.here.domain, &about, &taken, &self.network.udp, deadline)?;
            (self.here.id, self.here.max_nodes) = (Some(grant.node), grant.max_nodes);
            match self.join_beside(deadline) {
                // The id belongs to a node that joined without asking for one.
                Err(Error::Shm(error)) if matches!(*error, ShmError::IdTaken { .. }) && taken.len() < GRANTS_MAX => {
                    taken.push(grant.node);
                }
                joined => return joined,
            }
        }
    }

    fn enter_network(&self, membership: &Membership, deadline: Instant) -> Result<Network> {
        let (me, udp) = ((membership.id(), membership.incarnation()), &self.network.udp);
        let about = self.about(membership.nonce());
        let (fabric, port) = UdpFabric::open(&self.here.domain, me, about, membership.max_nodes(), udp, deadline)?;
        Ok(Network::new(fabric, port, udp.dead_after, !udp.seek.is_empty()))
    }

    fn about(&self, nonce: u64) -> About {
        About { role: self.here.role, pid: std::process::id(), label: self.here.label.clone(), nonce }
    }
}

/// An incarnation that no earlier node of this machine had, provided that the clock was not set back: milliseconds, repeating
/// after 24 days.
fn next_life() -> Incarnation {
    static LATEST: AtomicU32 = AtomicU32::new(0);
    let now = world::since_epoch().as_millis() as u32 & 0x7fff_ffff;
    let before = LATEST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |latest| Some(now.max(latest.wrapping_add(1))));
    Incarnation(before.map_or(now, |latest| now.max(latest.wrapping_add(1))))
}

/// Addresses, separated by commas.
#[derive(Default)]
struct Addresses(Vec<Address>);

impl FromStr for Addresses {
    type Err = ParseAddressError;

    fn from_str(words: &str) -> Result<Self, Self::Err> {
        words.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}
