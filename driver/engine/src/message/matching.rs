//! Which messages a receive accepts.

use doorbell_fabric::{Envelope, Incarnation, NodeId, Origin};

/// What a receive accepts: any message, or only messages from one node, or with one tag, or both.
///
/// ```
/// use doorbell::{Match, NodeId};
/// let any = Match::any();
/// let orders = Match::from(NodeId(0)).tag(7);
/// let replies = Match::any().tag_mask(0x100, 0xff00);
/// # let _ = (any, orders, replies);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The origin, as [`Origin`] has it, and which of its bits count.
    origin: u64,
    origin_mask: u64,
    tag: u64,
    mask: u64,
}

/// The bits of an [`Origin`] that name the node, and those that name its incarnation.
const NODE: u64 = u16::MAX as u64;
const LIFE: u64 = (u32::MAX as u64) << Origin::LIFE_SHIFT;

impl Match {
    /// Accepts every message.
    #[inline]
    pub const fn any() -> Self {
        Self { origin: 0, origin_mask: 0, tag: 0, mask: 0 }
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
        Self { origin: self.origin & !NODE | node.0 as u64, origin_mask: self.origin_mask | NODE, ..self }
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
        Self { origin: Origin::new(node, incarnation).0, origin_mask: NODE | LIFE, ..self }
    }

    /// The node to which it is bound, if it is.
    #[inline]
    pub const fn bound_to(&self) -> Option<NodeId> {
        if self.origin_mask & NODE == 0 { None } else { Some(NodeId(self.origin as u16)) }
    }

    /// The incarnation to which it is bound, if it is.
    #[inline]
    pub const fn bound_to_life(&self) -> Option<Incarnation> {
        if self.origin_mask & LIFE == 0 { None } else { Some(Incarnation((self.origin >> Origin::LIFE_SHIFT) as u32)) }
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
        self.accepts_origin(Origin::new(source, incarnation))
    }

    /// The same, by one comparison.
    #[inline(always)]
    pub(crate) fn accepts_origin(&self, origin: Origin) -> bool {
        (origin.0 ^ self.origin) & self.origin_mask == 0
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
        assert!(
            accepts(Match::any().incarnation(one, incarnation), one, 0)
                && !accepts(Match::any().incarnation(one, Incarnation(5)), one, 0)
        );
    }
}
