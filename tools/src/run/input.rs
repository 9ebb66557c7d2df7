//! Terminal input for node 0.
//!
//! The nodes are no foreground processes of the terminal, so they cannot read from it. This process reads it for node 0.

use nix::sys::signal::{SigSet, Signal};
use std::io::{self, ErrorKind, Read, Write};
use std::process::ChildStdin;
use std::thread;
use std::time::Duration;

/// The pause before reading again while this process is in the background.
const PAUSE: Duration = Duration::from_millis(200);

/// Passes terminal input on until it ends, or until node 0 stops reading. Ends with the process at the latest.
pub fn relay(mut to: ChildStdin) {
    let copy = move || {
        // With SIGTTIN blocked, a read in the background fails and does not stop this process.
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
    // If the thread cannot start, node 0 finds the end of its input.
    let _ = thread::Builder::new().name("input".into()).spawn(copy);
}
