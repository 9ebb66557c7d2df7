//! An injection FIFO whose descriptors are executed.

use super::descriptor::{Kind, Task};
use super::fifo::Injection;
use super::near::Fault;
use super::recorded::{Clock, RECORDED};
use super::run::{Core, Look, Running, Work};
use super::wire::{Name, Status};
use crate::memory::key::Place;
use crate::message::service::{Outbox, PeerId, Wants};
use doorbell_fabric::Priority;
use doorbell_shm::board::{FIFO_SLOTS, Fifo, Injector, Metric, Next};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most descriptors that are remembered after they were sent.
const SENT_MAX: usize = 4 * FIFO_SLOTS;

/// An open injection FIFO.
pub(super) struct Open {
    pub shared: Arc<Injection>,
    /// The position of the next descriptor that is not running yet.
    pub loaded: u64,
    pub running: VecDeque<Running>,
    /// The positions that other nodes injected, and the names of the descriptors there.
    pub origins: VecDeque<(u64, PeerId, Name)>,
    /// Packets and remote gets that were sent, the oldest first. Their targets may still refuse them.
    pub sent: VecDeque<Sent>,
    /// It closes when it is empty.
    pub closing: bool,
    /// Something of it could not be done for lack of room, or is not done yet.
    pub busy: bool,
}

/// A descriptor that is over here, and perhaps not there.
pub(super) struct Sent {
    pub position: u64,
    pub to: PeerId,
    /// A remote get, which is answered in any case.
    pub is_get: bool,
    /// The FIFO that it names.
    pub fifo: u16,
}

/// A packet that another node waits for.
pub(super) struct Reply {
    pub to: PeerId,
    pub priority: Priority,
    pub name: Name,
    pub bytes: u64,
    pub status: Status,
}

impl Open {
    pub fn new(fifo: Arc<Fifo>) -> Self {
        let loaded = fifo.pending().start;
        let shared = Arc::new(Injection::new(fifo));
        Self {
            shared,
            loaded,
            running: VecDeque::new(),
            origins: VecDeque::new(),
            sent: VecDeque::new(),
            closing: false,
            busy: false,
        }
    }

    /// Whether there may be something to do.
    pub fn is_busy(&self) -> bool {
        !self.running.is_empty() || self.shared.fifo.has(self.loaded)
    }

    pub fn wants(&self) -> Wants {
        if self.busy || self.shared.fifo.has(self.loaded) {
            Wants::Soon
        } else if !self.running.is_empty() {
            Wants::Turns
        } else if self.shared.fifo.facts().injector == Injector::Program {
            // A thread that injects only writes the descriptor.
            Wants::Look
        } else {
            Wants::Nothing
        }
    }

    /// Ends a descriptor that failed: tells the program, or the node that injected it.
    pub fn fail(&mut self, running: &Running, fault: Fault, replies: &mut Vec<Reply>) {
        self.end(running, true);
        self.fault(running.position, running.task.to, fault, replies);
    }

    /// The same for a slot that holds no descriptor.
    pub fn fail_slot(&mut self, position: u64, me: PeerId, status: Status, replies: &mut Vec<Reply>) {
        self.shared.fifo.end(position, 1, 0, true);
        self.fault(position, me, status.into(), replies);
    }

    pub fn fault(&mut self, position: u64, to: PeerId, fault: Fault, replies: &mut Vec<Reply>) {
        let status = match &fault {
            Fault::Status(status) => *status,
            Fault::Error(_) => Status::Unreachable,
        };
        self.tell_origin(position, status, replies);
        let error = match fault {
            Fault::Status(status) => status.error("put", to, 0),
            Fault::Error(error) => error,
        };
        tracing::debug!(fifo = self.shared.fifo.number(), position, %error, "a descriptor failed");
        self.shared.fault(position, error);
    }

    /// Tells the node that injected a descriptor how it ended.
    pub fn tell_origin(&mut self, position: u64, status: Status, replies: &mut Vec<Reply>) {
        if let Some((to, name)) = self.take_origin(position) {
            replies.push(Reply { to, priority: self.shared.fifo.facts().priority, name, bytes: 0, status });
        }
    }

    /// A descriptor is over.
    pub fn end(&mut self, running: &Running, faulty: bool) {
        let slots = if running.released { 0 } else { running.slots() };
        self.shared.detached.fetch_sub(usize::from(running.released), Ordering::Relaxed);
        self.shared.fifo.end(running.position, slots, running.moved, faulty);
    }

    /// Frees the oldest slots of a full ring. Their descriptors go on without, so that one that waits for its target holds up no
    /// other.
    pub fn release_oldest(&mut self) {
        while self.shared.fifo.depth() == FIFO_SLOTS && self.running.len() < 2 * FIFO_SLOTS {
            let oldest = self.shared.fifo.oldest();
            let Some(running) = self.running.iter_mut().find(|running| running.position == oldest && !running.released) else {
                return;
            };
            running.released = true;
            self.shared.detached.fetch_add(1, Ordering::Relaxed);
            self.shared.fifo.end(oldest, running.slots(), 0, false);
        }
    }

