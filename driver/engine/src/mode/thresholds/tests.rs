use super::super::{LinkMetrics, ModeRequest};
use super::*;
use crate::tune::{Found, Machine};
use doorbell_fabric::NodeId;
use proptest::prelude::*;

const ALL: [bool; 4] = [true; 4];
const NEVER_TRANSFER: [bool; 4] = [false, true, true, true];
const TRANSFER: [bool; 4] = [true, false, false, false];
const SHM: LinkMetrics = LinkMetrics { depth: 0, bytes: 0, room: 131_072, places: 1024, transfers: 0, still: u32::MAX };
const UDP: LinkMetrics = LinkMetrics { depth: 0, bytes: 0, room: 1 << 20, places: 0, transfers: 0, still: u32::MAX };

fn link(fabric: Fabric, link: u8) -> LinkView {
    let metrics = if fabric == Fabric::Shm { SHM } else { UDP };
    LinkView { fabric, link, protocols: ALL, advice: Protocol::Transfer, large: LARGE, metrics, word: 0 }
}

/// Shared memory, and two links of a network.
fn three() -> Vec<LinkView> {
    vec![link(Fabric::Shm, 0), link(Fabric::Udp, 0), link(Fabric::Udp, 1)]
}

fn ask(policy: &Thresholds, links: &mut [LinkView], asked: &str, len: u64) -> Decision {
    let asked: ModeRequest = asked.parse().unwrap();
    let requested = asked.or(ModeRequest { protocol: Some(Protocol::Transfer), ..ModeRequest::default() });
    policy.choose(&mut Question { to: NodeId(1), call: Call::Send, len, in_region: true, asked, requested, links })
}

fn told(policy: &Thresholds, links: &mut [LinkView], asked: &str, len: u64) -> (String, Reason) {
    let Decision { mode, reason, .. } = ask(policy, links, asked, len);
    (mode.to_string(), reason)
}

fn sent(mode: &str, len: u64, reason: Reason) -> Receipt {
    let request: ModeRequest = mode.parse().unwrap();
    let used = Mode { fabric: request.fabric.unwrap(), link: request.link.unwrap(), protocol: request.protocol.unwrap() };
    Receipt {
        to: NodeId(1),
        call: Call::Send,
        len,
        in_region: true,
        requested: request,
        decided: used,
        used,
        moved: None,
        beside: Links::NONE,
        reason,
    }
}

fn observe(policy: &Thresholds, mode: &str, len: u64, ns: u64, times: usize) {
    (0..times).for_each(|_| policy.observe(&sent(mode, len, Reason::Default), Duration::from_nanos(ns)));
}

#[test]
fn what_is_asked_for_is_done_where_nothing_is_in_its_way() {
    let policy = Thresholds::new();
    for (asked, used, reason) in [
        ("any", "shm/0/transfer", Reason::Default),
        ("shm", "shm/0/transfer", Reason::Requested),
        ("udp", "udp/0/transfer", Reason::Requested),
        ("udp/1/get", "udp/1/get", Reason::Requested),
        ("put", "shm/0/put", Reason::Requested),
    ] {
        assert_eq!(told(&policy, &mut three(), asked, 8), (used.into(), reason), "{asked}");
    }
}

#[test]
fn the_first_link_that_can_do_what_is_asked_for_is_taken() {
    let mut links = three();
    links[0].protocols = TRANSFER;
    assert_eq!(told(&Thresholds::new(), &mut links, "get", 8), ("udp/0/get".into(), Reason::Requested));
    links[1].protocols = TRANSFER;
    assert_eq!(told(&Thresholds::new(), &mut links, "get", 8), ("udp/1/get".into(), Reason::Requested));
    links[0].protocols = [false; 4];
    assert_eq!(told(&Thresholds::new(), &mut links, "any", 8), ("udp/1/transfer".into(), Reason::Default));
}

