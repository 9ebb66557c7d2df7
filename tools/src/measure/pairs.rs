//! Starts the workers of a measurement, waits for what they find, and leaves nothing behind however it ends.

use super::plan::{Finding, Order, Plan, Reply};
use super::worker;
use crate::exit::Failure;
use crate::processes::requests_to_end;
use doorbell::Space;
use doorbell_benches::clock::Clock;
use doorbell_benches::floor::{Mapping, UdpEnd};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long workers that were told to stop may take before they are killed.
const GRACE: Duration = Duration::from_secs(3);

/// Bytes that may wait in a socket of the floor, where the system allows as many.
const SOCKET_BYTES: usize = 64 << 20;

/// What a measurement found.
#[derive(Debug)]
pub struct Outcome {
    /// For each pair, for each leg of the plan.
    pub pairs: Vec<Vec<Finding>>,
    /// How long a tick was.
    pub clock: Clock,
}

/// Carries out a plan.
pub fn carry_out(plan: &Plan) -> Result<Outcome, Failure> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in requests_to_end().map(|signal| signal as i32) {
        signal_hook::flag::register_usize(number, signal.clone(), number as usize)
            .map_err(|error| Failure::usage(format!("could not set a signal handler: {error}"), ""))?;
    }
    let mapping = Mapping::create(plan.shape()).map_err(|error| {
        let what = format!("could not get memory for messages of {} bytes: {error}", plan.shape().bytes);
        Failure::usage(what, "measure smaller sizes, or fewer pairs")
    })?;
    let clock = Clock::calibrate();
    let mut workers = Workers::start(plan, &mapping, clock)?;
    let outcome = workers.wait(&signal);
    drop(workers);
    if outcome.is_err() {
        // A worker that was killed could not remove its part of the domain. What fails here, `doorbell clean` can do.
        let _ = doorbell_shm::domain::clean(&Space::posix(), Some(&plan.domain), false);
    }
    Ok(Outcome { pairs: outcome?, clock })
}

/// The worker processes. Dropped, they are gone.
struct Workers {
    children: Vec<Child>,
    answers: Receiver<(usize, String)>,
}

/// How grave a worker's end is, if it is not a good one. The gravest is told: the others may be consequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Gravity {
    Stopped,
    Failed,
    Unable,
    Died,
}

impl Workers {
    fn start(plan: &Plan, mapping: &Mapping, clock: Clock) -> Result<Self, Failure> {
        let (tell, answers) = channel();
        let mut workers = Self { children: Vec::new(), answers };
        let sockets: Vec<[UdpEnd; 2]> = if plan.floor && plan.net.is_some() {
            let pairs = (0..plan.pairs).map(|_| UdpEnd::pair(SOCKET_BYTES));
            let unable = |error| Failure::usage(format!("could not open sockets for the floor: {error}"), "leave out --floor");
            pairs.collect::<io::Result<_>>().map_err(unable)?
        } else {
            Vec::new()
        };
        for node in 0..2 * plan.pairs {
            let order = Order {
                plan: plan.clone(),
                node,
                memory: mapping.descriptor(),
                socket: sockets.get(node / 2).map(|pair| pair[node % 2].descriptor()),
                parent: std::process::id() as i32,
                ns_per_tick: clock.ns_per_tick,
            };
            let unable = |error: &dyn std::fmt::Display| {
                Failure::usage(format!("could not start process {node} of the measurement: {error}"), "")
            };
            let order = serde_json::to_string(&order).map_err(|error| unable(&error))?;
            // The running program, even if the file was replaced meanwhile.
            let mut child = Command::new("/proc/self/exe")
                .args([worker::COMMAND, &order])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(|error| unable(&error))?;
            let mut stdout = child.stdout.take();
            workers.children.push(child);
            let tell = tell.clone();
            std::thread::spawn(move || {
                let mut answer = String::new();
                // A worker that died leaves no answer, which says enough.
                let _ = stdout.as_mut().map(|stdout| stdout.read_to_string(&mut answer));
                tell.send((node, answer))
            });
        }
        Ok(workers)
    }

