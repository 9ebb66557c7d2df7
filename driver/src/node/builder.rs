//! How a node joins.

use super::{Node, Shared};
use crate::Result;
use crate::engine::poller::Progress;
use crate::engine::turn::EngineSettings;
use crate::engine::wait::Wait;
use crate::error::Error;
use crate::transfer::Copy;
use doorbell_fabric::{NodeId, Role};
use doorbell_shm::domain::{JoinOptions, Membership};
use doorbell_shm::fabric::ShmFabric;
use doorbell_shm::faults::Faults;
use doorbell_shm::layout::LaneGeometry;
use doorbell_shm::space::Space;
use std::str::FromStr;
use std::sync::Arc;
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
}

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

    /// How large the lanes of the domain are. Counts for the node that creates the domain.
    pub fn lanes(mut self, lanes: LaneGeometry) -> Self {
        self.lanes = lanes;
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

    /// Seeded faults in the lanes, for tests.
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Joins the domain, and creates it if nobody is there. Control path: files are made and mapped, some milliseconds.
    ///
    /// # Errors
    /// [`Error::Shm`]: the name is malformed, the id is taken, the domain is full or of another layout, there is no room in
    /// `/dev/shm`, or others did not finish joining or leaving within the patience.
    pub fn join(self) -> Result<Node> {
        let membership = Membership::join(JoinOptions {
            domain: self.domain,
            space: self.space,
            id: self.id,
            role: self.role,
            label: self.label,
            max_nodes: self.max_nodes,
            lanes: self.lanes,
            deadline: Instant::now() + self.patience.min(Duration::from_secs(1 << 30)),
        })?;
        let fabric = ShmFabric::new(Arc::new(membership), self.faults);
        let settings = EngineSettings {
            pool_bytes: self.pool_bytes,
            calls: self.wait != Wait::Spin,
            adaptive: self.progress == Progress::Adaptive,
            copy: self.copy,
            fifo_from_high: self.fifo_from_high,
            loan_bytes: self.loan_bytes,
            bulk_bytes: self.bulk_bytes,
        };
        let shared = Shared::new(fabric, self.wait, self.progress, settings);
        Node::start(Arc::new(shared), self.progress != Progress::Inline)
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
