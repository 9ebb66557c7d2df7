//! Clients and servers of I/O nodes that break the protocol, and many clients at once.

use doorbell::Device;
use doorbell::device::{DeviceSender, DeviceThread};
use doorbell::io::IoClient;
use doorbell::{FabricKind, Node, NodeId, Role, Space};
use doorbell_shm::device::{Client, Writer};
use doorbell_shm::domain::{JoinOptions, Membership};
use doorbell_tests::files::{Pair, Room, as_it_is, fails};
use doorbell_tests::number;
use doorbell_tests::patience::{PATIENCE, eventually, running, until};
use doorbell_tests::random::Random;
use std::fs;
use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// The version of the protocol between clients and servers.
const VERSION: u64 = 3;
/// Results that no system call has.
const NONSENSE: [i64; 4] = [i64::MIN, -4096, i64::MIN + 1, -(u32::MAX as i64) - 1];

/// A client that can send any request.
struct Raw {
    sender: DeviceSender,
    mailbox: DeviceThread,
    /// Its number, as the server assigned it.
    client: u32,
}

impl Raw {
    const TOKEN: u64 = 4711;

    fn new(node: &Node, server: NodeId, thread: u32) -> Self {
        let sender = DeviceSender::open(node, &format!("io.{server}")).unwrap();
        let device = Device::builder(node, &format!("io.{}.{}", node.id(), node.incarnation())).attach().unwrap();
        let mut this = Self { sender, mailbox: device.thread(thread).unwrap(), client: 0 };
        this.say(1, 0, Self::TOKEN);
        assert_eq!(this.hears(), 0);
        this
    }

    /// An operation, on a descriptor.
    fn say(&self, op: u8, descriptor: u8, token: u64) {
        self.sender.send(0, u64::from(self.mailbox.id()) << 32 | 1, &self.request(op, descriptor, token)).unwrap();
    }

    fn request(&self, op: u8, descriptor: u8, token: u64) -> [u8; 32] {
        let mut request = [0; 32];
        (request[0], request[2]) = (op, descriptor);
        request[4..8].copy_from_slice(&self.client.to_le_bytes());
        if op == 1 {
            request[8..16].copy_from_slice(&VERSION.to_le_bytes());
        }
        request[24..].copy_from_slice(&token.to_le_bytes());
        request
    }

    /// The result of the next reply.
    fn hears(&mut self) -> i64 {
        let mut reply = [0; 40_000];
        let len = self.mailbox.receive_until(&mut reply, Instant::now() + PATIENCE).unwrap().len;
        if self.client == 0 && len > 32 {
            self.client = u32::from_le_bytes(reply[32..36].try_into().unwrap());
        }
        i64::from_le_bytes(reply[..8].try_into().unwrap())
    }
}

#[test]
fn whatever_is_sent_to_a_server_it_goes_on() {
    let pair = Pair::new(Room::in_memory(), as_it_is);
    fs::write(pair.path("f"), b"intact").unwrap();
    let client = pair.client();
    let file = client.open("f").unwrap();
    let hostile = Node::builder("io").space(pair.space.clone().unwrap()).join().unwrap();
    let mut raw = Raw::new(&hostile, pair.io.id(), 77);
    // With a file of its own.
    let mut open = raw.request(3, 0, Raw::TOKEN);
    open[8..16].copy_from_slice(&(0o600 << 32 | (libc::O_RDWR | libc::O_CREAT) as u64).to_le_bytes());
    raw.sender.send_vectored(0, 77 << 32, &[&open, b"g"]).unwrap();
    assert_eq!(raw.hears(), 0);
    let mut reply = vec![0; 40_000];
    let mut random = Random::new(number("DOORBELL_SEED", 1));
    for round in 0..number("DOORBELL_CASES", 4000) {
        let len = if round % 50 == 0 { random.below(30_000) } else { random.below(80) };
        let mut message: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
        // Near to what makes sense: any operation, the client that is there, few descriptors.
        if len >= 32 && round % 2 == 0 {
            message[0] = random.below(15) as u8;
            message[1] = random.below(2) as u8;
            message[2..4].copy_from_slice(&(random.below(3) as u16).to_le_bytes());
            message[4..8].copy_from_slice(&raw.client.to_le_bytes());
            message[24..32].copy_from_slice(&Raw::TOKEN.to_le_bytes());
            if round % 8 == 0 {
                message[9..16].fill(0);
            }
            if message[0] == 2 {
                // Its own end would be nobody's fault.
                message[0] = 5;
            }
        }
        let thread = if random.below(64) == 0 { random.next() } else { 77 << 32 | random.below(9) as u64 };
        raw.sender.send(0, thread, &message).unwrap();
        while raw.mailbox.try_receive(&mut reply).unwrap().is_some() {}
    }
    drop(raw);
    let mut six = [0; 6];
    file.read_exact_at(&mut six, 0).unwrap();
    assert_eq!(&six, b"intact");
    drop((file, client));
    let client = pair.client();
    let mut text = Vec::new();
    client.open("f").unwrap().read_to_end(&mut text).unwrap();
    assert!(pair.server.is_serving());
}

