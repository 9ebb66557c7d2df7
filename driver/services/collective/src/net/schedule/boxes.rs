//! Which members of a team share memory.

/// The boxes of a team, and their members. Members of one box share memory; members of different boxes do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boxes {
    /// The ranks of each box, in rising order. Boxes are in the order of their first members.
    ranks: Vec<Vec<usize>>,
    /// The box of each rank.
    of: Vec<usize>,
}

impl Boxes {
    /// A box for each member: nothing is known of shared memory.
    pub fn alone(members: usize) -> Self {
        Self { ranks: (0..members).map(|rank| vec![rank]).collect(), of: (0..members).collect() }
    }

    /// Boxes from what members say: whether the first shares memory with the second. A box for each member if the answers make no boxes, as when one
    /// member affirms what the other denies. All members have to make the boxes from the same answers.
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

    /// The box of a member.
    pub(super) fn of(&self, rank: usize) -> usize {
        self.of[rank]
    }

    /// Whether there are several boxes, and several members in one.
    pub fn have_two_levels(&self) -> bool {
        self.ranks.len() > 1 && self.ranks.len() < self.of.len()
    }

    /// Whether each rank is in the box of the rank before, or in the next box. Vectors that are combined by boxes then keep the order of ranks.
    pub fn are_in_order(&self) -> bool {
        self.of.is_sorted()
    }

    /// The leader of each box: its first member, or the root.
    pub(super) fn leaders(&self, root: Option<usize>) -> Vec<usize> {
        let mut leaders: Vec<usize> = self.ranks.iter().map(|ranks| ranks[0]).collect();
        if let Some(root) = root {
            leaders[self.of[root]] = root;
        }
        leaders
    }
}
