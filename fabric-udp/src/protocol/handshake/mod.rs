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
use super::wire::{Reader, Writer};
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
