//! Operations by chance, with the results that they should have.

use super::super::schedule::Schedule;
use super::super::*;
use crate::combine::Combine;
use crate::kind::Kind;
use crate::span::Span;

pub const KINDS: [Kind; 10] = [
    Kind::Barrier,
    Kind::Broadcast,
    Kind::Reduce,
    Kind::AllReduce,
    Kind::Scan,
    Kind::Gather,
    Kind::Scatter,
    Kind::AllGather,
    Kind::AllToAll,
    Kind::ReduceScatter,
];

/// Chance by a seed.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.word() % end.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }
}

/// An affine map `x → a·x + b`: to do one after the other is associative, but not commutative.
pub type Element = [u32; 2];
pub const ELEMENT: usize = 8;

pub fn combine(commutative: bool, left: Element, right: Element) -> Element {
    let [(a, b), (c, d)] = [(left[0], left[1]), (right[0], right[1])];
    if commutative { [a.wrapping_add(c), b.wrapping_add(d)] } else { [a.wrapping_mul(c), b.wrapping_mul(c).wrapping_add(d)] }
}

pub fn combine_all(commutative: bool, inputs: &[Vec<Element>]) -> Vec<Element> {
    let mut all = inputs[0].clone();
    for input in &inputs[1..] {
        for (sum, element) in all.iter_mut().zip(input) {
            *sum = combine(commutative, *sum, *element);
        }
    }
    all
}

fn elements(len: usize, chance: &mut Chance) -> Vec<Element> {
    // Odd factors have inverses, so that nothing is lost on the way.
    (0..len).map(|_| [chance.word() as u32 | 1, chance.word() as u32]).collect()
}

/// Members in boxes: in order, in any order, or each alone.
fn boxes(members: usize, chance: &mut Chance) -> Boxes {
    let many = 1 + chance.below(members.min(5));
    let mut homes: Vec<usize> = (0..members).map(|_| chance.below(many)).collect();
    match chance.below(4) {
        0 => return Boxes::alone(members),
        1 => (),
        _ => homes.sort_unstable(),
    }
    Boxes::new(members, |a, b| homes[a] == homes[b])
}

/// An operation of all members, and the results that they should get.
#[derive(Debug)]
pub struct Case {
    pub kind: Kind,
    pub algorithm: Algorithm,
    pub members: usize,
    pub boxes: Boxes,
    pub root: usize,
    pub len: usize,
    pub commutative: bool,
    pub in_place: bool,
    pub counts: Vec<usize>,
    /// By sender, then by receiver; and the other way round.
    pub sends: Vec<Vec<usize>>,
    pub receives: Vec<Vec<usize>>,
}

impl Case {
    pub fn new(kind: Kind, members: usize, root: usize, len: usize, commutative: bool, chance: &mut Chance) -> Self {
        // Some have none.
        let mut count = || if chance.one_in(4) { 0 } else { chance.below(2 * len / members + 2) };
        let counts: Vec<usize> = (0..members).map(|_| count()).collect();
        let mut sends: Vec<Vec<_>> = (0..members).map(|_| (0..members).map(|_| count()).collect()).collect();
        for (from, row) in sends.iter_mut().enumerate() {
            for (to, cell) in row.iter_mut().enumerate() {
                *cell = match kind {
                    _ if !kind.gives(root, from, to) => 0,
                    Kind::Gather | Kind::AllGather => counts[from],
                    Kind::Scatter | Kind::ReduceScatter => counts[to],
                    _ => *cell,
                };
            }
        }
        let receives = (0..members).map(|to| sends.iter().map(|row| row[to]).collect()).collect();
        let boxes = boxes(members, chance);
        let algorithm = choose(kind, &boxes, len * ELEMENT, commutative);
        let may = matches!(kind, Kind::Reduce | Kind::AllReduce | Kind::Scan);
        let in_place = may && chance.one_in(2);
        Self { kind, algorithm, members, boxes, root, len, commutative, in_place, counts, sends, receives }
    }

    pub fn random(chance: &mut Chance, members: usize, len: usize) -> Self {
        let kind = KINDS[chance.below(KINDS.len())];
        let (root, commutative) = (chance.below(members), chance.one_in(2));
        let mut case = Self::new(kind, members, root, len, commutative, chance);
        let algorithm = Algorithm::ALL[chance.below(Algorithm::ALL.len())];
        if algorithm.carries(kind, commutative, &case.boxes) {
            case.algorithm = algorithm;
        }
        case
    }

