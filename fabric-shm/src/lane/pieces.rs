//! The pieces of a payload that is copied while it is written.

use super::{PIECE_LEAST, PIECES_LEAST};

/// The pieces of one payload: at most [`MOST`](Self::MOST), all of one length but the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    /// Bytes of the payload.
    len: usize,
    /// Bytes of a piece.
    piece: usize,
}

impl Pieces {
    /// Enough for a copy beside the write. Each piece costs journeys of the cell.
    pub const MOST: usize = 64;

    /// The pieces of a payload, of at least this length.
    pub fn of(len: usize, piece: usize) -> Self {
        Self { len, piece: piece.max(len.div_ceil(Self::MOST).next_multiple_of(64)) }
    }

    /// The pieces of which a producer states the length. `None` if none would choose it: each look for a short piece costs as much as for
    /// a long one.
    pub fn stated(len: usize, piece: u64) -> Option<Self> {
        let piece = usize::try_from(piece).ok()?;
        let is_right = piece.is_multiple_of(64) && piece >= PIECE_LEAST && len >= PIECES_LEAST;
        (is_right && len.div_ceil(piece) <= Self::MOST).then_some(Self { len, piece })
    }

    /// Bytes of a piece.
    pub fn bytes(self) -> usize {
        self.piece
    }

    /// The number of pieces.
    pub fn count(self) -> usize {
        self.len.div_ceil(self.piece)
    }

    /// Where a piece begins in the payload.
    pub fn start(self, number: usize) -> usize {
        number * self.piece
    }

    /// The length of a piece.
    pub fn len_of(self, number: usize) -> usize {
        self.piece.min(self.len - self.start(number))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..Default::default() })]

        #[test]
        fn pieces_cover_a_payload(len in PIECES_LEAST..1 << 24, piece in 0..1_usize << 16) {
            let pieces = Pieces::of(len, (piece & !63).max(PIECE_LEAST));
            prop_assert!(pieces.count() <= Pieces::MOST);
            let mut end = 0;
            for number in 0..pieces.count() {
                prop_assert_eq!(pieces.start(number), end);
                prop_assert!(pieces.len_of(number) > 0);
                end += pieces.len_of(number);
            }
            prop_assert_eq!(end, len);
            prop_assert_eq!(Pieces::stated(len, pieces.bytes() as u64).map(Pieces::bytes), Some(pieces.bytes()));
        }

        #[test]
        fn stated_pieces_are_few_and_long(len in 0..1_usize << 24, piece: u64) {
            for piece in [piece, piece % (1 << 20), (piece % (1 << 20)) & !63] {
                let Some(pieces) = Pieces::stated(len, piece) else { continue };
                prop_assert!(pieces.bytes() >= PIECE_LEAST && (1..=Pieces::MOST).contains(&pieces.count()));
            }
        }
    }
}
