//! Descriptors that are being executed.

use super::descriptor::{Kind, Task};
use super::near::{Fault, Lately, Span};
use super::recorded::Began;
use super::wire::{Name, Status, Step, put, tag};
use crate::board::CounterKey;
use crate::board::monitor::Monitor;
use crate::memory::key::Place;
use crate::memory::table::RegionTable;
use crate::message::service::{Outbox, PeerId, Pushed};
use doorbell_fabric::Priority;
use doorbell_shm::board::{DescriptorWords, Metric, Use};
use doorbell_shm::domain::Membership;
use std::sync::Arc;

/// The most bytes that are copied at once.
const CHUNK: u64 = 64 << 10;
/// Words before the bytes of a packet for a reception FIFO, and of a part of a put.
pub const PACKET_WORDS: usize = 5;
pub const PUT_WORDS: usize = 4;

/// What the execution of descriptors needs of the node.
pub struct Core {
    pub me: PeerId,
    pub membership: Arc<Membership>,
    pub regions: Arc<RegionTable>,
    pub monitor: Arc<Monitor>,
    /// The memory that was used last.
    pub lately: Lately,
    /// The buffer in which packets are put together.
    pub room: Vec<u8>,
}

/// What a descriptor gets when it is worked on.
pub struct Work<'a, 'o> {
    pub core: &'a mut Core,
    pub out: &'a mut Outbox<'o>,
    /// The priority of its FIFO.
    pub priority: Priority,
    /// Its name in packets.
    pub name: Name,
    /// Bytes that may still be moved in this turn.
    pub budget: &'a mut u64,
}

/// A descriptor that is being executed.
pub struct Running {
    /// Its position in the FIFO.
    pub position: u64,
    pub task: Task,
    /// The put of a remote get.
    pub(super) body: Option<DescriptorWords>,
    /// The secrets of a remote get.
    secrets: [u64; 2],
    source: Option<Span>,
    target: Option<Span>,
    /// Bytes that have left the source.
    pub moved: u64,
    /// Bytes that a target without shared memory has reported to be in place.
    pub stored: u64,
    /// Bytes that were not reported to the receive counter yet.
    owed: u64,
    far: bool,
    /// It goes on without a slot, because the ring was full behind it.
    pub released: bool,
    /// When its first bytes moved, if it is recorded.
    pub began: Began,
}

/// The state of a descriptor after some work on it.
pub enum Look {
    /// It was executed.
    Over,
    /// There is more to do.
    More,
    /// All is on its way; the target has to reply.
    Waiting,
    /// There is no room in the lane.
    Blocked,
    /// It can't be executed.
    Failed(Fault),
}

impl Running {
    /// Decodes a descriptor. `body`: the slot behind it, which a remote get needs.
    pub fn new(position: u64, words: &DescriptorWords, body: Option<DescriptorWords>) -> Result<Self, Status> {
        let mut task = Task::decode(words)?;
        let secrets = [words[5], words[6]];
        if task.kind == Kind::Body {
            return Err(Status::Malformed);
        }
        if task.kind == Kind::RemoteGet {
            let put = Task::decode(&body.ok_or(Status::Malformed)?)?;
            if put.kind != Kind::Body {
                return Err(Status::Malformed);
            }
            (task.send, task.receive, task.len) = (None, None, 0);
        }
        let body = body.filter(|_| task.kind == Kind::RemoteGet);
        let (source, target) = (None, None);
        let began = Began::default();
        Ok(Self {
            position,
            task,
            body,
            secrets,
            source,
            target,
            moved: 0,
            stored: 0,
            owed: 0,
            far: false,
            released: false,
            began,
        })
    }

    /// The number of its slots.
    pub fn slots(&self) -> usize {
        1 + usize::from(self.body.is_some())
    }

    fn left(&self) -> u64 {
        self.task.len - self.moved
    }

    /// Notes bytes that have left the source.
    fn count(&mut self, core: &Core, bytes: u64) {
        self.moved += bytes;
        core.count(self.task.send, bytes);
    }

