//! What the flight recorder keeps of descriptors that are executed. A record takes longer than a short copy, so short ones are left out.

use super::descriptor::{Kind, Task};
use super::run::{Core, Running};
use super::wire::Name;
use crate::transfer::slot::LEN_MASK;
use doorbell_fabric::Priority;
use doorbell_shm::board::{Record, RecordKind};
use doorbell_shm::clock::now_ns;

/// Descriptors and parts of fewer bytes are not recorded.
const RECORDED: u64 = 4 << 10;

/// The time at which a FIFO's turn began. It is read once a turn, and only for descriptors that are recorded.
#[derive(Default)]
pub struct Clock(u64);

/// The time at which the execution of a descriptor began, in nanoseconds; 0 before that.
#[derive(Default)]
pub struct Began(u64);

impl Running {
    fn is_recorded(&self) -> bool {
        self.body.map_or(self.task.len, |put| put[3] & LEN_MASK) >= RECORDED
    }

    /// Call before its bytes move.
    #[inline]
    pub fn begin(&mut self, clock: &mut Clock) {
        if self.began.0 == 0 && self.is_recorded() {
            if clock.0 == 0 {
                clock.0 = now_ns();
            }
            self.began.0 = clock.0;
        }
    }

    /// Records a part of a put. The last part is recorded with the end.
    pub fn note_part(&self, core: &Core, name: Name, len: u64) {
        if len >= RECORDED && self.moved < self.task.len {
            let record = Record::new(RecordKind::DirectPut).peer(self.task.to.node).placed(name.fifo, name.position);
            core.monitor.record(&record.at(self.moved - len).bytes(len));
        }
    }

    /// Records that it was executed, and when that began.
    #[inline]
    pub fn note_end(&self, core: &Core, priority: Priority, name: Name) {
        if self.is_recorded() {
            self.note(core, priority, name);
        }
    }

    #[cold]
    fn note(&self, core: &Core, priority: Priority, name: Name) {
        let kind = match self.task.kind {
            Kind::DirectPut => RecordKind::DmaPut,
            Kind::Packet => RecordKind::DmaPacket,
            _ => RecordKind::DmaRemoteGet,
        };
        // The put of a remote get has the counters and the length.
        let Task { send, receive, len, .. } = self.body.and_then(|put| Task::decode(&put).ok()).unwrap_or(self.task);
        let counters = [send.map(|(index, _)| index), receive.map(|(index, _)| index)];
        let record = Record::new(kind).peer(self.task.to.node).priority(priority).placed(name.fifo, name.position);
        let took = now_ns().saturating_sub(self.began.0);
        core.monitor.record(&record.counters(counters).at(took).bytes(len));
    }
}
