//! What a target does for origins, and what an origin believes of a target.

use super::asked::piece_bytes;
use super::wire::Status;
use super::*;
use crate::error::KeyFault;
use crate::memory::key::read_secret;
use crate::sync::op::Outcome;
use doorbell_fabric::PRIORITIES;
use doorbell_shm::domain::{JoinOptions, Membership};
use doorbell_shm::region::OwnRegion;
use doorbell_shm::space::Space;
use proptest::prelude::*;

const LANE: usize = PRIORITIES;
const PEER: Incarnation = Incarnation(5);
const BYTES: usize = 5000;

/// A node with one region, which serves requests.
struct Target {
    remote: Remote,
    region: OwnRegion,
    table: Arc<RegionTable>,
    incarnation: Incarnation,
    membership: Arc<Membership>,
}

fn origin() -> Remote {
    let membership = Membership::join(JoinOptions::new("origin", Space::heap())).unwrap();
    Remote::new(&Arc::new(membership), Arc::default())
}

impl Target {
    fn new() -> Self {
        let membership = Arc::new(Membership::join(JoinOptions::new("remote", Space::heap())).unwrap());
        let table: Arc<RegionTable> = Arc::default();
        let region = membership.create_region(table.next_number(), BYTES).unwrap();
        table.offer(&region);
        let incarnation = membership.incarnation();
        let mut remote = Remote::new(&membership, table.clone());
        remote.do_updates(UPDATES);
        Self { remote, region, table, incarnation, membership }
    }

    fn request(&self, offset: u64, bytes: u64) -> Request {
        Request { incarnation: self.incarnation, number: self.region.number(), offset, bytes, secret: self.region.secret() }
    }

    fn take(&mut self, step: Step, id: u64, bytes: &[u8]) -> Verdict {
        self.remote.take(LANE, PEER, Word { step, id }.tag(), Payload::private(bytes))
    }

    /// All answers, in packets of this size.
    fn say(&mut self, packet: usize) -> Vec<(Word, Vec<u8>)> {
        let mut said = Vec::new();
        while let Some(mut answer) = self.remote.served.answers.pop_front() {
            loop {
                let len = answer.next_len(piece_bytes(packet));
                let tag = answer.next(len, &mut self.remote.room);
                said.push((Word::from_tag(tag).unwrap(), self.remote.room.clone()));
                if answer.sent(self.remote.room.len()) {
                    break;
                }
            }
        }
        said
    }

    fn says(&mut self) -> Status {
        match self.say(100)[..] {
            [(Word { step: Step::Done(status), .. }, _)] => status,
            ref other => panic!("{other:?}"),
        }
    }

    fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        // SAFETY: within the region, which no other thread writes now.
        unsafe { crate::memory::copy::out(self.region.ptr(), bytes.as_mut_ptr(), BYTES) };
        bytes
    }
}

#[test]
fn a_key_is_checked_by_its_owner() {
    let mut target = Target::new();
    let good = target.request(0, BYTES as u64);
    let reader = Request { secret: read_secret(good.secret), ..good };
    for (request, writes, status) in [
        (Request { bytes: 0, ..good }, true, Status::Fine),
        (Request { bytes: 0, ..reader }, false, Status::Fine),
        (Request { bytes: 0, offset: BYTES as u64, ..reader }, false, Status::Fine),
        (good, false, Status::Forged),
        (reader, true, Status::Forged),
        (Request { secret: good.secret ^ 1, ..good }, true, Status::Forged),
        (Request { number: good.number + 1, ..good }, true, Status::Stale),
        (Request { incarnation: Incarnation(good.incarnation.0 ^ 1), ..good }, true, Status::Stale),
        (Request { bytes: BYTES as u64 + 1, ..good }, true, Status::OutOfRange),
        (Request { offset: 1, ..reader }, false, Status::OutOfRange),
        (Request { offset: u64::MAX, ..reader }, false, Status::OutOfRange),
        (Request { bytes: u64::MAX, offset: 1, ..good }, true, Status::OutOfRange),
    ] {
        let step = if writes { Step::Put } else { Step::Get };
        assert_eq!(target.take(step, 1, &request.encode()), Verdict::Taken);
        assert_eq!(target.says(), status, "{request:?} {writes}");
        // Pieces that were sent before the answer arrived.
        assert_eq!(target.take(Step::More, 1, &[9; 60]), Verdict::Taken);
    }
    target.region.withdraw().unwrap();
    target.take(Step::Put, 1, &good.encode());
    assert_eq!(target.says(), Status::Stale);
    target.table.forget(target.region.ptr());
    target.take(Step::Get, 1, &reader.encode());
    assert_eq!(target.says(), Status::Stale);
    assert_eq!(target.read(), [0; BYTES]);
}

