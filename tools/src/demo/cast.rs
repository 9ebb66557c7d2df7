//! The nodes of the demo: the host, which is this process, and the accelerators, which are processes of their own.

use super::accelerator;
use crate::environment::space;
use crate::exit::{Explain, Failure};
use crate::guard::Guard;
use crate::processes::{EndRequest, ended, group_of, in_own_group, own_command, signal_group};
use doorbell::{CopySide, Error, Node, NodeId, Progress, Role, Wait};
use doorbell_shm::domain::clean;
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long any step may take. On an idle machine no step takes a tenth of it.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How often to look whether a signal asks for the end.
const GLANCE: Duration = Duration::from_millis(10);

/// The host and the accelerators. Dropping it ends all of them and removes their segments.
pub struct Cast {
    pub domain: String,
    pub node: Node,
    pub progress: Progress,
    pub wait: Wait,
    accelerators: BTreeMap<NodeId, Child>,
    killed: Vec<Child>,
    request: EndRequest,
    /// The node that leaves when a signal asks for the end.
    leaving: Arc<Mutex<Option<Node>>>,
    /// Dropped last, when everything else is cleaned up.
    guard: Guard,
}

impl Cast {
    /// The host joins a new domain.
    pub fn gather(progress: Progress, wait: Wait) -> Result<Self, Failure> {
        let domain = format!("demo-{}", std::process::id());
        let (request, leaving) = (EndRequest::listen()?, Arc::<Mutex<Option<Node>>>::default());
        let guard = Guard::start(&domain)?;
        // Both sides copy, even where the kernel's copy is slow: the demo shows that.
        let builder = Node::builder(&domain).role(Role::Host).label("demo").max_nodes(4).copy(CopySide::Both);
        let node = builder.space(space()).progress(progress).wait(wait).join().map_err(|error| {
            let hint = "see with `doorbell info` what this machine lacks, and with `doorbell ls` what is there";
            Failure::usage(&error, hint).see(&error)
        })?;
        *leaving.lock().unwrap_or_else(PoisonError::into_inner) = Some(node.clone());
        leave_when_asked(request.clone(), leaving.clone())?;
        Ok(Self { domain, node, progress, wait, accelerators: BTreeMap::new(), killed: Vec::new(), request, leaving, guard })
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
        self.keep_from_leaving();
        self.node.clone().leave().map_err(|error| self.explain(error))
    }

    /// Keeps a signal from making the node leave twice.
    fn keep_from_leaving(&self) {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// The failure of a call; if a signal asked for the end, that.
    pub fn explain(&self, error: Error) -> Failure {
        let hint = "run the demo again; if it fails again, see `doorbell info`";
        self.check().err().unwrap_or_else(|| Failure::failed(&error, hint).see(&error))
    }

    /// Fails if a signal asked for the end.
    pub fn check(&self) -> Result<(), Failure> {
        self.request.check()
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        for child in self.accelerators.values_mut().chain(&mut self.killed) {
            signal_group(group_of(child), Signal::SIGKILL);
            let _ = child.wait();
        }
        self.keep_from_leaving();
        // Both do nothing if all went well. If one fails, `doorbell clean` can do it.
        let _ = self.node.clone().leave();
        let _ = clean(&space(), Some(&self.domain), false);
    }
}

/// Starts a thread that has the host leave when a signal asks for the end. Leaving ends every wait of the host. The node is gone under the lock,
/// so no other thread uses it afterwards.
fn leave_when_asked(request: EndRequest, node: Arc<Mutex<Option<Node>>>) -> Result<(), Failure> {
    let watch = move || {
        while request.check().is_ok() {
            thread::sleep(GLANCE);
        }
        let mut node = node.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = node.take().map(Node::leave);
    };
    let started = thread::Builder::new().name("signals".into()).spawn(watch).map(drop);
    started.or_usage("cannot take signals", "see the limits on threads (`ulimit -u`)")
}
