//! How a node joins.

use super::Node;
use crate::Result;
use crate::drive::poller::Progress;
use crate::drive::{Network, Shared, install};
use crate::error::Error;
use crate::links::FabricKind;
use crate::message::service::{Class, is_of_program};
use crate::mode::{Call, ModeRequest, Modes, Policy};
use crate::sync::wait::Wait;
use crate::transfer::Copy;
use crate::turn::EngineSettings;
use doorbell_fabric::world;
use doorbell_fabric::{Incarnation, NodeId, Role};
use doorbell_shm::domain::{JoinOptions, Membership};
use doorbell_shm::error::ShmError;
use doorbell_shm::fabric::ShmFabric;
use doorbell_shm::faults::Faults;
use doorbell_shm::layout::LaneGeometry;
use doorbell_shm::space::Space;
use doorbell_udp::fabric::{About, ask, read_key};
use doorbell_udp::port::Kind as PortKind;
use doorbell_udp::protocol::DomainKey;
use doorbell_udp::{UdpFabric, UdpOptions};
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What a node will be. Made by [`Node::builder`]; nothing happens before [`join`](Self::join).
#[derive(Clone, Debug)]
#[must_use = "nothing happens before join()"]
pub struct NodeBuilder {
    domain: String,
    space: Space,
    id: Option<NodeId>,
    role: Role,
    label: String,
    max_nodes: usize,
    lanes: LaneGeometry,
    progress: Progress,
    wait: Wait,
    pool_bytes: usize,
    loan_bytes: usize,
    bulk_bytes: usize,
    patience: Duration,
    copy: Copy,
    fifo_from_high: bool,
    faults: Option<Faults>,
    fabric: FabricKind,
    udp: UdpOptions,
    modes: Modes,
    services: Installs,
}

/// How services of the program are installed in the node.
#[derive(Clone, Default)]
struct Installs(Vec<Arc<Install>>);

type Install = dyn Fn(&Arc<Shared>) -> Result<()> + Send + Sync;

impl std::fmt::Debug for Installs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} services", self.0.len())
    }
}

/// Ids that a node asks for in vain, as others of its machine have them, before it gives up.
const GRANTS_MAX: usize = 64;

impl NodeBuilder {
    pub(super) fn new(domain: String) -> Self {
        Self {
            domain,
            space: Space::posix(),
            id: None,
            role: Role::default(),
            label: String::new(),
            max_nodes: 16,
            lanes: LaneGeometry::default(),
            progress: Progress::default(),
            wait: Wait::default(),
            pool_bytes: 64 << 20,
            loan_bytes: 64 << 20,
            bulk_bytes: 16 << 20,
            patience: Duration::from_secs(10),
            copy: Copy::default(),
            fifo_from_high: false,
            faults: None,
            fabric: FabricKind::default(),
            udp: UdpOptions::default(),
            modes: Modes::default(),
            services: Installs::default(),
        }
    }

    /// As the environment says: see [`Node::from_env`]. What is set on the builder afterwards counts more.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the variable that is missing or malformed.
    pub fn from_env() -> Result<Self> {
        let domain = env::<String>("DOORBELL_DOMAIN")?.ok_or_else(|| Error::Invalid {
            what: "DOORBELL_DOMAIN is not set; start the program with `doorbell run -n 2 -- PROGRAM`, or set it to the domain's name".into(),
        })?;
        let mut builder = Self::new(domain);
        builder.id = env("DOORBELL_NODE")?;
        if let Some(count) = env::<usize>("DOORBELL_NODES")? {
            builder.max_nodes = builder.max_nodes.max(count);
        }
        builder.role = env("DOORBELL_ROLE")?.unwrap_or_default();
        builder.progress = env("DOORBELL_PROGRESS")?.unwrap_or_default();
        builder.wait = env("DOORBELL_WAIT")?.unwrap_or_default();
        builder.copy = env("DOORBELL_COPY")?.unwrap_or_default();
        builder.fabric = env("DOORBELL_FABRIC")?.unwrap_or_default();
        builder.udp.listen = env::<Addresses>("DOORBELL_LISTEN")?.unwrap_or_default().0;
        builder.udp.connect = env::<Addresses>("DOORBELL_CONNECT")?.unwrap_or_default().0;
        builder.udp.seek = env::<Addresses>("DOORBELL_SEEK")?.unwrap_or_default().0;
        builder.udp.port = env("DOORBELL_PORT")?.unwrap_or_default();
        if let Some(path) = env::<String>("DOORBELL_KEY_FILE")? {
            builder = builder.key_file(path)?;
        }
        Ok(builder)
    }