#[test]
fn a_node_has_so_many_answers_kept_and_no_more() {
    let mut target = Target::new();
    let get = Request { secret: read_secret(target.region.secret()), ..target.request(0, 10) }.encode();
    for id in 0..UNANSWERED_MAX as u64 {
        assert_eq!(target.take(Step::Get, id, &get), Verdict::Taken);
    }
    assert_eq!(target.take(Step::Get, 99, &get), Verdict::Refused);
    let other = target.remote.take(0, PEER, Word { step: Step::Get, id: 1 }.tag(), Payload::private(&get));
    assert_eq!(other, Verdict::Taken);
    assert_eq!(target.say(4).len(), 3 * (UNANSWERED_MAX + 1));
    assert_eq!(target.take(Step::Get, 99, &get), Verdict::Taken);
    target.remote.fail(NodeId(1), PEER, || Error::Closed);
    assert!(!target.remote.has_work());
}

#[test]
fn what_breaks_the_rules_is_told_apart() {
    let mut target = Target::new();
    let put = target.request(0, 100).encode();
    let broken = |verdict| matches!(verdict, Verdict::Broken(_));
    assert!(broken(target.take(Step::Put, 1, &put[1..])));
    assert!(broken(target.take(Step::Put, 1, &[&put[..], &[1; 101]].concat())));
    assert!(broken(target.take(Step::Get, 1, &[&put[..], &[1]].concat())));
    assert!(broken(target.remote.take(LANE, PEER, 9 << 56, Payload::private(&[]))));
    assert_eq!(target.take(Step::Put, 1, &[&put[..], &[1; 40]].concat()), Verdict::Taken);
    assert_eq!(target.take(Step::More, 2, &[2]), Verdict::Taken, "of one that was given up");
    assert!(broken(target.take(Step::More, 1, &[])));
    assert!(broken(target.take(Step::More, 1, &[2; 61])));
    assert_eq!(target.take(Step::More, 1, &[2; 60]), Verdict::Taken);
    assert_eq!(target.says(), Status::Fine);
    assert_eq!(target.read()[..101], [&[1; 40][..], &[2; 60], &[0]].concat());
}

/// A put or get of `bytes`, known to both engines.
fn ask(origin: &mut Remote, target: &Target, writes: bool, bytes: &mut [u8], offset: u64) -> Arc<Op> {
    let op = Op::new();
    let secret = if writes { target.region.secret() } else { read_secret(target.region.secret()) };
    let request = Request { secret, ..target.request(offset, bytes.len() as u64) };
    // SAFETY: the callers keep the bytes for as long as the origin.
    origin.ask(unsafe { Ask::new(LANE, "test", writes, request, bytes.as_mut_ptr(), op.clone()) });
    op
}

