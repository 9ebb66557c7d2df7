//! Waits for the nodes and for signals, and decides when all is over.

use super::launch::Nodes;
use super::output::Passing;
use crate::exit::Failure;
use crate::processes::{Ended, any_alive_in, ended, stays_ignored};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{self, SigHandler, SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Passed on to all nodes.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];
/// How often to look whether those that a node started have gone, too.
const GLANCE: Duration = Duration::from_millis(10);
/// How long to look after they were killed. Who then is not gone is in the hands of the kernel.
const LAST_LOOKS: Duration = Duration::from_secs(2);

/// Signals, taken one by one instead of interrupting anything.
pub struct Signals {
    taken: SignalFd,
}

impl Signals {
    /// Takes all signals that concern nodes, but for those that are to stay ignored: nodes inherit that. Threads that are started later do
    /// not get them; processes do.
    pub fn block() -> Result<Self, Failure> {
        let mut set: SigSet = PASSED_ON.into_iter().filter(|signal| !stays_ignored(*signal)).collect();
        set.add(Signal::SIGCHLD);
        set.add(Signal::SIGTSTP);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        // Ended children would vanish unseen if whoever started us had said so.
        // SAFETY: no handler, and no thread that waits for children yet.
        let _ = unsafe { signal::signal(Signal::SIGCHLD, SigHandler::SigDfl) };
        let taken = set.thread_block().and_then(|()| SignalFd::with_flags(&set, flags));
        let unable =
            |error: Errno| Failure::usage(format!("cannot take signals: {error}"), "see the limit on files (`ulimit -n`)");
        Ok(Self { taken: taken.map_err(unable)? })
    }

    fn next(&self) -> Option<Signal> {
        let signal: libc::signalfd_siginfo = self.taken.read_signal().ok().flatten()?;
        Signal::try_from(signal.ssi_signo as i32).ok()
    }
}

/// Returns when no process of any node is left, and all that they wrote was passed on.
pub fn until_all_ended(nodes: Nodes, signals: &Signals, output: Passing, grace: Duration) -> Result<(), Failure> {
    let groups = nodes.groups();
    let mut watch =
        Watch { ended: vec![false; groups.len()], nodes, groups, grace, first: None, asked: 0, deadline: None, killed: false };
    let mut broken = false;
    while !watch.is_over() {
        if wait(signals, (!broken).then_some(&output), watch.timeout()) {
            // Nobody reads what the nodes write: there is no point in going on.
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
    // Rounded up, or the last millisecond would be spent in a hurry.
    let timeout = timeout.map(|timeout| timeout + Duration::from_micros(999));
    let timeout = timeout.map_or(PollTimeout::NONE, |timeout| PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX));
    // Whatever it says, the caller looks at everything.
    let _ = poll(&mut fds, timeout);
    fds.get(1).is_some_and(|fd| fd.any() == Some(true))
}

fn cannot_write(error: &io::Error) -> Failure {
    if error.kind() == ErrorKind::BrokenPipe {
        let code = Ended::Killed(Signal::SIGPIPE).code();
        return Failure::failed("nobody reads the output any more; the nodes were ended", "").with_code(code);
    }
    Failure::failed(format!("cannot pass on the output of the nodes: {error}"), "see where it goes to")
}

struct Watch {
    nodes: Nodes,
    groups: Vec<Pid>,
    /// Which leaders were seen to have ended.
    ended: Vec<bool>,
    grace: Duration,
    /// Which node failed first, and how.
    first: Option<(usize, Ended)>,
    /// How often somebody asked for the end.
    asked: u32,
    /// When those that were told to end will be killed.
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
        // What a node started is not our child: no signal tells of its end.
        let glance = self.all_leaders_ended().then_some(GLANCE);
        [until_deadline, glance].into_iter().flatten().min()
    }

    fn on_signal(&mut self, signal: Signal) {
        match signal {
            Signal::SIGCHLD => {}
            Signal::SIGTSTP => {
                self.nodes.signal(Signal::SIGTSTP);
                let _ = raise(Signal::SIGSTOP);
                // Here it is continued.
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

    /// Sees who has ended, and draws the consequences.
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
            // Who is stopped could not see it.
            self.nodes.signal(Signal::SIGCONT);
            self.deadline = Some(Instant::now() + self.grace);
        }
    }

    fn kill(&mut self) {
        self.nodes.signal(Signal::SIGKILL);
        (self.killed, self.deadline) = (true, Some(Instant::now() + LAST_LOOKS));
    }
}
