//! Sending: packets that wait for others, datagrams that found no room in the kernel, and paths with their own socket.

use super::{BytesOut, RUN_ROOM, UdpFabric};
use crate::Run;
use crate::port::{Sent, TroubleKind};
use crate::protocol::{Middle, Path, SessionId, Time, TransferId, Transmit};
use doorbell_fabric::{PacketHead, Priority, Push};
use std::ops::Range;
use std::sync::Arc;

/// The number of datagrams in a row by one path after which it gets its own socket.
const TWIN_AFTER: u32 = 256;
/// How long a path may have no room before the other paths go on without it, in nanoseconds. It is longer than a run takes on any
/// usual network.
const JAMMED_AFTER: u64 = 25_000_000;

/// The datagrams of one link that wait for room in the kernel.
#[derive(Default)]
pub(super) struct Way {
    /// The position of the first unsent byte, the datagrams, and their buffer.
    unsent: Option<(usize, Transmit, Box<[u8]>)>,
    /// A spare buffer, once one was allocated.
    spare: Option<Box<[u8]>>,
    /// The path that finds no room in the kernel, and since when.
    jam: Option<(Path, Time)>,
}

impl Way {
    /// Whether a path has had no room for so long that the others should not wait for it, as when its cable is gone. Its
    /// datagrams are then lost.
    fn is_jammed(&mut self, now: Time, path: Path) -> bool {
        let since = self.jam.filter(|(jammed, _)| *jammed == path).map_or(now, |(_, since)| since);
        self.jam = Some((path, since));
        now - since >= JAMMED_AFTER
    }
}

impl UdpFabric {
    /// Puts one packet on a lane and sends it, or lets it wait for others if they follow closely.
    #[inline]
    pub(crate) fn push(&mut self, session: SessionId, priority: Priority, head: &PacketHead, bytes: &[u8]) -> Push {
        let now = self.now();
        let push = self.endpoint.push(now, session, priority, head, bytes);
        if push == Push::Done && self.gather.keeps(now, bytes.len()) {
            if self.gather.is_new()
                && let Some(call) = &self.on_gather
            {
                call();
            }
        } else {
            // Flushing may make room if there was none.
            self.flush(now);
            self.gather.sent(self.now());
        }
        push
    }

    /// Puts one packet on a lane to go with the ones that follow. [`release`](Self::release) sends them, or a thread that comes
    /// when they are due.
    pub(crate) fn push_held(&mut self, session: SessionId, priority: Priority, head: &PacketHead, bytes: &[u8]) -> Push {
        // A clock reading costs as much as the rest, and held packets wait only for a negligible time.
        let now = self.gather.held_since().unwrap_or_else(|| self.now());
        let push = self.endpoint.push(now, session, priority, head, bytes);
        if push == Push::Done {
            self.gather.hold(now, bytes.len());
        } else {
            self.flush(self.now());
        }
        push
    }

    /// Sends the held packets.
    pub fn release(&mut self) {
        if self.gather.due().is_some() {
            self.flush(self.now());
        }
    }

    /// Sends a part of a transfer that the peer expects, of `total` bytes in all. Returns false if that is impossible, because
    /// the peer never named the transfer or it was begun before.
    pub(crate) fn begin_transfer(
        &mut self,
        (session, transfer): (SessionId, TransferId),
        (part, total): (Range<u64>, u64),
        priority: Priority,
        from: Arc<dyn BytesOut>,
    ) -> bool {
        let now = self.now();
        let begun = !self.transfers.outgoing.contains_key(&(session, transfer))
            && self.endpoint.begin_part(now, session, transfer, part, total, priority).is_ok();
        if begun {
            self.transfers.outgoing.insert((session, transfer), from);
        }
        self.flush(now);
        begun
    }

