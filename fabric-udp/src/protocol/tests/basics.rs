use super::*;
use crate::protocol::sim::Rules;
use crate::protocol::*;
use doorbell_fabric::Priority;

fn connected(network: &Net) -> bool {
    network.nodes.iter().all(|node| node.driver.is_connected())
}

#[test]
fn two_nodes_connect_and_talk() {
    let streams = || Talker::with(Priority::ALL.map(|priority| Stream::new(priority, 500, (0, 900))).to_vec());
    let mut network = pair(1, Rules::clean(50_000), |_| {}, [streams(), streams()]);
    assert!(
        network.run(Time::from_nanos(SECOND), |n| n.nodes[0].driver.count_from(1) == 1500
            && n.nodes[1].driver.count_from(0) == 1500)
    );
    let stats = network.endpoint(0).stats();
    assert_eq!((stats.connected, stats.junk, stats.corrupted, stats.stray), (1, 0, 0, 0));
    let session = network.nodes[0].driver.session.unwrap();
    let stats = network.endpoint(0).session_stats(session).unwrap();
    assert_eq!((stats.lost, stats.bytes_again, stats.duplicates), (0, 0, 0), "{stats:?}");
}

#[test]
fn an_idle_session_lives_and_a_silent_peer_is_dead_after_the_time() {
    let mut network = pair(1, Rules::clean(50_000), |_| {}, [Talker::default(), Talker::default()]);
    assert!(network.run(Time::from_nanos(SECOND), connected));
    assert!(!network.run(Time::from_nanos(20 * SECOND), |n| n.nodes[0].driver.closed().is_some()));
    let sent = network.stats.sent;
    assert!(sent < 400, "{sent} datagrams in twenty idle seconds");
    network.nodes[1].endpoint = None;
    let killed = network.now();
    assert!(network.run(Time::NEVER, |n| n.nodes[0].driver.closed().is_some()));
    let took = network.now() - killed;
    assert!((740 * MS..=1010 * MS).contains(&took), "{took}");
    assert_eq!(network.nodes[0].driver.closed(), Some(CloseReason::Silent));
}

#[test]
fn an_endpoint_goes_from_thread_to_thread() {
    fn goes<T: Send>() {}
    goes::<Endpoint>();
}

#[test]
fn a_configuration_out_of_range_is_refused() {
    let wrong = |change: fn(&mut Config)| {
        let mut config = config(1);
        change(&mut config);
        Endpoint::new(config, [0; 32]).err().map(|error| error.field)
    };
    assert_eq!(wrong(|_| {}), None);
    assert_eq!(wrong(|config| config.links.clear()), Some("links"));
    assert_eq!(wrong(|config| config.links[0].start = 500), Some("links"));
    assert_eq!(wrong(|config| config.lane_window = 100), Some("lane_window"));
    assert_eq!(wrong(|config| config.greeting = vec![0; 513]), Some("greeting"));
    let mut endpoint = Endpoint::new(config(1), [0; 32]).unwrap();
    let path = Path { link: LinkId(1), ..Net::path_to(0) };
    assert!(endpoint.connect(Time::ZERO, Target { path, node: None }).is_none(), "no such link");
}

#[test]
fn quiet_nodes_ask_one_another_at_the_same_instants_and_each_pair_once() {
    const NODES: usize = 4;
    let mut network = Net::new(3, Rules::clean(MS / 10));
    for index in 0..NODES as u16 {
        network.add(Endpoint::new(config(index), seed_of(3, index.into())).unwrap(), Talker::default());
    }
    // Each pair meets at a moment of its own.
    for (from, to) in (0..NODES).flat_map(|from| (from + 1..NODES).map(move |to| (from, to))) {
        connect(&mut network, from, to);
        let until = network.now() + 37 * MS;
        network.run(until, |_| false);
    }
    let until = network.now() + 2 * SECOND;
    network.run(until, |_| false);
    let mut sent = |until| {
        network.run(until, |_| false);
        (0..NODES).map(|index| network.endpoint(index).stats().datagrams_out).collect::<Vec<_>>()
    };
    let before = sent(until);
    let after = sent(until + 10 * SECOND);
    let of = |index: usize| after[index] - before[index];
    let all = (0..NODES).map(of).sum::<u64>();
    // Six pairs, a ping and an answer each, in each of at most 46 rounds: the first node pings after 7/8 of a quarter of a
    // second.
    assert!((6 * 2 * 38..=6 * 2 * 46).contains(&all), "{all} datagrams in ten idle seconds");
    // The first node pings all others, and they hear it before their own pings are due.
    let due = network.endpoint(0).next_timeout().unwrap() - network.now();
    let others = (1..NODES).map(|index| network.endpoint(index).next_timeout().unwrap() - network.now());
    assert!(others.into_iter().all(|other| other >= due && other - due < 40 * MS), "the nodes do not ping together");
}
