//! What is measured, and how often.

use doorbell_peers::order::{Leg, Work};

/// A table, or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Row {
    /// Messages back and forth, half a round trip
    Latency,
    /// The same on loan: written and read in place
    Loan,
    /// Puts into the other's memory, half a round trip
    Put,
    /// Small messages one way, how many a second
    Rate,
    /// Large messages, how many bytes a second; one way, and both ways
    Bandwidth,
    /// Small messages between two pairs of processes on the two processors
    Pairs,
}

impl Row {
    /// In the order of the tables.
    pub const ALL: [Row; 6] = [Row::Latency, Row::Loan, Row::Put, Row::Rate, Row::Bandwidth, Row::Pairs];

    /// What has to be done for it.
    pub fn works(self) -> &'static [Work] {
        match self {
            Row::Latency => &[Work::Latency],
            Row::Loan => &[Work::Loan],
            Row::Put => &[Work::Put],
            Row::Rate => &[Work::Rate],
            Row::Bandwidth => &[Work::OneWay, Work::BothWays],
            Row::Pairs => &[Work::Pairs],
        }
    }
}

/// What a table is called.
pub fn title(work: Work) -> &'static str {
    match work {
        Work::Latency => "Messages, one way",
        Work::Loan => "Loans, one way",
        Work::Put => "Puts, one way",
        Work::Rate => "Messages a second",
        Work::OneWay => "Bandwidth one way",
        Work::BothWays => "Bandwidth both ways",
        Work::Pairs => "Two pairs on two processors, one way",
    }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Bytes in a section of a stream.
const STREAM_BYTES: usize = 256 * MIB;

/// The messages that are measured.
pub fn legs(work: Work, quick: bool) -> Vec<Leg> {
    let sizes: &[usize] = match work {
        Work::Latency | Work::Loan | Work::Put => &[8, 64, KIB, 4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB],
        Work::Rate | Work::Pairs => &[8],
        Work::OneWay | Work::BothWays => &[64 * KIB, MIB, 4 * MIB],
    };
    let part = if quick { 4 } else { 1 };
    let leg = |bytes: usize| match work {
        Work::Latency | Work::Loan | Work::Put | Work::Pairs => {
            let count = round_trips(bytes) / part;
            Leg { bytes, sections: 6, warmup: count / 10, count }
        }
        Work::Rate => Leg { bytes, sections: 6, warmup: 0, count: 400_000 / part },
        Work::OneWay | Work::BothWays => Leg { bytes, sections: 6, warmup: 0, count: STREAM_BYTES / bytes / part },
    };
    sizes.iter().map(|bytes| leg(*bytes)).collect()
}

/// In a section.
fn round_trips(bytes: usize) -> usize {
    match bytes {
        0..=4096 => 10_000,
        4097..=65_536 => 2_000,
        65_537..=262_144 => 500,
        262_145..=1_048_576 => 200,
        _ => 40,
    }
}

/// A size as people write it.
pub fn size(bytes: usize) -> String {
    match bytes {
        _ if bytes >= MIB && bytes.is_multiple_of(MIB) => format!("{} MiB", bytes / MIB),
        _ if bytes >= KIB && bytes.is_multiple_of(KIB) => format!("{} KiB", bytes / KIB),
        _ => format!("{bytes} B"),
    }
}
