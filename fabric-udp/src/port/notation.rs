//! The kernel's encoding of addresses and control messages, as bytes.

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The size of the control data of an arriving datagram: its segments, its destination, an error, lost datagrams. With room to
/// spare.
pub const CONTROL_BYTES: usize = 144;
/// The size of the control data of an outgoing datagram: the segments and the source.
pub const ORDERS_BYTES: usize = 64;

/// An address in a form that compares equal for the same peer: a mapped IPv4 address as a plain one, and without the label of a
/// flow.
pub fn comparable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_none() => {
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into()
        }
        address => SocketAddr::new(address.ip().to_canonical(), address.port()),
    }
}

/// Reads a socket's name. None if it is no Internet address.
pub fn address_in(name: &[u8]) -> Option<SocketAddr> {
    let at = |at: usize| name.get(at..).unwrap_or_default();
    let family = u16::from_ne_bytes(*name.first_chunk()?);
    let port = u16::from_be_bytes(*at(2).first_chunk()?);
    match i32::from(family) {
        libc::AF_INET => Some((*at(4).first_chunk::<4>()?, port).into()),
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(*at(8).first_chunk::<16>()?);
            let scope = u32::from_ne_bytes(*at(24).first_chunk()?);
            Some(comparable(SocketAddrV6::new(ip, port, 0, scope).into()))
        }
        _ => None,
    }
}

/// The header of a control message.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Control {
    len: usize,
    level: i32,
    kind: i32,
}

const CONTROL_HEADER: usize = size_of::<Control>();
const CONTROL_ALIGN: usize = align_of::<libc::cmsghdr>();

/// The control data of an outgoing datagram.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct Orders {
    pub bytes: [u8; ORDERS_BYTES],
    pub len: usize,
}

impl Orders {
    /// Tells the kernel to cut the run into datagrams of `segment` bytes, and to send from `source`. `mapped`: the socket is an
    /// IPv6 socket.
    pub fn new(segment: Option<u16>, source: Option<IpAddr>, mapped: bool) -> Self {
        let mut orders = Self { bytes: [0; ORDERS_BYTES], len: 0 };
        if let Some(bytes) = segment {
            orders.push(libc::SOL_UDP, libc::UDP_SEGMENT, &bytes.to_ne_bytes());
        }
        match source {
            None => {}
            Some(IpAddr::V4(v4)) if !mapped => {
                // in_pktinfo: the interface (any), the source, and a destination that the kernel ignores.
                orders.push(libc::IPPROTO_IP, libc::IP_PKTINFO, [[0; 4], v4.octets(), [0; 4]].as_flattened());
            }
            Some(source) => {
                let v6 = match source {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                // in6_pktinfo: the source and the interface (any).
                let mut info = [0; 20];
                info[..16].copy_from_slice(&v6.octets());
                orders.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
        orders
    }

    fn push(&mut self, level: i32, kind: i32, contents: &[u8]) {
        let at = self.len;
        let end = at + CONTROL_HEADER + contents.len();
        let header = Control { len: CONTROL_HEADER + contents.len(), level, kind };
        self.bytes[at..at + CONTROL_HEADER].copy_from_slice(header.as_bytes());
        self.bytes[at + CONTROL_HEADER..end].copy_from_slice(contents);
        self.len = end.next_multiple_of(CONTROL_ALIGN);
    }
}

/// The control data of an arriving datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remarks {
    /// The size of each datagram but the last, if the run holds several.
    pub segment: Option<usize>,
    /// The destination address of the datagram.
    pub local: Option<IpAddr>,
    /// A report about an outgoing datagram.
    pub report: Option<Report>,
}

/// The kernel's report about an outgoing datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub errno: i32,
    /// Whether this machine detected the error. Then the call that sent the datagram has reported it too.
    pub local: bool,
    /// The size of a packet that would get through, if `errno` is EMSGSIZE.
    pub mtu: u32,
}

impl Remarks {
    /// Decodes the kernel's control data. Skips unknown messages.
    pub fn read(mut bytes: &[u8]) -> Self {
        let mut remarks = Self::default();
        while let Ok((Control { len, level, kind }, _)) = Control::read_from_prefix(bytes) {
            if len < CONTROL_HEADER || len > bytes.len() {
                break;
            }
            remarks.note(level, kind, &bytes[CONTROL_HEADER..len]);
            bytes = bytes.get(len.next_multiple_of(CONTROL_ALIGN)..).unwrap_or_default();
        }
        remarks
    }

    fn note(&mut self, level: i32, kind: i32, contents: &[u8]) {
        let words = || Some(<[[u8; 4]; 3]>::read_from_prefix(contents).ok()?.0);
        match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                self.segment = i32::read_from_prefix(contents).ok().and_then(|(bytes, _)| usize::try_from(bytes).ok());
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // The second field is the source address for a reply, even if the datagram was a broadcast.
                self.local = words().map(|[_, source, _]| Ipv4Addr::from(source).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let ip = contents.first_chunk().map(|octets: &[u8; 16]| Ipv6Addr::from(*octets));
                self.local = ip.filter(|ip| !ip.is_multicast()).map(|ip| ip.to_canonical());
            }
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                // sock_extended_err: errno; origin, type, code and a pad; and a word of information.
                if let Some([errno, [origin, ..], mtu]) = words() {
                    let local = origin == libc::SO_EE_ORIGIN_LOCAL || origin == libc::SO_EE_ORIGIN_NONE;
                    self.report = Some(Report { errno: i32::from_ne_bytes(errno), local, mtu: u32::from_ne_bytes(mtu) });
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_may_stand_where_remarks_should(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Remarks::read(&bytes), address_in(&bytes));
        }

        #[test]
        fn a_source_that_was_ordered_is_read_back(octets: [u8; 4], mapped: bool, segment in 1_u16..9000) {
            let orders = Orders::new(Some(segment), Some(octets.into()), mapped);
            prop_assert_eq!(Remarks::read(&orders.bytes[..orders.len]).local, Some(octets.into()));
        }
    }

    #[test]
    fn a_header_that_lies_about_its_length_ends_the_reading() {
        let mut orders = Orders::new(None, Some(Ipv4Addr::LOCALHOST.into()), false);
        for len in [0, 1, CONTROL_HEADER - 1, 1 << 40, usize::MAX] {
            orders.bytes[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(Remarks::read(&orders.bytes[..orders.len]), Remarks::default());
        }
    }
}
