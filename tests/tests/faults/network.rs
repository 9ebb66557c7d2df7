//! Nodes on a network: peers of another version, systems that forbid io_uring, processes that are killed.

use doorbell::{CopySide, Error, Event, FabricKind, Match, Node, NodeBuilder, NodeId, PortKind};
use doorbell_fabric::{Incarnation, PacketHead, Payload, Priority, Sink, Verdict};
use doorbell_tests::patience::{PATIENCE, eventually, soon, until};
use doorbell_tests::process::{Process, forbid_io_uring, told_as};
use doorbell_tests::words::{Words, now};
use doorbell_tests::{LOOPBACK, Turn};
use doorbell_udp::protocol::{Config, Endpoint, LinkId, Path, Receive, SessionId, Time, TransferId};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn builder(domain: &str) -> NodeBuilder {
    Node::builder(domain).fabric(FabricKind::Udp)
}

// ---- many large messages

#[test]
fn transfers_that_nothing_is_put_of_leave_nothing_behind() {
    const LEN: usize = 33 << 10;
    let _turn = Turn::take();
    let a = builder("many").listen(LOOPBACK).copy(CopySide::Target).join().unwrap();
    let b = builder("many").connect(a.addresses()[0]).copy(CopySide::Both).join().unwrap();
    let (to, from) = (b.id(), a.clone());
    let sending =
        std::thread::spawn(move || (0..5000).for_each(|tag| from.send_until(to, tag, &[tag as u8; LEN], soon()).unwrap()));
    let mut buf = vec![0; LEN];
    for tag in 0..5000 {
        b.recv_until(Match::any().tag(tag), &mut buf, soon()).unwrap();
        assert!(buf.iter().all(|byte| *byte == tag as u8));
    }
    sending.join().unwrap();
}

// ---- another version

/// Takes nothing.
struct Nobody;

impl Sink for Nobody {
    fn packet(&mut self, _: NodeId, _: Incarnation, _: Priority, _: &PacketHead, _: Payload<'_>) -> Verdict {
        Verdict::Refused
    }

    fn damaged(&mut self, _: NodeId, _: Priority, _: &'static str) {}
}

impl Receive for Nobody {
    fn place(&mut self, _: SessionId, _: TransferId, _: u64, _: &[u8]) {}
}

/// Answers like a node that speaks these versions, until the test stops it.
fn speak(versions: (u16, u16), socket: &UdpSocket, stop: &AtomicBool) {
    let config = Config { versions, ..Config::loopback("versions", NodeId(0), Incarnation(1)) };
    let mut endpoint = Endpoint::new(config, [7; 32]).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let (began, mut room) = (Instant::now(), vec![0; 1 << 16]);
    while !stop.load(SeqCst) {
        let now = Time::from_nanos(began.elapsed().as_nanos() as u64 + 1);
        if let Ok((len, peer)) = socket.recv_from(&mut room) {
            endpoint.handle_datagram(now, Path { link: LinkId(0), peer }, &mut room[..len], &mut Nobody, false);
        }
        while let Some(transmit) = endpoint.poll_transmit(now, &mut room, &mut ()) {
            socket.send_to(&room[..transmit.len], transmit.path.peer).unwrap();
        }
    }
}

#[test]
fn who_speaks_another_version_is_told_both() {
    let socket = UdpSocket::bind(LOOPBACK).unwrap();
    let (address, stop) = (socket.local_addr().unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| speak((2, 3), &socket, &stop));
        // As one that has an id, and as one that asks for it.
        for id in [Some(1), None] {
            let builder = builder("versions").connect(address);
            let error = id.into_iter().fold(builder, |builder, id: u16| builder.id(id)).join().unwrap_err();
            assert!(matches!(error, Error::Udp(_)), "{error:?}");
            let expected = format!(
                "the node at {address} refuses this one: it speaks versions 2 to 3 of the protocol, and this one 1; use one release of Doorbell everywhere"
            );
            assert_eq!(error.to_string(), expected);
        }
        stop.store(true, SeqCst);
        answering.join().unwrap();
    });
}

// ---- no io_uring

/// Collects warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Message(String);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn without_io_uring_all_works_and_one_line_says_so() {
    // SAFETY: between fork and exec, two system calls.
    unsafe { Process::start("has no io_uring").before(forbid_io_uring) }.go().end_well(PATIENCE);
}

pub fn has_no_io_uring() {
    let warnings = Warnings::default();
    tracing::subscriber::set_global_default(warnings.clone()).unwrap();
    let said = || std::mem::take(&mut *warnings.0.lock().unwrap());
    let one_line = |who: &str| {
        let said = said();
        assert!(
            matches!(&said[..], [line] if line.contains("io_uring") && line.contains("plain calls instead")),
            "{who}: {said:?}"
        );
    };
    let home = builder("ringless").id(0).listen(LOOPBACK).join().unwrap();
    one_line("a node that listens");
    // It opens a port to ask for its id, too.
    let away = builder("ringless").connect(home.address().unwrap()).join().unwrap();
    one_line("a node that is given its id");
    let (bytes, mut buf) = (vec![5; 3 << 20], vec![0; 3 << 20]);
    let request = away.start_send(home.id(), 1, bytes.clone()).unwrap();
    let envelope = home.recv_until(Match::from(away.id()), &mut buf, soon()).unwrap();
    assert!(envelope.len == bytes.len() && buf == bytes);
    assert!(request.wait_until(soon()).is_ok_and(|completion| completion.result.is_ok()));
    // A node that insists on io_uring gets an error that says why not.
    let error = builder("ringless").id(5).listen(LOOPBACK).udp_port(PortKind::Uring).join().unwrap_err();
    assert!(error.to_string().contains("io_uring") && error.to_string().contains("forbid"), "{error}");
    away.leave().unwrap();
    home.leave().unwrap();
    assert_eq!(said(), [""; 0]);
}

