use super::schedule::{Kind, Schedule};
use super::streams::{HEAD, WINDOW};
use super::*;
use doorbell_fabric::{Payload, Verdict};
use proptest::prelude::*;
use std::collections::VecDeque;

#[cfg(not(miri))]
mod network;

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

/// Members in boxes: in order, or as it comes; or each alone.
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

/// An operation of all members, and what they should get.
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
    counts: Vec<usize>,
    /// By sender, then by receiver; and the other way round.
    sends: Vec<Vec<usize>>,
    receives: Vec<Vec<usize>>,
}

impl Case {
    pub fn new(kind: Kind, members: usize, root: usize, len: usize, commutative: bool, chance: &mut Chance) -> Self {
        // Some have none.
        let mut count = || if chance.one_in(4) { 0 } else { chance.below(2 * len / members + 2) };
        let counts = (0..members).map(|_| count()).collect();
        let sends: Vec<Vec<_>> = (0..members).map(|_| (0..members).map(|_| count()).collect()).collect();
        let receives = (0..members).map(|to| sends.iter().map(|row| row[to]).collect()).collect();
        let boxes = boxes(members, chance);
        let algorithm = choose(kind, &boxes, len * ELEMENT, commutative);
        let may = matches!(kind, Kind::Reduce | Kind::AllReduce | Kind::Scan);
        let in_place = may && chance.one_in(2);
        Self { kind, algorithm, members, boxes, root, len, commutative, in_place, counts, sends, receives }
    }

    pub fn random(chance: &mut Chance, members: usize, len: usize) -> Self {
        let kind = Kind::ALL[chance.below(Kind::ALL.len())];
        let (root, commutative) = (chance.below(members), chance.one_in(2));
        let mut case = Self::new(kind, members, root, len, commutative, chance);
        let algorithm = Algorithm::ALL[chance.below(Algorithm::ALL.len())];
        if case.operation(0).goes_by(algorithm, &case.boxes) {
            case.algorithm = algorithm;
        }
        case
    }

    pub fn operation(&self, me: usize) -> Operation<'_> {
        let Self { root, len, commutative, ref counts, .. } = *self;
        match self.kind {
            Kind::Barrier => Operation::Barrier,
            Kind::Broadcast => Operation::Broadcast { root, len },
            Kind::Reduce => Operation::Reduce { root, len, commutative },
            Kind::AllReduce => Operation::AllReduce { len, commutative },
            Kind::Scan => Operation::Scan { len },
            Kind::Gather => Operation::Gather { root, counts },
            Kind::Scatter => Operation::Scatter { root, counts },
            Kind::AllGather => Operation::AllGather { counts },
            Kind::AllToAll => Operation::AllToAll { sends: &self.sends[me], receives: &self.receives[me] },
            Kind::ReduceScatter => Operation::ReduceScatter { counts, commutative },
        }
    }

    pub fn schedule(&self, me: usize) -> Schedule {
        self.operation(me).schedule(me, &self.boxes, ELEMENT, self.algorithm).unwrap()
    }

    /// Inputs, what outputs hold before, and what they should hold afterwards.
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
            // Always in order: a scan does not ask whether it has to be.
            Kind::Scan => combine_all(self.commutative, &inputs[..=rank]),
            Kind::Gather | Kind::AllGather => inputs.concat(),
            Kind::Scatter => block(&inputs[self.root], &self.counts, rank),
            Kind::AllToAll => (0..self.members).flat_map(|from| block(&inputs[from], &self.sends[from], rank)).collect(),
            Kind::ReduceScatter => block(&combine_all(self.commutative, &inputs), &self.counts, rank),
        });
        let after = after.collect();
        [inputs, before, after]
    }

    fn call(&self, me: usize) -> Call {
        Call::new(&self.operation(me), self.algorithm, self.schedule(me).between)
    }
}

fn fold(commutative: bool) -> Fold {
    let decode = |bytes: &[u8]| -> Element { [0, 4].map(|at| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())) };
    Box::new(move |into, from, left| {
        assert_eq!((into.as_ptr() as usize % 4, from.as_ptr() as usize % 16, into.len()), (0, 0, from.len()));
        for (into, from) in into.chunks_exact_mut(ELEMENT).zip(from.chunks_exact(ELEMENT)) {
            let [own, other] = [decode(into), decode(from)];
            let sum = if left { combine(commutative, other, own) } else { combine(commutative, own, other) };
            into.copy_from_slice(sum.map(u32::to_ne_bytes).as_flattened());
        }
    })
}