#[test]
fn what_cannot_be_done_is_done_otherwise_and_said() {
    let mut links = three();
    links.iter_mut().for_each(|link| link.protocols = TRANSFER);
    let why = Reason::Unavailable("the message can't take this protocol here");
    assert_eq!(told(&Thresholds::new(), &mut links, "udp/get", 8), ("udp/0/transfer".into(), why));
    let why = Reason::Unavailable("there is no such link");
    assert_eq!(told(&Thresholds::new(), &mut links[..1], "udp/3", 8), ("shm/0/transfer".into(), why));
    // A strict policy decides for the impossible request, so that the driver refuses it.
    assert_eq!(told(&Thresholds::new().strict(true), &mut links[..1], "udp/3/get", 8), ("udp/3/get".into(), why));
    links.iter_mut().for_each(|link| link.protocols = [false; 4]);
    assert!(matches!(ask(&Thresholds::new(), &mut links, "any", 8).reason, Reason::Unavailable(_)));
    assert!(matches!(ask(&Thresholds::new(), &mut [], "any", 8).reason, Reason::Unavailable(_)));
}

#[test]
fn a_long_queue_sends_to_another_fabric_until_it_is_short() {
    let policy = Thresholds::new();
    let mut links = three();
    for (depth, used) in [
        (768, "shm/0/transfer"),
        (769, "udp/0/transfer"),
        (500, "udp/0/transfer"),
        (385, "udp/0/transfer"),
        (384, "shm/0/transfer"),
        (768, "shm/0/transfer"),
        (1024, "udp/0/transfer"),
    ] {
        links[0].metrics = LinkMetrics { depth, places: 4096, ..SHM };
        links[0].metrics.places = 1024;
        let (mode, reason) = told(&policy, &mut links, "shm", 8);
        let limit = if depth > 768 { 768 } else { 384 };
        // The occupancy of a lane follows from its depth, and 384 of 1024 is less than 40 %.
        let expected = if used == "shm/0/transfer" { Reason::Requested } else { Reason::Queue { depth, limit } };
        assert_eq!((mode.as_str(), reason), (used, expected), "{depth}");
    }
}

#[test]
fn a_queue_of_shared_memory_is_not_long_while_it_may_have_been_read() {
    let policy = Thresholds::new().depth_high(4).depth_low(2);
    let mut links = three();
    links[0].metrics.depth = 257;
    assert_eq!(ask(&policy, &mut links, "shm", 8).reason, Reason::Requested);
    links[0].metrics.depth = 258;
    assert_eq!(ask(&policy, &mut links, "shm", 8).reason, Reason::Queue { depth: 258, limit: 257 });
    links[0].metrics.depth = 257;
    assert_eq!(ask(&policy, &mut links, "shm", 8).reason, Reason::Requested);
    links[1].metrics.depth = 5;
    assert_eq!(told(&policy, &mut links, "udp/0", 8), ("udp/1/transfer".into(), Reason::Queue { depth: 5, limit: 4 }));
    links[1].metrics.depth = 3;
    assert_eq!(ask(&policy, &mut links, "udp/0", 8).reason, Reason::Queue { depth: 3, limit: 2 });
}

#[test]
fn a_full_lane_sends_large_messages_by_dma_and_small_ones_elsewhere() {
    let policy = Thresholds::new();
    let mut links = three();
    links[0].metrics.bytes = 131_072 * 4 / 5;
    let why = Reason::Occupancy { occupancy: 799, limit: 750 };
    assert_eq!(told(&policy, &mut links, "shm/transfer", LARGE), ("shm/0/both".into(), why));
    assert_eq!(told(&policy, &mut links, "shm/transfer", LARGE - 1), ("udp/0/transfer".into(), why));
    links[0].advice = Protocol::Get;
    assert_eq!(told(&policy, &mut links, "shm/transfer", LARGE), ("shm/0/get".into(), why));
    // If too many transfers are pending as well, large messages go elsewhere, too.
    links[0].metrics.transfers = 17;
    assert_eq!(told(&policy, &mut links, "shm/transfer", LARGE), ("udp/0/transfer".into(), why));
    links[0].metrics.bytes = 131_072 / 2;
    links[0].metrics.transfers = 0;
    let why = Reason::Occupancy { occupancy: 500, limit: 400 };
    assert_eq!(told(&policy, &mut links, "shm/transfer", LARGE), ("shm/0/get".into(), why));
    links[0].metrics.bytes = 131_072 * 2 / 5;
    assert_eq!(told(&policy, &mut links, "shm/transfer", LARGE), ("shm/0/transfer".into(), Reason::Requested));
}

