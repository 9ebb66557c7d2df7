//! What is said about streams, and their bytes where there is no common memory.

use super::Engine;
use crate::engine::baton::Token;
use crate::message::inbound::Inbound;
use crate::stream::table::{PRIORITY, Streams, Word};
use doorbell_fabric::{NodeId, PacketKind, Push};
use std::collections::VecDeque;

impl Engine {
    /// All streams of this node.
    pub(crate) fn streams(&mut self) -> &mut Streams {
        &mut self.inbound.streams
    }

    /// Goes on with all. Returns the amount of work done.
    #[cold]
    pub(super) fn step_streams(&mut self, me: Token) -> usize {
        let mut full: Vec<NodeId> = Vec::new();
        let queues: [fn(&mut Inbound) -> &mut VecDeque<Word>; 2] =
            [|inbound| &mut inbound.streams.out, |inbound| &mut inbound.streams.asks];
        let mut work = 0;
        for queue in queues {
            work += self.push_words(me, PacketKind::Stream, PRIORITY, &mut full, queue, |word| (word.to, word.tag, &word.bytes));
        }
        for end in self.inbound.streams.active() {
            if full.contains(&end.peer.0) {
                continue;
            }
            let pushed = self.by_way(me, end.peer, PRIORITY, |inbound, state, packet| {
                inbound.streams.push(&end, packet, |tag, bytes| state.push_apart(PacketKind::Stream, tag, bytes) == Push::Done)
            });
            work += pushed.unwrap_or(0);
        }
        work
    }
}
