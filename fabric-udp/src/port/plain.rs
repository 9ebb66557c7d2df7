//! A port that waits without io_uring, where that is forbidden or too old.
//!
//! It sleeps in `ppoll(2)`. A second thread passes the doorbell on (see [`bell`](super::bell)).

#![forbid(unsafe_code)]

use super::bell::Listener;
use super::calls;
use super::{Direct, Kind, Park, Port, Woken};
use rustix::event::epoll;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

/// A port without io_uring.
pub struct Plain {
    links: Vec<Direct>,
    listener: Listener,
    /// The descriptors to wait for; the listener is the last.
    polled: Vec<libc::pollfd>,
    /// All of them as one descriptor, for event loops.
    all: OwnedFd,
    /// The sockets that are part of it.
    watched: Vec<i32>,
}

impl Plain {
    pub(super) fn new(links: Vec<Direct>) -> io::Result<Self> {
        let listener = Listener::start()?;
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&all, listener.rung(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { links, listener, polled: Vec::new(), all, watched: Vec::new() })
    }

    /// Makes the one descriptor report each socket, or none.
    fn include(&mut self, writable: bool) -> io::Result<()> {
        for link in &self.links {
            let only = self.links.len() == 1 && link.twin().is_none();
            for direct in link.sockets() {
                let (socket, data) = (direct.as_fd(), epoll::EventData::new_u64(0));
                // epoll and poll use the same bits for the same events.
                let events = epoll::EventFlags::from_bits_retain(u32::from(direct.events(writable, only) as u16));
                if self.watched.contains(&socket.as_raw_fd()) {
                    epoll::modify(&self.all, socket, data, events)?;
                } else {
                    epoll::add(&self.all, socket, data, events)?;
                    self.watched.push(socket.as_raw_fd());
                }
            }
        }
        Ok(())
    }
}

impl Port for Plain {
    fn links(&self) -> &[Direct] {
        &self.links
    }

    fn kind(&self) -> Kind {
        Kind::Plain
    }

    fn park(&mut self, park: Park<'_>) -> io::Result<Woken> {
        self.listener.listen(park.bell, park.expected);
        let rung = || park.bell.load(Ordering::SeqCst) != park.expected;
        let mut woken = Woken { bell: rung(), datagram: self.links.iter().any(Direct::has_trouble), ..Woken::default() };
        if woken != Woken::default() {
            return Ok(woken);
        }
        self.polled.clear();
        for link in &self.links {
            let only = self.links.len() == 1 && link.twin().is_none();
            self.polled.extend(link.sockets().map(|direct| libc::pollfd {
                fd: direct.as_fd().as_raw_fd(),
                events: direct.events(park.writable, only),
                revents: 0,
            }));
        }
        self.polled.push(libc::pollfd { fd: self.listener.rung().as_raw_fd(), events: libc::POLLIN, revents: 0 });
        match calls::poll(&mut self.polled, park.timeout) {
            Ok(0) => woken.timeout = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(woken),
            Err(error) => return Err(error),
        }
        // A link may have got a twin since then. The next park waits for it.
        for direct in self.links.iter().flat_map(Direct::sockets) {
            let descriptor = direct.as_fd().as_raw_fd();
            if let Some(polled) = self.polled.iter().find(|polled| polled.fd == descriptor) {
                direct.polled(polled.revents, &mut woken);
            }
        }
        if self.polled.last().is_some_and(|listener| listener.revents != 0) {
            self.listener.clear();
            // The eventfd also signals when the listener moved to another word, or when a ring came too late for the park before.
            woken.bell = rung();
        }
        Ok(woken)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }

    fn watch(&mut self, park: Park<'_>) -> io::Result<bool> {
        self.listener.listen(park.bell, park.expected);
        self.include(park.writable)?;
        Ok(park.bell.load(Ordering::SeqCst) == park.expected && !self.links.iter().any(Direct::has_trouble))
    }

    fn unwatch(&mut self) -> io::Result<()> {
        self.listener.clear();
        // Datagrams that are received from here on must not wake any thread.
        for socket in self.links.iter().flat_map(Direct::sockets) {
            if self.watched.contains(&socket.as_fd().as_raw_fd()) {
                epoll::modify(&self.all, socket.as_fd(), epoll::EventData::new_u64(0), epoll::EventFlags::empty())?;
            }
        }
        Ok(())
    }
}