#[test]
fn a_queue_of_transfers_sends_what_fits_through_the_lane() {
    let policy = Thresholds::new();
    let mut links = three();
    links[0].metrics.transfers = 17;
    let why = Reason::Queue { depth: 17, limit: 16 };
    let fits = 131_072 / 1000 * 250;
    assert_eq!(told(&policy, &mut links, "shm/put", fits), ("shm/0/transfer".into(), why));
    assert_eq!(told(&policy, &mut links, "shm/put", fits + 1), ("udp/0/put".into(), why));
    links[0].metrics.bytes = 131_072;
    assert_eq!(told(&policy, &mut links, "shm/put", fits), ("udp/0/put".into(), why));
    links[0].metrics.transfers = 9;
    assert_eq!(told(&policy, &mut links, "shm/put", fits), ("udp/0/put".into(), Reason::Queue { depth: 9, limit: 8 }));
    links[0].metrics.transfers = 8;
    assert_eq!(told(&policy, &mut links, "shm/put", fits), ("shm/0/put".into(), Reason::Requested));
}

#[test]
fn another_link_of_the_kind_comes_before_another_fabric() {
    let policy = Thresholds::new();
    let mut links = three();
    links[1].metrics.depth = 2000;
    let why = Reason::Queue { depth: 2000, limit: 768 };
    assert_eq!(told(&policy, &mut links, "udp/0", 8), ("udp/1/transfer".into(), why));
    links[2].metrics.depth = 1000;
    assert_eq!(told(&policy, &mut links, "udp/0", 8), ("shm/0/transfer".into(), why));
    links[0].metrics.depth = 1000;
    assert_eq!(told(&policy, &mut links, "udp/0", 8), ("udp/0/transfer".into(), Reason::AllBusy));
}

#[test]
fn a_protocol_that_another_link_lacks_is_replaced_there() {
    let mut links = three();
    links[0].metrics.transfers = 100;
    links[0].protocols = NEVER_TRANSFER;
    links[1].protocols = TRANSFER;
    links[2].protocols = TRANSFER;
    let why = Reason::Queue { depth: 100, limit: 16 };
    assert_eq!(told(&Thresholds::new(), &mut links, "shm/get", 8), ("udp/0/transfer".into(), why));
}

#[test]
fn who_is_strict_does_not_leave_what_has_a_name() {
    let policy = Thresholds::new().strict(true);
    let mut links = three();
    links[0].metrics.depth = 1024;
    links[1].metrics.depth = 2000;
    let shm = Reason::Queue { depth: 1024, limit: 768 };
    assert_eq!(told(&policy, &mut links, "shm/transfer", LARGE), ("shm/0/transfer".into(), Reason::AllBusy));
    assert_eq!(told(&policy, &mut links, "shm", LARGE), ("shm/0/both".into(), shm));
    assert_eq!(told(&policy, &mut links, "shm", 8), ("shm/0/transfer".into(), Reason::AllBusy));
    assert_eq!(told(&policy, &mut links, "udp/0", 8), ("udp/0/transfer".into(), Reason::AllBusy));
    assert_eq!(told(&policy, &mut links, "any", 8), ("udp/1/transfer".into(), shm));
}

#[test]
fn messages_stay_with_a_link_until_another_has_clearly_less() {
    let policy = Thresholds::new().balance(1000);
    let mut links = three();
    let mut by = |bytes: [u64; 2]| {
        links[1].metrics.bytes = bytes[0];
        links[2].metrics.bytes = bytes[1];
        told(&policy, &mut links, "udp", 8)
    };
    assert_eq!(by([0, 0]), ("udp/0/transfer".into(), Reason::Requested));
    assert_eq!(by([1000, 0]), ("udp/0/transfer".into(), Reason::Requested));
    assert_eq!(by([1001, 0]), ("udp/1/transfer".into(), Reason::Balance { bytes: 1001, instead: 0 }));
    assert_eq!(by([500, 900]), ("udp/1/transfer".into(), Reason::Requested));
    assert_eq!(by([500, 2000]), ("udp/1/transfer".into(), Reason::Requested));
    assert_eq!(by([500, 2001]), ("udp/0/transfer".into(), Reason::Balance { bytes: 2001, instead: 500 }));
    assert_eq!(by([500, 400]), ("udp/0/transfer".into(), Reason::Requested));
    // A link requested by number is not left for this.
    links[1].metrics.bytes = 1 << 19;
    assert_eq!(told(&policy, &mut links, "udp/0", 8), ("udp/0/transfer".into(), Reason::Requested));
}

