//! What goes out: packets that wait for others, datagrams that the kernel has no room for, and paths with a socket of their own.

use super::{BytesOut, RUN_ROOM, UdpFabric};
use crate::Run;
use crate::port::{Sent, TroubleKind};
use crate::protocol::{Middle, Path, SessionId, Time, TransferId, Transmit};
use doorbell_fabric::{PacketHead, Priority, Push};
use std::ops::Range;
use std::sync::Arc;

/// Datagrams in a row by one path after which it has a socket of its own.
const TWIN_AFTER: u32 = 256;
/// How long there may be no room for what is to go by one path before the others go on without it, in nanoseconds: longer than a run takes on any
/// usual network.
const JAMMED_AFTER: u64 = 25_000_000;

/// What waits for room in the kernel on one link.
#[derive(Default)]
pub(super) struct Way {
    /// From where on, of which datagrams, and the buffer in which they are.
    unsent: Option<(usize, Transmit, Box<[u8]>)>,
    /// Another buffer, once there was one.
    spare: Option<Box<[u8]>>,
    /// The path for which the kernel has no room, and since when.
    jam: Option<(Path, Time)>,
}

impl Way {
    /// Whether there has been no room for a path for so long, as for one whose cable is gone, that the others should not wait for it. What is to go
    /// there is lost, then.
    fn is_jammed(&mut self, now: Time, path: Path) -> bool {
        let since = self.jam.filter(|(jammed, _)| *jammed == path).map_or(now, |(_, since)| since);
        self.jam = Some((path, since));
        now - since >= JAMMED_AFTER
    }
}

impl UdpFabric {
    /// Puts one packet on a lane, and sends it; or lets it wait for others, if they follow one another closely.
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
            // Room may come of it, if there was none.
            self.flush(now);
            self.gather.sent(self.now());
        }
        push
    }

    /// Puts one packet on a lane that goes with those that follow: [`release`](Self::release) sends them, or whoever comes when they are due.
    pub(crate) fn push_held(&mut self, session: SessionId, priority: Priority, head: &PacketHead, bytes: &[u8]) -> Push {
        // A reading of the clock costs as much as the rest, and those that are held wait for no time worth the name.
        let now = self.gather.held_since().unwrap_or_else(|| self.now());
        let push = self.endpoint.push(now, session, priority, head, bytes);
        if push == Push::Done {
            self.gather.hold(now, bytes.len());
        } else {
            self.flush(self.now());
        }
        push
    }

    /// Sends what was held.
    pub fn release(&mut self) {
        if self.gather.due().is_some() {
            self.flush(self.now());
        }
    }

    /// Sends a part of what the peer expects, `total` bytes in all. False if it can't be: the peer never named it so, or it was begun before.
    pub(crate) fn begin_transfer(
        &mut self,
        name: (SessionId, TransferId),
        part: (Range<u64>, u64),
        priority: Priority,
        from: Arc<dyn BytesOut>,
    ) -> bool {
        let now = self.now();
        let begun = self.transfers.begin(&mut self.endpoint, now, name, part, priority, from);
        self.flush(now);
        begun
    }

    /// Gives the kernel what is to be sent, as far as it has room. A link that has none holds up no other.
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
        while let Some(transmit) = self.endpoint.poll_pieces_but(now, &mut self.out, self.full, &mut self.transfers) {
            self.send(now, 0, transmit);
        }
    }

    /// Gives the kernel what is in the buffer from `from` on, or keeps it until there is room.
    fn send(&mut self, now: Time, from: usize, transmit: Transmit) {
        let Transmit { path, len, segment, .. } = transmit;
        let at = usize::from(path.link.0);
        let Some(link) = self.links.get(at) else { return };
        let direct = if self.twin == Some(path) { link.twin().unwrap_or(link) } else { link };
        let sent = match self.endpoint.pieces(&transmit, &self.out) {
            Some((front, Middle::Lane(bytes), tag)) => direct.send_pieces(path.peer, [front, bytes, tag]),
            Some((front, Middle::Transfer { session, transfer, offset, len }, tag)) => {
                let mut sent = Sent::Sent;
                // Bytes that are gone meanwhile are as good as lost.
                self.transfers.lend((session, transfer), offset, len, &mut |bytes| {
                    sent = direct.send_pieces(path.peer, [front, bytes, tag]);
                });
                sent
            }
            None => direct.send(&Run { peer: path.peer, bytes: &mut self.out[from..len], segment }),
        };
        match sent {
            Sent::Sent if self.twin == Some(path) => self.series = None,
            Sent::Sent => self.count(path),
            _ => {}
        }
        let way = &mut self.ways[at];
        match sent {
            Sent::Sent if way.jam.is_none() => {}
            Sent::Sent => way.jam = way.jam.filter(|(jammed, _)| *jammed != path),
            Sent::Full { .. } if way.is_jammed(now, path) => {}
            // A question to another path, where something waits before it: it is asked again.
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
                // Lost: it is sent again, or its end is noticed.
                kind => tracing::debug!(peer = %path.peer, %kind, "datagrams could not be sent"),
            },
        }
    }

    /// A datagram went by a path without a twin. After many in a row it gets one, in place of another's.
    fn count(&mut self, path: Path) {
        let series = self.series.filter(|(latest, _)| *latest == path).map_or(1, |(_, count)| count.saturating_add(1));
        self.series = Some((path, series));
        // A stranger that asks and is answered is no peer.
        if series != TWIN_AFTER || !self.is_of_a_peer(path) {
            return;
        }
        match self.links.get(usize::from(path.link.0)).map(|link| link.connect(path.peer)) {
            Some(Ok(())) => {
                (self.twin, self.is_pure) = (Some(path), false);
                // Whoever sleeps does not know that there is another socket to wait for.
                if let Some(call) = &self.on_gather {
                    call();
                }
            }
            Some(Err(error)) => tracing::debug!(peer = %path.peer, %error, "a path gets no socket of its own"),
            None => {}
        }
    }

    /// Whether the kernel had no room for what is to be sent.
    pub fn is_stuck(&self) -> bool {
        self.full != 0
    }
}