#[test]
fn an_answer_that_nobody_asked_for_is_told_apart() {
    let target = Target::new();
    let mut bytes = [7; 10];
    for (writes, step, len) in [
        (false, Step::Got, 11),
        (false, Step::Got, 0),
        (true, Step::Got, 1),
        (false, Step::Done(Status::Fine), 0),
        (true, Step::Done(Status::Fine), 0),
    ] {
        let mut origin = origin();
        let op = ask(&mut origin, &target, writes, &mut bytes, 0);
        let answer =
            |origin: &mut Remote, id| origin.take(LANE, PEER, Word { step, id }.tag(), Payload::private(&[9; 20][..len]));
        // Nothing was requested yet, or this was not.
        assert_eq!(answer(&mut origin, 1), Verdict::Taken);
        let mut ask = origin.waiting().pop_front().unwrap();
        assert!(ask.send(40, &mut Vec::new(), |_, _| true));
        origin.waiting().push_front(ask);
        assert!(origin.asked.awaits(LANE) && !origin.asked.awaits(LANE + 1));
        assert_eq!(answer(&mut origin, 2), Verdict::Taken);
        assert!(matches!(answer(&mut origin, 1), Verdict::Broken(_)), "{writes} {step:?}");
        origin.fail(NodeId(1), target.incarnation, || Error::Damaged { node: NodeId(1) });
        assert!(matches!(op.take(), Some(Outcome::Failed(Error::Damaged { .. }))));
        assert_eq!(bytes, [7; 10]);
    }
}

/// Updates of a test: the first byte is 1, the second says whether the old value is returned, and eight more are added to
/// the cell.
const UPDATES: Updates = Updates {
    read: |bytes| {
        let known = bytes[0] == 1 && bytes[1] < 2;
        known.then_some(Update { bytes: *bytes, cell: 8, fetch: bytes[1] == 1 })
    },
    perform: |bytes, at| {
        let by = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        // SAFETY: `Remote` gives eight aligned bytes of a region that this test alone uses.
        let before = unsafe { at.cast::<u64>().replace(at.cast::<u64>().read().wrapping_add(by)) };
        (before as u128).to_le_bytes()
    },
};

fn add(by: u64, fetch: bool) -> Update {
    let mut bytes = [0; UPDATE_BYTES];
    (bytes[0], bytes[1]) = (1, fetch as u8);
    bytes[8..16].copy_from_slice(&by.to_le_bytes());
    Update { bytes, cell: 8, fetch }
}

#[test]
fn an_update_is_checked_by_its_target() {
    let mut target = Target::new();
    let good = target.request(8, 8);
    let bytes = |request: Request, update: [u8; UPDATE_BYTES]| [&request.encode()[..], &update].concat();
    let plain = add(5, false).bytes;
    let changed = |at: usize, byte: u8| {
        let mut update = plain;
        update[at] = byte;
        update
    };
    for (request, update, status) in [
        (Request { offset: 9, ..good }, plain, Status::Unaligned),
        (Request { offset: 12, ..good }, plain, Status::Unaligned),
        (Request { offset: BYTES as u64 - 4, ..good }, plain, Status::OutOfRange),
        (Request { offset: u64::MAX - 7, ..good }, plain, Status::OutOfRange),
        (Request { bytes: 4, ..good }, plain, Status::Unknown),
        (Request { bytes: 0, ..good }, plain, Status::Unknown),
        (Request { bytes: 16, ..good }, plain, Status::Unknown),
        (Request { secret: good.secret ^ 1, ..good }, plain, Status::Forged),
        (Request { secret: read_secret(good.secret), ..good }, plain, Status::Forged),
        (Request { number: good.number + 1, ..good }, plain, Status::Stale),
        (Request { incarnation: Incarnation(good.incarnation.0 ^ 1), ..good }, plain, Status::Stale),
        (good, changed(0, 15), Status::Unknown),
        (good, changed(1, 2), Status::Unknown),
    ] {
        assert_eq!(target.take(Step::Update, 1, &bytes(request, update)), Verdict::Taken);
        assert_eq!(target.says(), status, "{request:?}");
    }
    let whole = bytes(good, plain);
    for payload in [&whole[..71], &whole[..31], &[], &[&whole[..], &[0]].concat()[..]] {
        assert!(matches!(target.take(Step::Update, 1, payload), Verdict::Broken(_)));
    }
    assert_eq!(target.read(), [0; BYTES]);
    assert_eq!(target.take(Step::Update, 1, &whole), Verdict::Taken);
    assert_eq!(target.says(), Status::Fine);
    assert_eq!(target.take(Step::Update, 2, &bytes(good, add(5, true).bytes)), Verdict::Taken);
    let old = Word { step: Step::Old, id: 2 };
    assert_eq!(target.say(100), [(old, [&5_u64.to_le_bytes()[..], &[0; 8]].concat())]);
    assert_eq!(target.read()[..24], [[0; 8], 10_u64.to_le_bytes(), [0; 8]].concat());
    target.region.withdraw().unwrap();
    target.take(Step::Update, 3, &whole);
    assert_eq!(target.says(), Status::Stale);
}

