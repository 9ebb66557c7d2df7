//! An honest pair beside a hostile node: one process serves streams, a device and messages, and the test talks with it.

use crate::foe::{Raw, open};
use crate::{HANG, HONEST, HOSTILE, VICTIM};
use doorbell::Device;
use doorbell::Listener;
use doorbell::{FabricKind, Match, Node, NodeBuilder, NodeId, Stream};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, eventually};
use doorbell_tests::process::Process;
use doorbell_tests::words::Words;
use doorbell_tests::{LOOPBACK, pattern};
use std::io::{Read, Write};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// The names of the service and of the device, and the device thread that receives.
pub const SERVICE: &str = "pair";
pub const DEVICE: &str = "pair";
pub const THREAD: u32 = 1;
/// Tags of messages to the one that serves: what is to be sent back, what came to the device, that streams are
/// accepted from now on, or not, and that it is over.
const ECHO: u64 = 10;
const OF_DEVICE: u64 = 11;
const ACCEPT: u64 = 12;
const REFUSE: u64 = 13;
const END: u64 = 14;
/// Streams of the hostile node that are kept, and never read: 256 KiB each is what the one that accepts them has agreed to.
const KEPT: usize = 8;
const STREAM_BYTES: usize = 5000;

/// Words that the processes share, behind those of the other tests.
pub mod at {
    /// The port at which the one that serves listens for the network.
    pub const PORT: usize = crate::at::COUNT;
    /// How many packets the hostile node sent.
    pub const SENT: usize = PORT + 1;
    pub const COUNT: usize = PORT + 2;
}

/// Whether this process and the others share no memory.
pub fn by_network() -> bool {
    std::env::var_os("PAIR_BY_NETWORK").is_some()
}

fn builder(network: bool) -> NodeBuilder {
    let builder = NodeBuilder::from_env().unwrap().max_nodes(8).copy(doorbell::CopySide::Both);
    if network { builder.fabric(FabricKind::Udp) } else { builder }
}

/// The role of the one that serves. It does so on one thread.
pub fn serve() {
    crate::victim::panics_end_all();
    let words = Words::inherited();
    let network = by_network();
    let own = builder(network).id(VICTIM);
    let node = if network { own.listen(LOOPBACK) } else { own }.join().unwrap();
    let listener = Listener::builder(&node, SERVICE).bind().unwrap();
    let device = Device::builder(&node, DEVICE).attach().unwrap();
    let mut thread = device.thread(THREAD).unwrap();
    words[at::PORT].store(node.address().map_or(1, |address| address.port().into()), SeqCst);
    let (mut streams, mut kept): (Vec<Stream>, Vec<Stream>) = Default::default();
    let (mut accepts, mut buf) = (false, vec![0; STREAM_BYTES]);
    let began = Instant::now();
    while words[crate::at::STOP].load(SeqCst) == 0 && began.elapsed() < 6 * HANG {
        if let Ok((stream, peer)) =
            if accepts { listener.accept_until(Instant::now()) } else { Err(std::io::ErrorKind::Other.into()) }
        {
            if peer == NodeId(HONEST) {
                stream.set_nonblocking(true);
                streams.push(stream);
            } else if kept.len() < KEPT {
                kept.push(stream);
            }
        }
        streams.retain_mut(|stream| match stream.read(&mut buf) {
            Ok(0) => false,
            Ok(len) => {
                // A ring, or what may be under way, is longer.
                stream.write_all(&buf[..len]).unwrap();
                true
            }
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        });
        while let Some(envelope) = thread.try_receive(&mut buf).unwrap() {
            if envelope.source == NodeId(HONEST) {
                node.send_until(envelope.source, OF_DEVICE, &buf[..envelope.len], Instant::now() + HANG).unwrap();
            }
        }
        let brief = Instant::now() + Duration::from_micros(200);
        match node.recv_until(Match::from(NodeId(HONEST)), &mut buf, brief) {
            Ok(envelope) if envelope.tag == ACCEPT => accepts = true,
            Ok(envelope) if envelope.tag == REFUSE => accepts = false,
            Ok(envelope) if envelope.tag == END => break,
            Ok(envelope) => node.send_until(NodeId(HONEST), ECHO, &buf[..envelope.len], Instant::now() + HANG).unwrap(),
            Err(doorbell::Error::Timeout { .. } | doorbell::Error::NoSuchNode { .. }) => {}
            Err(doorbell::Error::PeerLeft { .. }) => std::thread::yield_now(),
            Err(error) => panic!("the one that serves: {error}"),
        }
        while node.try_event().unwrap().is_some() {}
    }
    drop((streams, kept, thread, device, listener));
    crate::victim::leave(node);
}

/// What a process holds in memory of its own and shared, in KiB, and how many threads it has.
pub fn held_by(pid: u32) -> [u64; 2] {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let of = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    [of("RssAnon:") + of("RssShmem:"), of("Threads:")]
}