type Packet = (u64, Vec<u8>);

/// A member over a simulated network.
struct Member {
    streams: Streams,
    run: Option<Run>,
    /// The call that is under way or comes next.
    call: usize,
    failed: Option<Failure>,
}

/// Members, what they call, and lanes by sender and receiver.
struct Net {
    cases: Vec<Vec<Case>>,
    inputs: Vec<Vec<Vec<Element>>>,
    outputs: Vec<Vec<Vec<Element>>>,
    expected: Vec<Vec<Vec<Element>>>,
    members: Vec<Member>,
    lanes: Vec<Vec<VecDeque<Packet>>>,
    room: Vec<u8>,
    kept: usize,
    packets: usize,
}

impl Net {
    /// `cases` by member, as all of them should call the same but may not; what they get is by the calls of the first.
    fn new(cases: Vec<Vec<Case>>) -> Self {
        let members = cases.len();
        let [mut inputs, mut outputs, mut expected] = [vec![], vec![], vec![]];
        let of = |call: usize| -> Vec<_> { cases.iter().map(|calls| calls[call].data(&mut Chance::new(call as u64))).collect() };
        for data in (0..cases[0].len()).map(of) {
            inputs.push((0..members).map(|rank| data[rank][0][rank].clone()).collect());
            outputs.push((0..members).map(|rank| data[rank][1][rank].clone()).collect());
            expected.push((0..members).map(|rank| data[rank][2][rank].clone()).collect());
        }
        let member = |me| Member { streams: Streams::new(7, me, members), run: None, call: 0, failed: None };
        let lanes = vec![vec![VecDeque::new(); members]; members];
        let members = (0..members).map(member).collect();
        Self { cases, inputs, outputs, expected, members, lanes, room: vec![], kept: 0, packets: 0 }
    }

    /// Goes on with the calls of a member. True if anything became of it.
    fn advance(&mut self, me: usize) -> bool {
        let member = &mut self.members[me];
        if member.failed.is_some() {
            return false;
        }
        let began = member.run.is_none();
        if began {
            let Some(case) = self.cases[me].get(member.call) else { return false };
            let output = self.outputs[member.call][me].as_mut_ptr();
            let same = case.in_place && self.inputs[member.call][me].len() == self.outputs[member.call][me].len();
            let input = if same { output.cast_const() } else { self.inputs[member.call][me].as_ptr() };
            let fold = fold(case.commutative);
            // SAFETY: nobody touches inputs and outputs before the end of all runs.
            let run = unsafe { Run::new(case.schedule(me), case.call(me), ELEMENT, input.cast(), output.cast(), fold) };
            member.run = Some(run);
        }
        match member.run.as_mut().unwrap().advance(&mut member.streams) {
            Ok(true) => {
                member.run = None;
                member.call += 1;
                true
            }
            Ok(false) => began,
            Err(failure) => {
                member.run = None;
                member.failed = Some(failure);
                true
            }
        }
    }

    /// Pushes one packet, unless the lane is full. True if it did.
    fn push(&mut self, from: usize, to: usize, packet: usize, is_full: bool) -> bool {
        let Member { streams, run, .. } = &mut self.members[from];
        let wants = streams.wants(to);
        let tag = streams.next(run.as_mut().map(Run::memory), to, packet, &mut self.room);
        // Where its memory is gone there is none.
        assert!(wants == tag.is_some() || wants && run.is_none());
        let Some(tag) = tag else { return false };
        assert!(self.room.len() <= packet);
        if is_full {
            return false;
        }
        self.lanes[from][to].push_back((tag, self.room.clone()));
        streams.sent(to);
        assert!(streams.on_the_way(to) <= WINDOW);
        self.packets += 1;
        true
    }

    fn deliver(&mut self, from: usize, to: usize) -> bool {
        let Some((tag, bytes)) = self.lanes[from][to].pop_front() else { return false };
        let Member { streams, run, .. } = &mut self.members[to];
        let verdict = streams.take(run.as_mut().map(Run::memory), from, tag, Payload::private(&bytes));
        assert_eq!(verdict, Verdict::Taken);
        assert!(streams.kept(from) <= WINDOW);
        assert!(streams.held(from) <= 2 * WINDOW);
        self.kept = self.kept.max(streams.kept(from));
        true
    }

