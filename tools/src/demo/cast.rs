//! The nodes of the demo: the host, which is this process, and the accelerators, which are processes of their own.

use super::accelerator;
use crate::exit::{Explain, Failure};
use crate::guard::Guard;
use crate::processes::{ended, group_of, in_own_group, own_command, requests_to_end, signal_group};
use doorbell::{Copy, Error, Node, NodeId, Progress, Role, Space, Wait};
use doorbell_shm::domain::clean;
use nix::sys::signal::{SigSet, Signal};
use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long any step may take. On an idle machine no step takes a tenth of it.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The host and the accelerators. Dropping it ends all of them and removes their segments.
pub struct Cast {
    pub domain: String,
    pub node: Node,
    pub progress: Progress,
    pub wait: Wait,
    accelerators: BTreeMap<NodeId, Child>,
    killed: Vec<Child>,
    interruption: Arc<Interruption>,
    /// Dropped last, when everything else is cleaned up.
    guard: Guard,
}

/// A signal that asks for the end, and the node that leaves then.
#[derive(Default)]
struct Interruption {
    signal: AtomicI32,
    node: Mutex<Option<Node>>,
}

impl Cast {
    /// The host joins a new domain.
    pub fn gather(progress: Progress, wait: Wait) -> Result<Self, Failure> {
        let domain = format!("demo-{}", std::process::id());
        let interruption = Arc::<Interruption>::default();
        interruption.listen()?;
        let guard = Guard::start(&domain)?;
        // Both sides copy, even where the kernel's copy is slow: the demo shows that.
        let builder = Node::builder(&domain).role(Role::Host).label("demo").max_nodes(4).copy(Copy::Both);
        let node = builder.progress(progress).wait(wait).join().map_err(|error| {
            Failure::usage(error, "see with `doorbell info` what this machine lacks, and with `doorbell ls` what is there")
        })?;
        *interruption.node() = Some(node.clone());
        Ok(Self { domain, node, progress, wait, accelerators: BTreeMap::new(), killed: Vec::new(), interruption, guard })
    }

    /// Starts an accelerator, and returns when it has attached.
    pub fn start(&mut self, id: NodeId) -> Result<(), Failure> {
        let mut command = own_command(accelerator::COMMAND);
        command.args([&self.domain, &id.to_string(), &self.progress.to_string(), &self.wait.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = in_own_group(&mut command).spawn();
        let child = child.or_usage("cannot start a process", "see the limits on processes (`ulimit -u`)")?;
        let process = group_of(&child);
        self.guard.watch(process);
        self.accelerators.insert(id, child);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let members = self.node.members().map_err(|error| self.explain(error))?;
            if members.iter().any(|member| member.id == id && member.pid == process.as_raw() as u32) {
                return Ok(());
            }
            if let Some(how) = ended(process) {
                return Err(Failure::usage(
                    format!("node {id} cannot attach: its process {how}"),
                    "its error is printed above; see `doorbell info`",
                ));
            }
            if Instant::now() > deadline {
                return Err(Failure::failed(
                    format!("node {id} does not attach"),
                    "run the demo again when the machine is less busy",
                ));
            }
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Kills an accelerator without a warning, as the kernel does when memory runs out.
    pub fn kill(&mut self, id: NodeId) {
        if let Some(child) = self.accelerators.remove(&id) {
            signal_group(group_of(&child), Signal::SIGKILL);
            // Collected at the end: waiting for the process here would disturb the times that the act shows.
            self.killed.push(child);
        }
    }

    /// Waits for the end of an accelerator that was told to leave.
    pub fn part_with(&mut self, id: NodeId) -> Result<(), Failure> {
        let Some(child) = self.accelerators.get(&id) else { return Ok(()) };
        let deadline = Instant::now() + PATIENCE;
        let how = loop {
            match ended(group_of(child)) {
                Some(how) => break how,
                None if Instant::now() > deadline => {
                    return Err(Failure::failed(format!("node {id} does not end"), "run the demo again"));
                }
                None => thread::sleep(Duration::from_micros(200)),
            }
        };
        let _ = self.accelerators.remove(&id).map(|mut child| child.wait());
        if how.well() { Ok(()) } else { Err(Failure::failed(format!("node {id} {how}"), "its error is printed above")) }
    }

    /// The host leaves.
    pub fn leave(&mut self) -> Result<(), Failure> {
        self.interruption.node().take();
        self.node.clone().leave().map_err(|error| self.explain(error))
    }

    /// The failure of a call; if a signal asked for the end, that.
    pub fn explain(&self, error: Error) -> Failure {
        match self.interruption.signal.load(Ordering::SeqCst) {
            0 => Failure::failed(error, "run the demo again; if it fails again, see `doorbell info`"),
            signal => Failure::interrupted(signal),
        }
    }

    /// Fails if a signal asked for the end.
    pub fn check(&self) -> Result<(), Failure> {
        match self.interruption.signal.load(Ordering::SeqCst) {
            0 => Ok(()),
            signal => Err(Failure::interrupted(signal)),
        }
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        for child in self.accelerators.values_mut().chain(&mut self.killed) {
            signal_group(group_of(child), Signal::SIGKILL);
            let _ = child.wait();
        }
        self.interruption.node().take();
        // Both do nothing if all went well. If one fails, `doorbell clean` can do it.
        let _ = self.node.clone().leave();
        let _ = clean(&Space::posix(), Some(&self.domain), false);
    }
}

impl Interruption {
    /// Starts a thread that waits for these signals. Threads that are started later do not get them.
    fn listen(self: &Arc<Self>) -> Result<(), Failure> {
        let unable = |error: std::io::Error| {
            Failure::usage(format!("cannot take signals: {error}"), "see the limits on threads (`ulimit -u`)")
        };
        let signals: SigSet = requests_to_end().collect();
        signals.thread_block().map_err(|error| unable(error.into()))?;
        let this = self.clone();
        let listen = move || {
            while let Ok(signal) = signals.wait() {
                this.signal.store(signal as i32, Ordering::SeqCst);
                // Leaving ends every wait of the host. The node is gone under the lock, so no other thread uses it afterwards.
                let mut node = this.node();
                let _ = node.take().map(Node::leave);
            }
        };
        thread::Builder::new().name("signals".into()).spawn(listen).map(drop).map_err(unable)
    }

    fn node(&self) -> std::sync::MutexGuard<'_, Option<Node>> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
