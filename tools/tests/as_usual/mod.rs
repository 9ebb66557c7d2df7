//! A command with the signals of a terminal, however the tests were started.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Restores the signals that a shell may ignore for its children, except those that the test wants ignored.
pub const SIGNALS: [i32; 4] = [libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGTERM];

/// Has the command begin with none of the [signals](SIGNALS) ignored but these.
pub fn ignoring(command: &mut Command, ignored: &'static [i32]) {
    let before_exec = move || {
        for signal in SIGNALS {
            let action = if ignored.contains(&signal) { libc::SIG_IGN } else { libc::SIG_DFL };
            // SAFETY: no handler.
            unsafe { libc::signal(signal, action) };
        }
        Ok(())
    };
    // SAFETY: a few system calls, no allocation, no lock.
    unsafe { command.pre_exec(before_exec) };
}
