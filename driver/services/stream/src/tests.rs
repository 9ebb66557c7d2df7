//! What strangers may send about streams.

use super::end::{Carrier, End, Far, State};
use super::table::{Backlog, Streams, WINDOW};
use super::wire::{self, Kind};
use doorbell_engine::kit::{Gone, Incarnation, NodeId, Payload, PeerId, Priority, Service};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

const STRANGER: PeerId = PeerId { node: NodeId(3), incarnation: Incarnation(7) };
const FRIEND: PeerId = PeerId { node: NodeId(4), incarnation: Incarnation(7) };

fn far(streams: &mut Streams, peer: PeerId, state: State) -> Arc<End> {
    let carrier = Carrier::Far(Mutex::new(Far::new(WINDOW, WINDOW)));
    let end = End::new(streams.next_number(), peer, 9, carrier, state);
    streams.enter(&end);
    end
}

/// A tag, mostly a valid one, and bytes of any kind.
fn packet() -> impl Strategy<Value = (u64, Vec<u8>)> {
    let tag = prop_oneof![
        9 => (0..=10_u64, 0..6_u64).prop_map(|(kind, number)| kind << 56 | number),
        1 => any::<u64>(),
    ];
    let words = prop::collection::vec(prop_oneof![Just(0), Just(u64::MAX), 0..5_u64, any::<u64>()], 0..5);
    let bytes = prop_oneof![
        words.prop_map(|words| wire::words(&words)),
        (0..2_u64, Just(b"service".to_vec())).prop_map(|(region, name)| [wire::words(&[region, 0, WINDOW]), name].concat()),
        prop::collection::vec(any::<u8>(), 0..if cfg!(miri) { 50 } else { 3000 }),
    ];
    (tag, bytes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 3 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// No packet makes a node keep more than its limits allow, and none touches a stream of another node.
    #[test]
    fn whatever_is_said_is_bounded(packets in prop::collection::vec(packet(), 0..if cfg!(miri) { 30 } else { 400 })) {
        let mut streams = Streams::default();
        let backlog = Backlog::new(8);
        streams.serve(b"service", &backlog);
        let own = far(&mut streams, STRANGER, State::Opening);
        let friends = far(&mut streams, FRIEND, State::Open);
        for (tag, bytes) in packets {
            let _ = streams.receive(STRANGER, Priority::High, tag, Payload::private(&bytes));
            prop_assert!(streams.out.len() <= 600);
        }
        prop_assert!(own.far().unwrap().came.len() as u64 <= WINDOW && own.far().unwrap().credit <= WINDOW);
        prop_assert_eq!(friends.state(), State::Open);
        let friends = friends.far().unwrap();
        prop_assert!(friends.came.is_empty() && !friends.ended && friends.credit == WINDOW);
        let waiting = std::iter::from_fn(|| backlog.next()).count();
        prop_assert!(waiting <= 8);
    }
}

#[test]
fn bytes_beyond_what_was_granted_are_against_the_rules() {
    let mut streams = Streams::default();
    let end = far(&mut streams, STRANGER, State::Open);
    let tag = wire::tag(Kind::Data, end.number);
    let bytes = vec![1; 1 << 16];
    let take = |streams: &mut Streams| streams.receive(STRANGER, Priority::High, tag, Payload::private(&bytes));
    for _ in 0..WINDOW >> 16 {
        assert_eq!(take(&mut streams), doorbell_fabric::Verdict::Taken);
    }
    assert!(matches!(take(&mut streams), doorbell_fabric::Verdict::Broken(_)));
    // Nothing is taken for a stream of another node.
    assert_eq!(streams.receive(FRIEND, Priority::High, tag, Payload::private(&bytes)), doorbell_fabric::Verdict::Taken);
    assert_eq!(end.far().unwrap().came.len() as u64, WINDOW);
}

/// A request for a stream without shared memory.
fn open(streams: &mut Streams, from: PeerId, number: u32) {
    let bytes = [wire::words(&[0, 0, WINDOW]), b"service".to_vec()].concat();
    let _ = streams.receive(from, Priority::High, wire::tag(Kind::Open, number), Payload::private(&bytes));
}

/// The packets for a node so far, which count as sent.
fn said(streams: &mut Streams, to: PeerId) -> Vec<(Kind, u64)> {
    let all = std::iter::from_fn(|| streams.out.pop()).filter(|word| word.to == to);
    all.filter_map(|word| Some((wire::parse(word.tag)?.0, *word.bytes.first().unwrap_or(&0) as u64))).collect()
}

#[test]
fn a_node_that_fills_its_backlog_leaves_room_for_others() {
    let mut streams = Streams::default();
    let backlog = Backlog::new(8);
    streams.serve(b"service", &backlog);
    (1..100).for_each(|number| open(&mut streams, STRANGER, number));
    let answers = said(&mut streams, STRANGER);
    assert!(answers[..8].iter().all(|(kind, _)| *kind == Kind::Accepted));
    assert!(answers[8..].iter().all(|answer| *answer == (Kind::Refused, wire::BUSY)));
    // Another incarnation of it gets no more.
    open(&mut streams, PeerId { incarnation: Incarnation(8), ..STRANGER }, 1);
    assert_eq!(said(&mut streams, PeerId { incarnation: Incarnation(8), ..STRANGER }), [(Kind::Refused, wire::BUSY)]);
    open(&mut streams, FRIEND, 1);
    assert_eq!(said(&mut streams, FRIEND)[0].0, Kind::Accepted);
}

#[test]
#[cfg_attr(miri, ignore = "too many of them")]
fn a_node_that_has_all_streams_it_may_leaves_some_for_others() {
    let mut streams = Streams::default();
    let backlog = Backlog::new(usize::MAX);
    streams.serve(b"service", &backlog);
    let mut count = 0;
    // The service accepts all of them at once, and keeps them.
    let mut kept = Vec::new();
    for number in 1..100_000 {
        open(&mut streams, STRANGER, number);
        kept.extend(backlog.next());
        if said(&mut streams, STRANGER)[0].0 == Kind::Refused {
            break;
        }
        count += 1;
    }
    assert_eq!(count, 1 << 14);
    open(&mut streams, FRIEND, 1);
    assert_eq!(said(&mut streams, FRIEND)[0].0, Kind::Accepted);
    // When it ends one, another has room. All are gone with its incarnation.
    streams.reset(&kept[7]);
    said(&mut streams, STRANGER);
    open(&mut streams, STRANGER, 1);
    assert_eq!(said(&mut streams, STRANGER)[0].0, Kind::Accepted);
    streams.peer_gone(STRANGER, Gone::Died);
    (1..10).for_each(|number| open(&mut streams, STRANGER, number));
    assert!(said(&mut streams, STRANGER).iter().all(|(kind, _)| *kind == Kind::Accepted));
}

#[test]
fn little_may_come_before_a_stream_is_accepted() {
    let mut streams = Streams::default();
    let backlog = Backlog::new(8);
    streams.serve(b"service", &backlog);
    open(&mut streams, STRANGER, 1);
    let end = backlog.next().unwrap();
    let tag = wire::tag(Kind::Data, end.number);
    let first = vec![1; 8 << 10];
    assert_eq!(streams.receive(STRANGER, Priority::High, tag, Payload::private(&first)), doorbell_fabric::Verdict::Taken);
    assert!(matches!(
        streams.receive(STRANGER, Priority::High, tag, Payload::private(&[1])),
        doorbell_fabric::Verdict::Broken(_)
    ));
}

/// Requests that were sent and given up are remembered, up to a limit, until they are answered or the asked incarnation ends.
#[test]
fn a_node_that_does_not_answer_is_asked_no_more_after_a_while() {
    let mut streams = Streams::default();
    let give_up = |streams: &mut Streams| {
        let mut given_up = Vec::new();
        while streams.may_ask(STRANGER) {
            let end = far(streams, STRANGER, State::Opening);
            streams.let_go(&end);
            given_up.push(end.number);
            assert!(given_up.len() <= 16);
        }
        given_up
    };
    let given_up = give_up(&mut streams);
    assert_eq!(given_up.len(), 16);
    assert!(streams.may_ask(FRIEND));
    // An answer of either kind.
    let _ =
        streams.receive(STRANGER, Priority::High, wire::tag(Kind::Accepted, given_up[0]), Payload::private(&wire::words(&[1])));
    assert!(streams.may_ask(STRANGER));
    let _ = streams.receive(
        STRANGER,
        Priority::High,
        wire::tag(Kind::Refused, given_up[1]),
        Payload::private(&wire::words(&[wire::BUSY])),
    );
    // A repeated answer counts once.
    let _ = streams.receive(
        STRANGER,
        Priority::High,
        wire::tag(Kind::Refused, given_up[1]),
        Payload::private(&wire::words(&[wire::BUSY])),
    );
    assert_eq!(give_up(&mut streams).len(), 2);
    streams.peer_gone(STRANGER, Gone::Died);
    assert_eq!(give_up(&mut streams).len(), 16);
    // A request that was withdrawn before it left does not count.
    let end = far(&mut streams, FRIEND, State::Opening);
    streams.ask(&end, Vec::new());
    streams.let_go(&end);
    assert_eq!(streams.asks.len(), 0);
}
