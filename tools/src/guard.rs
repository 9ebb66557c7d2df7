//! The guard: a process that finishes what a command cannot finish, should the command be killed.
//!
//! The kernel kills the processes that a command started when it ends, but not what those started in turn, and it removes no
//! segments. The guard holds one end of a pipe of which the command has the other. If that breaks before the command has
//! said that all is done, the guard kills the groups of processes it was told of and cleans up after their nodes.

use crate::exit::Failure;
use crate::processes::{any_alive_in, own_command, signal_group, take_name};
use doorbell::Space;
use doorbell_shm::domain::clean;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, setsid};
use std::io::{BufRead, Write, stdin};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

/// The name under which the command runs itself as guard.
pub const COMMAND: &str = "guard";

/// How long processes that were killed may take to be gone.
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
        // A session of its own, which no terminal sends signals to.
        // SAFETY: one system call, no allocation, no lock.
        unsafe { command.pre_exec(|| Ok(setsid().map(|_| ())?)) };
        let mut child = command.spawn().map_err(|error| {
            Failure::usage(
                format!("cannot start another process: {error}"),
                "see the limits on processes (`ulimit -u`), and that /proc is mounted",
            )
        })?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }

    /// Puts a group of processes under guard.
    pub fn watch(&mut self, group: Pid) {
        // If somebody killed the guard, the command has to do without it.
        let _ = self.pipe.as_mut().map(|pipe| writeln!(pipe, "{group}"));
    }
}

impl Drop for Guard {
    /// All is done: the groups are gone, and their nodes cleaned up after.
    fn drop(&mut self) {
        let _ = self.pipe.take().map(|mut pipe| writeln!(pipe, "done"));
        let _ = self.child.wait();
    }
}

/// Stands guard.
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
    // The command itself may not be gone wholly, and its node with it. Nobody is left to be told of a failure; `doorbell
    // clean` tells.
    while clean(&Space::posix(), Some(&args.domain), false).is_ok_and(|report| !report.kept.is_empty())
        && Instant::now() < deadline
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
