//! How a node joins a domain.

#[cfg_attr(not(feature = "udp"), path = "builder/no_network.rs")]
mod network;

use super::Node;
use crate::Result;
use crate::board::monitor::BUILT_IN;
use crate::drive::poller::Progress;
use crate::drive::{Shared, install};
use crate::error::Error;
use crate::message::service::{Class, is_of_program};
use crate::mode::{Call, ModeRequest, Modes, Policy};
use crate::sync::wait::Wait;
use crate::transfer::CopySide;
use crate::turn::EngineSettings;
use doorbell_fabric::world;
use doorbell_fabric::{Incarnation, NodeId, Role};
use doorbell_shm::domain::{JoinOptions, Membership};
use doorbell_shm::fabric::ShmFabric;
use doorbell_shm::faults::Faults;
use doorbell_shm::layout::LaneGeometry;
use doorbell_shm::space::Space;
use network::NetworkOptions;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The settings of a node that has not joined yet. [`Node::builder`] makes one; nothing happens before [`join`](Self::join).
#[derive(Clone, Debug)]
#[must_use = "nothing happens before join()"]
pub struct NodeBuilder {
    /// How the node joins those that share memory. Its deadline is set when the node joins.
    here: JoinOptions,
    engine: EngineSettings,
    progress: Progress,
    wait: Wait,
    patience: Duration,
    faults: Option<Faults>,
    network: NetworkOptions,
    modes: Modes,
    services: Installs,
}

/// The functions that install the program's services in the node.
#[derive(Clone, Default)]
struct Installs(Vec<Arc<Install>>);

type Install = dyn Fn(&Arc<Shared>) -> Result<()> + Send + Sync;

impl std::fmt::Debug for Installs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} services", self.0.len())
    }
}

impl NodeBuilder {
    pub(super) fn new(domain: String) -> Self {
        Self {
            here: JoinOptions { max_nodes: 16, ..JoinOptions::new(domain, Space::posix()) },
            engine: EngineSettings::default(),
            progress: Progress::default(),
            wait: Wait::default(),
            patience: Duration::from_secs(10),
            faults: None,
            network: NetworkOptions::default(),
            modes: Modes::default(),
            services: Installs::default(),
        }
    }

    /// A builder with the settings of the environment: see [`Node::from_env`]. Later calls on the builder override them.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the variable that is missing or malformed.
    pub fn from_env() -> Result<Self> {
        let domain = env::<String>("DOORBELL_DOMAIN")?.ok_or_else(|| Error::Invalid {
            what: "DOORBELL_DOMAIN is not set; start the program with `doorbell run -n 2 -- PROGRAM`, or set it to the domain's name".into(),
        })?;
        let mut builder = Self::new(domain);
        builder.here.id = env("DOORBELL_NODE")?;
        if let Some(count) = env::<usize>("DOORBELL_NODES")? {
            builder.here.max_nodes = builder.here.max_nodes.max(count);
        }
        builder.here.role = env("DOORBELL_ROLE")?.unwrap_or_default();
        builder.progress = env("DOORBELL_PROGRESS")?.unwrap_or_default();
        builder.wait = env("DOORBELL_WAIT")?.unwrap_or_default();
        builder.engine.copy = env("DOORBELL_COPY")?.unwrap_or_default();
        if let Some(directory) = std::env::var_os("DOORBELL_SPACE").map(PathBuf::from) {
            if !directory.is_absolute() {
                let what = format!(
                    "the environment variable DOORBELL_SPACE is malformed: '{}' is no absolute path",
                    directory.display()
                );
                return Err(Error::Invalid { what });
            }
            builder.here.space = Space::posix_at(directory);
        }
        builder.network = NetworkOptions::from_env()?;
        Ok(builder)
    }

    /// The node's role in its domain. The default is a host.
    pub fn role(mut self, role: Role) -> Self {
        self.here.role = role;
        self
    }