    pub fn operation(&self, me: usize) -> Operation<'_> {
        let Self { kind, root, len, commutative, .. } = *self;
        Operation { kind, root, len, sends: &self.sends[me], receives: &self.receives[me], commutative }
    }

    pub fn schedule(&self, me: usize) -> Schedule {
        self.operation(me).schedule(me, &self.boxes, ELEMENT, self.algorithm).unwrap()
    }

    /// Inputs, outputs before the operation, and outputs as they should be afterwards.
    pub fn data(&self, chance: &mut Chance) -> [Vec<Vec<Element>>; 3] {
        let total = self.counts.iter().sum();
        let is_root = |rank: usize| rank == self.root;
        let lens = |rank: usize| match self.kind {
            Kind::Barrier => (0, 0),
            Kind::Broadcast => (0, self.len),
            Kind::Reduce => (self.len, if is_root(rank) { self.len } else { 0 }),
            Kind::AllReduce | Kind::Scan => (self.len, self.len),
            Kind::Gather => (self.counts[rank], if is_root(rank) { total } else { 0 }),
            Kind::Scatter => (if is_root(rank) { total } else { 0 }, self.counts[rank]),
            Kind::AllGather => (self.counts[rank], total),
            Kind::AllToAll => (self.sends[rank].iter().sum(), self.receives[rank].iter().sum()),
            Kind::ReduceScatter => (total, self.counts[rank]),
        };
        let inputs: Vec<_> = (0..self.members).map(|rank| elements(lens(rank).0, chance)).collect();
        let mut before: Vec<_> = (0..self.members).map(|rank| elements(lens(rank).1, chance)).collect();
        let in_place = |rank: usize| self.in_place && lens(rank).0 == lens(rank).1;
        (0..self.members).filter(|rank| in_place(*rank)).for_each(|rank| before[rank] = inputs[rank].clone());

        let start = |counts: &[usize], rank: usize| counts[..rank].iter().sum::<usize>();
        let block = |all: &[Element], counts: &[usize], rank: usize| all[start(counts, rank)..][..counts[rank]].to_vec();
        let after = (0..self.members).map(|rank| match self.kind {
            Kind::Barrier => vec![],
            Kind::Broadcast => before[self.root].clone(),
            Kind::Reduce | Kind::Gather if !is_root(rank) => vec![],
            Kind::Reduce | Kind::AllReduce => combine_all(self.commutative, &inputs),
            // Always in order: a scan does not ask whether the reduction needs it.
            Kind::Scan => combine_all(self.commutative, &inputs[..=rank]),
            Kind::Gather | Kind::AllGather => inputs.concat(),
            Kind::Scatter => block(&inputs[self.root], &self.counts, rank),
            Kind::AllToAll => (0..self.members).flat_map(|from| block(&inputs[from], &self.sends[from], rank)).collect(),
            Kind::ReduceScatter => block(&combine_all(self.commutative, &inputs), &self.counts, rank),
        });
        let after = after.collect();
        [inputs, before, after]
    }

    pub fn call(&self, me: usize) -> Call {
        Call::new(&self.operation(me), self.algorithm, self.schedule(me).between)
    }

    pub fn run(&self, me: usize, input: Span, output: Span) -> Run {
        let fold = Box::new(Fold { commutative: self.commutative });
        Run::new(self.schedule(me), self.call(me), ELEMENT, (input, output), Some(fold))
    }
}

/// Elements as the memory of a run. Nothing else touches them before the run has ended.
pub fn span(elements: &mut [Element]) -> Span {
    // SAFETY: as above; the tests keep the elements in place.
    unsafe { Span::new(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

/// Combines elements as [`combine`] does.
pub struct Fold {
    commutative: bool,
}

impl Combine for Fold {
    fn combine(&self, into: &mut [u8], from: &[u8], left: bool) {
        let decode = |bytes: &[u8]| -> Element { [0, 4].map(|at| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())) };
        assert_eq!((into.as_ptr() as usize % 4, from.as_ptr() as usize % 16, into.len()), (0, 0, from.len()));
        for (into, from) in into.chunks_exact_mut(ELEMENT).zip(from.chunks_exact(ELEMENT)) {
            let [own, other] = [decode(into), decode(from)];
            let sum = if left { combine(self.commutative, other, own) } else { combine(self.commutative, own, other) };
            into.copy_from_slice(sum.map(u32::to_ne_bytes).as_flattened());
        }
    }

    fn commutes(&self) -> bool {
        self.commutative
    }

    fn element(&self) -> usize {
        ELEMENT
    }
}

/// Goes on with a run as far as it can. True when it is over.
pub fn advance(run: &mut Run, streams: &mut Streams) -> Result<bool, Failure> {
    loop {
        match run.step(streams)? {
            Stage::Waits => return Ok(false),
            Stage::Combines => run.combine(),
            Stage::Over => return Ok(true),
        }
    }
}
