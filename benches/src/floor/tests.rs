//! Two threads, each with a mapping of its own, stand in for two processes.

use super::*;
use crate::exchange::Carrier;
use std::os::fd::IntoRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const SHAPE: Shape = Shape { pairs: 2, bytes: 70_000 };

/// Runs both sides of the second pair; the first one's memory must not matter.
fn pair(ping: impl FnOnce(&Mapping, &PairMemory<'_>, &Patience) + Send, pong: impl FnOnce(&Mapping, &PairMemory<'_>, &Patience) + Send) {
    let patience = Patience::new(Arc::new(AtomicBool::new(false)), true);
    let one = Mapping::create(SHAPE).unwrap();
    let descriptor = std::os::fd::IntoRawFd::into_raw_fd(nix::unistd::dup(borrowed(&one)).unwrap());
    // SAFETY: a duplicate made for it alone.
    let other = unsafe { Mapping::inherit(descriptor, SHAPE) }.unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| pong(&other, &other.pair(1), &patience));
        ping(&one, &one.pair(1), &patience);
    });
}