#[test]
fn length_decides_as_the_driver_says_or_as_was_tuned() {
    let mut links = three();
    links[0].advice = Protocol::Both;
    let size = |limit| Reason::Size { limit };
    assert_eq!(told(&Thresholds::new(), &mut links, "shm", 100_000), ("shm/0/both".into(), size(LARGE)));
    let tuned = |dma| Thresholds::new().dma(Fabric::Shm, true, dma);
    assert_eq!(told(&tuned(Dma::Never), &mut links, "any", 100_000), ("shm/0/transfer".into(), Reason::Default));
    let policy = tuned(Dma::From(65_536));
    assert_eq!(told(&policy, &mut links, "shm", 65_535), ("shm/0/transfer".into(), Reason::Requested));
    assert_eq!(told(&policy, &mut links, "shm", 65_536), ("shm/0/both".into(), size(65_536)));
    // Nothing is known of a fabric or memory that was not measured.
    assert_eq!(told(&policy, &mut links, "udp", 65_536), ("udp/0/transfer".into(), Reason::Requested));
    // Shorter than the driver's own length.
    links[0].advice = Protocol::Transfer;
    let policy = tuned(Dma::From(8192));
    assert_eq!(told(&policy, &mut links, "shm", 16_384), ("shm/0/both".into(), size(8192)));
    // Above it, the driver's advice may have other reasons, such as a stream.
    assert_eq!(told(&policy, &mut links, "shm", 65_536), ("shm/0/transfer".into(), Reason::Requested));
    // A request by name is followed if it is possible.
    assert_eq!(told(&policy, &mut links, "transfer", 16_384), ("shm/0/transfer".into(), Reason::Requested));
    links[0].protocols = TRANSFER;
    assert_eq!(told(&policy, &mut links, "shm", 16_384), ("shm/0/transfer".into(), Reason::Requested));
    links[0].protocols = NEVER_TRANSFER;
    let why = Reason::Unavailable("the message can't take the call's protocol here");
    assert_eq!(told(&policy, &mut links, "shm", 8), ("shm/0/both".into(), why));
}

#[test]
// Reads files: not for Miri.
#[cfg_attr(miri, ignore)]
fn a_measurement_sets_the_lengths() {
    let found = vec![Found { fabric: Fabric::Shm, in_region: true, dma: Dma::From(4096) }];
    let policy = Thresholds::new().with(&Tune { machine: Machine::this(), found });
    assert_eq!(told(&policy, &mut three(), "any", 4096), ("shm/0/both".into(), Reason::Size { limit: 4096 }));
}

#[test]
fn puts_and_gets_follow_the_drivers_advice() {
    let policy = Thresholds::new().dma(Fabric::Shm, true, Dma::Never);
    let mut links = three();
    links[0].advice = Protocol::Put;
    let requested = ModeRequest { protocol: Some(Protocol::Put), ..ModeRequest::default() };
    let asked = ModeRequest::default();
    let links = &mut links;
    let decision =
        policy.choose(&mut Question { to: NodeId(1), call: Call::Put, len: 8, in_region: true, asked, requested, links });
    assert_eq!((decision.mode.to_string().as_str(), decision.reason), ("shm/0/put", Reason::Default));
}

#[test]
fn what_is_seen_to_be_faster_is_done_near_the_length_that_matters() {
    let policy = Thresholds::new().trial_every(0);
    let mut links = three();
    links[0].large = 65_536;
    let far = [16_383, 262_145];
    for len in [16_384, 65_535].into_iter().chain(far) {
        observe(&policy, "shm/0/transfer", len, 1000, 100);
        observe(&policy, "shm/0/both", len, 500, 100);
    }
    let instead = ("shm/0/both".to_string(), Reason::Latency { asked: 1000, instead: 500 });
    assert_eq!(told(&policy, &mut links, "any", 16_384), instead);
    assert_eq!(told(&policy, &mut links, "any", 65_535), instead);
    for len in far {
        assert_eq!(told(&policy, &mut links, "any", len), ("shm/0/transfer".into(), Reason::Default), "{len}");
    }
    assert_eq!(told(&policy, &mut links, "transfer", 65_535).1, Reason::Requested);
    // Other memory has its own length.
    let asked = ModeRequest::default();
    let requested = ModeRequest { protocol: Some(Protocol::Transfer), ..asked };
    let links = &mut links;
    let private = Question { to: NodeId(1), call: Call::Send, len: 65_535, in_region: false, asked, requested, links };
    assert_eq!(policy.choose(&mut { private }).reason, Reason::Default);
}

