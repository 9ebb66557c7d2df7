//! A port of plain calls, for where io_uring is forbidden or too old.
//!
//! Hot it is the same. Warm it cannot be: a glance that costs nothing says nothing. Cold it sleeps in `ppoll(2)`, and hears the doorbell
//! by way of a second thread (see [`bell`](super::bell)).

#![forbid(unsafe_code)]

use super::bell::Listener;
use super::calls;
use super::{Direct, Kind, Park, Port, Room, Woken};
use crate::Run;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Runs taken in one call.
const RUNS: usize = 8;

/// A port without io_uring.
pub struct Plain {
    direct: Direct,
    room: Room,
    listener: Listener,
    /// The socket, the listener, and the processes.
    polled: Vec<libc::pollfd>,
    /// As many as there are descriptors behind the first two, and in their order.
    processes: Vec<(u64, OwnedFd)>,
    fallen: Vec<u64>,
}

impl Plain {
    pub(super) fn new(direct: Direct) -> io::Result<Self> {
        let listener = Listener::start()?;
        let of = |descriptor, events| libc::pollfd { fd: descriptor, events, revents: 0 };
        let polled = vec![of(direct.as_fd().as_raw_fd(), libc::POLLIN), of(listener.rung().as_raw_fd(), libc::POLLIN)];
        Ok(Self { direct, room: Room::new(RUNS), listener, polled, processes: Vec::new(), fallen: Vec::new() })
    }
}

impl Plain {
    /// Notes whose end the last call of `poll(2)` found.
    fn bury(&mut self) {
        for at in (0..self.processes.len()).rev() {
            if self.polled[at + 2].revents != 0 {
                self.fallen.push(self.processes.swap_remove(at).0);
                self.polled.swap_remove(at + 2);
            }
        }
    }
}

impl Port for Plain {
    fn direct(&self) -> &Direct {
        &self.direct
    }

    fn kind(&self) -> Kind {
        Kind::Plain
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(Run<'_>)) -> io::Result<usize> {
        self.direct.receive(&mut self.room, budget, each)
    }

    fn warm(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn glance(&mut self) -> bool {
        true
    }

    fn hot(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn park(&mut self, park: Park<'_>) -> io::Result<Woken> {
        let mut woken = Woken { death: !self.fallen.is_empty(), ..Woken::default() };
        self.listener.listen(park.bell, park.expected);
        woken.bell = park.bell.load(Ordering::SeqCst) != park.expected;
        woken.datagram = self.direct.has_trouble();
        if woken != Woken::default() {
            return Ok(woken);
        }
        self.polled[0].events = if park.writable { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        match calls::poll(&mut self.polled, park.timeout) {
            Ok(0) => woken.timeout = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(woken),
            Err(error) => return Err(error),
        }
        let socket = self.polled[0].revents;
        if socket & libc::POLLERR != 0 {
            self.direct.is_troubled();
        }
        woken.datagram = socket & (libc::POLLIN | libc::POLLERR) != 0;
        woken.writable = park.writable && socket & libc::POLLOUT != 0;
        if self.polled[1].revents != 0 {
            self.listener.clear();
            // It also signals when it was sent to another word, and when a ring came too late for the park before.
            woken.bell = park.bell.load(Ordering::SeqCst) != park.expected;
        }
        self.bury();
        woken.death = !self.fallen.is_empty();
        Ok(woken)
    }

    fn watch(&mut self, token: u64, process: OwnedFd) -> io::Result<()> {
        self.forget(token);
        self.polled.push(libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 });
        self.processes.push((token, process));
        Ok(())
    }

    fn forget(&mut self, token: u64) {
        if let Some(at) = self.processes.iter().position(|(other, _)| *other == token) {
            self.processes.swap_remove(at);
            self.polled.swap_remove(at + 2);
        }
        self.fallen.retain(|other| *other != token);
    }

    fn fallen(&mut self) -> Option<u64> {
        if self.fallen.is_empty() && !self.processes.is_empty() && calls::poll(&mut self.polled[2..], Duration::ZERO).is_ok() {
            self.bury();
        }
        self.fallen.pop()
    }
}
