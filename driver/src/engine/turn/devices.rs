//! Messages to devices of other machines, and from there to devices of this one.

use super::Engine;
use crate::device::net::{Devices, PRIORITY};
use crate::engine::baton::Token;
use doorbell_fabric::{NodeId, Push};

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
        // All of it: whoever is found to be gone on the way takes words out of the queue.
        let mut kept = std::collections::VecDeque::new();
        for word in std::mem::take(&mut self.inbound.devices.out) {
            let (node, life) = word.to;
            let went = !full.contains(&node)
                && self
                    .by_way(me, (node, life), PRIORITY, |_, state, _| state.push_device(word.tag, &word.bytes) == Push::Done)
                    .unwrap_or(true);
            if went {
                work += 1;
            } else {
                full.push(node);
                kept.push_back(word);
            }
        }
        kept.append(&mut self.inbound.devices.out);
        self.inbound.devices.out = kept;
        for (node, life) in self.inbound.devices.wanted() {
            if full.contains(&node) {
                continue;
            }
            let pushed = self.by_way(me, (node, life), PRIORITY, |inbound, state, packet| {
                inbound.devices.push((node, life), packet, |tag, bytes| state.push_device(tag, bytes) == Push::Done)
            });
            work += pushed.unwrap_or(0);
        }
        work
    }
}
