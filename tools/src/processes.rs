//! Processes that end with the command that started them.

use nix::errno::Errno;
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpid, getppid};
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The running program under another name of its own commands, even if its file was replaced meanwhile.
pub fn own_command(name: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("doorbell").arg(name);
    command
}

/// Calls this process what `ps` and `top` should call it: after `/proc/self/exe` it would be `exe`.
pub fn take_name() {
    // For people only.
    let _ = set_name(c"doorbell");
}

/// Gives a process a group of its own, so that all that it starts in turn can be reached by one signal; and has the kernel
/// kill it when the calling thread ends. The calling thread must be one that lives as long as the command.
pub fn in_own_group(command: &mut Command) -> &mut Command {
    let parent = getpid();
    command.process_group(0);
    let before_exec = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // Who ended before that call sends no signal any more.
        if getppid() == parent { Ok(()) } else { Err(io::Error::from(Errno::ESRCH)) }
    };
    // SAFETY: two system calls, no allocation, no lock.
    unsafe { command.pre_exec(before_exec) }
}

/// Sends a signal to a group of processes. A group that is gone needs none.
pub fn signal_group(group: Pid, signal: Signal) {
    let _ = killpg(group, signal);
}

/// How a child ended, if it did. It stays a zombie, so that its number, and that of its group, stay its own.
pub fn ended(child: Pid) -> Option<Ended> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::Pid(child), flags) {
        Ok(WaitStatus::Exited(_, code)) => Some(Ended::Exited(code)),
        Ok(WaitStatus::Signaled(_, signal, _)) => Some(Ended::Killed(signal)),
        // Somebody else took its status away: it is gone, and nobody will learn how.
        Err(Errno::ECHILD) => Some(Ended::Exited(1)),
        _ => None,
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code.
    Exited(i32),
    /// By a signal.
    Killed(Signal),
}

impl Ended {
    /// Whether it ended well.
    pub fn well(self) -> bool {
        self == Self::Exited(0)
    }

    /// Its exit code, as shells count.
    pub fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code as u8,
            Self::Killed(signal) => 128_u8.wrapping_add(signal as i32 as u8),
        }
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "ended with exit code {code}"),
            Self::Killed(signal) => write!(f, "was ended by {signal}"),
        }
    }
}

/// A program as a person would write it.
pub fn spelled(program: &OsStr) -> String {
    format!("'{}'", program.to_string_lossy())
}