    /// Until nothing moves any more. `late` begins after so many turns.
    fn go(&mut self, chance: &mut Chance, packet_min: usize, late: (usize, usize)) {
        let members = self.members.len();
        let (mut turn, mut idle) = (0, 0);
        // Some turns are without chance, so that a member that stands still does so for good.
        while idle < 3 {
            let is_plain = turn % 4 == 3;
            let mut moved = false;
            for _ in 0..members {
                let me = chance.below(members);
                let busy = if is_plain { 0..members } else { me..me + 1 };
                for me in busy {
                    if (me != late.0 || turn >= late.1) && (is_plain || chance.one_in(2)) {
                        moved |= self.advance(me);
                    }
                    for distance in 1..members {
                        let other = (me + distance) % members;
                        let packet = packet_min + chance.below((64 << 10) - packet_min + 1);
                        let packet = if chance.one_in(2) { packet_min } else { packet };
                        let is_full = self.lanes[me][other].len() >= 8 || !is_plain && chance.one_in(3);
                        moved |= self.push(me, other, packet, is_full);
                        if is_plain || chance.one_in(3) {
                            moved |= self.deliver(other, me);
                        }
                    }
                }
                if is_plain {
                    break;
                }
            }
            turn += 1;
            idle = match (moved, is_plain) {
                (true, _) => 0,
                (false, true) if turn > late.1 => idle + 1,
                (false, _) => idle,
            };
        }
    }

    fn check(&self) {
        for (rank, member) in self.members.iter().enumerate() {
            assert_eq!((member.call, member.failed), (self.cases[rank].len(), None), "rank {rank}");
            for from in 0..self.members.len() {
                assert_eq!((member.streams.kept(from), self.lanes[from][rank].len()), (0, 0));
            }
        }
        for call in 0..self.expected.len() {
            for rank in 0..self.members.len() {
                let same = self.outputs[call][rank] == self.expected[call][rank];
                assert!(same, "call {call} of rank {rank}: {:?}", self.cases[rank][call]);
            }
        }
    }
}