/// All of them: the domain, the process that serves, and this process's node, if it has joined.
pub struct Pair {
    pub domain: Domain,
    pub words: Words,
    pub server: Process,
    network: bool,
}

impl Pair {
    pub fn new(network: bool) -> Self {
        let domain = Domain::new("hostile-pair");
        let words = Words::new(at::COUNT);
        let server = Self::process("pair: serve", &domain, &words, network).go();
        eventually("it serves", || words[at::PORT].load(SeqCst) != 0);
        Self { domain, words, server, network }
    }

    fn process(role: &str, domain: &Domain, words: &Words, network: bool) -> doorbell_tests::process::Start {
        let start = Process::start(role).tell("DOORBELL_DOMAIN", domain.name()).words(words);
        if network { start.tell("PAIR_BY_NETWORK", "1") } else { start }
    }

    /// The hostile node's process.
    pub fn foe(&self, role: &str, way: &str, seed: u64) -> Process {
        let start = Self::process(role, &self.domain, &self.words, self.network).tell("HOSTILE_WAY", way);
        start.tell("DOORBELL_HOSTILE_SEED", seed.to_string()).tell("DOORBELL_HOSTILE_SECONDS", "1").go()
    }

    /// This process's node joins, and finds the other one.
    pub fn join(&self) -> Node {
        let builder = Node::builder(self.domain.name()).id(HONEST).max_nodes(8).copy(doorbell::CopySide::Both);
        let node = if self.network {
            let port = self.words[at::PORT].load(SeqCst) as u16;
            builder.fabric(FabricKind::Udp).connect(([127, 0, 0, 1], port)).join().unwrap()
        } else {
            builder.join().unwrap()
        };
        eventually("it finds the other", || node.peer(NodeId(VICTIM)).is_ok());
        node
    }

    /// Ends all but the hostile node.
    pub fn end(self, node: Node) {
        node.send_until(NodeId(VICTIM), END, &[], Instant::now() + HANG).unwrap();
        self.server.end_well(PATIENCE);
        crate::victim::leave(node);
        if let Err(error) = doorbell_shm::domain::clean(self.domain.space(), Some(self.domain.name()), true) {
            println!("{error}");
        }
        self.domain.assert_empty();
    }
}

/// A stream with the other one, be it accepted yet or not.
pub fn connect(node: &Node) -> Stream {
    let stream = Stream::builder(node, SERVICE).to(NodeId(VICTIM)).patience(HANG).connect().unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.set_write_timeout(Some(HANG)).unwrap();
    stream
}

/// Has the other one accept streams.
pub fn accepts(node: &Node) {
    node.send_until(NodeId(VICTIM), ACCEPT, &[], Instant::now() + HANG).unwrap();
}

/// Has the other one accept no more streams.
pub fn refuses(node: &Node) {
    node.send_until(NodeId(VICTIM), REFUSE, &[], Instant::now() + HANG).unwrap();
}

/// Sends in all ways, and checks that the echo is what was sent.
pub fn talk(node: &Node, stream: &mut Stream, sender: &doorbell::DeviceSender, round: u64) {
    let deadline = Instant::now() + HANG;
    let mut buf = vec![0; STREAM_BYTES];
    let bytes = pattern::bytes(1 + (round as usize * 977) % STREAM_BYTES, round);
    stream.write_all(&bytes).unwrap();
    stream.read_exact(&mut buf[..bytes.len()]).unwrap();
    assert!(buf[..bytes.len()] == bytes, "bytes of a stream were changed");
    sender.send_until(THREAD, round, &bytes, deadline).unwrap();
    let envelope = node.recv_until(Match::from(NodeId(VICTIM)).tag(OF_DEVICE), &mut buf, deadline).unwrap();
    assert!(buf[..envelope.len] == bytes, "a message to a device was changed");
    node.send_until(NodeId(VICTIM), ECHO, &bytes, deadline).unwrap();
    let envelope = node.recv_until(Match::from(NodeId(VICTIM)).tag(ECHO), &mut buf, deadline).unwrap();
    assert!(buf[..envelope.len] == bytes, "a message was changed");
}

/// What the hostile node pushes by itself in shared memory: its lanes to the one that serves, and the header page of that.
pub fn inbox(node: &Node) -> Option<[Raw; 2]> {
    use doorbell_shm::layout::HEADER_BYTES;
    let header = Raw::map(&open(&format!("{VICTIM}.inbox"))?, 0, HEADER_BYTES)?;
    let lanes = crate::foe::pair(VICTIM, node.peer(NodeId(VICTIM)).ok()?.incarnation().0, HOSTILE)?;
    crate::foe::announce(&header, HOSTILE);
    Some([header, lanes])
}
