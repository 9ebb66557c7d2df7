//! Waits for the nodes and for signals, and decides when all is over.

use super::launch::Nodes;
use super::output::Passing;
use crate::exit::{Explain, Failure};
use crate::processes::{Ended, any_alive_in, ended, stays_ignored};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{self, SigHandler, SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The signals that are passed on to all nodes.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];
/// How often to look whether the processes that a node started are gone, too.
const GLANCE: Duration = Duration::from_millis(10);
/// How long to wait after killing all processes. The kernel ends those that remain.
const LAST_LOOKS: Duration = Duration::from_secs(2);

/// Signals, which are read one by one and interrupt nothing.
pub struct Signals {
    taken: SignalFd,
}

impl Signals {
    /// Takes all signals that concern nodes, except those that stay ignored: nodes inherit that. Threads that are started later do not get these
    /// signals, but processes do.
    pub fn block() -> Result<Self, Failure> {
        let mut set: SigSet = PASSED_ON.into_iter().filter(|signal| !stays_ignored(*signal)).collect();
        set.add(Signal::SIGCHLD);
        set.add(Signal::SIGTSTP);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        // If SIGCHLD were ignored, as this process's parent may have set it, ended children would vanish unseen.
        // SAFETY: no handler, and no thread that waits for children yet.
        let _ = unsafe { signal::signal(Signal::SIGCHLD, SigHandler::SigDfl) };
        let taken = set.thread_block().and_then(|()| SignalFd::with_flags(&set, flags));
        Ok(Self { taken: taken.or_usage("cannot take signals", "see the limit on files (`ulimit -n`)")? })
    }

    fn next(&self) -> Option<Signal> {
        let signal: libc::signalfd_siginfo = self.taken.read_signal().ok().flatten()?;
        Signal::try_from(signal.ssi_signo as i32).ok()
    }
}

/// Returns when no process of any node is left, and all output was passed on.
pub fn until_all_ended(nodes: Nodes, signals: &Signals, output: Passing, grace: Duration) -> Result<(), Failure> {
    let groups = nodes.groups();
    let mut watch =
        Watch { ended: vec![false; groups.len()], nodes, groups, grace, first: None, asked: 0, deadline: None, killed: false };
    let mut broken = false;
    while !watch.is_over() {
        if wait(signals, (!broken).then_some(&output), watch.timeout()) {
            // The output of the nodes has no reader, so they are ended.
            broken = true;
            watch.begin_to_end();
        }
        while let Some(signal) = signals.next() {
            watch.on_signal(signal);
        }
        watch.look();
    }
    let Watch { nodes, first, asked, groups, .. } = watch;
    drop(nodes);
    let passed = output.finish();
    match (first, passed) {
        (_, Err(error)) => Err(cannot_write(&error)),
        (None, _) => Ok(()),
        (Some((_, Ended::Killed(signal))), _) if asked > 0 => Err(Failure::interrupted(signal as i32)),
        (Some((node, how)), _) => {
            let others = if groups.len() > 1 { ", so the others were ended" } else { "" };
            let what = format!("node {node} (process {}) {how}{others}", groups[node]);
            Err(Failure::failed(what, "see above what it wrote last").with_code(how.code()))
        }
    }
}

/// Waits for a signal. True if the output is broken.
fn wait(signals: &Signals, output: Option<&Passing>, timeout: Option<Duration>) -> bool {
    let mut fds = vec![PollFd::new(signals.taken.as_fd(), PollFlags::POLLIN)];
    fds.extend(output.map(|output| PollFd::new(output.broken().as_fd(), PollFlags::POLLIN)));
    // Rounded up: a timeout of 0 ms would poll in a loop for the last millisecond.
    let timeout = timeout.map(|timeout| timeout + Duration::from_micros(999));
    let timeout = timeout.map_or(PollTimeout::NONE, |timeout| PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX));
    // The caller looks at everything in any case.
    let _ = poll(&mut fds, timeout);
    fds.get(1).is_some_and(|fd| fd.any() == Some(true))
}

fn cannot_write(error: &io::Error) -> Failure {
    if error.kind() == ErrorKind::BrokenPipe {
        let code = Ended::Killed(Signal::SIGPIPE).code();
        return Failure::failed("the output has no reader any more; the nodes were ended", "").with_code(code);
    }
    Failure::failed(format!("cannot pass on the output of the nodes: {error}"), "see where it goes to")
}

struct Watch {
    nodes: Nodes,
    groups: Vec<Pid>,
    /// Which leaders have ended.
    ended: Vec<bool>,
    grace: Duration,
    /// The node that failed first, and how it ended.
    first: Option<(usize, Ended)>,
    /// How often a signal asked for the end.
    asked: u32,
    /// When the nodes that were told to end will be killed.
    deadline: Option<Instant>,
    killed: bool,
}

impl Watch {
    fn is_over(&self) -> bool {
        let patient = !self.killed || self.deadline.is_none_or(|deadline| Instant::now() < deadline);
        self.all_leaders_ended() && !(patient && any_alive_in(&self.groups))
    }

    fn all_leaders_ended(&self) -> bool {
        self.ended.iter().all(|ended| *ended)
    }

    fn timeout(&self) -> Option<Duration> {
        let deadline = self.deadline.filter(|_| !self.killed);
        let until_deadline = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // Processes that a node started are no children of this one, so no signal tells of their end.
        let glance = self.all_leaders_ended().then_some(GLANCE);
        [until_deadline, glance].into_iter().flatten().min()
    }

    fn on_signal(&mut self, signal: Signal) {
        match signal {
            Signal::SIGCHLD => {}
            Signal::SIGTSTP => {
                self.nodes.signal(Signal::SIGTSTP);
                let _ = raise(Signal::SIGSTOP);
                // SIGCONT has continued this process.
                self.nodes.signal(Signal::SIGCONT);
            }
            signal => {
                self.nodes.signal(signal);
                if matches!(signal, Signal::SIGINT | Signal::SIGTERM) {
                    self.asked += 1;
                    match self.asked {
                        1 => {}
                        2 => self.begin_to_end(),
                        _ => self.kill(),
                    }
                }
            }
        }
    }

    /// Looks which nodes have ended, and ends the others if one failed.
    fn look(&mut self) {
        for node in 0..self.groups.len() {
            if !self.ended[node]
                && let Some(how) = ended(self.groups[node])
            {
                self.ended[node] = true;
                if !how.well() {
                    self.first.get_or_insert((node, how));
                    self.begin_to_end();
                }
            }
        }
        if self.all_leaders_ended() {
            self.begin_to_end();
        }
        if !self.killed && self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            self.kill();
        }
    }

    fn begin_to_end(&mut self) {
        if self.deadline.is_none() {
            self.nodes.signal(Signal::SIGTERM);
            // A stopped process does not handle SIGTERM before it is continued.
            self.nodes.signal(Signal::SIGCONT);
            self.deadline = Some(Instant::now() + self.grace);
        }
    }

    fn kill(&mut self) {
        self.nodes.signal(Signal::SIGKILL);
        (self.killed, self.deadline) = (true, Some(Instant::now() + LAST_LOOKS));
    }
}