#[test]
fn what_is_refused_was_not_performed() {
    let mut target = Target::new();
    let update = [&target.request(0, 8).encode()[..], &add(1, true).bytes].concat();
    for id in 0..UNANSWERED_MAX as u64 {
        assert_eq!(target.take(Step::Update, id, &update), Verdict::Taken);
    }
    assert_eq!(target.take(Step::Update, 99, &update), Verdict::Refused);
    assert_eq!(target.say(100).len(), UNANSWERED_MAX);
    assert_eq!(target.take(Step::Update, 99, &update), Verdict::Taken);
    assert_eq!(target.read()[..8], (UNANSWERED_MAX as u64 + 1).to_le_bytes());
}

#[test]
fn answers_to_updates_are_matched_to_what_was_asked() {
    let target = Target::new();
    // The request, the answer, and whether the operation succeeds. `None`: the answer breaks the rules.
    for (fetch, step, len, ends) in [
        (true, Step::Old, 16, Some(true)),
        (true, Step::Old, 15, None),
        (true, Step::Old, 0, None),
        (true, Step::Done(Status::Fine), 0, None),
        (true, Step::Got, 16, None),
        (false, Step::Old, 16, None),
        (false, Step::Done(Status::Fine), 0, Some(true)),
        (false, Step::Got, 1, None),
        (true, Step::Done(Status::Unreadable), 0, None),
        (true, Step::Done(Status::Unaligned), 0, Some(false)),
        (false, Step::Done(Status::Unknown), 0, Some(false)),
        (false, Step::Done(Status::Stale), 0, Some(false)),
    ] {
        let mut origin = origin();
        let op = Op::new();
        origin.ask(Ask::update(LANE, "test", target.request(0, 8), add(1, fetch), op.clone()));
        let say =
            |origin: &mut Remote, lane, id| origin.take(lane, PEER, Word { step, id }.tag(), Payload::private(&[9; 20][..len]));
        assert_eq!(say(&mut origin, LANE, 1), Verdict::Taken, "not sent yet");
        let mut ask = origin.waiting().pop_front().unwrap();
        assert!(ask.send(100, &mut Vec::new(), |_, bytes| bytes.len() == 72) && ask.is_sent());
        origin.asked.sent.push_back(ask);
        assert_eq!(say(&mut origin, LANE, 2), Verdict::Taken, "of another number");
        assert_eq!(say(&mut origin, LANE + 1, 1), Verdict::Taken, "by another lane");
        assert!(!op.is_done());
        let verdict = say(&mut origin, LANE, 1);
        match (ends, op.take()) {
            (Some(true), Some(Outcome::Updated(old))) => assert_eq!(old, [if fetch { 9 } else { 0 }; 16]),
            (Some(false), Some(Outcome::Failed(Error::Key { .. } | Error::Unsupported { .. }))) => {}
            (None, None) => assert!(matches!(verdict, Verdict::Broken(_))),
            (_, outcome) => panic!("{fetch} {step:?}: {outcome:?}"),
        }
        // A withdrawn operation is not waited for, and its answer does no harm.
        origin.remove(&op);
        assert_eq!(say(&mut origin, LANE, 1), Verdict::Taken);
        assert!(!origin.asked.awaits(LANE));
    }
    let mut bytes = [7; 10];
    for status in [Status::Unaligned, Status::Unknown] {
        let mut origin = origin();
        let _op = ask(&mut origin, &target, false, &mut bytes, 0);
        origin.waiting()[0].send(100, &mut Vec::new(), |_, _| true);
        let word = Word { step: Step::Done(status), id: 1 };
        assert!(matches!(origin.take(LANE, PEER, word.tag(), Payload::private(&[])), Verdict::Broken(_)), "of a get");
    }
}

