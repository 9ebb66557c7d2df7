//! What is typed goes to node 0.
//!
//! The nodes are no foreground processes of the terminal, so they cannot read from it: this process does it for node 0.

use nix::sys::signal::{SigSet, Signal};
use std::io::{self, ErrorKind, Read, Write};
use std::process::ChildStdin;
use std::thread;
use std::time::Duration;

/// How often to ask whether the terminal is ours again.
const PAUSE: Duration = Duration::from_millis(200);

/// Passes on what is typed until there is no more, or nobody to read it. Ends with the process at the latest.
pub fn relay(mut to: ChildStdin) {
    let copy = move || {
        // In the background a read is then an error, and does not stop this process.
        let mut stop = SigSet::empty();
        stop.add(Signal::SIGTTIN);
        if stop.thread_block().is_err() {
            return;
        }
        let mut typed = [0; 4096];
        loop {
            match io::stdin().lock().read(&mut typed) {
                Ok(0) => return,
                Ok(count) if to.write_all(&typed[..count]).is_ok() => {}
                Ok(_) => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::EIO) => thread::sleep(PAUSE),
                Err(_) => return,
            }
        }
    };
    // Without this thread node 0 finds its input at an end.
    let _ = thread::Builder::new().name("input".into()).spawn(copy);
}
