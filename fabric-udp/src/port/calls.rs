//! The system calls of a datagram socket.

use super::notation::{CONTROL_BYTES, Orders, Remarks, Report, comparable};
use socket2::{MaybeUninitSlice, MsgHdr, MsgHdrMut, SockAddr, SockAddrStorage, Socket};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// The length of the longest run that the kernel can hand over, rounded up.
pub const PAYLOAD_BYTES: usize = 1 << 16;

/// The buffer for one arriving run. Its length is an odd number of pages; otherwise the beginnings of all runs would compete for
/// a few cache sets.
#[repr(C, align(64))]
pub struct Place {
    pub control: [u8; CONTROL_BYTES],
    _aligned: [u8; 48],
    pub payload: [u8; PAYLOAD_BYTES],
    _odd: [u8; 4096],
}

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
pub fn receive(socket: &Socket, place: &mut Place) -> io::Result<Arrival> {
    receive_message(socket, 0, &mut place.payload, &mut place.control)
}

/// Like [`receive`], for a socket whose kernel reports nothing about a datagram but its sender. A cheaper call.
pub fn receive_bare(socket: &Socket, place: &mut Place) -> io::Result<Arrival> {
    let (bytes, name) = socket.recv_from_with_flags(for_kernel(&mut place.payload), libc::MSG_DONTWAIT)?;
    // No datagram is longer than the buffer.
    Ok(Arrival { peer: address_of(&name), bytes, remarks: Remarks::default(), truncated: false })
}

/// Like [`receive`], for a connected socket, whose sender is known.
pub fn receive_connected(socket: &Socket, place: &mut Place, peer: SocketAddr) -> io::Result<Arrival> {
    let bytes = socket.recv_with_flags(for_kernel(&mut place.payload), libc::MSG_DONTWAIT)?;
    Ok(Arrival { peer: Some(peer), bytes, remarks: Remarks::default(), truncated: false })
}

/// Takes one report about an outgoing datagram from the socket's error queue, with the address that the datagram went to.
pub fn receive_report(socket: &Socket) -> io::Result<(Option<SocketAddr>, Option<Report>)> {
    #[repr(align(8))]
    struct Control([u8; CONTROL_BYTES]);
    let arrival = receive_message(socket, libc::MSG_ERRQUEUE, &mut [], &mut Control([0; CONTROL_BYTES]).0)?;
    Ok((arrival.peer, arrival.remarks.report))
}

fn receive_message(socket: &Socket, flags: i32, payload: &mut [u8], control: &mut [u8]) -> io::Result<Arrival> {
    let storage = SockAddrStorage::zeroed();
    let len = storage.size_of();
    // SAFETY: it belongs to no family of addresses, so nothing reads it as one before the kernel has written it.
    let mut name = unsafe { SockAddr::new(storage, len) };
    let mut vector = [MaybeUninitSlice::new(for_kernel(payload))];
    let mut header = MsgHdrMut::new().with_addr(&mut name).with_buffers(&mut vector).with_control(for_kernel(control));
    let bytes = socket.recvmsg(&mut header, flags | libc::MSG_DONTWAIT)?;
    let (truncated, written) = (header.flags().is_truncated(), header.control_len());
    let remarks = Remarks::read(&control[..written.min(CONTROL_BYTES)]);
    Ok(Arrival { peer: address_of(&name), bytes: bytes.min(PAYLOAD_BYTES), remarks, truncated })
}

/// Memory that the kernel writes to.
fn for_kernel(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: the same memory; nothing but the kernel writes through the result, and it writes bytes.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) }
}

/// The Internet address in the kernel's encoding. A mapped IPv4 address becomes a plain one.
fn address_of(name: &SockAddr) -> Option<SocketAddr> {
    name.as_socket().map(comparable)
}

