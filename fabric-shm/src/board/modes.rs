//! The board's rows for links, and its counts of the modes that messages took.
//!
//! Fabrics, protocols and reasons are numbers here; the driver gives them names. Each row or record has a check word, like those
//! of the flight recorder. The reader skips a row that is being written or that no owner would write.

use super::home::Words;
use super::recorder::{Ring, WORDS};
use super::{Board, Home};
use crate::layout::{
    DECISIONS as LAYOUT_DECISIONS, DECISIONS_OFFSET, LINK_ROWS as LAYOUT_ROWS, LINK_ROWS_OFFSET, MODE_WORDS, RECORD_BYTES,
};
use doorbell_fabric::sync::Ordering;
use doorbell_fabric::{Incarnation, NodeId};

/// The number of links that a board shows. Further links are not shown.
pub const LINK_ROWS: usize = LAYOUT_ROWS;
/// The number of latest decisions that a board shows.
pub const DECISIONS: usize = LAYOUT_DECISIONS;
/// Kinds of fabrics.
pub const FABRICS: usize = 2;
/// Protocols.
pub const PROTOCOLS: usize = 4;
/// The largest number of reasons for a decision that differs from the request.
pub const REFUSALS: usize = 12;
/// Classes of lengths: up to 64 bytes, up to 256, and so on in steps of four.
pub const SIZE_CLASSES: usize = 16;

/// Stands for a link that the sender did not ask for.
const NO_LINK: u64 = 0xffff;
/// Stands for a fabric or protocol that the sender did not ask for.
const NONE: u64 = 0xff;
/// The number of words before the words of the latencies.
const COUNT_WORDS: usize = 32;

const _: () = assert!(1 + FABRICS + FABRICS * PROTOCOLS + 1 + REFUSALS <= COUNT_WORDS);
const _: () = assert!(COUNT_WORDS + FABRICS * PROTOCOLS * SIZE_CLASSES * 2 == MODE_WORDS);

/// A link over which a node sends to another, all priorities together. `F` names its kind of fabric: a number below [`FABRICS`] on
/// a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRow<F = u8> {
    /// The target node.
    pub node: NodeId,
    /// The target's incarnation.
    pub incarnation: Incarnation,
    /// Its kind of fabric.
    pub fabric: F,
    /// Its number within that kind, from 0.
    pub link: u8,
    /// Messages and other packets that the target has not taken yet, as far as is known. In shared memory the target may have
    /// taken up to a quarter of the lane since.
    pub depth: u32,
    /// Messages that wait in the sending node for room on this link.
    pub queued: u32,
    /// Bytes that the target has not taken yet. In shared memory, messages that fit into a cell are not counted.
    pub bytes: u64,
    /// The room in bytes.
    pub room: u64,
    /// DMA transfers that are not complete, including those of which the link carries only a part.
    pub transfers: u32,
    /// The part of the memory that is written and not yet read, in thousandths. If the link has several lanes, that of the
    /// fullest.
    pub occupancy: u16,
    /// Messages sent over it so far to this incarnation.
    pub messages: u64,
    /// Their bytes, including those moved by DMA.
    pub bytes_sent: u64,
}

impl<F> LinkRow<F> {
    /// The same link, with another name for its kind of fabric.
    pub fn with_fabric<G>(self, fabric: G) -> LinkRow<G> {
        let Self { node, incarnation, link, depth, queued, bytes, room, transfers, occupancy, messages, bytes_sent, .. } = self;
        LinkRow { node, incarnation, fabric, link, depth, queued, bytes, room, transfers, occupancy, messages, bytes_sent }
    }
}

impl LinkRow {
    fn words(&self) -> [u64; WORDS - 1] {
        [
            u64::from(self.incarnation.0)
                | u64::from(self.node.0) << 32
                | u64::from(self.fabric) << 48
                | u64::from(self.link) << 56,
            u64::from(self.depth) | u64::from(self.queued) << 32,
            self.bytes,
            self.room,
            u64::from(self.transfers) | u64::from(self.occupancy) << 32,
            self.messages,
            self.bytes_sent,
        ]
    }