    /// Does some of it, within the budget.
    pub fn step(&mut self, work: &mut Work<'_, '_>) -> Look {
        let done = match self.task.kind {
            Kind::DirectPut => self.step_put(work),
            Kind::Packet => self.step_packet(work),
            Kind::RemoteGet => self.step_remote_get(work),
            Kind::Rts | Kind::Rendezvous | Kind::Body => Err(Status::Malformed.into()),
        };
        done.unwrap_or_else(Look::Failed)
    }

    fn open_source(&mut self, core: &mut Core) -> Result<(), Fault> {
        if self.source.is_none() {
            let (number, at) = self.task.source;
            self.source = Some(core.lately.own(&core.regions, number, at, self.task.len)?);
        }
        Ok(())
    }

    fn step_put(&mut self, work: &mut Work<'_, '_>) -> Result<Look, Fault> {
        let Work { core, out, budget, name, .. } = &mut *work;
        let to = self.task.to;
        self.open_source(core)?;
        if self.target.is_none() && !self.far {
            let (number, offset, secret) = self.task.target;
            if to == core.me {
                self.target = Some(Span::own(&core.regions, number, offset, self.task.len, Some((secret, true)))?);
            } else if !core.lately.has(to) && out.is_live(to) && out.inbox(to).is_none() {
                self.far = true;
            } else {
                let (node, incarnation, bytes) = (to.node, to.incarnation, self.task.len);
                let place = Place { node, incarnation, number, offset, bytes, secret };
                self.target = Some(core.lately.of_peer(&core.regions, &core.membership, &place)?);
            }
        }
        if self.far {
            return self.step_far_put(work);
        }
        let (Some(source), Some(target)) = (&self.source, &self.target) else { return Err(Status::Malformed.into()) };
        if self.left() > 0 {
            if !target.is_live() {
                return Err(Status::Stale.into());
            }
            let len = self.left().min(CHUNK).min((**budget).max(1));
            // SAFETY: both were made with the whole length, and `moved + len` is at most that.
            unsafe { source.copy_to(target, self.moved, len) };
            if source.is_cut() || target.is_cut() {
                return Err(Status::Cut.into());
            }
            **budget = budget.saturating_sub(len);
            self.count(core, len);
            self.owed += len;
            self.note_part(core, *name, len);
            core.monitor.tallies.add(Metric::BytesPut, len);
        }
        let is_told = self.pay(work)?;
        Ok(match self.left() {
            0 if is_told => Look::Over,
            0 => Look::Blocked,
            _ => Look::More,
        })
    }

    /// Reports moved bytes to the receive counter. False if there is no room.
    fn pay(&mut self, work: &mut Work<'_, '_>) -> Result<bool, Fault> {
        let Some(key) = self.task.receive_key().filter(|_| self.owed > 0) else { return Ok(true) };
        if !work.core.lower(work.out, work.priority, key, self.owed)? {
            return Ok(false);
        }
        self.owed = 0;
        Ok(true)
    }

    /// A put into a node that shares no memory with this one: in packets, each with the key. The target replies to each.
    fn step_far_put(&mut self, work: &mut Work<'_, '_>) -> Result<Look, Fault> {
        let (number, offset, secret) = self.task.target;
        let (index, receive_secret) = self.task.receive.map_or((0, 0), |(index, secret)| (u64::from(index) + 1, secret));
        while self.left() > 0 && *work.budget > 0 {
            let at = self.moved;
            let words = [u64::from(number) | index << 32, offset.wrapping_add(at), secret, receive_secret];
            if !self.push_bytes(work, Step::Put, &words)? {
                return Ok(Look::Blocked);
            }
        }
        Ok(match self.left() {
            0 if self.stored >= self.task.len => Look::Over,
            0 => Look::Waiting,
            _ => Look::More,
        })
    }

