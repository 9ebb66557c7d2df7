//! A set of the links of a network between two nodes.

use super::LINKS_MAX;
use std::fmt;

/// The most links of a network between two nodes.
pub(crate) const NETWORK_LINKS: usize = LINKS_MAX - 1;

/// A set of the links of a network, by their numbers, which are below 4. Written `1+2`; the empty set is written `-`.
///
/// ```
/// # use doorbell::mode::Links;
/// let links = Links::NONE.with(2).with(1).with(9);
/// assert_eq!((links.to_string(), links.len(), links.has(9)), ("1+2".into(), 2, false));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Links(u8);

impl Links {
    /// The empty set.
    pub const NONE: Links = Links(0);
    const ALL: u8 = (1 << NETWORK_LINKS) - 1;

    /// The set with this link added. A number of 4 or more adds nothing.
    pub const fn with(self, link: u8) -> Self {
        if link < 8 { Self((self.0 | 1 << link) & Self::ALL) } else { self }
    }

    /// The set without this link.
    pub const fn without(self, link: u8) -> Self {
        if link < 8 { Self(self.0 & !(1 << link)) } else { self }
    }

    /// Whether the set contains this link.
    pub const fn has(self, link: u8) -> bool {
        link < 8 && self.0 & 1 << link != 0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of links.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The numbers of the links, the lowest first.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..NETWORK_LINKS as u8).filter(move |link| self.has(*link))
    }

    /// One bit for each link; below 16.
    #[cfg(not(loom))]
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// The set with these bits; higher bits are ignored.
    #[cfg(not(loom))]
    pub(crate) const fn of_bits(bits: u8) -> Self {
        Self(bits & Self::ALL)
    }
}

impl FromIterator<u8> for Links {
    fn from_iter<T: IntoIterator<Item = u8>>(links: T) -> Self {
        links.into_iter().fold(Self::NONE, Self::with)
    }
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let links: Vec<_> = self.iter().map(|link| link.to_string()).collect();
        f.pad(if links.is_empty() { "-".into() } else { links.join("+") }.as_str())
    }
}