#[test]
fn updates_of_one_lane_come_behind_puts_and_in_turn() {
    let mut target = Target::new();
    let mut origin = origin();
    let mut bytes = 40_u64.to_le_bytes();
    let put = ask(&mut origin, &target, true, &mut bytes, 16);
    let ops = [1, 2, 3].map(|by| {
        let op = Op::new();
        origin.ask(Ask::update(LANE, "test", target.request(16, 8), add(by, true), op.clone()));
        op
    });
    while let Some(mut one) = origin.waiting().pop_front() {
        one.send(100, &mut Vec::new(), |tag, bytes| {
            target.remote.take(LANE, PEER, tag, Payload::private(bytes)) == Verdict::Taken
        });
        origin.asked.sent.push_back(one);
    }
    for (word, bytes) in target.say(100) {
        assert_eq!(origin.take(LANE, PEER, word.tag(), Payload::private(&bytes)), Verdict::Taken);
    }
    assert!(matches!(put.take(), Some(Outcome::Copied)));
    let olds = ops.map(|op| match op.take() {
        Some(Outcome::Updated(old)) => u64::from_le_bytes(old[..8].try_into().unwrap()),
        other => panic!("{other:?}"),
    });
    assert_eq!(olds, [40, 41, 43]);
}

#[test]
fn a_put_that_is_refused_is_sent_no_further() {
    let target = Target::new();
    let mut bytes = [7; 500];
    let mut origin = origin();
    let op = ask(&mut origin, &target, true, &mut bytes, 0);
    let mut ask = origin.waiting().pop_front().unwrap();
    (0..2).for_each(|_| assert!(ask.send(100, &mut Vec::new(), |_, _| true) && !ask.is_sent()));
    origin.waiting().push_front(ask);
    let word = Word { step: Step::Done(Status::Stale), id: 1 };
    assert_eq!(origin.take(LANE, PEER, word.tag(), Payload::private(&[])), Verdict::Taken);
    assert!(matches!(op.take(), Some(Outcome::Failed(Error::Key { why: KeyFault::Stale, .. }))));
    assert!(!origin.has_work() && !origin.asked.awaits(LANE));
}

/// An update that a peer may send: its key, its operator, and which part is spoiled.
#[derive(Clone, Debug)]
struct Sent {
    offset: u64,
    log2: u8,
    code: u8,
    kind: u8,
    flags: u8,
    operands: [u8; 32],
    spoiled: Vec<(usize, u8)>,
    len: usize,
}

fn sent() -> impl Strategy<Value = Sent> {
    let offset = prop_oneof![4 => (0..BYTES as u64 / 16).prop_map(|at| at * 16), 2 => 0..BYTES as u64 + 20, 1 => any::<u64>()];
    let spoiled = prop_oneof![2 => Just(Vec::new()), 1 => proptest::collection::vec((0..72_usize, any::<u8>()), 1..4)];
    let len = prop_oneof![8 => Just(72_usize), 1 => 0..80_usize];
    (offset, 0..6_u8, 0..17_u8, 0..6_u8, 0..3_u8, any::<[u8; 32]>(), spoiled, len).prop_map(
        |(offset, log2, code, kind, flags, operands, spoiled, len)| Sent {
            offset,
            log2,
            code,
            kind,
            flags,
            operands,
            spoiled,
            len,
        },
    )
}

