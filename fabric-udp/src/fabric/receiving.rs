//! Receiving: takes datagrams from the sockets, sorts packets, and hands them over.

use super::notice::NOTICE_MAX;
use super::transfers::Transfers;
use super::{NOTICE_TAG, Peer, Stage, UdpFabric};
use crate::Run;
use crate::port::Direct;
use crate::protocol::{LinkId, Path, Receive, SessionId, Time, TransferId};
use doorbell_fabric::{Incarnation, NodeId, PacketHead, PacketKind, Payload, Priority, Sink, Verdict};

/// How long the consequences of taken packets may wait for the driver's reply to them, in nanoseconds.
const LATER: u64 = 20_000;
/// How often to look at idle links while another link is busy, in nanoseconds.
const LOOK_EVERY: u64 = 5_000;
/// How long a link is looked at every time after it received something.
const AWAKE: u64 = 100_000;

/// Lets through the packets that the driver should get.
struct Gate<'a, S> {
    sink: &'a mut S,
    peers: &'a [Option<Peer>],
    heard: &'a mut Vec<(NodeId, Vec<u8>)>,
    transfers: &'a Transfers,
    taken: usize,
}

impl<S: Sink> Sink for Gate<'_, S> {
    #[inline]
    fn packet(
        &mut self,
        source: NodeId,
        incarnation: Incarnation,
        priority: Priority,
        head: &PacketHead,
        payload: Payload<'_>,
    ) -> Verdict {
        if head.kind == PacketKind::Control && head.tag == NOTICE_TAG {
            if payload.len() > NOTICE_MAX {
                return Verdict::Broken("a notice is too long");
            }
            self.heard.push((source, payload.to_vec()));
            return Verdict::Taken;
        }
        let known = self.peers.get(source.index()).and_then(Option::as_ref);
        match known.filter(|peer| peer.incarnation == incarnation).map(|peer| peer.standing) {
            Some(standing) if standing.is_open() => {}
            Some(Stage::Forgotten) => return Verdict::Taken,
            // A guest has no peers, and waits for one notice. A refused packet would hold that up.
            _ if self.peers.is_empty() => return Verdict::Taken,
            _ => return Verdict::Refused,
        }
        let verdict = match self.sink.packet(source, incarnation, priority, head, payload) {
            // An earlier message would have come by this very link.
            Verdict::Later if known.is_some_and(|peer| peer.standing == Stage::Accepted && !peer.is_several) => {
                return Verdict::Broken("a message out of sequence");
            }
            verdict => verdict,
        };
        self.taken += usize::from(matches!(verdict, Verdict::Taken | Verdict::TakenAndStop));
        verdict
    }

    fn damaged(&mut self, source: NodeId, priority: Priority, reason: &'static str) {
        if self.peers.get(source.index()).and_then(Option::as_ref).is_some_and(|peer| peer.standing.is_open()) {
            self.sink.damaged(source, priority, reason);
        }
    }
}

impl<S: Sink> Receive for Gate<'_, S> {
    fn place(&mut self, session: SessionId, transfer: TransferId, offset: u64, bytes: &[u8]) {
        self.transfers.store(session, transfer, offset, bytes);
        self.taken += 1;
    }
}

/// Answers the same for every packet: takes and discards all, or refuses all.
pub(super) struct Always(pub Verdict);

impl Sink for Always {
    fn packet(&mut self, _: NodeId, _: Incarnation, _: Priority, _: &PacketHead, _: Payload<'_>) -> Verdict {
        self.0
    }

    fn damaged(&mut self, _: NodeId, _: Priority, _: &'static str) {}
}

impl UdpFabric {
    /// Takes in arrived datagrams, but hands no packet over yet.
    pub fn look(&mut self) {
        self.drain(true);
        self.attend(self.now());
    }

    /// Takes in arrived datagrams from all links.
    pub(super) fn drain(&mut self, stopped: bool) {
        loop {
            self.looked = Time::ZERO;
            if self.take_in(self.now(), &mut Always(Verdict::Refused), stopped).0 == 0 {
                return;
            }
        }
    }

    /// Takes in arrived datagrams and handles notices. Other packets wait, and their senders are told so.
    pub(super) fn hear(&mut self) {
        self.drain(false);
        let now = self.now();
        self.deliver(now, &mut Always(Verdict::Refused), usize::MAX);
        self.attend(now);
    }

