//! The processes of a measurement: started together, and gone together.

use super::{COMMAND, Reply};
use crate::exit::Failure;
use crate::processes::requests_to_end;
use doorbell::Space;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long workers that were told to stop may take before they are killed.
const GRACE: Duration = Duration::from_secs(3);

/// Where the number of a signal is found that asks for the end; 0 before.
pub fn requested_end() -> Result<Arc<AtomicUsize>, Failure> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in requests_to_end().map(|signal| signal as i32) {
        signal_hook::flag::register_usize(number, signal.clone(), number as usize)
            .map_err(|error| Failure::usage(format!("could not set a signal handler: {error}"), ""))?;
    }
    Ok(signal)
}

/// The worker processes. Dropped, they are gone.
pub struct Workers<'a> {
    /// The domain that they join.
    domain: &'a str,
    /// What one of them does, in words.
    role: &'a dyn Fn(usize) -> &'static str,
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

impl<'a> Workers<'a> {
    /// Starts so many of an experiment, each with an order of its own.
    pub fn start<O: Serialize>(
        name: &str,
        domain: &'a str,
        role: &'a dyn Fn(usize) -> &'static str,
        count: usize,
        order: impl Fn(usize) -> O,
    ) -> Result<Self, Failure> {
        let (tell, answers) = channel();
        let mut workers = Self { domain, role, children: Vec::new(), answers };
        for node in 0..count {
            let unable = |error: &dyn std::fmt::Display| {
                Failure::usage(format!("could not start process {node} of the measurement: {error}"), "")
            };
            let order = serde_json::to_string(&order(node)).map_err(|error| unable(&error))?;
            // The running program, even if the file was replaced meanwhile.
            let mut child = Command::new("/proc/self/exe")
                .args([COMMAND, name, &order])
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

    /// Waits until all are done, or all are stopped because one of them, or the user, made it necessary; then nothing is left of their domain.
    pub fn wait<F: DeserializeOwned>(mut self, signal: &AtomicUsize) -> Result<Vec<F>, Failure> {
        let found = self.gather(signal);
        let domain = self.domain;
        drop(self);
        if found.is_err() {
            // A worker that was killed could not remove its part of the domain. What fails here, `doorbell clean` can do.
            let _ = doorbell_shm::domain::clean(&Space::posix(), Some(domain), false);
        }
        found
    }

    fn gather<F: DeserializeOwned>(&mut self, signal: &AtomicUsize) -> Result<Vec<F>, Failure> {
        let mut findings: Vec<Option<F>> = self.children.iter().map(|_| None).collect();
        let mut running: Vec<bool> = vec![true; self.children.len()];
        let mut trouble: Option<(Gravity, Failure)> = None;
        let mut kill_at = None;
        let mut sent = Vec::new();
        while running.contains(&true) {
            match self.answers.recv_timeout(Duration::from_millis(50)) {
                Ok((node, answer)) => {
                    running[node] = false;
                    let status = self.children[node].wait();
                    let role = (self.role)(node);
                    let who = format!("{role} (node {node}, process {})", self.children[node].id());
                    match judge(&who, &answer, &status) {
                        Ok(found) => findings[node] = Some(found),
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
            // Each of them has answered, or there would be trouble.
            (0, None) => Ok(findings.into_iter().flatten().collect()),
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

impl Drop for Workers<'_> {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Errors mean that it is gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a worker that ended has to say.
fn judge<F: DeserializeOwned>(who: &str, answer: &str, status: &io::Result<ExitStatus>) -> Result<F, (Gravity, Failure)> {
    let again = "nothing was measured: run it again";
    match serde_json::from_str(answer) {
        Ok(Reply::Done(found)) => Ok(found),
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
