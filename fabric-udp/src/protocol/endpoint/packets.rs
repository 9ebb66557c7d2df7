//! Packets: from the driver into the lanes, and out of them to the driver.

use super::Endpoint;
use crate::protocol::lane::LaneIn;
use crate::protocol::session::Session;
use crate::protocol::{SessionId, Time};
use doorbell_fabric::{LinkDown, PacketHead, Priority, Push, Sink};

impl Endpoint {
    /// Puts one packet on a lane. `Full`: the target or the network takes no more now. `bytes` holds at most
    /// [`packet_bytes`](Self::packet_bytes) bytes; a size that was allowed once stays allowed. `Down`: the session has ended or
    /// is closing.
    ///
    /// # Panics
    /// There are more than 65 535 bytes.
    #[inline]
    pub fn push(&mut self, now: Time, session: SessionId, priority: Priority, head: &PacketHead, bytes: &[u8]) -> Push {
        let Some((index, session)) = self.sessions.live(session) else { return Push::Down(LinkDown::Damaged) };
        let pushed = session.push(now, priority, head, bytes);
        if pushed == Push::Done && !session.queued {
            session.queued = true;
            self.to_send.push_back(index);
        }
        pushed
    }

    /// The most bytes of one packet of a session at this time; zero if the session has ended.
    #[inline]
    pub fn packet_bytes(&self, session: SessionId) -> usize {
        self.sessions.peek(session).map_or(0, Session::packet_bytes)
    }

    /// The bytes of packets that a lane of a session holds at least; zero if the session has ended.
    pub fn lane_bytes(&self, session: SessionId) -> usize {
        self.sessions.peek(session).map_or(0, |session| session.cargo.lanes_out[0].bytes())
    }

    /// Whether `len` bytes can be pushed now, in packets of `packet` bytes.
    pub fn has_room(&self, session: SessionId, priority: Priority, len: usize, packet: usize) -> bool {
        self.sessions.peek(session).is_some_and(|session| session.cargo.lanes_out[priority.index()].has_room(len, packet))
    }

    /// Whether the target has refused further packets of this lane until it asks for some.
    #[inline]
    pub fn refused(&self, session: SessionId, priority: Priority) -> bool {
        self.sessions.peek(session).is_some_and(|session| session.cargo.lanes_out[priority.index()].refused)
    }

    /// Whether packets wait that the driver neither refused nor put off.
    pub fn has_ready(&self) -> bool {
        self.to_deliver
            .iter()
            .any(|index| self.sessions.at(*index).is_some_and(|session| session.cargo.lanes_in.iter().any(LaneIn::is_wanted)))
    }

    /// Whether any waiting packets were refused by the driver.
    pub fn refusing(&self) -> bool {
        let refuses = |session: &Session| session.cargo.lanes_in.iter().any(|lane| lane.is_ready() && lane.refused);
        self.to_deliver.iter().any(|index| self.sessions.at(*index).is_some_and(refuses))
    }

    /// Whether the driver put off all waiting packets of a session.
    pub fn is_put_off(&self, session: SessionId) -> bool {
        let lanes = self.sessions.peek(session).map(|session| &session.cargo.lanes_in);
        lanes.is_none_or(|lanes| lanes.iter().all(|lane| !lane.is_ready() || lane.later))
    }

    /// The driver may now want packets that it put off ([`Verdict::Later`](doorbell_fabric::Verdict)). Each
    /// [`deliver`](Self::deliver) offers them anyway; this makes [`has_ready`](Self::has_ready) count them.
    pub fn try_again(&mut self) {
        for index in &self.to_deliver {
            if let Some(session) = self.sessions.get_mut(*index) {
                session.cargo.lanes_in.iter_mut().for_each(|lane| lane.later = false);
            }
        }
    }

    /// Gives the driver at most `budget` waiting packets that it had refused or wanted to return to. Returns how many it took.
    pub fn deliver<S: Sink>(&mut self, now: Time, sink: &mut S, budget: usize) -> usize {
        let mut left = budget;
        for _ in 0..self.to_deliver.len() {
            let Some(&index) = self.to_deliver.front() else { break };
            let Some(session) = self.sessions.get_mut(index) else {
                self.to_deliver.pop_front();
                continue;
            };
            // The session stays listed meanwhile, because the driver may panic.
            let stopped = session.deliver(sink, &mut left);
            session.listed = false;
            self.to_deliver.pop_front();
            self.after(now, index);
            if stopped || left == 0 {
                break;
            }
        }
        budget - left
    }
}
