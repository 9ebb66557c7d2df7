//! The settings of a node for modes.

use super::{Call, Decision, LinkView, ModeRequest, Policy, Question};
use std::sync::Arc;

/// The settings of a node for modes: its policy, and its defaults.
#[derive(Clone, Debug)]
pub struct Modes {
    /// The policy. `None`: requests are followed.
    pub policy: Option<Arc<dyn Policy>>,
    /// The default requests, by kind of call.
    pub defaults: [ModeRequest; 3],
    /// Whether the node has a DMA engine of its own.
    pub has_engine: bool,
    /// Counts how messages went, once the node has a board.
    pub(super) log: std::sync::OnceLock<Arc<super::log::ModeLog>>,
}

impl Default for Modes {
    fn default() -> Self {
        Self { policy: None, defaults: [ModeRequest::default(); 3], has_engine: true, log: Default::default() }
    }
}

impl Modes {
    /// The default request of a call.
    pub fn asked_by(&self, call: Call) -> ModeRequest {
        self.defaults[call as usize]
    }

    /// Whether the policy must be asked about every message.
    pub fn steer_all(&self) -> bool {
        self.policy.is_some() || self.defaults[Call::Send as usize] != ModeRequest::default()
    }

    /// Whether the policy must be asked about every put and get.
    pub fn steers_access(&self) -> bool {
        let asks = |call: Call| self.asked_by(call) != ModeRequest::default();
        self.policy.is_some() || !self.has_engine || asks(Call::Put) || asks(Call::Get)
    }

    /// Whether the policy must be asked about this message.
    #[inline]
    pub fn steers(&self, asks: Option<ModeRequest>) -> bool {
        asks.is_some() || self.steer_all()
    }

    /// The policy's decision, or the request if there is no policy. `None`: the request can't be followed, or the policy
    /// panicked.
    pub fn choose(&self, question: &mut Question<'_>) -> Option<Decision> {
        match &self.policy {
            Some(policy) => guarded(|| policy.choose(question)),
            None => question.honoured(),
        }
    }

    /// Whether the policy always lets a message without a request take this lane.
    pub fn is_settled(&self, link: &LinkView, len: u64) -> bool {
        self.defaults[Call::Send as usize] == ModeRequest::default()
            && self.policy.as_ref().is_some_and(|policy| guarded(|| policy.is_settled(link, len)) == Some(true))
    }
}

/// Calls the policy, and catches its panics. Any thread that turns the engine may ask, including the poller, which must not end
/// by a panic.
fn guarded<T>(ask: impl FnOnce() -> T) -> Option<T> {
    let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(ask));
    asked.inspect_err(|_| tracing::error!("a policy panicked; its message goes as without a policy")).ok()
}
