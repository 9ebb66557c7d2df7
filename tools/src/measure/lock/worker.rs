//! One of the processes that lock. It joins the domain, and does its task.

use super::{Kind, Plan, Task, What};
use crate::exit::Explain;
use crate::experiment::{Experiment, Place, Trouble, leave, unless_stopped};
use crate::measure::receive;
use doorbell::{Error, LaneGeometry, Lock, Match, Node, NodeId, Resource};
use doorbell_benches::{Contended, Exclusive, PrivateWord, Samples, contend, ticks};
use serde::{Deserialize, Serialize};
use std::hint::black_box;

/// Sections of each kind, uncontended.
pub const ROUNDS: u64 = 200;
/// Locks of a section.
pub const PAIRS: u64 = 20_000;
/// Turns over a network that do not count, and the most turns that do.
const WARMUP: usize = 500;
const TURNS: usize = 20_000;
/// The coordinator of the lock over a network, and the node that locks in the uncontended section.
const HOME: NodeId = NodeId(0);
const OTHER: NodeId = NodeId(1);
/// The tag of messages there and back.
const TAG: u64 = 1;
/// The name of the lock.
const KEY: &str = "contended";
/// The smallest lanes: these processes send next to no messages.
pub const LANES: LaneGeometry = LaneGeometry { cells: [16; 3], data_bytes: [16 << 10; 3] };

/// The findings of one process; none of the coordinator of a lock that another node locks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    /// Of a lock that no other process wants: ticks of sections, or over a network of turns.
    pub times: Vec<(What, Samples)>,
    /// Of a lock that all processes want.
    pub seen: Vec<(What, Contended)>,
}

/// Everything that a task needs.
struct Prepared<'a> {
    plan: &'a Plan,
    place: &'a Place,
    node: Node,
    key: Lock,
}

/// Joins the domain, and does a task.
pub fn work(task: &Task, place: &Place) -> Result<Found, Trouble> {
    let (plan, nodes) = (&task.plan, task.processes());
    let node = place.join(&plan.setting, plan.setting.builder("lock").map(|builder| builder.lanes(LANES)), plan.nodes, nodes)?;
    // The node that opens the lock first becomes its coordinator, so process 0 opens it before the gate and the others behind it.
    if place.process > 0 {
        place.gate(nodes)?;
    }
    let key = Lock::open(&node, KEY, Resource::Unnamed).or_usage("could not open a lock", "")?;
    if place.process == 0 {
        place.gate(nodes)?;
    }
    let prepared = Prepared { plan, place, node: node.clone(), key };
    let done = match task.kind {
        Kind::Alone => alone(&prepared).map(|times| Found { times, ..Found::default() }),
        Kind::Remote => remote(&prepared).map(|times| Found { times, ..Found::default() }),
        Kind::Contended => contended(&prepared).map(|seen| Found { seen, ..Found::default() }),
    };
    leave(node, done)
}

fn alone(prepared: &Prepared<'_>) -> Result<Vec<(What, Samples)>, Trouble> {
    let (key, word) = (&prepared.key, PrivateWord::default());
    let (mut of_key, mut of_swaps) = (Samples::new(), Samples::new());
    // The first round does not count.
    for round in 0..=ROUNDS {
        unless_stopped(&prepared.place.patience)?;
        let began = ticks();
        for _ in 0..PAIRS {
            drop(key.lock()?);
        }
        let locked = ticks();
        if prepared.plan.floor {
            black_box(word.swap_there_and_back(PAIRS));
        }
        let swapped = ticks();
        if round > 0 {
            of_key.record(locked - began);
            of_swaps.record(swapped - locked);
        }
    }
    let floor = prepared.plan.floor.then_some((What::Swaps, of_swaps));
    Ok([(What::Key, of_key)].into_iter().chain(floor).collect())
}

