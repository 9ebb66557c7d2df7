//! Options that the measuring commands share.

use super::Setting;
use crate::environment::Domain;
use crate::exit::Failure;
use crate::measure::Net;
use crate::text::{WAITS, words};
use doorbell::{Progress, Wait};

/// How the processes of a measurement run.
#[derive(Clone, Debug, clap::Args)]
pub struct ProcessArgs {
    /// Processors for the processes, in turn: with 0,1 every other process runs on each
    #[arg(long, value_name = "CPU,…", value_delimiter = ',')]
    pub pin: Vec<usize>,
    /// Which thread turns the engine: inline: the one that calls; poller: one of the node's own; adaptive: the one that waits
    #[arg(long, value_name = "WHICH", default_value_t, value_parser = words::<Progress>(&["inline", "poller", "adaptive"]))]
    pub progress: Progress,
    /// How threads wait: auto spins, then yields, then sleeps
    #[arg(long, value_name = "HOW", default_value_t, value_parser = words::<Wait>(WAITS))]
    pub wait: Wait,
    /// The domain that the processes join [default: one of their own]
    #[arg(long, value_name = "NAME")]
    pub domain: Option<Domain>,
}

impl ProcessArgs {
    /// The setting of `processes` processes of an experiment.
    pub fn setting(&self, experiment: &str, processes: usize, net: Option<Net>) -> Result<Setting, Failure> {
        let usual = Setting::new(experiment, self.domain.as_ref(), &self.pin, processes)?;
        Ok(Setting { net, progress: self.progress, wait: self.wait, ..usual })
    }
}
