//! The handshake that opens a session: Hello, Retry, Open, Accept, or Reject.
//!
//! Each of these datagrams ends in a proof, which is a MAC under the domain key (or under a public key), and a checksum. With a
//! domain key, Open and Accept carry the two messages of Noise NNpsk0; without one, they carry the same parameters in clear.

use super::LinkId;
use super::cipher::{Secrets, mac};
use super::config::{Config, Integrity, LinkConfig};
use super::header::Kind;
use super::random::Random;
use super::wire::{Reader, Writer};
use doorbell_fabric::{Incarnation, NodeId};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use std::cell::RefCell;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use twox_hash::XxHash3_64;

const MAGIC: [u8; 3] = *b"DBL";
const PROOF: usize = 16;
const CHECK: usize = 8;
pub(crate) const COOKIE: usize = 24;
const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The most bytes of a key exchange message.
const MESSAGE_MAX: usize = 1000;
/// The most bytes of a handshake datagram.
pub(crate) const HANDSHAKE_MAX: usize = 1100;

/// A secret that only the nodes of a domain know; without a key, a public one.
pub(crate) struct DomainSecret {
    pub domain: u64,
    pub key: Option<[u8; 32]>,
    proof: [u8; 32],
}

/// The datagram without its checksum. The checksum tells damage from strangers.
fn undamaged(datagram: &[u8]) -> Option<&[u8]> {
    let (rest, check) = datagram.split_last_chunk::<CHECK>()?;
    (XxHash3_64::oneshot(rest).to_le_bytes() == *check).then_some(rest)
}

/// A public key: its proofs only detect damage.
const OPEN_PROOF: [u8; 32] = [0; 32];

impl DomainSecret {
    pub fn new(config: &Config) -> Self {
        let name = mac(&OPEN_PROOF, &[b"doorbell domain", config.domain.as_bytes()]);
        let key = config.key.as_ref().map(|key| key.0);
        Self {
            domain: u64::from_le_bytes(*name.first_chunk().expect("32 bytes")),
            proof: key.map_or(OPEN_PROOF, |key| mac(&key, &[b"doorbell proof"])),
            key,
        }
    }

    /// Appends the proof. `openly`: for a receiver without the key.
    fn prove(&self, mut datagram: Vec<u8>, openly: bool) -> Vec<u8> {
        let tag = mac(if openly { &OPEN_PROOF } else { &self.proof }, &[&datagram]);
        datagram.extend_from_slice(&tag[..PROOF]);
        let check = XxHash3_64::oneshot(&datagram);
        datagram.extend_from_slice(&check.to_le_bytes());
        datagram
    }

    /// The proven bytes of a datagram that is [`undamaged`], if the proof is right.
    fn check<'d>(&self, datagram: &'d [u8], openly: bool) -> Option<&'d [u8]> {
        let (body, proof) = datagram.split_at_checked(datagram.len().checked_sub(PROOF)?)?;
        let tag = mac(if openly { &OPEN_PROOF } else { &self.proof }, &[body]);
        aws_lc_rs::constant_time::verify_slices_are_equal(&tag[..PROOF], proof).ok()?;
        Some(body)
    }
}

/// The head of Hello and Open: the requesting node and the session that it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub versions: (u16, u16),
    /// The requesting end's name for the session.
    pub session: u32,
    pub nonce: u64,
    pub domain: u64,
    pub keyed: bool,
}

impl Hello {
    fn write(&self, kind: Kind, datagram: &mut Vec<u8>) {
        datagram.push(kind as u8);
        datagram.extend_from_slice(&MAGIC);
        datagram.extend_from_slice(&self.prologue());
    }

    /// The bytes that both ends must have seen alike.
    fn prologue(&self) -> [u8; 28] {
        let mut bytes = [0; 28];
        let mut writer = Writer::new(&mut bytes);
        writer.u16(self.versions.0);
        writer.u16(self.versions.1);
        writer.u32(self.session);
        writer.u64(self.nonce);
        writer.u64(self.domain);
        writer.u32(self.keyed.into());
        bytes
    }

