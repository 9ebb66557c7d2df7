//! Junk, floods, forgeries and repetitions: nothing breaks, nothing grows, and no node is deceived.

use super::*;
use crate::protocol::frame::{self, Frame, Packet};
use crate::protocol::sim::{Dice, Rules};
use crate::protocol::wire::Writer;
use crate::protocol::*;
use doorbell_fabric::{PacketHead, PacketKind, Priority};
use proptest::prelude::*;
use std::net::SocketAddr;

fn stranger(number: u64) -> Path {
    let address: SocketAddr = ([172, 16, (number >> 8) as u8, number as u8], 1000 + (number >> 16) as u16).into();
    Path { link: LinkId(0), peer: address }
}

/// A network with a session, and the datagrams sent until then.
fn busy(key: Option<u8>) -> (Net, Vec<(SocketAddr, SocketAddr, Vec<u8>)>) {
    let talker = || Talker::with(vec![Stream::new(Priority::Normal, 40, (0, 2000))]);
    let change = |config: &mut Config| config.key = key.map(|byte| DomainKey([byte; 32]));
    let mut network = pair(1, Rules::clean(MS), change, [talker(), talker()]);
    network.record = Some(Vec::new());
    assert!(network.run(Time::from_nanos(SECOND), |n| n.nodes[1].driver.count_from(0) == 40));
    let sent = network.record.take().unwrap();
    (network, sent)
}

#[test]
fn a_flood_leaves_memory_and_sessions_as_they_are() {
    for key in [None, Some(1)] {
        let (mut network, sent) = busy(key);
        let mut dice = Dice::new(4);
        let now = network.now();
        let driver = &mut Talker::default();
        let endpoint = network.nodes[1].endpoint.as_mut().unwrap();
        let before = endpoint.stats();
        let places = endpoint.places();
        let mut buf = vec![0; 1 << 16];
        for number in 0..30_000 {
            // Junk, pieces of genuine datagrams, and genuine ones from other addresses.
            let (_, _, genuine) = &sent[dice.below(sent.len() as u64) as usize];
            let mut datagram = match number % 3 {
                0 => (0..dice.below(200)).map(|_| dice.number() as u8).collect(),
                1 => genuine[..dice.below(genuine.len() as u64) as usize].to_vec(),
                _ => genuine.clone(),
            };
            if number % 3 != 2 && datagram.len() > 1 && number % 2 == 0 {
                datagram[0] = [0xD0, 0xD1, 0xD2, 0xD3, 0xD4, 0xD8][dice.below(6) as usize];
            }
            endpoint.handle_datagram(now, stranger(number), &mut datagram, driver, false);
            assert_eq!(endpoint.places(), places);
            if number % 10_000 == 9_999 {
                while endpoint.poll_transmit(now, &mut buf, driver).is_some() {}
            }
        }
        let after = endpoint.stats();
        assert!(after.answers_dropped > 0, "answers wait in bounded memory: {after:?}");
        assert!(after.bytes_out - before.bytes_out <= 3 * (after.bytes_in - before.bytes_in));
        assert!(driver.received.is_empty() && driver.events.is_empty() && after.connected == 1 && after.closed == 0);
        assert_eq!(network.nodes[1].driver.count_from(0), 40);
        network.nodes[0].driver.streams.push(Stream::new(Priority::Low, 40, (8, 8)));
        network.wake(0);
        assert!(network.run(now + SECOND, |n| n.nodes[1].driver.count_from(0) == 80));
    }
}

#[test]
fn no_request_gets_more_than_three_times_its_bytes() {
    let (mut network, sent) = busy(None);
    let now = network.now();
    let endpoint = network.nodes[1].endpoint.as_mut().unwrap();
    let mut buf = vec![0; 1 << 16];
    for (number, (_, _, datagram)) in sent.iter().enumerate() {
        while endpoint.poll_transmit(now, &mut buf, &mut ()).is_some() {}
        endpoint.handle_datagram(now, stranger(number as u64), &mut datagram.clone(), &mut Talker::default(), false);
        let mut answered = 0;
        while let Some(transmit) = endpoint.poll_transmit(now, &mut buf, &mut ()) {
            answered += transmit.len;
        }
        assert!(answered <= 3 * datagram.len(), "{answered} for {}", datagram.len());
    }
}

#[test]
fn what_comes_again_has_no_effect() {
    for key in [None, Some(1)] {
        let (mut network, sent) = busy(key);
        for _ in 0..3 {
            for (from, to, bytes) in &sent {
                let target = usize::from(*to == Net::address(1));
                network.inject(*from, target, bytes.clone());
            }
            let now = network.now();
            network.run(now + SECOND / 2, |_| false);
        }
        let session = network.nodes[1].driver.session.unwrap();
        assert!(network.endpoint(1).session_stats(session).unwrap().duplicates > 20);
        for (index, node) in network.nodes.iter().enumerate() {
            assert_eq!(node.driver.count_from(1 - index as u16), 40);
            assert!(node.driver.closed().is_none() && node.endpoint.as_ref().unwrap().stats().connected == 1);
        }
    }
}

