//! Processes that end with the command that started them.

pub mod signals;

use crate::environment::pass_space;
use crate::exit::{Explain, Failure};
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::prctl::{set_child_subreaper, set_name, set_pdeathsig};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpid, getppid};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A command that runs this program again with another of its own subcommands, even if its file was replaced meanwhile.
pub fn own_command(name: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    pass_space(command.arg0("doorbell").arg(name));
    command
}

/// Names this process for `ps` and `top`. Started by way of `/proc/self/exe` it would be called `exe`.
pub fn take_name() {
    // Only people read the name.
    let _ = set_name(c"doorbell");
}

/// Raises the limit of descriptors as far as the system allows.
pub fn raise_descriptors() {
    // If that fails, the process gets `EMFILE` earlier.
    let _ = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
}

/// Gives a process a group of its own, so that one signal reaches the process and all that it starts. The kernel kills the process when the
/// calling thread ends, so the calling thread must live as long as the command. Signals that this process blocks are not blocked in the new one.
pub fn in_own_group(command: &mut Command) -> &mut Command {
    let parent = getpid();
    command.process_group(0);
    let before_exec = move || {
        SigSet::empty().thread_set_mask()?;
        set_pdeathsig(Signal::SIGKILL)?;
        // A parent that ended before that call sends no signal.
        if getppid() == parent { Ok(()) } else { Err(io::Error::from(Errno::ESRCH)) }
    };
    // SAFETY: a few system calls, no allocation, no lock.
    unsafe { command.pre_exec(before_exec) }
}

/// The signals that ask a command to end. A signal that was ignored when this process was started stays ignored: `nohup` ignores HUP, and a
/// shell ignores INT for a command in the background of a script. TERM is never ignored.
pub fn requests_to_end() -> impl Iterator<Item = Signal> {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().filter(|signal| !stays_ignored(*signal))
}

/// A request to end the command, which a signal makes. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct EndRequest {
    /// The number of the signal; 0 before one came.
    signal: Arc<AtomicUsize>,
    /// The same as a flag, for loops that look at nothing else.
    pub stop: Arc<AtomicBool>,
}

impl EndRequest {
    /// Takes the signals that ask for the end from now on.
    pub fn listen() -> Result<Self, Failure> {
        let this = Self::default();
        for number in requests_to_end().map(|signal| signal as i32) {
            signal_hook::flag::register_usize(number, this.signal.clone(), number as usize)
                .and_then(|_| signal_hook::flag::register(number, this.stop.clone()))
                .or_usage("could not set a signal handler", "")?;
        }
        Ok(this)
    }

    /// Fails once a signal has asked for the end.
    pub fn check(&self) -> Result<(), Failure> {
        match self.signal.load(Ordering::SeqCst) {
            0 => Ok(()),
            signal => Err(Failure::interrupted(signal as i32)),
        }
    }
}

/// Whether this process was started with this signal ignored, and a shell may want that. Must be asked before handlers are set.
pub fn stays_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    matches!(signal, Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT) && ignored(&status) & 1 << (signal as i32 - 1) != 0
}

/// One bit for each ignored signal, read from `/proc/PID/status`.
fn ignored(status: &str) -> u64 {
    let word = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    word.and_then(|word| u64::from_str_radix(word.trim(), 16).ok()).unwrap_or(0)
}

/// The processors on which this process may run.
pub fn processors() -> nix::Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count()).filter(|processor| set.is_set(*processor) == Ok(true)).collect())
}

/// Refuses processors on which this process may not run. `option` is the option that named them.
pub fn check_processors(option: &str, named: &[usize]) -> Result<Vec<usize>, Failure> {
    let allowed = processors().or_usage("could not ask which processors there are", "")?;
    match named.iter().find(|processor| !allowed.contains(processor)) {
        None => Ok(allowed),
        Some(missing) => {
            let hint = format!("this process may run on {}", joined(&allowed));
            Err(Failure::usage(format!("{option}: processor {missing} is not there"), hint))
        }
    }
}

/// The calling thread, and the threads and processes that it starts, run on these processors from now on; anywhere if the list is empty.
pub fn run_on(processors: &[usize]) -> nix::Result<()> {
    if processors.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    processors.iter().try_for_each(|processor| set.set(*processor))?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

/// Numbers of processors, with commas between them.
pub fn joined(processors: &[usize]) -> String {
    processors.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// The group of a child that leads one.
pub fn group_of(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32)
}

/// Sends a signal to a group of processes. A group that is gone needs none.
pub fn signal_group(group: Pid, signal: Signal) {
    let _ = killpg(group, signal);
}

/// Makes this process the parent of the orphans that its children leave, so that it can collect them.
pub fn adopt_orphans() {
    // If that fails, the first process of the system collects them.
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

/// Whether `/proc/PID/stat` says that the process is alive and in one of these groups.
fn is_alive_in(groups: &[Pid], stat: &str) -> bool {
    // The name, in brackets, may hold anything. Behind it stand state, parent and group, and in the 18th place the number of threads.
    let Some((_, facts)) = stat.rsplit_once(") ") else { return false };
    let facts: Vec<&str> = facts.split(' ').collect();
    let number = |at: usize| facts.get(at).and_then(|word| word.parse::<i32>().ok()).unwrap_or(0);
    // When the first thread is a zombie, other threads may still hold what the process had.
    let dead = matches!(facts[0], "Z" | "X") && number(17) <= 1;
    !dead && groups.contains(&Pid::from_raw(number(2)))
}

/// How a child ended, if it did. The child stays a zombie, so that no other process gets its number or that of its group.
pub fn ended(child: Pid) -> Option<Ended> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::Pid(child), flags) {
        Ok(WaitStatus::Exited(_, code)) => Some(Ended::Exited(code)),
        Ok(WaitStatus::Signaled(_, signal, _)) => Some(Ended::Killed(signal)),
        // Another thread collected its status: the child is gone.
        Err(Errno::ECHILD) => Some(Ended::Exited(1)),
        _ => None,
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It exited with this code.
    Exited(i32),
    /// A signal killed it.
    Killed(Signal),
}

impl Ended {
    /// Whether it exited with 0.
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

/// The name of a program in quotes.
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
