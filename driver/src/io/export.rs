//! The exported directory, which cannot be left.
//!
//! The system resolves every path (`openat2` with `RESOLVE_BENEATH` and `RESOLVE_NO_MAGICLINKS`): `..`, an absolute path or a link that leads
//! out ends with `EXDEV`, whatever anybody renames meanwhile. What is removed or looked at is a name in a directory that was opened like that.

use super::wire::{Facts, PATH_MAX};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::cell::Cell;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use zerocopy::byteorder::little_endian::{I64, U32, U64};

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
/// How often a path is tried again if somebody renames what is on the way.
pub(super) const TRIES: u32 = 16;
/// What a client may ask for. All else is refused, so that nothing new of a later system comes in by chance.
const ALLOWED: OFlags = OFlags::RDWR
    .union(OFlags::WRONLY)
    .union(OFlags::APPEND)
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::TRUNC)
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::DSYNC)
    .union(OFlags::SYNC)
    .union(OFlags::NOATIME);

/// The directory that is served.
#[derive(Debug)]
pub(super) struct Export {
    root: OwnedFd,
    read_only: bool,
    resolve: ResolveFlags,
    /// The file system that was asked for last, and what its files are.
    medium: Cell<Option<(u64, Kind)>>,
}

/// What was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A file whose bytes are in memory: no call on it waits for a medium.
    InMemory,
    /// Any other file.
    File,
    Directory,
}

impl Export {
    pub(super) fn open(directory: &Path, read_only: bool, one_file_system: bool) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(directory, flags, Mode::empty())?;
        // Tells now, not with the first request, that the system can't.
        rustix::fs::openat2(&root, c".", flags, Mode::empty(), RESOLVE)?;
        let resolve = if one_file_system { RESOLVE.union(ResolveFlags::NO_XDEV) } else { RESOLVE };
        Ok(Self { root, read_only, resolve, medium: Cell::new(None) })
    }

    /// How paths are resolved.
    pub(super) fn resolve(&self) -> ResolveFlags {
        self.resolve
    }

    /// A name, to look at it or in it.
    fn find(&self, path: impl rustix::path::Arg + Copy, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
        let mut found = Err(Errno::AGAIN);
        for _ in 0..TRIES {
            found = rustix::fs::openat2(&self.root, path, flags, Mode::empty(), self.resolve);
            if !matches!(found, Err(Errno::AGAIN)) {
                break;
            }
        }
        found
    }

    pub(super) fn root(&self) -> RawFd {
        self.root.as_raw_fd()
    }

    /// The flags and mode with which a path is opened, if they are allowed. Nothing that is opened makes the server wait, and nothing becomes its terminal.
    pub(super) fn how(&self, value: u64) -> Result<(OFlags, Mode), Errno> {
        let flags = OFlags::from_bits_retain(value as u32);
        let mode = Mode::from_bits((value >> 32) as u32).filter(|mode| mode.bits() & !0o777 == 0).ok_or(Errno::INVAL)?;
        let access = flags & OFlags::ACCMODE;
        if !ALLOWED.contains(flags) || access == OFlags::ACCMODE {
            return Err(Errno::INVAL);
        }
        let changes = access != OFlags::RDONLY || flags.intersects(OFlags::CREATE | OFlags::TRUNC);
        if self.read_only && changes {
            return Err(Errno::ROFS);
        }
        let mode = if flags.contains(OFlags::CREATE) { mode } else { Mode::empty() };
        Ok((flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC, mode))
    }

    /// Whether anything may be changed.
    pub(super) fn may_change(&self) -> Result<(), Errno> {
        if self.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// What was opened, if it is something to read and write that makes nobody wait.
    pub(super) fn admit(&self, file: &OwnedFd) -> Result<Kind, Errno> {
        let Stat { st_mode, st_dev, .. } = rustix::fs::fstat(file)?;
        match FileType::from_raw_mode(st_mode) {
            FileType::Directory => Ok(Kind::Directory),
            FileType::RegularFile => {
                // With it io_uring may refuse to wait for the medium.
                let flags = rustix::fs::fcntl_getfl(file)?;
                rustix::fs::fcntl_setfl(file, flags - OFlags::NONBLOCK)?;
                if let Some((_, kind)) = self.medium.get().filter(|(device, _)| *device == st_dev) {
                    return Ok(kind);
                }
                // `TMPFS_MAGIC` and `RAMFS_MAGIC`.
                let medium = rustix::fs::fstatfs(file)?.f_type as u32;
                let kind = if matches!(medium, 0x0102_1994 | 0x8584_58f6) { Kind::InMemory } else { Kind::File };
                self.medium.set(Some((st_dev, kind)));
                Ok(kind)
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// What there is to know of what a path names, links in it followed as long as they stay beneath.
    pub(super) fn stat(&self, path: &CStr, follow: bool) -> Result<Facts, Errno> {
        let last = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        facts(&self.find(path, last)?)
    }

    /// Removes a file: the name itself, never what a link in its place means.
    pub(super) fn remove(&self, path: &CStr) -> Result<(), Errno> {
        self.may_change()?;
        let bytes = path.to_bytes();
        let (parent, name) = match bytes.iter().rposition(|byte| *byte == b'/') {
            Some(0) => return Err(Errno::XDEV),
            Some(at) => (&bytes[..at], &bytes[at + 1..]),
            None => (&b"."[..], bytes),
        };
        if name.is_empty() || name == b"." || name == b".." {
            return Err(if bytes.is_empty() { Errno::NOENT } else { Errno::ISDIR });
        }
        let parent = self.find(parent, OFlags::DIRECTORY)?;
        rustix::fs::unlinkat(&parent, name, AtFlags::empty())
    }
}

/// What there is to know of an open file.
pub(super) fn facts(file: impl AsFd) -> Result<Facts, Errno> {
    let Stat { st_size, st_blocks, st_ino, st_mode, st_nlink, st_uid, st_gid, .. } = rustix::fs::fstat(&file)?;
    let stat = rustix::fs::fstat(&file)?;
    Ok(Facts {
        size: U64::new(st_size as u64),
        blocks: U64::new(st_blocks as u64),
        inode: U64::new(st_ino),
        mode: U32::new(st_mode),
        links: U32::new(u32::try_from(st_nlink).unwrap_or(u32::MAX)),
        user: U32::new(st_uid),
        group: U32::new(st_gid),
        modified_s: I64::new(stat.st_mtime),
        accessed_s: I64::new(stat.st_atime),
        changed_s: I64::new(stat.st_ctime),
        modified_ns: U32::new(stat.st_mtime_nsec as u32),
        accessed_ns: U32::new(stat.st_atime_nsec as u32),
        changed_ns: U32::new(stat.st_ctime_nsec as u32),
        spare: U32::new(0),
    })
}

/// A path as the system takes it. `path` has room for one byte more.
pub(super) fn path(room: &mut [u8], len: usize) -> Result<&CStr, Errno> {
    if len >= PATH_MAX || len >= room.len() {
        return Err(Errno::NAMETOOLONG);
    }
    room[len] = 0;
    if len == 0 {
        return Err(Errno::NOENT);
    }
    // A NUL before the end: no such name can be.
    CStr::from_bytes_with_nul(&room[..=len]).map_err(|_| Errno::INVAL)
}