    /// Hands arrived packets to `sink`, and returns how many it took. Hands over nothing while there is a change that the driver
    /// does not know, because the driver must know which incarnation sent the packets.
    pub fn poll<S: Sink>(&mut self, sink: &mut S, budget: usize) -> usize {
        let now = self.now();
        self.chatter = false;
        if self.changes.is_empty() && self.endpoint.has_ready() {
            let taken = self.deliver(now, sink, budget);
            if taken > 0 {
                // These are the rest of a datagram. A driver that takes it in pieces does not pay a system call for each.
                return taken;
            }
        }
        let (runs, mut taken, stopped) = self.take_in(now, sink, !self.changes.is_empty());
        if self.changes.is_empty() && taken < budget && !stopped {
            taken += self.deliver(now, sink, budget - taken);
        }
        if taken > 0 && now - self.attended < LATER {
            // A driver that took a packet may be about to reply, and the remaining work goes along with that reply.
            self.later = true;
            return taken;
        }
        // Handling the packets may have taken the driver some time.
        let now = if taken > 0 { self.now() } else { now };
        self.attend(now);
        // An acknowledgement lets a transfer go on.
        self.chatter = taken == 0 && runs > 0 && !self.transfers.is_sending();
        taken.max(runs)
    }

    /// Whether the last [`poll`](Self::poll) found only traffic between the two protocols.
    pub fn was_chatter(&self) -> bool {
        self.chatter
    }

    /// Hands over waiting packets. Returns how many the driver took.
    pub(super) fn deliver<S: Sink>(&mut self, now: Time, sink: &mut S, budget: usize) -> usize {
        let Self { endpoint, peers, heard, transfers, .. } = self;
        let mut gate = Gate { sink, peers, heard, transfers, taken: 0 };
        endpoint.deliver(now, &mut gate, budget);
        gate.taken
    }

    /// Takes one run from the link that received last, and now and then from the others, because a look costs a third of a
    /// microsecond. Returns the number of runs, the number of packets that the driver took, and whether the driver then wanted no
    /// more.
    pub(super) fn take_in<S: Sink>(&mut self, now: Time, sink: &mut S, mut stopped: bool) -> (usize, usize, bool) {
        let Self { endpoint, links, busy, looked, had, room, twin, is_pure, twin_waits, peers, heard, transfers, .. } = self;
        let mut gate = Gate { sink, peers, heard, transfers, taken: 0 };
        let mut look = |at: usize| {
            let link = links.get(at / 2);
            let Some(direct) = (if at.is_multiple_of(2) { link } else { link.and_then(Direct::twin) }) else { return 0 };
            let link = LinkId((at / 2) as u8);
            let peer = twin.filter(|path| !at.is_multiple_of(2) && path.link == link).map(|path| path.peer);
            // Datagrams of the twin must not overtake those before them, which would then count as lost.
            if peer.is_some() && *twin_waits > 0 {
                *twin_waits -= 1;
                return 0;
            }
            let each = &mut |mut run: Run<'_>| {
                let from = Path { link, peer: run.peer };
                for datagram in run.datagrams() {
                    stopped = endpoint.handle_datagram(now, from, datagram, &mut gate, stopped);
                }
            };
            let got = direct.receive_by(peer.filter(|_| *is_pure), room, direct.at_once(), each);
            *is_pure |= peer.is_some() && matches!(got, Ok(0));
            let is_own = at.is_multiple_of(2) && twin.is_some_and(|path| path.link == link);
            *twin_waits = if is_own && matches!(got, Ok(0)) { 0 } else { *twin_waits };
            got.unwrap_or_else(|error| {
                tracing::warn!(%error, address = %direct.local(), "receiving from the UDP socket failed");
                0
            })
        };
        let mut runs = look(*busy);
        if links.len() > 1 || links.iter().any(|link| link.twin().is_some()) {
            had[*busy] = if runs > 0 { now } else { had[*busy] };
            let is_round = now - *looked >= LOOK_EVERY;
            *looked = if is_round { now } else { *looked };
            let before = *busy;
            for at in (0..had.len()).filter(|at| *at != before) {
                if !is_round && now - had[at] >= AWAKE {
                    continue;
                }
                let got = look(at);
                runs += got;
                if got > 0 {
                    (*busy, had[at]) = (at, now);
                }
            }
        }
        (runs, gate.taken, stopped)
    }

    /// Whether packets wait that the driver neither refused nor put off.
    pub fn has_ready(&self) -> bool {
        self.endpoint.has_ready()
    }

    /// The driver may now want packets that it had put off ([`Verdict::Later`]), so [`has_ready`](Self::has_ready) counts them
    /// again. Call this after taking a packet that others may have waited for, on any fabric.
    pub fn try_again(&mut self) {
        self.endpoint.try_again();
    }

    /// Whether any sender was told to stop sending for now.
    pub fn refusing(&self) -> bool {
        self.endpoint.refusing()
    }
}
