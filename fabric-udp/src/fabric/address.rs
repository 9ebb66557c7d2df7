//! Places on a network as people write them: an IP address or a host name, with a port.

use super::UdpError;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Instant;

/// The most characters of a host name.
const NAME_MAX: usize = 253;
/// The most characters of the name of a network interface.
const INTERFACE_MAX: usize = 15;
/// The most addresses of a name that count.
const FOUND_MAX: usize = 16;

/// A place on a network: an IP address or a host name, with a port. Written as `10.0.0.1:7000`, `[::1]:7000` or `hostx:7000`. A link-local
/// address names its interface: `[fe80::1%eth0]:7000`.
///
/// The system's resolver looks a name up when the node joins, and never later. A malformed text becomes an address by
/// [`From<&str>`](From), too, and joining refuses it; [`FromStr`] refuses it at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address(Form);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Form {
    Ip(SocketAddr),
    Host(String, u16),
    Malformed(String),
}

/// A text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{word}' is no address with a port: write it like 10.0.0.1:7000, [::1]:7000 or hostx:7000")]
pub struct ParseAddressError {
    word: String,
}

impl Address {
    /// The port.
    pub fn port(&self) -> u16 {
        match &self.0 {
            Form::Ip(address) => address.port(),
            Form::Host(_, port) => *port,
            Form::Malformed(_) => 0,
        }
    }

    /// The same host with another port.
    pub fn with_port(&self, port: u16) -> Self {
        Self(match &self.0 {
            &Form::Ip(mut address) => {
                // Keeps the zone of an IPv6 address.
                address.set_port(port);
                Form::Ip(address)
            }
            Form::Host(name, _) => Form::Host(name.clone(), port),
            Form::Malformed(word) => Form::Malformed(word.clone()),
        })
    }

    /// The IP address, unless it is a name.
    pub fn ip(&self) -> Option<IpAddr> {
        if let Form::Ip(address) = &self.0 { Some(address.ip()) } else { None }
    }

    /// Whether it means every address of the machine: `0.0.0.0` or `[::]`.
    pub fn is_wildcard(&self) -> bool {
        self.ip().is_some_and(|ip| ip.is_unspecified())
    }

    /// The addresses of the place, in the order of the system's resolver. Asks it only about a name, and waits until `deadline` at
    /// most.
    ///
    /// # Errors
    /// [`UdpError::Address`], [`UdpError::Name`].
    pub fn resolve(&self, deadline: Instant) -> Result<Vec<SocketAddr>, UdpError> {
        let (name, port) = match &self.0 {
            Form::Ip(address) => return Ok(vec![*address]),
            Form::Host(name, port) => (name.clone(), *port),
            Form::Malformed(word) => return Err(ParseAddressError { word: word.clone() }.into()),
        };
        let failed = |reason: String| UdpError::Name { name: name.clone(), reason };
        let late = || failed("the system's resolver did not answer in time".into());
        let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()).ok_or_else(late)?;
        // The resolver knows no deadline, so it works in a thread, which ends by itself.
        let (sender, receiver) = sync_channel(1);
        let asked = name.clone();
        let ask = move || drop(sender.send((asked.as_str(), port).to_socket_addrs().map(Vec::from_iter)));
        let thread = std::thread::Builder::new().name("doorbell-resolve".into()).spawn(ask);
        thread.map_err(|error| failed(format!("no thread to look it up: {error}")))?;
        let found = match receiver.recv_timeout(left) {
            Ok(found) => found.map_err(|error| failed(error.to_string()))?,
            Err(RecvTimeoutError::Timeout) => return Err(late()),
            Err(RecvTimeoutError::Disconnected) => return Err(failed("the system's resolver failed".into())),
        };
        let mut addresses = Vec::new();
        for address in found {
            if !addresses.contains(&address) && addresses.len() < FOUND_MAX {
                addresses.push(address);
            }
        }
        if addresses.is_empty() { Err(failed("the name has no address".into())) } else { Ok(addresses) }
    }
}

/// The address of this machine in place of a wildcard, which is an address to listen at and not one to connect to.
pub(super) fn to_reach(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        _ => return address,
    };
    SocketAddr::new(ip, address.port())
}

/// Whether a text can be the name of a host. The resolver would take a text that ends in a number for an IPv4 address that lacks a part.
fn is_name(word: &str) -> bool {
    let fits = |char: char| char.is_alphanumeric() || matches!(char, '-' | '_' | '.');
    let last = word.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
    (1..=NAME_MAX).contains(&word.len()) && word.chars().all(fits) && !word.starts_with(['-', '.']) && !is_number
}

