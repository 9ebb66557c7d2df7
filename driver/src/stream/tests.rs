//! What strangers may say about streams.

use super::end::{Carrier, End, Far, State};
use super::table::{Backlog, Streams, WINDOW};
use super::wire::{self, Kind};
use doorbell_fabric::{Incarnation, NodeId, Payload};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

const STRANGER: (NodeId, Incarnation) = (NodeId(3), Incarnation(7));
const FRIEND: (NodeId, Incarnation) = (NodeId(4), Incarnation(7));

fn far(streams: &mut Streams, peer: (NodeId, Incarnation), state: State) -> Arc<End> {
    let carrier = Carrier::Far(Box::new(Mutex::new(Far { credit: WINDOW, ..Far::default() })));
    let end = End::new(streams.next_number(), peer, 9, carrier, state);
    streams.enter(&end);
    end
}

/// A tag, mostly one that means something, and bytes of any kind.
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

    /// No packet makes it keep more than it said it would, and none touches what belongs to another node.
    #[test]
    fn whatever_is_said_is_bounded(packets in prop::collection::vec(packet(), 0..if cfg!(miri) { 30 } else { 400 })) {
        let mut streams = Streams::default();
        let backlog = Backlog::new(8);
        streams.serve(b"service", &backlog);
        let own = far(&mut streams, STRANGER, State::Opening);
        let friends = far(&mut streams, FRIEND, State::Open);
        for (tag, bytes) in packets {
            let _ = streams.take(STRANGER, tag, Payload::private(&bytes));
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
    let take = |streams: &mut Streams| streams.take(STRANGER, tag, Payload::private(&bytes));
    for _ in 0..WINDOW >> 16 {
        assert_eq!(take(&mut streams), doorbell_fabric::Verdict::Taken);
    }
    assert!(matches!(take(&mut streams), doorbell_fabric::Verdict::Broken(_)));
    // Of another node's stream nothing is taken.
    assert_eq!(streams.take(FRIEND, tag, Payload::private(&bytes)), doorbell_fabric::Verdict::Taken);
    assert_eq!(end.far().unwrap().came.len() as u64, WINDOW);
}
