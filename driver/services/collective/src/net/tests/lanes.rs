//! Members over simulated lanes.

use super::super::streams::{HEAD, WINDOW};
use super::super::*;
use super::case::{Case, Chance, ELEMENT, Element, advance, span};
use crate::kind::Kind;
use doorbell_fabric::{Payload, Verdict};
use proptest::prelude::*;
use std::collections::VecDeque;

type Packet = (u64, Vec<u8>);

/// A member over a simulated network.
pub struct Member {
    pub streams: Streams,
    pub run: Option<Run>,
    /// The call that is under way or comes next.
    pub call: usize,
    pub failed: Option<Failure>,
}

/// Members, their calls, and lanes by sender and receiver.
pub struct Net {
    pub cases: Vec<Vec<Case>>,
    inputs: Vec<Vec<Vec<Element>>>,
    outputs: Vec<Vec<Vec<Element>>>,
    expected: Vec<Vec<Vec<Element>>>,
    pub members: Vec<Member>,
    lanes: Vec<Vec<VecDeque<Packet>>>,
    room: Vec<u8>,
    kept: usize,
    packets: usize,
}

impl Net {
    /// `cases` by member: all should call the same, but need not. The expected results are those of the first member's calls.
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

    /// Goes on with the calls of a member. True if it did anything.
    pub fn advance(&mut self, me: usize) -> bool {
        let member = &mut self.members[me];
        if member.failed.is_some() {
            return false;
        }
        let began = member.run.is_none();
        if began {
            let Some(case) = self.cases[me].get(member.call) else { return false };
            let output = span(&mut self.outputs[member.call][me]);
            let same = case.in_place && self.inputs[member.call][me].len() == self.outputs[member.call][me].len();
            let input = if same { output } else { span(&mut self.inputs[member.call][me]) };
            member.run = Some(case.run(me, input, output));
        }
        match advance(member.run.as_mut().unwrap(), &mut member.streams) {
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
        // Without the run's memory there is no packet.
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

    /// Goes on until nothing moves any more. `late` is a member, and the turn in which it begins.
    fn go(&mut self, chance: &mut Chance, packet_min: usize, late: (usize, usize)) {
        let members = self.members.len();
        let (mut turn, mut idle) = (0, 0);
        // Some turns go without chance, so that a member that stands still in them is stuck.
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

    pub fn check(&self) {
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
pub fn alike(seed: u64, members: usize, calls: usize, largest: usize) -> Net {
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

/// The two members call different operations as their call number `call`.
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
fn a_member_that_calls_a_different_operation_is_told() {
    for late in [0, 100] {
        for call in [0, 2] {
            let net = apart(|case| (case.kind, case.commutative) = (Kind::Scan, true), call, late);
            let is_told = |failure: &Failure| matches!(failure, Failure::Mismatch(_));
            let failure = net.members.iter().find_map(|member| member.failed.filter(is_told));
            let Some(Failure::Mismatch(mismatch)) = failure else { panic!("{failure:?}") };
            assert_eq!((mismatch.expected.sequence, mismatch.found.sequence), (call as u64 + 1, call as u64 + 1));
            assert_ne!(mismatch.expected.call, mismatch.found.call);
            assert!(net.members.iter().all(|member| member.failed.is_some()), "nobody waits for ever");
            let by_doubling = |kind| Call::new(&Operation::of(kind), Algorithm::Doubling, None);
            let calls = [mismatch.expected.call, mismatch.found.call];
            assert!([Kind::Scan, Kind::AllReduce].iter().all(|kind| calls.contains(&by_doubling(*kind))), "{mismatch:?}");
        }
    }
}

#[test]
fn a_member_that_calls_with_another_length_is_told() {
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
fn a_message_without_a_receiver_is_told_with_the_next_call() {
    // Both are roots: each sends, and neither receives.
    let cases = [0, 1].map(|rank| {
        let mut chance = Chance::new(3);
        let first = Case::new(Kind::Broadcast, 2, rank, 10, true, &mut chance);
        vec![first, Case::new(Kind::Barrier, 2, 0, 0, true, &mut chance)]
    });
    let mut net = Net::new(cases.into());
    // Both finish the first call before anything comes.
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
        // First the second member doesn't begin. Then it follows, and the first one is always as far ahead as it can be.
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
        // Its memory is gone. Whether its owner says so or not, nothing reads it.
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