#[test]
fn nobody_says_anything_in_the_name_of_another() {
    let pair = Pair::new(Room::in_memory(), as_it_is);
    fs::write(pair.path("f"), b"f").unwrap();
    let client = pair.client();
    let file = client.open("f").unwrap();
    let mut raw = Raw::new(&pair.compute, pair.io.id(), 77);
    let (inspect, ping) = (9, 14);
    raw.say(ping, 0, Raw::TOKEN);
    assert_eq!(raw.hears(), 0);
    raw.say(inspect, 9, Raw::TOKEN);
    assert_eq!(raw.hears(), -i64::from(libc::EBADF));
    // Its own word alone, and a number that others have.
    raw.say(ping, 0, Raw::TOKEN + 1);
    assert_eq!(raw.hears(), -i64::from(libc::ENOTCONN));
    let own = raw.client;
    for of_another in (0..4).map(|at| 1 << 16 | at).filter(|number| *number != own) {
        raw.client = of_another;
        raw.say(inspect, file.descriptor() as u8, Raw::TOKEN);
        raw.say(ping, 0, Raw::TOKEN);
        assert_eq!(raw.hears(), -i64::from(libc::ENOTCONN));
    }
    // To leave in its name, too.
    let sender = DeviceSender::open(&pair.compute, &format!("io.{}", pair.io.id())).unwrap();
    for (client, thread) in [0, 1 << 16, 1 << 16 | 1].into_iter().flat_map(|client| (0..200).map(move |thread| (client, thread)))
    {
        raw.client = client;
        let mut bye = raw.request(2, 0, Raw::TOKEN + 1);
        bye[1] = 1;
        sender.send(0, thread << 32 | 1, &bye).unwrap();
    }
    file.metadata().unwrap();
    assert_eq!(pair.server.counts().clients, 2);
}

/// The server makes no second client of one that asks twice, and keeps none that gave up.
#[test]
fn who_asks_twice_is_one_client() {
    // Two of one node: a third place is for others.
    let pair = Pair::new(Room::in_memory(), |server| server.clients(3));
    fs::write(pair.path("f"), b"f").unwrap();
    let client = pair.client();
    let file = client.open("f").unwrap();
    // What a client says first, of a thread that has none to take the answer.
    let device = DeviceSender::open(&pair.compute, &format!("io.{}", pair.io.id())).unwrap();
    let say = |op: u8, thread: u64| {
        let mut request = [0; 32];
        (request[0], request[1]) = (op, u8::from(op == 2));
        request[8..16].copy_from_slice(&VERSION.to_le_bytes());
        device.send(0, thread << 32 | 1, &request).unwrap();
    };
    for _ in 0..20 {
        say(1, 77);
        file.metadata().unwrap();
    }
    eventually("it is a client", || pair.server.counts().clients == 2);
    for _ in 0..20 {
        say(1, 77);
    }
    file.metadata().unwrap();
    assert_eq!(pair.server.counts().clients, 2);
    fails(IoClient::connect(&pair.compute, pair.io.id()), libc::EUSERS);
    say(2, 77);
    eventually("it is no client any more", || {
        file.metadata().unwrap();
        pair.server.counts().clients == 1
    });
    drop(pair.client());
}