    fn read(reader: &mut Reader) -> Option<Hello> {
        reader.u8()?;
        if reader.array()? != MAGIC {
            return None;
        }
        let versions = (reader.u16()?, reader.u16()?);
        let (session, nonce, domain) = (reader.u32()?, reader.u64()?, reader.u64()?);
        let keyed = reader.u32()? & 1 != 0;
        Some(Hello { versions, session, nonce, domain, keyed })
    }
}

/// Why a request for a session is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rejection {
    /// The peer speaks the versions from `lowest` to `highest`.
    Version {
        /// The lowest version.
        lowest: u16,
        /// The highest version.
        highest: u16,
    },
    /// The peer belongs to another domain.
    OtherDomain,
    /// The peer has a key, and this end has none.
    NeedsKey,
    /// This end has a key, and the peer has none.
    HasNoKey,
    /// The peer has another key.
    WrongKey,
    /// There is a session with that node already.
    AlreadyConnected(NodeId, Incarnation),
    /// A later incarnation of this node has been there.
    Stale,
    /// The peer is this very node, or one that took its id.
    SameNode,
    /// The peer has the largest number of sessions.
    Full,
    /// The request is for a further session, but the peer has no first session with this incarnation.
    NoFirst,
}

impl Rejection {
    /// Whether the reason is told even to a peer that may lack the key.
    fn is_open(self) -> bool {
        use Rejection::{HasNoKey, NeedsKey, OtherDomain, Version, WrongKey};
        matches!(self, Version { .. } | OtherDomain | NeedsKey | HasNoKey | WrongKey)
    }

    fn number(self) -> (u8, u64) {
        match self {
            Rejection::Version { lowest, highest } => (1, u64::from(lowest) | u64::from(highest) << 16),
            Rejection::OtherDomain => (2, 0),
            Rejection::NeedsKey => (3, 0),
            Rejection::HasNoKey => (4, 0),
            Rejection::WrongKey => (5, 0),
            Rejection::AlreadyConnected(node, life) => (6, u64::from(node.0) | u64::from(life.0) << 16),
            Rejection::Stale => (7, 0),
            Rejection::SameNode => (8, 0),
            Rejection::Full => (9, 0),
            Rejection::NoFirst => (10, 0),
        }
    }

    fn from_number(number: u8, more: u64) -> Option<Rejection> {
        Some(match number {
            1 => Rejection::Version { lowest: more as u16, highest: (more >> 16) as u16 },
            2 => Rejection::OtherDomain,
            3 => Rejection::NeedsKey,
            4 => Rejection::HasNoKey,
            5 => Rejection::WrongKey,
            6 => Rejection::AlreadyConnected(NodeId(more as u16), Incarnation((more >> 16) as u32)),
            7 => Rejection::Stale,
            8 => Rejection::SameNode,
            9 => Rejection::Full,
            10 => Rejection::NoFirst,
            _ => return None,
        })
    }
}

/// A Hello or an Open from the receiver's viewpoint.
pub(crate) enum Request<'d> {
    /// The answer to send.
    Rejected(Hello, Rejection),
    Hello(Hello),
    Open(Hello, [u8; COOKIE], &'d [u8]),
}

/// Reads a Hello or an Open. `None`: malformed or damaged.
pub(crate) fn read_request<'d>(secret: &DomainSecret, versions: (u16, u16), datagram: &'d [u8]) -> Option<Request<'d>> {
    let datagram = undamaged(datagram)?;
    let mut reader = Reader::new(datagram);
    let hello = Hello::read(&mut reader)?;
    // Only this part is common to all versions. Nothing further of another version can be checked.
    if hello.versions.0 > versions.1 || hello.versions.1 < versions.0 {
        return Some(Request::Rejected(hello, Rejection::Version { lowest: versions.0, highest: versions.1 }));
    }
    if hello.keyed != secret.key.is_some() {
        let why = if hello.keyed { Rejection::HasNoKey } else { Rejection::NeedsKey };
        return Some(Request::Rejected(hello, why));
    }
    if hello.domain != secret.domain {
        return Some(Request::Rejected(hello, Rejection::OtherDomain));
    }
    let Some(body) = secret.check(datagram, false) else {
        return hello.keyed.then_some(Request::Rejected(hello, Rejection::WrongKey));
    };
    let mut reader = Reader::new(body);
    Hello::read(&mut reader)?;
    if Kind::of(datagram) == Some(Kind::Hello) {
        return Some(Request::Hello(hello));
    }
    let cookie = reader.array()?;
    let len = usize::from(reader.u16()?);
    Some(Request::Open(hello, cookie, reader.bytes(len)?))
}

