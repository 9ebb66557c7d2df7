//! Messages to devices of other machines, and from there to devices of this one.

use super::Engine;
use crate::device::net::{Devices, PRIORITY};
use crate::engine::baton::Token;
use doorbell_fabric::{NodeId, PacketKind, Push};

impl Engine {
    /// What this node has to do with devices of other machines.
    pub(crate) fn devices(&mut self) -> &mut Devices {
        &mut self.inbound.devices
    }

    /// Goes on with all. Returns the amount of work done.
    #[cold]
    pub(super) fn step_devices(&mut self, me: Token) -> usize {
        let fabric = &self.fabric;
        let others = || fabric.remote_members().into_iter().map(|member| (member.id, member.incarnation)).collect();
        let mut work = self.inbound.devices.step(others);
        let mut full: Vec<NodeId> = Vec::new();
        work += self.push_words(
            me,
            PacketKind::Device,
            PRIORITY,
            &mut full,
            |inbound| &mut inbound.devices.out,
            |word| (word.to, word.tag, &word.bytes),
        );
        for (node, life) in self.inbound.devices.wanted() {
            if full.contains(&node) {
                continue;
            }
            let pushed = self.by_way(me, (node, life), PRIORITY, |inbound, state, packet| {
                inbound
                    .devices
                    .push((node, life), packet, |tag, bytes| state.push_apart(PacketKind::Device, tag, bytes) == Push::Done)
            });
            work += pushed.unwrap_or(0);
        }
        work
    }
}
