//! Runs: short messages of one tag that follow each other, several in a cell.
//!
//! A run begins with a message of at most 1 KiB in a cell of its own. The producer *appends* the next one in the same cell if it has the
//! same tag and the next sequence number, if there is room, and if it is no reply (`conversation.rs`). If there is no room, or it is a reply,
//! the producer *continues* the run in the next cell, where the payload follows the cell's first word at once, because both ends know tag and
//! sequence number. Any other packet ends the run.
//!
//! A message of 57 bytes to 1 KiB does not fit behind that word. If its payload can lie in the data ring directly behind the last payload there,
//! the message is *detached*: the producer writes only the first word of its cell. Otherwise, as at the beginning of a lap, a whole packet
//! begins the run anew. No message is appended behind a payload in the data ring. A detached message is never appended, either: the receiver
//! polls the line where its first word would go, so the sender would wait for that line in each message.
//!
//! So several messages that follow each other quickly share the journey of one line, and none is held back.
//!
//! The producer writes zero behind each message for which another has room, so the consumer finds no leftovers there. The consumer goes on
//! behind a cell as soon as it has the first message, and also looks at the word behind the last one. The producer appends only while it has
//! written no later packet, so what is appended comes before that packet.

use super::{APPENDED, CONTINUED, check_word, word};

/// The last word at which an appended message may begin: a word is left for its payload.
const LAST: usize = word::COUNT - 2;

/// The word where the payload begins in a cell that continues a run.
pub(super) const CONTINUED_AT: usize = 1;

/// The longest message that continues a run in its cell.
pub(super) const CONTINUED_MOST: usize = (word::COUNT - CONTINUED_AT) * 8;

/// The words of a payload. A sum that does not overflow takes two instructions fewer than `div_ceil`.
#[inline(always)]
fn words(len: usize) -> usize {
    (len + 7) >> 3
}

/// A run, from either end's viewpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// The position behind its last cell. If another packet is there, the run has ended.
    pub position: u64,
    /// The tag of its messages.
    pub tag: u64,
    /// The sequence number of the next message.
    pub sequence: u32,
    /// The word behind the last message in its cell.
    at: u32,
}

impl Run {
    /// No run. It has no room.
    pub const NONE: Self = Self { position: u64::MAX, tag: 0, sequence: 0, at: word::COUNT as u32 };

    /// A run whose last message has this sequence number. Its payload of `len` bytes begins at the word `at` of the cell before the
    /// position.
    #[inline(always)]
    pub fn behind(position: u64, tag: u64, sequence: u32, at: usize, len: usize) -> Self {
        Self { position, tag, sequence: sequence.wrapping_add(1), at: (at + words(len)) as u32 }
    }

    /// A run whose last message has its payload in the data ring. No message is appended to it.
    #[inline(always)]
    pub fn behind_data(position: u64, tag: u64, sequence: u32) -> Self {
        Self::behind(position, tag, sequence, word::COUNT, 0)
    }

    /// Whether a message with this tag and this sequence number belongs to the run, if its packet has this position.
    #[inline(always)]
    pub fn takes(&self, position: u64, tag: u64, sequence: u32) -> bool {
        self.position == position && self.tag == tag && self.sequence == sequence
    }

    /// Goes on behind an appended message, whose payload of `len` bytes begins at the word `at`.
    #[inline(always)]
    pub fn append(&mut self, at: usize, len: usize) {
        self.sequence = self.sequence.wrapping_add(1);
        self.at = (at + words(len)) as u32;
    }

    /// The index of the word that the producer sets to zero behind such a payload: there the next message may be appended.
    #[inline(always)]
    pub fn blank(at: usize, len: usize) -> Option<usize> {
        let behind = at + words(len);
        (behind <= LAST).then_some(behind)
    }

    /// The index of the word where the next message begins if it is appended. Its payload is behind that word.
    #[inline(always)]
    pub fn room(&self) -> Option<usize> {
        (self.at as usize <= LAST).then_some(self.at as usize)
    }

    /// The length of the longest message that has room behind the word `at`.
    #[inline(always)]
    pub fn most(at: usize) -> usize {
        (word::COUNT - 1 - at) * 8
    }

    /// The first word of an appended message of `len` bytes, if the run is at this position.
    #[inline(always)]
    pub fn check(position: u64, len: usize) -> u64 {
        check_word(position, APPENDED, len)
    }
}

/// A run from the consumer's viewpoint. The word where the next message begins is worked out when the consumer goes on, so that a look is one
/// load and one comparison.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(loom, allow(dead_code))]
pub(super) struct Ahead {
    /// The index of that word, among those of all cells: behind the last message if another has room there, otherwise the first word of the
    /// next cell.
    place: usize,
    /// Its value without the length, if the message is there.
    expected: u64,
    /// The words of its cell behind that word, or [`NEXT_CELL`](Self::NEXT_CELL).
    left: i32,
    /// The position behind the last cell of the run.
    pub position: u64,
    /// The tag of the run's messages.
    pub tag: u64,
    /// The sequence number of the next message.
    pub sequence: u32,
}

impl Ahead {
    /// No message has room in the cell of the last one.
    const NEXT_CELL: i32 = -1;

    /// There is no run. No word has the expected value when its length is shifted out, because the shift leaves zeros below.
    pub const NONE: Self = Self { place: 0, expected: 1, left: Self::NEXT_CELL, position: u64::MAX, tag: 0, sequence: 0 };

    /// What follows a run whose last cell is `cell`, before the cell `next`.
    #[inline(always)]
    pub fn of(run: Run, cell: usize, next: usize) -> Self {
        let Run { position, tag, sequence, .. } = run;
        let ahead = Self { position, tag, sequence, ..Self::NONE };
        match run.room() {
            Some(at) => Self {
                place: cell * word::COUNT + at,
                expected: Run::check(position, 0) << 24,
                left: (word::COUNT - 1 - at) as i32,
                ..ahead
            },
            // The position behind it would be 0, which a packet has, too.
            None if position == Run::NONE.position => Self::NONE,
            None => ahead.in_cell(next),
        }
    }

    /// The same, where no message has room in the cell of the last one.
    #[inline(always)]
    fn in_cell(self, next: usize) -> Self {
        let expected = check_word(self.position.wrapping_add(1), CONTINUED, 0) << 24;
        Self { place: next * word::COUNT + word::CHECK, expected, left: Self::NEXT_CELL, ..self }
    }

    /// The index of that word.
    #[inline(always)]
    pub fn place(&self) -> usize {
        self.place
    }

    /// The length of the next message if it is there and has this first word. It may be longer than its place allows.
    #[inline(always)]
    pub fn len_by(&self, check: u64) -> Option<usize> {
        (check << 24 == self.expected).then_some((check >> 40) as usize)
    }

    /// Whether the next message begins in the next cell.
    #[inline(always)]
    pub fn is_in_next_cell(&self) -> bool {
        self.left == Self::NEXT_CELL
    }

    /// Whether an appended message of this length has room.
    #[inline(always)]
    pub fn has_room_for(&self, len: usize) -> bool {
        words(len) as i32 <= self.left
    }

    /// Goes on behind an appended message of this length, which has room, before the cell `next`.
    #[inline(always)]
    pub fn pass(&mut self, len: usize, next: impl FnOnce() -> usize) {
        let words = 1 + words(len);
        let left = self.left - words as i32;
        // A message begins only where a word is left behind its first word.
        if left > 0 {
            (self.place, self.left) = (self.place + words, left);
        } else {
            *self = self.in_cell(next());
        }
        self.sequence = self.sequence.wrapping_add(1);
    }
}
