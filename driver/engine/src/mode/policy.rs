//! Who decides.

use super::{Call, Fabric, LinkFigures, Links, Mode, ModeRequest, Protocol, Reason, Receipt};
use doorbell_fabric::NodeId;
use std::fmt::Debug;
use std::time::Duration;

/// One of the links by which a message could go.
#[derive(Clone, Copy, Debug)]
pub struct LinkView {
    /// Its kind of fabric.
    pub fabric: Fabric,
    /// Which of that kind.
    pub link: u8,
    /// Which protocols this message could take on it.
    pub protocols: [bool; 4],
    /// What the driver would do with a message of this length, in memory of this kind, if nothing was asked for.
    pub advice: Protocol,
    /// The length from which on that may be another than the default of the call, in bytes.
    pub large: u64,
    /// What is seen of it.
    pub figures: LinkFigures,
    /// A word of the policy's own, kept for this link between questions; 0 at first.
    pub word: u64,
}

/// What is to be decided.
#[derive(Debug)]
pub struct Question<'a> {
    /// To whom.
    pub to: NodeId,
    /// By which call.
    pub call: Call,
    /// How many bytes.
    pub len: u64,
    /// Whether they lie in a region of this node.
    pub in_region: bool,
    /// What the caller asked for by name, and the node's own defaults for this call.
    pub asked: ModeRequest,
    /// That, with the default protocol of the call where none is named.
    pub requested: ModeRequest,
    /// The links there are, at least one: shared memory first, if there is any.
    pub links: &'a mut [LinkView],
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// How it goes.
    pub mode: Mode,
    /// Links that carry parts of it beside that of `mode`: of a network, for a message that is put. Of others the driver takes no notice, nor of
    /// links that are not there or can't put it.
    pub beside: Links,
    /// Why.
    pub reason: Reason,
}

impl Decision {
    /// A message goes by one link as a whole.
    pub fn new(mode: Mode, reason: Reason) -> Self {
        Self { mode, beside: Links::NONE, reason }
    }

    /// These carry parts of it, too.
    pub fn also_by(self, links: Links) -> Self {
        Self { beside: links, ..self }
    }
}

/// Decides how messages go. Called by whichever thread sends, for each message, with the engine entered: it may neither block nor call the
/// node, and its time is the message's.
///
/// A decision for what can't be done is not followed: then the message goes as the driver would have it.
pub trait Policy: Send + Sync + Debug {
    /// Whether a message of `len` bytes that asks for nothing goes by shared memory transfer on this link, which is shared memory, whatever other
    /// links have to do. Then [`choose`](Self::choose) is not asked, and a small message takes two thirds of the instructions. False if nothing is
    /// said: a policy that wraps another one has to pass it on.
    fn is_settled(&self, _link: &LinkView, _len: u64) -> bool {
        false
    }

    /// How a message is to go.
    fn choose(&self, question: &mut Question<'_>) -> Decision;

    /// How long one took, from the call until its bytes were free again: of some messages, and of all that went as they did for a
    /// [trial](Reason::Trial).
    fn observe(&self, _receipt: &Receipt, _took: Duration) {}
}

impl LinkView {
    /// This link with a protocol, if the message could take it.
    pub fn mode(&self, protocol: Protocol) -> Option<Mode> {
        self.protocols[protocol as usize].then_some(Mode { fabric: self.fabric, link: self.link, protocol })
    }

    /// Whether a request leaves this link open.
    pub fn is_allowed(&self, request: &ModeRequest) -> bool {
        request.fabric.is_none_or(|fabric| fabric == self.fabric) && request.link.is_none_or(|link| link == self.link)
    }
}

impl Question<'_> {
    /// What the driver does without a policy: what was asked for, and what was left open as is usual. `None`: it can't be done.
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
