//! The steps of channels, told one by one and counted.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A step of a member with a turn of a channel: see [`TeamBuilder::watch`](super::TeamBuilder::watch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChannelEvent {
    /// The number of the channel, from 0. Always 0 in a team whose operations go by packets.
    pub channel: usize,
    /// Which turn of all channels, from 0 when the team was made: the same for all members.
    pub turn: u64,
    /// The step.
    pub step: ChannelStep,
}

/// A step in a turn of a channel, at one member. Steps come in this order. [`Queued`](Self::Queued) and [`Moved`](Self::Moved) come together or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ChannelStep {
    /// The channel of the turn was not available: the operations wait in the queue, and the member watches that channel. Turns go round the channels, alike at
    /// all members, so the member does not ask whether another channel is available.
    Queued,
    /// The channel of the turn is available: all members have left its turn before.
    Available,
    /// The member has acquired it.
    Acquired,
    /// The queued operations went from the queue to the channel.
    Moved,
    /// The operations are posted, with the synchronisation point behind the last of them. A batch is posted when it is closed.
    Posted,
    /// Processing has reached the synchronisation point.
    PointReached,
    /// The background synchronisation is posted. When those of all members are, the channel is available again.
    SynchronisationPosted,
}

/// The function of a program that watches a team.
#[derive(Clone)]
pub(super) struct Watch(Arc<dyn Fn(ChannelEvent) + Send + Sync>);

impl Watch {
    pub fn new(watch: impl Fn(ChannelEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(watch))
    }

    #[cold]
    pub fn tell(&self, channel: usize, turn: u64, steps: &[ChannelStep]) {
        for &step in steps {
            // The team is locked here, and survives a panic of the watching program.
            let _ = catch_unwind(AssertUnwindSafe(|| (self.0)(ChannelEvent { channel, turn, step })));
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// Counters of a team's channels, since the team was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelStats {
    /// Operations that have given this member its result.
    pub operations: u64,
    /// Turns of channels that were acquired at once.
    pub acquired: u64,
    /// Turns that found their channel not available, and were queued; they moved to the channel when it was.
    pub queued: u64,
    /// Synchronisation points that were reached, and background synchronisations that were posted.
    pub synchronised: u64,
    /// Turns whose channel was known to be available from the posts of the others.
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

/// A counter.
#[derive(Clone, Copy)]
pub(super) enum Count {
    Operations,
    Acquired,
    Queued,
    Synchronised,
    Foreseen,
}

/// The counters of one team. The owner of the team's lock counts, and any thread reads.
#[derive(Debug, Default)]
pub(super) struct Counts([AtomicU64; 5]);

impl Counts {
    /// There is one writer at a time, so a load and a store do.
    #[inline]
    pub fn add(&self, count: Count, amount: u64) {
        let word = &self.0[count as usize];
        word.store(word.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
    }

    pub fn read(&self) -> ChannelStats {
        let [operations, acquired, queued, synchronised, foreseen] = self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        ChannelStats { operations, acquired, queued, synchronised, foreseen }
    }
}
