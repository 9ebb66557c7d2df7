//! How the processes of an experiment run.

use crate::exit::warn;
use crate::measure::net::Net;
use doorbell::{Error, Node, NodeBuilder, Wait};
use doorbell_fabric::ParseIdError;
use serde::{Deserialize, Serialize};

/// Settings that all processes of an experiment share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The name of the domain.
    pub domain: String,
    /// Over the network, and how; through shared memory if nothing is said.
    pub net: Option<Net>,
    /// Who turns the engine.
    pub progress: String,
    /// How threads wait.
    pub wait: String,
    /// The processors on which they run in turn; wherever they like if there are none.
    pub pin: Vec<usize>,
    /// There are more of them than processors.
    pub crowded: bool,
}

impl Setting {
    /// The name of the fabric.
    pub fn fabric(&self) -> &'static str {
        if self.net.is_some() { "udp" } else { "shm" }
    }

    /// The fabric, in words.
    pub fn over(&self) -> String {
        self.net.as_ref().map_or_else(|| "over shared memory".into(), |net| format!("over udp {}", net.security()))
    }

    /// The processor of a process.
    pub fn processor(&self, process: usize) -> Option<usize> {
        if self.pin.is_empty() { None } else { Some(self.pin[process % self.pin.len()]) }
    }

    /// A node that runs so.
    pub fn builder(&self, label: &str) -> Result<NodeBuilder, Error> {
        let malformed = |error: ParseIdError| Error::Invalid { what: error.to_string() };
        let builder = Node::builder(&self.domain).label(label);
        let builder = builder.progress(self.progress.parse().map_err(malformed)?).wait(self.wait.parse().map_err(malformed)?);
        match &self.net {
            Some(net) => net.apply(builder),
            None => Ok(builder),
        }
    }

    /// Says on stderr what the reader of the figures should know. `who` takes the processors.
    pub fn doubt(&self, who: &str) {
        if self.pin.is_empty() {
            warn(FREE);
        }
        if self.crowded && self.wait == Wait::Spin.to_string() {
            warn(format_args!(
                "there are more {who} than processors, and who waits keeps the one it has: that is what --wait spin says"
            ));
        }
    }
}

/// The warning where processes have no processors of their own.
pub const FREE: &str = "the processes were free to change processors: --pin 0,1 gives steadier figures";
