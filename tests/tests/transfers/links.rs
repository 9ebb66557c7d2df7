//! Nodes with several addresses: messages on a path that is cut go on by another.

use doorbell::{FabricKind, Match, Node, NodeBuilder, NodeId};
use doorbell_tests::patience::{PATIENCE, eventually};
use doorbell_tests::pattern;
use doorbell_udp::port::Kind;
use doorbell_udp::port::relay::{Badness, Relay};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const MESSAGE: usize = 1 << 20;
const COUNT: u64 = 48;
const DATA: u64 = 1;
const DONE: u64 = 2;
/// Longer than other work on the machine delays both ends.
const DEAD_AFTER: Duration = Duration::from_secs(8);

/// Two addresses that no other test has.
fn addresses(node: u8, salt: u8) -> [SocketAddr; 2] {
    [1, 2].map(|link| ([127, 90 + salt, node, link], 0).into())
}

fn builder(node: u8, salt: u8, key: bool, port: Kind) -> NodeBuilder {
    let name = format!("links-{}-{salt}", std::process::id());
    let builder = Node::builder(name).fabric(FabricKind::Udp).id(u16::from(node)).udp_port(port).dead_after(DEAD_AFTER);
    let builder = addresses(node, salt).into_iter().fold(builder, NodeBuilder::listen);
    if key { builder.key([7; 32]) } else { builder }
}

/// Sends long messages through a relay that goes deaf in mid-transfer. Returns the longest time without a message.
fn cut_in_the_middle(salt: u8, key: bool, port: Kind) -> Duration {
    let home = builder(0, salt, key, port).join().unwrap();
    assert_eq!(home.addresses().len(), 2);
    let relay = Relay::start(None, home.address().unwrap(), [Badness::NONE; 2], 1).unwrap();
    let away = builder(1, salt, key, port).connect(relay.front(0)).join().unwrap();
    let deadline = Instant::now() + PATIENCE;
    home.wait_for(2, deadline).unwrap();
    let came = AtomicU64::new(0);
    let longest = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buf = vec![0; MESSAGE];
            for seed in 0..COUNT {
                pattern::fill(&mut buf, seed);
                away.send_until(NodeId(0), DATA, &buf, deadline).unwrap();
            }
            away.recv_until(Match::from(NodeId(0)).tag(DONE), &mut [], deadline).unwrap();
        });
        scope.spawn(|| {
            eventually("some messages", || came.load(SeqCst) >= COUNT / 4);
            relay.black_hole(true);
        });
        let (mut buf, mut last, mut longest) = (vec![0; MESSAGE], Instant::now(), Duration::ZERO);
        for seed in 0..COUNT {
            let envelope = home.recv_until(Match::from(NodeId(1)).tag(DATA), &mut buf, deadline).unwrap();
            assert_eq!((envelope.len, u64::from(envelope.sequence)), (MESSAGE, seed));
            pattern::check(&buf, seed);
            longest = longest.max(last.elapsed());
            last = Instant::now();
            came.fetch_add(1, SeqCst);
        }
        home.send_until(NodeId(1), DONE, b"", deadline).unwrap();
        longest
    });
    let relayed = relay.relayed();
    assert!(relayed[0].lost + relayed[1].lost > 0, "cut in mid-transfer: {relayed:?}");
    away.leave().unwrap();
    home.leave().unwrap();
    longest
}

#[test]
fn messages_go_on_by_another_path_when_the_one_in_use_is_cut() {
    let ports = [(0, false, Kind::Auto), (1, true, Kind::Auto), (2, true, Kind::Plain), (3, false, Kind::Uring)];
    for (salt, key, port) in ports {
        let longest = cut_in_the_middle(salt, key, port);
        println!("key: {key}, {port}: no message for {longest:.1?} at most");
        assert!(longest < DEAD_AFTER);
    }
}
