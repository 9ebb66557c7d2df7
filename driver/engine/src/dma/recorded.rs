//! What the flight recorder keeps of descriptors that are executed. A record takes longer than a short copy, so short ones are left out.

use super::descriptor::{Kind, Task};
use super::run::{Core, Running};
use super::wire::Name;
use crate::transfer::slot::LEN_MASK;
use doorbell_fabric::Priority;
use doorbell_shm::board::{Record, RecordKind};
use doorbell_shm::clock::now_ns;

/// Descriptors and parts of fewer bytes are not recorded.
pub const RECORDED: u64 = 4 << 10;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dma::{Descriptor, InjectionFifo};
    use crate::{Node, Progress, Space};
    use std::time::{Duration, Instant};

    /// Three nodes: the second puts for the first into the third. `len` bytes are moved three times: by put, remote get and packet.
    fn executed(len: usize) -> [Vec<Record>; 3] {
        let (space, soon) = (Space::heap(), Instant::now() + Duration::from_secs(60));
        let join = |_| Node::builder("recorded").space(space.clone()).progress(Progress::Inline).join().unwrap();
        let nodes: [Node; 3] = std::array::from_fn(join);
        let [a, b, c] = &nodes;
        let [at_a, at_b, at_c] = [a, b, c].map(|node| node.region::<u8>(len).unwrap());
        // The first counter of the third node is another.
        let (sent, _other, arrived) = (b.counter().unwrap(), c.counter().unwrap(), c.counter().unwrap());
        sent.init(len as u64).unwrap();
        arrived.init(3 * len as u64).unwrap();
        let packets = crate::dma::ReceptionFifo::builder(c).capacity(4 * len).open().unwrap();
        let fifo = InjectionFifo::builder(a).priority(Priority::Low).open().unwrap();
        let of_b = Descriptor::put(at_b.read_key(), at_c.key()).unwrap().send_counter(sent.key());
        for descriptor in [
            Descriptor::put(at_a.key(), at_c.key()).unwrap(),
            Descriptor::remote_get(b.remote_get_fifo(), of_b).unwrap(),
            Descriptor::packet(at_a.key(), packets.key(), 1).unwrap(),
        ] {
            fifo.inject(&descriptor.receive_counter(arrived.key())).unwrap();
        }
        while !arrived.is_zero() || fifo.depth() > 0 {
            assert!(Instant::now() < soon, "{fifo:?} {arrived:?}");
            for node in &nodes {
                node.progress().unwrap();
            }
        }
        let records = |node: &Node| node.shared().monitor().home().board().records();
        [a, b, c].map(|node| records(node).into_iter().map(|recorded| recorded.record).collect())
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many bytes for Miri")]
    fn descriptors_are_recorded_with_their_place_and_counters() {
        let len = 300_000;
        let [a, b, c] = executed(len);
        let kinds = [RecordKind::DmaPut, RecordKind::DmaRemoteGet, RecordKind::DmaPacket];
        let found: Vec<&Record> = a.iter().filter(|record| kinds.contains(&record.kind)).collect();
        let mut found: Vec<_> = found.into_iter().map(|record| (record.place(), record.kind, record)).collect();
        found.sort_by_key(|(place, ..)| *place);
        // A remote get takes two places.
        let expected = [(kinds[0], 0, 2, None), (kinds[1], 1, 1, Some(0)), (kinds[2], 3, 2, None)];
        assert_eq!(found.len(), expected.len(), "{a:?}");
        for (((fifo, position), kind, record), (its, at, peer, send)) in found.into_iter().zip(expected) {
            assert_eq!((kind, position, record.peer.map(|peer| peer.0)), (its, at, Some(peer)));
            assert_eq!((record.priority, record.counters, record.bytes), (Some(Priority::Low), [send, Some(1)], len as u64));
            assert!(fifo >= 4, "the FIFO of a program: {fifo}");
        }
        let [put] = b.iter().filter(|record| record.kind == RecordKind::DmaPut).collect::<Vec<_>>()[..] else {
            panic!("{b:?}");
        };
        assert_eq!((put.place(), put.peer.map(|peer| peer.0), put.counters), ((0, 0), Some(2), [Some(0), Some(1)]));

        // The value of the counter falls in the records as it did in fact, and rarely enough to be cheap.
        let begins: Vec<u64> =
            c.iter().filter(|record| record.kind == RecordKind::CounterSet).map(|record| record.bytes).collect();
        assert_eq!(begins, [3 * len as u64]);
        let lowered: Vec<&Record> = c.iter().filter(|record| record.kind == RecordKind::CounterLowered).collect();
        assert!(lowered.iter().all(|record| record.transfer == 1 && record.offset >> 16 != (record.offset + record.bytes) >> 16));
        assert!((9..=14).contains(&lowered.len()) && lowered.is_sorted_by(|a, b| a.offset > b.offset), "{lowered:?}");
        let zeros = |records: &[Record]| records.iter().filter(|record| record.kind == RecordKind::CounterZero).count();
        assert_eq!([&b, &c].map(|records| zeros(records)), [1, 1]);
    }

    #[test]
    fn short_descriptors_are_not_recorded() {
        let kinds = [RecordKind::Joined, RecordKind::CounterZero];
        for records in executed(100) {
            assert!(records.iter().all(|record| kinds.contains(&record.kind)), "{records:?}");
        }
    }
}
