//! Schedules, carried out with mailboxes or without.

use super::super::place::{How, Place, Region};
use super::super::tests::case::{Case, Chance, Element, KINDS, combine};
use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// A member that carries out its schedule with mailboxes.
struct Member {
    schedule: Schedule,
    input: Vec<Element>,
    output: Vec<Element>,
    scratch: Vec<Element>,
    in_place: bool,
    commutative: bool,
    round: usize,
    has_begun: bool,
    done: Vec<bool>,
    coming: Vec<Vec<Element>>,
}

impl Member {
    fn read(&self, place: &Place) -> Vec<Element> {
        let all = match place.region {
            Region::Input if self.in_place => &self.output,
            Region::Input => &self.input,
            Region::Output => &self.output,
            Region::Scratch => &self.scratch,
            Region::Coming => panic!("a schedule has no such place"),
        };
        all[place.range.clone()].to_vec()
    }

    fn write(&mut self, place: &Place, elements: &[Element]) {
        let all = match place.region {
            Region::Output => &mut self.output,
            Region::Scratch => &mut self.scratch,
            Region::Input | Region::Coming => panic!("it is not to be written"),
        };
        all[place.range.clone()].copy_from_slice(elements);
    }

    /// Puts a vector into a place.
    fn apply(&mut self, into: &Place, other: &[Element], how: How) {
        if how == How::Store {
            return self.write(into, other);
        }
        let mut sum = self.read(into);
        assert_eq!(sum.len(), other.len());
        for (own, other) in sum.iter_mut().zip(other) {
            let left = how == How::Before;
            *own = if left { combine(self.commutative, *other, *own) } else { combine(self.commutative, *own, *other) };
        }
        self.write(into, &sum);
    }

    /// Begins a round, or ends it. True if it did.
    fn turn(&mut self) -> bool {
        let Some(steps) = self.schedule.rounds.get(self.round).cloned() else { return false };
        if !self.has_begun {
            assert!(!steps.is_empty());
            self.has_begun = true;
            self.done = vec![false; steps.len()];
            self.coming = vec![vec![]; steps.len()];
            for (index, step) in steps.iter().enumerate() {
                if let Step::Local { from, into, how } = step {
                    self.apply(into, &self.read(from), *how);
                    self.done[index] = true;
                }
            }
            return true;
        }
        if self.done.contains(&false) {
            return false;
        }
        for (index, step) in steps.iter().enumerate() {
            if let Step::Receive { into, how: how @ (How::After | How::Before), .. } = step {
                let coming = std::mem::take(&mut self.coming[index]);
                self.apply(into, &coming, *how);
            }
        }
        self.round += 1;
        self.has_begun = false;
        true
    }

    fn steps(&self) -> &[Step] {
        if self.has_begun { &self.schedule.rounds[self.round] } else { &[] }
    }

    /// The first receive from a member that has not ended.
    fn expects(&self, rank: usize) -> Option<usize> {
        let is_it = |step: &Step| matches!(step, Step::Receive { from, .. } if *from == rank);
        (0..self.steps().len()).find(|index| is_it(&self.steps()[*index]) && !self.done[*index])
    }

    fn accept(&mut self, index: usize, elements: Vec<Element>) {
        let step = self.steps()[index].clone();
        let Step::Receive { into, how, .. } = &step else { panic!("{step:?}") };
        assert_eq!(into.len(), elements.len(), "a sent vector is as long as the expected one");
        if *how == How::Store {
            self.write(into, &elements);
        } else {
            self.coming[index] = elements;
        }
        self.done[index] = true;
    }
}

