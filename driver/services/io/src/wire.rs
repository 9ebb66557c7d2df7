//! Requests and replies: fixed structures of plain numbers, and what follows them.
//!
//! A request of a thread is one message: a [`Request`], and behind it what it writes, or a path. So is a reply: a [`Reply`], and behind it
//! what was read. The tag of both is the thread that asks (high half) and a number of its own (low half). Nothing that comes from the other
//! side is used before it was checked.

use doorbell_engine::KEY_BYTES;
use zerocopy::byteorder::little_endian::I64;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of what is said; other versions are refused.
pub(super) const VERSION: u32 = 3;
/// The most bytes that go in the message itself.
pub(super) const INLINE_MAX: usize = 16 << 10;
/// The longest path, as the system has it, with its final NUL.
pub(super) const PATH_MAX: usize = libc::PATH_MAX as usize;
/// Room for every message: what is read or written in the message, or a path, behind a request or reply.
pub(super) const ROOM: usize = HEAD + INLINE_MAX;
/// Bytes of a request, and of a reply.
pub(super) const HEAD: usize = 32;
/// An offset that means the place where the descriptor is.
pub(super) const AT_CURSOR: u64 = u64::MAX;
/// The value of a reply that read up to the end of the file.
pub(super) const AT_END: u64 = 1;
/// A place in the staging memory that means: in the message itself.
pub(super) const IN_MESSAGE: u32 = u32::MAX;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Op {
    /// To be a client: `length` bytes of staging memory. The version is the `offset`. Answered with a [`Welcome`].
    Hello = 1,
    /// To be none any more. Not answered.
    Bye = 2,
    /// To open the path that follows, with the flags and mode in `offset`. The result is a descriptor.
    Open = 3,
    /// To close a descriptor.
    Close = 4,
    /// To read `length` bytes from `offset` on.
    Read = 5,
    /// To write them. At the cursor the reply says where that is then.
    Write = 6,
    /// To move the cursor: by `offset`, as `length` says.
    Seek = 7,
    /// What there is to know of the path that follows; with `length` 1 of a link itself. Answered with [`Facts`].
    Stat = 8,
    /// The same of a descriptor.
    Inspect = 9,
    /// To have all that was written on the medium; with `length` 1 without what is only about the file.
    Sync = 10,
    /// The next names of a directory. Answered with entries.
    List = 11,
    /// To remove the file of the path that follows.
    Remove = 12,
    /// To set the length of a file to `offset`.
    Resize = 13,
    /// To be told whether it is a client still, and how many other requests of it are not answered: answers come in the order in which they are given,
    /// so what was asked before and is neither under way nor there is lost.
    Ping = 14,
}

impl Op {
    pub(super) fn from_number(number: u8) -> Option<Self> {
        use Op::*;
        let all = [Hello, Bye, Open, Close, Read, Write, Seek, Stat, Inspect, Sync, List, Remove, Resize, Ping];
        all.into_iter().find(|op| *op as u8 == number)
    }
}

/// What a client asks for, as it travels.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Request {
    pub op: u8,
    /// 1: no reply is wanted.
    pub quiet: u8,
    pub descriptor: U16,
    /// Who asks, as the welcome said.
    pub client: U32,
    pub offset: U64,
    pub length: U32,
    /// Where in the staging memory, or [`IN_MESSAGE`].
    pub place: U32,
    /// What the client made up when it said hello, and nobody else says.
    pub token: U64,
}

impl Request {
    pub(super) fn new(op: Op) -> Self {
        let (zero, none) = (U32::new(0), U32::new(IN_MESSAGE));
        Self {
            op: op as u8,
            quiet: 0,
            descriptor: U16::new(0),
            client: zero,
            offset: U64::new(0),
            length: zero,
            place: none,
            token: U64::new(0),
        }
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Reply {
    /// What the system call returned: a number from 0 on, or an errno with a minus.
    pub result: I64,
    /// Where the cursor is, where that is said.
    pub value: U64,
    pub spare: [u8; 16],
}

impl Reply {
    pub(super) fn new(result: i64, value: u64) -> Self {
        Self { result: I64::new(result), value: U64::new(value), spare: [0; 16] }
    }
}

/// What a new client is told.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Welcome {
    pub client: U32,
    /// Bytes of its staging memory.
    pub staging: U32,
    /// The key to it.
    pub key: [u8; KEY_BYTES],
}

/// What there is to know of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Facts {
    pub size: U64,
    pub blocks: U64,
    pub inode: U64,
    pub mode: U32,
    pub links: U32,
    pub user: U32,
    pub group: U32,
    pub modified_s: I64,
    pub accessed_s: I64,
    pub changed_s: I64,
    pub modified_ns: U32,
    pub accessed_ns: U32,
    pub changed_ns: U32,
    pub spare: U32,
}

/// What stands before the name of an entry of a directory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct EntryHead {
    pub inode: U64,
    /// As `d_type` of the system.
    pub kind: u8,
    /// Bytes of the name, which follows.
    pub len: u8,
}

const _: () = assert!(size_of::<Request>() == HEAD && size_of::<Reply>() == HEAD && PATH_MAX <= INLINE_MAX);

/// Whose a message is, by its tag.
pub(super) fn tag(thread: u32, number: u32) -> u64 {
    u64::from(thread) << 32 | u64::from(number)
}

/// The thread of a tag.
pub(super) fn thread_of(tag: u64) -> u32 {
    (tag >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_no_operation_are_none() {
        for number in 0..=255 {
            assert_eq!(Op::from_number(number).map(|op| op as u8), (1..=14).contains(&number).then_some(number));
        }
    }

    #[test]
    fn tags_keep_both_halves() {
        assert_eq!((thread_of(tag(7, u32::MAX)), tag(7, u32::MAX) as u32), (7, u32::MAX));
    }
}
