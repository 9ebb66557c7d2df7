//! A port that waits by io_uring.
//!
//! Its ring only waits: for all sockets and the doorbell word at once. Datagrams move by calls of [`Direct`].
//!
//! A park submits its requests and waits in one system call, and a second one cancels those that did not complete. So each
//! request belongs to the thread that parks, a thread that exits takes no request with it that another thread waits for, and
//! datagrams that are received between two parks wake no thread.

#![forbid(unsafe_code)]

use super::ring::Ring;
use super::{Direct, Kind, Park, Port, Woken};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

const BELL: u64 = 1;
const CANCEL: u64 = 2;
/// The first socket and then its twin; those of the other links follow.
const SOCKET: u64 = 3;

const CANCELLED: i32 = -libc::ECANCELED;
const NOT_AS_EXPECTED: i32 = -libc::EAGAIN;

/// How long to wait for requests to end, which takes microseconds.
const END_MOST: Duration = Duration::from_secs(1);

/// Why io_uring is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UringError {
    /// The kernel does not have it.
    #[error("this kernel has no io_uring")]
    Missing,
    /// The administrator switched it off.
    #[error("io_uring is switched off on this machine (sysctl kernel.io_uring_disabled = {setting})")]
    Disabled {
        /// The value of the setting.
        setting: String,
    },
    /// This process may not use it.
    #[error("io_uring is forbidden to this process, as the seccomp filters of many containers do")]
    Forbidden,
    /// It lacks a feature that a port needs.
    #[error("this kernel's io_uring lacks what a port needs, such as to wait for a doorbell word (Linux 6.7 added that)")]
    TooOld,
    /// Another error.
    #[error("could not {attempt} (io_uring): {source}")]
    System {
        /// The operation.
        attempt: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl UringError {
    pub(super) fn of(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOSYS) => Self::Missing,
            Some(libc::EPERM | libc::EACCES) => {
                let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
                match setting.trim() {
                    setting @ ("1" | "2") => Self::Disabled { setting: setting.into() },
                    _ => Self::Forbidden,
                }
            }
            _ => Self::System { attempt: "make a ring", source: error },
        }
    }
}

/// A port that waits by io_uring.
pub struct Uring {
    links: Vec<Direct>,
    ring: Ring,
    /// Requests that have not ended. Zero between two parks.
    armed: usize,
}

impl Uring {
    /// Sees whether this process can have such a port here.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn check() -> Result<(), UringError> {
        Ring::new().map(drop)
    }

    pub(super) fn new(links: Vec<Direct>) -> Result<Self, UringError> {
        Ok(Self { links, ring: Ring::new()?, armed: 0 })
    }

    fn arm(&mut self, park: Park<'_>) -> io::Result<()> {
        for (first, link) in (SOCKET..).step_by(2).zip(&self.links) {
            for (tag, direct) in (first..).zip(link.sockets()) {
                let only = self.links.len() == 1 && link.twin().is_none();
                self.ring.arm_poll(direct.as_fd(), direct.events(park.writable, only), tag)?;
                self.armed += 1;
            }
        }
        self.ring.arm_bell(park.bell, park.expected, BELL)?;
        self.armed += 1;
        Ok(())
    }

    /// Records the requests that have ended.
    fn reap(&mut self, woken: &mut Woken) -> io::Result<()> {
        while let Some((tag, result)) = self.ring.take() {
            self.armed -= usize::from(tag != CANCEL);
            match (tag, result) {
                (CANCEL, _) | (_, CANCELLED) => {}
                (BELL, 0 | NOT_AS_EXPECTED) => woken.bell = true,
                (SOCKET.., 0..) => {
                    let at = (tag - SOCKET) as usize;
                    if let Some(direct) = self.links.get(at / 2).and_then(|link| link.sockets().nth(at % 2)) {
                        direct.polled(result as i16, woken);
                    }
                }
                _ => return Err(io::Error::from_raw_os_error(-result)),
            }
        }
        Ok(())
    }

    fn disarm(&mut self, woken: &mut Woken) -> io::Result<()> {
        if self.armed == 0 {
            return Ok(());
        }
        self.ring.cancel_all(CANCEL)?;
        let begun = Instant::now();
        while self.armed > 0 {
            self.ring.wait(self.armed, END_MOST)?;
            self.reap(woken)?;
            if self.armed > 0 && begun.elapsed() > END_MOST {
                return Err(io::Error::other("io_uring did not end its requests"));
            }
        }
        Ok(())
    }
}

impl Port for Uring {
    fn links(&self) -> &[Direct] {
        &self.links
    }

    fn kind(&self) -> Kind {
        if self.links.iter().any(Direct::by_ring) { Kind::Uring } else { Kind::Calls }
    }

    fn park(&mut self, park: Park<'_>) -> io::Result<Woken> {
        let mut woken = Woken { datagram: self.links.iter().any(Direct::has_trouble), ..Woken::default() };
        if woken.datagram {
            return Ok(woken);
        }
        self.arm(park)?;
        let begun = Instant::now();
        self.ring.wait(1, park.timeout)?;
        self.reap(&mut woken)?;
        if woken == Woken::default() {
            // Without the timeout, it was a signal.
            woken.timeout = begun.elapsed() >= park.timeout;
        }
        self.disarm(&mut woken)?;
        Ok(woken)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.ring.descriptor()
    }

    fn watch(&mut self, park: Park<'_>) -> io::Result<bool> {
        let mut woken = Woken { datagram: self.links.iter().any(Direct::has_trouble), ..Woken::default() };
        self.reap(&mut woken)?;
        // A doorbell that was not rung since the last watch is still armed.
        if self.armed == 0 {
            self.arm(park)?;
            self.ring.submit()?;
            self.reap(&mut woken)?;
        }
        Ok(woken == Woken::default())
    }

    fn unwatch(&mut self) -> io::Result<()> {
        let mut woken = Woken::default();
        self.reap(&mut woken)?;
        // Datagrams that are received from here on must not wake any thread.
        if self.links.is_empty() { Ok(()) } else { self.disarm(&mut woken) }
    }
}