/// Carries out all schedules; without mailboxes each send waits until its receiver is there.
fn execute(case: &Case, chance: &mut Chance, mailboxes: bool) {
    let members = case.members;
    let [inputs, outputs, expected] = case.data(chance);
    let member = |rank: usize| {
        let schedule = case.schedule(rank);
        let (input, output) = (inputs[rank].clone(), outputs[rank].clone());
        assert_eq!((schedule.input, schedule.output), (input.len(), output.len()));
        let scratch = vec![[0xdead, 0xbeef]; schedule.scratch];
        let (in_place, commutative) = (case.in_place && input.len() == output.len(), case.commutative);
        let (done, coming) = (vec![], vec![]);
        Member { schedule, input, output, scratch, in_place, commutative, round: 0, has_begun: false, done, coming }
    };
    let mut all: Vec<Member> = (0..members).map(member).collect();
    let mut lanes = vec![vec![VecDeque::<Vec<Element>>::new(); members]; members];
    loop {
        let mut moved = false;
        for _ in 0..members {
            let me = chance.below(members);
            moved |= step(&mut all, &mut lanes, me, chance, mailboxes);
        }
        // Members that were left out by chance.
        if !moved && !(0..members).any(|me| step(&mut all, &mut lanes, me, chance, mailboxes)) {
            break;
        }
    }
    for (rank, member) in all.iter().enumerate() {
        let stands = member.steps().iter().zip(&member.done).filter(|(_, done)| !**done).collect::<Vec<_>>();
        assert_eq!(member.round, member.schedule.rounds.len(), "rank {rank} stands still at {stands:?} of {case:?}");
        assert!(member.output == expected[rank], "rank {rank} of {case:?}");
        assert!(lanes[rank].iter().all(VecDeque::is_empty), "something of rank {rank} was not received in {case:?}");
    }
}

/// One thing that a member can do, by chance. False if there is none.
fn step(all: &mut [Member], lanes: &mut [Vec<VecDeque<Vec<Element>>>], me: usize, chance: &mut Chance, mailboxes: bool) -> bool {
    if all[me].turn() {
        return true;
    }
    let many = all[me].steps().len();
    let first = chance.below(many);
    for index in (first..many).chain(0..first) {
        if all[me].done[index] {
            continue;
        }
        match all[me].steps()[index].clone() {
            Step::Send { to, from } => {
                assert_ne!(to, me);
                // Those to one member keep their order.
                let is_earlier =
                    |at: usize| matches!(all[me].steps()[at], Step::Send { to: other, .. } if other == to) && !all[me].done[at];
                if (0..index).any(is_earlier) {
                    continue;
                }
                let elements = all[me].read(&from);
                if mailboxes {
                    lanes[me][to].push_back(elements);
                } else if let Some(expects) = all[to].expects(me) {
                    all[to].accept(expects, elements);
                } else {
                    continue;
                }
                all[me].done[index] = true;
                return true;
            }
            Step::Receive { from, .. } => {
                assert_ne!(from, me);
                if all[me].expects(from) == Some(index)
                    && let Some(elements) = lanes[from][me].pop_front()
                {
                    all[me].accept(index, elements);
                    return true;
                }
            }
            Step::Local { .. } => (),
        }
    }
    false
}

#[test]
#[cfg_attr(miri, ignore = "too many of them")]
fn every_operation_by_every_algorithm() {
    let mut chance = Chance::new(1);
    for kind in KINDS {
        for members in 1..=17 {
            for root in 0..members {
                for len in [0, 1, members / 2, 3 * members + 1] {
                    for commutative in [false, true] {
                        let mut case = Case::new(kind, members, root, len, commutative, &mut chance);
                        assert!(case.algorithm.carries(kind, commutative, &case.boxes), "{case:?}");
                        for algorithm in Algorithm::ALL {
                            if !algorithm.carries(kind, commutative, &case.boxes) {
                                assert_eq!(case.operation(0).schedule(0, &case.boxes, 8, algorithm), None);
                                continue;
                            }
                            case.algorithm = algorithm;
                            execute(&case, &mut chance, false);
                        }
                    }
                }
                if case_has_no_root(kind) {
                    break;
                }
            }
        }
    }
}

fn case_has_no_root(kind: Kind) -> bool {
    !matches!(kind, Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 1024 }, failure_persistence: None, ..Default::default() })]

    #[test]
    fn operations_end_as_they_should(seed: u64, members in 1..=17_usize, len in 0..300_usize, mailboxes: bool) {
        let mut chance = Chance::new(seed);
        let case = Case::random(&mut chance, members, len);
        execute(&case, &mut chance, mailboxes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..Default::default() })]

    #[test]
    #[cfg_attr(miri, ignore = "too many elements")]
    fn long_ones_go_in_segments(seed: u64, members in 1..=9_usize, len in 0..80_000_usize, mailboxes: bool, commutative: bool) {
        let mut chance = Chance::new(seed);
        let kind = [Kind::Broadcast, Kind::Reduce, Kind::AllReduce][chance.below(3)];
        let root = chance.below(members);
        let case = Case::new(kind, members, root, len, commutative, &mut chance);
        execute(&case, &mut chance, mailboxes);
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many members")]
    fn many_members(seed: u64, members in 18..=130_usize, len in 0..300_usize, mailboxes: bool) {
        let mut chance = Chance::new(seed);
        let case = Case::random(&mut chance, members, len);
        execute(&case, &mut chance, mailboxes);
    }
}

