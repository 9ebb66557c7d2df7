//! What arrives: taken from the sockets, sorted, and handed over.

use super::notice::NOTICE_MAX;
use super::transfers::Transfers;
use super::{NOTICE_TAG, Peer, Stage, UdpFabric};
use crate::Run;
use crate::port::Direct;
use crate::protocol::{LinkId, Path, Receive, SessionId, Time, TransferId};
use doorbell_fabric::{Incarnation, NodeId, PacketHead, PacketKind, Payload, Priority, Sink, Verdict};

/// Runs taken in one look.
pub(super) const RUNS: usize = 1;
/// How long what follows from packets that were taken may wait for an answer to them, in nanoseconds.
const LATER: u64 = 20_000;
/// How often links are looked at that had nothing when another had, in nanoseconds.
const LOOK_EVERY: u64 = 5_000;
/// How long a socket that had something is looked at each time.
const AWAKE: u64 = 100_000;

/// Lets through what the driver is to have.
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
                return Verdict::Broken("a notice longer than any");
            }
            self.heard.push((source, payload.to_vec()));
            return Verdict::Taken;
        }
        let known = self.peers.get(source.index()).and_then(Option::as_ref);
        match known.filter(|peer| peer.incarnation == incarnation).map(|peer| peer.standing) {
            Some(standing) if standing.is_open() => {}
            Some(Stage::Forgotten) => return Verdict::Taken,
            _ => return Verdict::Refused,
        }
        let verdict = match self.sink.packet(source, incarnation, priority, head, payload) {
            // What comes before it would have come by this very link.
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

/// Takes everything, and does nothing with it.
pub(super) struct Waste;

impl Sink for Waste {
    fn packet(&mut self, _: NodeId, _: Incarnation, _: Priority, _: &PacketHead, _: Payload<'_>) -> Verdict {
        Verdict::Taken
    }

    fn damaged(&mut self, _: NodeId, _: Priority, _: &'static str) {}
}

/// Takes nothing.
pub(super) struct Nobody;

impl Sink for Nobody {
    fn packet(&mut self, _: NodeId, _: Incarnation, _: Priority, _: &PacketHead, _: Payload<'_>) -> Verdict {
        Verdict::Refused
    }

    fn damaged(&mut self, _: NodeId, _: Priority, _: &'static str) {}
}

impl UdpFabric {
    /// Takes in what arrived, but gives no packet to anybody yet.
    pub fn look(&mut self) {
        self.drain(true);
        self.attend(self.now());
    }

    /// Takes in what arrived by all links.
    pub(super) fn drain(&mut self, stopped: bool) {
        loop {
            self.looked = Time::ZERO;
            if self.take_in(self.now(), &mut Nobody, stopped).0 == 0 {
                return;
            }
        }
    }

    /// Takes in what arrived, and listens to notices; other packets wait, and their senders are told so.
    pub(super) fn hear(&mut self) {
        self.drain(false);
        let now = self.now();
        self.deliver(now, &mut Nobody, usize::MAX);
        self.attend(now);
    }

    /// Hands packets that arrived to `sink`, and returns how many it took. Nothing as long as there is a change of which the
    /// driver does not know: it has to know whose packets these are.
    pub fn poll<S: Sink>(&mut self, sink: &mut S, budget: usize) -> usize {
        let now = self.now();
        self.chatter = false;
        if self.changes.is_empty() && self.endpoint.has_ready() {
            let taken = self.deliver(now, sink, budget);
            if taken > 0 {
                // The rest of a datagram: whoever takes it in pieces does not ask the kernel for each.
                return taken;
            }
        }
        let (runs, mut taken, stopped) = self.take_in(now, sink, !self.changes.is_empty());
        if self.changes.is_empty() && taken < budget && !stopped {
            taken += self.deliver(now, sink, budget - taken);
        }
        if taken > 0 && now - self.attended < LATER {
            // Whoever took something may be about to answer it, and the rest goes along.
            self.later = true;
            return taken;
        }
        // Whoever took something may have taken its time.
        let now = if taken > 0 { self.now() } else { now };
        self.attend(now);
        // What is acknowledged of a transfer lets it go on.
        self.chatter = taken == 0 && runs > 0 && !self.transfers.is_sending();
        taken.max(runs)
    }

    /// Whether the last [`poll`](Self::poll) found nothing but what the two protocols have to tell each other.
    pub fn was_chatter(&self) -> bool {
        self.chatter
    }

    /// Hands over packets that wait. Returns how many the driver took.
    pub(super) fn deliver<S: Sink>(&mut self, now: Time, sink: &mut S, budget: usize) -> usize {
        let Self { endpoint, peers, heard, transfers, .. } = self;
        let mut gate = Gate { sink, peers, heard, transfers, taken: 0 };
        endpoint.deliver(now, &mut gate, budget);
        gate.taken
    }

    /// Takes one run from the link that had something last; and from the others now and then, as a look costs a third of a microsecond. Says how many there were, how many packets the driver took of it, and whether it then wanted no more.
    fn take_in<S: Sink>(&mut self, now: Time, sink: &mut S, mut stopped: bool) -> (usize, usize, bool) {
        let Self { endpoint, links, busy, looked, had, room, twin, is_pure, peers, heard, transfers, .. } = self;
        let mut gate = Gate { sink, peers, heard, transfers, taken: 0 };
        let mut look = |at: usize| {
            let link = links.get(at / 2);
            let Some(direct) = (if at.is_multiple_of(2) { link } else { link.and_then(Direct::twin) }) else { return 0 };
            let link = LinkId((at / 2) as u8);
            let peer = twin.filter(|path| !at.is_multiple_of(2) && path.link == link).map(|path| path.peer);
            let each = &mut |mut run: Run<'_>| {
                let from = Path { link, peer: run.peer };
                for datagram in run.datagrams() {
                    stopped = endpoint.handle_datagram(now, from, datagram, &mut gate, stopped);
                }
            };
            let got = match peer {
                Some(peer) if *is_pure => direct.receive_from(peer, room, RUNS, each),
                _ => direct.receive(room, RUNS, each),
            };
            *is_pure |= peer.is_some() && matches!(got, Ok(0));
            got.unwrap_or_else(|error| {
                tracing::warn!(%error, address = %direct.local(), "the UDP socket fails");
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

    /// What the driver put off ([`Verdict::Later`]) may be what it wants now: [`has_ready`](Self::has_ready) counts it again. To be said when
    /// something was taken that others may have waited for, by whichever fabric it came.
    pub fn try_again(&mut self) {
        self.endpoint.try_again();
    }

    /// Whether some sender was told that its packets are not taken for now.
    pub fn refusing(&self) -> bool {
        self.endpoint.refusing()
    }
}
