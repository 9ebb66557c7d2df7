//! Datagrams by the simplest system calls: the best that any transport over UDP between two processes can reach.
//!
//! The two ends are connected to each other and never sleep. The loops match those of C programs that measure the same.

use super::patience::{Patience, Stopped};
use crate::clock::ticks;
use crate::exchange::Carrier;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{MsgFlags, SockFlag, SockType, SockaddrIn, sockopt};
use nix::sys::socket::{bind, connect, getsockname, recv, send, setsockopt, socket};
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// The payload of the longest IPv4 datagram.
pub const DATAGRAM_MOST: usize = 65_507;
/// The number of datagrams in one call, where the kernel does not cut them from a run.
const TOGETHER: usize = 64;
/// After the sender has ended a stream, the receiver ends it after this many looks that find nothing.
const LAST_LOOKS: u32 = 1000;

/// One end, on this machine's loopback interface.
#[derive(Debug)]
pub struct UdpEnd {
    socket: OwnedFd,
}

/// Why datagrams could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    /// It was told to stop.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The system's error.
    #[error("a plain UDP socket failed in the middle of a measurement: {0}")]
    System(#[from] Errno),
}

/// The method by which a stream passes through the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Single datagrams, many in one call (`sendmmsg`).
    Single,
    /// Runs that the kernel cuts (GSO).
    Cut,
    /// Runs that the kernel cuts and gathers (GSO and GRO).
    CutAndGathered,
}

/// The part of a stream that arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Bytes of payload.
    pub bytes: u64,
    /// The time from the first datagram to the last.
    pub time: Duration,
}

impl Arrived {
    /// Bytes a nanosecond, or gigabytes a second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / (self.time.as_nanos() as f64).max(1.0)
    }
}

impl UdpEnd {
    /// Two connected ends, one for each of two processes; the second process inherits its end. `buffer` is the size of the socket
    /// buffers.
    ///
    /// # Errors
    /// The system has no such sockets.
    pub fn pair(buffer: usize) -> io::Result<[Self; 2]> {
        use nix::sys::socket::AddressFamily::Inet;
        let any: SockaddrIn = SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0).into();
        let make = || -> io::Result<OwnedFd> {
            let end = socket(Inet, SockType::Datagram, SockFlag::empty(), None)?;
            bind(end.as_raw_fd(), &any)?;
            // Beyond the system's limit where that is allowed, otherwise up to it.
            let _ = setsockopt(&end, sockopt::RcvBufForce, &buffer).or_else(|_| setsockopt(&end, sockopt::RcvBuf, &buffer));
            let _ = setsockopt(&end, sockopt::SndBufForce, &buffer).or_else(|_| setsockopt(&end, sockopt::SndBuf, &buffer));
            Ok(end)
        };
        let (one, other) = (make()?, make()?);
        connect(one.as_raw_fd(), &getsockname::<SockaddrIn>(other.as_raw_fd())?)?;
        connect(other.as_raw_fd(), &getsockname::<SockaddrIn>(one.as_raw_fd())?)?;
        Ok([Self { socket: one }, Self { socket: other }])
    }

    /// The end behind an inherited descriptor.
    ///
    /// # Safety
    /// The descriptor belongs to such an end, and nothing else in this process owns it.
    pub unsafe fn inherit(descriptor: RawFd) -> Self {
        // SAFETY: caller.
        Self { socket: unsafe { OwnedFd::from_raw_fd(descriptor) } }
    }

    /// The descriptor, for a child to inherit.
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Sends first, `count` times. Returns the ticks of each round trip.
    ///
    /// # Errors
    /// It was told to stop, or the socket failed.
    pub fn ping(&self, message: &mut [u8], count: usize, patience: &Patience) -> Result<Vec<u64>, UdpError> {
        let mut samples = vec![0; count];
        for sample in &mut samples {
            let start = ticks();
            send(self.socket.as_raw_fd(), message, MsgFlags::empty())?;
            self.receive(message, patience)?;
            *sample = ticks() - start;
        }
        Ok(samples)
    }

    /// Answers, `count` times.
    ///
    /// # Errors
    /// It was told to stop, or the socket failed.
    pub fn pong(&self, message: &mut [u8], count: usize, patience: &Patience) -> Result<(), UdpError> {
        for _ in 0..count {
            self.receive(message, patience)?;
            send(self.socket.as_raw_fd(), message, MsgFlags::empty())?;
        }
        Ok(())
    }

    fn receive(&self, into: &mut [u8], patience: &Patience) -> Result<(), UdpError> {
        let mut failed = None;
        patience.until(|| match recv(self.socket.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT) {
            Ok(_) => true,
            Err(Errno::EAGAIN) => false,
            Err(error) => {
                failed = Some(error);
                true
            }
        })?;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Sends datagrams of this length for some time. Returns the number of bytes sent.
    ///
    /// # Errors
    /// It was told to stop, or the socket failed.
    pub fn pour(&self, bytes: usize, way: Way, time: Duration, patience: &Patience) -> Result<u64, UdpError> {
        let mut sent = 0;
        let end = Instant::now() + time;
        if way == Way::Single {
            let together = if bytes >= 60_000 { TOGETHER / 4 } else { TOGETHER };
            let message = vec![1; bytes];
            let parts = vec![[io::IoSlice::new(&message)]; together];
            let mut headers = nix::sys::socket::MultiHeaders::<()>::preallocate(together, None);
            let nowhere = vec![None; together];
            while Instant::now() < end {
                let went =
                    nix::sys::socket::sendmmsg(self.socket.as_raw_fd(), &mut headers, &parts, &nowhere, [], MsgFlags::empty())?;
                sent += (went.count() * bytes) as u64;
                if patience.stopped() {
                    return Err(Stopped.into());
                }
            }
            return Ok(sent);
        }
        setsockopt(&self.socket, sockopt::UdpGsoSegment, &(bytes as i32))?;
        let run = vec![1; bytes * (DATAGRAM_MOST / bytes).clamp(1, TOGETHER)];
        while Instant::now() < end {
            sent += send(self.socket.as_raw_fd(), &run, MsgFlags::empty())? as u64;
            if patience.stopped() {
                return Err(Stopped.into());
            }
        }
        setsockopt(&self.socket, sockopt::UdpGsoSegment, &0)?;
        Ok(sent)
    }

    /// Receives a stream until `ended` says that everything was sent and no more datagrams come.
    ///
    /// # Errors
    /// It was told to stop, or the socket failed.
    pub fn drain(&self, way: Way, patience: &Patience, mut ended: impl FnMut() -> bool) -> Result<Arrived, UdpError> {
        setsockopt(&self.socket, sockopt::UdpGroSegment, &(way == Way::CutAndGathered))?;
        const RUNS: usize = 32;
        let mut rooms = vec![vec![0_u8; 1 << 16]; RUNS];
        let mut parts: Vec<_> =
            rooms.iter_mut().map(|room| libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() }).collect();
        let mut headers: Vec<_> = parts
            .iter_mut()
            .map(|part| {
                // SAFETY: integers and pointers, for which zero is a value.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (part, 1);
                header
            })
            .collect();
        let (mut bytes, mut first, mut last, mut idle) = (0, None, Instant::now(), 0);
        while idle < LAST_LOOKS || !ended() {
            let (socket, none) = (self.socket.as_raw_fd(), std::ptr::null_mut());
            // SAFETY: there are as many headers as stated, each with one part that names its own buffer; all were created above
            // and outlive the call.
            let count = unsafe { libc::recvmmsg(socket, headers.as_mut_ptr(), RUNS as u32, libc::MSG_DONTWAIT, none) };
            match Errno::result(count) {
                Ok(count) => {
                    idle = 0;
                    last = Instant::now();
                    first.get_or_insert(last);
                    bytes += headers[..count as usize].iter().map(|header| u64::from(header.msg_len)).sum::<u64>();
                }
                Err(Errno::EAGAIN) => idle += 1,
                Err(error) => return Err(error.into()),
            }
            if patience.stopped() {
                return Err(Stopped.into());
            }
        }
        Ok(Arrived { bytes, time: first.map_or(Duration::ZERO, |first| last - first) })
    }
}

