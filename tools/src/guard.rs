//! The guard: a process that cleans up if the command is killed.
//!
//! When a command ends, the kernel kills the processes that it started, but not the processes that those started in turn, and it
//! removes no segments. The guard and the command hold the two ends of a pipe. If the pipe breaks before the command has said
//! "done", the guard kills the groups of processes that the command named, and cleans up after their nodes.

use crate::environment::space;
use crate::exit::{Explain, Failure};
use crate::processes::{any_alive_in, own_command, signal_group, take_name};
use doorbell_shm::domain::clean;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, setsid};
use std::io::{BufRead, Write, stdin};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

/// The name of the hidden command of the guard.
pub const COMMAND: &str = "guard";

/// How long killed processes may take to be gone.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub struct GuardArgs {
    /// The domain to clean
    domain: String,
}

/// The command's side of its guard.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Guard {
    /// Starts the guard of a domain whose nodes the command is about to start.
    pub fn start(domain: &str) -> Result<Self, Failure> {
        let mut command = own_command(COMMAND);
        command.arg(domain).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // A session of its own, so that no terminal sends signals to it.
        // SAFETY: one system call, no allocation, no lock.
        unsafe { command.pre_exec(|| Ok(setsid().map(|_| ())?)) };
        let hint = "see the limits on processes (`ulimit -u`), and that /proc is mounted";
        let mut child = command.spawn().or_usage("cannot start another process", hint)?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }

    /// Puts a group of processes under guard.
    pub fn watch(&mut self, group: Pid) {
        // If the guard was killed, the command goes on without it.
        let _ = self.pipe.as_mut().map(|pipe| writeln!(pipe, "{group}"));
    }
}

impl Drop for Guard {
    /// Tells the guard that the groups are gone and their nodes are cleaned up.
    fn drop(&mut self) {
        let _ = self.pipe.take().map(|mut pipe| writeln!(pipe, "done"));
        let _ = self.child.wait();
    }
}

/// Waits for the end of the command.
pub fn run(args: &GuardArgs) -> Result<(), Failure> {
    take_name();
    let mut groups = Vec::new();
    for line in stdin().lock().lines() {
        match line.as_deref() {
            Ok("done") => return Ok(()),
            Ok(word) => groups.extend(word.parse().ok().filter(|group| *group > 1).map(Pid::from_raw)),
            Err(_) => break,
        }
    }
    let deadline = Instant::now() + GRACE;
    groups.iter().for_each(|group| signal_group(*group, Signal::SIGKILL));
    while any_alive_in(&groups) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    // The process of the command, and its node, may still be ending, so this tries again. `doorbell clean` reports a failure.
    while clean(&space(), Some(&args.domain), false).is_ok_and(|report| !report.kept.is_empty()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
