//! Signals that ask for the end, for commands with a runtime.

use super::requests_to_end;
use std::io;
use std::os::unix::net::UnixStream;

/// A socket with one byte for each signal that asks for the end.
pub fn signals() -> io::Result<UnixStream> {
    let (come, comes) = UnixStream::pair()?;
    for signal in requests_to_end() {
        signal_hook::low_level::pipe::register(signal as i32, come.try_clone()?)?;
    }
    comes.set_nonblocking(true)?;
    Ok(comes)
}

/// Returns once for each signal that asks for an end.
pub async fn requested(signals: &tokio::net::UnixStream) {
    // Any other error ends the command as well.
    while signals.readable().await.is_ok()
        && signals.try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    {}
}
