//! Moves a socket's datagrams by io_uring: sends and receives are requests of a ring.
//!
//! No request waits: each has MSG_DONTWAIT, so the kernel carries it out while it takes it, in the thread that submits it. So any
//! thread may use the ring, a thread that ends leaves nothing behind, and a sender needs no copy of what it sends. Every call here
//! returns only after its requests have ended, and thus after the kernel's last use of their memory.
//!
//! A lone run is received by a plain request into the receiver's own buffer, and a series of runs by one multishot request into
//! the buffers of a [`Shelf`].

use super::calls::{Arrival, Label, PAYLOAD_BYTES, Place};
use super::notation::{CONTROL_BYTES, Remarks, address_in};
use super::prompt::{ENTRIES, Prompt};
use super::shelf::{BUFFERS, NAME_BYTES, Own, Shelf, described};
use super::uring::UringError;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode, squeue};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most messages that are submitted at once.
pub const BATCH: usize = ENTRIES;
/// The most runs that are received at once.
pub const SERIES: usize = BUFFERS as usize;
/// The number of the ring of buffers.
const GROUP: u16 = 0;
const NOW: u32 = libc::MSG_DONTWAIT as u32;

/// A message to send: its label, and the pieces in which it lies.
pub type Message<'a> = (Label, &'a [IoSlice<'a>]);

/// What a call moved.
pub struct Moved {
    /// The number of messages or runs.
    pub count: usize,
    /// How it ended: with all done, with [`WouldBlock`](io::ErrorKind::WouldBlock) if there is no more or no room, or by an error.
    pub end: io::Result<()>,
    /// How often it entered the kernel.
    pub enters: u64,
}

/// How to look for runs.
#[derive(Clone, Copy)]
pub struct Look {
    /// The only sender, if the socket is connected and the kernel reports nothing else about its datagrams.
    pub peer: Option<SocketAddr>,
    /// Whether to take up to [`SERIES`] runs.
    pub is_series: bool,
}

/// The ring of a socket. The fields are dropped in this order.
pub struct Moves {
    ring: Mutex<Prompt>,
    shelf: Mutex<Shelf>,
    own: Own,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A header without anything.
fn blank() -> libc::msghdr {
    // SAFETY: integers and pointers, for which zero is a value.
    unsafe { MaybeUninit::<libc::msghdr>::zeroed().assume_init() }
}

fn outcome(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

impl Moves {
    pub fn new() -> Result<Self, UringError> {
        let shelf = Shelf::new().map_err(|source| UringError::System { attempt: "map buffers", source })?;
        // SAFETY: the shelf is dropped after the ring.
        let ring = unsafe { Prompt::new(&shelf, GROUP)? };
        let own = shelf.own();
        Ok(Self { ring: Mutex::new(ring), shelf: Mutex::new(shelf), own })
    }

    /// Sends up to [`BATCH`] messages in order, each as a whole or not at all, and none after one that failed. None if the ring is
    /// of no use: then none was sent.
    pub fn send(&self, socket: BorrowedFd<'_>, messages: &[Message<'_>]) -> Option<Moved> {
        if !self.own.is_own() {
            return None;
        }
        match messages {
            [(label, [piece])] if label.orders().is_empty() => {
                let (name, len) = label.name().unwrap_or((std::ptr::null(), 0));
                let send = opcode::Send::new(Fd(socket.as_raw_fd()), piece.as_ptr(), piece.len() as u32);
                self.submit(&[send.flags(NOW as i32).dest_addr(name.cast()).dest_addr_len(len).build()])
            }
            [message] => {
                let header = header_of(message);
                self.submit(&[send_message(socket, &header)])
            }
            messages => {
                let mut headers = [blank(); BATCH];
                let mut entries = [const { MaybeUninit::uninit() }; BATCH];
                let count = messages.len().min(BATCH);
                for at in 0..count {
                    headers[at] = header_of(&messages[at]);
                    let entry = send_message(socket, &headers[at]).user_data(at as u64);
                    // The failure of one ends the others.
                    let is_last = at + 1 == count;
                    entries[at].write(if is_last { entry } else { entry.flags(squeue::Flags::IO_LINK) });
                }
                // SAFETY: the first `count` of them were just written.
                let entries = unsafe { std::slice::from_raw_parts(entries.as_ptr().cast::<squeue::Entry>(), count) };
                self.submit(entries)
            }
        }
    }

    /// Performs sends, whose memory the caller borrows.
    fn submit(&self, entries: &[squeue::Entry]) -> Option<Moved> {
        let (mut count, mut first) = (0, None::<(u64, i32)>);
        let mut each = |completion: &cqueue::Entry| match completion.result() {
            0.. => count += 1,
            failed => {
                let this = (completion.user_data(), failed);
                first = Some(first.map_or(this, |other| other.min(this)));
            }
        };
        // SAFETY: the callers' headers, names and pieces outlive this call, and the kernel only reads them.
        let enters = unsafe { lock(&self.ring).perform(entries, &mut each) };
        let end = first.map_or(Ok(()), |(_, failed)| outcome(failed).map(drop));
        match enters {
            Some(enters) => Some(Moved { count, end, enters }),
            None if count == 0 => None,
            // The caller sends the rest by calls.
            None => Some(Moved { count, end: Err(io::ErrorKind::Interrupted.into()), enters: 0 }),
        }
    }

    /// Receives a lone run into `place`, or a series, and passes each run to `each`. None if the ring is of no use. No other thread
    /// receives meanwhile, and `each` must not.
    pub fn receive(
        &self,
        socket: BorrowedFd<'_>,
        look: Look,
        place: &mut Place,
        each: &mut dyn FnMut(Arrival, &mut [u8]),
    ) -> Option<Moved> {
        if !self.own.is_own() {
            return None;
        }
        if look.is_series {
            self.receive_series(socket, look.peer, each)
        } else {
            self.receive_one(socket, look.peer, place, each)
        }
    }

    fn receive_one(
        &self,
        socket: BorrowedFd<'_>,
        peer: Option<SocketAddr>,
        place: &mut Place,
        each: &mut dyn FnMut(Arrival, &mut [u8]),
    ) -> Option<Moved> {
        let (socket, mut header, mut name) = (Fd(socket.as_raw_fd()), blank(), [0_u64; NAME_BYTES / 8]);
        let mut vector = libc::iovec { iov_base: place.payload.as_mut_ptr().cast(), iov_len: PAYLOAD_BYTES };
        let entry = if peer.is_some() {
            opcode::Recv::new(socket, place.payload.as_mut_ptr(), PAYLOAD_BYTES as u32).flags(libc::MSG_DONTWAIT).build()
        } else {
            (header.msg_name, header.msg_namelen) = (name.as_mut_ptr().cast(), NAME_BYTES as u32);
            (header.msg_iov, header.msg_iovlen) = (&raw mut vector, 1);
            (header.msg_control, header.msg_controllen) = (place.control.as_mut_ptr().cast(), CONTROL_BYTES);
            opcode::RecvMsg::new(socket, &raw mut header).flags(NOW).build()
        };
        let mut result = 0;
        // SAFETY: the header and the place outlive the call, and nothing else uses them meanwhile.
        let enters = unsafe { lock(&self.ring).perform(&[entry], &mut |completion| result = completion.result()) }?;
        let bytes = match outcome(result) {
            Ok(bytes) => bytes.min(PAYLOAD_BYTES),
            Err(error) => return Some(Moved { count: 0, end: Err(error), enters }),
        };
        let arrival = match peer {
            Some(_) => Arrival { peer, bytes, remarks: Remarks::default(), truncated: false },
            None => {
                let name = zerocopy::IntoBytes::as_bytes(&name);
                Arrival {
                    peer: address_in(&name[..NAME_BYTES.min(header.msg_namelen as usize)]),
                    bytes,
                    remarks: Remarks::read(&place.control[..CONTROL_BYTES.min(header.msg_controllen)]),
                    truncated: header.msg_flags & libc::MSG_TRUNC != 0,
                }
            }
        };
        each(arrival, &mut place.payload[..bytes]);
        Some(Moved { count: 1, end: Ok(()), enters })
    }

    fn receive_series(
        &self,
        socket: BorrowedFd<'_>,
        peer: Option<SocketAddr>,
        each: &mut dyn FnMut(Arrival, &mut [u8]),
    ) -> Option<Moved> {
        let (socket, mut header) = (Fd(socket.as_raw_fd()), blank());
        (header.msg_namelen, header.msg_controllen) = (NAME_BYTES as u32, CONTROL_BYTES);
        let entry = if peer.is_some() {
            opcode::RecvMulti::new(socket, GROUP).flags(libc::MSG_DONTWAIT).build()
        } else {
            opcode::RecvMsgMulti::new(socket, &raw const header, GROUP).flags(NOW).build()
        };
        let mut shelf = lock(&self.shelf);
        let mut filled = [(0, 0); SERIES];
        // An empty datagram that is not described comes without a buffer, and ends the request.
        let (mut count, mut end, mut is_empty) = (0, Ok(()), false);
        let mut note = |completion: &cqueue::Entry| {
            let result = outcome(completion.result());
            match (cqueue::buffer_select(completion.flags()), &result) {
                (Some(buffer), Ok(bytes)) if count < SERIES => {
                    filled[count] = (buffer, *bytes);
                    count += 1;
                }
                _ => end = result.map(|_| is_empty = true),
            }
        };
        // SAFETY: the header outlives the call; the kernel writes to buffers that are in the ring of buffers.
        let enters = unsafe { lock(&self.ring).perform(&[entry], &mut note) }?;
        let mut filled = Filled { shelf: &mut shelf, buffers: &filled[..count] };
        while let Some(bytes) = filled.first() {
            match peer {
                Some(_) => {
                    each(Arrival { peer, bytes: bytes.len(), remarks: Remarks::default(), truncated: false }, bytes);
                }
                None => {
                    if let Some(found) = described(bytes) {
                        let (remarks, truncated) = (Remarks::read(found.control), found.flags & libc::MSG_TRUNC != 0);
                        let arrival = Arrival { peer: address_in(found.name), bytes: found.payload.len(), remarks, truncated };
                        each(arrival, found.payload);
                    }
                }
            }
            filled.give_back();
        }
        if is_empty {
            each(Arrival { peer, bytes: 0, remarks: Remarks::default(), truncated: false }, &mut []);
            count += 1;
        }
        // All buffers were used.
        if count > 0 && end.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOBUFS)) {
            end = Ok(());
        }
        Some(Moved { count, end, enters })
    }
}

