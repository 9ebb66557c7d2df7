//! Messages to devices of other machines, and from there to devices of this one.

use super::Engine;
use crate::device::net::{Devices, PRIORITY};
use crate::engine::baton::Token;
use doorbell_fabric::{Incarnation, NodeId, Push};

/// The smallest packets by which messages to devices go.
const PACKET_MIN: usize = 64;

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
        let mut at = 0;
        while let Some(word) = self.inbound.devices.out.get(at) {
            let (node, life) = word.to;
            let went = !full.contains(&node) && {
                let (tag, bytes) = (word.tag, word.bytes.clone());
                self.by_low(me, node, life, |_, state, _| state.push_device(tag, &bytes) == Push::Done).unwrap_or(true)
            };
            if went {
                self.inbound.devices.out.remove(at);
                work += 1;
            } else {
                full.push(node);
                at += 1;
            }
        }
        for (node, life) in self.inbound.devices.wanted() {
            if full.contains(&node) {
                continue;
            }
            let pushed = self.by_low(me, node, life, |devices, state, packet| {
                devices.push((node, life), packet, |tag, bytes| state.push_device(tag, bytes) == Push::Done)
            });
            work += pushed.unwrap_or(0);
        }
        work
    }

    /// Does something with the way out to a life of a node. `None`: it is gone, or there is no such way. A way that somebody else has is tried again.
    fn by_low<T: Default>(
        &mut self,
        me: Token,
        node: NodeId,
        life: Incarnation,
        act: impl FnOnce(&mut Devices, &mut crate::message::outbound::OutState, usize) -> T,
    ) -> Option<T> {
        let outbound = self.ways.get(node, PRIORITY).cloned()?;
        let Some(mut state) = outbound.state.enter(me) else { return Some(T::default()) };
        self.connect(&outbound, &mut state, life).ok()?;
        let Some(packet) = state.region_bytes(0).filter(|packet| *packet >= PACKET_MIN) else { return Some(T::default()) };
        Some(act(&mut self.inbound.devices, &mut state, packet))
    }
}
