//! Outgoing datagrams: the sessions take turns, and each fills a run.

use super::Endpoint;
use crate::protocol::cipher::CHECK;
use crate::protocol::lent::Middle;
use crate::protocol::session::Session;
use crate::protocol::{Path, Source, Time, Transmit};
use std::collections::VecDeque;

/// The most datagrams of one run, as the kernel takes them.
const SEGMENTS_MAX: usize = 64;
/// The most bytes of one run, as the kernel takes them.
const RUN_MAX: usize = 65_507;

impl Endpoint {
    /// Fills `buf` with the next datagrams, and returns their destination. `buf` must hold 65 536 bytes. Call it until there are
    /// none.
    pub fn poll_transmit<S: Source>(&mut self, now: Time, buf: &mut [u8], source: &mut S) -> Option<Transmit> {
        self.next_transmit(now, buf, source, false, 0)
    }

    /// Like [`poll_transmit`](Self::poll_transmit), but a long packet, and bytes of a transfer, may stay where they lie. The
    /// datagram is then in [`pieces`](Self::pieces), until the next call of another method. Datagrams of links that have no room
    /// now are kept: `full` has a bit for each link, the lowest for the first. (A Challenge to another path of a session may be
    /// returned nevertheless.)
    pub fn poll_pieces<S: Source>(&mut self, now: Time, buf: &mut [u8], full: u32, source: &mut S) -> Option<Transmit> {
        self.next_transmit(now, buf, source, true, full)
    }

    /// The last datagram of [`poll_pieces`](Self::poll_pieces) in three pieces, if it does not lie in the buffer as a whole.
    pub fn pieces<'a>(&'a self, transmit: &Transmit, buf: &'a [u8]) -> Option<(&'a [u8], Middle<'a>, &'a [u8])> {
        let (index, lent) = transmit.lent?;
        let session = self.sessions.at(index)?;
        let (front, tag) = buf[..transmit.len - lent.len as usize].split_last_chunk::<CHECK>()?;
        Some((front, session.lent(lent), tag))
    }

    /// Copies the parts of a datagram that lie elsewhere into the buffer, so that it can be sent later. `None`: they are gone,
    /// and the datagram counts as lost.
    pub fn joined<S: Source>(&self, transmit: Transmit, buf: &mut [u8], source: &mut S) -> Option<Transmit> {
        if let Some((index, lent)) = transmit.lent {
            let (len, end) = (lent.len as usize, transmit.len - lent.len as usize);
            buf.copy_within(end - CHECK..end, end - CHECK + len);
            let into = &mut buf[end - CHECK..][..len];
            match self.sessions.at(index)?.lent(lent) {
                Middle::Lane(bytes) => into.copy_from_slice(bytes),
                Middle::Transfer { session, transfer, offset, .. } => {
                    source.read(session, transfer, offset, into).then_some(())?;
                }
            }
        }
        Some(Transmit { lent: None, ..transmit })
    }

    fn next_transmit<S: Source>(&mut self, now: Time, buf: &mut [u8], source: &mut S, lend: bool, full: u32) -> Option<Transmit> {
        assert!(buf.len() >= RUN_MAX, "the buffer must hold the largest datagram");
        if now >= self.earliest {
            self.handle_timeout(now);
        }
        let is_full = |path: &Path| 1u32.checked_shl(path.link.0.into()).is_some_and(|link| full & link != 0);
        let first = |queue: &mut VecDeque<(Path, Vec<u8>)>| {
            let at = queue.iter().position(|(path, _)| !is_full(path))?;
            queue.remove(at)
        };
        if let Some((path, datagram)) = first(&mut self.requests).or_else(|| first(&mut self.answers)) {
            buf[..datagram.len()].copy_from_slice(&datagram);
            self.stats.datagrams_out += 1;
            self.stats.bytes_out += datagram.len() as u64;
            return Some(Transmit { path, len: datagram.len(), segment: datagram.len(), lent: None });
        }
        for _ in 0..self.to_send.len() {
            let Some(index) = self.to_send.pop_front() else { break };
            let Some(session) = self.sessions.get_mut(index) else { continue };
            if is_full(&session.path) {
                self.to_send.push_back(index);
                continue;
            }
            session.queued = false;
            let made = fill(now, (index, session), buf, source, lend);
            self.after(now, index);
            if let Some((transmit, count)) = made {
                self.stats.datagrams_out += count;
                self.stats.bytes_out += transmit.len as u64;
                return Some(transmit);
            }
            // The session may want to send but not be allowed to; the event that allows it lists it again.
            if let Some(session) = self.sessions.get_mut(index)
                && session.queued
            {
                session.queued = false;
                self.to_send.pop_back();
            }
        }
        None
    }

    /// The local system refused to send a datagram of `size` bytes by this path, because it was too large.
    pub fn too_large(&mut self, path: Path, size: usize) {
        self.sessions.sessions_mut().for_each(|session| session.too_large(path, size));
    }
}

/// Fills a run with datagrams of one session.
#[inline]
fn fill<S: Source>(
    now: Time,
    (index, session): (usize, &mut Session),
    buf: &mut [u8],
    source: &mut S,
    lend: bool,
) -> Option<(Transmit, u64)> {
    let first = session.transmit(now, buf, None, lend, source)?;
    if let Some(lent) = first.lent {
        let len = first.len + lent.len as usize;
        return Some((Transmit { path: first.to, len, segment: len, lent: Some((index, lent)) }, 1));
    }
    let segment = first.len;
    let (mut len, mut count) = (segment, 1);
    if !first.alone {
        while count < SEGMENTS_MAX && len + segment <= RUN_MAX && session.has_more() {
            let Some(next) = session.transmit(now, &mut buf[len..], Some(segment), false, source) else { break };
            len += next.len;
            count += 1;
            if next.len < segment {
                break;
            }
        }
    }
    Some((Transmit { path: first.to, len, segment, lent: None }, count as u64))
}
