//! Places where a test can kill this process: see `fault_point!`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

struct Fault {
    name: String,
    countdown: AtomicU64,
}

/// Called by `fault_point!`. Kills the process with SIGKILL at the n-th arrival at the place that `DOORBELL_FAULT=name:n` names.
pub fn arrive(name: &str) {
    static FAULT: OnceLock<Option<Fault>> = OnceLock::new();
    let fault = FAULT.get_or_init(|| {
        let spec = std::env::var("DOORBELL_FAULT").ok()?;
        let (name, count) = spec.rsplit_once(':')?;
        Some(Fault { name: name.into(), countdown: AtomicU64::new(count.parse().ok()?) })
    });
    if let Some(fault) = fault
        && fault.name == name
        && fault.countdown.fetch_sub(1, Ordering::Relaxed) == 1
    {
        // SAFETY: a signal to ourselves; no memory is involved.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        loop {
            std::hint::spin_loop();
        }
    }
}
