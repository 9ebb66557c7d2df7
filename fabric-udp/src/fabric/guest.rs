//! Guests: nodes that ask for an id, and the node that gives them one.

use super::notice::Notice;
use super::places::guest;
use super::receiving::Always;
use super::{About, UdpError, UdpFabric, UdpOptions};
use crate::port::{Direct, Kind};
use crate::protocol::{CloseReason, Event, Path, SessionId, Target};
use doorbell_fabric::{NodeId, Verdict};
use std::time::{Duration, Instant};

/// How long an id that was given to a guest stays reserved for it.
const GIVEN_FOR: Duration = Duration::from_secs(10);

/// The grant of an id to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The id that the guest may take.
    pub node: NodeId,
    /// The number of nodes that the domain can have.
    pub max_nodes: usize,
}

/// A guest that asks for an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    pub(super) session: SessionId,
    /// The ids that are taken on the guest's side.
    pub avoid: Vec<NodeId>,
}

/// Asks the first node that the options name for an id outside `avoid`. Blocks until that node answers, or until `deadline`.
///
/// # Errors
/// The same as for [`UdpFabric::open`], and [`UdpError::NoRoom`].
pub fn ask(domain: &str, about: &About, avoid: &[NodeId], options: &UdpOptions, deadline: Instant) -> Result<Grant, UdpError> {
    let Some(address) = options.connect.first().copied() else {
        let reason = CloseReason::NoAnswer;
        return Err(UdpError::Ended { address: options.address(), reason });
    };
    // The guest uses a port of its own because it is no node yet. It uses a plain one unless io_uring is required, because the port
    // is soon closed and a warning about missing io_uring would be noise.
    let listen = options.listen.iter().map(|listen| (listen.ip(), 0).into()).collect();
    let port = if options.port == Kind::Uring { Kind::Uring } else { Kind::Plain };
    let options = UdpOptions { listen, port, ..options.clone() };
    let (mut fabric, _port) = guest(domain, about, Some(avoid.to_vec()), &options)?;
    let began = Instant::now();
    let now = fabric.now();
    let link = fabric.contacts.link_towards(address, 0);
    let target = Target { path: Path { link, peer: address }, node: None };
    let mut session = fabric.endpoint.connect(now, target);
    // The node that answered at the address. What any other says does not count.
    let mut host = None;
    loop {
        let now = fabric.now();
        fabric.take_in(now, &mut Always(Verdict::Taken), false);
        // A report that nobody takes ends each wait at once.
        while fabric.links.iter().find_map(Direct::trouble).is_some() {}
        while let Some(event) = fabric.endpoint.poll_event() {
            match event {
                Event::Connected { session: connected, peer, .. } if Some(connected) == session => host = Some(peer.node),
                Event::Connected { session: other, .. } => fabric.endpoint.close(now, other, super::CODE_UNWANTED),
                Event::Closed { session: closed, reason, .. } if Some(closed) == session => match reason {
                    CloseReason::Rejected(why) => return Err(UdpError::Rejected { address, why }),
                    CloseReason::NoAnswer => session = fabric.endpoint.connect(now, target),
                    reason => return Err(UdpError::Ended { address, reason }),
                },
                _ => {}
            }
        }
        let from_host = fabric.heard.drain(..).filter(|(source, _)| Some(*source) == host);
        let answered = from_host.filter_map(|(_, bytes)| Notice::decode(&bytes)).find_map(|notice| match notice {
            Notice::Welcome { node, max_nodes } => Some(Ok(Grant { node, max_nodes: max_nodes.into() })),
            Notice::NoRoom => Some(Err(UdpError::NoRoom { address })),
            Notice::Members { .. } => None,
        });
        if let Some(answer) = answered {
            if let Some(session) = session {
                fabric.endpoint.close(now, session, super::CODE_LEFT);
            }
            fabric.flush(now);
            return answer;
        }
        fabric.flush(now);
        if Instant::now() >= deadline {
            return Err(UdpError::NoAnswer { address, waited: began.elapsed() });
        }
        fabric.wait(Duration::from_millis(20));
    }
}

impl UdpFabric {
    /// The next guest that asks for an id. Answer it by [`welcome`](Self::welcome).
    pub fn next_ask(&mut self) -> Option<Ask> {
        self.asks.pop_front()
    }

    /// Whether a node with this id was met here, or the id is reserved for a guest.
    pub fn is_taken(&mut self, node: NodeId) -> bool {
        let now = self.now();
        self.given.retain(|(_, until)| *until > now);
        let is_met = self.peers.get(node.index()).is_some_and(Option::is_some);
        is_met || node == self.me.0 || self.given.iter().any(|(given, _)| *given == node)
    }

    /// Gives a guest an id, or tells it that there is none.
    pub fn welcome(&mut self, ask: &Ask, node: Option<NodeId>) {
        let now = self.now();
        let notice = match node {
            Some(node) => {
                self.given.push((node, now + GIVEN_FOR));
                Notice::Welcome { node, max_nodes: self.peers.len() as u16 }
            }
            None => Notice::NoRoom,
        };
        self.tell(now, ask.session, notice.encode());
        self.flush(now);
    }
}