/// Replies of a hostile server. No reply makes a client hang or accept an impossible result.
#[test]
fn a_client_notices_what_is_lost_and_believes_no_nonsense() {
    let space = Space::heap();
    let [io, compute] = [Role::Io, Role::Host].map(|role| Node::builder("io").role(role).space(space.clone()).join().unwrap());
    let device = Device::builder(&io, &format!("io.{}", io.id())).threads(1).senders(8).message_max(20_000).attach().unwrap();
    let mut mailbox = device.thread(0).unwrap();
    let (server, name) = (io.id(), format!("io.{}.{}", compute.id(), compute.incarnation()));
    // Answers to questions how much is under way, and what the call fails with then.
    let lost = [(vec![1, 2, 0], ErrorKind::NotConnected), (vec![3, -107], ErrorKind::NotConnected)];
    for (answers, kind) in lost {
        let compute = compute.clone();
        let client = running("a client whose answer is lost", move || {
            let client = IoClient::connect(&compute, server).unwrap();
            for _ in NONSENSE {
                fails(client.metadata("f"), libc::EPROTO);
            }
            let (file, mut ten) = (client.open("f").unwrap(), [0; 10]);
            // Less is not the end, unless the server says so.
            assert_eq!(file.read_at(&mut ten, 5).unwrap(), 6);
            assert_eq!(&ten[..6], b"abcdef");
            // More than was asked for is cut.
            assert_eq!(file.read_at(&mut ten[..3], 0).unwrap(), 3);
            assert_eq!(&ten[..5], b"ghide");
            (client.metadata("f").unwrap_err(), client.metadata("f").unwrap_err())
        });
        let mut room = [0; 20_000];
        let mut next = || loop {
            let letter = mailbox.receive_until(&mut room, Instant::now() + PATIENCE).unwrap();
            if room[1] == 0 {
                let of = |at: usize| u32::from_le_bytes(room[at..at + 4].try_into().unwrap());
                // The operation, its offset and its length.
                return ((room[0], of(8), of(16)), letter.tag);
            }
        };
        let ((op, ..), tag) = next();
        assert_eq!(op, 1);
        let sender = DeviceSender::open(&io, &name).unwrap();
        let says = |tag: u64, result: i64, value: u8, follows: &[u8]| {
            sender.send((tag >> 32) as u32, tag, &[&result.to_le_bytes()[..], &[value], &[0; 23], follows].concat()).unwrap();
        };
        let say = |tag: u64, result: i64, follows: &[u8]| says(tag, result, 0, follows);
        // A welcome without staging memory.
        say(tag, 0, &[&1_u32.to_le_bytes()[..], &[0; 44]].concat());
        for nonsense in NONSENSE {
            let ((op, ..), tag) = next();
            assert_eq!(op, 8);
            say(tag, nonsense, &[]);
        }
        let ((op, ..), tag) = next();
        assert_eq!(op, 3);
        say(tag, 0, &[]);
        let reads = [((5, 5, 10), 4, 0, &b"abcd"[..]), ((5, 9, 6), 2, 1, b"ef"), ((5, 0, 3), 1 << 40, 0, b"ghijklmn")];
        for (asked, result, value, bytes) in reads {
            let (ask, tag) = next();
            assert_eq!(ask, asked);
            says(tag, result, value, bytes);
        }
        // No answer to this one.
        assert_eq!(next().0.0, 8);
        for answer in answers {
            let ((op, ..), tag) = next();
            assert_eq!(op, 14);
            say(tag, answer, &[]);
        }
        let (error, again) = client.join();
        assert_eq!((error.kind(), again.kind()), (kind, ErrorKind::NotConnected), "{error}; {again}");
    }
}

/// One node gets at most half of the places, however it asks for them, so that a client of another node is still accepted.
#[test]
fn a_node_has_32_clients_and_leaves_places_for_others() {
    let pair = Pair::new(Room::in_memory(), |server| server.staging_bytes(0));
    let clients: Vec<IoClient> = (0..32).map(|_| pair.client()).collect();
    fails(IoClient::connect(&pair.compute, pair.io.id()), libc::EUSERS);
    let other = Node::builder("io").space(pair.space.clone().unwrap()).join().unwrap();
    let of_other: Vec<IoClient> = (0..16).map(|_| IoClient::connect(&other, pair.io.id()).unwrap()).collect();
    fails(IoClient::connect(&other, pair.io.id()), libc::EUSERS);
    drop((clients, of_other));
    until("a place", || IoClient::connect(&pair.compute, pair.io.id()).ok());
}

