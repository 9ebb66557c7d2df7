//! Streams as a service of the engine.

use super::table::{PRIORITY, Streams, Word};
use doorbell_engine::drive::install::Install;
use doorbell_engine::message::service::{Class, CloseReason, Gone, Outbox, PeerId, Pushed, Service, Wants};
use doorbell_fabric::{PacketKind, Payload, Priority, Verdict};

inventory::submit!(Install { order: Streams::CLASS as u8, install: |shared| shared.register(Streams::default()) });

impl Class for Streams {
    const CLASS: PacketKind = PacketKind::Stream;
}

impl Service for Streams {
    fn receive(&mut self, from: PeerId, _: Priority, tag: u64, payload: Payload<'_>) -> Verdict {
        self.take(from.into(), tag, payload)
    }

    fn progress(&mut self, out: &mut Outbox<'_>) -> usize {
        fn parts(word: &Word) -> (PeerId, u64, &[u8]) {
            (word.to.into(), word.tag, &word.bytes)
        }
        let mut work = out.push_all(&mut self.out, PRIORITY, parts) + out.push_all(&mut self.asks, PRIORITY, parts);
        for end in self.active() {
            let to = PeerId::from(end.peer);
            if let Ok(packet) = out.packet_bytes(to, PRIORITY) {
                work += self.push(&end, packet, |tag, bytes| out.push(to, PRIORITY, tag, bytes) == Pushed::Done);
            }
        }
        work
    }

    fn wants(&self) -> Wants {
        if self.has_work() { Wants::Soon } else { Wants::Nothing }
    }

    fn is_flushing(&self) -> bool {
        self.has_dropped()
    }

    fn peer_gone(&mut self, peer: PeerId, why: Gone) {
        self.fail(peer.node, peer.incarnation, why != Gone::Left);
    }

    fn close(&mut self, _: CloseReason) {
        self.end();
    }
}
