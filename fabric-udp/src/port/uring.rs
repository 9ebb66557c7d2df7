//! A port with io_uring.
//!
//! It does not make a datagram cheaper; it makes one wait for everything possible, and a look that costs two loads.
//!
//! In the warm and the cold gear one request receives whatever comes, or says that something came. It is ended when the gear is left, in
//! the same call as the one on the doorbell, so that datagrams which other threads take from the socket in the meantime neither wake the
//! poller nor make the sender run its requests. Processes are watched all the time: they end once.

#![forbid(unsafe_code)]

use super::ring::{Completion, PLACES, Ring};
use super::{Arm, Direct, Kind, Park, Port, Room, Woken};
use crate::Run;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

const RECEIVE: u64 = 1;
const BELL: u64 = 2;
const WRITABLE: u64 = 3;
const CANCEL: u64 = 4;
/// Processes have the numbers from here on.
const PROCESSES: u64 = 16;

/// Runs taken from the socket in one call.
const RUNS: usize = 8;
/// How long the end of a request is waited for, which is a matter of microseconds.
const END_MOST: Duration = Duration::from_secs(1);

/// Why io_uring is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UringError {
    /// The kernel has none.
    #[error("this kernel has no io_uring")]
    Missing,
    /// The administrator switched it off.
    #[error("io_uring is switched off on this machine (sysctl kernel.io_uring_disabled = {setting})")]
    Disabled {
        /// The value of the setting.
        setting: String,
    },
    /// This process may not.
    #[error("io_uring is forbidden to this process, as it is by the seccomp filter of many containers")]
    Forbidden,
    /// It lacks what a port needs.
    #[error("this kernel's io_uring cannot wait for a doorbell word (that came with Linux 6.7)")]
    TooOld,
    /// Something else.
    #[error("could not {attempt} (io_uring): {source}")]
    System {
        /// What was tried.
        attempt: &'static str,
        /// What the system said.
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

/// A port with io_uring.
pub struct Uring {
    direct: Direct,
    room: Room,
    arm: Arm,
    ring: Ring,
    /// Whether the warm gear is in.
    warm: bool,
    receiving: bool,
    /// With [`Arm::Word`]: there may be something in the socket.
    readable: bool,
    belled: bool,
    writable: bool,
    /// Datagrams that the kernel brought and nobody has looked at: their places and lengths.
    brought: VecDeque<(u16, u32)>,
    /// Token, number of the request, and what keeps the process's identity.
    processes: Vec<(u64, u64, OwnedFd)>,
    next_process: u64,
    fallen: Vec<u64>,
}

impl Uring {
    pub(super) fn new(direct: Direct, arm: Arm) -> Result<Self, UringError> {
        Ok(Self {
            direct,
            room: Room::new(RUNS),
            arm,
            ring: Ring::new(arm == Arm::Datagrams)?,
            warm: false,
            receiving: false,
            readable: false,
            belled: false,
            writable: false,
            brought: VecDeque::with_capacity(PLACES),
            processes: Vec::new(),
            next_process: PROCESSES,
            fallen: Vec::new(),
        })
    }

    /// Prepares to receive, if that is not going on.
    fn arm(&mut self) -> io::Result<()> {
        if !self.receiving {
            match self.arm {
                Arm::Datagrams => self.ring.arm_receive(self.direct.as_fd(), RECEIVE)?,
                Arm::Word => self.ring.arm_poll(self.direct.as_fd(), libc::POLLIN, true, RECEIVE)?,
            }
            self.receiving = true;
        }
        Ok(())
    }

    fn reap(&mut self, woken: &mut Woken) {
        while let Some(completion) = self.ring.take() {
            match completion.tag {
                RECEIVE => self.received(completion, woken),
                BELL => {
                    self.belled = false;
                    // Woken, or it did not say what was expected.
                    woken.bell |= matches!(-completion.result, 0 | libc::EAGAIN);
                }
                WRITABLE => {
                    self.writable = false;
                    woken.writable |= completion.result > 0;
                }
                CANCEL => {}
                number => {
                    let process = self.processes.iter().position(|(_, other, _)| *other == number);
                    if let Some(at) = process
                        && completion.result != -libc::ECANCELED
                    {
                        self.fallen.push(self.processes.swap_remove(at).0);
                        woken.death = true;
                    }
                }
            }
        }
    }

    fn received(&mut self, completion: Completion, woken: &mut Woken) {
        self.receiving = completion.more;
        let Completion { result, place, .. } = completion;
        match (self.arm, place) {
            (Arm::Datagrams, Some(place)) if result >= 0 => {
                self.brought.push_back((place, result as u32));
                woken.datagram = true;
            }
            (Arm::Word, _) if result >= 0 => {
                self.readable = true;
                woken.datagram = true;
                if result & i32::from(libc::POLLERR) != 0 {
                    self.direct.is_troubled();
                }
            }
            _ => match -result {
                libc::ECANCELED => {}
                // All places are full: the rest waits in the socket.
                libc::ENOBUFS => woken.datagram = true,
                // What a datagram that went out met with.
                _ => {
                    self.direct.is_troubled();
                    woken.datagram = true;
                }
            },
        }
        if let (Some(place), true) = (place, result < 0) {
            self.ring.give_back(place);
        }
    }

    /// Hands over what the kernel brought.
    fn hand_over(&mut self, budget: usize, each: &mut dyn FnMut(Run<'_>)) -> usize {
        let mut delivered = 0;
        while delivered < budget
            && let Some((place, bytes)) = self.brought.pop_front()
        {
            if let Some((memory, arrival)) = self.ring.arrived(place, bytes) {
                self.direct.called();
                self.direct.deliver(memory, arrival, each);
            }
            self.ring.give_back(place);
            delivered += 1;
        }
        delivered
    }

    fn armed(&self) -> usize {
        usize::from(self.receiving) + usize::from(self.belled) + usize::from(self.writable)
    }

    /// Ends all requests but those on processes.
    fn disarm(&mut self, woken: &mut Woken) -> io::Result<()> {
        self.warm = false;
        for (armed, tag) in [(self.receiving, RECEIVE), (self.belled, BELL), (self.writable, WRITABLE)] {
            if armed {
                self.ring.cancel(tag, CANCEL)?;
            }
        }
        let mut begun = None;
        while self.armed() > 0 {
            // Each of them ends with one completion. One that is not found has ended already.
            self.ring.wait(self.armed(), END_MOST)?;
            if !self.ring.has_completion() && begun.get_or_insert_with(Instant::now).elapsed() > END_MOST {
                return Err(io::Error::other("io_uring did not end its requests"));
            }
            self.reap(woken);
        }
        Ok(())
    }
}

impl Port for Uring {
    fn direct(&self) -> &Direct {
        &self.direct
    }

    fn kind(&self) -> Kind {
        Kind::Uring
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(Run<'_>)) -> io::Result<usize> {
        let mut delivered = self.hand_over(budget, each);
        if !self.warm {
            if delivered < budget {
                delivered += self.direct.receive(&mut self.room, budget - delivered, each)?;
            }
            return Ok(delivered);
        }
        if delivered < budget {
            if self.ring.has_work() {
                self.ring.submit(0)?;
            }
            self.reap(&mut Woken::default());
            delivered += self.hand_over(budget - delivered, each);
        }
        if self.readable && delivered < budget {
            let got = self.direct.receive(&mut self.room, budget - delivered, each)?;
            delivered += got;
            self.readable = delivered == budget;
        }
        // It ends when all places are full, and when there is trouble with a destination.
        if !self.receiving {
            self.arm()?;
            self.ring.submit(0)?;
        }
        Ok(delivered)
    }

    fn warm(&mut self) -> io::Result<()> {
        if !self.warm {
            self.arm()?;
            self.ring.submit(0)?;
            self.warm = true;
        }
        Ok(())
    }

    #[inline]
    fn glance(&mut self) -> bool {
        self.ring.has_work() || self.ring.has_completion() || !self.brought.is_empty() || self.readable || !self.receiving
    }

    fn hot(&mut self) -> io::Result<()> {
        if self.warm || self.armed() > 0 {
            self.disarm(&mut Woken::default())?;
        }
        Ok(())
    }

    fn park(&mut self, park: Park<'_>) -> io::Result<Woken> {
        let mut woken = Woken { death: !self.fallen.is_empty(), ..Woken::default() };
        woken.datagram = !self.brought.is_empty() || self.direct.has_trouble();
        if !woken.death && !woken.datagram {
            self.readable = false; // The request looks anew.
            self.arm()?;
            self.ring.arm_bell(park.bell, park.expected, BELL)?;
            self.belled = true;
            if park.writable {
                self.ring.arm_poll(self.direct.as_fd(), libc::POLLOUT, false, WRITABLE)?;
                self.writable = true;
            }
            let begun = Instant::now();
            while woken == Woken::default() {
                let waited = begun.elapsed();
                self.ring.wait(1, park.timeout.saturating_sub(waited))?;
                if !self.ring.has_completion() {
                    // A signal, if it was not the time.
                    woken.timeout = begun.elapsed() >= park.timeout;
                    break;
                }
                // It may be nobody's: that of a process that is not watched any more.
                self.reap(&mut woken);
            }
        }
        self.disarm(&mut woken)?;
        // In the hot gear the socket is asked anyway.
        self.readable = false;
        Ok(woken)
    }

    fn watch(&mut self, token: u64, process: OwnedFd) -> io::Result<()> {
        self.forget(token);
        let number = self.next_process;
        self.next_process += 1;
        // Handed over with the next call, whatever it is for.
        self.ring.arm_poll(process.as_fd(), libc::POLLIN, false, number)?;
        self.processes.push((token, number, process));
        Ok(())
    }

    fn forget(&mut self, token: u64) {
        if let Some(at) = self.processes.iter().position(|(other, ..)| *other == token) {
            let (_, number, _) = self.processes.swap_remove(at);
            // If it cannot be ended now, its end is of nobody's interest later.
            let _ = self.ring.cancel(number, CANCEL);
        }
        self.fallen.retain(|other| *other != token);
    }

    fn fallen(&mut self) -> Option<u64> {
        if self.fallen.is_empty() && (self.ring.is_prepared() || self.ring.has_work() || self.ring.has_completion()) {
            // An error here is met again by the next park.
            let _ = self.ring.submit(0);
            self.reap(&mut Woken::default());
        }
        self.fallen.pop()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.hot().is_err() {
            self.ring.abandon();
        }
    }
}
