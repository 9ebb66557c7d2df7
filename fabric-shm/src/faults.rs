//! Seeded faults for the in-process fabric: lanes that report full early, and packets that are seen late.
//!
//! The contract of a lane allows both, so anything that breaks under them is a defect.

/// A source of faults. The same seed gives the same faults in the same order.
#[derive(Clone, Debug)]
pub struct Faults {
    state: u64,
    full_percent: u8,
    delay_percent: u8,
}

impl Faults {
    /// Creates faults from a seed: `full_percent` of the pushes find the lane full, and `delay_percent` of the looks see nothing.
    /// Both are at most 90, so that there is always progress.
    pub fn new(seed: u64, full_percent: u8, delay_percent: u8) -> Self {
        Self { state: seed | 1, full_percent: full_percent.min(90), delay_percent: delay_percent.min(90) }
    }

    /// Creates faults for another link. They differ from these and are as repeatable.
    pub fn fork(&mut self) -> Self {
        Self { state: self.next() | 1, ..self.clone() }
    }

    fn next(&mut self) -> u64 {
        // xorshift64*: good enough to pick percentages.
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn percent(&mut self, percent: u8) -> bool {
        (self.next() >> 32) % 100 < percent as u64
    }

    pub(crate) fn full(&mut self) -> bool {
        self.percent(self.full_percent)
    }

    pub(crate) fn delay(&mut self) -> bool {
        self.percent(self.delay_percent)
    }
}