    /// The node's id. The default is the lowest free one.
    pub fn id(mut self, id: impl Into<NodeId>) -> Self {
        self.here.id = Some(id.into());
        self
    }

    /// A label for people, shown by `doorbell ls`: 31 bytes at most.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.here.label = label.into();
        self
    }

    /// How many nodes the domain can have, from 2 to 1024. The default is 16. Only the node that creates the domain decides
    /// this. Each node's inbox reserves lanes for this many nodes.
    pub fn max_nodes(mut self, count: usize) -> Self {
        self.here.max_nodes = count;
        self
    }

    /// How many injection FIFOs the program and its peers may open in this node, up to 1000. The default is 28. Each takes 4.2 KiB of
    /// the node's board.
    pub fn injection_fifos(mut self, count: usize) -> Self {
        self.here.fifos = count.saturating_add(BUILT_IN);
        self
    }

    /// The size of the domain's lanes. In shared memory the node that creates the domain decides it. On a network each node
    /// decides the size of its own lanes; the default there is one MiB.
    pub fn lanes(mut self, lanes: LaneGeometry) -> Self {
        self.here.lanes = lanes;
        self.network.set_lanes(&lanes);
        self
    }

    /// Which thread turns the engine.
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// How threads of this node wait.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// The most bytes of unmatched messages that this node keeps. The default is 64 MiB. Beyond the limit, senders find their
    /// lanes full. A message that finds no room stays in its lane, and a receive does not see the messages behind it: receive
    /// that message first.
    pub fn pool_bytes(mut self, bytes: usize) -> Self {
        self.engine.pool_bytes = bytes;
        self
    }

    /// The most bytes of shared memory that this node takes for loans. The default is 64 MiB. The first loan takes one MiB.
    /// Each time more is needed, the node takes as much again as it has, or four times the loan if that is more. It gives the
    /// memory back when it leaves.
    pub fn loan_bytes(mut self, limit: usize) -> Self {
        self.engine.loan_bytes = limit;
        self
    }

    /// The most bytes of shared memory that this node takes for bulk rings. The default is 16 MiB. A bulk ring is twice as long as the
    /// largest power of two that fits into a processor's second-level cache, 256 KiB to 2 MiB, or shorter if this limit is. A conversation uses
    /// only as much of it as fits into that cache. A ring carries messages of 8 KiB and more in private memory to one target, where a copy by the
    /// kernel would be slower. A target gets a ring with its second such message that is sent without a deadline, by
    /// [`start_send`](crate::Peer::start_send) too, and not from within a callback. That send makes a file. The ring must take less than an
    /// eighth of the free memory. Without a ring, such messages take the lane's own, smaller ring.
    pub fn bulk_bytes(mut self, limit: usize) -> Self {
        self.engine.bulk_bytes = limit;
        self
    }

    /// Which side copies large messages: see [`CopySide`].
    pub fn copy(mut self, copy: CopySide) -> Self {
        self.engine.copy = copy;
        self
    }

    /// If true, the memory FIFO of a message that this node sends begins at the high end of the buffer, and direct puts begin
    /// at the low end. The default is the other way round. Only the order in which bytes arrive depends on it.
    pub fn fifo_from_high(mut self, from_high: bool) -> Self {
        self.engine.fifo_from_high = from_high;
        self
    }

    /// The timeout for other processes that are joining or leaving when this node joins. The default is ten seconds.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Where the segments are. The default is [`Space::posix`] (`/dev/shm`). Use [`Space::heap`] for tests within one process.
    pub fn space(mut self, space: Space) -> Self {
        self.here.space = space;
        self
    }

    /// Sets the policy that chooses the fabric, link and protocol of each message: see [`mode`](crate::mode). Without a policy,
    /// a call gets the mode that it requests, and a message without a request takes the shortest path. With a policy, every
    /// send enters the engine, so a send from within [`recv_with`](Node::recv_with) returns [`Error::Reentrant`].
    pub fn policy(mut self, policy: impl Policy + 'static) -> Self {
        self.modes.policy = Some(Arc::new(policy));
        self
    }

    /// The default mode for one kind of call. It applies to each part of the mode that a call does not request.
    pub fn default_mode(mut self, call: Call, mode: ModeRequest) -> Self {
        self.modes.defaults[call as usize] = mode;
        self
    }

    /// Whether the node has a DMA engine of its own. The default is true. A node without one puts nothing into the memory of
    /// other nodes: it sends them a message that asks them to fetch its data (remote get). Data that no node can fetch goes
    /// through the lanes.
    pub fn engine(mut self, has_engine: bool) -> Self {
        self.modes.has_engine = has_engine;
        self
    }

    /// Faults injected into the lanes from a seed, for tests.
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Installs a service of the program in the node. [`ServiceHandle`](super::ServiceHandle) reaches it. [`join`](Self::join)
    /// calls `make`, and fails with [`Error::Invalid`] if another service has packets of this class. The service gets its
    /// packets while threads wait in calls of the node. At other times the poller serves it, except under [`Progress::Inline`].
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

    /// Joins the domain, and creates it if no node is attached. This is a slow call: it creates and maps files, which takes
    /// some milliseconds. On a network it waits until the nodes that it [connects](Self::connect) to have answered.
    ///
    /// # Errors
    /// [`Error::Shm`]: the name is malformed, the id is taken, the domain is full or has another layout, `/dev/shm` has no
    /// room, or other nodes did not finish joining or leaving within the [timeout](Self::patience). [`Error::Udp`]: the address
    /// can't be used, a key is needed and missing, no node answers, or a node that answers refuses this one.
    /// [`Error::Invalid`]: [`FabricKind::Udp`](crate::links::FabricKind::Udp) was set without a network.
    pub fn join(mut self) -> Result<Node> {
        let deadline = world::now() + self.patience.min(Duration::from_secs(1 << 30));
        let (membership, network) = self.enter(deadline)?;
        let fabric = ShmFabric::new(Arc::new(membership), self.faults);
        let has_poller = self.progress != Progress::Inline || network.is_some();
        let settings = EngineSettings {
            calls: self.wait != Wait::Spin,
            adaptive: has_poller && self.progress != Progress::Poller,
            modes: Arc::new(self.modes),
            ..self.engine
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

    /// Joins the nodes that share memory.
    fn join_here(&self, networked: bool, least_incarnation: Incarnation, deadline: Instant) -> Result<Membership> {
        Ok(Membership::join(JoinOptions { networked, least_incarnation, deadline, ..self.here.clone() })?)
    }
}

/// The value of an environment variable, if it is set.
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
    /// Settings for a node of this domain. Nothing happens before [`NodeBuilder::join`].
    ///
    /// The name of a domain has 1 to 64 characters of `A-Z a-z 0-9 _ -`.
    pub fn builder(domain: impl Into<String>) -> NodeBuilder {
        NodeBuilder::new(domain.into())
    }

    /// Joins with the settings in the environment, which `doorbell run` sets. `DOORBELL_DOMAIN` is required. Optional are
    /// `DOORBELL_NODE`, `DOORBELL_NODES` (how many nodes there will be), `DOORBELL_ROLE`, `DOORBELL_PROGRESS`, `DOORBELL_WAIT`,
    /// `DOORBELL_COPY` and `DOORBELL_SPACE` (the directory of the segments); for a network `DOORBELL_LISTEN`,
    /// `DOORBELL_CONNECT`, `DOORBELL_SEEK` (addresses, separated by commas), `DOORBELL_KEY_FILE`, `DOORBELL_FABRIC` (auto, shm
    /// or udp) and `DOORBELL_PORT` (auto, uring, calls or plain).
    ///
    /// # Errors
    /// [`Error::Invalid`] names the variable that is missing or malformed. Otherwise as [`NodeBuilder::join`].
    pub fn from_env() -> Result<Node> {
        NodeBuilder::from_env()?.join()
    }
}