#[test]
#[cfg_attr(miri, ignore = "takes it minutes, and is arithmetic")]
fn one_message_of_so_many_is_a_trial_while_somebody_measures() {
    let policy = Thresholds::new();
    let mut links = three();
    let mut trials = |policy: &Thresholds, len: u64, asked: &str| {
        let is_trial = |_: &u32| told(policy, &mut links, asked, len) == ("shm/0/both".into(), Reason::Trial { every: 64 });
        (0..640).filter(is_trial).count()
    };
    assert_eq!(trials(&policy, LARGE, "any"), 0);
    for len in [8, LARGE] {
        observe(&policy, "shm/0/transfer", len, 1000, 100);
    }
    assert_eq!((trials(&policy, LARGE, "any"), trials(&policy, LARGE, "transfer"), trials(&policy, 8, "any")), (10, 0, 0));
    links[0].metrics.transfers = 100;
    assert!((0..640).all(|_| !matches!(ask(&policy, &mut links, "any", LARGE).reason, Reason::Trial { .. })));
}

#[test]
fn what_a_full_link_sent_away_says_nothing_of_protocols() {
    let policy = Thresholds::new();
    for reason in [Reason::Queue { depth: 9, limit: 8 }, Reason::Occupancy { occupancy: 900, limit: 750 }, Reason::AllBusy] {
        policy.observe(&sent("shm/0/both", 100_000, reason), Duration::from_micros(1));
    }
    policy.observe(&Receipt { call: Call::Put, ..sent("shm/0/put", 8, Reason::Default) }, Duration::from_micros(1));
    assert_eq!(policy.means(), []);
    observe(&policy, "udp/1/put", 100_000, 1000, 3);
    let mean = Mean { fabric: Fabric::Udp, in_region: true, protocol: Protocol::Put, bytes: 65_536, ns: 1000, samples: 3 };
    assert_eq!(policy.means(), [mean]);
}

/// A step up or down of one figure of one link.
#[derive(Clone, Copy, Debug)]
struct Step {
    link: usize,
    metric: usize,
    by: i64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..3_usize, 0..3_usize, -1000..1000_i64).prop_map(|(link, metric, by)| Step { link, metric, by });
    proptest::collection::vec(step, 1..400)
}

fn wander(metrics: &mut LinkMetrics, step: Step) {
    let moved = |value: u64, scale: i64, most: u64| value.saturating_add_signed(step.by * scale / 1000).min(most);
    match step.metric {
        0 => metrics.depth = moved(metrics.depth.into(), 600, 1024) as u32,
        1 => metrics.bytes = moved(metrics.bytes, metrics.room as i64 / 2, metrics.room),
        _ => metrics.transfers = moved(metrics.transfers.into(), 12, 30) as u32,
    }
}

fn requests() -> impl Strategy<Value = String> {
    let parts = (0..3_usize, proptest::option::of(0..3_u8), 0..5_usize);
    parts.prop_map(|(fabric, link, protocol)| {
        let fabric = [None, Some(Fabric::Shm), Some(Fabric::Udp)][fabric];
        ModeRequest { fabric, link, protocol: Protocol::ALL.get(protocol).copied() }.to_string()
    })
}

/// How often a figure has crossed the whole band between two limits.
#[derive(Clone, Copy, Debug, Default)]
struct Crossings {
    is_above: bool,
    count: usize,
}

impl Crossings {
    fn see(&mut self, metric: u64, high: u64, low: u64) {
        if (self.is_above && metric <= low) || (!self.is_above && metric > high) {
            self.is_above = !self.is_above;
            self.count += 1;
        }
    }
}

