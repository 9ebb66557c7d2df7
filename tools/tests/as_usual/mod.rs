//! A command as if somebody had started it at a terminal, however the tests were started.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Signals that shells may have ignored by what they start, and which ones are to be ignored here.
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
