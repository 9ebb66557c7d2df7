//! What a node does about modes.

use super::{Call, Decision, LinkView, ModeRequest, Policy, Question};
use std::sync::Arc;

/// What a node does about modes: its policy, and its defaults.
#[derive(Clone, Debug)]
pub struct Modes {
    /// Who decides; nobody: what is asked for is done.
    pub policy: Option<Arc<dyn Policy>>,
    /// What is asked for by calls that ask for nothing.
    pub defaults: [ModeRequest; 3],
    /// Whether the node has a DMA engine of its own.
    pub has_engine: bool,
    /// Where it is counted how messages went, once the node has a board.
    #[cfg(not(loom))]
    pub(super) log: std::sync::OnceLock<Arc<super::log::ModeLog>>,
}

impl Default for Modes {
    fn default() -> Self {
        Self {
            policy: None,
            defaults: [ModeRequest::default(); 3],
            has_engine: true,
            #[cfg(not(loom))]
            log: Default::default(),
        }
    }
}

impl Modes {
    /// What a call asks for by itself.
    pub fn asked_by(&self, call: Call) -> ModeRequest {
        self.defaults[call as usize]
    }

    /// Whether every message has to be asked about.
    pub fn steer_all(&self) -> bool {
        self.policy.is_some() || self.defaults[Call::Send as usize] != ModeRequest::default()
    }

    /// Whether every put and get has.
    pub fn steers_access(&self) -> bool {
        let asks = |call: Call| self.asked_by(call) != ModeRequest::default();
        self.policy.is_some() || !self.has_engine || asks(Call::Put) || asks(Call::Get)
    }

    /// Whether this message has.
    #[inline]
    pub fn steers(&self, asks: Option<ModeRequest>) -> bool {
        asks.is_some() || self.steer_all()
    }

    /// What the policy decides, or what is asked for. `None`: what is asked for can't be done, or the policy panicked.
    pub fn choose(&self, question: &mut Question<'_>) -> Option<Decision> {
        match &self.policy {
            Some(policy) => guarded(|| policy.choose(question)),
            None => question.honoured(),
        }
    }

    /// Whether the policy takes a message that asks for nothing for settled: it goes through this lane.
    pub fn is_settled(&self, link: &LinkView, len: u64) -> bool {
        self.defaults[Call::Send as usize] == ModeRequest::default()
            && self.policy.as_ref().is_some_and(|policy| guarded(|| policy.is_settled(link, len)) == Some(true))
    }
}

/// What a policy says; nothing, if it panics: whoever drives asks it, the poller too, which must not end by it.
fn guarded<T>(ask: impl FnOnce() -> T) -> Option<T> {
    let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(ask));
    asked.inspect_err(|_| tracing::error!("a policy panicked; its message goes as the driver would have it")).ok()
}
