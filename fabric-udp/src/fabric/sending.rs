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
/// For how many looks a new twin waits at most for its link's own socket to be empty. Strangers may send there all the time.
const TWIN_WAITS: u32 = 512;
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
                (self.twin, self.is_pure, self.twin_waits) = (Some(path), false, TWIN_WAITS);
                // The socket that received last may be a twin, which waits now.
                self.busy = 2 * usize::from(path.link.0);
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

#[cfg(test)]
mod tests {
    use super::super::{About, Change, UdpOptions};
    use super::*;
    use crate::port::{Kind, Port};
    use crate::protocol::LinkId;
    use doorbell_fabric::{Incarnation, NodeId, PacketKind, Payload, Role, Sink, Verdict};
    use std::time::{Duration, Instant};

    struct Count(usize);

    impl Sink for Count {
        fn packet(&mut self, _: NodeId, _: Incarnation, _: Priority, _: &PacketHead, _: Payload<'_>) -> Verdict {
            self.0 += 1;
            Verdict::Taken
        }

        fn damaged(&mut self, node: NodeId, _: Priority, reason: &'static str) {
            panic!("{node}: {reason}");
        }
    }

    fn open(node: u16, options: &UdpOptions) -> (UdpFabric, Box<dyn Port>) {
        let about = About { role: Role::Host, pid: 1, label: String::new(), nonce: 0 };
        let me = (NodeId(node), Incarnation(u32::from(node) + 100));
        UdpFabric::open("twin", me, about, 8, options, Instant::now() + Duration::from_secs(60)).unwrap()
    }

    fn turn(fabric: &mut UdpFabric, count: &mut Count) {
        fabric.poll(count, 64);
        while let Some(Change::Met(node, _)) = fabric.next_change() {
            fabric.accept(node);
        }
    }

    #[test]
    fn datagrams_of_a_new_twin_overtake_none() {
        const BEFORE: usize = 8;
        for port in [Kind::Calls, Kind::Uring] {
            let options = || UdpOptions { port, ..UdpOptions::default() };
            let (mut home, _home_port) = open(0, &UdpOptions { listen: vec![([127, 0, 0, 1], 0).into()], ..options() });
            let joined = UdpOptions { connect: vec![home.address()], ..options() };
            let guest = std::thread::spawn(move || open(1, &joined));
            let (deadline, mut none) = (Instant::now() + Duration::from_secs(60), Count(0));
            while !guest.is_finished() {
                turn(&mut home, &mut none);
            }
            let (mut guest, _guest_port) = guest.join().unwrap();
            let session = loop {
                assert!(Instant::now() < deadline, "no session");
                turn(&mut home, &mut none);
                turn(&mut guest, &mut none);
                if let Some(session) = home.session_by(NodeId(1), Incarnation(101), 0) {
                    break session;
                }
            };
            let head = PacketHead { kind: PacketKind::Whole, tag: 0, sequence: 0, total: 100 };
            let send = |home: &mut UdpFabric| {
                for _ in 0..BEFORE {
                    assert_eq!(home.push(session, Priority::Normal, &head, &[7; 100]), Push::Done);
                    home.release();
                }
            };
            send(&mut home);
            let path = Path { link: LinkId(0), peer: home.address() };
            (0..TWIN_AFTER).for_each(|_| guest.count(path));
            assert!(guest.links[0].twin().is_some());
            send(&mut home);
            let mut count = Count(0);
            while count.0 < 2 * BEFORE || home.endpoint.outstanding(session, Priority::Normal).unwrap().packets > 0 {
                assert!(Instant::now() < deadline, "{} packets came", count.0);
                turn(&mut guest, &mut count);
                turn(&mut home, &mut none);
            }
            assert_eq!(home.endpoint.session_stats(session).unwrap().lost, 0, "{port}");
        }
    }
}
