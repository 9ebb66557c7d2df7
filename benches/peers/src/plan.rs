//! The plan of the measurements and their number.

use doorbell_peers::order::{Leg, Over, Work};
use serde::{Deserialize, Serialize};

/// The subject of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Table {
    /// The kind of measurement.
    pub work: Work,
    /// The carrier of the messages.
    pub over: Over,
    /// Pairs of processes, one process on each of the two processors.
    pub pairs: usize,
    /// Whether messages are written before they are sent, and read after they were received.
    pub touched: bool,
}

/// One table or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Row {
    /// Messages back and forth, half a round trip
    Latency,
    /// The same on loan: messages are written and read in place
    Loan,
    /// Puts into the other's memory, half a round trip
    Put,
    /// Messages back and forth that a handler reads where they lie, half a round trip
    Handler,
    /// Small messages one way, in messages a second
    Rate,
    /// The same in batches, as each peer offers them
    Batch,
    /// Large messages, in bytes a second; one way, and both ways
    Bandwidth,
    /// Small messages between two pairs of processes on the two processors
    Pairs,
    /// Messages and streams over UDP on the loopback interface, and encrypted streams
    Udp,
    /// How much a process can compute during a large transfer
    Overlap,
    /// Barriers, allreduces and broadcasts of two and of four processes on the two processors
    #[value(alias = "coll")]
    Collectives,
}

impl Row {
    /// All, in the order of the tables.
    pub const ALL: [Row; 11] = [
        Row::Latency,
        Row::Handler,
        Row::Loan,
        Row::Put,
        Row::Rate,
        Row::Batch,
        Row::Bandwidth,
        Row::Pairs,
        Row::Overlap,
        Row::Collectives,
        Row::Udp,
    ];

    /// The tables of this row.
    pub fn tables(self, touched: bool) -> Vec<Table> {
        let over = |over, works: &[Work]| -> Vec<Table> {
            works.iter().map(|work| Table { work: *work, over, pairs: 1, touched }).collect()
        };
        let pairs = |pairs, work| Table { work, over: Over::Memory, pairs, touched };
        match self {
            Row::Latency => over(Over::Memory, &[Work::Latency]),
            Row::Loan => over(Over::Memory, &[Work::Loan]),
            Row::Put => over(Over::Memory, &[Work::Put]),
            Row::Handler => over(Over::Memory, &[Work::Handler]),
            Row::Rate => over(Over::Memory, &[Work::Rate]),
            Row::Batch => over(Over::Memory, &[Work::Batch]),
            Row::Bandwidth => over(Over::Memory, &[Work::OneWay, Work::BothWays]),
            Row::Pairs => vec![pairs(2, Work::Pairs)],
            Row::Overlap => over(Over::Memory, &[Work::PutOverlap, Work::SendOverlap, Work::ReceiveOverlap]),
            Row::Collectives => {
                let both = [Work::Barrier, Work::Allreduce, Work::Broadcast].map(|work| [pairs(1, work), pairs(2, work)]);
                [both.as_flattened(), &[pairs(2, Work::Computing)]].concat()
            }
            Row::Udp => [over(Over::Udp, &[Work::Latency, Work::OneWay]), over(Over::Sealed, &[Work::OneWay])].concat(),
        }
    }
}

/// The title of a table.
pub fn title(Table { work, over, pairs, touched }: Table) -> String {
    let what = match work {
        Work::Latency => "Messages, one way",
        Work::Loan => "Loans, one way",
        Work::Put => "Puts, one way",
        Work::Handler => "Messages to a handler, one way",
        Work::Rate => "Messages a second",
        Work::Batch => "Messages a second, in batches",
        Work::OneWay => "Bandwidth one way",
        Work::BothWays => "Bandwidth both ways",
        Work::Pairs => "Two pairs on two processors, one way",
        Work::Barrier => "Barrier",
        Work::Allreduce => "Allreduce",
        Work::Broadcast => "Broadcast",
        Work::Computing => "Allreduce after work",
        Work::PutOverlap => "Computing during a put",
        Work::SendOverlap => "Computing during a send",
        Work::ReceiveOverlap => "Computing during a receive",
    };
    let what = match over {
        Over::Memory if work.is_collective() => format!("{what}, {} members", 2 * pairs),
        Over::Memory => what.into(),
        Over::Udp => format!("{what}, over UDP"),
        Over::Sealed => format!("{what}, over UDP, encrypted"),
    };
    if touched { what } else { format!("{what}, untouched") }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// The bytes in a section of a stream, through memory and over the network.
const STREAM_BYTES: [usize; 2] = [256 * MIB, 64 * MIB];

/// The messages of a table.
pub fn legs(Table { work, over, pairs, .. }: Table, quick: bool) -> Vec<Leg> {
    let by_net = over != Over::Memory;
    let sizes: &[usize] = match work {
        Work::Latency if by_net => &[8, 64, KIB, 64 * KIB],
        Work::OneWay if by_net => &[64 * KIB, MIB],
        Work::Latency => &[8, 64, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB],
        Work::Loan | Work::Put => &[8, 64, KIB, 4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB],
        Work::Handler => &[8, 64, 256, KIB],
        Work::Rate | Work::Batch => &[8, 64],
        Work::Pairs => &[8],
        Work::OneWay | Work::BothWays => &[16 * KIB, 64 * KIB, MIB, 4 * MIB],
        Work::PutOverlap | Work::SendOverlap | Work::ReceiveOverlap => &[MIB],
        Work::Barrier => &[0],
        Work::Allreduce => &[8, 64 * KIB, 16 * MIB],
        Work::Broadcast => &[64 * KIB, 16 * MIB],
        Work::Computing => &[8, KIB, 4 * KIB, 64 * KIB],
    };
    let part = if quick { 4 } else { 1 };
    let leg = |bytes: usize| match work {
        _ if work.is_exchange() || work.is_overlap() => {
            let count = round_trips(bytes) / part;
            Leg { bytes, sections: 6, warmup: count / 10, count }
        }
        _ if work.is_collective() => {
            let count = collectives(work, bytes, pairs > 1).div_ceil(part);
            Leg { bytes, sections: 6, warmup: count.div_ceil(10), count }
        }
        _ if work.is_stream() => Leg { bytes, sections: 6, warmup: 0, count: STREAM_BYTES[usize::from(by_net)] / bytes / part },
        _ => Leg { bytes, sections: 6, warmup: 0, count: 400_000 / part },
    };
    sizes.iter().map(|bytes| leg(*bytes)).collect()
}

/// The number of round trips in a section.
fn round_trips(bytes: usize) -> usize {
    match bytes {
        0..=4096 => 10_000,
        4097..=65_536 => 2_000,
        65_537..=262_144 => 500,
        262_145..=1_048_576 => 200,
        _ => 40,
    }
}

/// The number of collectives in a section.
fn collectives(work: Work, bytes: usize, crowded: bool) -> usize {
    match bytes {
        _ if work == Work::Computing => 1_000,
        0..=4096 if crowded => 2_000,
        0..=4096 => 50_000,
        4097..=65_536 if crowded => 500,
        4097..=65_536 => 1_000,
        _ => 10,
    }
}

/// A size in human-readable form.
pub fn size(bytes: usize) -> String {
    match bytes {
        0 => "–".into(),
        _ if bytes >= MIB && bytes.is_multiple_of(MIB) => format!("{} MiB", bytes / MIB),
        _ if bytes >= KIB && bytes.is_multiple_of(KIB) => format!("{} KiB", bytes / KIB),
        _ => format!("{bytes} B"),
    }
}