/// The same calls at all members, by a seed.
fn alike(seed: u64, members: usize, calls: usize, largest: usize) -> Net {
    let cases = |_| {
        let mut chance = Chance::new(seed);
        let mut case = |_| {
            let len = if chance.one_in(4) { largest } else { largest.min(64) };
            let len = chance.below(len + 1);
            Case::random(&mut chance, members, len)
        };
        (0..calls).map(&mut case).collect()
    };
    Net::new((0..members).map(cases).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 256 }, failure_persistence: None, ..Default::default() })]

    #[test]
    fn calls_in_a_row_end_as_they_should(
        seed: u64, members in 1..if cfg!(miri) { 4_usize } else { 10 }, calls in 1..6_usize, late in 0..200_usize,
    ) {
        let mut net = alike(seed, members, calls, if cfg!(miri) { 300 } else { 4096 });
        let mut chance = Chance::new(!seed);
        let first = chance.below(members);
        net.go(&mut chance, HEAD + 1 + seed as usize % 2000, (first, late));
        net.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    #[test]
    #[cfg_attr(miri, ignore = "too many bytes")]
    fn long_calls_end_as_they_should(seed: u64, members in 2..8_usize, calls in 1..4_usize, late in 0..200_usize) {
        let mut net = alike(seed, members, calls, 300_000 / ELEMENT);
        let mut chance = Chance::new(!seed);
        let first = chance.below(members);
        net.go(&mut chance, 1100, (first, late));
        net.check();
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many bytes")]
    fn many_members_end_as_they_should(seed: u64, members in 16..70_usize) {
        let mut net = alike(seed, members, 2, 2000);
        net.go(&mut Chance::new(!seed), 1100, (0, 10));
        net.check();
    }
}

/// Both call something else, as the calls number `call` of two members.
fn apart(mut change: impl FnMut(&mut Case), call: usize, late: usize) -> Net {
    let cases = |rank| {
        let case = |at| {
            let mut case = Case::new(Kind::AllReduce, 2, 0, 100, true, &mut Chance::new(5));
            if rank == 1 && at == call {
                change(&mut case);
            }
            case
        };
        (0..call + 2).map(case).collect()
    };
    let cases = [0, 1].map(cases).into();
    let mut net = Net::new(cases);
    net.go(&mut Chance::new(9), 1100, (0, late));
    net
}

#[test]
fn who_calls_something_else_is_told() {
    for late in [0, 100] {
        for call in [0, 2] {
            let net = apart(|case| (case.kind, case.commutative) = (Kind::Scan, true), call, late);
            let is_told = |failure: &Failure| matches!(failure, Failure::Mismatch(_));
            let failure = net.members.iter().find_map(|member| member.failed.filter(is_told));
            let Some(Failure::Mismatch(mismatch)) = failure else { panic!("{failure:?}") };
            assert_eq!((mismatch.expected.sequence, mismatch.found.sequence), (call as u64 + 1, call as u64 + 1));
            assert_ne!(mismatch.expected.call, mismatch.found.call);
            assert!(net.members.iter().all(|member| member.failed.is_some()), "nobody waits for ever");
            assert!(mismatch.to_string().contains("scan by doubling"), "{mismatch}");
            assert!(mismatch.to_string().contains("allreduce by doubling"), "{mismatch}");
        }
    }
}

#[test]
fn who_calls_with_another_length_is_told() {
    for late in [0, 100] {
        let net = apart(|case| case.len = 99, 1, late);
        let mut told = 0;
        for (rank, found) in [(0, 99), (1, 100)] {
            match net.members[rank].failed {
                Some(Failure::Mismatch(mismatch)) => {
                    let lens = (mismatch.rank, mismatch.found.len, mismatch.expected.len);
                    assert_eq!(lens, (1 - rank, found * 8, (199 - found) * 8));
                    told += 1;
                }
                failure => assert_eq!(failure, Some(Failure::Ended { rank: 1 - rank })),
            }
        }
        assert!(told > 0);
    }
}

#[test]
fn what_nobody_waited_for_is_told_with_the_next_call() {
    // Both are roots: each sends, and neither receives.
    let cases = [0, 1].map(|rank| {
        let mut chance = Chance::new(3);
        let first = Case::new(Kind::Broadcast, 2, rank, 10, true, &mut chance);
        vec![first, Case::new(Kind::Barrier, 2, 0, 0, true, &mut chance)]
    });
    let mut net = Net::new(cases.into());
    // Both are through with the first before anything comes.
    for me in [0, 1] {
        net.advance(me);
        net.push(me, 1 - me, 1100, false);
        net.advance(me);
        assert_eq!(net.members[me].call, 1);
    }
    net.go(&mut Chance::new(4), 1100, (0, 0));
    for (rank, member) in net.members.iter().enumerate() {
        let Some(Failure::Mismatch(mismatch)) = member.failed else { panic!("{:?}", member.failed) };
        assert_eq!((mismatch.rank, mismatch.found.sequence, mismatch.expected.sequence), (1 - rank, 1, 2));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    #[cfg_attr(miri, ignore = "too many bytes")]
    fn a_sender_that_is_far_ahead_waits_at_the_window(len in 16..9000_usize, packet in 1100..65_536_usize) {
        let calls = 2 * WINDOW.div_ceil(len * ELEMENT) + 10;
        let cases = [0, 1].map(|_| {
            let case = |_| Case::new(Kind::Broadcast, 2, 0, len, true, &mut Chance::new(3));
            (0..calls).map(case).collect()
        });
        let mut net = Net::new(cases.into());
        // The second doesn't begin; then it follows, and the first is always as far ahead as it can be.
        for begins in [false, true] {
            loop {
                while net.advance(0) | net.push(0, 1, packet, false) | net.deliver(0, 1) {}
                prop_assert!(begins || net.kept > WINDOW * 3 / 4, "{}", net.kept);
                let mut moved = begins && net.advance(1);
                moved |= net.push(1, 0, packet, false) | net.deliver(1, 0);
                if !moved {
                    break;
                }
            }
        }
        net.check();
    }
}

#[test]
fn a_run_that_is_given_up_ends_the_team() {
    let case = |kind| Case::new(kind, 2, 0, 5000, true, &mut Chance::new(3));
    for tells in [true, false] {
        let mut net = Net::new([0, 1].map(|_| vec![case(Kind::AllReduce), case(Kind::Barrier)]).into());
        net.advance(0);
        net.push(0, 1, 4096, false);
        // Its memory is gone; whether its owner says so or not, nobody gets at it.
        net.members[0].run = None;
        net.members[0].call = 1;
        if tells {
            net.members[0].streams.give_up();
        }
        assert_eq!(net.members[0].streams.next(None, 1, 4096, &mut net.room).is_some(), tells);
        net.go(&mut Chance::new(4), 1100, (0, 0));
        assert_eq!(net.members[0].failed, Some(Failure::GivenUp));
        assert_eq!(net.members[1].failed, Some(Failure::Ended { rank: 0 }));
    }
}

/// A member that waits for two elements from another, and has something for it, too.
struct Waiting {
    streams: Streams,
    run: Run,
    _output: Vec<Element>,
}

fn waiting(len: usize) -> Waiting {
    let case = Case::new(Kind::AllGather, 2, 0, len, true, &mut Chance::new(3));
    let case = Case { algorithm: Algorithm::Ring, counts: vec![len; 2], ..case };
    let mut output = vec![[0; 2]; 2 * len];
    let input = output.as_mut_ptr().cast::<u8>();
    let mut streams = Streams::new(7, 0, 2);
    // SAFETY: the output lives beside the run, and nobody touches it. The own block is the first of it.
    let mut run = unsafe { Run::new(case.schedule(0), case.call(0), ELEMENT, input, input, fold(true)) };
    assert_eq!(run.advance(&mut streams), Ok(false));
    Waiting { streams, run, _output: output }
}

fn head(sequence: u64, call: u32, index: u32, offset: u64, len: u64, piece: usize) -> Vec<u8> {
    let words = [sequence, u64::from(call) | u64::from(index) << 32, offset, len];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(HEAD + piece, 0xab);
    bytes
}

const DATA: u64 = 7 << 32 | 1 << 24;
const TAKEN: u64 = 7 << 32 | 2 << 24;

#[test]
fn who_breaks_the_rules_is_found() {
    let broken = |packets: &[(u64, Vec<u8>)]| {
        let mut streams = Streams::new(7, 0, 2);
        let (last, before) = packets.split_last().unwrap();
        for (tag, bytes) in before {
            assert_eq!(streams.take(None, 1, *tag, Payload::private(bytes)), Verdict::Taken);
        }
        let verdict = streams.take(None, 1, last.0, Payload::private(&last.1));
        assert!(matches!(verdict, Verdict::Broken(_)), "{packets:?}");
    };
    let data = |bytes: Vec<u8>| (DATA, bytes);
    broken(&[data(vec![0; HEAD - 1])]);
    broken(&[(DATA | 1, head(1, 0, 0, 0, 8, 8))]);
    broken(&[(DATA ^ 1 << 32, head(1, 0, 0, 0, 8, 8))]);
    // Numbers, places and lengths.
    broken(&[data(head(1, 0, 1, 0, 8, 8))]);
    broken(&[data(head(1, 0, 0, 4, 8, 4))]);
    broken(&[data(head(1, 0, 0, 0, 8, 9))]);
    broken(&[data(head(1, 0, 0, 0, 8, 0))]);
    let first = || data(head(5, 0, 0, 0, 16, 8));
    broken(&[first(), first()]);
    broken(&[first(), data(head(5, 0, 0, 4, 16, 8))]);
    broken(&[first(), data(head(5, 0, 0, 9, 16, 7))]);
    broken(&[first(), data(head(5, 0, 0, 8, 16, 9))]);
    broken(&[first(), data(head(5, 0, 0, 8, 17, 8))]);
    broken(&[first(), data(head(5, 1, 0, 8, 16, 8))]);
    let second = || data(head(5, 0, 0, 8, 16, 8));
    broken(&[first(), second(), data(head(5, 0, 0, 0, 8, 8))]);
    broken(&[first(), second(), data(head(5, 0, 2, 0, 8, 8))]);
    broken(&[first(), second(), data(head(4, 0, 0, 0, 8, 8))]);
    broken(&[first(), second(), data(head(6, 0, 1, 0, 8, 8))]);
    broken(&[data(head(1, 0, 0, 0, u64::MAX, 8)), data(head(1, 0, 0, u64::MAX, u64::MAX, 8))]);
    // Reports of what was never sent.
    broken(&[(TAKEN, 1_u64.to_le_bytes().to_vec())]);
    broken(&[(TAKEN, vec![0; 7])]);
    broken(&[(TAKEN, vec![0; 9])]);
    broken(&[(7 << 32 | 3 << 24, vec![0])]);
    // More than the window, by packets without bytes, and by bytes.
    if !cfg!(miri) {
        let packet = |index| data(head(1, 0, index as u32, 0, 0, 0));
        broken(&(0..=WINDOW / HEAD).map(packet).collect::<Vec<_>>());
    }
    let packet = |index| data(head(1, 0, 0, index * 60_000, 1 << 40, 60_000));
    broken(&(0..=(WINDOW / 60_000) as u64).map(packet).collect::<Vec<_>>());
    // From itself, and from nobody.
    let mut streams = Streams::new(7, 0, 2);
    for from in [0, 2, usize::MAX] {
        let verdict = streams.take(None, from, DATA, Payload::private(&head(1, 0, 0, 0, 8, 8)));
        assert!(matches!(verdict, Verdict::Broken(_)));
    }
}

#[test]
fn a_report_never_goes_back() {
    let mut waiting = waiting(100);
    let mut room = vec![];
    assert!(waiting.streams.next(Some(waiting.run.memory()), 1, 4096, &mut room).is_some());
    waiting.streams.sent(1);
    let mut take = |taken: u64| waiting.streams.take(None, 1, TAKEN, Payload::private(&taken.to_le_bytes()));
    assert_eq!(take(832), Verdict::Taken);
    assert!(matches!(take(831), Verdict::Broken(_)));
    assert!(matches!(take(833), Verdict::Broken(_)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 512 }, failure_persistence: None, ..Default::default() })]

    #[test]
    fn hostile_packets_do_no_harm(seed: u64, packets in 1..if cfg!(miri) { 8_usize } else { 600 }, len in 0..300_usize) {
        let mut chance = Chance::new(seed);
        let mut waiting = waiting(len.max(1));
        let call = 7 << 24 | 1 << 16;
        let (mut index, mut offset, mut total, mut sequence) = (0, 0, 8 * len.max(1) as u64, 1);
        let mut room = vec![];
        for _ in 0..packets {
            let largest = if chance.one_in(3) { 65_000 } else { 64 };
            let piece = chance.below(largest);
            // Mostly as it should be, or nearly so.
            let piece = if chance.one_in(8) { piece } else { piece.min((total - offset) as usize) };
            let mut bytes = head(sequence, call, index, offset, total, piece);
            let mut tag = if chance.one_in(9) { TAKEN } else { DATA };
            if tag == TAKEN {
                bytes = (chance.below(900) as u64).to_le_bytes().to_vec();
            }
            match chance.below(30) {
                0 => bytes.truncate(chance.below(bytes.len() + 1)),
                1 => {
                    let at = chance.below(bytes.len().min(40));
                    bytes[at] ^= 1 << chance.below(8);
                }
                2 => tag = chance.word(),
                _ => (),
            }
            let run = &mut waiting.run;
            let memory = if chance.one_in(50) { None } else { Some(run.memory()) };
            let verdict = waiting.streams.take(memory, 1, tag, Payload::private(&bytes));
            prop_assert!(waiting.streams.kept(1) <= WINDOW);
            if verdict == Verdict::Taken && tag == DATA && bytes.len() >= HEAD {
                let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                (sequence, total, offset) = (word(0), word(24), word(16) + (bytes.len() - HEAD) as u64);
                if offset == total {
                    (index, offset, total) = (index + 1, 0, chance.below(10_000) as u64);
                    if chance.one_in(8) {
                        (index, sequence) = (0, sequence.wrapping_add(1 + chance.below(3) as u64));
                    }
                }
            }
            let _ = run.advance(&mut waiting.streams);
            if waiting.streams.next(Some(run.memory()), 1, 1100, &mut room).is_some() {
                waiting.streams.sent(1);
            }
        }
    }

    #[test]
    fn bytes_by_chance_do_no_harm(packets in proptest::collection::vec((any::<u64>(), any::<bool>(), any::<Vec<u8>>()), 0..20)) {
        let mut waiting = waiting(10);
        for (tag, ours, bytes) in packets {
            let tag = if ours { DATA } else { tag };
            let _ = waiting.streams.take(Some(waiting.run.memory()), 1, tag, Payload::private(&bytes));
            let _ = waiting.run.advance(&mut waiting.streams);
            prop_assert!(waiting.streams.kept(1) <= WINDOW);
        }
    }
}
