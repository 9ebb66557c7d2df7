//! Opening a fabric, meeting the nodes that the options name, and leaving.

use super::contacts::{Contacts, Standing};
use super::gather::Gather;
use super::notice::Greeting;
use super::receiving::Always;
use super::sending::Way;
use super::transfers::Transfers;
use super::{About, CODE_LEFT, LINKS_MAX, RUN_ROOM, UdpError, UdpFabric, UdpOptions};
use crate::port::{self, Direct, Port, Room, is_loopback_only};
use crate::protocol::{CloseReason, Config, ConfigError, Endpoint, LinkConfig, Time};
use doorbell_fabric::{Incarnation, NodeId, Verdict};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long joining waits for a sought address that does not answer.
const SEEK_FOR: Duration = Duration::from_millis(250);
/// How long joining waits for a told address that does not answer.
const TOLD_FOR: Duration = Duration::from_secs(2);

/// Opens a port by a node's options. Refuses one that would be open to strangers.
pub(super) fn open_port(options: &UdpOptions) -> Result<Box<dyn Port>, UdpError> {
    if options.listen.len() > LINKS_MAX {
        return Err(ConfigError { field: "listen", expected: "at most 4 addresses" }.into());
    }
    let (address, further) = (options.address(), options.listen.iter().skip(1).copied().collect::<Vec<_>>());
    let mut others = std::iter::once(&address).chain(&further).filter(|address| !is_loopback_only(**address));
    let other = others.next();
    if options.key.is_none()
        && let Some(address) = other
    {
        return Err(UdpError::NoKey { address: *address });
    }

    // On loopback datagrams are as large as possible, so there is nothing to gather.
    let gather = other.is_some();
    Ok(port::open(&port::Options { kind: options.port, gather, further, ..port::Options::new(address) })?)
}

pub(super) fn make_endpoint(
    domain: &str,
    me: (NodeId, Incarnation),
    greeting: &Greeting,
    options: &UdpOptions,
    links: &[Direct],
) -> Result<Endpoint, UdpError> {
    let is_here = |direct: &Direct| is_loopback_only(direct.local());
    let config = if links.iter().all(is_here) { Config::loopback(domain, me.0, me.1) } else { Config::new(domain, me.0, me.1) };
    let config = Config {
        key: options.key.clone(),
        greeting: greeting.encode(),
        links: links.iter().map(|link| if is_here(link) { LinkConfig::LOOPBACK } else { LinkConfig::UNKNOWN }).collect(),
        addresses: links.iter().map(Direct::local).collect(),
        dead_after: options.dead_after,
        lane_window: options.lane_bytes,
        lane_buffer: options.lane_bytes,
        // One set for each link.
        sessions_max: config.sessions_max * links.len(),
        ..config
    };
    let mut seed = [0; 32];
    aws_lc_rs::rand::fill(&mut seed).map_err(|_| UdpError::System {
        attempt: "get random numbers",
        source: std::io::Error::other("the system's random number generator failed"),
    })?;
    Ok(Endpoint::new(config, seed)?)
}

impl UdpFabric {
    /// Opens the port and meets the nodes that the options name. Blocks until all required nodes have answered and told of
    /// others, or until `deadline`.
    ///
    /// # Errors
    /// [`UdpError`]: the address cannot be used, a key is needed and missing, or a required node does not answer or refuses this
    /// one.
    pub fn open(
        domain: &str,
        me: (NodeId, Incarnation),
        about: About,
        max_nodes: usize,
        options: &UdpOptions,
        deadline: Instant,
    ) -> Result<(Self, Box<dyn Port>), UdpError> {
        let port = open_port(options)?;
        let endpoint = make_endpoint(domain, me, &Greeting { about, asks: None }, options, port.links())?;
        let mut fabric = Self::over(endpoint, port.links().to_vec(), me, max_nodes);
        fabric.wants_strands = options.strands;
        let now = fabric.now();
        options.connect.iter().for_each(|address| fabric.contacts.add(now, *address));
        let locals = fabric.addresses.clone();
        options.seek.iter().filter(|address| !locals.contains(address)).for_each(|address| {
            fabric.contacts.add(now, *address);
        });
        fabric.meet(&options.connect, deadline)?;
        Ok((fabric, port))
    }

