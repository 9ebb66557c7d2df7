//! Devices over the network as a service of the engine.

use super::{Devices, PRIORITY};
use doorbell_engine::kit::{Class, CloseReason, Gone, Install, Outbox, PacketKind, Payload, PeerId, Priority, Pushed};
use doorbell_engine::kit::{Service, Verdict, Wants};

inventory::submit!(Install { order: Devices::CLASS as u8, install: |shared| shared.register(Devices::default()) });

impl Class for Devices {
    const CLASS: PacketKind = PacketKind::Device;
}

impl Service for Devices {
    fn receive(&mut self, from: PeerId, _: Priority, tag: u64, payload: Payload<'_>) -> Verdict {
        self.take(from, tag, payload)
    }

    fn progress(&mut self, out: &mut Outbox<'_>) -> usize {
        let mut work = self.step(|| out.apart()) + self.out.send(out, PRIORITY, |_| ());
        for to in self.wanted() {
            if let Ok(packet) = out.packet_bytes(to, PRIORITY) {
                work += self.push(to, packet, |tag, bytes| out.push(to, PRIORITY, tag, bytes) == Pushed::Done);
            }
        }
        work
    }

    fn wants(&self) -> Wants {
        if self.is_active() {
            Wants::Soon
        } else if self.has_work() {
            Wants::Look
        } else {
            Wants::Nothing
        }
    }

    fn peer_gone(&mut self, peer: PeerId, _: Gone) {
        self.fail(peer);
    }

    fn close(&mut self, _: CloseReason) {
        self.end();
    }
}
