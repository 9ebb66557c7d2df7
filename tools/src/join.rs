//! How commands join a domain: over shared memory, over a network, or both.

use crate::bridge::unknown;
use crate::environment::{Domain, PORT, chosen, key_file, space};
use crate::exit::Failure;
use doorbell::{Address, Error, FabricKind, Node, NodeBuilder, PortKind, Role, UdpError};
use doorbell_shm::error::ShmError;
use std::path::PathBuf;
use std::str::FromStr;

/// The option of every command that may use a network.
#[derive(Clone, Debug, clap::Args)]
pub struct PortArgs {
    /// How to move datagrams: uring: by io_uring; calls: by plain calls of the socket; auto: as `doorbell info` says; plain: by plain calls,
    /// and without io_uring to wait for them [env: DOORBELL_PORT=] [default: auto]
    #[arg(long = "port", value_name = "HOW", help_heading = "Over the network")]
    pub given: Option<PortKind>,
}

impl PortArgs {
    /// The kind of port, from the command line, else from the environment.
    pub fn kind(&self) -> Result<PortKind, Failure> {
        chosen(self.given, PORT)
    }
}

/// The fabrics by which a node reaches others.
#[derive(Clone, Debug, clap::Args)]
pub struct NetworkArgs {
    /// Listen for nodes of other machines at this UDP address: HOST:PORT; 0.0.0.0 is every address of this machine
    #[arg(long, value_name = "ADDR", help_heading = "Over the network", conflicts_with = "connect", value_parser = Address::from_str)]
    pub listen: Option<Address>,
    /// Join the domain by way of the node that listens at this UDP address: HOST:PORT
    #[arg(long, value_name = "ADDR", help_heading = "Over the network", value_parser = Address::from_str)]
    pub connect: Option<Address>,
    /// The file with the key that all nodes share: 32 bytes, readable by this user alone [env: DOORBELL_KEY_FILE=]
    #[arg(long, value_name = "FILE", help_heading = "Over the network")]
    pub key_file: Option<PathBuf>,
    #[command(flatten)]
    pub port: PortArgs,
    /// auto: shared memory if both nodes have it, otherwise the network; or shm or udp alone
    #[arg(long, value_name = "WHAT", help_heading = "Over the network", default_value = "auto")]
    pub fabric: FabricKind,
}

impl NetworkArgs {
    /// A builder of a node. `first` is the command that has to run first, at the address to connect to.
    pub fn builder(&self, domain: &Domain, role: Role, label: &str, first: &str) -> Result<NodeBuilder, Failure> {
        let mut builder = Node::builder(&domain.0).role(role).label(label).fabric(self.fabric).space(space());
        builder = builder.udp_port(self.port.kind()?);
        if let Some(at) = &self.listen {
            builder = builder.listen(at.clone());
        }
        if let Some(to) = &self.connect {
            builder = builder.connect(to.clone());
        }
        let is_networked = self.listen.is_some() || self.connect.is_some();
        match key_file(self.key_file.clone())? {
            Some(path) if is_networked => builder.key_file(path).map_err(|error| failure(error, first)),
            Some(_) if self.key_file.is_some() => {
                Err(Failure::usage("--key-file is for a domain on a network", "add --listen or --connect"))
            }
            _ => Ok(builder),
        }
    }
}

/// The failure of a node that could not join, with a hint for the command line. `first` is as in [`NetworkArgs::builder`].
pub fn failure(error: Error, first: &str) -> Failure {
    let failure = match &error {
        Error::Udp(udp) => of_network(&error, udp, first),
        Error::Shm(why) if matches!(**why, ShmError::OtherLayout { .. }) => {
            Failure::usage(&error, "`doorbell ls` shows which domains other builds made; join another one, or use --space")
        }
        _ => Failure::usage(&error, "`doorbell info` shows what this machine lacks"),
    };
    failure.see(&error)
}

fn of_network(error: &Error, why: &UdpError, first: &str) -> Failure {
    match why {
        UdpError::NoAnswer { address, .. } => Failure::failed(error, format!("{first} --listen {address}")),
        UdpError::NoneAnswers { place, .. } => Failure::failed(error, format!("{first} --listen {place}")),
        UdpError::Name { name, reason } => unknown(name, reason),
        UdpError::Listen { .. } => Failure::usage(error, "`ip addr` lists the addresses of this machine"),
        UdpError::NoKey { .. } => {
            Failure::usage(error, "`head -c 32 /dev/urandom > grid.key; chmod 600 grid.key` makes one for --key-file grid.key")
        }
        UdpError::KeyFile { .. } => Failure::usage(error, "--key-file wants the same file on both sides"),
        UdpError::Port(_) | UdpError::Option(_) => Failure::usage(error, "see --listen, --connect and --port in --help"),
        UdpError::Rejected { .. } => Failure::failed(error, "start both sides with the same options, and from the same release"),
        _ => Failure::failed(error, "see that the other side is still there, and try again"),
    }
}
