//! Other processes: the test binary started anew, with a role to play.
//!
//! A test binary that needs them says [`roles!`](crate::roles) once. That makes a test called `child_entry`, which passes at once
//! unless the process was started by [`Process::start`]: then it plays the role and ends the process.

use crate::words::{VARIABLE, Words};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, waitid};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Names the role to a child.
pub const ROLE: &str = "DOORBELL_TESTS_ROLE";

/// Says which roles children of this test binary can play: `roles! { "name" => function, … }`.
#[macro_export]
macro_rules! roles {
    ($($name:literal => $role:expr),+ $(,)?) => {
        /// Where other processes of these tests begin.
        #[test]
        fn child_entry() {
            match std::env::var($crate::process::ROLE).as_deref() {
                $(Ok($name) => { $role(); std::process::exit(0) })+
                Ok(other) => panic!("no role is called {other}"),
                Err(_) => {}
            }
        }
    };
}

/// A value that the parent passed by [`Start::tell`]. Panics if it passed none.
#[track_caller]
pub fn told(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

/// The same, parsed. Panics if it does not parse.
#[track_caller]
pub fn told_as<T: FromStr>(name: &str) -> T {
    told(name).parse().unwrap_or_else(|_| panic!("{name} is not set to a value of its type"))
}

/// Another process. Killed when it goes out of scope; killed by the kernel when the thread that started it ends.
#[derive(Debug)]
pub struct Process {
    child: Child,
    exit: OwnedFd,
    /// Its role, for messages.
    pub role: String,
}

/// A process that is not started yet.
pub struct Start {
    command: Command,
    role: String,
}

impl Process {
    /// Prepares a process that plays a role.
    pub fn start(role: &str) -> Start {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child_entry", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).stdin(Stdio::null()).stdout(Stdio::null());
        let parent = std::process::id();
        // SAFETY: between fork and exec, only system calls.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() as u32 != parent { Err(std::io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(()) }
            })
        };
        Start { command, role: role.to_owned() }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal. After `STOP`, waits until it has stopped.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
        if signal == Signal::STOP {
            waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT).unwrap();
        }
    }

    /// Sends it SIGKILL. Does not wait.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Waits until the kernel says that it has ended; false if it has not by then. It is a zombie afterwards.
    pub fn ended_by(&self, deadline: Instant) -> bool {
        let mut ask = [PollFd::new(&self.exit, PollFlags::IN)];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut ask, Some(&timeout)) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => panic!("poll: {error}"),
            }
        }
    }

    /// Waits until it has stopped; false if it has not by then, or has ended.
    pub fn stops_by(&self, deadline: Instant) -> bool {
        let pid = Pid::from_child(&self.child);
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        loop {
            match waitid(WaitId::Pid(pid), options) {
                Ok(Some(_)) => return true,
                Ok(None) if Instant::now() < deadline && !self.ended_by(Instant::now()) => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(None) | Err(rustix::io::Errno::CHILD) => return false,
                Err(error) => panic!("waitid: {error}"),
            }
        }
    }

    /// How it ended. Panics if it does not end within `patience`.
    #[track_caller]
    pub fn end(mut self, patience: Duration) -> ExitStatus {
        assert!(self.ended_by(Instant::now() + patience), "process {} ({}) hangs", self.pid(), self.role);
        self.child.wait().unwrap()
    }

    /// Waits until it ends with success. Panics if it does not end within `patience`, or fails.
    #[track_caller]
    pub fn end_well(self, patience: Duration) {
        let (pid, role) = (self.pid(), self.role.clone());
        let status = self.end(patience);
        assert!(status.success(), "process {pid} ({role}) failed: {status}");
    }
}

impl Start {
    /// Passes it a value in its environment.
    pub fn tell(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Gives it shared words.
    pub fn words(mut self, words: &Words) -> Self {
        let fd = words.descriptor();
        self.command.env(VARIABLE, fd.to_string());
        // SAFETY: between fork and exec, only system calls.
        unsafe {
            self.command.pre_exec(move || {
                libc::fcntl(fd, libc::F_SETFD, 0);
                Ok(())
            })
        };
        self
    }

    /// Runs a function in it between fork and exec.
    ///
    /// # Safety
    /// As [`CommandExt::pre_exec`].
    pub unsafe fn before(mut self, run: impl FnMut() -> std::io::Result<()> + Send + Sync + 'static) -> Self {
        // SAFETY: caller.
        unsafe { self.command.pre_exec(run) };
        self
    }

    /// Starts it, or returns the error of the system.
    pub fn try_go(mut self) -> std::io::Result<Process> {
        let child = self.command.spawn()?;
        let exit = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        Ok(Process { child, exit, role: self.role })
    }

    /// Starts it.
    #[track_caller]
    pub fn go(self) -> Process {
        self.try_go().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// From here on the system refuses io_uring to this process and to its children. Makes two system calls, so it may run between fork and exec.
pub fn forbid_io_uring() -> std::io::Result<()> {
    deny(libc::SYS_io_uring_setup, libc::EPERM)
}

/// From here on a system call fails with this error in all threads of this process and in its children. Nothing undoes that. Makes two system calls,
/// so it may run between fork and exec.
pub fn deny(call: libc::c_long, errno: i32) -> std::io::Result<()> {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let (mode, all_threads) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
    // SAFETY: a local program with its length; the kernel copies it.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_seccomp, mode, all_threads, &program) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