    pub fn take_origin(&mut self, position: u64) -> Option<(PeerId, Name)> {
        let at = self.origins.iter().position(|(of, ..)| *of == position)?;
        self.origins.remove(at).map(|(_, from, name)| (from, name))
    }

    /// Makes new descriptors run.
    pub fn load(&mut self, core: &Core, replies: &mut Vec<Reply>) -> u64 {
        let mut faults = 0;
        loop {
            let position = self.loaded;
            let words = match self.shared.fifo.read(position) {
                Next::Nothing => return faults,
                Next::Descriptor(words) => words,
                Next::Overwritten => {
                    self.loaded += 1;
                    faults += 1;
                    self.fail_slot(position, core.me, Status::Overwritten, replies);
                    continue;
                }
            };
            let is_get = Kind::from_repr(words[0] as u8) == Some(Kind::RemoteGet);
            let body = match is_get.then(|| self.shared.fifo.read(position + 1)) {
                Some(Next::Descriptor(body)) => Some(body),
                _ => None,
            };
            match Running::new(position, &words, body) {
                Ok(running) => {
                    self.loaded += running.slots() as u64;
                    self.running.push_back(running);
                    // What the tail says can wait: its cache line is on its way from the thread that injects.
                    if !self.shared.fifo.shows(self.loaded) {
                        return faults;
                    }
                }
                Err(status) => {
                    self.loaded += 1;
                    faults += 1;
                    self.fail_slot(position, core.me, status, replies);
                }
            }
        }
    }

    /// Executes the next descriptor at once, if it is a short put between regions that were used last and nothing else runs.
    /// Returns its bytes. It spares the record of a running descriptor, which takes longer than such a put.
    fn short_put(&mut self, core: &mut Core) -> Option<u64> {
        if !self.running.is_empty() || !self.origins.is_empty() {
            return None;
        }
        let position = self.loaded;
        let Next::Descriptor(words) = self.shared.fifo.read(position) else { return None };
        let task = Task::decode(&words).ok().filter(|task| task.kind == Kind::DirectPut && task.receive.is_none())?;
        let (to, (number, offset, secret), bytes) = (task.to, task.target, task.len);
        let place = Place { node: to.node, incarnation: to.incarnation, number, offset, bytes, secret };
        if bytes >= RECORDED || !core.lately.copy(task.source, &place) {
            return None;
        }
        core.count(task.send, bytes);
        core.monitor.tallies.add(Metric::BytesPut, bytes);
        self.loaded += 1;
        self.shared.fifo.end(position, 1, bytes, false);
        Some(bytes)
    }

    /// Executes descriptors. Returns the work done, and how many were executed and failed.
    pub fn run(
        &mut self,
        core: &mut Core,
        out: &mut Outbox<'_>,
        budget: &mut u64,
        replies: &mut Vec<Reply>,
    ) -> (usize, u64, u64) {
        let (mut work, mut executed) = (0, 0);
        // Bounded: a thread that injects as fast as this executes must not keep the engine.
        for _ in 0..FIFO_SLOTS {
            let Some(bytes) = (*budget > 0).then(|| self.short_put(core)).flatten() else { break };
            *budget = budget.saturating_sub(bytes);
            (work, executed) = (work + 1, executed + 1);
            if !self.shared.fifo.shows(self.loaded) {
                self.busy = false;
                return (work, executed, 0);
            }
        }
        let mut faults = self.load(core, replies);
        work += faults as usize;
        let (priority, number) = (self.shared.fifo.facts().priority, self.shared.fifo.number());
        let mut behind: Vec<PeerId> = Vec::new();
        let mut clock = Clock::default();
        let mut at = 0;
        self.busy = false;
        while let Some(running) = self.running.get_mut(at) {
            let to = running.task.to;
            // Order is kept for each target.
            if *budget == 0 || behind.contains(&to) {
                self.busy = true;
                at += 1;
                continue;
            }
            let (before, position) = (running.moved, running.position);
            let name = Name::new(number, position);
            running.begin(&mut clock);
            let look = running.step(&mut Work { core, out, priority, name, budget });
            work += usize::from(running.moved > before);
            match look {
                Look::More => self.busy = true,
                Look::Waiting => at += 1,
                Look::Blocked => {
                    self.busy = true;
                    behind.push(to);
                    at += 1;
                }
                Look::Over => {
                    let Some(running) = self.running.remove(at) else { continue };
                    self.end(&running, false);
                    running.note_end(core, priority, name);
                    self.tell_origin(position, Status::Fine, replies);
                    if running.task.kind != Kind::DirectPut {
                        let is_get = running.task.kind == Kind::RemoteGet;
                        self.sent.push_back(Sent { position, to, is_get, fifo: running.task.fifo });
                        if self.sent.len() > SENT_MAX {
                            self.sent.pop_front();
                        }
                    }
                    (work, executed) = (work + 1, executed + 1);
                }
                Look::Failed(fault) => {
                    let Some(running) = self.running.remove(at) else { continue };
                    self.fail(&running, fault, replies);
                    (work, faults) = (work + 1, faults + 1);
                }
            }
        }
        self.release_oldest();
        (work, executed, faults)
    }
}
