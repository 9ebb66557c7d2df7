//! The names of segments: `doorbell.<uid>.<domain>` and a suffix. The pattern is the same in every layout, so that any build can
//! tell whether a domain of another build still lives.

use doorbell_fabric::{Incarnation, NodeId};

/// The names of one domain's files.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    uid: u32,
    domain: String,
}

/// The part of a domain that a file name denotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The domain segment.
    Domain,
    /// The lock file.
    Lock,
    /// The inbox of a node. The node lives while the inbox is held.
    Inbox(NodeId),
    /// Any other file of a node.
    OfNode(NodeId),
    /// A device, which belongs to no node.
    Device,
    /// Any other file of the domain: an unfinished segment, or a file of another layout.
    Other,
}

/// Node ids are below this number, whatever a domain allows.
const MAX_ID: u16 = 1024;

pub(crate) fn valid_domain_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// Whether a device may have this name. It is part of a file name.
pub(crate) fn valid_device_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    (1..=64).contains(&name.len()) && name.bytes().all(allowed)
}

impl Names {
    /// `domain` must be a valid name.
    pub fn new(uid: u32, domain: &str) -> Self {
        Self { uid, domain: domain.to_owned() }
    }

    pub fn domain_name(&self) -> &str {
        &self.domain
    }

    pub fn domain(&self) -> String {
        format!("doorbell.{}.{}", self.uid, self.domain)
    }

    pub fn lock(&self) -> String {
        format!("{}.lock", self.domain())
    }

    pub fn inbox(&self, id: NodeId) -> String {
        format!("{}.{id}.inbox", self.domain())
    }

    pub fn board(&self, id: NodeId) -> String {
        format!("{}.{id}.board", self.domain())
    }

    /// The lanes from `source` to an incarnation of a node. They belong to that node.
    pub fn pair(&self, id: NodeId, incarnation: Incarnation, source: NodeId) -> String {
        format!("{}.{id}.{}-from-{source}", self.domain(), incarnation.0)
    }

    /// Whether this is the name of lanes to any incarnation of a node.
    pub fn is_pair_to(&self, id: NodeId, name: &str) -> bool {
        name.strip_prefix(&format!("{}.{id}.", self.domain())).is_some_and(|rest| rest.contains("-from-"))
    }

    pub fn region(&self, id: NodeId, number: u32) -> String {
        format!("{}.{id}.r{number}", self.domain())
    }

    /// `device` must be a valid name.
    pub fn device(&self, device: &str) -> String {
        format!("{}.device-{device}", self.domain())
    }

    /// A name for an unfinished segment, where it cannot be created without a name.
    pub fn unfinished(&self, number: u32) -> String {
        format!("{}.new-{}-{number}", self.domain(), std::process::id())
    }
}

/// The domain and the part that a file name of this user denotes; `None` if it is not Doorbell's.
pub(crate) fn parse(uid: u32, name: &str) -> Option<(&str, Part)> {
    let rest = name.strip_prefix("doorbell.")?.strip_prefix(uid.to_string().as_str())?.strip_prefix('.')?;
    let (domain, part) = match rest.split_once('.') {
        None => (rest, Part::Domain),
        Some((domain, "lock")) => (domain, Part::Lock),
        Some((domain, rest)) if rest.strip_prefix("device-").is_some_and(valid_device_name) => (domain, Part::Device),
        Some((domain, rest)) => (domain, node_part(rest).unwrap_or(Part::Other)),
    };
    valid_domain_name(domain).then_some((domain, part))
}

fn node_part(rest: &str) -> Option<Part> {
    let (number, kind) = rest.split_once('.')?;
    let id: u16 = number.parse().ok().filter(|id| *id < MAX_ID)?;
    // Each id has one spelling, or two files could claim to be one inbox.
    (id.to_string() == number).then_some(match kind {
        "inbox" => Part::Inbox(NodeId(id)),
        _ => Part::OfNode(NodeId(id)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let names = Names::new(1000, "grid-1_x");
        for (name, part) in [
            (names.domain(), Part::Domain),
            (names.lock(), Part::Lock),
            (names.inbox(NodeId(7)), Part::Inbox(NodeId(7))),
            (names.board(NodeId(1023)), Part::OfNode(NodeId(1023))),
            (names.pair(NodeId(12), Incarnation(u32::MAX), NodeId(1023)), Part::OfNode(NodeId(12))),
            (names.region(NodeId(12), u32::MAX), Part::OfNode(NodeId(12))),
            (names.device("io.3"), Part::Device),
            (names.unfinished(3), Part::Other),
        ] {
            assert_eq!(parse(1000, &name), Some(("grid-1_x", part)), "{name}");
            assert_eq!(parse(100, &name), None);
            assert_eq!(parse(10000, &name), None);
        }
    }

    #[test]
    fn what_is_not_ours_is_not_taken_for_ours() {
        for name in ["doorbell.0.", "doorbell.0", "doorbell.0..lock", "doorbell.0.a b", "doorbell.x.a", "sem.doorbell.0.a", ""] {
            assert_eq!(parse(0, name), None, "{name}");
        }
        for odd in ["doorbell.0.a.007.inbox", "doorbell.0.a.1024.inbox", "doorbell.0.a.-1.inbox", "doorbell.0.a.+1.inbox"] {
            assert_eq!(parse(0, odd), Some(("a", Part::Other)), "{odd}");
        }
    }

    #[test]
    fn domain_names_are_bounded() {
        assert!(valid_domain_name("a") && valid_domain_name(&"x".repeat(64)));
        for name in ["", "a.b", "a/b", "ä", "a b", &"x".repeat(65)] {
            assert!(!valid_domain_name(name), "{name}");
        }
    }
}