pub(crate) fn write_hello(secret: &DomainSecret, hello: &Hello) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(64);
    hello.write(Kind::Hello, &mut datagram);
    secret.prove(datagram, false)
}

pub(crate) fn write_open(secret: &DomainSecret, hello: &Hello, cookie: &[u8; COOKIE], message: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(128 + message.len());
    hello.write(Kind::Open, &mut datagram);
    datagram.extend_from_slice(cookie);
    datagram.extend_from_slice(&(message.len() as u16).to_le_bytes());
    datagram.extend_from_slice(message);
    secret.prove(datagram, false)
}

/// An answer to a Hello or an Open from the requesting end's viewpoint. Each answer names the session and repeats the nonce.
pub(crate) enum Answer<'d> {
    Retry([u8; COOKIE]),
    /// The other end's name for the session, and its message.
    Accept(u32, &'d [u8]),
    Reject(Rejection),
}

fn write_answer(kind: Kind, hello: &Hello) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(64);
    datagram.push(kind as u8);
    datagram.extend_from_slice(&MAGIC);
    datagram.extend_from_slice(&hello.session.to_le_bytes());
    datagram.extend_from_slice(&hello.nonce.to_le_bytes());
    datagram
}

pub(crate) fn write_retry(secret: &DomainSecret, hello: &Hello, cookie: &[u8; COOKIE]) -> Vec<u8> {
    let mut datagram = write_answer(Kind::Retry, hello);
    datagram.extend_from_slice(cookie);
    secret.prove(datagram, false)
}

pub(crate) fn write_reject(secret: &DomainSecret, hello: &Hello, why: Rejection) -> Vec<u8> {
    let mut datagram = write_answer(Kind::Reject, hello);
    let (number, more) = why.number();
    datagram.extend_from_slice(&u32::from(number).to_le_bytes());
    datagram.extend_from_slice(&more.to_le_bytes());
    secret.prove(datagram, why.is_open())
}

pub(crate) fn write_accept(secret: &DomainSecret, hello: &Hello, session: u32, message: &[u8]) -> Vec<u8> {
    let mut datagram = write_answer(Kind::Accept, hello);
    datagram.extend_from_slice(&session.to_le_bytes());
    datagram.extend_from_slice(&(message.len() as u16).to_le_bytes());
    datagram.extend_from_slice(message);
    secret.prove(datagram, false)
}

/// The session and the nonce that an answer is for.
pub(crate) fn addressee(datagram: &[u8]) -> Option<(u32, u64)> {
    let mut reader = Reader::new(datagram);
    reader.u8()?;
    if reader.array()? != MAGIC {
        return None;
    }
    Some((reader.u32()?, reader.u64()?))
}

/// Reads an answer.
pub(crate) fn read_answer<'d>(secret: &DomainSecret, datagram: &'d [u8]) -> Option<Answer<'d>> {
    let kind = Kind::of(datagram)?;
    let rejection = |body: &[u8]| {
        let mut reader = Reader::new(body.get(16..)?);
        let number = u8::try_from(reader.u32()?).ok()?;
        Rejection::from_number(number, reader.u64()?)
    };
    let datagram = undamaged(datagram)?;
    if kind == Kind::Reject
        && let Some(why) = secret.check(datagram, true).and_then(rejection)
        && why.is_open()
    {
        return Some(Answer::Reject(why));
    }
    let body = secret.check(datagram, false)?;
    let mut reader = Reader::new(body.get(16..)?);
    match kind {
        Kind::Retry => Some(Answer::Retry(reader.array()?)),
        Kind::Accept => {
            let session = reader.u32()?;
            let len = usize::from(reader.u16()?);
            Some(Answer::Accept(session, reader.bytes(len)?))
        }
        Kind::Reject => rejection(body).map(Answer::Reject),
        Kind::Hello | Kind::Open | Kind::Data => None,
    }
}

