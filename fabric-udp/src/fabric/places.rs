//! Set-up: from the places that a node's settings name to the addresses that its sockets use.
//!
//! A name may have several addresses. The node listens at the first to which a socket can be bound. It connects to the one at
//! which a node of the domain answers first: a guest asks all of them at the same time, over sockets of its own. All this is over
//! before the node has its own sockets.

use super::address::{Address, to_reach};
use super::notice::Greeting;
use super::open::{make_endpoint, open_port};
use super::receiving::Always;
use super::{About, GUESTS, UdpError, UdpFabric, UdpOptions};
use crate::port::{Direct, Kind, is_loopback_only};
use crate::protocol::{CloseReason, Event, Path, Rejection, SessionId, Target};
use doorbell_fabric::{Incarnation, NodeId, Verdict};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// The time between two questions for a name that cannot be found.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// The time for the names of all places to seek.
const SEEK_WITHIN: Duration = Duration::from_secs(2);

/// The places that a node's settings name.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// As [`UdpOptions::listen`].
    pub listen: Vec<Address>,
    /// As [`UdpOptions::connect`].
    pub connect: Vec<Address>,
    /// As [`UdpOptions::seek`].
    pub seek: Vec<Address>,
}

/// Why an address of a name could not be used.
#[derive(Debug)]
pub struct Tried {
    /// The address.
    pub address: SocketAddr,
    /// The reason.
    pub why: String,
}

/// Reasons, in words.
pub(super) fn told(tried: &[Tried]) -> String {
    tried.iter().map(|Tried { address, why }| format!("{address}: {why}")).collect::<Vec<_>>().join("; ")
}

impl Places {
    /// Whether there is any.
    pub fn is_any(&self) -> bool {
        !self.listen.is_empty() || !self.connect.is_empty() || !self.seek.is_empty()
    }

    /// Looks up all names, and writes the addresses to use into the options. Blocks until a node answers at each place to connect to
    /// that has several addresses, or until `deadline`. Asks again for the name of a place to connect to, because that machine may
    /// just be starting. A place to seek whose name cannot be found at once is left out, with a warning.
    ///
    /// # Errors
    /// [`UdpError`]: a name cannot be found, no address of a name can be listened at, or no node answers at any.
    pub fn settle(&self, domain: &str, about: &About, options: &mut UdpOptions, deadline: Instant) -> Result<(), UdpError> {
        (options.listen, options.connect, options.seek) = Default::default();
        for place in &self.listen {
            options.listen.push(first_to_bind(place, place.resolve(deadline)?)?);
        }
        for place in &self.connect {
            let found: Vec<_> = in_time(deadline, || place.resolve(deadline))?.into_iter().map(to_reach).collect();
            let chosen = match found[..] {
                [only] => only,
                _ => find(domain, about, place, &found, options, deadline)?,
            };
            options.connect.push(chosen);
        }
        // A resolver that does not answer for one name leaves time for the others, and to join.
        let share = SEEK_WITHIN / self.seek.len().max(1) as u32;
        for place in &self.seek {
            if let Some(at) = self.connect.iter().position(|other| other == place) {
                options.seek.push(options.connect[at]);
                continue;
            }
            match place.resolve(deadline.min(Instant::now() + share)) {
                Ok(found) => options.seek.extend(found.into_iter().map(to_reach)),
                Err(error @ UdpError::Name { .. }) => tracing::warn!("{error}; this node does not seek that one"),
                Err(error) => return Err(error),
            }
        }
        if options.listen.is_empty() {
            options.listen = links_for(&options.connect, &mut options.seek);
        }
        Ok(())
    }
}

/// The answer to a question for a name. Asks again while the name cannot be found, until `deadline`.
fn in_time<T>(deadline: Instant, mut ask: impl FnMut() -> Result<T, UdpError>) -> Result<T, UdpError> {
    loop {
        match ask() {
            Err(UdpError::Name { .. }) if Instant::now() + ASK_AGAIN < deadline => std::thread::sleep(ASK_AGAIN),
            answer => return answer,
        }
    }
}