/// A hundred clients by one lane, each with staging memory: what the server would do for a single node over the network.
#[test]
fn a_node_that_has_one_lane_gets_no_more_than_its_share() {
    let pair = Pair::new(Room::in_memory(), |server| server.clients(8).staging_bytes(8 << 20));
    let name = format!("io.{}.{}", pair.compute.id(), pair.compute.incarnation());
    let _answers = Device::builder(&pair.compute, &name).threads(64).attach().unwrap();
    let device = DeviceSender::open(&pair.compute, &format!("io.{}", pair.io.id())).unwrap();
    let say = || {
        for thread in 0..100_u64 {
            let mut request = [0; 32];
            request[0] = 1;
            request[8..16].copy_from_slice(&VERSION.to_le_bytes());
            request[16..20].copy_from_slice(&(4_u32 << 20).to_le_bytes());
            device.send(0, thread << 32 | 1, &request).unwrap();
        }
    };
    eventually("it has its share", || {
        say();
        pair.server.counts().clients == 4
    });
    let before = pair.server.counts().requests;
    say();
    eventually("the server has heard all", || pair.server.counts().requests >= before + 100);
    let counts = pair.server.counts();
    assert!(counts.clients == 4 && counts.staging_bytes <= 4 << 20, "{counts:?}");
    let other = Node::builder("io").space(pair.space.clone().unwrap()).join().unwrap();
    fs::write(pair.path("f"), b"f").unwrap();
    let client = IoClient::connect(&other, pair.io.id()).unwrap();
    assert_eq!(client.metadata("f").unwrap().len(), 1);
    assert!(pair.server.counts().staging_bytes > counts.staging_bytes, "the other node has staging memory as well");
}

/// Another process can read what a client says about itself, and write what it likes in its name; but not by the client's lane.
#[test]
fn what_a_client_says_of_itself_is_of_no_use_to_those_who_read_it() {
    let pair = Pair::new(Room::in_memory(), as_it_is);
    fs::write(pair.path("f"), b"f").unwrap();
    let client = pair.client();
    client.metadata("f").unwrap();
    let options = JoinOptions::new("io", pair.space.clone().unwrap());
    let foe = Membership::join(options).unwrap();
    let device = foe.open_device(&format!("io.{}", pair.io.id())).unwrap().unwrap();
    let view = device.view();
    // SAFETY: packets of eight words, mapped as long as `device`; others write there, so the words are atomics.
    let words = unsafe { std::slice::from_raw_parts(view.rings.as_ptr().cast::<AtomicU64>(), view.rings.len() * 8) };
    let packets = words.chunks(8).map(|packet| [0, 1, 2, 3, 4, 5, 6, 7].map(|at: usize| packet[at].load(Relaxed)));
    let hello = packets.into_iter().find(|packet| packet[4] as u8 == 1 && packet[5] == VERSION).expect("a hello");
    let (tag, token) = (hello[2], hello[7]);
    let victim = Client { node: pair.compute.id(), incarnation: pair.compute.incarnation(), stream: 1 };
    let mut writer = Writer::claim(&view, (foe.id(), foe.incarnation()), Some(victim), |_, _| true).unwrap();
    let before = pair.server.counts();
    let mut said = 0;
    // Each number that a client may have: to remove a file in its name, and to leave.
    for (op, path) in [(12, &b"f"[..]), (2, b"")] {
        for number in [0, 1 << 16, 1 << 16 | 1, 2 << 16] {
            let mut request = [0; 32];
            (request[0], request[1]) = (op, 1);
            request[4..8].copy_from_slice(&u32::to_le_bytes(number));
            request[24..].copy_from_slice(&token.to_le_bytes());
            writer.try_write(&view, 0, tag, &[&request, path]).unwrap();
            said += 1;
        }
    }
    // And to be a client once more in its name, of which the honest one would have one place less.
    let mut request = [0; 32];
    request[0] = 1;
    request[8..16].copy_from_slice(&VERSION.to_le_bytes());
    writer.try_write(&view, 0, tag, &[&request]).unwrap();
    eventually("the server has heard all", || pair.server.counts().requests > before.requests + said);
    assert_eq!(client.metadata("f").unwrap().len(), 1);
    assert_eq!((pair.server.counts().clients, pair.server.counts().lost), (1, 0));
    writer.release(&view);
    drop(device);
    foe.leave().unwrap();
}

/// More clients than the server handles at a time: those beyond the limit ask again.
#[test]
fn newcomers_over_the_network_are_all_served_however_many_come_at_once() {
    let pair = Pair::over_udp(Room::in_memory(), as_it_is);
    fs::write(pair.path("f"), b"f").unwrap();
    let address = pair.io.address().unwrap();
    let join = || Node::builder("io").fabric(FabricKind::Udp).connect(address).join().unwrap();
    let nodes: Vec<Node> = (0..12).map(|_| join()).collect();
    let server = pair.io.id();
    let clients: Vec<_> = nodes
        .iter()
        .map(|node| {
            let node = node.clone();
            running("a newcomer", move || {
                let client = IoClient::builder(&node).server(server).patience(PATIENCE).connect().unwrap();
                client.metadata("f").unwrap().len()
            })
        })
        .collect();
    assert!(clients.into_iter().all(|client| client.join() == 1));
}
