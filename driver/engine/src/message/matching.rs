//! Which messages a receive accepts.

use doorbell_fabric::{Envelope, Incarnation, NodeId, PeerWord};
use std::fmt;

/// What a receive accepts: any message, or only messages from one node, or with one tag, or both.
///
/// ```
/// use doorbell::{Match, NodeId};
/// let any = Match::any();
/// let orders = Match::from(NodeId(0)).tag(7);
/// let replies = Match::any().tag_mask(0x100, 0xff00);
/// # let _ = (any, orders, replies);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// The node and the incarnation, and which bits of them count.
    from: PeerWord,
    from_mask: u64,
    tag: u64,
    mask: u64,
}

impl fmt::Debug for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, incarnation) = (self.bound_to(), self.bound_to_life());
        let mut all = f.debug_struct("Match");
        all.field("from", &from).field("incarnation", &incarnation).field("tag", &self.tag).field("mask", &self.mask).finish()
    }
}

impl Match {
    /// Accepts every message.
    #[inline]
    pub const fn any() -> Self {
        Self { from: PeerWord::new(NodeId(0), Incarnation(0)), from_mask: 0, tag: 0, mask: 0 }
    }

    /// Accepts only messages from one node.
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub const fn from(node: NodeId) -> Self {
        Self::any().source(node)
    }

    /// As this, but only from one node.
    #[inline]
    pub const fn source(self, node: NodeId) -> Self {
        Self { from: PeerWord::new(node, self.from.incarnation()), from_mask: self.from_mask | PeerWord::NODE, ..self }
    }

    /// As this, but only with this tag.
    #[inline]
    pub const fn tag(self, tag: u64) -> Self {
        Self { tag, mask: u64::MAX, ..self }
    }

    /// As this, but only with tags that agree with `tag` in the bits set in `mask`.
    #[inline]
    pub const fn tag_mask(self, tag: u64, mask: u64) -> Self {
        Self { tag: tag & mask, mask, ..self }
    }

    /// As this, but only from one incarnation of one node.
    #[inline]
    pub const fn incarnation(self, node: NodeId, incarnation: Incarnation) -> Self {
        self.peer(PeerWord::new(node, incarnation))
    }

    /// The same, with both in one word.
    #[inline(always)]
    pub(crate) const fn peer(self, from: PeerWord) -> Self {
        Self { from, from_mask: PeerWord::NODE | PeerWord::INCARNATION, ..self }
    }

    /// The node to which it is bound, if it is.
    #[inline]
    pub const fn bound_to(&self) -> Option<NodeId> {
        if self.from_mask & PeerWord::NODE == 0 { None } else { Some(self.from.node()) }
    }

    /// The incarnation to which it is bound, if it is.
    #[inline]
    pub const fn bound_to_life(&self) -> Option<Incarnation> {
        if self.from_mask & PeerWord::INCARNATION == 0 { None } else { Some(self.from.incarnation()) }
    }

    /// Whether it accepts messages with this source and tag.
    #[inline(always)]
    pub fn accepts(&self, source: NodeId, incarnation: Incarnation, tag: u64) -> bool {
        self.accepts_tag(tag) && self.accepts_source(source, incarnation)
    }

    /// Whether it accepts messages with this tag.
    #[inline(always)]
    pub(crate) fn accepts_tag(&self, tag: u64) -> bool {
        tag & self.mask == self.tag
    }

    /// Whether it accepts messages from this incarnation of this node.
    #[inline(always)]
    pub(crate) fn accepts_source(&self, source: NodeId, incarnation: Incarnation) -> bool {
        self.accepts_peer(PeerWord::new(source, incarnation))
    }

    /// The same, by one comparison.
    #[inline(always)]
    pub(crate) fn accepts_peer(&self, source: PeerWord) -> bool {
        source.agrees(self.from, self.from_mask)
    }

    /// Whether it accepts this message.
    #[inline]
    pub fn matches(&self, envelope: &Envelope) -> bool {
        self.accepts(envelope.source, envelope.incarnation, envelope.tag)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_match_accepts_what_it_says() {
        let (one, two, incarnation) = (NodeId(1), NodeId(2), Incarnation(4));
        let accepts = |m: Match, node, tag| m.accepts(node, incarnation, tag);
        assert!(accepts(Match::any(), one, 5));
        assert!(accepts(Match::from(one), one, 5) && !accepts(Match::from(one), two, 5));
        assert!(accepts(Match::any().tag(0), two, 0) && !accepts(Match::any().tag(0), two, 1));
        assert!(accepts(Match::any().source(two).tag(9), two, 9) && !accepts(Match::any().source(two).tag(9), one, 9));
        let masked = Match::any().tag_mask(0xabc, 0xf0);
        assert!(accepts(masked, one, 0xb0) && accepts(masked, one, 0x1bf) && !accepts(masked, one, 0xa0));
        let bound = Match::any().incarnation(one, incarnation);
        assert!(
            accepts(bound, one, 0) && !accepts(bound, two, 0) && !accepts(Match::any().incarnation(one, Incarnation(5)), one, 0)
        );
        assert!(accepts(bound.source(two), two, 0) && !accepts(bound.source(two), one, 0));
        assert!(!bound.source(two).accepts(two, Incarnation(5), 0));
        assert_eq!((bound.bound_to(), bound.bound_to_life()), (Some(one), Some(incarnation)));
        assert_eq!((Match::from(NodeId(0)).bound_to(), Match::any().bound_to()), (Some(NodeId(0)), None));
        assert_eq!((Match::from(two).bound_to_life(), Match::any().source(one).source(two)), (None, Match::from(two)));
        assert!(format!("{:?}", Match::from(two)).contains("node 2"));
    }
}