/// The first of the addresses that this machine has. One that is in use counts: opening the port waits for a while for a process that
/// has just ended, and peers may know this address only. A lone address is not tried: opening the port says more about it.
fn first_to_bind(place: &Address, found: Vec<SocketAddr>) -> Result<SocketAddr, UdpError> {
    if let [only] = found[..] {
        return Ok(only);
    }
    let mut tried = Vec::new();
    for address in found {
        match UdpSocket::bind(address) {
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT)) =>
            {
                tried.push(Tried { address, why: error.to_string() });
            }
            _ => return Ok(address),
        }
    }
    Err(UdpError::Listen { place: place.clone(), tried })
}

/// Any free port of the loopback interface, or of all interfaces.
fn any(here: bool, is_six: bool) -> SocketAddr {
    let ip: IpAddr = match (here, is_six) {
        (true, false) => Ipv4Addr::LOCALHOST.into(),
        (true, true) => Ipv6Addr::LOCALHOST.into(),
        (false, false) => Ipv4Addr::UNSPECIFIED.into(),
        (false, true) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, 0)
}

/// The links of a node that listens nowhere, if one socket cannot serve all these addresses: a socket of the loopback interface has
/// one IP version. Drops addresses to seek whose IP version this machine does not have.
fn links_for(connect: &[SocketAddr], seek: &mut Vec<SocketAddr>) -> Vec<SocketAddr> {
    let all = || connect.iter().chain(seek.iter());
    let is_both = all().any(SocketAddr::is_ipv4) && all().any(SocketAddr::is_ipv6);
    let is_here = all().all(|address| is_loopback_only(*address));
    if !is_both {
        return Vec::new();
    }
    if connect.iter().all(SocketAddr::is_ipv4) && UdpSocket::bind(any(is_here, true)).is_err() {
        seek.retain(SocketAddr::is_ipv4);
        return Vec::new();
    }
    if is_here { vec![any(true, false), any(true, true)] } else { Vec::new() }
}

/// An attempt at one address.
struct Attempt {
    address: SocketAddr,
    session: Option<SessionId>,
    tries: usize,
    /// Why it can never succeed.
    over: Option<String>,
    rejected: Option<Rejection>,
}

