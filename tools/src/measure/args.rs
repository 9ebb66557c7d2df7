//! The options of `latency`, `rate` and `bandwidth`.

use super::{Leg, NetArgs, PassingKey, Place, Plan, Size, Test};
use crate::exit::Failure;
use crate::experiment::{ProcessArgs, Setting};
use crate::text::{Format, word, words};
use doorbell::{CopySide as Copier, Progress, Wait};

/// Options of every command that measures pairs of processes.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("domain", |domain| domain.help(DOMAIN)))]
pub struct MeasureArgs {
    /// Messages that count for each size, over all sections [default: as many as a second or so allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub iterations: Option<u64>,
    /// Pairs of processes that measure at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub pairs: u16,
    #[command(flatten)]
    pub processes: ProcessArgs,
    /// Also measure the best that this machine can do, in turns with the driver
    #[arg(long)]
    pub floor: bool,
    /// Neither write messages before they are sent nor read them after they were received
    #[arg(long)]
    pub untouched: bool,
    /// Use a node that threads share, instead of a peer that belongs to one thread
    #[arg(long)]
    pub shared: bool,
    /// Form of the output
    #[arg(long, value_enum, value_name = "FORM", default_value = "table")]
    pub format: Format,
    #[command(flatten)]
    pub net: NetArgs,
}

/// Options of the commands that measure long messages.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct TransferArgs {
    /// Where the bytes of messages lie, at both ends [default: registered]
    #[arg(long, value_enum, value_name = "WHERE")]
    pub buffers: Option<Place>,
    /// Which process copies long messages: the origin, the target, both, each from its end, or auto, as the driver thinks best. Over UDP
    /// `origin` and `both` store all messages longer than 32 KiB in the receiver's buffer as they arrive, and `target` sends them in packets
    #[arg(long, value_name = "WHICH", env = "DOORBELL_COPY", default_value_t, value_parser = words::<Copier>(&["origin", "target", "both", "auto"]))]
    pub copy: Copier,
}

impl TransferArgs {
    /// The plan with these options.
    pub fn apply(&self, plan: Plan) -> Result<Plan, Failure> {
        let copy = self.copy;
        if plan.setting.net.is_none() {
            return Ok(Plan { buffers: self.buffers.unwrap_or(Place::Registered), copy, ..plan });
        }
        if self.buffers == Some(Place::Registered) {
            return Err(Failure::usage("--buffers: over UDP all memory is private", "leave it out"));
        }
        Ok(Plan { copy, ..plan })
    }
}

const DOMAIN: &str = "The domain that the processes join [default: one of their own, and `measure` for two halves]";
/// The domain of two halves, which both know.
const HALVES: &str = "measure";
/// Bytes of the word that the target of a put polls.
pub const PUT_UNIT: usize = size_of::<u64>();

impl MeasureArgs {
    /// Whether messages are written before they are sent, and read after they were received.
    pub fn touches_bytes(&self) -> bool {
        self.floor || !self.untouched
    }

    /// The plan of a measurement of these sizes. `usual` gives the number of messages of a size if the command line does not, and `leg` divides
    /// them into sections.
    pub fn plan(
        &self,
        test: Test,
        sizes: &[Size],
        usual: impl Fn(usize) -> u64,
        leg: impl Fn(usize, usize) -> Leg,
    ) -> Result<Plan, Failure> {
        let is_half = self.net.half().is_some();
        let mut setting = self.processes.setting(&word(&test), if is_half { 1 } else { 2 * usize::from(self.pairs) }, None)?;
        if is_half && self.processes.domain.is_none() {
            setting.domain = HALVES.into();
        }
        let slower = if self.net.is_udp() { test.slower_over_udp(!is_half) } else { 1 };
        let legs = sizes.iter().map(|Size(bytes)| leg(*bytes, self.messages(usual(*bytes) / slower, &setting))).collect();
        let (pairs, floor, touched, shared) = (usize::from(self.pairs), self.floor, !self.untouched, self.shared);
        Ok(Plan { pairs, floor, touched, shared, ..Plan::new(test, setting, legs) })
    }

    /// The same plan, by puts if that is asked for. Only whole words are put: the last word says that the message has arrived.
    pub fn by_put(&self, put: bool, plan: Plan) -> Result<Plan, Failure> {
        match plan.legs.iter().find(|leg| put && (leg.bytes == 0 || !leg.bytes.is_multiple_of(PUT_UNIT))) {
            Some(leg) => {
                let what = format!("--put: {} are no whole number of words", Size(leg.bytes));
                Err(Failure::usage(what, format!("puts are measured in sizes that are multiples of {PUT_UNIT}")))
            }
            None => Ok(Plan { put, ..plan }),
        }
    }

    /// The same plan, over the network if that is asked for. The key has to live as long as the workers.
    pub fn over_network(&self, plan: Plan) -> Result<(Plan, Option<PassingKey>), Failure> {
        match self.net.net()? {
            None => Ok((plan, None)),
            Some((net, key)) => Ok((plan.over(Some(net))?, key)),
        }
    }

    /// The messages that count for one size: the number that was asked for, or the usual number divided by how much slower the setting is.
    fn messages(&self, usual: u64, setting: &Setting) -> usize {
        let slower = match (setting.wait, setting.progress) {
            (Wait::Spin, _) if setting.crowded => 100,
            (Wait::Park, _) => 20,
            (_, Progress::Poller) => 10,
            _ => 1,
        };
        self.iterations.unwrap_or((usual / slower).max(100)) as usize
    }
}
