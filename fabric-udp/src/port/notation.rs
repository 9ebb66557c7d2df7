//! The kernel's encoding of addresses and control messages, as bytes.

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The size of the longest Internet socket address.
pub const NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();
/// The size of the control data of an arriving datagram: its segments, its destination, an error, lost datagrams. With room to
/// spare.
pub const CONTROL_BYTES: usize = 144;
/// The size of the control data of an outgoing datagram: the segments and the source.
pub const ORDERS_BYTES: usize = 64;
/// The size of the header of a control message.
const CONTROL_HEADER: usize = size_of::<libc::cmsghdr>();
const CONTROL_ALIGN: usize = align_of::<libc::cmsghdr>();

/// A socket address in the kernel's encoding.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct Name {
    pub bytes: [u8; NAME_BYTES],
    pub len: u32,
}

impl Name {
    /// No address, for a connected socket.
    pub fn none() -> Self {
        Self { bytes: [0; NAME_BYTES], len: 0 }
    }

    /// Encodes an address. An IPv6 socket (`mapped`) reaches an IPv4 address by its mapped form.
    pub fn new(address: SocketAddr, mapped: bool) -> Self {
        let address = match address {
            SocketAddr::V4(v4) if mapped => SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into(),
            address => address,
        };
        let mut bytes = [0; NAME_BYTES];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(v4) => {
                bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                Self { bytes, len: size_of::<libc::sockaddr_in>() as u32 }
            }
            SocketAddr::V6(v6) => {
                bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                Self { bytes, len: NAME_BYTES as u32 }
            }
        }
    }

    /// Decodes an IPv4 or IPv6 address. A mapped IPv4 address becomes a plain one.
    pub fn read(bytes: &[u8]) -> Option<SocketAddr> {
        let family = u16::from_ne_bytes(*bytes.first_chunk()?);
        let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
        match i32::from(family) {
            libc::AF_INET => {
                let octets: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
                Some(SocketAddr::from((Ipv4Addr::from(octets), port)))
            }
            libc::AF_INET6 => {
                let octets: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
                let scope = u32::from_ne_bytes(bytes.get(24..28)?.try_into().ok()?);
                let ip = Ipv6Addr::from(octets);
                Some(match ip.to_ipv4_mapped() {
                    Some(v4) => SocketAddr::from((v4, port)),
                    None => SocketAddrV6::new(ip, port, 0, scope).into(),
                })
            }
            _ => None,
        }
    }
}

/// The control data of an outgoing datagram.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct Orders {
    pub bytes: [u8; ORDERS_BYTES],
    pub len: usize,
}

impl Orders {
    /// No control data.
    pub const fn none() -> Self {
        Self { bytes: [0; ORDERS_BYTES], len: 0 }
    }

    /// Tells the kernel to cut the run into datagrams of this size.
    pub fn segment(&mut self, bytes: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, &bytes.to_ne_bytes());
    }

    /// Tells the kernel to send from this address. `mapped`: the socket is an IPv6 socket.
    pub fn source(&mut self, source: IpAddr, mapped: bool) {
        match (source, mapped) {
            (IpAddr::V4(v4), false) => {
                // in_pktinfo: the interface (any), the source, and a destination that the kernel ignores.
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&v4.octets());
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            (source, _) => {
                let v6 = match source {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                let mut info = [0; 20];
                info[..16].copy_from_slice(&v6.octets());
                self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    fn push(&mut self, level: i32, kind: i32, contents: &[u8]) {
        let at = self.len;
        let end = at + CONTROL_HEADER + contents.len();
        let header = &mut self.bytes[at..at + CONTROL_HEADER];
        header[..size_of::<usize>()].copy_from_slice(&(CONTROL_HEADER + contents.len()).to_ne_bytes());
        header[size_of::<usize>()..][..4].copy_from_slice(&level.to_ne_bytes());
        header[size_of::<usize>() + 4..][..4].copy_from_slice(&kind.to_ne_bytes());
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
        while let Some((len, level, kind)) = header(bytes) {
            if len < CONTROL_HEADER || len > bytes.len() {
                break;
            }
            remarks.note(level, kind, &bytes[CONTROL_HEADER..len]);
            bytes = bytes.get(len.next_multiple_of(CONTROL_ALIGN)..).unwrap_or_default();
        }
        remarks
    }

    fn note(&mut self, level: i32, kind: i32, contents: &[u8]) {
        match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                self.segment =
                    contents.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)).and_then(|n| usize::try_from(n).ok());
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // The second field is the source address for a reply, even if the datagram was a broadcast.
                self.local =
                    contents.get(4..8).and_then(|b| <[u8; 4]>::try_from(b).ok()).map(|octets| Ipv4Addr::from(octets).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let ip = contents.first_chunk().map(|octets: &[u8; 16]| Ipv6Addr::from(*octets));
                self.local = ip.filter(|ip| !ip.is_multicast()).map(|ip| ip.to_canonical());
            }
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                // sock_extended_err: errno, origin, type, code, a pad, and a word of information.
                let word = |at: usize| contents.get(at..at + 4).and_then(|b| <[u8; 4]>::try_from(b).ok()).map(u32::from_ne_bytes);
                if let (Some(errno), Some(origin), Some(mtu)) = (word(0), contents.get(4), word(8)) {
                    let local = *origin == libc::SO_EE_ORIGIN_LOCAL || *origin == libc::SO_EE_ORIGIN_NONE;
                    self.report = Some(Report { errno: errno as i32, local, mtu });
                }
            }
            _ => {}
        }
    }
}

fn header(bytes: &[u8]) -> Option<(usize, i32, i32)> {
    const WORD: usize = size_of::<usize>();
    let len = usize::from_ne_bytes(*bytes.first_chunk::<WORD>()?);
    let level = i32::from_ne_bytes(bytes.get(WORD..WORD + 4)?.try_into().ok()?);
    let kind = i32::from_ne_bytes(bytes.get(WORD + 4..WORD + 8)?.try_into().ok()?);
    Some((len, level, kind))
}

#[cfg(test)]
mod tests {
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
            let name = Name::new(address, mapped);
            prop_assert_eq!(Name::read(&name.bytes[..name.len as usize]), Some(address));
        }

        #[test]
        fn any_bytes_may_stand_where_remarks_should(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Remarks::read(&bytes), Name::read(&bytes));
        }

        #[test]
        fn a_source_that_was_ordered_is_read_back(octets: [u8; 4], mapped: bool, segment in 1_u16..9000) {
            let mut orders = Orders::none();
            orders.segment(segment);
            orders.source(octets.into(), mapped);
            prop_assert_eq!(Remarks::read(&orders.bytes[..orders.len]).local, Some(octets.into()));
        }
    }

    #[test]
    fn a_header_that_lies_about_its_length_ends_the_reading() {
        let mut orders = Orders::none();
        orders.source(Ipv4Addr::LOCALHOST.into(), false);
        for len in [0, 1, CONTROL_HEADER - 1, 1 << 40, usize::MAX] {
            orders.bytes[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(Remarks::read(&orders.bytes[..orders.len]), Remarks::default());
        }
    }
}