    fn of(words: &[u64; WORDS - 1]) -> Option<Self> {
        let [key, waiting, bytes, room, load, messages, bytes_sent] = *words;
        let row = Self {
            node: NodeId((key >> 32) as u16),
            incarnation: Incarnation(key as u32),
            fabric: (key >> 48) as u8,
            link: (key >> 56) as u8,
            depth: waiting as u32,
            queued: (waiting >> 32) as u32,
            bytes,
            room,
            transfers: load as u32,
            occupancy: (load >> 32) as u16,
            messages,
            bytes_sent,
        };
        (usize::from(row.fabric) < FABRICS && row.occupancy <= 1000).then_some(row)
    }
}

/// One count of the modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeWord {
    /// Messages that asked for this fabric, or for none.
    Requested(Option<u8>),
    /// Messages that took this fabric and protocol.
    Used(u8, u8),
    /// Messages that went as requested, or by default.
    Honoured,
    /// Messages that did not go as requested, for the reason with this number.
    Refused(u8),
    /// Sampled messages by fabric, protocol and class of lengths.
    Samples(u8, u8, u8),
    /// The total time of those samples, in nanoseconds.
    Nanoseconds(u8, u8, u8),
}

impl ModeWord {
    /// The class that a length belongs to.
    ///
    /// ```
    /// use doorbell_shm::board::ModeWord;
    /// assert_eq!([0, 64, 65, 256, 257, 1 << 30, u64::MAX].map(ModeWord::size_class), [0, 0, 1, 1, 2, 12, 15]);
    /// ```
    pub fn size_class(len: u64) -> u8 {
        let doublings = 64 - (len.max(1) - 1).leading_zeros().min(64);
        doublings.saturating_sub(6).div_ceil(2).min(SIZE_CLASSES as u32 - 1) as u8
    }

    /// The longest message of a class, in bytes. The last class has no limit.
    pub fn class_bytes(class: u8) -> u64 {
        if usize::from(class) < SIZE_CLASSES - 1 { 64 << (2 * class) } else { u64::MAX }
    }

    #[inline]
    fn at(self) -> Option<usize> {
        let mode = |fabric: u8, protocol: u8| {
            let is_one = usize::from(fabric) < FABRICS && usize::from(protocol) < PROTOCOLS;
            is_one.then_some(usize::from(fabric) * PROTOCOLS + usize::from(protocol))
        };
        let latency = |fabric, protocol, class: u8| {
            let class = Some(usize::from(class)).filter(|class| *class < SIZE_CLASSES)?;
            Some(COUNT_WORDS + (mode(fabric, protocol)? * SIZE_CLASSES + class) * 2)
        };
        match self {
            ModeWord::Requested(None) => Some(0),
            ModeWord::Requested(Some(fabric)) => Some(1 + usize::from(fabric)).filter(|at| *at <= FABRICS),
            ModeWord::Used(fabric, protocol) => Some(1 + FABRICS + mode(fabric, protocol)?),
            ModeWord::Honoured => Some(1 + FABRICS + FABRICS * PROTOCOLS),
            ModeWord::Refused(reason) => {
                (usize::from(reason) < REFUSALS).then_some(2 + FABRICS + FABRICS * PROTOCOLS + usize::from(reason))
            }
            ModeWord::Samples(fabric, protocol, class) => latency(fabric, protocol, class),
            ModeWord::Nanoseconds(fabric, protocol, class) => latency(fabric, protocol, class).map(|at| at + 1),
        }
    }
}

/// The counts at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeFigures(pub(super) Box<[u64; MODE_WORDS]>);

impl Default for ModeFigures {
    fn default() -> Self {
        Self(Box::new([0; MODE_WORDS]))
    }
}

impl ModeFigures {
    /// One count; 0 for a combination that is not counted.
    pub fn get(&self, word: ModeWord) -> u64 {
        word.at().map_or(0, |at| self.0[at])
    }

    /// Adds the counts of another node.
    pub fn add(&mut self, other: &ModeFigures) {
        self.0.iter_mut().zip(other.0.iter()).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
    }
}