#[test]
fn an_operation_that_does_not_fit_has_no_schedule() {
    let schedule = |operation: Operation<'_>, me, algorithm| operation.schedule(me, &Boxes::alone(3), 8, algorithm);
    assert_eq!(schedule(Operation::of(Kind::Barrier), 3, Algorithm::Dissemination), None);
    let no_root = Operation { root: 3, len: 1, ..Operation::of(Kind::Broadcast) };
    assert_eq!(schedule(no_root, 0, Algorithm::Tree), None);
    let short = Operation { receives: &[1, 2], ..Operation::of(Kind::AllGather) };
    assert_eq!(schedule(short, 0, Algorithm::Ring), None);
    let unequal = Operation { sends: &[1, 2, 3], receives: &[2, 2, 3], ..Operation::of(Kind::AllToAll) };
    assert_eq!(schedule(unequal, 0, Algorithm::Pairwise), None);
    let ordered = Operation { len: 8, commutative: false, ..Operation::of(Kind::AllReduce) };
    assert_eq!(schedule(ordered, 0, Algorithm::Ring), None);
}

#[test]
fn boxes_are_made_from_the_answers_of_all() {
    let homes = [0, 1, 0, 2, 1, 1];
    let boxes = Boxes::new(6, |a, b| homes[a] == homes[b]);
    assert_eq!(boxes.ranks(), [vec![0, 2], vec![1, 4, 5], vec![3]]);
    assert!(boxes.have_two_levels() && !boxes.are_in_order());
    assert_eq!((boxes.leaders(None), boxes.leaders(Some(5))), (vec![0, 1, 3], vec![0, 5, 3]));
    assert!(Boxes::new(4, |a, b| a / 2 == b / 2).are_in_order());
    // One denies what the other says, or a friend's friend is none.
    assert_eq!(Boxes::new(3, |a, b| (a, b) == (0, 1)), Boxes::alone(3));
    assert_eq!(Boxes::new(3, |a, b| a.abs_diff(b) == 1), Boxes::alone(3));
    assert!(!Boxes::alone(3).have_two_levels() && !Boxes::new(3, |_, _| true).have_two_levels());
}

#[test]
#[cfg_attr(miri, ignore = "too many elements")]
fn only_leaders_send_between_boxes() {
    let homes = [0, 0, 0, 0, 1, 1, 1, 1];
    let boxes = Boxes::new(8, |a, b| homes[a] == homes[b]);
    let crossing = |algorithm: Algorithm, len: usize| -> usize {
        let operation = Operation { len, ..Operation::of(Kind::AllReduce) };
        let of = |me: usize| operation.schedule(me, &boxes, 8, algorithm).unwrap();
        let sent = |me: usize, step: &Step| match step {
            Step::Send { to, from } if homes[*to] != homes[me] => from.len(),
            _ => 0,
        };
        (0..8).map(|me| of(me).rounds.iter().flatten().map(|step| sent(me, step)).sum::<usize>()).sum()
    };
    assert_eq!((crossing(Algorithm::Hierarchical, 8000), crossing(Algorithm::Doubling, 8000)), (16_000, 64_000));
    let kinds = [Kind::Barrier, Kind::Broadcast, Kind::Reduce, Kind::AllReduce, Kind::AllGather];
    assert!(kinds.iter().all(|kind| choose(*kind, &boxes, 64, false) == Algorithm::Hierarchical));
    let mixed = Boxes::new(8, |a, b| a % 2 == b % 2);
    assert_eq!(choose(Kind::AllReduce, &mixed, 64, true), Algorithm::Hierarchical);
    assert_eq!(choose(Kind::AllReduce, &mixed, 64, false), Algorithm::Doubling);
}