    pub(super) fn over(endpoint: Endpoint, links: Vec<Direct>, me: (NodeId, Incarnation), max_nodes: usize) -> Self {
        let addresses: Vec<_> = links.iter().map(Direct::local).collect();
        let had = vec![Time::ZERO; 2 * links.len()];
        let ways = links.iter().map(|_| Way::default()).collect();
        Self {
            endpoint,
            contacts: Contacts::new(addresses.clone(), max_nodes),
            addresses,
            links,
            busy: 0,
            looked: Time::ZERO,
            had,
            twin: None,
            is_pure: false,
            series: None,
            twin_waits: 0,
            attended: Time::ZERO,
            later: false,
            room: Room::default(),
            out: vec![0; RUN_ROOM].into(),
            ways,
            full: 0,
            gather: Gather::default(),
            transfers: Transfers::default(),
            on_gather: None,
            epoch: Instant::now(),
            me,
            peers: (0..max_nodes).map(|_| None).collect(),
            next: Vec::new(),
            wants_strands: false,
            strands_due: None,
            changes: VecDeque::new(),
            asks: VecDeque::new(),
            given: Vec::new(),
            heard: Vec::new(),
            owed: VecDeque::new(),
            chatter: false,
        }
    }

    fn meet(&mut self, needed: &[SocketAddr], deadline: Instant) -> Result<(), UdpError> {
        let began = Instant::now();
        loop {
            self.hear();
            for address in needed {
                match self.contacts.standing(*address) {
                    Some(Standing::Failed(CloseReason::Rejected(why))) => {
                        return Err(UdpError::Rejected { address: *address, why });
                    }
                    Some(Standing::Failed(reason)) if !matches!(reason, CloseReason::NoAnswer | CloseReason::Silent) => {
                        return Err(UdpError::Ended { address: *address, reason });
                    }
                    _ => {}
                }
            }
            let silent =
                needed.iter().find(|address| !matches!(self.contacts.standing(**address), Some(Standing::Met { .. }) | None));
            if self.contacts.is_settled() && silent.is_none() {
                return Ok(());
            }
            let waited = began.elapsed();
            let patience = if self.contacts.is_told() { TOLD_FOR } else { SEEK_FOR };
            match silent {
                Some(address) if Instant::now() >= deadline => return Err(UdpError::NoAnswer { address: *address, waited }),
                None if waited >= patience || Instant::now() >= deadline => return Ok(()),
                _ => self.wait(Duration::from_millis(10)),
            }
        }
    }

    /// Sleeps until something arrives or is due, for `most` at most.
    pub(super) fn wait(&mut self, most: Duration) {
        let timeout = self.timeout().map_or(most, |due| due.min(most));
        let timeout = rustix::event::Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let socket = |direct| rustix::event::PollFd::new(direct, rustix::event::PollFlags::IN);
        let mut sockets: Vec<_> = self.links.iter().flat_map(Direct::sockets).map(socket).collect();
        // The result does not matter: the caller looks again.
        let _ = rustix::event::poll(&mut sockets, Some(&timeout));
    }

    /// Ends all sessions in good order and closes the socket. Sends everything that was pushed as long as the targets take it,
    /// until `deadline` at most.
    pub fn shut(&mut self, deadline: Instant) {
        let now = self.now();
        let sessions: Vec<_> = self.peers.iter().flatten().map(|peer| peer.session).collect();
        for session in sessions {
            self.endpoint.close(now, session, CODE_LEFT);
        }
        // Stop looking for other nodes.
        self.contacts = Contacts::default();
        (self.wants_strands, self.strands_due) = (false, None);
        loop {
            self.look();
            // Discard everything that still arrives. While it waits, the end of its sender would not be reported.
            let now = self.now();
            self.endpoint.deliver(now, &mut Always(Verdict::Taken), usize::MAX);
            self.attend(now);
            self.changes.clear();
            if (self.peers.iter().all(Option::is_none) && self.next.is_empty()) || Instant::now() >= deadline {
                self.links.clear();
                return;
            }
            self.wait(Duration::from_millis(5));
        }
    }

    /// Closes the socket without a word to the peers, as if the process had been killed.
    pub fn abandon(&mut self) {
        self.links.clear();
    }
}
