//! The connecting side of a stream.

use super::check_service;
use super::end::{Carrier, End, Far, Side, State};
use super::handle::Stream;
use super::near::{Near, RING_LEAST, RING_MOST};
use super::table::{Streams, WINDOW, WINDOW_FIRST};
use super::wire;
#[cfg(feature = "tokio")]
use doorbell_engine::kit::Begun;
use doorbell_engine::kit::{Error, Node, NodeId, PeerId, Shared, Token, shared_of, world};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The default time limit for connecting.
const PATIENCE: Duration = Duration::from_secs(2);
/// The greatest time limit, so that the deadline does not overflow.
const PATIENCE_MOST: Duration = Duration::from_secs(1 << 32);
/// How long one of several candidate nodes may take to answer.
const ASK_MOST: Duration = Duration::from_millis(500);
/// How soon all nodes are asked again while none offers the service.
const AGAIN: Duration = Duration::from_millis(20);

/// The options of a new stream. Made by [`Stream::builder`]; nothing happens before [`connect`](Self::connect).
#[derive(Clone, Debug)]
#[must_use = "nothing happens before connect()"]
pub struct StreamBuilder {
    node: Node,
    service: String,
    to: Option<NodeId>,
    patience: Duration,
    ring: usize,
}

/// Picks the more telling of two failures: a refusal, then a node that was not asked, then a service that no node offers.
fn better(why: State, other: State) -> State {
    let rank = |state| match state {
        State::NotHere => 0,
        State::Opening => 1,
        _ => 2,
    };
    if rank(other) > rank(why) { other } else { why }
}

impl Stream {
    /// Prepares to connect to the service of this name, on any node that offers it.
    pub fn builder(node: &Node, service: &str) -> StreamBuilder {
        StreamBuilder { node: node.clone(), service: service.to_owned(), to: None, patience: PATIENCE, ring: 64 << 10 }
    }
}

impl StreamBuilder {
    /// Sets the node to connect to [default: the first node that offers the service, by number].
    pub fn to(mut self, node: NodeId) -> Self {
        self.to = Some(node);
        self
    }

