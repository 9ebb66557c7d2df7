//! Devices over the network as a service of the engine.

use super::{Devices, PRIORITY};
use doorbell_engine::drive::install::Install;
use doorbell_engine::message::service::{Class, CloseReason, Gone, Outbox, PeerId, Pushed, Service, Wants};
use doorbell_fabric::{PRIORITIES, PacketKind, Payload, Priority, Verdict};

inventory::submit!(Install { order: Devices::CLASS as u8, install: |shared| shared.register(Devices::default()) });

impl Class for Devices {
    const CLASS: PacketKind = PacketKind::Device;
}

impl Service for Devices {
    fn receive(&mut self, from: PeerId, priority: Priority, tag: u64, payload: Payload<'_>) -> Verdict {
        self.take(from.node.index() * PRIORITIES + priority.index(), from.incarnation, tag, payload)
    }

    fn progress(&mut self, out: &mut Outbox<'_>) -> usize {
        let mut work = self.step(|| out.apart().into_iter().map(Into::into).collect());
        work += out.push_all(&mut self.out, PRIORITY, |word| (word.to.into(), word.tag, &word.bytes));
        for to in self.wanted() {
            let peer = PeerId::from(to);
            if let Ok(packet) = out.packet_bytes(peer, PRIORITY) {
                work += self.push(to, packet, |tag, bytes| out.push(peer, PRIORITY, tag, bytes) == Pushed::Done);
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
        self.fail(peer.node, peer.incarnation);
    }

    fn close(&mut self, _: CloseReason) {
        self.end();
    }
}