/// Makes and checks cookies. A cookie carries a stranger's address, so that this endpoint need not remember it.
pub(crate) struct Cookies {
    secret: [u8; 32],
    lifetime: u64,
}

impl Cookies {
    pub fn new(random: &mut Random, lifetime: u64) -> Self {
        Self { secret: random.array(), lifetime }
    }

    pub fn bake(&self, now: u64, from: SocketAddr, hello: &Hello) -> [u8; COOKIE] {
        let mut cookie = [0; COOKIE];
        cookie[..8].copy_from_slice(&now.to_le_bytes());
        cookie[8..].copy_from_slice(&self.tag(now, from, hello));
        cookie
    }

    fn tag(&self, time: u64, from: SocketAddr, hello: &Hello) -> [u8; 16] {
        let address = match from.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        let tag = mac(&self.secret, &[&time.to_le_bytes(), &address, &from.port().to_le_bytes(), &hello.prologue()]);
        *tag.first_chunk().expect("32 bytes")
    }

    /// The age of the cookie, if the cookie is valid.
    pub fn age(&self, now: u64, from: SocketAddr, hello: &Hello, cookie: &[u8; COOKIE]) -> Option<u64> {
        let time = u64::from_le_bytes(*cookie.first_chunk()?);
        let age = now.checked_sub(time).filter(|age| *age <= self.lifetime)?;
        aws_lc_rs::constant_time::verify_slices_are_equal(&cookie[8..], &self.tag(time, from, hello)).ok()?;
        Some(age)
    }
}

/// The parameters that each end tells the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    pub node: NodeId,
    /// The strand: the index of this session among those between two nodes.
    pub strand: u8,
    pub incarnation: Incarnation,
    pub full_integrity: bool,
    /// The largest datagram that it takes.
    pub mtu: u16,
    pub lane_window: u32,
    /// The microseconds for which it may delay an acknowledgement.
    pub ack_delay: u32,
    /// Its share of the secrets of a session without a key.
    share: [u8; 16],
    pub greeting: Vec<u8>,
    /// The addresses of its links; empty if it has only one. `None`: it does not know this parameter and has one path for a
    /// session.
    pub addresses: Option<Vec<Reach>>,
    /// Its only link is bound to all addresses of its machine. The address that it uses depends on the receiver.
    pub wildcard: bool,
}

/// One of several addresses, and the largest datagram that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    pub address: SocketAddr,
    pub mtu: u16,
}

/// The most addresses that an end tells of.
pub(crate) const ADDRESSES_MAX: usize = 4;
/// The most sessions between two nodes: one for each address that an end tells of.
pub(crate) const STRANDS_MAX: usize = ADDRESSES_MAX;
const REACH_BYTES: usize = 20;

/// Whether exactly one node can be at an address.
pub(crate) fn is_one_place(address: SocketAddr) -> bool {
    let is_broadcast = matches!(address.ip(), IpAddr::V4(ip) if ip.is_broadcast());
    !address.ip().is_unspecified() && !address.ip().is_multicast() && !is_broadcast && address.port() != 0
}

/// The links that a node tells of, and their addresses.
pub(crate) fn reaches(config: &Config) -> impl Iterator<Item = (LinkId, Reach)> {
    let told = config.addresses.len() > 1;
    let links = config.addresses.iter().zip(&config.links).enumerate();
    let links = links.filter(move |(_, (address, _))| told && !address.ip().is_unspecified() && address.port() != 0);
    links.map(|(at, (address, link))| (LinkId(at as u8), Reach { address: *address, mtu: link.mtu as u16 })).take(ADDRESSES_MAX)
}