    /// Sets how long to look for a node that offers the service [default: 2 s].
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience.min(PATIENCE_MOST);
        self
    }

    /// Sets how many bytes may be under way in each direction if memory is shared: 4 KiB to 64 MiB, rounded up to a power of
    /// two [default: 64 KiB].
    pub fn buffer_bytes(mut self, bytes: usize) -> Self {
        self.ring = bytes.clamp(RING_LEAST, RING_MOST).next_power_of_two();
        self
    }

    /// Connects. Returns as soon as a listening node has queued the stream, even before it accepts it. Blocks for at most the
    /// [time limit](Self::patience), and drives the node's engine meanwhile.
    ///
    /// # Errors
    /// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused): no node offers the service, or its backlog is full.
    /// [`TimedOut`](io::ErrorKind::TimedOut): the node did not answer. The node has left.
    pub fn connect(&self) -> io::Result<Stream> {
        check_service(&self.service)?;
        let shared = shared_of(&self.node);
        let deadline = world::now() + self.patience;
        loop {
            let me = shared.check()?;
            let mut why = State::NotHere;
            for peer in self.candidates(shared, me) {
                let Some(stream) = self.ask(shared, me, peer)? else {
                    why = better(why, State::Opening);
                    continue;
                };
                let end = &stream.end;
                let until = self.ask_until(deadline);
                while end.state() == State::Opening && world::now() < until {
                    let op = end.wait_for(Side::Read);
                    if end.state() == State::Opening {
                        shared.drive(me, &op, Some(until), |_| false)?;
                    }
                }
                // Before the deadline another node may answer.
                if end.state() == State::Opening && until >= deadline {
                    return Err(Error::Timeout { operation: "connect a stream", node: Some(peer.node) }.into());
                }
                match Self::answered(stream) {
                    Ok(stream) => return Ok(stream),
                    Err(state) => why = better(why, state),
                }
            }
            if world::now() >= deadline {
                return Err(self.refused(why));
            }
            // A node may begin to offer the service.
            shared.pause(me, deadline.min(world::now() + AGAIN))?;
        }
    }

    /// As [`connect`](Self::connect), inside a tokio runtime, which drives the node from then on. Dropping the future closes
    /// the stream that was begun.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and as [`Reactor::attend`](crate::Reactor::attend).
    #[cfg(feature = "tokio")]
    pub async fn connect_async(&self) -> io::Result<Stream> {
        check_service(&self.service)?;
        let shared = shared_of(&self.node);
        crate::reactor::tokio::attend(shared)?;
        // Makes some thread drive the node even if this runtime ends earlier.
        let _begun = Begun::new(shared);
        let deadline = world::now() + self.patience;
        loop {
            let mut why = State::NotHere;
            for peer in self.candidates(shared, shared.check()?) {
                let Some(stream) = self.ask(shared, shared.check()?, peer)? else {
                    why = better(why, State::Opening);
                    continue;
                };
                let answer = std::future::poll_fn(|context| stream.poll_answered(context));
                let until = self.ask_until(deadline);
                if tokio::time::timeout_at(until.into(), answer).await.is_err() && until >= deadline {
                    return Err(Error::Timeout { operation: "connect a stream", node: Some(peer.node) }.into());
                }
                match Self::answered(stream) {
                    Ok(stream) => return Ok(stream),
                    Err(state) => why = better(why, state),
                }
            }
            if world::now() >= deadline {
                return Err(self.refused(why));
            }
            // A node may begin to offer the service.
            tokio::time::sleep_until(deadline.min(world::now() + AGAIN).into()).await;
        }
    }

    /// The deadline for one node's answer: short if another node may answer.
    fn ask_until(&self, deadline: Instant) -> Instant {
        if self.to.is_some() { deadline } else { deadline.min(world::now() + ASK_MOST) }
    }

    fn candidates(&self, shared: &Shared, me: Token) -> Vec<PeerId> {
        let own = shared.membership().id();
        let members = shared.living_members(me).into_iter().map(|member| PeerId::from((member.id, member.incarnation)));
        members.filter(|peer| peer.node != own && self.to.is_none_or(|to| to == peer.node)).collect()
    }

    /// Asks one node for a stream. An error concerns this node; a refusal arrives later as the stream's state. `None`: the node
    /// has too many unanswered requests.
    fn ask(&self, shared: &Arc<Shared>, me: Token, peer: PeerId) -> io::Result<Option<Stream>> {
        if !shared.enter(me, "connect")?.service::<Streams>().may_ask(peer) {
            return Ok(None);
        }
        let (carrier, offer) = if shared.is_near(me, peer.node) {
            let (near, [region, offset]) = Near::make(shared, peer, self.ring)?;
            (Carrier::Near(near), [region, offset, self.ring as u64])
        } else {
            (Carrier::Far(Mutex::new(Far::new(WINDOW_FIRST, WINDOW))), [0, 0, WINDOW])
        };
        let end = shared.call("connect", |streams: &mut Streams| {
            let end = End::new(streams.next_number(), peer, 0, carrier, State::Opening);
            streams.enter(&end);
            streams.ask(&end, [&wire::words(&offer)[..], self.service.as_bytes()].concat());
            end
        })?;
        Ok(Some(Stream::new(&self.node, end)))
    }

    /// The stream after the answer: open, or the reason why not.
    fn answered(stream: Stream) -> Result<Stream, State> {
        match stream.end.state() {
            State::Open | State::Reset => Ok(stream),
            state => Err(state),
        }
    }

    fn refused(&self, why: State) -> io::Error {
        let Self { service, to, patience, .. } = self;
        let whom = to.map_or_else(|| "no node of the domain".to_owned(), |to| format!("node {to} does not"));
        let what = match why {
            State::Busy => format!("the backlog of '{service}' is full; have its server accept faster, or try later"),
            State::NoMemory => {
                format!("the server of '{service}' can't use the memory of this node; check that both may write in /dev/shm")
            }
            State::Opening => {
                let asked = to.map_or_else(|| "a node".to_owned(), |to| format!("node {to}"));
                format!(
                    "{asked} was not asked for '{service}', since it has not answered many earlier requests that were given up; check whether it is stopped"
                )
            }
            _ if to.is_some() => format!("{whom} offer '{service}' within {patience:?}; start the server"),
            _ => format!("{whom} offers '{service}' within {patience:?}; start the server"),
        };
        io::Error::new(io::ErrorKind::ConnectionRefused, what)
    }
}
