//! The receipt of a message: what was requested, what was decided, and what moved its bytes.

use super::{Call, Fabric, Links, Mode, ModeRequest, Protocol, Reason};
use doorbell_fabric::NodeId;
use std::fmt;

/// The bytes of a message, by what moved them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct MovedBytes {
    /// Bytes that went as packets through the lane of a link: memory FIFO.
    pub fifo: u64,
    /// Bytes that the origin wrote to the address that the target gave: put. Over a network, the session stored them there.
    pub put: u64,
    /// Bytes that the target fetched: pulled.
    pub pulled: u64,
}

/// How a message went, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The target node.
    pub to: NodeId,
    /// The kind of call.
    pub call: Call,
    /// The length in bytes.
    pub len: u64,
    /// Whether the bytes lay in a region of this node.
    pub in_region: bool,
    /// The request, completed by the call's defaults.
    pub requested: ModeRequest,
    /// The mode with which it was begun.
    pub decided: Mode,
    /// The mode that moved the message. Once [`moved`](Self::moved) is known, its protocol is the one that moved most of the
    /// bytes, or `both` if some were put and some pulled. It may differ from `decided`: if the target neither permits a put nor
    /// fetches, the bytes take the memory FIFO (`transfer`). For a pending message, and for one without bytes, it equals
    /// `decided`.
    pub used: Mode,
    /// What moved the bytes. `None` for a pending message, and for one that was withdrawn.
    pub moved: Option<MovedBytes>,
    /// Further links of the same kind that were to carry parts, beside the link of `used`. If the target lacks some of them,
    /// only the others carry parts. If a link can't carry its part, the link of `used` does.
    pub beside: Links,
    /// Why it was begun so. [`Unavailable`](Reason::Unavailable) if it was begun as requested, but another protocol moved it.
    pub reason: Reason,
}

impl MovedBytes {
    /// All bytes by one protocol. Nothing for `both`, which does not tell how many each side moved.
    pub(crate) fn all_by(protocol: Protocol, len: u64) -> Self {
        let none = Self::default();
        match protocol {
            Protocol::Put => Self { put: len, ..none },
            Protocol::Get => Self { pulled: len, ..none },
            Protocol::Transfer | Protocol::Both => Self { fifo: len, ..none },
        }
    }

    /// The number of bytes moved.
    pub fn total(&self) -> u64 {
        self.fifo + self.put + self.pulled
    }

    /// The protocol that moved most of the bytes; `both` if some were put and some pulled. `None` if there were none.
    pub fn protocol(&self) -> Option<Protocol> {
        let Self { fifo, put, pulled } = *self;
        Some(match () {
            () if self.total() == 0 => return None,
            () if fifo > put + pulled => Protocol::Transfer,
            () if put > 0 && pulled > 0 => Protocol::Both,
            () if put > 0 => Protocol::Put,
            () => Protocol::Get,
        })
    }
}

impl Receipt {
    /// The receipt of a message that was sent: if it was begun as a transfer, the memory FIFO moved it.
    pub(crate) fn sent(self) -> Self {
        let is_by_lane = self.moved.is_none() && self.decided.protocol == Protocol::Transfer;
        if is_by_lane { Self { moved: Some(MovedBytes::all_by(Protocol::Transfer, self.len)), ..self } } else { self }
    }

    /// The receipt of a finished message whose bytes were moved in this way.
    #[cfg_attr(loom, allow(dead_code, reason = "the log is none of the models"))]
    pub(crate) fn settled(self, moved: MovedBytes) -> Self {
        let (begun, used) = (self.decided.protocol, moved.protocol().unwrap_or(self.decided.protocol));
        // With `both`, the two ends race; which of them moved more bytes does not count as a change of mode.
        let is_as_begun = used == begun || begun == Protocol::Both && used != Protocol::Transfer;
        let mode = Mode { protocol: used, ..self.used };
        let was_honoured = self.reason.refusal().is_none();
        let reason = if is_as_begun || !was_honoured || self.requested.allows(mode) {
            self.reason
        } else {
            Reason::Unavailable(match (begun, self.used.fabric) {
                (Protocol::Get, _) => "the target did not fetch most of it in time",
                (Protocol::Put, Fabric::Shm) => "the target did not let this node put most of it in time",
                (Protocol::Put, Fabric::Udp) => "the target did not request most of it in time",
                _ => "the target neither let this node put most of it, nor fetched it in time",
            })
        };
        Self { used: mode, moved: Some(moved), reason, ..self }
    }
}