#[test]
fn offers_that_nobody_takes_up_are_bounded_and_forgotten() {
    let change = |config: &mut Config| config.offers_max = 8;
    let mut network = pair(1, Rules::clean(MS), change, [Talker::default(), Talker::default()]);
    assert!(network.run(Time::from_nanos(SECOND), |n| n.nodes[1].driver.is_connected()));
    // Nodes with real addresses that ask once and never come back.
    for index in 2..30 {
        let config = config(index);
        network.add(Endpoint::new(config, seed_of(1, index.into())).unwrap(), Talker::default());
        connect(&mut network, index.into(), 1);
        let deaf = Rules { holes: vec![(network.now() + 3 * MS, Time::NEVER)], ..Rules::clean(MS) };
        network.lay(deaf.clone(), &[(index.into(), 1)]);
        network.lay(deaf, &[(1, index.into())]);
    }
    let now = network.now();
    network.run(now + 10 * MS, |n| {
        assert!(n.nodes[1].endpoint.as_ref().unwrap().occupied() <= 9);
        false
    });
    network.run(now + 2 * SECOND, |_| false);
    assert_eq!(network.endpoint(1).occupied(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_frames_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut rest = &bytes[..];
        while let Ok(Some(frame)) = frame::read(&mut rest) {
            if let Frame::Ack(ack) = frame {
                let mut below = u64::MAX;
                for (low, high) in ack.ranges() {
                    prop_assert!(low <= high && high < below);
                    below = low;
                }
            }
        }
    }

    #[test]
    fn frames_of_likely_kinds_never_panic(kind in 0u8..0x20, bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let mut all = vec![kind];
        all.extend(bytes);
        let mut rest = &all[..];
        while let Ok(Some(frame)) = frame::read(&mut rest) {
            if let Frame::Ack(ack) = frame {
                ack.ranges().for_each(drop);
            }
        }
    }

    #[test]
    fn a_packet_is_read_as_it_was_written(
        kind in 1u8..10, tag: u64, message: u32, total: u64, sequence: u32, payload in proptest::collection::vec(any::<u8>(), 0..200), priority in 0usize..3,
    ) {
        let kind = PacketKind::from_number(kind).unwrap();
        let total = if kind.has_total() { total } else { payload.len() as u64 };
        let head = PacketHead { kind, tag, sequence: message, total };
        let mut image = vec![0; frame::image_len(&head, payload.len())];
        frame::write_image(&mut image, Priority::ALL[priority], sequence, &head, &payload);
        prop_assert_eq!(frame::read_image(&image), Some((Priority::ALL[priority], sequence, Packet { head, payload: &payload })));
        image.pop();
        prop_assert_eq!(frame::read_image(&image), None);
    }

    #[test]
    fn an_acknowledgement_is_read_as_it_was_written(numbers in proptest::collection::btree_set(0u64..2000, 1..300), room in 20usize..800, delay: u32) {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for number in numbers.iter().rev() {
            match ranges.last_mut() {
                Some(last) if last.0 == number + 1 => last.0 = *number,
                _ => ranges.push((*number, *number)),
            }
        }
        let mut buf = vec![0; room];
        let mut writer = Writer::new(&mut buf);
        frame::write_ack(&mut writer, delay, ranges.iter().copied());
        let len = writer.len();
        let Ok(Some(Frame::Ack(ack))) = frame::read(&mut &buf[..len]) else { panic!("no acknowledgement") };
        let told: Vec<_> = ack.ranges().collect();
        prop_assert_eq!(ack.delay, delay);
        prop_assert_eq!(&told[..], &ranges[..told.len()]);
        prop_assert!(told.len() == ranges.len() || told.len() == 1 + ((room - 20) / 8).min(64), "{} of {}", told.len(), ranges.len());
    }

    #[test]
    fn any_datagram_is_survived(kind in prop_oneof![Just(0xD0u8), Just(0xD1), Just(0xD2), Just(0xD3), Just(0xD4), Just(0xD8), any::<u8>()],
                                bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut endpoint = Endpoint::new(config(1), [1; 32]).unwrap();
        let mut datagram = vec![kind];
        datagram.extend(bytes);
        endpoint.handle_datagram(Time::from_nanos(5), stranger(1), &mut datagram, &mut Talker::default(), false);
        prop_assert_eq!(endpoint.occupied(), 0);
    }
}

/// A peer that has all keys and follows no rules: it sends frames of its own invention.
#[test]
fn a_hostile_peer_ends_its_own_session_at_most() {
    let mut broken = 0;
    for seed in 0..300 {
        let mut dice = Dice::new(seed);
        let mut network = pair(seed, Rules::clean(MS), |_| {}, [Talker::default(), Talker::default()]);
        assert!(network.run(Time::from_nanos(SECOND), |n| n.nodes.iter().all(|node| node.driver.is_connected())));
        network.nodes[1].driver.refuse = true;
        let now = network.now();
        let session = network.nodes[0].driver.session.unwrap();
        for _ in 0..30 {
            let mut body = Vec::new();
            for _ in 0..dice.below(4) + 1 {
                body.push([1, 2, 3, 4, 5, 6, 7, 8, 0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x18, 0x1a][dice.below(16) as usize]);
                body.extend(
                    (0..dice.below(40)).map(|_| if dice.chance(0.7) { dice.below(3) as u8 } else { dice.number() as u8 }),
                );
            }
            let datagram = network.endpoint(0).forge(now, session, None, &body);
            network.inject(Net::address(0), 1, datagram);
        }
        network.run(now + SECOND / 2, |_| false);
        broken += u64::from(matches!(network.nodes[1].driver.closed(), Some(CloseReason::Damaged(_))));
        assert!(network.endpoint(1).occupied() <= 1);
    }
    assert!(broken > 200, "{broken}");
}

#[test]
fn the_last_number_of_all_is_not_taken() {
    for key in [None, Some(1)] {
        let (mut network, _) = busy(key);
        let (now, session) = (network.now(), network.nodes[0].driver.session.unwrap());
        for number in [u64::MAX - 1, u64::MAX] {
            let datagram = network.endpoint(0).forge(now, session, Some(number), &[1]);
            network.inject(Net::address(0), 1, datagram);
        }
        network.run(now + 1, |_| false);
        let session = network.nodes[1].driver.session.unwrap();
        assert_eq!(network.endpoint(1).session_stats(session).unwrap().duplicates, 1);
    }
}
