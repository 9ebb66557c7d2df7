//! Mean durations of messages, by fabric, memory, protocol and size class: words that threads write without waiting for each
//! other.

use super::{Fabric, Protocol};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Size classes are powers of two. The last class contains all longer messages.
const CLASSES: usize = 40;
const KINDS: usize = 4;
/// The fewest samples of a meaningful mean.
const SAMPLES_LEAST: u64 = 16;
/// The other protocol must be faster by this many percent.
const GAIN: u64 = 15;
/// From this many samples on, a sample has a weight of one in this many.
const WEIGHT: u64 = 16;
/// Means are kept in fractions of a nanosecond, so that a small difference divided by the weight is not rounded to zero.
const PARTS: u64 = 16;
const SAMPLES_BITS: u32 = 20;
const SAMPLES_MASK: u64 = (1 << SAMPLES_BITS) - 1;
const MEAN_MOST: u64 = u64::MAX >> SAMPLES_BITS;
/// A class's word says which of the two protocols is the faster one, as far as is known.
const PREFERRED: u64 = 3;
const TRANSFER: u64 = 1;
const DMA: u64 = 2;
const COUNT_SHIFT: u32 = 2;

/// The mean duration of messages of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mean {
    /// The kind of fabric.
    pub fabric: Fabric,
    /// True if the messages lay in a region, false if in private memory.
    pub in_region: bool,
    /// The protocol.
    pub protocol: Protocol,
    /// The shortest message of the size class in bytes, a power of two. All messages of the class are shorter than twice this.
    pub bytes: u64,
    /// The mean in nanoseconds. Recent messages weigh more.
    pub ns: u64,
    /// The number of messages in the mean; it stops at a million.
    pub samples: u64,
}

/// The conclusion from the means for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Use the usual protocol.
    Usual,
    /// Use the other protocol, which was faster: means in nanoseconds.
    Other { usual: u32, other: u32 },
    /// Use the slower protocol once, to measure it.
    Trial { is_other: bool },
}

/// The messages that are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub fabric: Fabric,
    pub in_region: bool,
    pub len: u64,
}

pub(super) struct Means {
    /// Mean and number of samples are in one word, so that they belong together.
    means: Box<[AtomicU64]>,
    classes: Box<[AtomicU64]>,
}

impl Kind {
    fn class(&self) -> usize {
        let class = self.len.max(1).ilog2() as usize;
        (self.fabric as usize * 2 + usize::from(self.in_region)) * CLASSES + class.min(CLASSES - 1)
    }
}

impl Means {
    pub fn new() -> Self {
        let words = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { means: words(KINDS * CLASSES * Protocol::ALL.len()), classes: words(KINDS * CLASSES) }
    }

    fn word(&self, kind: &Kind, protocol: Protocol) -> &AtomicU64 {
        &self.means[kind.class() * Protocol::ALL.len() + protocol as usize]
    }

    /// If two threads add at once, one of the samples may be lost.
    pub fn add(&self, kind: &Kind, protocol: Protocol, took: Duration) {
        let word = self.word(kind, protocol);
        let (mean, samples) = unpack(word.load(Ordering::Relaxed));
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).saturating_mul(PARTS);
        // The time of a process that was stopped tells nothing about the protocol.
        let most = if samples < SAMPLES_LEAST { MEAN_MOST } else { mean.saturating_mul(2).min(MEAN_MOST) };
        let weight = (samples + 1).min(WEIGHT);
        let mean = (mean * (weight - 1) + took.min(most)) / weight;
        word.store(mean << SAMPLES_BITS | (samples + 1).min(SAMPLES_MASK), Ordering::Relaxed);
    }

    /// Which protocol a message takes that could take both, and usually takes `usual`. One of the two is transfer. One of
    /// `every` messages takes the other one; with 0, none does.
    pub fn weigh(&self, kind: &Kind, usual: Protocol, other: Protocol, every: u32) -> Verdict {
        let known = |protocol| unpack(self.word(kind, protocol).load(Ordering::Relaxed));
        let ((usual_mean, usual_samples), (other_mean, other_samples)) = (known(usual), known(other));
        // No durations are reported.
        if usual_samples < SAMPLES_LEAST {
            return Verdict::Usual;
        }
        let class = &self.classes[kind.class()];
        let word = class.load(Ordering::Relaxed);
        let mark = |protocol| if protocol == Protocol::Transfer { TRANSFER } else { DMA };
        let mut preferred = word & PREFERRED;
        if other_samples >= SAMPLES_LEAST {
            let is_faster = |one: u64, than: u64| one * 100 < than * (100 - GAIN);
            if is_faster(other_mean, usual_mean) {
                preferred = mark(other);
            } else if is_faster(usual_mean, other_mean) {
                preferred = mark(usual);
            }
        }
        let is_other = preferred == mark(other) && other_samples >= SAMPLES_LEAST;
        let count = (word >> COUNT_SHIFT).wrapping_add(u64::from(every != 0)) & (u64::MAX >> COUNT_SHIFT);
        class.store(count << COUNT_SHIFT | preferred, Ordering::Relaxed);
        if every != 0 && count.is_multiple_of(every.into()) {
            return Verdict::Trial { is_other: !is_other };
        }
        if !is_other {
            return Verdict::Usual;
        }
        let ns = |mean: u64| u32::try_from(mean / PARTS).unwrap_or(u32::MAX);
        Verdict::Other { usual: ns(usual_mean), other: ns(other_mean) }
    }

    /// All known means.
    pub fn all(&self) -> Vec<Mean> {
        let mean = |(at, word): (usize, &AtomicU64)| {
            let (mean, samples) = unpack(word.load(Ordering::Relaxed));
            let (class, protocol) = (at / Protocol::ALL.len(), Protocol::ALL[at % Protocol::ALL.len()]);
            let (kind, class) = (class / CLASSES, class % CLASSES);
            let fabric = if kind / 2 == Fabric::Shm as usize { Fabric::Shm } else { Fabric::Udp };
            let found = Mean { fabric, in_region: kind % 2 == 1, protocol, bytes: 1 << class, ns: mean / PARTS, samples };
            (samples > 0).then_some(found)
        };
        self.means.iter().enumerate().filter_map(mean).collect()
    }
}