    /// Packets for a reception FIFO.
    fn step_packet(&mut self, work: &mut Work<'_, '_>) -> Result<Look, Fault> {
        self.open_source(work.core)?;
        let (index, secret) = self.task.receive.map_or((0, 0), |(index, secret)| (u64::from(index) + 1, secret));
        let fifo = u64::from(self.task.fifo) | index << 16;
        loop {
            let words = [self.task.target.1, self.moved, self.task.len, fifo, secret];
            if !self.push_bytes(work, Step::Packet, &words)? {
                return Ok(Look::Blocked);
            }
            if self.left() == 0 {
                return Ok(Look::Over);
            }
            if *work.budget == 0 {
                return Ok(Look::More);
            }
        }
    }

    /// Sends one packet with the next bytes of the source. False if there is no room.
    fn push_bytes(&mut self, work: &mut Work<'_, '_>, step: Step, words: &[u64]) -> Result<bool, Fault> {
        let Work { core, out, priority, name, budget } = work;
        let (to, priority) = (self.task.to, *priority);
        let most = match out.packet_bytes(to, priority) {
            Ok(most) => most.saturating_sub(8 * words.len()) as u64,
            Err(Pushed::Gone) => return Err(Fault::Error(out.why_gone())),
            Err(_) => return Ok(false),
        };
        let len = self.left().min(most);
        // Asked first, so that nothing is copied in vain.
        if len == 0 && self.left() > 0 || !out.has_room(to, priority, 8 * words.len() + len as usize) {
            return Ok(false);
        }
        let Some(source) = &self.source else { return Ok(false) };
        core.room.clear();
        put(&mut core.room, words);
        // SAFETY: the source was made with the whole length, and `moved + len` is at most that.
        unsafe { source.append_to(&mut core.room, self.moved, len as usize) };
        if source.is_cut() {
            return Err(Status::Cut.into());
        }
        match out.push(to, priority, tag(step, *name), &core.room) {
            Pushed::Done => {}
            Pushed::Gone => return Err(Fault::Error(out.why_gone())),
            Pushed::Full | Pushed::TooLong => return Ok(false),
        }
        self.count(core, len);
        **budget = budget.saturating_sub(len);
        Ok(true)
    }

    fn step_remote_get(&mut self, work: &mut Work<'_, '_>) -> Result<Look, Fault> {
        let Work { core, out, priority, name, .. } = work;
        let Some(mut body) = self.body else { return Err(Status::Malformed.into()) };
        body[0] = body[0] & !0xff | Kind::DirectPut as u64;
        core.room.clear();
        put(&mut core.room, &body);
        put(&mut core.room, &self.secrets);
        put(&mut core.room, &[u64::from(self.task.fifo)]);
        match out.push(self.task.to, *priority, tag(Step::RemoteGet, *name), &core.room) {
            Pushed::Done => {
                core.monitor.tallies.add(Metric::RemoteGets, 1);
                Ok(Look::Over)
            }
            Pushed::Gone => Err(Fault::Error(out.why_gone())),
            Pushed::Full | Pushed::TooLong => Ok(Look::Blocked),
        }
    }
}

impl Core {
    /// Lowers the send counter of a descriptor by bytes that have left the source.
    pub fn count(&self, send: Option<(u16, u32)>, bytes: u64) {
        if let Some((index, low)) = send.filter(|_| bytes > 0) {
            // A use that has ended meanwhile is not counted.
            let _ = self.monitor.counters.lower(index.into(), Use::EndsIn(low), bytes);
        }
    }

    /// Lowers a counter of this or another node. False if there is no room for the packet.
    pub fn lower(&mut self, out: &mut Outbox<'_>, priority: Priority, key: CounterKey, bytes: u64) -> Result<bool, Fault> {
        let to = (key.node, key.incarnation).into();
        if to == self.me {
            let _ = self.monitor.counters.lower_by_key(&key, bytes);
            return Ok(true);
        }
        self.room.clear();
        put(&mut self.room, &[key.index.into(), key.secret, bytes]);
        match out.push(to, priority, tag(Step::Lower, Name::new(0, 0)), &self.room) {
            Pushed::Done => Ok(true),
            Pushed::Gone => Err(Fault::Error(out.why_gone())),
            Pushed::Full | Pushed::TooLong => Ok(false),
        }
    }
}
