//! The system calls of a datagram socket. All `unsafe` code of the port is here and in [`ring`](super::ring).

use super::notation::{CONTROL_BYTES, NAME_BYTES, Name, Orders, Remarks, Report};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// The length of the longest run that the kernel can hand over, rounded up.
pub const PAYLOAD_BYTES: usize = 1 << 16;

/// The buffer for one arriving run. Its length is an odd number of pages; otherwise the beginnings of all runs would compete for
/// a few cache sets.
#[repr(C, align(64))]
pub struct Place {
    name: [u8; NAME_ROOM],
    control: [u8; CONTROL_BYTES],
    _aligned: [u8; 16],
    pub payload: [u8; PAYLOAD_BYTES],
    _odd: [u8; 4096],
}

/// Bytes reserved for an address, so that everything behind it is aligned.
const NAME_ROOM: usize = NAME_BYTES.next_multiple_of(16);

const _: () = assert!(std::mem::offset_of!(Place, payload).is_multiple_of(64));

/// Allocates a buffer. It costs memory only as it is written to.
pub fn place() -> Box<Place> {
    let layout = std::alloc::Layout::new::<Place>();
    // SAFETY: the layout has a size; a place consists of bytes, for which zero is a value; the box frees it by the same layout.
    unsafe {
        let memory = std::alloc::alloc_zeroed(layout);
        if memory.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        Box::from_raw(memory.cast())
    }
}

/// The kernel's description of a received run.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The sender; `None` if it is not an Internet address.
    pub peer: Option<SocketAddr>,
    pub bytes: usize,
    pub remarks: Remarks,
    /// The run was longer than the buffer.
    pub truncated: bool,
}

/// Receives one run without waiting.
pub fn receive(socket: BorrowedFd<'_>, place: &mut Place) -> io::Result<Arrival> {
    let mut vector = libc::iovec { iov_base: place.payload.as_mut_ptr().cast(), iov_len: PAYLOAD_BYTES };
    let mut header = header(&mut vector, &mut place.name, &mut place.control);
    // SAFETY: the header names memory of `place` and a local vector, with their lengths; all of it outlives the call.
    let bytes = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) };
    if bytes < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(arrival(place, &header, bytes as usize))
}

/// Like [`receive`], for a socket whose kernel reports nothing about a datagram but its sender. A cheaper call.
pub fn receive_bare(socket: BorrowedFd<'_>, place: &mut Place) -> io::Result<Arrival> {
    let mut len = NAME_ROOM as libc::socklen_t;
    let (bytes, name) = (place.payload.as_mut_ptr().cast(), place.name.as_mut_ptr().cast());
    // SAFETY: memory of `place` with its lengths, and a local integer.
    let bytes = unsafe { libc::recvfrom(socket.as_raw_fd(), bytes, PAYLOAD_BYTES, libc::MSG_DONTWAIT, name, &mut len) };
    if bytes < 0 {
        return Err(io::Error::last_os_error());
    }
    let peer = Name::read(&place.name[..NAME_ROOM.min(len as usize)]);
    // No datagram is longer than the buffer.
    Ok(Arrival { peer, bytes: bytes as usize, remarks: Remarks::default(), truncated: false })
}

/// Like [`receive`], for a connected socket, whose sender is known.
pub fn receive_connected(socket: BorrowedFd<'_>, place: &mut Place, peer: SocketAddr) -> io::Result<Arrival> {
    let bytes = place.payload.as_mut_ptr().cast();
    // SAFETY: memory of `place` with its length.
    let bytes = unsafe { libc::recv(socket.as_raw_fd(), bytes, PAYLOAD_BYTES, libc::MSG_DONTWAIT) };
    if bytes < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Arrival { peer: Some(peer), bytes: bytes as usize, remarks: Remarks::default(), truncated: false })
}