/// The coordinator, and the process that measures.
fn remote(prepared: &Prepared<'_>) -> Result<Vec<(What, Samples)>, Trouble> {
    let found = if prepared.place.process == 0 { echo(prepared).map(|()| Vec::new()) } else { measure(prepared) }?;
    prepared.place.gate(2)?;
    Ok(found)
}

/// Sends back each message, until an empty one comes. The thread that waits for messages turns the engine, which also grants the lock.
fn echo(prepared: &Prepared<'_>) -> Result<(), Trouble> {
    let peer = prepared.node.peer(OTHER)?;
    let mut word = [0; 8];
    loop {
        let (_, len) = receive(&prepared.node, Match::from(OTHER), &mut word, None, &prepared.place.patience)?;
        if len == 0 {
            return Ok(());
        }
        peer.send(TAG, &word[..len])?;
    }
}

/// A message, a lock and an unlock in turns, so that a change of the machine's speed affects all alike.
fn measure(prepared: &Prepared<'_>) -> Result<Vec<(What, Samples)>, Trouble> {
    let Prepared { plan, place, node, key } = prepared;
    let span = (f64::from(plan.seconds) * 1e9 / place.ns_per_tick) as u64;
    let peer = node.peer(HOME)?;
    let (mut message, mut lock, mut unlock) = (Samples::new(), Samples::new(), Samples::new());
    let mut word = [0; 8];
    let start = ticks();
    for turn in 0..WARMUP + TURNS {
        let began = ticks();
        peer.send(TAG, &word)?;
        receive(node, Match::from(HOME), &mut word, None, &place.patience)?;
        let returned = ticks();
        let guard = key.lock()?;
        let locked = ticks();
        guard.unlock()?;
        let unlocked = ticks();
        let is_over = unlocked - start >= span;
        // At least one turn counts.
        if turn >= WARMUP || is_over {
            message.record(returned - began);
            lock.record(locked - returned);
            unlock.record(unlocked - locked);
        }
        if is_over {
            break;
        }
    }
    peer.send(TAG, &[])?;
    Ok(vec![(What::Message, message), (What::Lock, lock), (What::Unlock, unlock)])
}

/// A lock of the registry, as the exclusion that is measured.
struct ByKey<'a>(&'a Lock);

impl Exclusive for ByKey<'_> {
    type Error = Error;

    #[inline(always)]
    fn try_with(&mut self, inside: impl FnOnce()) -> Result<bool, Error> {
        let Some(guard) = self.0.try_lock()?.guard() else { return Ok(false) };
        inside();
        drop(guard);
        Ok(true)
    }

    #[inline(always)]
    fn with(&mut self, inside: impl FnOnce()) -> Result<(), Error> {
        let guard = self.0.lock()?;
        inside();
        drop(guard);
        Ok(())
    }
}

fn contended(prepared: &Prepared<'_>) -> Result<Vec<(What, Contended)>, Trouble> {
    let Prepared { plan, place, key, .. } = prepared;
    let (common, patience) = (place.mapping.common(), &place.patience);
    let span = (1e9 / place.ns_per_tick) as u64;
    let (mut of_key, mut of_mutex) = (Contended::default(), Contended::default());
    for _ in 0..plan.seconds {
        place.gate(plan.nodes)?;
        of_key = of_key.and(contend(&mut ByKey(key), &common.under_key, span, patience)?);
        if plan.floor {
            place.gate(plan.nodes)?;
            let seen = contend(&mut &common.mutex, &common.under_mutex, span, patience);
            let seen = seen.map_err(|error| Trouble::wrong(format_args!("the C library's mutex failed: {error}")))?;
            of_mutex = of_mutex.and(seen);
        }
    }
    // A process that leaves gives up its locks, and the others must not see that while they measure.
    place.gate(plan.nodes)?;
    Ok([(What::Key, of_key)].into_iter().chain(plan.floor.then_some((What::Mutex, of_mutex))).collect())
}