impl Sent {
    fn bytes(&self, target: &Target) -> Vec<u8> {
        let head = [self.code, self.kind << 4 | self.log2, self.flags, 0, 0, 0, 0, 0];
        let mut bytes = [&target.request(self.offset, 1 << self.log2).encode()[..], &head, &self.operands].concat();
        self.spoiled.iter().for_each(|(at, byte)| bytes[*at] = *byte);
        bytes.resize(self.len, 7);
        bytes
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..Default::default() })]

    #[test]
    fn both_halves_understand_each_other(
        asks in proptest::collection::vec((any::<bool>(), 0_usize..BYTES, 0_usize..BYTES), 1..8), packet in 33_usize..3000,
    ) {
        let mut target = Target::new();
        let mut origin = origin();
        let mut model = vec![0; BYTES];
        let mut room = Vec::new();
        for (round, (writes, from, to)) in asks.into_iter().enumerate() {
            let (from, to) = (from.min(to), from.max(to));
            let mut bytes = vec![round as u8 + 1; to - from];
            let op = ask(&mut origin, &target, writes, &mut bytes, from as u64);
            let mut one = origin.waiting().pop_front().unwrap();
            while !one.is_sent() {
                let sent = one.send(packet, &mut room, |tag, bytes| {
                    assert!(bytes.len() <= packet);
                    target.remote.take(LANE, PEER, tag, Payload::private(bytes)) == Verdict::Taken
                });
                prop_assert!(sent);
            }
            origin.asked.sent.push_back(one);
            for (word, bytes) in target.say(packet) {
                prop_assert!(!op.is_done() && bytes.len() <= packet);
                prop_assert_eq!(origin.take(LANE, PEER, word.tag(), Payload::private(&bytes)), Verdict::Taken);
            }
            prop_assert!(matches!(op.take(), Some(Outcome::Copied)));
            if writes {
                model[from..to].fill(round as u8 + 1);
            }
            prop_assert_eq!(&bytes[..], &model[from..to]);
            prop_assert_eq!(&target.read(), &model);
        }
    }

    #[test]
    fn any_packets_are_taken_without_harm(
        packets in proptest::collection::vec((0_u64..10, 0_u64..9, 0_u64..3, prop_oneof![Just(8_u64), 0_u64..6000], prop_oneof![Just(8_u64), 0_u64..6000], prop_oneof![Just(40_usize), 0_usize..200], any::<bool>()), 1..60),
    ) {
        let mut target = Target::new();
        let mut bytes = [7; 100];
        let op = ask(&mut target.remote, &Target::new(), false, &mut bytes, 0);
        let mut own = target.remote.waiting().pop_front().unwrap();
        own.send(100, &mut Vec::new(), |_, _| true);
        target.remote.asked.sent.push_back(own);
        for (step, status, id, offset, len, more, whole) in packets {
            let mut payload = if whole { target.request(offset, len).encode().to_vec() } else { Vec::new() };
            if whole && more == 40 {
                payload.extend(add(len, more % 2 == 0).bytes);
            } else {
                payload.resize(payload.len() + more, 3);
            }
            target.remote.take(LANE, PEER, step << 56 | status << 48 | id, Payload::private(&payload));
            prop_assert!(target.remote.served.answers.len() <= UNANSWERED_MAX);
            if len % 3 == 0 {
                target.say(64);
            }
        }
        target.remote.end(|| Error::Closed);
        prop_assert!(op.is_done() && !target.remote.has_work());
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn an_update_changes_no_more_than_the_cell_that_it_has_the_key_of(
        updates in proptest::collection::vec(sent(), 1..60), noise in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        let mut target = Target::new();
        let fill = |region: &OwnRegion| {
            let bytes = [0x5a; BYTES];
            // SAFETY: within the region, which no other thread writes now.
            unsafe { crate::memory::copy::inward(bytes.as_ptr(), region.ptr(), BYTES) };
        };
        fill(&target.region);
        let other = target.membership.create_region(target.table.next_number(), BYTES).unwrap();
        target.table.offer(&other);
        fill(&other);
        for sent in updates {
            let (before, payload) = (target.read(), sent.bytes(&target));
            let verdict = target.take(Step::Update, 1, &payload);
            let after = target.read();
            let changed: Vec<u64> = (0..BYTES).filter(|at| before[*at] != after[*at]).map(|at| at as u64).collect();
            let Some((request, update)) = Request::decode(Payload::private(&payload)).filter(|(_, update)| update.len() == UPDATE_BYTES) else {
                prop_assert!(matches!(verdict, Verdict::Broken(_)) && changed.is_empty());
                continue;
            };
            prop_assert_eq!(verdict, Verdict::Taken);
            let said = target.say(100);
            prop_assert_eq!(said.len(), 1);
            if matches!(said[0].0.step, Step::Old | Step::Done(Status::Fine)) {
                let of = update.to_vec()[1];
                let good = target.request(request.offset, 1 << (of & 0xf));
                prop_assert!(request == good && request.offset % request.bytes == 0, "{:?}", request);
                prop_assert!(changed.iter().all(|at| at.wrapping_sub(request.offset) < request.bytes), "{:?} {:?}", request, changed);
                // Any byte but 0 means true.
                if said[0].0.step == Step::Old && of >> 4 != 3 {
                    let (at, len) = (request.offset as usize, request.bytes as usize);
                    prop_assert_eq!(&said[0].1[..len], &before[at..at + len]);
                }
            } else {
                prop_assert!(changed.is_empty(), "{:?} {:?}", said[0].0, changed);
            }
        }
        let before = target.read();
        target.take(Step::Update, 1, &noise);
        prop_assert_eq!(target.read(), before);
        target.region = other;
        prop_assert_eq!(target.read(), [0x5a; BYTES]);
    }

    #[test]
    fn answers_to_updates_may_be_any_bytes(
        fetches in proptest::collection::vec(any::<bool>(), 1..5),
        tags in proptest::collection::vec(prop_oneof![
            8 => (prop_oneof![3 => Just(8_u64 << 56), 1 => Just(4 << 56), 2 => (0..9_u64).prop_map(|status| 5 << 56 | status << 48)], 0..6_u64)
                .prop_map(|(said, id)| said | id),
            1 => any::<u64>(),
        ], 1..40),
        lens in proptest::collection::vec(prop_oneof![2 => Just(16_usize), 2 => Just(0), 1 => 0..100_usize], 40),
        lane in prop_oneof![3 => Just(LANE), 1 => Just(LANE + 1)],
    ) {
        let target = Target::new();
        let mut origin = origin();
        let ops: Vec<_> = fetches.iter().map(|fetch| {
            let op = Op::new();
            origin.ask(Ask::update(LANE, "test", target.request(0, 8), add(1, *fetch), op.clone()));
            let mut one = origin.waiting().pop_front().unwrap();
            assert!(one.send(100, &mut Vec::new(), |_, _| true));
            origin.asked.sent.push_back(one);
            op
        }).collect();
        for (tag, len) in tags.into_iter().zip(lens) {
            origin.take(lane, PEER, tag, Payload::private(&[9; 100][..len]));
        }
        // Only an answer on its lane ends an operation, with exactly the requested bytes.
        let ended: Vec<_> = ops.iter().map(|op| op.take()).collect();
        for (outcome, fetch) in ended.into_iter().zip(&fetches) {
            match outcome {
                None => {}
                Some(_) if lane != LANE => prop_assert!(false, "by another lane"),
                Some(Outcome::Updated(old)) => prop_assert_eq!(old, [if *fetch { 9 } else { 0 }; 16]),
                Some(Outcome::Failed(_)) => {}
                Some(other) => prop_assert!(false, "{:?}", other),
            }
        }
        origin.end(|| Error::Closed);
        prop_assert!(!origin.has_work() && !origin.asked.awaits(LANE));
    }
}
