//! Publishes the links of all send queues on the board.

use super::{Engine, SHOW_EVERY};
use crate::message::outbound::Outbound;
use crate::mode::{Fabric, LINKS_MAX};
use crate::sync::baton::Token;
use doorbell_fabric::NodeId;
use doorbell_fabric::world;
use doorbell_shm::board::{LINK_ROWS, LinkRow};
use std::sync::Arc;
use std::time::Instant;

/// Which links are published, and in which rows.
pub(super) struct LinksShown {
    nodes: Vec<NodeShown>,
    free: Vec<u8>,
    /// When all were last published.
    at: Instant,
}

#[derive(Clone, Default)]
struct NodeShown {
    /// The row of each link.
    rows: [Option<u8>; LINKS_MAX],
    /// The messages and bytes sent when it was last published.
    carried: (u64, u64),
    /// Something was queued or untaken then.
    waited: bool,
}

/// The present state of a link.
#[derive(Clone, Copy, Default)]
enum Seen {
    #[default]
    Nothing,
    /// It exists, but can't be read now.
    Busy,
    Row(LinkRow),
}

impl LinksShown {
    pub fn new(nodes: usize) -> Self {
        Self { nodes: vec![NodeShown::default(); nodes], free: (0..LINK_ROWS as u8).rev().collect(), at: world::now() }
    }

    /// Whether it is time to look at all of them.
    pub fn is_due(&self, now: Instant) -> bool {
        now - self.at >= SHOW_EVERY
    }
}

impl Engine {
    /// Publishes the links: all of them, or those of nodes to which something was sent since the last time.
    pub(super) fn show_links(&mut self, now: Instant, all: bool) {
        let me = Token::current();
        if all {
            self.links.at = now;
        }
        let ways = self.ways.clone();
        for (node, ways) in ways.by_node() {
            let Some(shown) = self.links.nodes.get(node.index()) else { return };
            let (mut carried, mut is_listed) = ((0_u64, 0_u64), false);
            for way in ways.clone() {
                let (messages, bytes) = way.carried.read();
                carried = (carried.0.wrapping_add(messages), carried.1.wrapping_add(bytes));
                is_listed |= way.listed.load(doorbell_fabric::sync::Ordering::Relaxed);
            }
            let is_news = carried != shown.carried || shown.waited || is_listed;
            // A thread that sends all the time is disturbed only now and then.
            let is_news = is_news && !ways.clone().any(|way| way.state.is_anothers(me));
            if (all || is_news)
                && let Some(seen) = self.see_links(me, node, ways)
            {
                self.show_rows(node, carried, seen);
            }
        }
    }

    /// Reads the links to a node, all priorities together. `None`: this thread holds one of the queues, so they can't be read.
    fn see_links<'a>(
        &mut self,
        me: Token,
        node: NodeId,
        ways: impl Iterator<Item = &'a Arc<Outbound>>,
    ) -> Option<[Seen; LINKS_MAX]> {
        let mut all = [Seen::Nothing; LINKS_MAX];
        for way in ways {
            let mut state = way.state.enter(me)?;
            let incarnation = state.incarnation;
            if state.link.is_none() || self.fabric.live(node) != Some(incarnation) {
                continue;
            }
            let is_remote = state.is_remote();
            for (by, seen) in (0..).zip(&mut all) {
                let Some(link) = state.by(by) else { continue };
                let Some(metrics) = link.metrics() else {
                    *seen = Seen::Busy;
                    continue;
                };
                let is_near = by == 0 && !is_remote;
                let (messages, bytes_sent) = state.sent_by(by);
                let row = LinkRow {
                    node,
                    incarnation,
                    fabric: if is_near { Fabric::Shm } else { Fabric::Udp } as u8,
                    link: if is_near || is_remote { by } else { by - 1 },
                    depth: metrics.depth,
                    queued: state.queued_by(by) as u32,
                    bytes: metrics.bytes,
                    room: metrics.room,
                    transfers: self.outgoing.count_by(node, by).0,
                    occupancy: metrics.occupancy(),
                    messages,
                    bytes_sent,
                };
                *seen = match *seen {
                    Seen::Nothing => Seen::Row(row),
                    Seen::Busy => Seen::Busy,
                    Seen::Row(other) => Seen::Row(LinkRow {
                        depth: row.depth.saturating_add(other.depth),
                        queued: row.queued.saturating_add(other.queued),
                        bytes: row.bytes.saturating_add(other.bytes),
                        room: row.room.saturating_add(other.room),
                        occupancy: row.occupancy.max(other.occupancy),
                        messages: row.messages.wrapping_add(other.messages),
                        bytes_sent: row.bytes_sent.wrapping_add(other.bytes_sent),
                        ..row
                    }),
                };
            }
        }
        Some(all)
    }

    fn show_rows(&mut self, node: NodeId, carried: (u64, u64), seen: [Seen; LINKS_MAX]) {
        let board = self.monitor.home().board();
        let LinksShown { nodes, free, .. } = &mut self.links;
        let shown = &mut nodes[node.index()];
        (shown.carried, shown.waited) = (carried, false);
        for (seen, at) in seen.iter().zip(&mut shown.rows) {
            match seen {
                Seen::Busy => shown.waited = true,
                Seen::Row(row) => {
                    shown.waited |= row.queued > 0 || row.transfers > 0;
                    *at = at.or_else(|| free.pop());
                    if let Some(at) = at {
                        board.show_link(usize::from(*at), Some(row));
                    }
                }
                Seen::Nothing => {
                    if let Some(at) = at.take() {
                        board.show_link(usize::from(at), None);
                        free.push(at);
                    }
                }
            }
        }
    }
}
