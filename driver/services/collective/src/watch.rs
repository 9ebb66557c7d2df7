//! What becomes of channels, step by step and in numbers.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A step of a member with a turn of a channel: see [`TeamBuilder::watch`](super::TeamBuilder::watch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChannelEvent {
    /// Which channel, from 0. Always 0 in a team whose operations go by the network.
    pub channel: usize,
    /// Which turn of all channels, from 0 when the team was made: the same for all members.
    pub turn: u64,
    /// What happened.
    pub step: ChannelStep,
}

/// What happens in a turn of a channel, at one member. In this order; [`Queued`](Self::Queued) and [`Moved`](Self::Moved) come together or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ChannelStep {
    /// The channel of the turn was not available: the operations wait in the queue, and that channel is watched. Turns go round the channels, alike at all
    /// members, so whether another channel is available is not asked.
    Queued,
    /// The channel of the turn is available: all members have left its turn before.
    Available,
    /// The member has acquired it.
    Acquired,
    /// Operations that were queued went from the queue to the channel.
    Moved,
    /// The operations are posted, and the synchronisation point behind the last of them. Of a batch when it is closed.
    Posted,
    /// Processing has reached the synchronisation point.
    PointReached,
    /// The background synchronisation is posted. When those of all members are, the channel is available again.
    SynchronisationPosted,
}

/// Who watches.
#[derive(Clone)]
pub(super) struct Watch(Arc<dyn Fn(ChannelEvent) + Send + Sync>);

impl Watch {
    pub fn new(watch: impl Fn(ChannelEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(watch))
    }

    #[cold]
    pub fn tell(&self, channel: usize, turn: u64, steps: &[ChannelStep]) {
        for &step in steps {
            // The team is locked here, and goes on without whoever watches.
            let _ = catch_unwind(AssertUnwindSafe(|| (self.0)(ChannelEvent { channel, turn, step })));
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// What became of channels, since the team was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelStats {
    /// Operations of which this member has its result.
    pub operations: u64,
    /// Turns of channels that were acquired at once.
    pub acquired: u64,
    /// Turns that found their channel not available, and were queued; they moved to the channel when it was.
    pub queued: u64,
    /// Synchronisation points that were reached, and background synchronisations that were posted.
    pub synchronised: u64,
    /// Turns of which a post of the others had said already that the channel is available.
    pub foreseen: u64,
}

impl std::ops::AddAssign for ChannelStats {
    fn add_assign(&mut self, other: Self) {
        let Self { operations, acquired, queued, synchronised, foreseen } = other;
        self.operations += operations;
        self.acquired += acquired;
        self.queued += queued;
        self.synchronised += synchronised;
        self.foreseen += foreseen;
    }
}

/// Where they are counted: by whoever has the team locked, and read by anybody.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub operations: Count,
    pub acquired: Count,
    pub queued: Count,
    pub synchronised: Count,
    pub foreseen: Count,
}

/// One of them.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    /// One writer at a time: no need for one step.
    #[inline]
    pub fn add(&self, amount: u64) {
        self.0.store(self.get() + amount, Ordering::Relaxed);
    }

    #[inline]
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counts {
    pub fn read(&self) -> ChannelStats {
        let Self { operations, acquired, queued, synchronised, foreseen } = self;
        ChannelStats {
            operations: operations.get(),
            acquired: acquired.get(),
            queued: queued.get(),
            synchronised: synchronised.get(),
            foreseen: foreseen.get(),
        }
    }
}
