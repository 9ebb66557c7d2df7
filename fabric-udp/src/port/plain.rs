//! A port of plain calls, for where io_uring is forbidden or too old.
//!
//! It sleeps in `ppoll(2)`, and hears the doorbell by way of a second thread (see [`bell`](super::bell)).

#![forbid(unsafe_code)]

use super::bell::Listener;
use super::calls;
use super::{Direct, Kind, Park, Port, RUNS, Room, Woken};
use crate::Run;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;

/// A port without io_uring.
pub struct Plain {
    direct: Direct,
    room: Room,
    listener: Listener,
}

impl Plain {
    pub(super) fn new(direct: Direct) -> io::Result<Self> {
        Ok(Self { direct, room: Room::new(RUNS), listener: Listener::start()? })
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

    fn park(&mut self, park: Park<'_>) -> io::Result<Woken> {
        self.listener.listen(park.bell, park.expected);
        let rung = || park.bell.load(Ordering::SeqCst) != park.expected;
        let mut woken = Woken { bell: rung(), datagram: self.direct.has_trouble(), ..Woken::default() };
        if woken != Woken::default() {
            return Ok(woken);
        }
        let events = if park.writable { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        let of = |descriptor: i32, events| libc::pollfd { fd: descriptor, events, revents: 0 };
        let mut polled = [of(self.direct.as_fd().as_raw_fd(), events), of(self.listener.rung().as_raw_fd(), libc::POLLIN)];
        match calls::poll(&mut polled, park.timeout) {
            Ok(0) => woken.timeout = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(woken),
            Err(error) => return Err(error),
        }
        let [socket, listener] = polled;
        self.direct.polled(socket.revents, &mut woken);
        if listener.revents != 0 {
            self.listener.clear();
            // It also signals when it was sent to another word, and when a ring came too late for the park before.
            woken.bell = rung();
        }
        Ok(woken)
    }
}