    /// What the node is to its domain. A host if nothing is said.
    pub fn role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// Which node to be; the lowest free one if nothing is said.
    pub fn id(mut self, id: impl Into<NodeId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// A word for people, shown by `doorbell ls`: 31 bytes at most.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// How many nodes the domain can have, from 2 to 1024; 16 if nothing is said. Counts for the node that creates the
    /// domain. Each node's inbox holds lanes for this many.
    pub fn max_nodes(mut self, count: usize) -> Self {
        self.max_nodes = count;
        self
    }

    /// How large the lanes of the domain are. Counts for the node that creates the domain; over a network, where lanes hold a MiB if
    /// nothing is said, for each node's own.
    pub fn lanes(mut self, lanes: LaneGeometry) -> Self {
        self.lanes = lanes;
        let most = lanes.data_bytes.into_iter().max().unwrap_or(0);
        self.udp.lane_bytes = most.clamp(8 << 10, 1 << 30);
        self
    }

    /// Who turns the engine.
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// How threads of this node wait.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// How many bytes of messages that nobody has asked for this node keeps; 64 MiB if nothing is said. Beyond it senders
    /// find their lanes full, and a receive does not see what lies behind a message that found no room: ask for that one first.
    pub fn pool_bytes(mut self, bytes: usize) -> Self {
        self.pool_bytes = bytes;
        self
    }

    /// The most bytes of shared memory that this node takes for what it lends; 64 MiB if nothing is said. None is taken before
    /// the first loan, then a MiB, and more as it is needed: each time as much as there was, or four times the loan if that is
    /// more. It is given back when the node leaves.
    pub fn loan_bytes(mut self, limit: usize) -> Self {
        self.loan_bytes = limit;
        self
    }

    /// How much shared memory this node takes at most for rings of 4 MiB by which long messages in private memory go to their targets
    /// where the kernel's copy is dear; 16 MiB if nothing is said. A ring is made when a target gets its second long message, if less than
    /// an eighth of the free memory is enough for it; targets for which there is none get theirs through the lane's own, smaller ring.
    pub fn bulk_bytes(mut self, limit: usize) -> Self {
        self.bulk_bytes = limit;
        self
    }

    /// Who copies large messages: see [`enum@Copy`].
    pub fn copy(mut self, copy: Copy) -> Self {
        self.copy = copy;
        self
    }

    /// Whether memory FIFOs of what this node sends begin at the high end of a buffer, and direct puts at its low end. It is the
    /// other way round if nothing is said; nothing depends on it but the order in which bytes arrive.
    pub fn fifo_from_high(mut self, from_high: bool) -> Self {
        self.fifo_from_high = from_high;
        self
    }

    /// How long to wait for other processes that join or leave at this moment; ten seconds if nothing is said.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Where the segments live: [`Space::posix`] (`/dev/shm`) if nothing is said; [`Space::heap`] for tests within one
    /// process.
    pub fn space(mut self, space: Space) -> Self {
        self.space = space;
        self
    }

    /// Has the node take part in a network, and others find it at this UDP address; port 0 is any that is free
    /// ([`Node::address`] says which). Nodes that are not told one have whatever port is free.
    ///
    /// May be said up to four times, for a node with several network interfaces: nodes tell each other their addresses, and a conversation whose
    /// path is cut goes on by another, well before the other node would count as [dead](Self::dead_after). A conversation uses one path at a time; there
    /// is one for each link where both nodes have several, and [modes](crate::mode) choose among them.
    ///
    /// Where others than this machine could reach the address the domain needs a [key](Self::key_file).
    ///
    /// ```
    /// # use doorbell::{FabricKind, Match, Node};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// let home = Node::builder("net").fabric(FabricKind::Udp).listen(([127, 0, 0, 1], 0).into()).join()?;
    /// let away = Node::builder("net").fabric(FabricKind::Udp).connect(home.address().unwrap()).join()?;
    /// away.send(home.id(), 1, b"hello")?;
    /// let mut buf = [0; 8];
    /// let envelope = home.recv(Match::any(), &mut buf)?;
    /// assert_eq!((envelope.source, &buf[..envelope.len]), (away.id(), &b"hello"[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.udp.listen.push(address);
        self
    }