/// Whether a text is an IPv6 address with the name of an interface, whose number the resolver looks up.
fn has_interface(word: &str) -> bool {
    let fits = |char: char| char.is_ascii_graphic() && !matches!(char, '/' | '%' | '[' | ']');
    word.split_once('%').is_some_and(|(ip, interface)| {
        ip.parse::<Ipv6Addr>().is_ok() && (1..=INTERFACE_MAX).contains(&interface.len()) && interface.chars().all(fits)
    })
}

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(word: &str) -> Result<Self, ParseAddressError> {
        let word = word.trim();
        if let Ok(address) = word.parse() {
            return Ok(Self(Form::Ip(address)));
        }
        let host = word.rsplit_once(':').and_then(|(name, port)| {
            let is_port = port.bytes().all(|byte| byte.is_ascii_digit());
            Some((name, port.parse().ok().filter(|_| is_port)?))
        });
        let bracketed = |name: &'_ str| Some(name.strip_prefix('[')?.strip_suffix(']')?.to_owned());
        let host = host.and_then(|(name, port)| match bracketed(name) {
            Some(name) => has_interface(&name).then_some(Form::Host(name, port)),
            None => is_name(name).then(|| Form::Host(name.to_owned(), port)),
        });
        host.map(Self).ok_or_else(|| ParseAddressError { word: word.to_owned() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Ip(address) => address.fmt(f),
            Form::Host(name, port) if name.contains(':') => write!(f, "[{name}]:{port}"),
            Form::Host(name, port) => write!(f, "{name}:{port}"),
            Form::Malformed(word) => f.write_str(word),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self(Form::Ip(address))
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for Address {
    fn from(address: (I, u16)) -> Self {
        Self(Form::Ip(address.into()))
    }
}

impl From<&str> for Address {
    fn from(word: &str) -> Self {
        word.parse().unwrap_or_else(|_| Self(Form::Malformed(word.to_owned())))
    }
}

impl From<&String> for Address {
    fn from(word: &String) -> Self {
        word.as_str().into()
    }
}

impl From<String> for Address {
    fn from(word: String) -> Self {
        word.as_str().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for word in [
            "10.0.0.1:7000",
            "[::1]:7000",
            "[fe80::1%2]:9",
            "[fe80::1%eth0.7]:9",
            "0.0.0.0:0",
            "hostx:7000",
            "a-b.example_1.org.:65535",
            "ü.de:1",
        ] {
            assert_eq!(word.parse::<Address>().unwrap().to_string(), word);
        }
        for word in [
            "",
            "hostx",
            ":7000",
            "hostx:",
            "hostx:65536",
            "hostx:+7",
            "10.0.0:7000",
            "10.0.0.256:1",
            "7:7",
            "::1:7000",
            "-x:1",
            "a b:1",
            "a/b:1",
            "x,y:1",
            "fe80::1%eth0:9",
            "[fe80::1%]:9",
            "[fe80::1%a/b]:9",
            "[fe80::1%a%b]:9",
            "[fe80::1%0123456789abcdef]:9",
            "[hostx%eth0]:9",
            "[10.0.0.1%eth0]:9",
        ] {
            assert!(word.parse::<Address>().is_err(), "{word}");
            assert!(matches!(Address::from(word).resolve(soon()), Err(UdpError::Address(_))), "{word}");
        }
        assert_eq!(Address::from("[fe80::1%2]:9").with_port(7).to_string(), "[fe80::1%2]:7");
        let host = Address::from("hostx:7000");
        assert_eq!((host.port(), host.with_port(0).to_string(), host.ip()), (7000, "hostx:0".into(), None));
        assert!(Address::from("[::]:7").is_wildcard() && !Address::from("[::1]:7").is_wildcard() && !host.is_wildcard());
    }

    #[test]
    fn the_system_resolves_names_within_the_time() {
        let found = Address::from("localhost:7000").resolve(soon()).unwrap();
        assert!(
            !found.is_empty() && found.iter().all(|address| address.ip().is_loopback() && address.port() == 7000),
            "{found:?}"
        );
        // A part of a name has 63 characters at most, so the resolver asks nobody about this one.
        let unknown = "x".repeat(64);
        let error = Address::from(format!("{unknown}:7000")).resolve(soon()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot find '{unknown}': ")), "{error}");
        let late = Address::from("localhost:7000").resolve(Instant::now());
        assert!(matches!(late, Err(UdpError::Name { ref reason, .. }) if reason.contains("in time")), "{late:?}");
    }

    #[test]
    fn the_zone_of_an_address_is_the_number_of_its_interface() {
        let numbered = |address: &SocketAddr| matches!(address, SocketAddr::V6(v6) if v6.scope_id() > 0);
        let found = Address::from("[fe80::1%lo]:7000").resolve(soon()).unwrap();
        assert!(matches!(&found[..], [address] if numbered(address) && address.port() == 7000), "{found:?}");
        let error = Address::from("[fe80::1%nothing]:7000").resolve(soon()).unwrap_err();
        assert!(error.to_string().starts_with("cannot find 'fe80::1%nothing': "), "{error}");
    }

    #[test]
    fn a_wildcard_is_reached_on_this_machine() {
        for (from, to) in [("0.0.0.0:7", "127.0.0.1:7"), ("[::]:7", "[::1]:7"), ("10.0.0.1:7", "10.0.0.1:7")] {
            assert_eq!(to_reach(from.parse().unwrap()), to.parse().unwrap());
        }
    }
}