/// Filled buffers that are not yet back in the ring of buffers. All go back, even if a reader panics.
struct Filled<'a> {
    shelf: &'a mut Shelf,
    buffers: &'a [(u16, usize)],
}

impl Filled<'_> {
    fn first(&mut self) -> Option<&mut [u8]> {
        self.buffers.first().map(|(buffer, bytes)| self.shelf.filled(*buffer, *bytes))
    }

    fn give_back(&mut self) {
        if let [(buffer, _), rest @ ..] = self.buffers {
            self.shelf.give_back(*buffer);
            self.buffers = rest;
        }
    }
}

impl Drop for Filled<'_> {
    fn drop(&mut self) {
        while !self.buffers.is_empty() {
            self.give_back();
        }
    }
}

/// A header that names the parts of a message.
fn header_of((label, pieces): &Message<'_>) -> libc::msghdr {
    let mut header = blank();
    if let Some((name, len)) = label.name() {
        (header.msg_name, header.msg_namelen) = (name.cast_mut().cast(), len);
    }
    // A slice of bytes for output has the layout of an `iovec`, as its documentation guarantees.
    (header.msg_iov, header.msg_iovlen) = (pieces.as_ptr().cast_mut().cast(), pieces.len());
    let orders = label.orders();
    if !orders.is_empty() {
        (header.msg_control, header.msg_controllen) = (orders.as_ptr().cast_mut().cast(), orders.len());
    }
    header
}

