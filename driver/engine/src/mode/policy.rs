//! The policy that decides about modes.

use super::{Call, Fabric, LinkMetrics, Links, Mode, ModeRequest, Protocol, Reason, Receipt};
use doorbell_fabric::NodeId;
use std::fmt::Debug;
use std::time::Duration;

/// A link that could carry the message.
#[derive(Clone, Copy, Debug)]
pub struct LinkView {
    /// Its kind of fabric.
    pub fabric: Fabric,
    /// Its number within that kind.
    pub link: u8,
    /// The protocols that this message could take on it, by [`Protocol`].
    pub protocols: [bool; 4],
    /// The protocol that the driver would use for a message of this length, in memory of this kind, without a request.
    pub advice: Protocol,
    /// The length in bytes from which `advice` may differ from the call's default protocol.
    pub large: u64,
    /// Its present load.
    pub metrics: LinkMetrics,
    /// A word that belongs to the policy, kept for this link between questions; 0 at first.
    pub word: u64,
}

/// A question to the policy.
#[derive(Debug)]
pub struct Question<'a> {
    /// The target node.
    pub to: NodeId,
    /// The kind of call.
    pub call: Call,
    /// The length in bytes.
    pub len: u64,
    /// Whether the bytes lie in a region of this node.
    pub in_region: bool,
    /// What the caller requested by name, completed by the node's defaults for this call.
    pub asked: ModeRequest,
    /// `asked`, completed by the call's default protocol.
    pub requested: ModeRequest,
    /// The possible links, at least one. Shared memory comes first, if there is any.
    pub links: &'a mut [LinkView],
}

/// The policy's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The mode of the message.
    pub mode: Mode,
    /// Further links of a network that each carry a part of a message that is put, beside the link of `mode`. The driver
    /// ignores other links, links that do not exist, and links that can't put the message.
    pub beside: Links,
    /// The reason.
    pub reason: Reason,
}

impl Decision {
    /// A decision for one link that carries the whole message.
    pub fn new(mode: Mode, reason: Reason) -> Self {
        Self { mode, beside: Links::NONE, reason }
    }

    /// Lets further links carry parts of the message.
    pub fn also_by(self, links: Links) -> Self {
        Self { beside: links, ..self }
    }
}

/// Decides the mode of each message. The sending thread, or another that turns the engine, calls it for each message with the
/// engine entered. It must not block and must not call the node. Its duration adds to the message's latency.
///
/// If a decision is impossible, the message goes as without a policy.
pub trait Policy: Send + Sync + Debug {
    /// Whether a message of `len` bytes without a request always takes a shared memory transfer on this link, whatever the load
    /// of other links. The link is shared memory. If true, [`choose`](Self::choose) is not called, and a small message takes
    /// two thirds of the instructions. The default is false; a policy that wraps another one must forward this call.
    fn is_settled(&self, _link: &LinkView, _len: u64) -> bool {
        false
    }

    /// Decides the mode of a message.
    fn choose(&self, question: &mut Question<'_>) -> Decision;

    /// Reports how long a message took, from the call until its bytes were free again. Called for a sample of the messages, and
    /// for every [trial](Reason::Trial).
    fn observe(&self, _receipt: &Receipt, _took: Duration) {}
}

impl LinkView {
    /// The mode of this link with a protocol, if the message could take it.
    pub fn mode(&self, protocol: Protocol) -> Option<Mode> {
        self.protocols[protocol as usize].then_some(Mode { fabric: self.fabric, link: self.link, protocol })
    }

    /// Whether a request permits this link.
    pub fn is_allowed(&self, request: &ModeRequest) -> bool {
        request.fabric.is_none_or(|fabric| fabric == self.fabric) && request.link.is_none_or(|link| link == self.link)
    }
}

impl Question<'_> {
    /// The decision without a policy: the request, completed by the defaults. `None`: it is impossible.
    pub fn honoured(&self) -> Option<Decision> {
        let mode = |link: &LinkView| link.mode(self.asked.protocol.unwrap_or(link.advice)).map(|mode| (mode, link.large));
        let (mode, limit) = self.links.iter().filter(|link| link.is_allowed(&self.requested)).find_map(mode)?;
        let reason = match self.requested.protocol {
            Some(protocol) if protocol != mode.protocol => Reason::Size { limit },
            _ if self.asked == ModeRequest::default() => Reason::Default,
            _ => Reason::Requested,
        };
        Some(Decision::new(mode, reason))
    }
}