impl Params {
    pub fn new(config: &Config, link: &LinkConfig, random: &mut Random) -> Params {
        Params {
            node: config.node,
            strand: 0,
            incarnation: config.incarnation,
            full_integrity: config.integrity == Integrity::Full,
            mtu: link.mtu as u16,
            lane_window: config.lane_window,
            ack_delay: config.ack_delay.as_micros() as u32,
            share: random.array(),
            greeting: config.greeting.clone(),
            addresses: Some(reaches(config).map(|(_, reach)| reach).collect()),
            wildcard: !config.addresses.is_empty() && config.addresses.iter().all(|address| address.ip().is_unspecified()),
        }
    }

    /// The same parameters for a session with this strand. The requesting end of a further session has identified itself already.
    pub fn of_strand(self, strand: u8) -> Params {
        let greeting = if strand == 0 { self.greeting } else { Vec::new() };
        Params { strand, greeting, ..self }
    }

    pub fn write(&self) -> Vec<u8> {
        let addresses = self.addresses.as_deref();
        let tail = addresses.map_or(0, |addresses| 4 + addresses.len() * REACH_BYTES);
        let mut bytes = vec![0; 38 + self.greeting.len() + tail];
        let mut writer = Writer::new(&mut bytes);
        writer.u16(self.node.0);
        writer.u8(self.strand);
        writer.u8(self.full_integrity.into());
        writer.u32(self.incarnation.0);
        writer.u16(self.mtu);
        writer.u16(self.greeting.len() as u16);
        writer.u32(self.lane_window);
        writer.u32(self.ack_delay);
        writer.bytes(&[0; 2]);
        writer.bytes(&self.share);
        writer.bytes(&self.greeting);
        if let Some(addresses) = addresses {
            writer.u8(addresses.len() as u8);
            writer.u8(self.wildcard.into());
            writer.bytes(&[0; 2]);
            for Reach { address, mtu } in addresses {
                let ip = match address.ip() {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                writer.bytes(&ip.octets());
                writer.u16(address.port());
                writer.u16(*mtu);
            }
        }
        bytes
    }

    pub fn read(bytes: &[u8]) -> Option<Params> {
        let mut reader = Reader::new(bytes);
        let node = NodeId(reader.u16()?);
        let strand = reader.u8()?;
        let full_integrity = reader.u8()? != 0;
        let incarnation = Incarnation(reader.u32()?);
        let mtu = reader.u16()?;
        let greeting = usize::from(reader.u16()?);
        let (lane_window, ack_delay) = (reader.u32()?, reader.u32()?);
        reader.array::<2>()?;
        let share = reader.array()?;
        let greeting = reader.bytes(greeting)?.to_vec();
        let (addresses, wildcard) = match reader.array::<4>() {
            Some([count, wildcard, ..]) => (Some(Self::read_addresses(&mut reader, count)?), wildcard != 0),
            None => (None, false),
        };
        // Bytes that follow were added by a later release.
        let sound = incarnation.0 != 0
            && mtu >= 1_200
            && (8 << 10..=1 << 30).contains(&lane_window)
            && usize::from(strand) < STRANDS_MAX
            && ack_delay <= 100_000
            && greeting.len() <= 512;
        sound.then_some(Params {
            node,
            strand,
            incarnation,
            full_integrity,
            mtu,
            lane_window,
            ack_delay,
            share,
            greeting,
            addresses,
            wildcard,
        })
    }

    fn read_addresses(reader: &mut Reader, count: u8) -> Option<Vec<Reach>> {
        if usize::from(count) > ADDRESSES_MAX {
            return None;
        }
        let one = |reader: &mut Reader| {
            let ip = IpAddr::V6(Ipv6Addr::from(reader.array::<16>()?)).to_canonical();
            let address = SocketAddr::new(ip, reader.u16()?);
            let mtu = reader.u16()?;
            (is_one_place(address) && mtu >= 1_200).then_some(Reach { address, mtu })
        };
        (0..count).map(|_| one(reader)).collect()
    }
}

/// The requesting end's half of a key exchange.
pub(crate) enum Exchange {
    Clear([u8; 16]),
    Noise(Box<snow::HandshakeState>),
}

/// The library's algorithms, with randomness from our seed.
struct Resolver(RefCell<Random>);

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn snow::types::Random>> {
        Some(Box::new(self.0.borrow_mut().child()))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn snow::types::Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn snow::types::Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn snow::types::Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

fn noise<'k>(key: &'k [u8; 32], random: &mut Random, prologue: &'k [u8]) -> Option<snow::Builder<'k>> {
    let resolver = Box::new(Resolver(RefCell::new(random.child())));
    snow::Builder::with_resolver(NOISE.parse().ok()?, resolver).psk(0, key).ok()?.prologue(prologue).ok()
}

fn secrets_of_shares(prologue: &[u8], asking: &[u8; 16], answering: &[u8; 16]) -> ([u8; 32], [u8; 32]) {
    let one = |label: &[u8]| mac(&OPEN_PROOF, &[label, prologue, asking, answering]);
    (one(b"doorbell asking"), one(b"doorbell answering"))
}

impl Exchange {
    /// Begins the exchange. Returns the message for Open.
    pub fn begin(secret: &DomainSecret, hello: &Hello, params: &Params, random: &mut Random) -> Option<(Exchange, Vec<u8>)> {
        let Some(key) = &secret.key else { return Some((Exchange::Clear(params.share), params.write())) };
        let prologue = hello.prologue();
        let mut state = noise(key, random, &prologue)?.build_initiator().ok()?;
        let mut message = vec![0; MESSAGE_MAX];
        let len = state.write_message(&params.write(), &mut message).ok()?;
        message.truncate(len);
        Some((Exchange::Noise(Box::new(state)), message))
    }

    /// Completes the exchange with the answer. Returns the other end's parameters and the secrets.
    pub fn finish(&mut self, hello: &Hello, message: &[u8]) -> Option<(Params, Secrets)> {
        match self {
            Exchange::Clear(share) => {
                let params = Params::read(message)?;
                let (send, receive) = secrets_of_shares(&hello.prologue(), share, &params.share);
                Some((params, Secrets { send, receive }))
            }
            Exchange::Noise(state) => {
                let mut payload = [0; MESSAGE_MAX];
                let len = state.read_message(message, &mut payload).ok()?;
                let params = Params::read(payload.get(..len)?)?;
                let (send, receive) = state.dangerously_get_raw_split();
                Some((params, Secrets { send, receive }))
            }
        }
    }
}

/// The content of an Open, read by the other end before it decides.
pub(crate) struct Asked {
    pub params: Params,
    noise: Option<Box<snow::HandshakeState>>,
}

impl Asked {
    pub fn read(secret: &DomainSecret, hello: &Hello, message: &[u8], random: &mut Random) -> Option<Asked> {
        let Some(key) = &secret.key else { return Some(Asked { params: Params::read(message)?, noise: None }) };
        let prologue = hello.prologue();
        let mut state = noise(key, random, &prologue)?.build_responder().ok()?;
        let mut payload = [0; MESSAGE_MAX];
        let len = state.read_message(message, &mut payload).ok()?;
        Some(Asked { params: Params::read(payload.get(..len)?)?, noise: Some(Box::new(state)) })
    }

    /// Agrees. Returns the peer's parameters, the message for Accept, and the secrets.
    pub fn agree(self, hello: &Hello, ours: &Params) -> Option<(Params, Vec<u8>, Secrets)> {
        let Some(mut state) = self.noise else {
            let (receive, send) = secrets_of_shares(&hello.prologue(), &self.params.share, &ours.share);
            return Some((self.params, ours.write(), Secrets { send, receive }));
        };
        let mut message = vec![0; MESSAGE_MAX];
        let len = state.write_message(&ours.write(), &mut message).ok()?;
        message.truncate(len);
        let (receive, send) = state.dangerously_get_raw_split();
        Some((self.params, message, Secrets { send, receive }))
    }
}
