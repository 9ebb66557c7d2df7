//! How the commands of `doorbell io` join a domain.

use crate::environment::Domain;
use crate::exit::Failure;
use crate::join::{NetworkArgs, failure};
use doorbell::io::{IoClient, IoClientBuilder};
use doorbell::{Node, NodeBuilder, Role};
use std::time::Duration;

/// The hint for clients of other machines that find no server.
const FIRST: &str = "start the I/O node there first: doorbell io serve DIR";

/// Options of every command that joins.
#[derive(Clone, Debug, clap::Args)]
pub struct JoinArgs {
    /// The domain
    #[arg(long, value_name = "NAME", env = "DOORBELL_DOMAIN", default_value = "files")]
    pub domain: Domain,
    #[command(flatten)]
    pub network: NetworkArgs,
}

impl JoinArgs {
    /// Joins.
    pub fn join(&self, role: Role, label: &str) -> Result<Node, Failure> {
        self.join_with(role, label, |builder| builder)
    }

    /// Joins, after a change of the builder.
    pub fn join_with(&self, role: Role, label: &str, with: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Result<Node, Failure> {
        let builder = self.network.builder(&self.domain, role, label, FIRST)?;
        with(builder).join().map_err(|error| failure(error, FIRST))
    }
}

/// Options of every command that is a client.
#[derive(Clone, Debug, clap::Args)]
pub struct ClientArgs {
    /// How long the I/O node may take for each answer, at least 1 [default: as long as it lives, and ten seconds for the first answer]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    patience: Option<u32>,
    #[command(flatten)]
    join: JoinArgs,
}

impl ClientArgs {
    /// Joins as a client.
    pub fn join(&self, label: &str) -> Result<Node, Failure> {
        self.join.join(Role::Host, label)
    }

    /// A builder of the client.
    pub fn client(&self, node: &Node) -> IoClientBuilder {
        let patience = self.patience.map(|seconds| Duration::from_secs(seconds.into()));
        patience.into_iter().fold(IoClient::builder(node), IoClientBuilder::patience)
    }
}
