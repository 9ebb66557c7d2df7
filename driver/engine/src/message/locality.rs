//! Near or far.

/// Whether a handle reaches its object by shared memory or by a network. It is chosen when the handle is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Locality<N, F> {
    /// By memory that this node shares.
    Near(N),
    /// By packets, over a network.
    Far(F),
}

impl<N, F> Locality<N, F> {
    /// The near value. `None` if this is far.
    #[inline(always)]
    pub fn near(&self) -> Option<&N> {
        match self {
            Locality::Near(near) => Some(near),
            Locality::Far(_) => None,
        }
    }

    /// The far value. `None` if this is near.
    #[inline(always)]
    pub fn far(&self) -> Option<&F> {
        match self {
            Locality::Near(_) => None,
            Locality::Far(far) => Some(far),
        }
    }

    /// Whether it is near.
    #[inline(always)]
    pub fn is_near(&self) -> bool {
        matches!(self, Locality::Near(_))
    }
}