/// One end as a carrier of messages, one datagram each.
#[derive(Clone, Copy, Debug)]
pub struct Datagrams<'a> {
    /// The end.
    pub end: &'a UdpEnd,
    /// Says when to stop.
    pub patience: &'a Patience,
}

impl Carrier for Datagrams<'_> {
    type Error = UdpError;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), UdpError> {
        send(self.end.socket.as_raw_fd(), message, MsgFlags::empty())?;
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<(), UdpError> {
        self.end.receive(into, self.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::{self, Buffers, Part, Section};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    fn patience() -> Patience {
        Patience::new(Arc::new(AtomicBool::new(false)), true)
    }

    #[test]
    fn what_is_sent_comes_back() {
        let [ping, pong] = UdpEnd::pair(1 << 20).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| pong.pong(&mut [0; 100], 50, &patience()).unwrap());
            let mut message = [7; 100];
            assert_eq!(ping.ping(&mut message, 50, &patience()).unwrap().len(), 50);
            assert_eq!(message, [7; 100]);
        });
    }

    #[test]
    fn it_carries_messages() {
        let section = Section { bytes: 100, warmup: 2, count: 20, touched: true };
        let [ping, pong] = UdpEnd::pair(1 << 20).unwrap();
        let play = |end: &UdpEnd, part: Part<'_>| {
            let patience = patience();
            exchange::play(Datagrams { end, patience: &patience }, part, section, &mut Buffers::private(100).unwrap()).map(drop)
        };
        let mut samples = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| play(&pong, Part::Pong).unwrap());
            play(&ping, Part::Ping(&mut samples)).unwrap();
        });
        assert_eq!(samples.len(), 20);
    }

    #[test]
    fn streams_arrive_by_every_way() {
        for (way, bytes) in [
            (Way::Single, 64),
            (Way::Single, 60_000),
            (Way::Cut, 1400),
            (Way::CutAndGathered, 1400),
            (Way::CutAndGathered, 60_000),
        ] {
            let [from, to] = UdpEnd::pair(64 << 20).unwrap();
            let ended = AtomicBool::new(false);
            let (sent, arrived) = std::thread::scope(|scope| {
                let drain = scope.spawn(|| to.drain(way, &patience(), || ended.load(SeqCst)).unwrap());
                let sent = from.pour(bytes, way, Duration::from_millis(5), &patience()).unwrap();
                ended.store(true, SeqCst);
                (sent, drain.join().unwrap())
            });
            assert!(
                arrived.bytes > 0 && arrived.bytes <= sent && arrived.bytes.is_multiple_of(bytes as u64),
                "{arrived:?} of {sent}"
            );
        }
    }
}
