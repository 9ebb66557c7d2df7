//! The handshake that opens a session: Hello, Retry, Open, Accept, or Reject.
//!
//! Each of these datagrams ends in a proof, which is a MAC under the domain key (or under a public key), and a checksum. With a
//! domain key, Open and Accept carry the two messages of Noise NNpsk0; without one, they carry the same parameters in clear.

mod cookies;
mod exchange;
mod params;
mod proof;
mod rejection;

pub(crate) use cookies::{COOKIE, Cookies};
pub(crate) use exchange::{Asked, Exchange};
pub(crate) use params::{ADDRESSES_MAX, Params, is_one_place, reaches};
pub(crate) use proof::DomainSecret;
pub use rejection::Rejection;

use super::header::Kind;
use super::wire::{Put, Reader};
use proof::undamaged;

const MAGIC: [u8; 3] = *b"DBL";
/// The most bytes of a handshake datagram.
pub(crate) const HANDSHAKE_MAX: usize = 1100;

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

/// The start of a datagram of this kind.
fn start(kind: Kind) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(128);
    datagram.u8(kind as u8);
    datagram.bytes(&MAGIC);
    datagram
}

/// Skips the start of a datagram.
fn skip_start(reader: &mut Reader) -> Option<()> {
    reader.u8()?;
    (reader.array()? == MAGIC).then_some(())
}

impl Hello {
    fn start(&self, kind: Kind) -> Vec<u8> {
        let mut datagram = start(kind);
        datagram.bytes(&self.prologue());
        datagram
    }

    /// The bytes that both ends must have seen alike.
    fn prologue(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(28);
        bytes.u16(self.versions.0);
        bytes.u16(self.versions.1);
        bytes.u32(self.session);
        bytes.u64(self.nonce);
        bytes.u64(self.domain);
        bytes.u32(self.keyed.into());
        bytes
    }

    fn read(reader: &mut Reader) -> Option<Hello> {
        skip_start(reader)?;
        let versions = (reader.u16()?, reader.u16()?);
        let (session, nonce, domain) = (reader.u32()?, reader.u64()?, reader.u64()?);
        let keyed = reader.u32()? & 1 != 0;
        Some(Hello { versions, session, nonce, domain, keyed })
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
    Some(Request::Open(hello, reader.array()?, reader.message()?))
}

pub(crate) fn write_hello(secret: &DomainSecret, hello: &Hello) -> Vec<u8> {
    secret.prove(hello.start(Kind::Hello), false)
}

pub(crate) fn write_open(secret: &DomainSecret, hello: &Hello, cookie: &[u8; COOKIE], message: &[u8]) -> Vec<u8> {
    let mut datagram = hello.start(Kind::Open);
    datagram.bytes(cookie);
    datagram.message(message);
    secret.prove(datagram, false)
}

/// An answer to a Hello or an Open from the requesting end's viewpoint. Each answer names the session and repeats the nonce.
pub(crate) enum Answer<'d> {
    Retry([u8; COOKIE]),
    /// The other end's name for the session, and its message.
    Accept(u32, &'d [u8]),
    Reject(Rejection),
}

fn start_answer(kind: Kind, hello: &Hello) -> Vec<u8> {
    let mut datagram = start(kind);
    datagram.u32(hello.session);
    datagram.u64(hello.nonce);
    datagram
}

pub(crate) fn write_retry(secret: &DomainSecret, hello: &Hello, cookie: &[u8; COOKIE]) -> Vec<u8> {
    let mut datagram = start_answer(Kind::Retry, hello);
    datagram.bytes(cookie);
    secret.prove(datagram, false)
}

pub(crate) fn write_reject(secret: &DomainSecret, hello: &Hello, why: Rejection) -> Vec<u8> {
    let mut datagram = start_answer(Kind::Reject, hello);
    let (number, more) = why.number();
    datagram.u32(number.into());
    datagram.u64(more);
    secret.prove(datagram, why.is_open())
}

pub(crate) fn write_accept(secret: &DomainSecret, hello: &Hello, session: u32, message: &[u8]) -> Vec<u8> {
    let mut datagram = start_answer(Kind::Accept, hello);
    datagram.u32(session);
    datagram.message(message);
    secret.prove(datagram, false)
}

/// The session and the nonce that an answer is for.
pub(crate) fn addressee(datagram: &[u8]) -> Option<(u32, u64)> {
    let mut reader = Reader::new(datagram);
    skip_start(&mut reader)?;
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
        Kind::Accept => Some(Answer::Accept(reader.u32()?, reader.message()?)),
        Kind::Reject => rejection(body).map(Answer::Reject),
        Kind::Hello | Kind::Open | Kind::Data => None,
    }
}