/// Finds the first of several addresses of one place at which a node of the domain answers. Asks at all of them until then, or until
/// `deadline`.
///
/// # Errors
/// [`UdpError::Rejected`]: a node answered and refused, and no other one answered. [`UdpError::NoneAnswers`].
pub fn find(
    domain: &str,
    about: &About,
    place: &Address,
    found: &[SocketAddr],
    options: &UdpOptions,
    deadline: Instant,
) -> Result<SocketAddr, UdpError> {
    let mut tried = Vec::new();
    let mut usable = Vec::new();
    let has_link = |address: &SocketAddr| {
        let leads = |local: &SocketAddr| local.is_ipv4() == address.is_ipv4() || local.is_ipv6() && local.ip().is_unspecified();
        options.listen.is_empty() || options.listen.iter().any(leads)
    };
    for address in found.iter().copied() {
        let here = is_loopback_only(address);
        let why = if !here && options.key.is_none() {
            "other machines can reach it, and the domain has no key".into()
        } else if !has_link(&address) {
            "this node listens at no address of its IP version".into()
        } else if options.listen.is_empty()
            && let Err(error) = UdpSocket::bind(any(here, address.is_ipv6()))
        {
            error.to_string()
        } else {
            usable.push(address);
            continue;
        };
        tried.push(Tried { address, why });
    }
    if usable.is_empty() {
        return Err(match found.first().filter(|_| options.key.is_none() && found.iter().all(|at| !is_loopback_only(*at))) {
            Some(address) => UdpError::NoKey { address: *address },
            None => UdpError::NoneAnswers { place: place.clone(), tried, waited: Duration::ZERO },
        });
    }
    let listen = if options.listen.is_empty() {
        let links = [false, true].map(|is_six| {
            let mut alike = usable.iter().filter(|address| address.is_ipv6() == is_six).peekable();
            alike.peek().is_some().then(|| any(alike.all(|address| is_loopback_only(*address)), is_six))
        });
        links.into_iter().flatten().collect()
    } else {
        options.listen.iter().map(|listen| (listen.ip(), 0).into()).collect()
    };
    let port = if options.port == Kind::Uring { Kind::Uring } else { Kind::Plain };
    let options = UdpOptions { listen, port, ..options.clone() };
    let (mut fabric, _port) = guest(domain, about, None, &options)?;
    let mut attempts: Vec<_> =
        usable.into_iter().map(|address| Attempt { address, session: None, tries: 0, over: None, rejected: None }).collect();
    let began = Instant::now();
    loop {
        let now = fabric.now();
        for attempt in attempts.iter_mut().filter(|attempt| attempt.session.is_none() && attempt.over.is_none()) {
            let link = fabric.contacts.link_towards(attempt.address, attempt.tries);
            attempt.session = fabric.endpoint.connect(now, Target { path: Path { link, peer: attempt.address }, node: None });
            attempt.tries += 1;
        }
        fabric.flush(now);
        fabric.wait(Duration::from_millis(20));
        let now = fabric.now();
        fabric.take_in(now, &mut Always(Verdict::Taken), false);
        // A report that nobody takes ends each wait at once.
        while fabric.links.iter().find_map(Direct::trouble).is_some() {}
        let mut answered = None;
        while let Some(event) = fabric.endpoint.poll_event() {
            match event {
                Event::Connected { session, .. } => match attempts.iter().find(|attempt| attempt.session == Some(session)) {
                    Some(attempt) => answered = answered.or(Some(attempt.address)),
                    None => fabric.endpoint.close(now, session, super::CODE_UNWANTED),
                },
                Event::Closed { session, reason, .. } => {
                    let Some(attempt) = attempts.iter_mut().find(|attempt| attempt.session == Some(session)) else { continue };
                    attempt.session = None;
                    match reason {
                        CloseReason::NoAnswer | CloseReason::Silent => {}
                        CloseReason::Rejected(why) => {
                            (attempt.rejected, attempt.over) = (Some(why), Some(format!("it refuses this node: {why:?}")));
                        }
                        reason => attempt.over = Some(format!("the session ended at once: {reason:?}")),
                    }
                }
                _ => {}
            }
        }
        let is_over = answered.is_some() || attempts.iter().all(|attempt| attempt.over.is_some());
        if !is_over && Instant::now() < deadline {
            continue;
        }
        for session in attempts.iter().filter_map(|attempt| attempt.session) {
            fabric.endpoint.close(now, session, super::CODE_LEFT);
        }
        fabric.flush(now);
        if let Some(address) = answered {
            return Ok(address);
        }
        if let Some((address, why)) = attempts.iter().find_map(|attempt| Some((attempt.address, attempt.rejected?))) {
            return Err(UdpError::Rejected { address, why });
        }
        let silent =
            |attempt: Attempt| Tried { address: attempt.address, why: attempt.over.unwrap_or_else(|| "no answer".into()) };
        tried.extend(attempts.into_iter().map(silent));
        return Err(UdpError::NoneAnswers { place: place.clone(), tried, waited: began.elapsed() });
    }
}

