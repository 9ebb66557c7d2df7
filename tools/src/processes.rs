//! Processes that end with the command that started them.

use nix::errno::Errno;
use nix::sys::prctl::{set_child_subreaper, set_name, set_pdeathsig};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpid, getppid};
use std::ffi::OsStr;
use std::fs;
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

/// As many descriptors as the system lets this process have.
pub fn raise_descriptors() {
    // Without it whoever needs many is told `EMFILE` earlier.
    let _ = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
}

/// Gives a process a group of its own, so that all that it starts in turn can be reached by one signal; and has the kernel
/// kill it when the calling thread ends. The calling thread must be one that lives as long as the command. Signals that this
/// process takes in other ways reach the new one as usual.
pub fn in_own_group(command: &mut Command) -> &mut Command {
    let parent = getpid();
    command.process_group(0);
    let before_exec = move || {
        SigSet::empty().thread_set_mask()?;
        set_pdeathsig(Signal::SIGKILL)?;
        // Who ended before that call sends no signal any more.
        if getppid() == parent { Ok(()) } else { Err(io::Error::from(Errno::ESRCH)) }
    };
    // SAFETY: a few system calls, no allocation, no lock.
    unsafe { command.pre_exec(before_exec) }
}

/// The signals that ask a command to end. One that was ignored when this process was started stays ignored: `nohup` says so of HUP, and a
/// shell of INT if it starts something in the background of a script. To end what nobody else can is what TERM is for.
pub fn requests_to_end() -> impl Iterator<Item = Signal> {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().filter(|signal| !stays_ignored(*signal))
}

/// Whether this process was started with one of the signals ignored of which a shell may want that. Ask before handlers are set.
pub fn stays_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    matches!(signal, Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT) && ignored(&status) & 1 << (signal as i32 - 1) != 0
}

/// One bit for each ignored signal, from what the kernel says of a process.
fn ignored(status: &str) -> u64 {
    let word = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    word.and_then(|word| u64::from_str_radix(word.trim(), 16).ok()).unwrap_or(0)
}

/// Sends a signal to a group of processes. A group that is gone needs none.
pub fn signal_group(group: Pid, signal: Signal) {
    let _ = killpg(group, signal);
}

/// Makes this process the parent of whatever its children leave behind, so that it can collect it.
pub fn adopt_orphans() {
    // Without it they are collected by the first process of the system, if that does such things.
    let _ = set_child_subreaper(true);
}

/// Collects the zombies of a group whose leader is gone.
pub fn collect_group(group: Pid) {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
    while matches!(waitid(Id::PGid(group), flags), Ok(status) if status != WaitStatus::StillAlive) {}
}

/// Whether anything but zombies is left in one of these groups.
pub fn any_alive_in(groups: &[Pid]) -> bool {
    let Ok(entries) = fs::read_dir("/proc") else { return false };
    let numbers = entries.flatten().filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit());
    numbers.flat_map(|entry| fs::read_to_string(entry.path().join("stat"))).any(|stat| is_alive_in(groups, &stat))
}

/// Whether what the kernel says of a process means that it is alive and in one of these groups.
fn is_alive_in(groups: &[Pid], stat: &str) -> bool {
    // The name, in brackets, may hold anything; behind it: state, parent, group, and in the 18th place the number of threads.
    let Some((_, facts)) = stat.rsplit_once(") ") else { return false };
    let facts: Vec<&str> = facts.split(' ').collect();
    let number = |at: usize| facts.get(at).and_then(|word| word.parse::<i32>().ok()).unwrap_or(0);
    // Where the first thread is a zombie, others may still hold all that the process had.
    let dead = matches!(facts[0], "Z" | "X") && number(17) <= 1;
    !dead && groups.contains(&Pid::from_raw(number(2)))
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
            Self::Killed(signal) => write!(f, "was ended by the signal {signal}"),
        }
    }
}

/// A program as a person would write it.
pub fn spelled(program: &OsStr) -> String {
    format!("'{}'", program.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_process() {
        let stat = |name: &str, state: &str, group: i32, threads: i32| {
            format!("77 ({name}) {state} 1 {group} 7 0 -1 4194304 129 0 0 0 0 0 0 0 20 0 {threads} 0 462824 76292096\n")
        };
        let groups = [Pid::from_raw(5), Pid::from_raw(6)];
        assert!(is_alive_in(&groups, &stat("a", "S", 6, 1)));
        assert!(is_alive_in(&groups, &stat("a) Z 1 1 (", "R", 5, 3)));
        assert!(is_alive_in(&groups, &stat("a", "Z", 5, 2)), "its second thread is not gone");
        assert!(!is_alive_in(&groups, &stat("a", "Z", 5, 1)));
        assert!(!is_alive_in(&groups, &stat("a", "S", 7, 1)));
        assert!(!is_alive_in(&groups, ""));
    }

    #[test]
    fn which_signals_are_ignored() {
        assert_eq!(ignored("Name:\tsh\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000001002\n"), 1 << 12 | 1 << 1);
        assert_eq!(ignored(""), 0);
    }

    #[test]
    fn this_process_is_alive() {
        assert!(any_alive_in(&[nix::unistd::getpgrp()]));
        assert!(!any_alive_in(&[]));
    }
}