fn send_message(socket: BorrowedFd<'_>, header: &libc::msghdr) -> squeue::Entry {
    opcode::SendMsg::new(Fd(socket.as_raw_fd()), header).flags(NOW).build()
}

#[cfg(test)]
mod tests {
    use super::super::calls::place;
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn a_series_from_the_only_sender_arrives_with_its_empty_datagrams() {
        let [from, to] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        from.connect(to.local_addr().unwrap()).unwrap();
        to.connect(from.local_addr().unwrap()).unwrap();
        let (moves, mut place) = (Moves::new().unwrap(), place());
        let peer = Some(from.local_addr().unwrap());
        for lengths in [&[5, 0, 7, 0, 0, 1][..], &[1; 3 * SERIES + 1], &[9000; SERIES]] {
            for (at, len) in lengths.iter().enumerate() {
                from.send(&vec![at as u8; *len]).unwrap();
            }
            // The first one is received alone.
            let (mut found, mut is_series) = (Vec::new(), false);
            while found.len() < lengths.len() {
                let each = &mut |arrival: Arrival, bytes: &mut [u8]| {
                    assert_eq!((arrival.peer, arrival.bytes, arrival.truncated), (peer, bytes.len(), false));
                    found.push(bytes.to_vec());
                };
                let moved = moves.receive(to.as_fd(), Look { peer, is_series }, &mut place, each).unwrap();
                assert!(moved.count > 0, "{:?}", moved.end);
                is_series = true;
            }
            let sent: Vec<_> = lengths.iter().enumerate().map(|(at, len)| vec![at as u8; *len]).collect();
            assert!(found == sent, "{:?}", found.iter().map(Vec::len).collect::<Vec<_>>());
            let none = moves.receive(to.as_fd(), Look { peer, is_series }, &mut place, &mut |_, _| ()).unwrap();
            assert_eq!((none.count, none.end.unwrap_err().kind()), (0, io::ErrorKind::WouldBlock));
        }
    }
}
