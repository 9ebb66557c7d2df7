//! How the processes of an experiment run.

use super::Field;
use crate::environment::{Domain, space};
use crate::exit::{Failure, warn};
use crate::measure::Net;
use crate::processes::check_processors;
use doorbell::{Error, Node, NodeBuilder, PortKind, Progress, Wait};
use serde::{Deserialize, Serialize};

/// Settings that all processes of an experiment share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The name of the domain.
    pub domain: String,
    /// How to use the network; `None` means shared memory.
    pub net: Option<Net>,
    /// How to move datagrams, if a process uses the network without that.
    #[serde(with = "by_word")]
    pub port: PortKind,
    /// Which thread turns the engine.
    #[serde(with = "by_word")]
    pub progress: Progress,
    /// How threads wait.
    #[serde(with = "by_word")]
    pub wait: Wait,
    /// The processors on which the processes run in turn. Empty: the processes run anywhere.
    pub pin: Vec<usize>,
    /// There are more processes than processors.
    pub crowded: bool,
}

impl Setting {
    /// The usual setting of `processes` processes of an experiment, in this domain or in a new one.
    pub fn new(experiment: &str, domain: Option<&Domain>, pin: &[usize], processes: usize) -> Result<Self, Failure> {
        let allowed = check_processors("--pin", pin)?;
        let mut pinned = pin.to_vec();
        pinned.truncate(processes);
        pinned.sort_unstable();
        pinned.dedup();
        let processors = if pinned.is_empty() { allowed.len() } else { pinned.len() };
        let domain = domain.map_or_else(|| format!("{experiment}-{}", std::process::id()), |Domain(name)| name.clone());
        Ok(Self { domain, pin: pin.to_vec(), crowded: processes > processors, ..Self::default() })
    }

    /// The name of the fabric.
    pub fn fabric(&self) -> &'static str {
        if self.net.is_some() { "udp" } else { "shm" }
    }

    /// The fabric, in words.
    pub fn over(&self) -> String {
        self.net.as_ref().map_or_else(|| "over shared memory".into(), |net| format!("over udp {}", net.security()))
    }

    /// How threads carry messages and wait, in words.
    pub fn how(&self) -> String {
        format!("progress {}, wait {}", self.progress, self.wait)
    }

    /// The fields of the setting.
    pub fn fields(&self) -> [Field; 2] {
        [Field::of("progress", self.progress.to_string()), Field::of("wait", self.wait.to_string())]
    }

    /// The processor of a process.
    pub fn processor(&self, process: usize) -> Option<usize> {
        if self.pin.is_empty() { None } else { Some(self.pin[process % self.pin.len()]) }
    }

    /// A builder of a node that runs like this.
    pub fn builder(&self, label: &str) -> Result<NodeBuilder, Error> {
        let builder = Node::builder(&self.domain).label(label).space(space()).progress(self.progress).wait(self.wait);
        match &self.net {
            Some(net) => net.apply(builder),
            None => Ok(builder.udp_port(self.port)),
        }
    }

    /// Warns on stderr of what makes the figures less steady. `takers` names what takes the processors.
    pub fn doubt(&self, takers: &str) {
        if self.pin.is_empty() {
            warn(FREE);
        }
        if self.crowded && self.wait == Wait::Spin {
            warn(format_args!("there are more {takers} than processors, and with --wait spin a waiter keeps its processor"));
        }
    }
}

/// The warning where processes have no processors of their own.
pub const FREE: &str = "the processes were free to change processors: --pin 0,1 gives steadier figures";

/// Values that travel as the words by which they are parsed.
pub mod by_word {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use std::fmt::Display;
    use std::str::FromStr;

    pub fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
