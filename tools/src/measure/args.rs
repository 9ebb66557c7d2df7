//! What the measuring commands have in common on their command lines.

use super::net::{Half, NetArgs, PassingKey};
use super::plan::{COPIER_VARIABLE, Copier, Leg, Place, Plan, Test};
use super::report::Format;
use super::size::Size;
use crate::exit::Failure;
use crate::experiment::setting::Setting;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use doorbell::{Progress, Wait};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// Options of every command that measures.
#[derive(Clone, Debug, clap::Args)]
pub struct MeasureArgs {
    /// Processors on which the processes run, in turn: with 0,1 one side of each pair runs on each
    #[arg(long, value_name = "CPU,…", value_delimiter = ',')]
    pub pin: Vec<usize>,
    /// Messages that count for each size, over all sections [default: as many as a second or so allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub iterations: Option<u64>,
    /// Pairs of processes that measure at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub pairs: u16,
    /// Who turns the engine: the threads that call, a thread of the node, or whoever waits
    #[arg(long, value_name = "WHO", default_value_t = Progress::default(), value_parser = words::<Progress>(&["inline", "poller", "adaptive"]))]
    pub progress: Progress,
    /// How threads wait: auto spins, then yields, then sleeps
    #[arg(long, value_name = "HOW", default_value_t = Wait::default(), value_parser = words::<Wait>(&["auto", "spin", "yield", "park"]))]
    pub wait: Wait,
    /// Also measure what this machine can do at best, in turns with the driver
    #[arg(long)]
    pub floor: bool,
    /// Neither write messages before they are sent nor read them after they were received
    #[arg(long)]
    pub untouched: bool,
    /// Go through a node that threads share, instead of a peer that belongs to one
    #[arg(long)]
    pub shared: bool,
    /// Form of the output
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Format::Table)]
    pub format: Format,
    /// The domain that the processes join [default: one of their own, and `measure` for two halves]
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
    #[command(flatten)]
    pub net: NetArgs,
}

/// Options of the commands in which long messages matter.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct TransferArgs {
    /// Where the bytes of messages lie, at both ends [default: registered]
    #[arg(long, value_enum, value_name = "WHERE")]
    pub buffers: Option<Place>,
    /// Who copies long messages [default: auto]. Over UDP `origin` and `both` have all that are longer than 32 KiB stored where the
    /// receiver wants them as they arrive, and `target` sends them in packets
    #[arg(long, value_enum, value_name = "WHO", env = COPIER_VARIABLE)]
    pub copy: Option<Copier>,
}

impl TransferArgs {
    /// The plan with these.
    pub fn apply(&self, plan: Plan) -> Result<Plan, Failure> {
        let copy = self.copy.unwrap_or(Copier::Auto);
        if plan.setting.net.is_none() {
            return Ok(Plan { buffers: self.buffers.unwrap_or(Place::Registered), copy, ..plan });
        }
        if self.buffers == Some(Place::Registered) {
            return Err(Failure::usage("--buffers: over UDP all memory is private", "leave it out"));
        }
        Ok(Plan { copy, ..plan })
    }
}

/// The domain of two halves: both know it.
const HALVES: &str = "measure";
/// Bytes of the word that the target of a put polls.
pub const PUT_UNIT: usize = size_of::<u64>();

/// Words that a type knows, shown by `--help` and in errors.
pub fn words<T>(known: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(known).try_map(|word| word.parse::<T>())
}

impl MeasureArgs {
    /// Whether anybody reads or writes the bytes of a message, besides whoever carries it.
    pub fn touches_bytes(&self) -> bool {
        self.floor || !self.untouched
    }

    /// The plan of a measurement of these sizes. `usual` says how many messages of a size there are if nothing is said, and
    /// `leg` makes sections of them.
    pub fn plan(
        &self,
        test: Test,
        sizes: &[Size],
        usual: impl Fn(usize) -> u64,
        leg: impl Fn(usize, usize) -> Leg,
    ) -> Result<Plan, Failure> {
        let half = self.net.half();
        let crowded = crowded(&self.pin, if half.is_some() { 1 } else { 2 * usize::from(self.pairs) })?;
        let slower = if self.net.is_udp() { test.slower_over_udp() } else { 1 };
        let legs = sizes.iter().map(|Size(bytes)| leg(*bytes, self.messages(usual(*bytes) / slower, crowded)));
        let domain = || if half.is_some() { HALVES.into() } else { format!("{}-{}", test.name(), std::process::id()) };
        let setting = Setting {
            domain: self.domain.clone().unwrap_or_else(domain),
            net: None,
            progress: self.progress.to_string(),
            wait: self.wait.to_string(),
            pin: self.pin.clone(),
            crowded,
        };
        Ok(Plan {
            test,
            setting,
            pairs: usize::from(self.pairs),
            put: false,
            window: 1,
            loan: false,
            mode: None,
            both_ways: false,
            buffers: Place::Private,
            copy: Copier::Auto,
            legs: legs.collect(),
            floor: self.floor,
            touched: !self.untouched,
            shared: self.shared,
        })
    }

    /// A plan by puts, or the same plan. Only whole words are put: the last one says that all is there.
    pub fn by_put(&self, put: bool, plan: Plan) -> Result<Plan, Failure> {
        match plan.legs.iter().find(|leg| put && (leg.bytes == 0 || !leg.bytes.is_multiple_of(PUT_UNIT))) {
            Some(leg) => {
                let what = format!("--put: {} are no whole number of words", Size(leg.bytes));
                Err(Failure::usage(what, format!("puts are measured in sizes that are multiples of {PUT_UNIT}")))
            }
            None => Ok(Plan { put, ..plan }),
        }
    }

    /// The plan as it is carried out: over the network, if that is asked for. The key has to live as long as the workers.
    pub fn over_network(&self, plan: Plan) -> Result<(Plan, Option<PassingKey>), Failure> {
        match self.net.net()? {
            None => Ok((plan, None)),
            Some((net, key)) => Ok((plan.over(Some(net))?, key)),
        }
    }

    /// Which half of a measurement this command is, if it is one.
    pub fn half(&self) -> Option<Half> {
        self.net.half()
    }

    /// The messages that count for one size: as asked for, or as many as is usual and can be had in the time.
    fn messages(&self, usual: u64, crowded: bool) -> usize {
        let slower = match (self.wait, self.progress) {
            (Wait::Spin, _) if crowded => 100,
            (Wait::Park, _) => 20,
            (_, Progress::Poller) => 10,
            _ => 1,
        };
        self.iterations.unwrap_or((usual / slower).max(100)) as usize
    }
}

/// Whether there are more processes than processors for them: those that were named, or all that this process may use.
pub fn crowded(pin: &[usize], processes: usize) -> Result<bool, Failure> {
    let allowed =
        processors().map_err(|error| Failure::usage(format!("could not ask which processors there are: {error}"), ""))?;
    if let Some(missing) = pin.iter().find(|processor| !allowed.contains(processor)) {
        let list: Vec<String> = allowed.iter().map(usize::to_string).collect();
        let hint = format!("this process may run on {}", list.join(","));
        return Err(Failure::usage(format!("--pin: processor {missing} is not there"), hint));
    }
    let mut pinned = pin.to_vec();
    pinned.truncate(processes);
    pinned.sort_unstable();
    pinned.dedup();
    Ok(processes > if pinned.is_empty() { allowed.len() } else { pinned.len() })
}

/// The processors on which this process may run.
fn processors() -> nix::Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count()).filter(|processor| set.is_set(*processor) == Ok(true)).collect())
}
