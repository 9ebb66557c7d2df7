//! Streams as a service of the engine.

use super::table::{PRIORITY, Streams};
use doorbell_engine::kit::{Class, CloseReason, Gone, Install, Outbox, PacketKind, Payload, PeerId, Priority, Pushed};
use doorbell_engine::kit::{Service, Verdict, Wants};

inventory::submit!(Install { order: Streams::CLASS as u8, install: |shared| shared.register(Streams::default()) });

impl Class for Streams {
    const CLASS: PacketKind = PacketKind::Stream;
}

impl Service for Streams {
    fn receive(&mut self, from: PeerId, _: Priority, tag: u64, payload: Payload<'_>) -> Verdict {
        self.take(from, tag, payload)
    }

    fn progress(&mut self, out: &mut Outbox<'_>) -> usize {
        let mut work = self.out.send(out, PRIORITY, |_| ()) + self.asks.send(out, PRIORITY, |_| ());
        for end in self.active.clone() {
            if let Ok(packet) = out.packet_bytes(end.peer, PRIORITY) {
                work += self.push(&end, packet, |tag, bytes| out.push(end.peer, PRIORITY, tag, bytes) == Pushed::Done);
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
        self.fail(peer, why != Gone::Left);
    }

    fn close(&mut self, _: CloseReason) {
        self.end();
    }
}
