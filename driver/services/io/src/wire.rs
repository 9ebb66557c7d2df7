//! Requests and replies: fixed structures of plain numbers, and the bytes behind them.
//!
//! A request is one message: a [`Request`], and behind it the bytes to write, or a path. A reply is one message: a [`Reply`],
//! and behind it the bytes that were read. The tag of both holds the asking thread (high half) and the number of the request
//! (low half). Each side checks everything that comes from the other before it uses it.

use doorbell_engine::KEY_BYTES;
use zerocopy::byteorder::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// The version of the protocol; other versions are refused.
pub(super) const VERSION: u32 = 3;
/// The most bytes that go in the message itself.
pub(super) const INLINE_MAX: usize = 16 << 10;
/// The system's longest path, with its final NUL.
pub(super) const PATH_MAX: usize = libc::PATH_MAX as usize;
/// The longest message: a request or reply, and behind it the bytes read or written, or a path.
pub(super) const ROOM: usize = HEAD + INLINE_MAX;
/// The length of a request, and of a reply, in bytes.
pub(super) const HEAD: usize = 32;
/// An offset that stands for the descriptor's cursor.
pub(super) const AT_CURSOR: u64 = u64::MAX;
/// The value of a reply whose read reached the end of the file.
pub(super) const AT_END: u64 = 1;
/// A place in the staging memory that stands for the message itself.
pub(super) const IN_MESSAGE: u32 = u32::MAX;

/// The operation that a client asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub(super) enum Op {
    /// Become a client, with `length` bytes of staging memory. `offset` is the version. The reply is a [`Welcome`].
    Hello = 1,
    /// End as a client. No reply.
    #[default]
    Bye = 2,
    /// Open the path that follows, with the flags and mode in `offset`. The result is a descriptor.
    Open = 3,
    /// Close a descriptor.
    Close = 4,
    /// Read `length` bytes from `offset` on.
    Read = 5,
    /// Write `length` bytes at `offset`. At the cursor, the reply tells where the cursor is then.
    Write = 6,
    /// Move the cursor by `offset`; `length` is the `whence` of `lseek`.
    Seek = 7,
    /// The metadata of the path that follows; with `length` 1 of a link itself. The reply is [`Facts`].
    Stat = 8,
    /// The metadata of a descriptor.
    Inspect = 9,
    /// Sync a file to the medium; with `length` 1 without metadata such as times.
    Sync = 10,
    /// The next names of a directory. The reply holds entries.
    List = 11,
    /// Remove the file of the path that follows.
    Remove = 12,
    /// Set the length of a file to `offset`.
    Resize = 13,
    /// Ask whether the sender is still a client, and how many of its other requests have no reply. Replies arrive in the order
    /// in which they are given. So an earlier request is lost if it is not counted and its reply is not there.
    Ping = 14,
}

impl Op {
    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::try_read_from_bytes(&[number]).ok()
    }
}

/// A request as it travels.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Request {
    pub op: u8,
    /// 1: no reply is wanted.
    pub quiet: u8,
    pub descriptor: U16,
    /// The number of the client, from its welcome.
    pub client: U32,
    pub offset: U64,
    pub length: U32,
    /// An offset in the staging memory, or [`IN_MESSAGE`].
    pub place: U32,
    /// The random number that the client chose when it said hello.
    pub token: U64,
}

impl Request {
    pub(super) fn new(op: Op) -> Self {
        Self { op: op as u8, place: IN_MESSAGE.into(), ..Self::default() }
    }
}

/// A reply as it travels.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Reply {
    /// What the system call returned: a number from 0 on, or a negative errno.
    pub result: I64,
    /// The cursor after a write at the cursor, or [`AT_END`] after a read.
    pub value: U64,
    pub spare: [u8; 16],
}

impl Reply {
    pub(super) fn new(result: i64, value: u64) -> Self {
        Self { result: result.into(), value: value.into(), spare: [0; 16] }
    }
}

/// The reply to a new client.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Welcome {
    pub client: U32,
    /// The length of its staging memory, in bytes.
    pub staging: U32,
    /// The key to its staging memory.
    pub key: [u8; KEY_BYTES],
}

/// The metadata of a file.
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

/// The part of a directory entry before the name.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct EntryHead {
    pub inode: U64,
    /// As `d_type` of the system.
    pub kind: u8,
    /// The length of the name, which follows, in bytes.
    pub len: u8,
}

const _: () = assert!(size_of::<Request>() == HEAD && size_of::<Reply>() == HEAD && PATH_MAX <= INLINE_MAX);

/// The tag of a message.
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
