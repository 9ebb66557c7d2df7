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
use super::wire::{FromBytes, Immutable, IntoBytes, KnownLayout, U16, U32, U64, Unaligned, take, take_message};
use proof::undamaged;

const MAGIC: [u8; 3] = *b"DBL";
/// The most bytes of a handshake datagram.
pub(crate) const HANDSHAKE_MAX: usize = 1100;

/// The start of a datagram of this kind.
fn start(kind: Kind) -> [u8; 4] {
    let [d, b, l] = MAGIC;
    [kind as u8, d, b, l]
}

/// Takes the start of a datagram.
fn take_start(datagram: &mut &[u8]) -> Option<()> {
    let [_, magic @ ..] = take::<[u8; 4]>(datagram)?;
    (*magic == MAGIC).then_some(())
}

/// The prologue of Hello and Open: the requesting node and the session that it asks for. Both ends must have seen these bytes
/// alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Hello {
    pub versions: [U16; 2],
    /// The requesting end's name for the session.
    pub session: U32,
    pub nonce: U64,
    pub domain: U64,
    pub keyed: U32,
}

impl Hello {
    pub fn new(secret: &DomainSecret, versions: (u16, u16), session: u32, nonce: u64) -> Self {
        Self {
            versions: [versions.0.into(), versions.1.into()],
            session: session.into(),
            nonce: nonce.into(),
            domain: secret.domain.into(),
            keyed: u32::from(secret.key.is_some()).into(),
        }
    }

    pub fn is_keyed(&self) -> bool {
        self.keyed.get() & 1 != 0
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
    let mut rest = datagram;
    take_start(&mut rest)?;
    let hello = *take::<Hello>(&mut rest)?;
    let [lowest, highest] = hello.versions.map(U16::get);
    // Only this part is common to all versions. Nothing further of another version can be checked.
    if lowest > versions.1 || highest < versions.0 {
        return Some(Request::Rejected(hello, Rejection::Version { lowest: versions.0, highest: versions.1 }));
    }
    if hello.is_keyed() != secret.key.is_some() {
        let why = if hello.is_keyed() { Rejection::HasNoKey } else { Rejection::NeedsKey };
        return Some(Request::Rejected(hello, why));
    }
    if hello.domain != secret.domain {
        return Some(Request::Rejected(hello, Rejection::OtherDomain));
    }
    let Some(body) = secret.check(datagram, false) else {
        return hello.is_keyed().then_some(Request::Rejected(hello, Rejection::WrongKey));
    };
    let mut rest = body.get(size_of::<[u8; 4]>() + size_of::<Hello>()..)?;
    if Kind::of(datagram) == Some(Kind::Hello) {
        return Some(Request::Hello(hello));
    }
    Some(Request::Open(hello, *take(&mut rest)?, take_message(&mut rest)?))
}

pub(crate) fn write_hello(secret: &DomainSecret, hello: &Hello) -> Vec<u8> {
    secret.prove(false, &[&start(Kind::Hello), hello.as_bytes()])
}

pub(crate) fn write_open(secret: &DomainSecret, hello: &Hello, cookie: &[u8; COOKIE], message: &[u8]) -> Vec<u8> {
    let len = (message.len() as u16).to_le_bytes();
    secret.prove(false, &[&start(Kind::Open), hello.as_bytes(), cookie, &len, message])
}

/// An answer to a Hello or an Open from the requesting end's viewpoint. Each answer names the session and repeats the nonce.
pub(crate) enum Answer<'d> {
    Retry([u8; COOKIE]),
    /// The other end's name for the session, and its message.
    Accept(u32, &'d [u8]),
    Reject(Rejection),
}

/// An answer with this content.
fn answer(secret: &DomainSecret, kind: Kind, hello: &Hello, openly: bool, parts: &[&[u8]]) -> Vec<u8> {
    secret.prove(openly, &[&start(kind), hello.session.as_bytes(), hello.nonce.as_bytes(), &parts.concat()])
}

pub(crate) fn write_retry(secret: &DomainSecret, hello: &Hello, cookie: &[u8; COOKIE]) -> Vec<u8> {
    answer(secret, Kind::Retry, hello, false, &[cookie])
}

pub(crate) fn write_reject(secret: &DomainSecret, hello: &Hello, why: Rejection) -> Vec<u8> {
    let (number, more) = why.number();
    answer(secret, Kind::Reject, hello, why.is_open(), &[&u32::from(number).to_le_bytes(), &more.to_le_bytes()])
}

pub(crate) fn write_accept(secret: &DomainSecret, hello: &Hello, session: u32, message: &[u8]) -> Vec<u8> {
    let len = (message.len() as u16).to_le_bytes();
    answer(secret, Kind::Accept, hello, false, &[&session.to_le_bytes(), &len, message])
}

/// Takes the start of an answer: the session and the nonce that it is for.
pub(crate) fn take_addressee(datagram: &mut &[u8]) -> Option<(u32, u64)> {
    take_start(datagram)?;
    Some((take::<U32>(datagram)?.get(), take::<U64>(datagram)?.get()))
}

/// Reads an answer.
pub(crate) fn read_answer<'d>(secret: &DomainSecret, datagram: &'d [u8]) -> Option<Answer<'d>> {
    let kind = Kind::of(datagram)?;
    let datagram = undamaged(datagram)?;
    let content = |openly| {
        let mut rest = secret.check(datagram, openly)?;
        take_addressee(&mut rest)?;
        Some(rest)
    };
    let rejection = |mut rest: &[u8]| {
        let number = u8::try_from(take::<U32>(&mut rest)?.get()).ok()?;
        Rejection::from_number(number, take::<U64>(&mut rest)?.get())
    };
    if kind == Kind::Reject
        && let Some(why) = content(true).and_then(rejection)
        && why.is_open()
    {
        return Some(Answer::Reject(why));
    }
    let mut rest = content(false)?;
    match kind {
        Kind::Retry => Some(Answer::Retry(*take(&mut rest)?)),
        Kind::Accept => Some(Answer::Accept(take::<U32>(&mut rest)?.get(), take_message(&mut rest)?)),
        Kind::Reject => rejection(rest).map(Answer::Reject),
        Kind::Hello | Kind::Open | Kind::Data => None,
    }
}