    /// Has the node take part in a network by way of a node at this UDP address, which has to answer before it has joined: within the
    /// [patience](Self::patience). May be said several times. That node tells of the others; and the first of them
    /// gives this node its id, the highest that is free, unless [`id`](Self::id) says one. Let all nodes connect to the same first
    /// one, then no two get one id.
    pub fn connect(mut self, address: SocketAddr) -> Self {
        self.udp.connect.push(address);
        self
    }

    /// Has the node look for another at this UDP address, now and every few seconds: it need not be there. May be said several times. Nodes
    /// that all [listen](Self::listen) at known addresses and seek each other need no first one, but ids of their own.
    pub fn seek(mut self, address: SocketAddr) -> Self {
        self.udp.seek.push(address);
        self
    }

    /// The file with the key that all nodes of the domain share: 32 bytes, or 64 hexadecimal digits, which only its owner may read. With a
    /// key every conversation over the network is authenticated and encrypted; without, only the loopback interface is used.
    ///
    /// # Errors
    /// [`Error::Udp`]: it can't be read, others can read it, or it holds something else.
    pub fn key_file(mut self, path: impl AsRef<Path>) -> Result<Self> {
        self.udp.key = Some(read_key(path.as_ref())?);
        Ok(self)
    }

    /// The key itself.
    pub fn key(mut self, key: [u8; 32]) -> Self {
        self.udp.key = Some(DomainKey(key));
        self
    }

    /// Which fabrics to use: by default shared memory where there is any, and else the network.
    pub fn fabric(mut self, fabric: FabricKind) -> Self {
        self.fabric = fabric;
        self
    }

    /// How to wait for datagrams: by io_uring, or by `ppoll` and a second thread. By default by io_uring where it can be had. Plain calls of the
    /// socket send and receive the datagrams in any case.
    pub fn udp_port(mut self, kind: PortKind) -> Self {
        self.udp.port = kind;
        self
    }

    /// After what silence a node on the network counts as dead; a second if nothing is said.
    pub fn dead_after(mut self, silence: Duration) -> Self {
        self.udp.dead_after = silence;
        self
    }

    /// Has a policy decide by which fabric, link and protocol each message goes: see [`mode`](crate::mode). Without one, what a call asks for is
    /// done, and a message that asks for nothing takes the shortest path. With one, every send enters the engine: from within
    /// [`recv_with`](Node::recv_with) it returns [`Error::Reentrant`].
    pub fn policy(mut self, policy: impl Policy + 'static) -> Self {
        self.modes.policy = Some(Arc::new(policy));
        self
    }

    /// What a call of this node asks for that asks for nothing: all of it, or the parts that the call leaves open.
    pub fn default_mode(mut self, call: Call, mode: ModeRequest) -> Self {
        self.modes.defaults[call as usize] = mode;
        self
    }

