//! One of the two processes that carry out a load: one writes, and the other reads. Both use the same clock.

use super::{AsAsked, Run, Timeline, Watch, Watched, reader, writer};
use crate::experiment::{Place, Trouble, give_up, leave};
use doorbell::mode::{Policy, Thresholds};
use doorbell::{Node, NodeId};
use doorbell_benches::{Samples, Stopped};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub const WRITER: NodeId = NodeId(0);
pub const READER: NodeId = NodeId(1);
/// Both processes listen at these addresses, with a link at each.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2)];
/// After so long a silence the other process counts as dead. A busy machine answers sooner.
const SILENCE: Duration = Duration::from_secs(10);

/// Tags of messages.
pub const MESSAGE: u64 = 1;
pub const BACKGROUND: u64 = 2;
/// A phase was sent. The message holds the numbers of messages and of background messages.
pub const OVER: u64 = 3;
/// A phase was read.
pub const READ: u64 = 4;
/// A message that only probes a link or a mode.
pub const LOOK: u64 = 5;

/// The way of the messages of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// A policy decides.
    Policy {
        /// The policy.
        policy: Chooser,
        /// Whether a timeline is made.
        watched: bool,
    },
    /// All messages go by one mode.
    Fixed(String),
}

/// Policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Chooser {
    /// `Thresholds::new()`
    Thresholds,
    /// `Thresholds::tuned()`: with what `doorbell tune` found
    Tuned,
    /// Every request is honoured, as without a policy
    Asked,
}

impl Chooser {
    fn make(self) -> Box<dyn Policy> {
        match self {
            Chooser::Thresholds => Box::new(Thresholds::new()),
            Chooser::Tuned => Box::new(Thresholds::tuned()),
            Chooser::Asked => Box::new(AsAsked),
        }
    }
}

/// The findings of one process: of the writer, or of the reader for each phase.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    pub written: Option<Written>,
    pub read: Vec<ReadPhase>,
}

/// The findings of the writer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Written {
    /// The links between the processes.
    pub links: Vec<String>,
    /// Why the load cannot go by this way, if it cannot.
    pub unavailable: Option<String>,
    /// The phases.
    pub phases: Vec<WrittenPhase>,
    /// The timeline, if the policy was watched.
    pub timeline: Option<Timeline>,
}

/// A phase of the writer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WrittenPhase {
    /// When it began, by the clock of both processes.
    pub start: u64,
    /// How many messages took each mode, by their receipts.
    pub used: BTreeMap<String, u64>,
    /// The same for the background.
    pub background: BTreeMap<String, u64>,
}

/// A phase of the reader.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReadPhase {
    /// Messages that came in order and whole.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When the reader had the last one.
    pub end: u64,
    /// Nanoseconds from the time when a message was due, or handed over, until the reader had it.
    pub latency: Samples,
    /// Messages of the background.
    pub background: u64,
    /// Their bytes.
    pub background_bytes: u64,
}

/// How far this process is, for the thread that watches over it.
#[derive(Debug, Default)]
pub struct Progress {
    pub phase: AtomicU64,
    pub message: AtomicU64,
    is_over: AtomicBool,
}

/// Joins the domain, and writes or reads.
pub fn work(run: &Run, place: &Place) -> Result<Found, Trouble> {
    let at = Arc::new(Progress::default());
    watch_over(run, place, &at);
    let done = join(run, place).and_then(|(node, watch)| {
        let done = match place.process {
            0 => {
                writer::write(run, &node, watch.as_deref(), &at).map(|written| Found { written: Some(written), read: Vec::new() })
            }
            _ => reader::read(run, &node, &at).map(|read| Found { written: None, read }),
        };
        leave(node, done)
    });
    at.is_over.store(true, Ordering::Relaxed);
    done
}

/// Ends this process when it is told to stop, or when it hangs. A receive without a deadline notices neither.
fn watch_over(run: &Run, place: &Place, at: &Arc<Progress>) {
    let (stop, at, limit) = (place.stop.clone(), at.clone(), Duration::from_secs(run.limit_s));
    let (verb, phases) = (if place.process == 0 { "sent" } else { "read" }, run.load.phases.clone());
    let begun = Instant::now();
    thread::spawn(move || {
        while !at.is_over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(50));
            if stop.load(Ordering::Relaxed) {
                give_up::<Run>(Stopped.into());
            }
            if begun.elapsed() > limit {
                let phase = at.phase.load(Ordering::Relaxed) as usize;
                let name = phases.get(phase).map_or("", |phase| &phase.name);
                let message = at.message.load(Ordering::Relaxed);
                let what = format!("after {} s it hangs: phase '{name}', {message} messages {verb}", limit.as_secs());
                give_up::<Run>(Trouble::Wrong(what));
            }
        }
    });
}

type Joined = (Node, Option<Arc<Watch>>);

fn join(run: &Run, place: &Place) -> Result<Joined, Trouble> {
    let builder = run.setting.builder("modes").map(|builder| builder.max_nodes(2).dead_after(SILENCE));
    let mut watch = None;
    let builder = builder.map(|builder| match run.way {
        Way::Policy { policy, watched: true } if place.process == 0 => {
            builder.policy(Watched(watch.insert(Watch::new(policy.make())).clone()))
        }
        Way::Policy { policy: Chooser::Thresholds, .. } if place.process == 0 => builder.policy(Thresholds::new()),
        Way::Policy { policy: Chooser::Tuned, .. } if place.process == 0 => builder.policy(Thresholds::tuned()),
        Way::Policy { policy: Chooser::Asked, .. } if place.process == 0 => builder.policy(AsAsked),
        _ => builder,
    });
    Ok((place.join_at(&ADDRESSES, &run.setting, builder, 2)?, watch))
}
