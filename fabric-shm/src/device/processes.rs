//! The processes of a device: those attached to it, the one that serves it to the network, and its removal.

use super::words::{View, life_of, life_word};
use doorbell_fabric::sync::{AtomicU64, Ordering};
use doorbell_fabric::{Incarnation, NodeId};

impl View<'_> {
    /// The attached processes.
    pub fn attached(&self) -> impl Iterator<Item = (NodeId, Incarnation)> + '_ {
        self.root.attached.0.iter().filter_map(|word| life_of(word.load(Ordering::Acquire)))
    }

    /// Enters a process as attached, in a free place or in that of a dead one. False if there is no room. Call it under the
    /// domain's lock file.
    pub fn enter(&self, me: (NodeId, Incarnation), lives: impl Fn(NodeId, Incarnation) -> bool) -> bool {
        let free = |word: &&AtomicU64| life_of(word.load(Ordering::Acquire)).is_none_or(|(node, life)| !lives(node, life));
        let entry = self.root.attached.0.iter().find(free);
        entry.map(|word| word.store(life_word(me.0, me.1), Ordering::Release)).is_some()
    }

    /// Removes one entry of a process. Call it under the domain's lock file.
    pub fn quit(&self, me: (NodeId, Incarnation)) {
        let word = life_word(me.0, me.1);
        if let Some(entry) = self.root.attached.0.iter().find(|entry| entry.load(Ordering::Relaxed) == word) {
            entry.store(0, Ordering::Release);
        }
    }

    /// The holder of the port: the process that serves the device to the network.
    pub fn port(&self) -> Option<(NodeId, Incarnation)> {
        life_of(self.root.port.0.load(Ordering::Acquire))
    }

    /// Takes the port from `former`, which died or left, or takes a free one. Returns whether the caller holds it.
    pub fn take_port(&self, former: Option<(NodeId, Incarnation)>, me: (NodeId, Incarnation)) -> bool {
        let [former, me] = [former, Some(me)].map(|who| who.map_or(0, |(node, incarnation)| life_word(node, incarnation)));
        self.root.port.0.compare_exchange(former, me, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Gives the port up, if the caller holds it.
    pub fn leave_port(&self, me: (NodeId, Incarnation)) {
        let _ = self.root.port.0.compare_exchange(life_word(me.0, me.1), 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether the device was removed. One load.
    pub fn has_ended(&self) -> bool {
        self.root.ended.0.load(Ordering::Relaxed) != 0
    }

    /// Marks the device as removed, for the senders. Call it under the domain's lock file.
    pub fn end(&self) {
        self.root.ended.0.store(1, Ordering::Release);
    }
}