    /// Whether the node has a DMA engine of its own; it has one if nothing is said. Without, it puts nothing into the memory of others by itself:
    /// it asks them by message to fetch what it sends (remote get). What nobody can fetch goes through the lanes.
    pub fn engine(mut self, has_engine: bool) -> Self {
        self.modes.has_engine = has_engine;
        self
    }

    /// Seeded faults in the lanes, for tests.
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Has the node carry a service of the program, which [`ServiceHandle`](super::ServiceHandle) reaches. `make` makes it when the node joins, which fails with
    /// [`Error::Invalid`] if there is another service for packets of its class. The service gets its packets while threads wait in calls of the node. At other times the poller turns it, and wakes some
    /// hundred times a second for that; a node under [`Progress::Inline`] has no poller.
    pub fn service<S: Class>(mut self, make: impl Fn() -> S + Send + Sync + 'static) -> Self {
        self.services.0.push(Arc::new(move |shared: &Arc<Shared>| {
            if !is_of_program(S::CLASS) {
                let what =
                    format!("packets of the class {:?} belong to the engine; give the service one of User0 to User3", S::CLASS);
                return Err(Error::Invalid { what });
            }
            shared.register(make())?;
            // Peers may ask at any time: the poller serves them when no thread of this node waits in a call.
            shared.began();
            Ok(())
        }));
        self
    }

    /// Joins the domain, and creates it if nobody is there. Control path: files are made and mapped, some milliseconds; on a network
    /// until those answered that have to.
    ///
    /// # Errors
    /// [`Error::Shm`]: the name is malformed, the id is taken, the domain is full or of another layout, there is no room in
    /// `/dev/shm`, or others did not finish joining or leaving within the patience. [`Error::Udp`]: the address can't be had, there is no key
    /// where one is needed, nobody answers, or whoever does refuses this node. [`Error::Invalid`]: [`FabricKind::Udp`] without a network.
    pub fn join(mut self) -> Result<Node> {
        let deadline = world::now() + self.patience.min(Duration::from_secs(1 << 30));
        let is_networked = self.udp.is_used() && self.fabric != FabricKind::Shm;
        if self.fabric == FabricKind::Udp {
            if !is_networked {
                let what = "the network alone is no way to others as long as none is named: say where to listen, to whom to connect, or both";
                return Err(Error::Invalid { what: what.into() });
            }
            // An island of its own: it shares memory with nobody.
            self.space = Space::heap();
        }
        let membership = if is_networked { self.join_networked(deadline)? } else { self.join_here(deadline)? };
        let network = if is_networked { Some(self.enter_network(&membership, deadline)?) } else { None };
        let fabric = ShmFabric::new(Arc::new(membership), self.faults);
        let has_poller = self.progress != Progress::Inline || is_networked;
        let settings = EngineSettings {
            pool_bytes: self.pool_bytes,
            calls: self.wait != Wait::Spin,
            adaptive: has_poller && self.progress != Progress::Poller,
            copy: self.copy,
            fifo_from_high: self.fifo_from_high,
            loan_bytes: self.loan_bytes,
            bulk_bytes: self.bulk_bytes,
            modes: Arc::new(self.modes),
        };
        let shared = Arc::new(Shared::new(fabric, network, self.wait, self.progress, settings));
        shared.heed_gathering();
        let installed = install::all(&shared).and_then(|()| self.services.0.iter().try_for_each(|service| service(&shared)));
        let node = Node::start(shared, has_poller && installed.is_ok())?;
        if let Err(error) = installed {
            node.leave()?;
            return Err(error);
        }
        Ok(node)
    }

    fn join_here(&self, deadline: Instant) -> Result<Membership> {
        let least_incarnation = if self.udp.is_used() { next_life() } else { Incarnation(0) };
        Ok(Membership::join(JoinOptions {
            domain: self.domain.clone(),
            space: self.space.clone(),
            id: self.id,
            role: self.role,
            label: self.label.clone(),
            max_nodes: self.max_nodes,
            lanes: self.lanes,
            least_incarnation,
            networked: self.udp.is_used() && self.fabric != FabricKind::Shm,
            deadline,
        })?)
    }