/// The total number of datagrams for which a socket had no room. The count wraps.
pub fn overflowed(socket: BorrowedFd<'_>) -> io::Result<u32> {
    /// The index of the count among the values that the kernel returns: the last one, at index 8.
    const DROPS: usize = 8;
    let mut figures = [0_u32; DROPS + 1];
    let mut len = size_of_val(&figures) as libc::socklen_t;
    let into = figures.as_mut_ptr().cast();
    // SAFETY: a local array with its length.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, into, &mut len) } {
        0 => Ok(figures[DROPS]),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes one report about an outgoing datagram from the socket's error queue, with the address that the datagram went to.
pub fn receive_report(socket: BorrowedFd<'_>) -> io::Result<(Option<SocketAddr>, Option<Report>)> {
    #[repr(align(8))]
    struct Control([u8; CONTROL_BYTES]);
    let (mut name, mut control) = ([0; NAME_ROOM], Control([0; CONTROL_BYTES]));
    let mut vector = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut header = header(&mut vector, &mut name, &mut control.0);
    // SAFETY: the header names local memory with its lengths; the kernel is given no room for a payload.
    let bytes = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
    if bytes < 0 {
        return Err(io::Error::last_os_error());
    }
    let remarks = Remarks::read(&control.0[..CONTROL_BYTES.min(header.msg_controllen)]);
    Ok((Name::read(&name[..NAME_ROOM.min(header.msg_namelen as usize)]), remarks.report))
}

fn header(vector: &mut libc::iovec, name: &mut [u8], control: &mut [u8]) -> libc::msghdr {
    // SAFETY: integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vector;
    header.msg_iovlen = 1;
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = name.len() as u32;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = control.len();
    header
}

fn arrival(place: &Place, header: &libc::msghdr, bytes: usize) -> Arrival {
    Arrival {
        peer: Name::read(&place.name[..NAME_ROOM.min(header.msg_namelen as usize)]),
        bytes: bytes.min(PAYLOAD_BYTES),
        remarks: Remarks::read(&place.control[..CONTROL_BYTES.min(header.msg_controllen)]),
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
    }
}

/// The destination, the source, and the segment size of a run.
#[derive(Clone, Copy)]
pub struct Label {
    name: Name,
    orders: Orders,
}

impl Label {
    /// `segment`: the size into which the kernel cuts the run. `mapped`: the socket is an IPv6 socket.
    pub fn new(peer: SocketAddr, segment: Option<u16>, source: Option<IpAddr>, mapped: bool) -> Self {
        let mut label = Self { name: Name::new(peer, mapped), orders: Orders::none() };
        if let Some(segment) = segment {
            label.orders.segment(segment);
        }
        if let Some(source) = source {
            label.orders.source(source, mapped);
        }
        label
    }

    /// For a connected socket.
    pub fn connected(segment: Option<u16>) -> Self {
        let mut label = Self { name: Name::none(), orders: Orders::none() };
        if let Some(segment) = segment {
            label.orders.segment(segment);
        }
        label
    }

    fn header(&self, vector: &mut libc::iovec, bytes: &[u8]) -> libc::msghdr {
        *vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: integers and pointers, for which zero is a value.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = vector;
        header.msg_iovlen = 1;
        if self.name.len > 0 {
            header.msg_name = self.name.bytes.as_ptr().cast_mut().cast();
            header.msg_namelen = self.name.len;
        }
        if self.orders.len > 0 {
            header.msg_control = self.orders.bytes.as_ptr().cast_mut().cast();
            header.msg_controllen = self.orders.len;
        }
        header
    }
}

/// Sends bytes without waiting: all of them or none.
pub fn send(socket: BorrowedFd<'_>, label: &Label, bytes: &[u8]) -> io::Result<()> {
    let sent = if label.orders.len == 0 {
        // SAFETY: two live slices with their lengths; the kernel only reads them.
        unsafe {
            let len = label.name.len;
            let name = if len > 0 { label.name.bytes.as_ptr().cast() } else { std::ptr::null() };
            libc::sendto(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT, name, len)
        }
    } else {
        let mut vector = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let header = label.header(&mut vector, bytes);
        // SAFETY: the header names the label, a local vector and `bytes`, which outlive the call; the kernel only reads them.
        unsafe { libc::sendmsg(socket.as_raw_fd(), &header, libc::MSG_DONTWAIT) }
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends one datagram that lies in three pieces, without waiting.
pub fn send_pieces(socket: BorrowedFd<'_>, label: &Label, pieces: [&[u8]; 3]) -> io::Result<()> {
    let mut vectors = pieces.map(|piece| libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() });
    let mut header = label.header(&mut vectors[0], pieces[0]);
    header.msg_iov = vectors.as_mut_ptr();
    header.msg_iovlen = vectors.len() as _;
    // SAFETY: the header names the label, local vectors and the pieces, which outlive the call; the kernel only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &header, libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets an integer option of a socket.
pub fn set_option(socket: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as u32;
    // SAFETY: a local integer with its length.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sleeps until one of the descriptors is ready, or until the timeout.
pub fn poll(descriptors: &mut [libc::pollfd], timeout: Duration) -> io::Result<usize> {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().min(1 << 30) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    // SAFETY: a live slice with its length, and a local time.
    match unsafe { libc::ppoll(descriptors.as_mut_ptr(), descriptors.len() as libc::nfds_t, &timeout, std::ptr::null()) } {
        count if count >= 0 => Ok(count as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sleeps while the word at an address has a value, or until the timeout, in which case it returns false. The memory at the
/// address may be gone.
pub fn futex_wait(word: usize, expected: u32, timeout: Duration) -> bool {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().min(1 << 30) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the kernel checks the address and only reads there; the time is a local variable.
    let woken = unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, expected, &timeout, std::ptr::null::<u32>(), 0) };
    woken == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}

/// Wakes all sleepers on the word at an address. The memory at the address may be gone.
pub fn futex_wake(word: usize) {
    // SAFETY: the kernel uses the address only as a name.
    unsafe {
        libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX);
    }
}
