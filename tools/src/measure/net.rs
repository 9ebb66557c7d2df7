//! Measurements over the network, even if the processes share a machine.

use super::Plan;
use crate::environment::key_file;
use crate::exit::{Explain, Failure};
use crate::experiment::{Field, Setting, by_word};
use crate::join::{self, PortArgs};
use doorbell::{Address, Error, FabricKind, Node, NodeBuilder, PortKind};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, fchmod};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// After so long a silence the other side counts as dead. A busy machine answers sooner.
const SILENCE: Duration = Duration::from_secs(5);
/// How long the other side may take to join.
const PATIENCE: Duration = Duration::from_secs(5);

/// The fabric of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Fabric {
    /// Shared memory
    Shm,
    /// UDP, even on one machine
    Udp,
}

/// Options of measurements over the network.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Over the network")]
pub struct NetArgs {
    /// The fabric of the messages; --listen and --connect mean udp
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Fabric::Shm, default_value_ifs = [("listen", clap::builder::ArgPredicate::IsPresent, "udp"), ("connect", clap::builder::ArgPredicate::IsPresent, "udp")])]
    fabric: Fabric,
    /// Be one half of a measurement: listen at this UDP address, HOST:PORT, and answer the other half, which connects to it
    #[arg(long, value_name = "ADDR", value_parser = Address::from_str, conflicts_with_all = ["connect", "with_key", "pairs", "floor"])]
    listen: Option<Address>,
    /// Be the other half: measure with the half that listens at this UDP address, HOST:PORT, and print the figures
    #[arg(long, value_name = "ADDR", value_parser = Address::from_str, conflicts_with_all = ["with_key", "pairs", "floor"])]
    connect: Option<Address>,
    /// Listen again after a measurement, until interrupted
    #[arg(long, requires = "listen", conflicts_with = "connect")]
    keep: bool,
    #[command(flatten)]
    udp: UdpArgs,
}

/// Options of every measurement over UDP.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Over the network")]
pub struct UdpArgs {
    /// The file with the key that all nodes share: 32 bytes, readable by this user alone [env: DOORBELL_KEY_FILE=]
    #[arg(long, value_name = "FILE", conflicts_with = "with_key")]
    key_file: Option<PathBuf>,
    /// Encrypt with a new key, which is thrown away afterwards
    #[arg(long)]
    with_key: bool,
    #[command(flatten)]
    port: PortArgs,
}

/// How workers use the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Net {
    /// The file with the key, if there is one.
    pub key_file: Option<PathBuf>,
    /// How to move datagrams.
    #[serde(with = "by_word")]
    pub port: PortKind,
    /// The address of the half that listens, if there are two halves.
    pub other: Option<String>,
}

/// Which half of a measurement this command is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Half {
    /// The half that listens, and answers.
    Listens { at: Address, keep: bool },
    /// The half that connects, and measures.
    Connects { to: Address },
}

/// A key in a nameless file in memory, which is gone with the last process that has it open.
#[derive(Debug)]
pub struct PassingKey {
    file: File,
}

impl PassingKey {
    fn make() -> std::io::Result<Self> {
        // Workers inherit the descriptor, under the same number.
        let mut file = File::from(memfd_create("doorbell-key", MFdFlags::empty())?);
        fchmod(&file, Mode::S_IRUSR | Mode::S_IWUSR)?;
        let mut key = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut key)?;
        file.write_all(&key)?;
        Ok(Self { file })
    }

    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}

impl NetArgs {
    /// Which half this is, if it is one.
    pub fn half(&self) -> Option<Half> {
        let listens = self.listen.clone().map(|at| Half::Listens { at, keep: self.keep });
        listens.or(self.connect.clone().map(|to| Half::Connects { to }))
    }

    /// Whether the measurement goes over the network.
    pub fn is_udp(&self) -> bool {
        self.fabric == Fabric::Udp
    }

    /// How workers use the network, if they do, and the key that has to live as long as they do.
    pub fn net(&self) -> Result<Option<(Net, Option<PassingKey>)>, Failure> {
        let given = [("--listen", self.listen.is_some()), ("--connect", self.connect.is_some())];
        let found = self.udp.net(self.fabric, &given)?;
        Ok(found.map(|(net, key)| (Net { other: self.connect.as_ref().map(Address::to_string), ..net }, key)))
    }
}

impl UdpArgs {
    /// How workers use the network, if they do, and the key that has to live as long as they do. If they do not, these options are refused,
    /// and so are those of the command that are `given`.
    pub fn net(&self, fabric: Fabric, given: &[(&str, bool)]) -> Result<Option<(Net, Option<PassingKey>)>, Failure> {
        if fabric == Fabric::Shm {
            let own =
                [("--key-file", self.key_file.is_some()), ("--with-key", self.with_key), ("--port", self.port.given.is_some())];
            return match given.iter().chain(&own).find(|(_, is_given)| *is_given) {
                Some((option, _)) => {
                    Err(Failure::usage(format!("{option} is for measurements over the network"), "add --fabric udp"))
                }
                None => Ok(None),
            };
        }
        let passing = self.with_key.then(PassingKey::make).transpose();
        let passing = passing.or_usage("could not make a key", "make one in a file, and use --key-file")?;
        let key_file = match &passing {
            Some(key) => Some(key.path()),
            None => key_file(self.key_file.clone())?,
        };
        // Read here, so that the command reports a mistake before it starts anything.
        if let Some(path) = &key_file {
            let _ = Node::builder("key").key_file(path).map_err(failure)?;
        }
        let port = self.port.kind()?;
        Ok(Some((Net { key_file, port, other: None }, passing)))
    }
}

impl Net {
    /// Whether there is a key, in words.
    pub fn security(&self) -> &'static str {
        if self.key_file.is_some() { "with a key" } else { "without a key" }
    }

    /// The fields of the network.
    pub fn fields(&self) -> [Field; 2] {
        [Field::of("key", self.key_file.is_some()), Field::of("port", self.port.to_string())]
    }

    /// A builder of a node that uses the network alone.
    pub fn apply(&self, builder: NodeBuilder) -> Result<NodeBuilder, Error> {
        let builder = builder.fabric(FabricKind::Udp).udp_port(self.port).dead_after(SILENCE).patience(PATIENCE);
        match &self.key_file {
            Some(path) => builder.key_file(path),
            None => Ok(builder),
        }
    }
}

impl Plan {
    /// The same plan over the network, if the network can carry it out.
    pub fn over(self, net: Option<Net>) -> Result<Self, Failure> {
        if net.is_none() {
            return Ok(self);
        }
        let refuse = |what: &str, hint: &str| Err(Failure::usage(format!("{what} over UDP"), hint));
        match &self {
            Plan { loan: true, .. } => refuse("nothing can be lent", "leave out --loan"),
            Plan { floor: true, both_ways: true, .. } => {
                refuse("there is no floor of both ways at once", "leave out --floor or --both-ways")
            }
            _ => Ok(Plan { setting: Setting { net, ..self.setting }, ..self }),
        }
    }
}

/// The failure of a node that could not join, with a hint for the command line.
pub fn failure(error: Error) -> Failure {
    join::failure(error, "start the other half there first, with")
}
