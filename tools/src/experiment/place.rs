//! What a process of an experiment has at hand.

use super::setting::Setting;
use super::{Experiment, Order, Trouble};
use crate::exit::Failure;
use crate::measure::net;
use crate::processes::requests_to_end;
use doorbell::{Error, Node, NodeBuilder, NodeId};
use doorbell_benches::floor::{Mapping, Patience, Stopped};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How long the other processes may take to start.
const START: Duration = Duration::from_secs(20);

/// What a process of an experiment has at hand: it is on its processor, and will be told to stop.
pub struct Place {
    /// Which of the processes it is.
    pub process: usize,
    /// The memory that all share.
    pub mapping: Mapping,
    /// Says when to stop.
    pub patience: Patience,
    /// The same as a word.
    pub stop: Arc<AtomicBool>,
    /// Nanoseconds in a tick.
    pub ns_per_tick: f64,
    /// When the measurement began, by the clock that all share.
    pub began_ns: u64,
}

impl Place {
    /// Takes the place that was ordered.
    pub(super) fn take<E: Experiment>(order: &Order<E>, stop: &Arc<AtomicBool>) -> Result<Self, Trouble> {
        let Order { plan, process, memory, parent, ns_per_tick, began_ns } = order;
        // A worker whose command is gone has nobody to answer to.
        set_pdeathsig(Signal::SIGTERM)
            .map_err(|error| Trouble::unable("could not ask for a signal when the command ends", error))?;
        for signal in requests_to_end() {
            signal_hook::flag::register(signal as i32, stop.clone())
                .map_err(|error| Trouble::unable("could not set a signal handler", error))?;
        }
        if getppid() != Pid::from_raw(*parent) {
            return Err(Stopped.into());
        }
        pin(plan.processors(*process))?;
        // SAFETY: the descriptor was made for this process, and nothing has used it yet.
        let mapping = unsafe { Mapping::inherit(*memory, plan.shape()) }
            .map_err(|error| Trouble::unable("could not map the memory that the processes of a measurement share", error))?;
        let patience = Patience::new(stop.clone(), plan.setting().crowded);
        Ok(Self { process: *process, mapping, patience, stop: stop.clone(), ns_per_tick: *ns_per_tick, began_ns: *began_ns })
    }

    /// Joins a domain for so many nodes under the number of the process, and waits for as many as are `here` at once. Over the network, the first
    /// process listens and the others join by way of it.
    pub fn join(
        &self,
        setting: &Setting,
        builder: Result<NodeBuilder, Error>,
        nodes: usize,
        here: usize,
    ) -> Result<Node, Trouble> {
        let why = |error: Error| {
            let what = format!("could not join the domain '{}' as node {}", setting.domain, self.process);
            Trouble::Unable(net::failure(error).of(what))
        };
        let mut builder = builder.map_err(why)?.id(NodeId(self.process as u16)).max_nodes(nodes);
        if setting.net.is_some() {
            let at = |port: u64| SocketAddr::from((Ipv4Addr::LOCALHOST, port as u16));
            builder = match self.process {
                0 => builder.listen(at(0)),
                _ => builder.connect(at(self.mapping.gate().read_note(&self.patience)?)),
            };
        }
        let node = builder.join().map_err(why)?;
        if let Some(address) = node.address().filter(|_| self.process == 0) {
            self.mapping.gate().leave_note(address.port().into());
        }
        match self.meet(&node, here) {
            Err(Trouble::Driver(error)) => Err(why(error)),
            met => met.map(|()| node),
        }
    }

    /// Waits until so many nodes are there.
    pub fn meet(&self, node: &Node, nodes: usize) -> Result<(), Trouble> {
        let deadline = Instant::now() + START;
        loop {
            if self.patience.stopped() {
                return Err(Stopped.into());
            }
            match node.wait_for(nodes, deadline.min(Instant::now() + Duration::from_millis(100))) {
                Ok(_) => return Ok(()),
                Err(Error::Timeout { .. }) if Instant::now() < deadline => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until so many processes are here.
    pub fn gate(&self, processes: usize) -> Result<(), Trouble> {
        Ok(self.mapping.gate().pass(processes, &self.patience)?)
    }
}

/// Leaves the domain, whatever came of the work.
pub fn leave<F>(node: Node, done: Result<F, Trouble>) -> Result<F, Trouble> {
    let left = node.leave();
    let found = done?;
    left?;
    Ok(found)
}

/// This thread, and those that it starts, may run on these processors; anywhere if there are none.
pub fn pin(processors: impl IntoIterator<Item = usize>) -> Result<(), Failure> {
    let processors: Vec<usize> = processors.into_iter().collect();
    if processors.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    let done = processors.iter().try_for_each(|processor| set.set(*processor));
    done.and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)).map_err(|error| {
        let words: Vec<String> = processors.iter().map(usize::to_string).collect();
        Failure::usage(format!("could not move to processor {}: {error}", words.join(",")), "")
    })
}