// ---- death

/// The words that the processes share.
mod at {
    /// The processes that are ready.
    pub const READY: usize = 0;
    /// When the onlooker was told of the death, on the clock that all processes share.
    pub const TOLD: usize = 1;
    pub const COUNT: usize = 2;
}

fn joined() -> Node {
    let (id, connect): (u16, SocketAddr) = (told_as("ID"), told_as("CONNECT"));
    let node = builder("death").id(id).connect(connect).join().unwrap();
    node.wait_for(3, soon()).unwrap();
    node
}

pub fn is_killed() {
    let _node = joined();
    Words::inherited()[at::READY].fetch_add(1, SeqCst);
    loop {
        std::thread::park();
    }
}

/// The next event but for joins.
fn event(node: &Node) -> Event {
    until("an event", || Some(node.event(soon()).unwrap()).filter(|event| !matches!(event, Event::Joined { .. })))
}

pub fn looks_on() {
    let (node, words) = (joined(), Words::inherited());
    words[at::READY].fetch_add(1, SeqCst);
    assert!(matches!(event(&node), Event::Died { node: NodeId(1), .. }));
    words[at::TOLD].store(now(), SeqCst);
    assert!(matches!(node.recv_until(Match::from(NodeId(0)), &mut [0; 8], soon()), Ok(envelope) if envelope.tag == 9));
    node.leave().unwrap();
}

#[test]
fn peers_of_a_killed_node_are_told_in_time_and_what_was_pending_fails_by_name() {
    let _turn = Turn::take();
    // What a node counts as dead after, if nothing is said.
    let dead_after = Duration::from_secs(1);
    let words = Words::new(at::COUNT);
    let home = builder("death").id(0).listen(LOOPBACK).join().unwrap();
    let start = |role, id: &str| {
        Process::start(role).words(&words).tell("ID", id).tell("CONNECT", home.address().unwrap().to_string()).go()
    };
    let (victim, onlooker) = (start("is killed", "1"), start("looks on", "2"));
    eventually("both are ready", || words[at::READY].load(SeqCst) == 2);
    let incarnation = home.members().unwrap().iter().find(|member| member.id == NodeId(1)).unwrap().incarnation;
    let receive = home.start_recv(Match::from(NodeId(1)), vec![0; 8]).unwrap();
    // Longer than what its lanes hold, and nobody there receives it.
    let send = home.start_send(NodeId(1), 1, vec![0; 64 << 20]).unwrap();
    // A node that lives and sends nothing is not taken for dead, however long that lasts.
    let silence = Instant::now() + dead_after * 5 / 2;
    while let Err(Error::Timeout { .. }) | Ok(Event::Joined { .. }) = home.event(silence) {
        if Instant::now() >= silence {
            break;
        }
    }
    assert!(Instant::now() >= silence && !receive.test() && !send.test(), "told too early");
    victim.kill();
    assert!(victim.ended_by(soon()));
    let ended = now();
    assert_eq!(event(&home), Event::Died { node: NodeId(1), incarnation });
    let told_home = Duration::from_nanos(now() - ended);
    let received = receive.wait_until(soon()).unwrap_or_else(|_| panic!("a receive from the dead waits on"));
    assert!(matches!(received.result, Err(Error::PeerDied { node: NodeId(1), incarnation: gone }) if gone == incarnation));
    let sent = send.wait_until(soon()).unwrap_or_else(|_| panic!("a send to the dead waits on"));
    assert!(matches!(sent.result, Err(Error::PeerDied { node: NodeId(1), incarnation: gone }) if gone == incarnation));
    let error = home.send_until(NodeId(1), 1, b"late", soon()).unwrap_err();
    assert!(matches!(error, Error::NoSuchNode { node: NodeId(1) } | Error::PeerDied { node: NodeId(1), .. }), "{error}");
    let told_there = until("the onlooker is told", || Some(words[at::TOLD].load(SeqCst)).filter(|time| *time != 0));
    let told_there = Duration::from_nanos(told_there.saturating_sub(ended));
    println!("dead after {dead_after:?} of silence: told {told_home:.2?} after its end, and {told_there:.2?} by another");
    // Far from either is a mistake; a crowded machine is none.
    assert!(told_home < 5 * dead_after && told_there < 5 * dead_after, "{told_home:?}, {told_there:?}");
    // Nobody else is disturbed.
    home.send_until(NodeId(2), 9, b"go", soon()).unwrap();
    onlooker.end_well(PATIENCE);
    home.leave().unwrap();
}
