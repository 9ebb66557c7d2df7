//! What is said about streams, and their bytes where there is no common memory.

use super::Engine;
use crate::engine::baton::Token;
use crate::stream::table::{PRIORITY, Streams};
use doorbell_fabric::{NodeId, Push};

impl Engine {
    /// All streams of this node.
    pub(crate) fn streams(&mut self) -> &mut Streams {
        &mut self.inbound.streams
    }

    /// Goes on with all. Returns the amount of work done.
    #[cold]
    pub(super) fn step_streams(&mut self, me: Token) -> usize {
        let mut work = 0;
        let mut full: Vec<NodeId> = Vec::new();
        // All of it: whoever is found to be gone on the way takes words out of the queue.
        let mut kept = std::collections::VecDeque::new();
        for word in std::mem::take(&mut self.inbound.streams.out) {
            let (node, life) = word.to;
            let went = !full.contains(&node)
                && self
                    .by_way(me, (node, life), PRIORITY, |_, state, _| state.push_stream(word.tag, &word.bytes) == Push::Done)
                    .unwrap_or(true);
            if went {
                word.went();
                work += 1;
            } else {
                full.push(node);
                kept.push_back(word);
            }
        }
        kept.append(&mut self.inbound.streams.out);
        self.inbound.streams.out = kept;
        for end in self.inbound.streams.active() {
            if full.contains(&end.peer.0) {
                continue;
            }
            let pushed = self.by_way(me, end.peer, PRIORITY, |inbound, state, packet| {
                inbound.streams.push(&end, packet, |tag, bytes| state.push_stream(tag, bytes) == Push::Done)
            });
            work += pushed.unwrap_or(0);
        }
        work
    }
}
