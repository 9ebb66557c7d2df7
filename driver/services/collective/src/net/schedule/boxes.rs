//! Which members of a team share memory.

/// Boxes, and who is in them. Those of one box share memory; those of different ones do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boxes {
    /// By box, in the order of their first members: ranks, which go up.
    ranks: Vec<Vec<usize>>,
    /// By rank: in which box.
    of: Vec<usize>,
}

impl Boxes {
    /// Every member for itself: nothing is known of shared memory.
    pub fn alone(members: usize) -> Self {
        Self { ranks: (0..members).map(|rank| vec![rank]).collect(), of: (0..members).collect() }
    }

    /// From what members say: whether the first shares memory with the second. Each for itself if that makes no boxes, as where one says so of another
    /// that denies it. All members have to make it of the same.
    pub fn new(members: usize, says: impl Fn(usize, usize) -> bool) -> Self {
        let mut boxes = Self { ranks: Vec::new(), of: Vec::with_capacity(members) };
        for rank in 0..members {
            let home = boxes.ranks.iter().position(|ranks| says(rank, ranks[0])).unwrap_or(boxes.ranks.len());
            if home == boxes.ranks.len() {
                boxes.ranks.push(Vec::new());
            }
            boxes.ranks[home].push(rank);
            boxes.of.push(home);
        }
        let is_so = |a: usize, b: usize| a == b || says(a, b) == (boxes.of[a] == boxes.of[b]);
        if (0..members).all(|a| (0..members).all(|b| is_so(a, b))) { boxes } else { Self::alone(members) }
    }

    /// How many members there are.
    pub fn members(&self) -> usize {
        self.of.len()
    }

    /// The ranks in each box.
    pub fn ranks(&self) -> &[Vec<usize>] {
        &self.ranks
    }

    /// In which box a member is.
    pub(super) fn of(&self, rank: usize) -> usize {
        self.of[rank]
    }

    /// Whether there are several boxes, and several members in one.
    pub fn have_two_levels(&self) -> bool {
        self.ranks.len() > 1 && self.ranks.len() < self.of.len()
    }

    /// Whether ranks that follow each other are in the same box or the next: then what is combined by boxes is so in the order of ranks.
    pub fn are_in_order(&self) -> bool {
        self.of.is_sorted()
    }

    /// Who speaks for each box: its first member, or the root.
    pub(super) fn leaders(&self, root: Option<usize>) -> Vec<usize> {
        let mut leaders: Vec<usize> = self.ranks.iter().map(|ranks| ranks[0]).collect();
        if let Some(root) = root {
            leaders[self.of[root]] = root;
        }
        leaders
    }
}