/// Encodes an address. An IPv6 socket (`mapped`) reaches an IPv4 address by its mapped form.
fn name_of(address: SocketAddr, mapped: bool) -> SockAddr {
    match address {
        SocketAddr::V4(v4) if mapped => SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into(),
        address => address.into(),
    }
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

/// The destination, the source, and the segment size of a run.
pub struct Label {
    name: Option<SockAddr>,
    orders: Orders,
}

impl Label {
    /// `peer`: none for a connected socket. `segment`: the size into which the kernel cuts the run. `mapped`: the socket is an
    /// IPv6 socket.
    pub fn new(peer: Option<SocketAddr>, segment: Option<u16>, source: Option<IpAddr>, mapped: bool) -> Self {
        Self { name: peer.map(|peer| name_of(peer, mapped)), orders: Orders::new(segment, source, mapped) }
    }

    /// The address and the length of the destination's name.
    pub fn name(&self) -> Option<(*const SockAddrStorage, libc::socklen_t)> {
        self.name.as_ref().map(|name| (name.as_ptr(), name.len()))
    }

    /// The control data.
    pub fn orders(&self) -> &[u8] {
        &self.orders.bytes[..self.orders.len]
    }
}

/// Sends a run that lies in these pieces, without waiting: all of it or nothing.
pub fn send(socket: &Socket, label: &Label, pieces: &[IoSlice<'_>]) -> io::Result<()> {
    let orders = label.orders();
    match (pieces, &label.name) {
        ([bytes], Some(name)) if orders.is_empty() => socket.send_to_with_flags(bytes, name, libc::MSG_DONTWAIT),
        ([bytes], None) if orders.is_empty() => socket.send_with_flags(bytes, libc::MSG_DONTWAIT),
        (pieces, name) => {
            let mut message = MsgHdr::new().with_buffers(pieces);
            if let Some(name) = name {
                message = message.with_addr(name);
            }
            if !orders.is_empty() {
                message = message.with_control(orders);
            }
            socket.sendmsg(&message, libc::MSG_DONTWAIT)
        }
    }
    .map(drop)
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

fn timespec(span: Duration) -> libc::timespec {
    let tv_sec = span.as_secs().min(1 << 30) as libc::time_t;
    libc::timespec { tv_sec, tv_nsec: span.subsec_nanos() as libc::c_long }
}

/// Sleeps until one of the descriptors is ready, or until the timeout.
pub fn poll(descriptors: &mut [libc::pollfd], timeout: Duration) -> io::Result<usize> {
    let timeout = timespec(timeout);
    // SAFETY: a live slice with its length, and a local time.
    match unsafe { libc::ppoll(descriptors.as_mut_ptr(), descriptors.len() as libc::nfds_t, &timeout, std::ptr::null()) } {
        count if count >= 0 => Ok(count as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sleeps while the word at an address has a value, or until the timeout, in which case it returns false. The memory at the
/// address may be gone.
pub fn futex_wait(word: usize, expected: u32, timeout: Duration) -> bool {
    let timeout = timespec(timeout);
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

#[cfg(test)]
mod tests {
    use super::super::notation::address_in;
    use super::*;
    use proptest::prelude::*;

    fn addresses() -> impl Strategy<Value = SocketAddr> {
        prop_oneof![
            any::<([u8; 4], u16)>().prop_map(|(octets, port)| SocketAddr::from((octets, port))),
            any::<([u8; 16], u16, u32)>().prop_map(|(octets, port, scope)| {
                let mut octets = octets;
                octets[0] = 0x20; // Not a mapped IPv4 address.
                SocketAddrV6::new(octets.into(), port, 0, scope).into()
            }),
        ]
    }

    proptest! {
        #[test]
        fn an_address_is_read_as_it_was_written(address in addresses(), mapped: bool) {
            let name = name_of(address, mapped);
            prop_assert_eq!(address_of(&name), Some(address));
            // SAFETY: the storage is as long as the name.
            let bytes = unsafe { std::slice::from_raw_parts(name.as_ptr().cast(), name.len() as usize) };
            prop_assert_eq!(address_in(bytes), Some(address));
        }
    }
}
