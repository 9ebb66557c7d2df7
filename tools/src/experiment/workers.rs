//! The worker processes of a measurement, which start together and end together.

use super::{COMMAND, Experiment, Trouble};
use crate::environment::space;
use crate::exit::{Explain, Failure};
use crate::processes::{EndRequest, own_command};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long workers that were told to stop may take before they are killed.
const GRACE: Duration = Duration::from_secs(3);

/// The worker processes of a plan. Dropping them kills them.
pub struct Workers<'a, E> {
    plan: &'a E,
    children: Vec<Child>,
    answers: Receiver<(usize, String)>,
}

/// How grave the bad end of a worker is. The command reports the gravest: the others may be consequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Gravity {
    Stopped,
    Failed,
    Unable,
    Died,
}

impl<'a, E: Experiment> Workers<'a, E> {
    /// Starts the workers of a plan, each with an order of its own.
    pub fn start<O: Serialize>(plan: &'a E, order: impl Fn(usize) -> O) -> Result<Self, Failure> {
        let (tell, answers) = channel();
        let mut workers = Self { plan, children: Vec::new(), answers };
        for node in 0..plan.processes() {
            let what = format!("could not start process {node} of the measurement");
            let order = serde_json::to_string(&order(node)).or_usage(&what, "")?;
            let mut command = own_command(COMMAND);
            command.args([E::NAME, &order]).stdin(Stdio::null()).stdout(Stdio::piped());
            let mut child = command.spawn().or_usage(&what, "")?;
            let mut stdout = child.stdout.take();
            workers.children.push(child);
            let tell = tell.clone();
            std::thread::spawn(move || {
                let mut answer = String::new();
                // A worker that died leaves no answer, and `judge` reports that.
                let _ = stdout.as_mut().map(|stdout| stdout.read_to_string(&mut answer));
                tell.send((node, answer))
            });
        }
        Ok(workers)
    }

    /// Waits until all workers are done. If one of them fails, or a signal comes, it stops all of them and cleans their domain.
    pub fn wait(mut self, request: &EndRequest) -> Result<Vec<E::Found>, Failure> {
        let (found, domain) = (self.gather(request), &self.plan.setting().domain);
        drop(self);
        if found.is_err() {
            // A worker that was killed could not remove its part of the domain. If this fails, `doorbell clean` can do it.
            let _ = doorbell_shm::domain::clean(&space(), Some(domain), false);
        }
        found
    }

    fn gather(&mut self, request: &EndRequest) -> Result<Vec<E::Found>, Failure> {
        let mut findings: Vec<Option<E::Found>> = self.children.iter().map(|_| None).collect();
        let mut running: Vec<bool> = vec![true; self.children.len()];
        let mut trouble: Option<(Gravity, Failure)> = None;
        let mut kill_at = None;
        let mut sent = Vec::new();
        while running.contains(&true) {
            match self.answers.recv_timeout(Duration::from_millis(50)) {
                Ok((node, answer)) => {
                    running[node] = false;
                    let status = self.children[node].wait();
                    let role = self.plan.role(node);
                    let worker = format!("{role} (node {node}, process {})", self.children[node].id());
                    match judge(&worker, &answer, &status) {
                        Ok(found) => findings[node] = Some(found),
                        // The command sent this signal itself.
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
            let interrupted = request.check().is_err();
            if kill_at.is_none() && (trouble.is_some() || interrupted) {
                kill_at = Some(Instant::now() + GRACE);
                sent.push(self.signal(&running, Signal::SIGTERM));
            }
            if kill_at.is_some_and(|moment| Instant::now() >= moment) {
                sent.push(self.signal(&running, Signal::SIGKILL));
            }
        }
        request.check()?;
        match trouble {
            // Each worker has answered, or there would be trouble.
            None => Ok(findings.into_iter().flatten().collect()),
            Some((_, failure)) => Err(failure),
        }
    }

    fn signal(&self, running: &[bool], signal: Signal) -> i32 {
        for (child, _) in self.children.iter().zip(running).filter(|(_, running)| **running) {
            // Nobody has waited for the child yet, so its number is still its own.
            let _ = kill(Pid::from_raw(child.id() as i32), signal);
        }
        signal as i32
    }
}

impl<E> Drop for Workers<'_, E> {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Errors mean that the child is gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The findings of a worker that ended, or how it failed.
fn judge<F: DeserializeOwned>(worker: &str, answer: &str, status: &io::Result<ExitStatus>) -> Result<F, (Gravity, Failure)> {
    let again = "nothing was measured: run it again";
    match serde_json::from_str(answer) {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(Trouble::Unable(failure))) => Err((Gravity::Unable, failure)),
        Ok(Err(Trouble::Stopped(_))) => Err((Gravity::Stopped, Failure::failed(format!("{worker} was told to stop"), again))),
        Ok(Err(why)) => {
            let failure = Failure::failed(format!("{worker} could not go on: {why}"), again);
            Err((Gravity::Failed, failure.at(why.anchor())))
        }
        Err(_) => {
            let how = match (status, signal_of(status)) {
                (_, Some(signal)) => format!("was killed by signal {signal}"),
                (Ok(status), None) => format!("ended without an answer ({status})"),
                (Err(error), None) => format!("was lost: {error}"),
            };
            Err((Gravity::Died, Failure::failed(format!("{worker} {how}"), again)))
        }
    }
}

fn signal_of(status: &io::Result<ExitStatus>) -> Option<i32> {
    status.as_ref().ok()?.signal()
}
