//! How many bytes each member contributes to a collective and gets from it.

/// A number of bytes for each member.
#[derive(Clone, Debug)]
pub(super) enum Counts {
    /// The same number for each member.
    Each(usize),
    /// A number by rank.
    List(Box<[usize]>),
}

impl Counts {
    pub fn of(&self, rank: usize) -> usize {
        match self {
            Counts::Each(each) => *each,
            Counts::List(list) => list[rank],
        }
    }

    /// The sum over all ranks below this one: where the part of this rank begins, if the parts lie one behind the other.
    pub fn before(&self, rank: usize) -> usize {
        match self {
            Counts::Each(each) => each * rank,
            Counts::List(list) => list[..rank].iter().sum(),
        }
    }

    /// A number by which members compare their lists.
    pub fn digest(&self) -> u64 {
        let prime = 0x0000_0100_0000_01b3;
        let add = |digest: u64, len: &usize| (digest.rotate_left(29) ^ *len as u64).wrapping_mul(prime);
        match self {
            Counts::Each(each) => add(0, each),
            Counts::List(list) => list.iter().fold(0xcbf2_9ce4_8422_2325, add),
        }
    }
}

/// How many bytes this member sends to each member, and gets from each.
#[derive(Clone, Debug)]
pub(super) struct Lengths {
    pub send: Counts,
    pub get: Counts,
    /// Whether lengths differ by member. The members then tell each other which lengths they expect.
    pub vary: bool,
}

impl Lengths {
    /// All parts have the same length.
    pub fn each(bytes: usize) -> Self {
        Self { send: Counts::Each(bytes), get: Counts::Each(bytes), vary: false }
    }

    pub fn varying(send: Counts, get: Counts) -> Self {
        Self { send, get, vary: true }
    }
}