fn arbitrary_protocols() -> impl Strategy<Value = [[bool; 4]; 3]> {
    any::<[[bool; 4]; 3]>()
}

proptest! {
    #[test]
    // Many cases: not for Miri.
    #[cfg_attr(miri, ignore)]
    fn the_choice_never_flaps(
        before in steps(),
        steps in steps(),
        asked in requests(),
        len in 0..100_000_u64,
        moves in proptest::collection::vec((0..3_usize, 0..3_usize), 1..4),
    ) {
        // Another test covers the balance.
        let policy = Thresholds::new().balance(u64::MAX);
        let mut links = three();
        before.into_iter().for_each(|step| wander(&mut links[step.link].metrics, step));
        // The fewer figures move, the less can explain a switch.
        let steps = steps.into_iter().map(|step| {
            let (link, metric) = moves[(3 * step.link + step.metric) % moves.len()];
            Step { link, metric, by: step.by }
        });
        let mut crossings = [[Crossings::default(); 4]; 3];
        let (mut last, mut switches) = (None, 0);
        for step in steps {
            wander(&mut links[step.link].metrics, step);
            for (link, crossings) in links.iter().zip(&mut crossings) {
                let metrics = link.metrics;
                crossings[0].see(metrics.depth.into(), 768, 384);
                crossings[1].see(metrics.occupancy().into(), 750, 400);
                crossings[2].see(metrics.transfers.into(), 16, 8);
                crossings[3].see(metrics.transfers.into(), 1, 0);
            }
            let mode = ask(&policy, &mut links, &asked, len).mode;
            switches += usize::from(last.replace(mode).is_some_and(|last| last != mode));
        }
        let crossed: usize = crossings.iter().flatten().map(|crossings| crossings.count).sum();
        prop_assert!(switches <= crossed, "{switches} switches, {crossed} crossings");
    }

    #[test]
    // Many cases: not for Miri.
    #[cfg_attr(miri, ignore)]
    fn the_balance_never_flaps(steps in proptest::collection::vec((0..2_usize, -3000..3000_i64), 1..400)) {
        let policy = Thresholds::new().balance(1000);
        let mut links = three();
        let (mut crossings, mut last, mut switches) = (Crossings { is_above: true, count: 0 }, None, 0);
        for (link, by) in steps {
            let bytes = &mut links[1 + link].metrics.bytes;
            *bytes = bytes.saturating_add_signed(by).min(10_000);
            let [one, two] = [1, 2].map(|at| links[at].metrics.bytes);
            // The difference of the loads, offset by 10 000 so that it stays positive.
            crossings.see(10_000 + two - one.min(10_000 + two), 10_999, 8_999);
            let mode = ask(&policy, &mut links, "udp", 8).mode;
            switches += usize::from(last.replace(mode).is_some_and(|last| last != mode));
        }
        prop_assert!(switches <= crossings.count + 1, "{switches} switches, {} crossings", crossings.count);
    }

    #[test]
    // Many cases: not for Miri.
    #[cfg_attr(miri, ignore)]
    fn a_decision_is_possible_and_its_figures_are_those_of_the_question(
        steps in steps(),
        asked in requests(),
        len in 0..100_000_u64,
        protocols in arbitrary_protocols(),
        tuned in 0..100_000_u64,
        strict in any::<bool>(),
    ) {
        let policy = Thresholds::new().dma(Fabric::Shm, true, Dma::From(tuned)).strict(strict);
        let mut links = three();
        links.iter_mut().zip(protocols).for_each(|(link, protocols)| link.protocols = protocols);
        let request: ModeRequest = asked.parse().unwrap();
        let can_any = links.iter().any(|link| link.protocols != [false; 4]);
        let can_asked = links.iter().any(|link| {
            link.is_allowed(&request)
                && Protocol::ALL.into_iter().any(|protocol| link.mode(protocol).is_some_and(|mode| request.allows(mode)))
        });
        for step in steps {
            wander(&mut links[step.link].metrics, step);
            let Decision { mode, reason, .. } = ask(&policy, &mut links, &asked, len);
            let link = links.iter().find(|link| (link.fabric, link.link) == (mode.fabric, mode.link));
            let is_possible = link.is_some_and(|link| link.mode(mode.protocol) == Some(mode));
            prop_assert!(is_possible || !can_any || (strict && !can_asked), "{mode} is not possible");
            prop_assert_eq!(matches!(reason, Reason::Unavailable("there is no such link" | "the message can't take this protocol here")),
                !can_asked);
            if strict && can_asked {
                prop_assert!(request.allows(mode), "{mode} for {asked}");
            }
            let is_crowded = |link: &LinkView, mode: Mode| policy.crowded(Call::Send, link, mode.protocol).is_some();
            // A request by name on an uncrowded link is followed.
            let named = links.iter().find(|link| {
                Some(link.fabric) == request.fabric && Some(link.link) == request.link
            });
            if let Some((link, named)) = named.zip(request.protocol).and_then(|(link, protocol)| Some((link, link.mode(protocol)?)))
                && !is_crowded(link, named)
            {
                prop_assert_eq!((mode, reason), (named, Reason::Requested));
            }
            // A crowded mode is chosen only if all others are crowded.
            if let Some(link) = link.filter(|_| is_possible && can_asked) {
                prop_assert!(reason == Reason::AllBusy || !is_crowded(link, mode), "{mode} for {asked}: {reason}");
            }
            let printed = reason.to_string();
            let has = |is_there: &dyn Fn(&LinkMetrics) -> bool| links.iter().any(|link| is_there(&link.metrics));
            match reason {
                Reason::Queue { depth, limit } => {
                    prop_assert!(depth > limit && has(&|metrics| depth == metrics.depth || depth == metrics.transfers));
                    prop_assert_eq!(printed, format!("queue: {depth} wait, {limit} may"));
                }
                Reason::Occupancy { occupancy, limit } => {
                    prop_assert!(occupancy > limit && has(&|metrics| occupancy == metrics.occupancy()));
                    let [is, may] = [occupancy, limit].map(|permille| format!("{}.{} %", permille / 10, permille % 10));
                    prop_assert_eq!(printed, format!("occupancy: {is} is not read, {may} may be"));
                }
                Reason::Balance { bytes, instead } => {
                    let is_of = |at: &LinkMetrics, bytes| at.bytes == bytes;
                    prop_assert!(bytes > instead && has(&|metrics| is_of(metrics, bytes)) && has(&|metrics| is_of(metrics, instead)));
                    prop_assert_eq!(printed, format!("balance: {bytes} bytes wait there, {instead} here"));
                }
                Reason::Size { limit } => prop_assert!(len >= limit || limit == LARGE),
                _ => {}
            }
        }
    }
}