/// The node's own counts, in private memory. They use plain loads and stores: if two threads change a word at once, its count is
/// only approximate.
#[derive(Debug, Default)]
pub struct ModeTallies(Box<Words<MODE_WORDS>>);

impl ModeTallies {
    /// Adds to a count.
    #[inline]
    pub fn add(&self, word: ModeWord, amount: u64) {
        self.change(word, |count| count.wrapping_add(amount));
    }

    /// Subtracts one from a count.
    pub fn lower(&self, word: ModeWord) {
        self.change(word, |count| count.saturating_sub(1));
    }

    #[inline]
    fn change(&self, word: ModeWord, change: impl FnOnce(u64) -> u64) {
        if let Some(count) = word.at().map(|at| &self.0.0[at]) {
            count.store(change(count.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    /// The current counts.
    pub fn read(&self) -> ModeFigures {
        ModeFigures(Box::new(self.0.read()))
    }
}

/// A mode, or the requested parts of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ModeParts {
    /// The number of its kind of fabric.
    pub fabric: Option<u8>,
    /// The index of the link within that kind.
    pub link: Option<u8>,
    /// The number of its protocol.
    pub protocol: Option<u8>,
}

impl ModeParts {
    fn word(self) -> u64 {
        self.fabric.map_or(NONE, u64::from)
            | self.protocol.map_or(NONE, u64::from) << 8
            | self.link.map_or(NO_LINK, u64::from) << 16
    }

    fn of(word: u32) -> Option<Self> {
        let word = u64::from(word);
        let part = |found: u64, none: u64, limit: usize| match found {
            found if found == none => Some(None),
            found if found < limit as u64 => Some(Some(found as u8)),
            _ => None,
        };
        Some(Self {
            fabric: part(word & 0xff, NONE, FABRICS)?,
            protocol: part(word >> 8 & 0xff, NONE, PROTOCOLS)?,
            link: part(word >> 16, NO_LINK, 256)?,
        })
    }
}

/// A message that did not go as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionRecord {
    /// The target node.
    pub to: NodeId,
    /// The number of the API call.
    pub call: u8,
    /// The length of the message in bytes.
    pub len: u64,
    /// Whether the message lay in a region of the sending node.
    pub in_region: bool,
    /// The requested mode.
    pub requested: ModeParts,
    /// The mode that was used.
    pub used: ModeParts,
    /// One bit for each further link, below 16, that carried a part.
    pub beside: u8,
    /// The number of the reason, below [`REFUSALS`].
    pub reason: u8,
    /// The numbers behind the reason: the observed value, and the value it was compared with.
    pub metrics: [u64; 2],
}

/// A decision as read from a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Its number: the first decision of a node has 1.
    pub number: u64,
    /// When it was made, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The decision.
    pub record: DecisionRecord,
}

/// The owner's handle on the latest decisions. Any thread of the owner may write, as with the [recorder](super::Recorder).
#[derive(Debug)]
pub struct DecisionRing(Decisions);

type Decisions = Ring<DECISIONS_OFFSET, DECISIONS>;

impl DecisionRing {
    /// Starts on a board that has no decisions yet.
    pub fn new(home: Home) -> Self {
        Self(Ring::new(home))
    }

    /// Writes a decision over the oldest one. Takes some 30 ns.
    pub fn write(&self, record: &DecisionRecord) {
        let DecisionRecord { to, call, len, in_region, requested, used, beside, reason, metrics } = record;
        let flags = u64::from(*in_region) | u64::from(*beside & BESIDE) << 1;
        let what = u64::from(to.0) | u64::from(*call) << 16 | u64::from(*reason) << 24 | flags << 32;
        self.0.write([*len, what, requested.word() | used.word() << 32, metrics[0], metrics[1]]);
    }
}

/// The width of the field of further links, in bits.
const BESIDE: u8 = 15;

impl Board<'_> {
    /// Shows a link in a row below [`LINK_ROWS`], or marks the row as free. For the owner.
    pub fn show_link(self, row: usize, link: Option<&LinkRow>) {
        let base = LINK_ROWS_OFFSET + row.min(LINK_ROWS - 1) * RECORD_BYTES;
        match link {
            Some(link) => self.write_checked(base, &link.words()),
            None => (0..WORDS).for_each(|index| self.word(base + index * 8).store(0, Ordering::Relaxed)),
        }
    }