    /// Joins with an id that the node gives which it connects to first, if it was told none.
    fn join_networked(&mut self, deadline: Instant) -> Result<Membership> {
        if self.id.is_some() || self.udp.connect.is_empty() {
            return self.join_here(deadline);
        }
        let about = About { role: self.role, pid: std::process::id(), label: self.label.clone(), nonce: 0 };
        let mut taken = Vec::new();
        loop {
            let grant = ask(&self.domain, &about, &taken, &self.udp, deadline)?;
            (self.id, self.max_nodes) = (Some(grant.node), grant.max_nodes);
            match self.join_here(deadline) {
                // By one that joined without asking.
                Err(Error::Shm(error)) if matches!(*error, ShmError::IdTaken { .. }) && taken.len() < GRANTS_MAX => {
                    taken.push(grant.node);
                }
                joined => return joined,
            }
        }
    }

    fn enter_network(&self, membership: &Membership, deadline: Instant) -> Result<Network> {
        let me = (membership.id(), membership.incarnation());
        let about = About { role: self.role, pid: std::process::id(), label: self.label.clone(), nonce: membership.nonce() };
        let (udp, port) = UdpFabric::open(&self.domain, me, about, membership.max_nodes(), &self.udp, deadline)?;
        Ok(Network::new(udp, port, self.udp.dead_after, !self.udp.seek.is_empty()))
    }
}

/// An incarnation that no earlier life of any node of this machine had, as far as the clock goes forward: milliseconds of the last 24 days.
fn next_life() -> Incarnation {
    static LATEST: AtomicU32 = AtomicU32::new(0);
    let now = world::since_epoch().as_millis() as u32 & 0x7fff_ffff;
    let before = LATEST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |latest| Some(now.max(latest.wrapping_add(1))));
    Incarnation(before.map_or(now, |latest| now.max(latest.wrapping_add(1))))
}

/// Addresses, with commas between them.
#[derive(Default)]
struct Addresses(Vec<SocketAddr>);

impl FromStr for Addresses {
    type Err = std::net::AddrParseError;

    fn from_str(words: &str) -> Result<Self, Self::Err> {
        words.split(',').map(|word| word.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

/// A variable of the environment, if it is set.
fn env<T: FromStr<Err: std::fmt::Display>>(name: &str) -> Result<Option<T>> {
    match std::env::var(name) {
        Ok(word) => match word.parse() {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(Error::Invalid { what: format!("the environment variable {name} is malformed: {error}") }),
        },
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Error::Invalid { what: format!("the environment variable {name} is not text") })
        }
    }
}

impl Node {
    /// Begins to join a domain. Nothing happens before [`NodeBuilder::join`].
    ///
    /// Names have 1 to 64 characters out of `A-Z a-z 0-9 _ -`.
    pub fn builder(domain: impl Into<String>) -> NodeBuilder {
        NodeBuilder::new(domain.into())
    }

    /// Joins as the environment says that `doorbell run` sets: `DOORBELL_DOMAIN`, and if set `DOORBELL_NODE`,
    /// `DOORBELL_NODES` (how many there will be), `DOORBELL_ROLE`, `DOORBELL_PROGRESS`, `DOORBELL_WAIT`, `DOORBELL_COPY`; and for a network
    /// `DOORBELL_LISTEN`, `DOORBELL_CONNECT`, `DOORBELL_SEEK` (addresses, with commas between them), `DOORBELL_KEY_FILE`, `DOORBELL_FABRIC`
    /// (auto, shm or udp) and `DOORBELL_PORT` (auto, io_uring or plain).
    ///
    /// # Errors
    /// [`Error::Invalid`] names the variable that is missing or malformed.
    pub fn from_env() -> Result<Node> {
        NodeBuilder::from_env()?.join()
    }
}