impl fmt::Display for MovedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways = [("memory FIFO", self.fifo), ("put", self.put), ("pulled", self.pulled)];
        let ways: Vec<_> = ways.iter().filter(|(_, bytes)| *bytes > 0).map(|(way, bytes)| format!("{way} {bytes}")).collect();
        f.pad(&if ways.is_empty() { "nothing".into() } else { ways.join(", ") })
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to, call, len, requested, used, beside, reason, .. } = self;
        let Mode { fabric, link, protocol } = used;
        let more = if beside.is_empty() { String::new() } else { format!("+{beside}") };
        write!(
            f,
            "{call} of {len} bytes to node {to}: {requested} asked for, {fabric}/{link}{more}/{protocol} taken ({reason})"
        )?;
        if let Some(moved) = self.moved.filter(|_| self.used != self.decided) {
            write!(f, "; begun as {}, moved: {moved}", self.decided)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_says_what_moved_the_bytes() {
        let begun = |words: &str, asked: &str| {
            let request: ModeRequest = words.parse().unwrap();
            let decided = Mode { fabric: request.fabric.unwrap(), link: 0, protocol: request.protocol.unwrap() };
            let (requested, beside) = (asked.parse().unwrap(), Links::NONE);
            let (to, call, moved, reason) = (NodeId(1), Call::Send, None, Reason::Requested);
            Receipt { to, call, len: 100, in_region: true, requested, decided, used: decided, moved, beside, reason }
        };
        let cases = [
            ("shm/0/put", "put", [0, 100, 0], Protocol::Put, true),
            ("shm/0/put", "put", [40, 60, 0], Protocol::Put, true),
            ("shm/0/put", "put", [100, 0, 0], Protocol::Transfer, false),
            ("shm/0/put", "shm", [100, 0, 0], Protocol::Transfer, true),
            ("udp/0/put", "put", [60, 40, 0], Protocol::Transfer, false),
            ("shm/0/get", "get", [0, 0, 100], Protocol::Get, true),
            ("shm/0/get", "get", [100, 0, 0], Protocol::Transfer, false),
            ("shm/0/both", "both", [10, 50, 40], Protocol::Both, true),
            ("shm/0/both", "both", [0, 0, 100], Protocol::Get, true),
            ("shm/0/both", "both", [60, 20, 20], Protocol::Transfer, false),
        ];
        for (words, asked, [fifo, put, pulled], used, is_as_asked) in cases {
            let moved = MovedBytes { fifo, put, pulled };
            let receipt = begun(words, asked).settled(moved);
            assert_eq!((receipt.used.protocol, receipt.moved), (used, Some(moved)), "{words}: {receipt}");
            assert_eq!(receipt.reason.refusal().is_none(), is_as_asked, "{words}: {receipt}");
            // The lane does not tell how a message with another mode was moved.
            assert_eq!(begun(words, asked).sent().moved, None);
        }
        let refused = Receipt { reason: Reason::AllBusy, ..begun("shm/0/put", "put") };
        assert_eq!(refused.settled(MovedBytes { fifo: 100, put: 0, pulled: 0 }).reason, Reason::AllBusy);
        assert_eq!(begun("shm/0/transfer", "shm").sent().moved, Some(MovedBytes { fifo: 100, put: 0, pulled: 0 }));
        assert_eq!(begun("shm/0/get", "get").settled(MovedBytes::default()).used.protocol, Protocol::Get);
    }
}