    /// The links, in row order.
    pub fn links(self) -> Vec<LinkRow> {
        let rows = (0..LINK_ROWS).map(|row| LINK_ROWS_OFFSET + row * RECORD_BYTES);
        rows.filter_map(|base| LinkRow::of(&self.read_checked(base)?)).collect()
    }

    /// The latest decisions, oldest first.
    pub fn decisions(self) -> Vec<Decided> {
        Decisions::read(self, |number, time_ns, [len, what, modes, first, second]| {
            let reason = (what >> 24) as u8;
            if what >> 37 != 0 || usize::from(reason) >= REFUSALS {
                return None;
            }
            let (requested, used) = (ModeParts::of(modes as u32)?, ModeParts::of((modes >> 32) as u32)?);
            let (to, call, in_region, metrics) = (NodeId(what as u16), (what >> 16) as u8, what >> 32 & 1 != 0, [first, second]);
            let beside = (what >> 33) as u8 & BESIDE;
            let record = DecisionRecord { to, call, len, in_region, requested, used, beside, reason, metrics };
            Some(Decided { number, time_ns, record })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::testing::HeapBoard;
    use proptest::prelude::*;

    fn row(node: u16, messages: u64) -> LinkRow {
        LinkRow {
            node: NodeId(node),
            incarnation: Incarnation(7),
            fabric: 1,
            link: 3,
            depth: 4,
            queued: 5,
            bytes: messages * 3,
            room: 1 << 20,
            transfers: 6,
            occupancy: 1000,
            messages,
            bytes_sent: messages * 5,
        }
    }

    fn decision(len: u64) -> DecisionRecord {
        DecisionRecord {
            to: NodeId(1023),
            call: 2,
            len,
            in_region: len.is_multiple_of(2),
            requested: ModeParts { fabric: Some(1), link: Some(255), protocol: None },
            used: ModeParts { fabric: Some(0), link: Some(0), protocol: Some(3) },
            beside: (len % 16) as u8,
            reason: 6,
            metrics: [len, u64::MAX],
        }
    }

    #[test]
    fn a_row_is_shown_used_again_and_cleared() {
        let room = HeapBoard::new();
        let board = room.home.board();
        assert_eq!(board.links(), []);
        (0..LINK_ROWS).for_each(|at| board.show_link(at, Some(&row(at as u16, 1))));
        assert_eq!(board.links().len(), LINK_ROWS);
        board.show_link(9, Some(&row(700, 2)));
        assert_eq!(board.links()[9], row(700, 2));
        board.show_link(9, None);
        assert!(board.links().len() == LINK_ROWS - 1 && board.links().iter().all(|link| link.node != NodeId(700)));
    }

    #[test]
    fn a_torn_or_forged_row_or_decision_is_left_out() {
        let room = HeapBoard::new();
        let board = room.home.board();
        let ring = DecisionRing::new(room.home.clone());
        (0..3).for_each(|at| board.show_link(at, Some(&row(at as u16, 1))));
        (0..3).for_each(|at| ring.write(&decision(at)));
        for index in 0..WORDS {
            for base in [LINK_ROWS_OFFSET + RECORD_BYTES, Decisions::place(2)] {
                let word = board.word(base + index * 8);
                let kept = word.load(Ordering::Relaxed);
                word.store(kept ^ 1, Ordering::Relaxed);
                let (rows, decisions) = (board.links().len(), board.decisions().len());
                assert_eq!(rows + decisions, 5, "word {index}");
                word.store(kept, Ordering::Relaxed);
            }
        }
        // These rows are whole, but no correct owner writes them.
        let forged = [row(1, 1), LinkRow { fabric: 2, ..row(1, 1) }, LinkRow { occupancy: 1001, ..row(1, 1) }];
        let found = forged.map(|row| {
            board.show_link(0, Some(&row));
            board.links().len()
        });
        assert_eq!(found, [3, 2, 2]);
    }

    #[test]
    fn the_latest_decisions_are_read_in_order() {
        let room = HeapBoard::new();
        let ring = DecisionRing::new(room.home.clone());
        assert_eq!(room.home.board().decisions(), []);
        (0..DECISIONS as u64 * 2 + 5).for_each(|at| ring.write(&decision(at)));
        let found = room.home.board().decisions();
        assert_eq!(found.len(), DECISIONS);
        let first = DECISIONS as u64 + 5;
        for (at, decided) in found.iter().enumerate() {
            assert_eq!((decided.number, decided.record), (first + at as u64 + 1, decision(first + at as u64)));
        }
    }

    #[test]
    fn each_count_has_a_word_of_its_own() {
        let mut words = vec![ModeWord::Requested(None), ModeWord::Honoured];
        words.extend((0..FABRICS as u8).map(|fabric| ModeWord::Requested(Some(fabric))));
        words.extend((0..REFUSALS as u8).map(ModeWord::Refused));
        for fabric in 0..FABRICS as u8 {
            for protocol in 0..PROTOCOLS as u8 {
                words.push(ModeWord::Used(fabric, protocol));
                for class in 0..SIZE_CLASSES as u8 {
                    words.extend([ModeWord::Samples(fabric, protocol, class), ModeWord::Nanoseconds(fabric, protocol, class)]);
                }
            }
        }
        let tallies = ModeTallies::default();
        for (at, word) in words.iter().enumerate() {
            tallies.add(*word, at as u64 + 2);
            tallies.lower(*word);
        }
        for word in [ModeWord::Requested(Some(2)), ModeWord::Used(0, 4), ModeWord::Refused(12), ModeWord::Samples(0, 0, 16)] {
            tallies.add(word, 1000);
            assert_eq!(tallies.read().get(word), 0);
        }
        let room = HeapBoard::new();
        room.home.board().show_modes(&tallies.read());
        let mut found = room.home.board().modes();
        found.add(&tallies.read());
        for (at, word) in words.iter().enumerate() {
            assert_eq!(found.get(*word), 2 * (at as u64 + 1), "{word:?}");
        }
    }

    #[test]
    fn classes_of_lengths_follow_each_other() {
        for class in 0..SIZE_CLASSES as u8 {
            let most = ModeWord::class_bytes(class);
            assert_eq!(ModeWord::size_class(most), class);
            if let Some(next) = most.checked_add(1) {
                assert_eq!(ModeWord::size_class(next), class + 1);
            }
        }
    }

    proptest! {
        #[test]
        // Miri is too slow for this many cases.
        #[cfg_attr(miri, ignore)]
        fn whatever_lies_on_a_board_can_be_read(words in proptest::collection::vec(any::<u64>(), WORDS - 1), at in 0..32_usize) {
            let room = HeapBoard::new();
            let words = <[u64; WORDS - 1]>::try_from(words).unwrap();
            // A hostile owner can write any words with a correct check word.
            for base in [LINK_ROWS_OFFSET, DECISIONS_OFFSET] {
                room.home.board().write_checked(base + at * RECORD_BYTES, &words);
            }
            for link in room.home.board().links() {
                prop_assert!(usize::from(link.fabric) < FABRICS && link.occupancy <= 1000);
                prop_assert_eq!(LinkRow::of(&link.words()), Some(link));
            }
            prop_assert!(room.home.board().decisions().len() <= 1);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "too slow")]
    fn readers_never_see_mixed_rows() {
        let room = HeapBoard::new();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut at = 0;
                while !stop.load(Ordering::Relaxed) {
                    at += 1;
                    room.home.board().show_link(0, Some(&row(at as u16, at)));
                }
            });
            let mut seen = 0;
            while seen < 20_000 {
                for found in room.home.board().links() {
                    assert_eq!(found, row(found.messages as u16, found.messages));
                    seen += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
