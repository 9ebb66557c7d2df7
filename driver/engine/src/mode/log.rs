//! Counts of messages by mode, and their publication on the board.

use super::{Fabric, ModeRequest, Modes, MovedBytes, Protocol, Reason, Receipt, Refusal};
use doorbell_fabric::sync::{AtomicU64, Ordering};
use doorbell_fabric::world;
use doorbell_shm::board::{DecisionRecord, DecisionRing, Home, ModeParts, ModeTallies, ModeWord};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One of this many steered sends that wait is timed.
const SAMPLE_EVERY: u64 = 16;

/// Counts how the messages of a node went.
#[derive(Debug)]
pub struct ModeLog {
    tallies: ModeTallies,
    ring: DecisionRing,
    home: Home,
    /// The number of changes of the tallies, and how many of them the board shows.
    changes: AtomicU64,
    shown: AtomicU64,
    /// The number of steered sends so far.
    sends: AtomicU64,
}

impl ModeLog {
    #[inline]
    fn changed(&self) {
        // Only one thread changes the tallies at a time; a lost change would do little harm.
        self.changes.store(self.changes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    #[inline]
    fn count(&self, receipt: &Receipt, count: impl Fn(&ModeTallies, ModeWord)) {
        count(&self.tallies, ModeWord::Requested(receipt.requested.fabric.map(|fabric| fabric as u8)));
        count(&self.tallies, ModeWord::Used(receipt.used.fabric as u8, receipt.used.protocol as u8));
        count(&self.tallies, outcome(&receipt.reason));
        self.changed();
    }
}

fn outcome(reason: &Reason) -> ModeWord {
    reason.refusal().map_or(ModeWord::Honoured, |refusal| ModeWord::Refused(refusal as u8))
}

impl Modes {
    /// Connects this log to the node of a board.
    pub(crate) fn belong(&self, home: Home) {
        let log = || {
            let (ring, tallies) = (DecisionRing::new(home.clone()), ModeTallies::default());
            let [changes, shown, sends] = [const { AtomicU64::new(0) }; 3];
            Arc::new(ModeLog { tallies, ring, home, changes, shown, sends })
        };
        self.log.get_or_init(log);
    }

    /// Counts a message that takes this mode. The caller has the engine.
    #[inline]
    pub fn note(&self, receipt: &Receipt) {
        let Some(log) = self.log.get() else { return };
        log.count(receipt, |tallies, word| tallies.add(word, 1));
        if receipt.reason.refusal().is_some() {
            log.ring.write(&record(receipt));
        }
    }

    /// Counts a message that had to wait and was decided again, in place of the earlier count.
    #[inline]
    pub fn note_instead(&self, before: Option<&Receipt>, receipt: &Receipt) {
        if let Some(before) = before {
            if (before.used, before.beside) == (receipt.used, receipt.beside)
                && before.reason.refusal() == receipt.reason.refusal()
            {
                return;
            }
            self.forget(before);
        }
        self.note(receipt);
    }

    /// Counts a message as finished, by how its bytes were moved, and returns its final receipt. The caller has the engine.
    pub fn settle(&self, before: &Receipt, moved: MovedBytes) -> Receipt {
        let after = before.settled(moved);
        let Some(log) = self.log.get().filter(|_| (before.used, before.reason) != (after.used, after.reason)) else {
            return after;
        };
        let used = |receipt: &Receipt| ModeWord::Used(receipt.used.fabric as u8, receipt.used.protocol as u8);
        for (word, instead) in [(used(before), used(&after)), (outcome(&before.reason), outcome(&after.reason))] {
            log.tallies.lower(word);
            log.tallies.add(instead, 1);
        }
        log.changed();
        if before.reason.refusal() != after.reason.refusal() {
            log.ring.write(&record(&after));
        }
        after
    }

    /// Counts a request that can't be met: the call returns an error and no receipt.
    pub fn note_refused(&self, requested: &ModeRequest) {
        let Some(log) = self.log.get() else { return };
        log.tallies.add(ModeWord::Requested(requested.fabric.map(|fabric| fabric as u8)), 1);
        log.tallies.add(ModeWord::Refused(Refusal::Unavailable as u8), 1);
        log.changed();
    }

    /// Takes back the count of a message for which there was no room.
    #[cold]
    pub(crate) fn forget(&self, receipt: &Receipt) {
        if let Some(log) = self.log.get() {
            log.count(receipt, ModeTallies::lower);
        }
    }

    /// Begins a steered send that waits. Returns the time if it is one that is sampled.
    #[inline]
    pub fn begin_sample(&self) -> Option<Instant> {
        let log = self.log.get()?;
        let sends = log.sends.load(Ordering::Relaxed);
        log.sends.store(sends.wrapping_add(1), Ordering::Relaxed);
        sends.is_multiple_of(SAMPLE_EVERY).then(world::now)
    }

    /// Records how long a send took.
    #[cold]
    pub fn observe(&self, receipt: &Receipt, took: Duration) {
        if let Some(policy) = &self.policy {
            policy.observe(receipt, took);
        }
        let Some(log) = self.log.get() else { return };
        let (fabric, protocol) = (receipt.used.fabric as u8, receipt.used.protocol as u8);
        let class = ModeWord::size_class(receipt.len);
        // Any thread may do this. The two words may disagree by a sample now and then, which changes a mean by as little.
        log.tallies.add(ModeWord::Samples(fabric, protocol, class), 1);
        log.tallies.add(ModeWord::Nanoseconds(fabric, protocol, class), took.as_nanos() as u64);
        log.changed();
    }

    /// Publishes the counts, if they have changed.
    pub(crate) fn show(&self) {
        let Some(log) = self.log.get() else { return };
        let changes = log.changes.load(Ordering::Relaxed);
        if changes != log.shown.load(Ordering::Relaxed) {
            log.shown.store(changes, Ordering::Relaxed);
            log.home.board().show_modes(&log.tallies.read());
        }
    }
}

/// A decision in the board's format.
fn record(receipt: &Receipt) -> DecisionRecord {
    let Receipt { to, call, len, in_region, requested, used, beside, reason, .. } = *receipt;
    DecisionRecord {
        to,
        call: call as u8,
        len,
        in_region,
        requested: parts(requested),
        used: parts(used.into()),
        beside: beside.bits(),
        reason: reason.refusal().map_or(u8::MAX, |refusal| refusal as u8),
        metrics: metrics(&reason),
    }
}

fn parts(request: ModeRequest) -> ModeParts {
    let ModeRequest { fabric, link, protocol } = request;
    ModeParts {
        fabric: fabric.map(|fabric: Fabric| fabric as u8),
        link,
        protocol: protocol.map(|protocol: Protocol| protocol as u8),
    }
}

/// The observed figure, and its limit.
fn metrics(reason: &Reason) -> [u64; 2] {
    match *reason {
        Reason::Queue { depth, limit } => [depth.into(), limit.into()],
        Reason::Occupancy { occupancy, limit } => [occupancy.into(), limit.into()],
        Reason::Size { limit } => [0, limit],
        Reason::Balance { bytes, instead } => [bytes, instead],
        Reason::Latency { asked, instead } => [asked.into(), instead.into()],
        Reason::Trial { every } => [0, every.into()],
        Reason::Requested | Reason::Default | Reason::AtWork | Reason::Unavailable(_) | Reason::AllBusy => [0; 2],
    }
}
