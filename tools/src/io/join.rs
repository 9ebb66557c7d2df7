//! How these commands join a domain.

use crate::environment::{Address, Domain, key_file, port};
use crate::exit::Failure;
use doorbell::io::{IoClient, IoClientBuilder};
use doorbell::{Error, FabricKind, Node, NodeBuilder, PortKind, Role, UdpError};
use std::path::PathBuf;
use std::time::Duration;

/// Options of every command that joins.
#[derive(Clone, Debug, clap::Args)]
pub struct JoinArgs {
    /// The domain
    #[arg(long, value_name = "NAME", env = "DOORBELL_DOMAIN", default_value = "files")]
    pub domain: Domain,
    /// Have nodes of other machines find this one at this UDP address
    #[arg(long, value_name = "ADDR", help_heading = "Over the network", conflicts_with = "connect")]
    pub listen: Option<Address>,
    /// Join the domain by way of the node that listens at this UDP address
    #[arg(long, value_name = "ADDR", help_heading = "Over the network")]
    pub connect: Option<Address>,
    /// The file with the key that all share: 32 bytes, for this user alone [env: DOORBELL_KEY_FILE=]
    #[arg(long, value_name = "FILE", help_heading = "Over the network")]
    pub key_file: Option<PathBuf>,
    /// How to wait for datagrams: auto, io_uring or plain [env: DOORBELL_PORT=] [default: auto]
    #[arg(long, value_name = "HOW", help_heading = "Over the network")]
    pub port: Option<PortKind>,
    /// auto: shared memory where there is any, else the network; or shm or udp alone
    #[arg(long, value_name = "WHAT", help_heading = "Over the network", default_value = "auto")]
    pub fabric: FabricKind,
}

impl JoinArgs {
    /// Joins.
    pub fn join(&self, role: Role, label: &str) -> Result<Node, Failure> {
        self.join_with(role, label, |builder| builder)
    }

    /// Joins as something else, too.
    pub fn join_with(&self, role: Role, label: &str, with: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Result<Node, Failure> {
        with(self.builder(role, label)?).join().map_err(failure)
    }

    fn builder(&self, role: Role, label: &str) -> Result<NodeBuilder, Failure> {
        let mut builder = Node::builder(&self.domain.0).role(role).label(label).fabric(self.fabric);
        builder = builder.udp_port(port(self.port)?);
        if let Some(Address(at)) = self.listen {
            builder = builder.listen(at);
        }
        if let Some(Address(to)) = self.connect {
            builder = builder.connect(to);
        }
        let is_networked = self.listen.is_some() || self.connect.is_some();
        match key_file(self.key_file.clone())? {
            Some(path) if is_networked => builder.key_file(path).map_err(failure),
            Some(_) if self.key_file.is_some() => {
                Err(Failure::usage("--key-file is for a domain on a network", "add --listen or --connect"))
            }
            _ => Ok(builder),
        }
    }
}

/// Options of every command that is a client.
#[derive(Clone, Debug, clap::Args)]
pub struct ClientArgs {
    /// How long the I/O node may take for each answer, from 1 on [default: as long as it lives, and ten seconds for the first]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    patience: Option<u32>,
    #[command(flatten)]
    join: JoinArgs,
}

impl ClientArgs {
    /// Joins, to be a client.
    pub fn join(&self, label: &str) -> Result<Node, Failure> {
        self.join.join(Role::Host, label)
    }

    /// How to become a client.
    pub fn client(&self, node: &Node) -> IoClientBuilder {
        let patience = self.patience.map(|seconds| Duration::from_secs(seconds.into()));
        patience.into_iter().fold(IoClient::builder(node), IoClientBuilder::patience)
    }
}

/// Why a node could not join, and what to do on a command line.
fn failure(error: Error) -> Failure {
    let Error::Udp(udp) = &error else { return Failure::usage(error, "`doorbell info` shows what this machine lacks") };
    match &**udp {
        UdpError::NoAnswer { address, .. } => {
            Failure::failed(&error, format!("start the I/O node there first: doorbell io serve DIR --listen {address}"))
        }
        UdpError::NoKey { .. } => {
            Failure::usage(&error, "`head -c 32 /dev/urandom > grid.key; chmod 600 grid.key` makes one for --key-file grid.key")
        }
        UdpError::KeyFile { .. } => Failure::usage(&error, "--key-file wants the same file on both sides"),
        _ => Failure::usage(error, "see --listen, --connect and --port in --help"),
    }
}
