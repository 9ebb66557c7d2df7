//! The surroundings of a process of an experiment.

use super::{Experiment, Order, Setting, Trouble};
use crate::exit::{Explain, Failure};
use crate::measure::net;
use crate::processes::{EndRequest, joined, run_on};
use doorbell::{Error, Node, NodeBuilder, NodeId};
use doorbell_benches::{Mapping, Patience, Stopped};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How long the other processes may take to start.
const START: Duration = Duration::from_secs(20);

/// The surroundings of a process of an experiment. The process runs on its processors, and signals set its flag.
pub struct Place {
    /// The number of the process.
    pub process: usize,
    /// The memory that all processes share.
    pub mapping: Mapping,
    /// Says when to stop.
    pub patience: Patience,
    /// The flag behind `patience`.
    pub stop: Arc<AtomicBool>,
    /// Nanoseconds in a tick.
    pub ns_per_tick: f64,
    /// When the measurement began, by the clock that all processes share.
    pub began_ns: u64,
}

impl Place {
    /// Makes this process the one that the order names.
    pub(super) fn take<E: Experiment>(order: &Order<E>, request: &EndRequest) -> Result<Self, Trouble> {
        let Order { plan, process, memory, parent, ns_per_tick, began_ns } = order;
        // When the command ends, its workers have to end, too.
        set_pdeathsig(Signal::SIGTERM).or_usage("could not ask for a signal when the command ends", "")?;
        if getppid() != Pid::from_raw(*parent) {
            return Err(Stopped.into());
        }
        pin(plan.processors(*process))?;
        // SAFETY: the descriptor was made for this process, and nothing has used it yet.
        let mapping = unsafe { Mapping::inherit(*memory, plan.shape()) };
        let mapping = mapping.or_usage("could not map the memory that the processes of a measurement share", "")?;
        let stop = request.stop.clone();
        let patience = Patience::new(stop.clone(), plan.setting().crowded);
        Ok(Self { process: *process, mapping, patience, stop, ns_per_tick: *ns_per_tick, began_ns: *began_ns })
    }

    /// Joins a domain of `nodes` nodes with the number of the process as id, and waits until `here` of them are up. Over the network the first
    /// process listens, and the others connect to it.
    pub fn join(
        &self,
        setting: &Setting,
        builder: Result<NodeBuilder, Error>,
        nodes: usize,
        here: usize,
    ) -> Result<Node, Trouble> {
        let addresses: &[Ipv4Addr] = if setting.net.is_some() { &[Ipv4Addr::LOCALHOST] } else { &[] };
        self.join_at(addresses, setting, builder.map(|builder| builder.max_nodes(nodes)), here)
    }

    /// The same, with a link at each of these addresses, of four at most. With several, all processes listen.
    pub fn join_at(
        &self,
        addresses: &[Ipv4Addr],
        setting: &Setting,
        builder: Result<NodeBuilder, Error>,
        here: usize,
    ) -> Result<Node, Trouble> {
        let why = |error| cannot_join(setting, self.process, error);
        let mut builder = builder.map_err(why)?.id(NodeId(self.process as u16));
        let leads = self.process == 0;
        let ports = if leads || addresses.is_empty() { 0 } else { self.mapping.gate().read_note(&self.patience)? };
        for (at, address) in addresses.iter().enumerate() {
            if leads || addresses.len() > 1 {
                builder = builder.listen((*address, 0));
            }
            let there = (*address, (ports >> (16 * at)) as u16);
            builder = match at {
                _ if leads => builder,
                0 => builder.connect(there),
                _ => builder.seek(there),
            };
        }
        let node = builder.join().map_err(why)?;
        if leads && !addresses.is_empty() {
            let ports = node.addresses().iter().enumerate().map(|(at, address)| u64::from(address.port()) << (16 * at));
            self.mapping.gate().leave_note(ports.sum());
        }
        match self.meet(&node, here) {
            Err(Trouble::Driver(error)) => Err(why(error)),
            met => met.map(|()| node),
        }
    }

    /// Waits until `nodes` nodes are up.
    pub fn meet(&self, node: &Node, nodes: usize) -> Result<(), Trouble> {
        let deadline = Instant::now() + START;
        loop {
            unless_stopped(&self.patience)?;
            match node.wait_for(nodes, deadline.min(Instant::now() + Duration::from_millis(100))) {
                Ok(_) => return Ok(()),
                Err(Error::Timeout { .. }) if Instant::now() < deadline => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until `processes` processes are at the gate.
    pub fn gate(&self, processes: usize) -> Result<(), Trouble> {
        Ok(self.mapping.gate().pass(processes, &self.patience)?)
    }
}

/// Why a process could not join its domain.
pub fn cannot_join(setting: &Setting, id: usize, error: Error) -> Trouble {
    Trouble::Unable(net::failure(error).of(format!("could not join the domain '{}' as node {id}", setting.domain)))
}

/// Fails if the process was told to stop.
#[inline(always)]
pub fn unless_stopped(patience: &Patience) -> Result<(), Stopped> {
    if patience.stopped() { Err(Stopped) } else { Ok(()) }
}

/// Leaves the domain, also if the work failed.
pub fn leave<F>(node: Node, done: Result<F, Trouble>) -> Result<F, Trouble> {
    let left = node.leave();
    let found = done?;
    left?;
    Ok(found)
}

/// This thread, and the threads that it starts, run on these processors from now on; anywhere if there are none.
pub fn pin(processors: impl IntoIterator<Item = usize>) -> Result<(), Failure> {
    let processors: Vec<usize> = processors.into_iter().collect();
    run_on(&processors).or_usage(format_args!("could not move to processor {}", joined(&processors)), "")
}