    /// Waits until all are done, or all are stopped because one of them, or the user, made it necessary.
    fn wait(&mut self, signal: &AtomicUsize) -> Result<Vec<Vec<Finding>>, Failure> {
        let mut findings: Vec<Vec<Finding>> = vec![Vec::new(); self.children.len()];
        let mut running: Vec<bool> = vec![true; self.children.len()];
        let mut trouble: Option<(Gravity, Failure)> = None;
        let mut kill_at = None;
        let mut sent = Vec::new();
        while running.contains(&true) {
            match self.answers.recv_timeout(Duration::from_millis(50)) {
                Ok((node, answer)) => {
                    running[node] = false;
                    let status = self.children[node].wait();
                    match judge(node, self.children[node].id(), &answer, &status) {
                        Ok(found) => findings[node] = found,
                        // What we asked for is no news.
                        Err((Gravity::Died, _)) if signal_of(&status).is_some_and(|signal| sent.contains(&signal)) => {}
                        Err((gravity, failure)) => {
                            if trouble.as_ref().is_none_or(|(known, _)| gravity > *known) {
                                trouble = Some((gravity, failure));
                            }
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let interrupted = signal.load(Ordering::SeqCst) != 0;
            if kill_at.is_none() && (trouble.is_some() || interrupted) {
                kill_at = Some(Instant::now() + GRACE);
                sent.push(self.signal(&running, Signal::SIGTERM));
            }
            if kill_at.is_some_and(|moment| Instant::now() >= moment) {
                sent.push(self.signal(&running, Signal::SIGKILL));
            }
        }
        match (signal.load(Ordering::SeqCst), trouble) {
            (0, None) => Ok(pairs_of(findings)),
            (0, Some((_, failure))) => Err(failure),
            (signal, _) => Err(Failure::interrupted(signal as i32)),
        }
    }

    fn signal(&self, running: &[bool], signal: Signal) -> i32 {
        for (child, _) in self.children.iter().zip(running).filter(|(_, running)| **running) {
            // Nobody has waited for it yet, so the number is still its own.
            let _ = kill(Pid::from_raw(child.id() as i32), signal);
        }
        signal as i32
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Errors mean that it is gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What both sides of each pair found, together.
fn pairs_of(mut findings: Vec<Vec<Finding>>) -> Vec<Vec<Finding>> {
    let join = |pair: &mut [Vec<Finding>]| {
        let [ping, pong] = [0, 1].map(|side| std::mem::take(&mut pair[side]));
        ping.into_iter().zip(pong).map(|(ping, pong)| ping.joined(pong)).collect()
    };
    findings.chunks_exact_mut(2).map(join).collect()
}

/// What a worker that ended has to say.
fn judge(node: usize, pid: u32, answer: &str, status: &io::Result<ExitStatus>) -> Result<Vec<Finding>, (Gravity, Failure)> {
    let role = if node.is_multiple_of(2) { "the process that sends and measures" } else { "the process that answers" };
    let who = format!("{role} (node {node}, process {pid})");
    let again = "nothing was measured: run it again";
    match serde_json::from_str(answer) {
        Ok(Reply::Done(findings)) => Ok(findings),
        Ok(Reply::Unable(failure)) => Err((Gravity::Unable, failure)),
        Ok(Reply::Failed(why)) => Err((Gravity::Failed, Failure::failed(format!("{who} could not go on: {why}"), again))),
        Ok(Reply::Stopped) => Err((Gravity::Stopped, Failure::failed(format!("{who} was told to stop"), again))),
        Err(_) => {
            let how = match (status, signal_of(status)) {
                (_, Some(signal)) => format!("was killed by signal {signal}"),
                (Ok(status), None) => format!("ended without an answer ({status})"),
                (Err(error), None) => format!("was lost: {error}"),
            };
            Err((Gravity::Died, Failure::failed(format!("{who} {how}"), again)))
        }
    }
}

fn signal_of(status: &io::Result<ExitStatus>) -> Option<i32> {
    status.as_ref().ok()?.signal()
}
