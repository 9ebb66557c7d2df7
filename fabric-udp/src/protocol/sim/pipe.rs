//! One direction of a path, and its effects on datagrams.

use super::NetworkStats;
use crate::protocol::Time;

/// Fast random numbers for the network, from a seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The numbers that follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// Returns true with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && (self.number() >> 11) as f64 / (1u64 << 53) as f64 <= probability
    }
}

/// The properties of one direction of a path. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// The probability that a datagram is lost.
    pub loss: f64,
    /// After this many lost or corrupted datagrams in a row, one gets through. That excludes datagrams lost to a hole, to their
    /// size, or to a full queue.
    pub lost_in_a_row: u32,
    /// The probability that a datagram arrives twice.
    pub duplicate: f64,
    /// The probability that later datagrams overtake this one.
    pub reorder: f64,
    /// The additional delay of such a datagram.
    pub reorder_by: u64,
    /// The probability that a datagram gets some flipped bits.
    pub corrupt: f64,
    /// The delay of the path.
    pub delay: u64,
    /// Bytes a second; `None` for no limit.
    pub bandwidth: Option<u64>,
    /// Bytes that may wait for the bandwidth.
    pub queue: u64,
    /// Larger datagrams disappear.
    pub mtu: usize,
    /// The periods in which everything disappears.
    pub holes: Vec<(Time, Time)>,
}

impl Rules {
    /// A path that only delays.
    pub fn clean(delay: u64) -> Self {
        Self {
            loss: 0.0,
            lost_in_a_row: u32::MAX,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: 0,
            corrupt: 0.0,
            delay,
            bandwidth: None,
            queue: 1 << 20,
            mtu: 65_507,
            holes: Vec::new(),
        }
    }
}

pub(super) struct Pipe {
    rules: Rules,
    /// The time at which everything that waits will have gone.
    free: Time,
    /// The current number of losses in a row.
    lost: u32,
}

impl Pipe {
    pub fn new(rules: Rules) -> Self {
        Self { rules, free: Time::ZERO, lost: 0 }
    }

    /// The datagrams that leave the other end, and their times.
    pub fn carry(&mut self, now: Time, mut bytes: Vec<u8>, dice: &mut Dice, stats: &mut NetworkStats) -> Vec<(Time, Vec<u8>)> {
        let rules = &self.rules;
        let in_hole = rules.holes.iter().any(|(from, to)| *from <= now && now < *to);
        if in_hole || bytes.len() > rules.mtu {
            stats.lost += 1;
            return Vec::new();
        }
        let may_lose = self.lost < rules.lost_in_a_row;
        if may_lose && dice.chance(rules.loss) {
            self.lost += 1;
            stats.lost += 1;
            return Vec::new();
        }
        let mut left = now;
        if let Some(bandwidth) = rules.bandwidth {
            let waiting = (u128::from(self.free - now) * u128::from(bandwidth) / 1_000_000_000) as u64;
            if waiting + bytes.len() as u64 > rules.queue {
                stats.lost += 1;
                return Vec::new();
            }
            // The headers of IP and UDP take time too.
            let takes = (bytes.len() as u64 + 28) * 1_000_000_000 / bandwidth;
            self.free = self.free.max(now) + takes;
            left = self.free;
        }
        let spoils = may_lose && dice.chance(rules.corrupt);
        // A corrupted datagram counts as lost.
        self.lost = if spoils { self.lost + 1 } else { 0 };
        if spoils {
            stats.corrupted += 1;
            for _ in 0..=dice.below(3) {
                let bit = dice.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        let arrive = |dice: &mut Dice| {
            let late = if dice.chance(rules.reorder) { dice.below(rules.reorder_by.max(1)) } else { 0 };
            left + (rules.delay + late)
        };
        if dice.chance(rules.duplicate) {
            stats.duplicated += 1;
            return vec![(arrive(dice), bytes.clone()), (arrive(dice), bytes)];
        }
        vec![(arrive(dice), bytes)]
    }
}