fn unpack(word: u64) -> (u64, u64) {
    (word >> SAMPLES_BITS, word & SAMPLES_MASK)
}

impl fmt::Debug for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIND: Kind = Kind { fabric: Fabric::Shm, in_region: true, len: 100_000 };

    fn add(means: &Means, protocol: Protocol, ns: u64, times: usize) {
        (0..times).for_each(|_| means.add(&KIND, protocol, Duration::from_nanos(ns)));
    }

    #[test]
    fn a_mean_follows_and_one_that_stood_still_moves_it_little() {
        let means = Means::new();
        add(&means, Protocol::Get, 1000, 100);
        let ns = || means.all()[0].ns;
        assert_eq!(
            means.all(),
            [Mean { fabric: Fabric::Shm, in_region: true, protocol: Protocol::Get, bytes: 65_536, ns: 1000, samples: 100 }]
        );
        add(&means, Protocol::Get, u64::MAX, 1);
        assert_eq!(ns(), 1000 + 1000 / 16);
        add(&means, Protocol::Get, 3000, 100);
        assert!((2900..=3000).contains(&ns()), "{}", ns());
    }

    #[test]
    fn every_class_has_its_own_place() {
        let means = Means::new();
        let kinds = [Fabric::Shm, Fabric::Udp].into_iter().flat_map(|fabric| [false, true].map(|in_region| (fabric, in_region)));
        let mut all = Vec::new();
        for (fabric, in_region) in kinds {
            for protocol in Protocol::ALL {
                for class in 0..CLASSES as u32 {
                    let ns = all.len() as u64 + 1;
                    let len = 1 << class;
                    means.add(&Kind { fabric, in_region, len }, protocol, Duration::from_nanos(ns));
                    all.push(Mean { fabric, in_region, protocol, bytes: len, ns, samples: 1 });
                }
            }
        }
        let mut found = means.all();
        found.sort_by_key(|mean| mean.ns);
        assert_eq!(found, all);
        let count = all.len();
        // The last class has all longer messages, and the first all shorter ones.
        means.add(&Kind { len: u64::MAX, ..KIND }, Protocol::Put, Duration::MAX);
        means.add(&Kind { len: 0, ..KIND }, Protocol::Put, Duration::ZERO);
        assert_eq!(means.all().len(), count);
    }

    #[test]
    fn the_faster_one_is_taken_when_both_are_known_and_stays_until_the_other_is_clearly_faster() {
        let (usual, other) = (Protocol::Transfer, Protocol::Both);
        let means = Means::new();
        let weigh = || means.weigh(&KIND, usual, other, 0);
        add(&means, usual, 1000, 100);
        add(&means, other, 500, SAMPLES_LEAST as usize - 1);
        assert_eq!(weigh(), Verdict::Usual);
        add(&means, other, 500, 1);
        assert_eq!(weigh(), Verdict::Other { usual: 1000, other: 500 });
        add(&means, other, 1100, 1000);
        assert!(matches!(weigh(), Verdict::Other { .. }));
        add(&means, other, 1300, 1000);
        assert_eq!(weigh(), Verdict::Usual);
        add(&means, other, 900, 1000);
        assert_eq!(weigh(), Verdict::Usual);
    }

    #[test]
    fn one_of_so_many_is_a_trial_of_the_one_that_is_not_taken() {
        let (usual, other) = (Protocol::Transfer, Protocol::Both);
        let means = Means::new();
        let trials = |every| {
            let is_trial = |_: &usize| means.weigh(&KIND, usual, other, every) == Verdict::Trial { is_other: true };
            (0..640).filter(is_trial).count()
        };
        assert_eq!(trials(64), 0, "while nothing is measured");
        add(&means, usual, 1000, 100);
        assert_eq!((trials(64), trials(0), trials(1)), (10, 0, 640));
        add(&means, other, 500, 100);
        let back = (0..640).filter(|_| means.weigh(&KIND, usual, other, 64) == Verdict::Trial { is_other: false }).count();
        assert_eq!(back, 10);
    }

    proptest! {
        #[test]
        // Many cases: not for Miri.
        #[cfg_attr(miri, ignore)]
        fn noise_does_not_flap(noise in proptest::collection::vec((750..1250_u64, 750..1250_u64), 2000)) {
            let means = Means::new();
            let (mut last, mut changes) = (Verdict::Usual, 0);
            for (one, two) in noise {
                add(&means, Protocol::Transfer, one, 1);
                add(&means, Protocol::Put, two, 1);
                let now = means.weigh(&KIND, Protocol::Transfer, Protocol::Put, 0);
                changes += usize::from(std::mem::discriminant(&now) != std::mem::discriminant(&last));
                last = now;
            }
            // A first guess from few samples may be wrong, and is corrected once.
            prop_assert!(changes <= 2, "{changes} changes");
        }
    }
}