#[test]
fn a_long_message_goes_by_all_links_of_its_network_that_are_free() {
    let policy = Thresholds::new();
    let mut links = three();
    links.push(link(Fabric::Udp, 3));
    let mut beside = |asked: &str, len: u64| {
        let decision = ask(&policy, &mut links, asked, len);
        (decision.mode.to_string(), decision.beside.to_string())
    };
    let told = |mode: &str, beside: &str| (mode.to_owned(), beside.to_owned());
    assert_eq!(beside("udp/put", STRIPE_LEAST), told("udp/0/put", "1+3"));
    assert_eq!(beside("udp/put", STRIPE_LEAST - 1), told("udp/0/put", "-"));
    // A link requested by number carries the whole message. Lanes and shared memory carry no parts.
    assert_eq!(beside("udp/1/put", 1 << 30), told("udp/1/put", "-"));
    assert_eq!(beside("udp/transfer", 1 << 30), told("udp/0/transfer", "-"));
    assert_eq!(beside("shm/put", 1 << 30), told("shm/0/put", "-"));
    // A link that is crowded or can't put carries no part.
    links[2].metrics.transfers = 17;
    links[3].protocols = TRANSFER;
    assert_eq!(ask(&policy, &mut links, "udp/put", 1 << 30).beside, Links::NONE);
    links[2].metrics.transfers = 8;
    assert_eq!(ask(&policy, &mut links, "udp/put", 1 << 30).beside, Links::NONE.with(1));
    assert_eq!(ask(&Thresholds::new().stripe_least(0), &mut links, "udp/put", 1).beside, Links::NONE.with(1));
    assert_eq!(ask(&Thresholds::new().stripe_least(u64::MAX), &mut links, "udp/put", 1 << 40).beside, Links::NONE);
}