    /// Gives outgoing datagrams to the kernel as far as it has room. A link without room holds up no other link.
    pub(super) fn flush(&mut self, now: Time) {
        self.gather.empty();
        if self.full != 0 {
            for at in 0..self.ways.len() {
                if let Some((from, transmit, bytes)) = self.ways[at].unsent.take() {
                    self.full &= !(1 << at);
                    self.ways[at].spare = Some(std::mem::replace(&mut self.out, bytes));
                    self.send(now, from, transmit);
                }
            }
        }
        while let Some(transmit) = self.endpoint.poll_pieces(now, &mut self.out, self.full, &mut self.transfers) {
            self.send(now, 0, transmit);
        }
    }

    /// Gives the kernel the datagrams in the buffer from `from` on, or keeps them until there is room.
    fn send(&mut self, now: Time, from: usize, transmit: Transmit) {
        let Transmit { path, len, segment, .. } = transmit;
        let at = usize::from(path.link.0);
        let Some(link) = self.links.get(at) else { return };
        let direct = if self.twin == Some(path) { link.twin().unwrap_or(link) } else { link };
        let sent = match self.endpoint.pieces(&transmit, &self.out) {
            Some((front, Middle::Lane(bytes), tag)) => direct.send_pieces(path.peer, [front, bytes, tag]),
            Some((front, Middle::Transfer { session, transfer, offset, len }, tag)) => {
                let mut sent = Sent::Sent;
                // Bytes that are gone by now count as lost.
                self.transfers.lend((session, transfer), offset, len, &mut |bytes| {
                    sent = direct.send_pieces(path.peer, [front, bytes, tag]);
                });
                sent
            }
            None => direct.send(&Run { peer: path.peer, bytes: &mut self.out[from..len], segment }),
        };
        let way = &mut self.ways[at];
        match sent {
            Sent::Sent => {
                way.jam.take_if(|(jammed, _)| *jammed == path);
                if self.twin == Some(path) {
                    self.series = None;
                } else {
                    self.count(path);
                }
            }
            Sent::Full { .. } if way.is_jammed(now, path) => {}
            // A Challenge to another path can be dropped if something waits before it: it will be sent again.
            Sent::Full { .. } if way.unsent.is_some() => {}
            Sent::Full { gone } => {
                if let Some(transmit) = self.endpoint.joined(transmit, &mut self.out, &mut self.transfers) {
                    let spare = way.spare.take().unwrap_or_else(|| vec![0; RUN_ROOM].into());
                    let bytes = std::mem::replace(&mut self.out, spare);
                    way.unsent = Some(((from + gone * segment).min(len), transmit, bytes));
                    self.full |= 1 << at;
                }
            }
            Sent::Failed { trouble, .. } => match trouble.kind {
                TroubleKind::TooLong { .. } => self.endpoint.too_large(path, segment),
                TroubleKind::Refused => self.contacts.nobody(path.peer),
                // The datagrams are lost. They are sent again, or the end of the session is noticed.
                kind => tracing::debug!(peer = %path.peer, %kind, "datagrams could not be sent"),
            },
        }
    }

    /// Counts a datagram that went by a path without a twin. After many in a row that path gets the twin in place of another.
    fn count(&mut self, path: Path) {
        let series = self.series.filter(|(latest, _)| *latest == path).map_or(1, |(_, count)| count.saturating_add(1));
        self.series = Some((path, series));
        // A stranger whose request was answered is not a peer.
        if series != TWIN_AFTER || !self.is_of_a_peer(path) {
            return;
        }
        match self.links.get(usize::from(path.link.0)).map(|link| link.connect(path.peer)) {
            Some(Ok(())) => {
                (self.twin, self.is_pure) = (Some(path), false);
                // A sleeping thread does not know that there is another socket to wait for.
                if let Some(call) = &self.on_gather {
                    call();
                }
            }
            Some(Err(error)) => tracing::debug!(peer = %path.peer, %error, "a path gets no socket of its own"),
            None => {}
        }
    }

    /// Whether the kernel had no room for outgoing datagrams.
    pub fn is_stuck(&self) -> bool {
        self.full != 0
    }
}