/// A node for a moment, which has no id yet. It uses ports of its own.
pub(super) fn guest(
    domain: &str,
    about: &About,
    asks: Option<Vec<NodeId>>,
    options: &UdpOptions,
) -> Result<(UdpFabric, Box<dyn crate::port::Port>), UdpError> {
    let port = open_port(options)?;
    let mut number = [0; 6];
    let _ = aws_lc_rs::rand::fill(&mut number);
    let me = NodeId(GUESTS | u16::from_le_bytes([number[0], number[1]]));
    let life = Incarnation(u32::from_le_bytes([number[2], number[3], number[4], number[5]]) | 1);
    let greeting = Greeting { about: about.clone(), asks };
    let endpoint = make_endpoint(domain, (me, life), &greeting, options, port.links())?;
    let fabric = UdpFabric::over(endpoint, port.links().to_vec(), (me, life), 0);
    Ok((fabric, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    #[test]
    fn a_name_that_appears_later_is_found_and_another_is_given_up_in_time() {
        let unknown = || UdpError::Name { name: "hostx".into(), reason: "not known".into() };
        let mut asked = 0;
        let found = in_time(Instant::now() + Duration::from_secs(60), || {
            asked += 1;
            if asked < 3 { Err(unknown()) } else { Ok(7) }
        });
        assert!(matches!(found, Ok(7)) && asked == 3);
        let began = Instant::now();
        let never = in_time(began + 3 * ASK_AGAIN, || Err::<(), _>(unknown()));
        assert!(matches!(never, Err(UdpError::Name { .. })) && began.elapsed() < 3 * ASK_AGAIN);
        // Another failure is final.
        let mut asked = 0;
        let malformed = in_time(began + Duration::from_secs(60), || {
            asked += 1;
            Address::from("::x").resolve(began)
        });
        assert!(matches!(malformed, Err(UdpError::Address(_))) && asked == 1);
    }

    #[test]
    fn the_first_address_that_the_machine_has_is_listened_at() {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Addresses for documentation (RFC 5737), and one that is in use.
        let (absent, used) = ([at("203.0.113.7:0"), at("198.51.100.7:0")], taken.local_addr().unwrap());
        let place = Address::from("hostx:0");
        let found = [&absent[..], &[at("127.0.0.2:0"), at("127.0.0.3:0")]].concat();
        assert_eq!(first_to_bind(&place, found).unwrap(), at("127.0.0.2:0"));
        assert_eq!(first_to_bind(&place, vec![absent[0], used, at("127.0.0.2:0")]).unwrap(), used);
        let error = first_to_bind(&place, absent.to_vec()).unwrap_err().to_string();
        assert!(error.starts_with("cannot listen at hostx:0: 203.0.113.7:0: ") && error.contains("198.51.100.7:0"), "{error}");
    }

    #[test]
    fn a_node_that_seeks_addresses_of_both_versions_on_this_machine_has_a_link_for_each() {
        if UdpSocket::bind("[::1]:0").is_err() {
            return eprintln!("this machine has no IPv6: not tested");
        }
        let links = |connect: &[SocketAddr], seek: &[SocketAddr]| links_for(connect, &mut seek.to_vec());
        let (four, six, away, away_six) = (at("127.0.0.1:7"), at("[::1]:7"), at("10.0.0.1:7"), at("[fd00::1]:7"));
        let both = vec![at("127.0.0.1:0"), at("[::1]:0")];
        assert_eq!((links(&[], &[four, six]), links(&[four], &[six])), (both.clone(), both));
        for (connect, seek) in [(&[][..], &[four][..]), (&[six], &[six]), (&[], &[away, four]), (&[away], &[away_six])] {
            assert!(links(connect, seek).is_empty(), "{connect:?} {seek:?}");
        }
    }

    #[test]
    fn a_name_that_is_sought_and_unknown_is_left_out() {
        let places = Places {
            listen: vec!["127.0.0.1:0".into()],
            seek: vec![format!("{}:7", "x".repeat(64)).into(), "[::]:7".into()],
            ..Places::default()
        };
        let mut options = UdpOptions::default();
        let about = About { role: doorbell_fabric::Role::Host, pid: 1, label: String::new(), nonce: 0 };
        places.settle("names", &about, &mut options, Instant::now() + Duration::from_secs(60)).unwrap();
        assert_eq!((options.listen, options.seek), (vec![at("127.0.0.1:0")], vec![at("[::1]:7")]));
    }
}
